"""The table as files that programs read: ``table.csv`` and ``table.json``."""

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lmrl.atomic import replacing
from lmrl.envs import registration
from lmrl.evaluation.aggregates import aggregates, improvements
from lmrl.evaluation.naming import ordered
from lmrl.evaluation.overview import COLUMNS
from lmrl.evaluation.results import write_json
from lmrl.evaluation.score import DATA, Score
from lmrl.evaluation.tables import follows

__all__ = ["write_table"]

_WHOLE = (
    "task name episodes normalized return_mean iqm success_rate length_mean illegal_rate last seconds tokens"
).split()
_INTERVALS = "over_episodes over_seeds return_over_episodes iqm_over_episodes success_ci".split()


def write_table(scores: Mapping[str, Mapping[str, Score]], out: Path, made: Mapping[str, Any]) -> None:
    """Write both files.

    Args:
        scores: task to player to score.
        out: folder.
        made: commands and versions.
    """
    rows = [_row(score) for players in scores.values() for score in (players[name] for name in ordered(players))]
    players = [name for name in COLUMNS if name != DATA]
    record = {
        **made,
        "constants": {task: _constants(task) for task in scores},
        "cells": rows,
        "aggregates": [one._asdict() for one in aggregates(scores, players)],
        "improvements_over_bc": [
            {"task": task, **one._asdict()} for task, of in scores.items() for one in improvements(of, _trained(of))
        ],
    }
    write_json(record, out / "table.json")
    with replacing(out / "table.csv") as file:
        file.write(_csv(rows).encode())


def _row(score: Score) -> dict[str, Any]:
    published = registration.task(score.task).scores
    return {
        **{name: getattr(score, name) for name in _WHOLE},
        **{name: getattr(score, name) for name in _INTERVALS},
        "seeds": list(score.seeds),
        "by_seed": list(score.by_seed),
        "published": published.normalized.get(score.name),
        "published_return": published.raw.get(score.name),
        "published_follows": follows(score.name, published),
    }


def _constants(task: str) -> dict[str, Any]:
    scale = registration.task(task).scores
    return {"minimum": scale.minimum, "average": scale.average, "maximum": scale.maximum, "note": scale.note}


def _trained(players: Mapping[str, Score]) -> list[str]:
    return [name for name in ordered(players) if players[name].by_seed]


def _csv(rows: list[dict[str, Any]]) -> str:
    text, flat = io.StringIO(), [dict(_flat(row)) for row in rows]
    writer = csv.DictWriter(
        text, list(dict.fromkeys(name for row in flat for name in row)), restval="", lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if name in _INTERVALS:
            low, high = ("", "") if value is None else value
            yield from ((f"{name}_low", low), (f"{name}_high", high))
        elif isinstance(value, list):
            yield name, " ".join(map(str, value))
        else:
            yield name, value
