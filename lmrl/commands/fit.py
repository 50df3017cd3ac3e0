"""``lmrl fit``: LightningCLI over any LightningModule and LightningDataModule, with errors that name what is known."""

import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from pickle import UnpicklingError

from jsonargparse import ArgumentError
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lmrl.commands.metrics import continued_metrics
from lmrl.commands.parser_errors import explain
from lmrl.config_files import config_file
from lmrl.errors import UserError
from lmrl.models.checkpoint import check_checkpoint, unreadable
from lmrl.models.lm import weights_on_first_process

__all__ = ["RunConfig", "TrainingCLI", "fit"]


_TERMINATED = 128 + signal.SIGTERM


class RunConfig(SaveConfigCallback):
    """Writes the complete configuration of a run to ``config.yaml`` in its folder (``trainer.default_root_dir``)."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        folder = Path(trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self.parser.save(self.config, folder / self.config_filename, skip_none=False, overwrite=True)


class TrainingCLI(LightningCLI):
    """Parses ``seed_everything``, ``trainer``, ``model``, ``data`` and ``ckpt_path``, and builds what they describe.

    Several ``--config`` files are merged in their order, the command line comes last, and OmegaConf interpolation is
    resolved over all of it, so that ``${trainer.default_root_dir}`` is where the run really is.
    """

    def __init__(self, args: Sequence[str]) -> None:
        self._words = list(args)
        super().__init__(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=RunConfig,
            save_config_kwargs={"overwrite": True, "save_to_log_dir": False},
            seed_everything_default=0,
            parser_kwargs={"parser_mode": "omegaconf+", "exit_on_error": False, "prog": "lmrl fit"},
            auto_configure_optimizers=False,
            run=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--ckpt_path", type=str | None, default=None, help="a checkpoint to go on from")
        parser.add_argument(
            "--allow_pickle",
            type=bool,
            default=False,
            help="read one with pickled objects; that can run any code in it",
        )

    def instantiate_classes(self) -> None:
        """Build what is described; where the weights will be in shards, only the first process reads all of them."""
        strategy = getattr(self.config.trainer.strategy, "class_path", "")
        with weights_on_first_process() if strategy.endswith(".ModelParallelStrategy") else nullcontext():
            super().instantiate_classes()

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse the words that were handed in, whatever ``sys.argv`` holds.

        Raises:
            UserError: an unknown or malformed key (the message names the nearest and the known ones), or a missing
                checkpoint.
        """
        try:
            self.config = parser.parse_args(self._words)
        except ArgumentError as error:
            raise UserError(explain(str(error), parser)) from error
        checkpoint = self.config.ckpt_path
        if checkpoint is not None:
            check_checkpoint(Path(checkpoint), self.config.allow_pickle)


def fit(argv: Sequence[str]) -> int:
    """Train: ``lmrl fit --config configs/maze_fo/ilql.yaml [--config overlay.yaml] [--trainer.max_steps=1000]``.

    Returns:
        The exit code: 0, or 143 if a SIGTERM ended the training before its time.

    Raises:
        UserError: a missing configuration file, an unknown key, a missing dataset or checkpoint.
    """
    words = _with_config_files(argv)
    if not words:
        raise UserError("nothing to train: lmrl fit --config configs/<task>/<algorithm>.yaml (see: lmrl fit --help)")
    cli = TrainingCLI(words)
    checkpoint = cli.config.ckpt_path
    with continued_metrics(Path(cli.trainer.default_root_dir)) if checkpoint else nullcontext():
        try:
            cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=checkpoint, weights_only=not cli.config.allow_pickle)
        except UnpicklingError as error:
            raise unreadable(checkpoint, error) from error
        except SIGTERMException:  # Lightning would have it end with 0, as if the training was finished
            print("terminated", file=sys.stderr)
            return _TERMINATED
    return 0


def _with_config_files(argv: Sequence[str]) -> list[str]:
    """The same words with ``--config`` names resolved, so that shipped files are found from anywhere."""
    words = list(argv)
    for index, word in enumerate(words):
        if word.startswith("--config="):
            words[index] = f"--config={config_file(word.removeprefix('--config='))}"
        elif index and words[index - 1] == "--config":
            words[index] = str(config_file(word))
    return words
