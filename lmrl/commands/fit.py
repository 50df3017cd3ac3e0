"""``lmrl fit``: LightningCLI over any LightningModule and LightningDataModule."""

import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from glob import escape
from importlib import import_module
from pathlib import Path
from pickle import UnpicklingError
from threading import Thread
from time import sleep
from typing import Any

import lightning.pytorch as lightning_package
import torch
from jsonargparse import ArgumentError, Namespace
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.exceptions import SIGTERMException
from omegaconf.errors import OmegaConfBaseException

from lmrl.callbacks import ComputeBudget, InteractiveEvaluation, KeepLast, TrainingProgress
from lmrl.checkpoints.reading import check_checkpoint, is_checkpoint, resolve_pretrained, steps_of, unreadable
from lmrl.checkpoints.run_files import files_of_run, has_run
from lmrl.commands.arguments import PUBLIC, explain, public_classes
from lmrl.commands.libraries import explain_library, is_refused_setting, quiet_libraries
from lmrl.commands.run_folder import check_run_folder, run_folder, unfinished
from lmrl.commands.verb import NOTHING_TO_TRAIN
from lmrl.envs import registry
from lmrl.errors import UserError, check_range, in_one_line, system_error, user_error_in
from lmrl.models.lm import weights_on_first_process
from lmrl.modules import LanguageModule
from lmrl.modules.load import variables_before
from lmrl.utils.configuration import config_file, configuration, defaults_file, value_at, with_config_files
from lmrl.utils.distributed import is_first_process
from lmrl.utils.files import replacing
from lmrl.utils.threads import threads_for

__all__ = ["RunConfig", "TrainingCLI", "fit"]


_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM
#: Environment variable: the process that started those of the same training.
_PARENT = "LMRL_FIT_PROCESS"
#: Ranges of settings for which Lightning accepts other values, and then fails or does nothing.
_RANGES = {
    "[0, 4294967295]": ("seed_everything",),
    "[1, inf)": ("trainer.accumulate_grad_batches", "trainer.check_val_every_n_epoch", "trainer.num_nodes"),
    "[0, inf)": ("trainer.gradient_clip_val", "trainer.log_every_n_steps"),
}
_INCOMPLETE = re.compile(r"'([\w.]+)':\s+the following arguments are required: (\w+)")
#: Settings that callbacks in the defaults and in online run files refer to.
_OF_CALLBACKS: dict[str, tuple[str, dict[str, type]]] = {
    "evaluation": ("InteractiveEvaluation", {"every_n_steps": int, "episodes": int}),
    "checkpoint": ("KeepLast", {"every_n_steps": int}),
    "rollout": ("RolloutCollection", {"episodes": int, "slots": int, "max_staleness": int, "stop_fallen": bool}),
}


class RunConfig(SaveConfigCallback):
    """Writes the complete configuration of a run to ``config.yaml`` in its folder (``trainer.default_root_dir``).

    A resumed run keeps its configuration until the checkpoint was accepted: a refused one changes nothing.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write the configuration of a new run."""
        if self.config.ckpt_path is None:
            super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the configuration of a resumed run, and print the step at which it resumes."""
        if self.config.ckpt_path is not None:
            super().setup(trainer, pl_module, "fit")
            if trainer.is_global_zero:
                print(f"resuming at step {trainer.global_step}", file=sys.stderr)

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        config = self.config.clone()
        config.overwrite = False  # asked for once: who trains from this file again does not mean it
        # A run that is killed here must leave no empty file: the next one would refuse to replace it.
        with replacing(Path(trainer.default_root_dir) / self.config_filename) as file:
            file.write(self.parser.dump(config, skip_none=False).encode())


class TrainingCLI(LightningCLI):
    """Parses ``seed_everything``, ``trainer``, ``model``, ``data`` and ``ckpt_path``, and builds what they describe.

    A run begins with ``configs/defaults.yaml``; several ``--config`` files are merged over it in their order, the
    command line comes last, and OmegaConf interpolation is resolved over all of it, so that
    ``${trainer.default_root_dir}`` is where the run really is. A LightningModule that is no `LanguageModule` begins
    with what Lightning has by itself: the callbacks of the defaults would have it play.
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
            parser_kwargs={
                "parser_mode": "omegaconf+",
                "exit_on_error": False,
                "allow_abbrev": False,
                "prog": "lmrl fit",
                "default_config_files": [escape(str(defaults_file()))] if _has_defaults(self._words) else [],
            },
            auto_configure_optimizers=False,
            run=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        for group, (kind, types) in _OF_CALLBACKS.items():
            for name, value_type in types.items():
                help_text = f"of the default {kind}"
                parser.add_argument(f"--{group}.{name}", type=value_type | None, default=None, help=help_text)
        parser.add_argument("--compute.tflop", type=float | None, default=None, help="end by ComputeBudget")
        parser.add_argument("--compute.save_at", type=list[float], default=[], help="shares at which it keeps policies")
        parser.add_argument("--ckpt_path", type=str | None, default=None, help="checkpoint to resume from")
        parser.add_argument(
            "--overwrite",
            action="store_true",
            help="start a new run; the old one moves to .earlier/NAME-1 next to its folder",
        )
        parser.add_argument(
            "--allow_pickle",
            action="store_true",
            help="read one with pickled objects; that can run any code in it",
        )

    def instantiate_classes(self) -> None:
        """Build what is described; where the weights will be in shards, only the first process reads all of them.

        Raises:
            UserError: a constructor does not take a value.
        """
        strategy = getattr(self.config.trainer.strategy, "class_path", "")
        try:
            with weights_on_first_process() if strategy.endswith(".ModelParallelStrategy") else nullcontext():
                super().instantiate_classes()
        except Exception as error:
            if user_error_in(error) or explain_library(error) or not is_refused_setting(error):
                raise
            raise UserError(f"a value in the configuration is not taken: {explain(str(error), self.parser)}") from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the budget that is asked for, and the progress bar, unless there is another one or none is wanted."""
        settings = self.config_init.trainer
        given = settings.callbacks if isinstance(settings.callbacks, list) else [settings.callbacks]
        callbacks = [*filter(None, given)]
        compute = self.config_init.compute
        if compute.tflop is not None:
            callbacks.append(ComputeBudget(compute.tflop, compute.save_at))
        if settings.enable_progress_bar is not False and not any(isinstance(c, ProgressBar) for c in callbacks):
            callbacks.append(TrainingProgress())
        settings.callbacks = callbacks
        # Apple's GPU cannot compute in float64, which sampling and critics need.
        if settings.accelerator == "auto" and torch.backends.mps.is_available():
            settings.accelerator = "cpu"
        return super().instantiate_trainer(**kwargs)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse the given words, whatever ``sys.argv`` holds.

        Raises:
            UserError: an unknown or malformed key (the message names the nearest and the known ones), or a missing
                checkpoint.
        """
        try:
            self.config = parser.parse_args(self._words)
        except ArgumentError as error:
            raise UserError(_told(str(error), parser, self._words)) from error
        except OmegaConfBaseException as error:
            raise UserError(f"the configuration cannot be put together: {error}") from error
        except ValueError as error:  # a number of more digits than Python reads
            if user_error_in(error):
                raise
            raise UserError(f"the configuration cannot be put together: {in_one_line(error)}") from error
        _check_settings(self.config)
        _check_callbacks(self.config, self._words)
        checkpoint = self.config.ckpt_path
        if checkpoint is not None:
            check_checkpoint(Path(checkpoint), self.config.allow_pickle)
        if is_first_process():  # before anything is loaded
            folder = Path(self.config.trainer.default_root_dir or ".")
            check_run_folder(folder, None if checkpoint is None else Path(checkpoint), self.config.overwrite)
            start = self.config.model.init_args.get("pretrained")
            if checkpoint is not None:
                _check_same_start(folder, start)
                _check_same_settings(folder, self.config)
            elif isinstance(start, str) and (steps := unfinished(start)):
                print(f"warning: model.init_args.pretrained, {start}, is an unfinished run: {steps}", file=sys.stderr)


def fit(argv: Sequence[str]) -> int:
    """Train: ``lmrl fit --config configs/maze_fo/ilql.yaml [--config overlay.yaml] [--trainer.max_steps=1000]``.

    Returns:
        The exit code: 0, or 143 if a SIGTERM ended the training before its time.

    Raises:
        UserError: a missing configuration file, an unknown key, a missing dataset or checkpoint.
    """
    _check_first(argv)
    words = _with_class_names(with_config_files(_with_checkpoint(argv)))
    if not words:
        raise UserError(NOTHING_TO_TRAIN)
    with quiet_libraries(), _ending_with_its_parent():
        try:
            cli = TrainingCLI(words)
            with threads_for(cli.model):
                return _train(cli, argv)
        except KeyboardInterrupt:
            if is_first_process():
                raise
            return _INTERRUPTED  # the first process says it


@contextmanager
def _ending_with_its_parent() -> Iterator[None]:
    """End this process when the one ends that has started it for the same training (`trainer.devices`).

    Lightning's processes wait for each other for half an hour, however the first one ended.
    """
    parent = os.getppid()
    if os.environ.get(_PARENT) == str(parent) and os.environ.get("LOCAL_RANK", "0") != "0":
        Thread(target=_end_with, args=(parent,), daemon=True).start()
        yield
        return
    os.environ[_PARENT] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(_PARENT, None)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        sleep(0.5)
    os._exit(1)


def _train(cli: TrainingCLI, argv: Sequence[str]) -> int:
    checkpoint = cli.config.ckpt_path
    allow_pickle = cli.config.allow_pickle
    with run_folder(cli.trainer, None if checkpoint is None else Path(checkpoint), cli.config.overwrite, allow_pickle):
        steps = None if checkpoint is None else steps_of(Path(checkpoint), allow_pickle)
        try:
            cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=checkpoint, weights_only=not allow_pickle)
        except UnpicklingError as error:
            raise unreadable(checkpoint, error) from error
        except SIGTERMException:  # Lightning would have it end with 0, as if the training was finished
            return _ended_by("terminated", _TERMINATED, cli.trainer, argv)
        except SystemExit as end:  # Lightning tidies up after Ctrl-C, and then exits with 1
            if not isinstance(end.__context__, KeyboardInterrupt):
                raise
            return _ended_by("interrupted", _INTERRUPTED, cli.trainer, argv)
        except Exception as error:
            known = user_error_in(error) or explain_library(error) or system_error(error)
            if checkpoint is None or known or not _is_refused_state(error, cli.trainer, steps):
                raise
            told = f"{type(error).__name__}: {in_one_line(error)}"
            raise UserError(f"{checkpoint} is damaged, or not of this training ({told})") from error
    if cli.trainer.is_global_zero:
        print(_ending(cli.trainer))
    return 0


def _ended_by(how: str, code: int, trainer: Trainer, argv: Sequence[str]) -> int:
    """Wait for the other processes of the run, say how to resume it, and return the exit code."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, KeepLast):
            callback.wait_for_children()
    if trainer.is_global_zero:
        print(f"{how}{_how_to_resume(trainer, argv)}", file=sys.stderr)
    return code


def _is_refused_state(error: Exception, trainer: Trainer, steps: int | None) -> bool:
    """Whether an exception is about the state in a checkpoint: it came up while that was restored, or used first."""
    for frame in traceback.extract_tb(error.__traceback__):
        restores = frame.name.lstrip("_").startswith(("restore", "resume", "load_checkpoint"))
        if restores and Path(frame.filename).is_relative_to(Path(lightning_package.__file__).parent):
            return True
    return steps is not None and trainer.global_step <= steps + 1 and is_refused_setting(error)


def _how_to_resume(trainer: Trainer, argv: Sequence[str]) -> str:
    """Return the step of an ended training, and the command that resumes from ``last.ckpt`` if there is one."""
    last = Path(trainer.default_root_dir) / "last.ckpt"
    if not is_checkpoint(last):
        return f" at step {trainer.global_step}; there is no {last} to resume from"
    # The words of the command, without those that say how it began.
    words = []
    previous = ""
    for word in argv:
        names_checkpoint = word.startswith("--ckpt_path") or previous == "--ckpt_path"
        if not names_checkpoint and word not in ("--overwrite", "--resume"):
            words.append(word)
        previous = word
    command = shlex.join(["lmrl", "fit", *words, f"--ckpt_path={last}"])
    return f" at step {trainer.global_step}; resume with: {command}"


def _ending(trainer: Trainer) -> str:
    """Return the summary of a training: steps, best return, folder, next command."""
    folder = trainer.default_root_dir
    steps = trainer.global_step
    played = [c for c in trainer.callbacks if isinstance(c, InteractiveEvaluation)]  # type: ignore[attr-defined]
    bests = [f"best return {p.best:.2f} (step {p.best_step})" for p in played if p.best > float("-inf")]
    bar = trainer.progress_bar_callback
    started = not isinstance(bar, TrainingProgress) or bar.started
    done = (
        f"trained {steps} steps"
        if started
        else f"nothing was left to train: {steps} steps are done, as many as asked for"
    )
    lines = ["; ".join([done, *bests]), f"the run is in {folder}"]
    if played and is_checkpoint(Path(folder) / "best.ckpt"):
        before = variables_before(type(trainer.lightning_module))
        lines.append(f"next: {before}lmrl evaluate --policy {shlex.quote(folder)}")
    elif getattr(trainer.datamodule, "task", None) is registry.DIALOGUES:  # type: ignore[attr-defined]
        lines.append(f"next: lmrl chat {shlex.quote(folder)}")
    return "\n".join(lines)


def _check_first(argv: Sequence[str]) -> None:
    """Refuse ``lmrl fit FILE``.

    Raises:
        UserError: the first word is no option.
    """
    if argv and not argv[0].startswith("-"):
        raise UserError(f"unexpected {argv[0]!r}: a configuration is named by --config{_meant(argv[:2])}")


def _with_checkpoint(argv: Sequence[str]) -> list[str]:
    """Put ``--ckpt_path`` in the place of ``--resume`` where the run has a checkpoint: the last, or else the best.

    A run that was killed before its first checkpoint is moved away, since a cluster starts the same command again and
    cannot choose. One that was evaluated stays: its checkpoints may have been deleted to save space.

    Raises:
        UserError: a checkpoint is named too.
    """
    words = [word for word in argv if word != "--resume"]
    if len(words) == len(argv):
        return words
    if any(word.partition("=")[0] in ("--ckpt_path", "--overwrite") for word in words):
        raise UserError("--resume takes the run's own checkpoint: leave out --ckpt_path and --overwrite")
    folder = Path(value_at(configuration(words), "trainer.default_root_dir") or ".")
    last = folder / "last.ckpt"
    # A run that was killed after its first evaluation may have a best checkpoint alone.
    for checkpoint in (last, folder / "best.ckpt"):
        if is_checkpoint(checkpoint):
            return [*words, f"--ckpt_path={checkpoint}"]
    if is_first_process():
        print(f"note: there is no {last} to resume from: a new run begins", file=sys.stderr)
    if has_run(folder) and set(files_of_run(folder)) <= {"metrics.csv", "best", "last"}:
        return [*words, "--overwrite"]
    return words


def _check_same_start(folder: Path, start: object) -> None:
    """Refuse to resume a run with a start that does not exist, where its own was another one.

    Another start that exists is accepted: the model may have been moved.

    Args:
        folder: folder of the run.
        start: ``model.init_args.pretrained`` as it is given now.

    Raises:
        UserError: the message names the run's own start, and how to repeat its settings.
    """
    file = folder / "config.yaml"
    if not file.is_file() or not isinstance(start, str):
        return
    before = value_at(configuration(["--config", str(file)]), "model.init_args.pretrained")
    if before in (None, start):
        return
    try:
        resolve_pretrained(start)
    except UserError as error:
        raise UserError(
            f"{folder} began from {before}, and there is no {start}: repeat the options of the run, or resume it with "
            f"--config {file} --resume"
        ) from error


def _check_same_settings(folder: Path, config: Any) -> None:
    """Refuse to resume a run with settings outside of model and data that change what it learns.

    Raises:
        UserError: the message names the first of them.
    """
    file = folder / "config.yaml"
    if not file.is_file():
        return
    before = configuration(["--config", str(file)])
    for name, default in (
        ("seed_everything", None),
        ("trainer.accumulate_grad_batches", 1),
        ("trainer.gradient_clip_val", None),
    ):
        old = value_at(before, name)
        new = config.get(name)
        if new is True:  # any seed, which the run has drawn
            continue
        if (default if old is None else old) != (default if new is None else new):
            raise UserError(
                f"{folder} began with {name} {old}, not {new}: resume it as it was (--config {file} --resume), or "
                "start a new run from its weights with model.init_args.pretrained"
            )


def _meant(words: Sequence[str]) -> str:
    """The command that was meant by ``maze_fo bc``, ``maze_fo/bc`` or a path, if there is such a configuration."""
    for name in ("/".join(words), words[0]):
        shipped = name if name.endswith(".yaml") else f"configs/{name}.yaml"
        try:
            config_file(shipped)
        except UserError:
            continue
        return f": lmrl fit --config {shipped}"
    return ": lmrl fit --config configs/<task>/<algorithm>.yaml"


def _with_class_names(argv: Sequence[str]) -> list[str]:
    """The same words; jsonargparse finds short names (``--model BC``) among the classes that are imported.

    A datamodule may do without its last syllables: ``--data OfflineData`` is `OfflineDataModule`.
    """
    words = list(argv)
    if {"-h", "--help"}.isdisjoint(words):
        for package in PUBLIC.values():
            public_classes(package)  # imports them
    options = ("--data", "--data.class_path", "--data.help")
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        if not equals:
            option = words[index - 1] if index else ""
            value = word
        name = f"{value}Module"
        if option in options and name in public_classes(PUBLIC["data"]):
            words[index] = f"{option}={name}" if equals else name
    return words


def _has_defaults(words: Sequence[str]) -> bool:
    """Whether ``configs/defaults.yaml`` is for the model that is named: one of this package's kind, or none yet."""
    try:
        config = configuration(words)
    except UserError:  # a value that the parser explains
        return True
    module, _, name = str(value_at(config, "model.class_path") or value_at(config, "model") or "").rpartition(".")
    try:
        kind = getattr(import_module(module), name) if module else None
    except (ImportError, AttributeError):  # which the parser explains
        return True
    return not isinstance(kind, type) or issubclass(kind, LanguageModule)


def _told(message: str, parser: LightningArgumentParser, words: Sequence[str]) -> str:
    if "arguments are required" not in message:
        return explain(message, parser)
    named = {word.removeprefix("--").partition("=")[0].partition(".")[0] for word in words}
    found = _INCOMPLETE.search(message)
    if found and named & {"config", "-c", "data"}:
        way_out = ": name it as data.init_args.task" if found[2] == "task" else ""
        return f"{found[1]} must be given {found[2]}{way_out}"
    return "model and data must be given, as a configuration has them: --config configs/<task>/<algorithm>.yaml"


def _check_settings(config: Namespace) -> None:
    """Refuse what Lightning would take, and then fail or do nothing.

    Raises:
        UserError: a number is outside its range, shares of no budget are given, or the run's folder is a file.
    """
    for interval, names in _RANGES.items():
        check_range(interval, **{name: config.get(name) for name in names})
    for name in ("max_steps", "max_epochs"):
        value = config.trainer.get(name)
        if value is not None and value < 1 and value != -1:
            raise UserError(f"trainer.{name} must be at least 1, or -1 for no limit, got {value}")
    if config.compute.save_at and config.compute.tflop is None:
        raise UserError("compute.save_at are shares of compute.tflop, which is not given")
    folder = Path(config.trainer.default_root_dir or ".").absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"trainer.default_root_dir must be a folder, and {existing} is a file")


def _check_callbacks(config: Namespace, words: Sequence[str]) -> None:
    """Refuse a setting of a callback on the command line where no callback refers to it.

    Raises:
        UserError: the configuration has a list of callbacks of its own.
    """
    for group, (kind, names) in _OF_CALLBACKS.items():
        listed = config.trainer.callbacks
        listed = listed if isinstance(listed, list) else [*filter(None, [listed])]
        given = [callback for callback in listed if callback.class_path.endswith(f".{kind}")]
        for name in names:
            asked = any(word.partition("=")[0] == f"--{group}.{name}" for word in words)
            if asked and config[group][name] not in [callback.init_args.get(name) for callback in given]:
                raise UserError(
                    f"{group}.{name} has no effect: trainer.callbacks "
                    + (f"says itself how {kind} is set" if given else f"holds no {kind}")
                )
