"""``cell.json``: what a finished cell of the table holds, written at its very end."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lmrl.data.reading import read_dataset
from lmrl.evaluation.evaluate import Evaluation
from lmrl.evaluation.results import read_json, write_json
from lmrl.reproduce.cells import DATA, Cell
from lmrl.reproduce.plan import Order, dataset_of
from lmrl.reproduce.standing import reached
from lmrl.storage import read_episodes

__all__ = ["finish"]

_QUANTILES = 101


def finish(cell: Cell, order: Order) -> dict[str, Any]:
    """Write and return the record: scores, checkpoints, seconds and tokens of each part, commands, versions."""
    timing = read_json(cell.folder / "timing.json")
    steps: Mapping[str, Any] = {step.name: timing[step.name] for step in cell.steps if step.name in timing}
    # A dataset may have been finished by a process that was killed before it noted how long that took.
    seconds = {name: record["seconds"] for name, record in steps.items() if "seconds" in record}
    record = {
        "task": cell.task,
        "algorithm": cell.algorithm,
        "seed": cell.seed,
        "recipe": cell.recipe,
        "commands": [record["command"] for record in steps.values()],
        "seconds": {**seconds, "total": round(sum(seconds.values()), 1)},
        "note": steps.get("fit", {}).get("note", ""),
        **(_of_data(cell, order) if cell.algorithm == DATA else _of_play(cell)),
    }
    write_json(record, cell.folder / "cell.json")
    return record


def _of_play(cell: Cell) -> dict[str, Any]:
    best, last = cell.folder / "evaluation", cell.folder / "evaluation_last"
    scores = read_json(best / "scores.json")
    found: dict[str, Any] = {"scores": scores, "versions": scores.get("provenance", {}).get("versions", {})}
    tokens: dict[str, Any] = {"played": _said(best)}
    if cell.fit is not None:
        ends = {name: reached(cell.folder / f"{name}.ckpt") for name in ("best", "last")}
        of_last = read_json(last / "scores.json")
        weights = None if ends["last"] is None else ends["last"].weights
        if weights is not None and of_last.get("provenance", {}).get("weights") != weights:
            of_last = {}  # played before the training went on
        found["last"] = of_last or scores
        found["steps"] = {name: end.step for name, end in ends.items() if end is not None}
        tokens |= {"trained": ends["last"].tokens if ends["last"] else None, "played_last": _said(last)}
    return {**found, "tokens": tokens}


def _said(evaluation: Path) -> int:
    """Tokens that were sampled while playing; 0 for players that say texts."""
    path = evaluation / "episodes.parquet"
    if not path.is_file():
        return 0
    return sum(len(ids) for episode in read_episodes(path) for ids in episode.action_ids)


def _of_data(cell: Cell, order: Order) -> dict[str, Any]:
    path = dataset_of(order, cell.task)
    episodes = tuple(read_dataset(path, cell.task))
    scores = Evaluation(cell.task, DATA, episodes, 0).scores()
    return {"file": path.name, "scores": scores, "returns": _quantiles(episode.total_reward for episode in episodes)}


def _quantiles(values: Iterable[float]) -> list[float]:
    """From the lowest to the highest, each per cent."""
    found: list[float] = np.quantile(np.fromiter(values, float), np.linspace(0, 1, _QUANTILES)).tolist()
    return found
