"""Results of others, one CSV file per author: ``results/community/NAME.csv``, a line per training run and task.

What a line says is data: it is checked, counted and printed, and chooses nothing.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from io import StringIO
from pathlib import Path
from statistics import mean
from typing import Any

from lmrl.envs import registry
from lmrl.envs.scores import normalize
from lmrl.errors import UserError, in_one_line
from lmrl.evaluation.evaluate import default_episodes
from lmrl.evaluation.intervals import Interval
from lmrl.evaluation.scores import settings_told
from lmrl.files import replacing

__all__ = ["CommunityRow", "MethodScore", "method_scores", "read_community", "row_of", "write_community"]

_SHORT = re.compile(r"[^\x00-\x1f|<>`\[\]]{1,80}")
_LINK = re.compile(r"https://[A-Za-z0-9.-]+/[A-Za-z0-9._~/@%+=#-]{0,200}")
_HASH = re.compile(r"[0-9a-f]{32}")
_VERSION = re.compile(r"\d+\.\d+\.\d+[A-Za-z0-9.+-]{0,20}")


@dataclass(frozen=True, slots=True)
class CommunityRow:
    """One training run (or a policy without training) on one task, as one evaluation scored it."""

    task: str
    method: str
    """Rows of the same method, model and author are training seeds of one entry."""
    model: str
    """Architecture and size, e.g. ``llama 3 x 128``."""
    training_seed: int
    episodes: int
    evaluation_seed: int
    temperature: float | None
    """With which it played; None (an empty cell): as it was trained, or it has none."""
    top_p: float | None
    """Likewise nucleus sampling; None: none."""
    beta: float | None
    """Likewise the weight of its values."""
    return_mean: float
    return_low: float
    """Lower end of the 95 % interval over episodes."""
    return_high: float
    success_rate: float
    illegal_rate: float
    """Illegal actions of all actions."""
    minutes: float
    """Of training, by the clock; 0: nothing was trained."""
    device: str
    lmrl: str
    """Version of this package."""
    weights: str
    """Hash of the weights that played, of ``scores.json``; empty where there are none, as of a scripted player."""
    code: str
    """Where the code is: https."""
    by: str
    date: date


@dataclass(frozen=True, slots=True)
class MethodScore:
    """An entry of the table: all training seeds of one method on one task."""

    task: str
    method: str
    model: str
    by: str
    code: str
    seeds: int
    settings: str
    """``temperature 0.25, beta 4`` of each training seed, or ``as trained``; empty: nothing was trained."""
    normalized: float
    """Mean over the training seeds, on the published scale."""
    spread: Interval
    """95 % over episodes of a single seed; of several the lowest and the highest seed."""
    success_rate: float
    illegal_rate: float
    minutes: float


def row_of(scores: Mapping[str, Any], path: Path, **said: object) -> CommunityRow:
    """The row of an evaluation.

    Args:
        scores: what ``scores.json`` of `lmrl evaluate` holds.
        path: of that file, for errors.
        **said: what it does not say: ``method``, ``model``, ``training_seed``, ``minutes``, ``device``, ``code``,
            ``by`` and ``date``.

    Raises:
        UserError: naming the column that breaks a rule, or if it was played with settings of the environment that are
            not the task's own.
    """
    provenance = scores.get("provenance", {})
    if provenance.get("env"):
        raise UserError(f"{path}: played with {provenance['env']}; the table is of tasks with their own settings")
    low, high = scores["return_ci"]
    decoding = provenance.get("decoding", {})
    found = {
        **{name: decoding.get(name, "") for name in ("temperature", "top_p", "beta")},
        **{name: scores[name] for name in ("task", "episodes", "return_mean", "success_rate", "illegal_rate")},
        **{"evaluation_seed": scores["seed"], "return_low": low, "return_high": high},
        **{"lmrl": provenance.get("versions", {}).get("lmrl", ""), "weights": provenance.get("weights") or ""},
    }
    texts = {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in found.items()}
    return _row({**texts, **{name: str(value) for name, value in said.items()}}, str(path))


def read_community(paths: Iterable[Path]) -> list[CommunityRow]:
    """Read and check files of results, in their order.

    Raises:
        UserError: naming the file and the line, for a line that breaks a rule or stands twice.
    """
    rows: list[CommunityRow] = []
    places: dict[tuple[str, str, str, str, int], str] = {}
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            if reader.fieldnames != _COLUMNS:
                raise UserError(f"{path}: the first line must be {','.join(_COLUMNS)}")
            for texts in reader:
                where = f"{path}, line {reader.line_num}"
                if len(texts) != len(_COLUMNS) or None in texts.values():
                    raise UserError(f"{where}: must have {len(_COLUMNS)} columns")
                row = _row(texts, where)
                key = (row.task, row.method, row.model, row.by, row.training_seed)
                if key in places:
                    raise UserError(f"{where}: the same training seed of the same method as {places[key]}")
                places[key] = where
                rows.append(row)
    return rows


def write_community(rows: Sequence[CommunityRow], path: Path) -> None:
    """Write a file of results in one step."""
    text = StringIO(newline="")
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    with replacing(path) as file:
        file.write(text.getvalue().encode())


def method_scores(rows: Iterable[CommunityRow]) -> list[MethodScore]:
    """The table: by task, the best entry first."""
    groups: dict[tuple[str, str, str, str], list[CommunityRow]] = {}
    for row in rows:
        groups.setdefault((row.task, row.method, row.model, row.by), []).append(row)
    order = {name: place for place, name in enumerate(registry.tasks())}
    found = [_summed(group) for group in groups.values()]
    return sorted(found, key=lambda entry: (order.get(entry.task, len(order)), -entry.normalized))


def _summed(rows: Sequence[CommunityRow]) -> MethodScore:
    first, scale = rows[0], registry.task(rows[0].task).scores
    by_seed = [normalize(row.return_mean, scale) for row in rows]
    spread = Interval(min(by_seed), max(by_seed))
    if len(rows) == 1:
        spread = Interval(normalize(first.return_low, scale), normalize(first.return_high, scale))
    return MethodScore(
        task=first.task,
        method=first.method,
        model=first.model,
        by=first.by,
        code=first.code,
        seeds=len(rows),
        settings="; ".join(dict.fromkeys(map(_settings, rows))),
        normalized=mean(by_seed),
        spread=spread,
        success_rate=mean(row.success_rate for row in rows),
        illegal_rate=mean(row.illegal_rate for row in rows),
        minutes=mean(row.minutes for row in rows),
    )


def _settings(row: CommunityRow) -> str:
    given = {"temperature": row.temperature, "top_p": row.top_p, "beta": row.beta}
    told = settings_told({name: value for name, value in given.items() if value is not None})
    return told or ("as trained" if row.weights else "")


_COLUMNS = [field.name for field in fields(CommunityRow)]
_KINDS = {field.name: field.type for field in fields(CommunityRow)}


def _row(texts: Mapping[str, str], where: str) -> CommunityRow:
    """A checked row."""
    row = CommunityRow(**{name: _value(name, texts[name], where) for name in _COLUMNS})
    registry.task(row.task)
    rules = {
        "episodes": (row.episodes >= default_episodes(row.task), f"at least {default_episodes(row.task)}"),
        "return_mean": (row.return_low <= row.return_mean <= row.return_high, "between return_low and return_high"),
        "success_rate": (0 <= row.success_rate <= 1, "in [0, 1]"),
        "illegal_rate": (0 <= row.illegal_rate <= 1, "in [0, 1]"),
        "temperature": ((row.temperature or 0) >= 0, "at least 0"),
        "top_p": (row.top_p is None or 0 < row.top_p <= 1, "above 0 and at most 1"),
        "minutes": (row.minutes >= 0, "at least 0"),
        "weights": (not row.weights or _HASH.fullmatch(row.weights), "the 32 hexadecimal digits of scores.json"),
        "lmrl": (_VERSION.fullmatch(row.lmrl), "a version such as 0.1.0"),
        "code": (_LINK.fullmatch(row.code), "a link that begins with https://"),
        **{
            name: (_SHORT.fullmatch(getattr(row, name)), "1 to 80 letters, none of | < > ` [ ]")
            for name in ("method", "model", "device", "by")
        },
    }
    for name, (holds, words) in rules.items():
        if not holds:
            raise UserError(f"{where}: {name} must be {words}, got {in_one_line(repr(getattr(row, name)), 60)}")
    return row


def _value(name: str, text: str, where: str) -> Any:
    """A cell as its column's kind."""
    kind = _KINDS[name]
    if kind == float | None:
        return _value_of(float, name, text, where) if text else None
    return _value_of(kind, name, text, where)


def _value_of(kind: Any, name: str, text: str, where: str) -> Any:
    try:
        if kind is date:
            return date.fromisoformat(text)
        if kind is int:
            return _whole(text)
        return _finite(text) if kind is float else text
    except ValueError:
        words = "a finite number"
        if kind is not float:
            words = "a whole number from 0" if kind is int else "a date such as 2026-01-31"
        raise UserError(f"{where}: {name} must be {words}, got {in_one_line(repr(text), 60)}") from None


def _whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not abs(value) < 1e300:  # also of NaN
        raise ValueError
    return value
