"""The folder of a run: it is never written over, is held by one training, and keeps the metrics of a resumed run."""

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from omegaconf import OmegaConf

from lmrl.checkpoints.export import read_manifest
from lmrl.checkpoints.reading import is_checkpoint, steps_of
from lmrl.checkpoints.run_files import has_run, set_aside
from lmrl.errors import UserError
from lmrl.utils.configuration import check_config, max_steps_of
from lmrl.utils.files import check_may_replace, locked, remove, replacing

__all__ = ["MetricsFile", "check_run_folder", "run_folder", "unfinished"]

_FIRST_FILES = ("config.yaml", "metrics.csv")
"""Files that a training writes before its first checkpoint."""


def check_run_folder(folder: Path, checkpoint: Path | None, overwrite: bool) -> None:
    """Refuse a training that would write over a run: only that run itself resumes in its folder.

    Args:
        folder: ``trainer.default_root_dir``.
        checkpoint: checkpoint from which the training resumes.
        overwrite: the run there, if there is one, is moved away.

    Raises:
        UserError: there is a run; the message names the ways out.
    """
    own = checkpoint is not None and checkpoint.resolve().is_relative_to(folder.resolve())
    if overwrite and own:
        raise UserError(f"overwrite moves {folder} away, and ckpt_path resumes from {checkpoint} in it: leave out one")
    if overwrite or own:
        return
    if not has_run(folder):
        # A training that was stopped before its first checkpoint leaves these two.
        check_may_replace(folder, _begun(folder), "training", written=_FIRST_FILES)
        return
    steps = read_manifest(folder / "last").get("made_with", {}).get("steps")
    can_resume = is_checkpoint(folder / "last.ckpt") or is_checkpoint(folder / "best.ckpt")
    reached = "" if steps is None else f" of {steps} steps"
    way_out = "resume it with --resume, or " if can_resume else "it has no checkpoint to resume from: "
    raise UserError(
        f"{folder} holds a run{reached}: {way_out}start a new run with --overwrite (the old one moves to "
        f"{folder.parent / '.earlier'}), or name another folder with --trainer.default_root_dir"
    )


def unfinished(start: str) -> str:
    """Say how far a run has come that was stopped before its last step: ``50 of 1,000 steps``.

    Args:
        start: what a training starts from: a run folder, or ``best`` or ``last`` in it; anything else gives an empty
            text.

    Returns:
        An empty text if the run went to its end, or does not say how long it should have been.

    Raises:
        UserError: its configuration or ``lmrl.json`` is damaged.
    """
    folder = Path(start)
    run = folder.parent if folder.name in ("best", "last") else folder
    config = run / "config.yaml"
    reached = read_manifest(run / "last").get("made_with", {}).get("steps")
    if not config.is_file() or not isinstance(reached, int):
        return ""
    check_config(config)
    planned = max_steps_of(OmegaConf.load(config))
    return f"{reached:,} of {planned:,} steps" if planned is not None and reached < planned else ""


def _begun(folder: Path) -> list[str]:
    """Return which of the first files of a run in a folder a training has written."""
    own = []
    config = folder / "config.yaml"
    # A whole configuration, with what a file for `--config` leaves out.
    if config.is_file() and {b"ckpt_path", b"allow_pickle"} <= {line.partition(b":")[0] for line in config.open("rb")}:
        own.append(config.name)
    metrics = folder / "metrics.csv"
    if metrics.is_file() and b"step" in metrics.read_bytes().partition(b"\n")[0].split(b","):
        own.append(metrics.name)
    return own


@contextmanager
def run_folder(trainer: Trainer, checkpoint: Path | None, overwrite: bool, allow_pickle: bool) -> Iterator[None]:
    """Hold the folder of a run while it is trained. The first process does it for all that train together.

    Metrics that were logged after the checkpoint are dropped, as they are about to be logged again. A new run that
    fails before its first step leaves no folder.

    Args:
        trainer: trainer of the run.
        checkpoint: checkpoint from which the training resumes.
        overwrite: move the run that is there to ``.earlier/NAME-1`` (2, 3, ...) next to it.
        allow_pickle: see `lmrl.checkpoints.reading.read_checkpoint`.

    Raises:
        UserError: as `check_run_folder`, or another training is under way in the folder.
    """
    if not trainer.is_global_zero:
        yield
        return
    folder = Path(trainer.default_root_dir)
    with locked(folder, "run folder"):
        check_run_folder(folder, checkpoint, overwrite)
        moved = set_aside(folder) if overwrite else None
        if moved:
            print(f"the run that was in {folder} is now in {moved}")
        is_new = not folder.exists()
        step = None if checkpoint is None else steps_of(checkpoint, allow_pickle)
        for logger in trainer.loggers:
            if isinstance(logger, CSVLogger):
                logger._experiment = MetricsFile(logger.log_dir, step)  # which Lightning would make without the rows
            elif isinstance(logger, TensorBoardLogger) and step is not None:
                logger._kwargs.setdefault("purge_step", step + 1)
        try:
            yield
        except BaseException:
            # A run that failed before its first step, as over a broken data file, leaves nothing.
            if is_new and trainer.global_step == 0 and not has_run(folder):
                remove(folder)
            raise


class MetricsFile(ExperimentWriter):
    """``metrics.csv`` of a `CSVLogger`, which Lightning would delete when a run resumes.

    A new column has the file written again, in one step; else rows are appended.

    Args:
        log_dir: where it is.
        step: optimizer steps of the checkpoint that the run resumes from; None for a new run.
    """

    def __init__(self, log_dir: str, step: int | None = None) -> None:
        super().__init__(log_dir)
        kept = _until(self._rows(), step)
        self.metrics_keys = sorted({name for row in kept for name in row})
        if kept:
            self._write(kept)
        else:
            Path(self.metrics_file_path).unlink(missing_ok=True)

    def _check_log_dir_exists(self) -> None:
        """Lightning deletes an earlier file here."""

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        self._write(self._rows())

    def _rows(self) -> list[dict[str, str]]:
        """The complete rows of the file; the last may be a half one, if the process was killed while it wrote."""
        path = Path(self.metrics_file_path)
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        return list(csv.DictReader(StringIO(text[: text.rfind("\n") + 1])))

    def _write(self, rows: list[dict[str, str]]) -> None:
        text = StringIO(newline="")
        writer = csv.DictWriter(text, self.metrics_keys, restval="")
        writer.writeheader()
        writer.writerows(rows)
        with replacing(self.metrics_file_path) as file:
            file.write(text.getvalue().encode())


def _until(rows: list[dict[str, str]], step: int | None) -> list[dict[str, str]]:
    """Return the rows, in order, that were logged before the checkpoint of this step became ``last.ckpt``."""
    for index, row in enumerate(rows):
        if step is None or _is_after(row, step):
            return rows[:index]
    return rows


def _is_after(row: Mapping[str, str], step: int) -> bool:
    """Return whether a run that resumes after this number of optimizer steps logs a row again.

    Lightning logs the batch that makes step ``s`` under ``s - 1``, with its epoch; `lmrl.training.reporting.log_now`
    logs under the number of steps so far: evaluations after a batch, and rounds before the next one.
    """
    logged = int(row["step"])
    if row.get("epoch"):
        return logged >= step
    return logged > step or (logged == step and any(v for name, v in row.items() if name.startswith("rollout/")))
