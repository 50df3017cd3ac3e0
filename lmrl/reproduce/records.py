"""Small records of finished cells: what a report needs, without weights and episodes, to keep and to share."""

import shutil
from pathlib import Path

from lmrl.evaluation.curves import find_metrics
from lmrl.evaluation.result_files import read_json, write_json
from lmrl.evaluation.scores import seed_folders
from lmrl.files import replacing_folder

__all__ = ["keep"]

_FILES = ("cell.json", "timing.json", "tuned.json", "config.yaml")
_PARTS = ("evaluation", "evaluation_last", "evaluation_tuned")
_PLAYED = ("scores.json", "episodes.csv", "transcript.txt", "probe.json")


def keep(runs: Path, records: Path) -> list[Path]:
    """Copy the small files of every finished cell; a cell of the same name that was kept before is replaced.

    `records` can then be reported on in place of `runs`, also of cells that were made elsewhere or long ago.

    Args:
        runs: folder with ``<task>/<name>/cell.json``, and with more seeds in ``seed_1`` and so on.
        records: folder for ``<task>/<name>/`` with scores, the table of episodes, a transcript, ``metrics.csv``, the
            configuration, commands and times.

    Returns:
        The folders that were written.
    """
    written = []
    for folder in seed_folders(runs).values():
        for cell in sorted(path.parent for path in folder.glob("*/*/cell.json")):
            if not cell.name.startswith("."):
                written.append(records / cell.relative_to(runs))
                _copy(cell, written[-1])
    path, before = records / "reproduce.json", read_json(records / "reproduce.json")
    made = read_json(runs / "reproduce.json")
    if made:
        together = {
            name: list(dict.fromkeys([*before.get(name, ()), *made.get(name, ())]))
            for name in ("commands", "algorithms")
        }
        write_json(together, path)
    return written


def _copy(cell: Path, target: Path) -> None:
    with replacing_folder(target) as new:
        for name in _FILES:
            _copy_file(cell / name, new / name)
        for part in _PARTS:
            for name in _PLAYED:
                _copy_file(cell / part / name, new / part / name)
        metrics = find_metrics(cell)
        if metrics is not None:
            _copy_file(metrics, new / "metrics.csv")


def _copy_file(source: Path, target: Path) -> None:
    if source.is_file():
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, target)
