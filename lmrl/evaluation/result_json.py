"""The JSON files of result folders: written in one step, and checked when they are read back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from lmrl.errors import UserError, in_one_line
from lmrl.utils.files import json_of_file, replacing

__all__ = ["SCORE_KEYS", "check_record", "read_json", "write_json"]

SCORE_KEYS = (
    "task policy episodes return_mean return_ci normalized normalized_ci success_rate success_ci length_mean "
    "illegal_rate seed"
).split()
"""Every ``scores.json`` holds at least these keys."""

# Kinds of values, in the words of the error message.
_TEXT = "a text"
_NUMBER = "a finite number"
_COUNT = "a whole number from 0"
_COUNT_OR_NULL = "a whole number from 0, or null"
_PAIR = "a list of two numbers"
# Kinds of lists, with the kind of their items.
_LISTS = {"a list of texts": _TEXT, "a list of numbers": _NUMBER, "a list of pairs": _PAIR}
_TEXTS, _NUMBERS, _PAIRS = _LISTS


@dataclass(frozen=True)
class _Object:
    """The kinds of values in a JSON object. Keys that are named nowhere may have any value."""

    kinds: Mapping[str, "Kind"] = field(default_factory=dict)
    """Key to the kind of its value."""
    others: "Kind | None" = None
    """The kind of the values of all other keys; None: any."""
    required: Sequence[str] = ()
    """Keys that must be present."""


Kind: TypeAlias = str | _Object


def _keys(kind: str, *names: str) -> dict[str, Kind]:
    return dict.fromkeys(names, kind)


_VERSIONS = _Object(others=_TEXT)
_PROVENANCE = _Object({"versions": _VERSIONS, "decoding": _Object(_keys(_NUMBER, "temperature", "top_p", "beta"))})
_SCORE_KINDS = (
    _keys(_TEXT, "task", "policy")
    | _keys(_COUNT, "episodes", "seed")
    | _keys(_NUMBER, "return_mean", "normalized", "success_rate", "length_mean", "illegal_rate")
    | _keys(_PAIR, "return_ci", "normalized_ci", "success_ci")
    | {"warnings": _TEXTS, "provenance": _PROVENANCE}
)
_SCORES = _Object(_SCORE_KINDS)
_FULL_SCORES = _Object(_SCORE_KINDS, required=SCORE_KEYS)
_TIMES = ("seconds", "cpu_seconds", "before", "cpu_before", "began")
_STEP = _keys(_TEXT, "command", "recipe", "note") | _keys(_NUMBER, *_TIMES)
_TIMING = _Object(others=_Object(_STEP))
_CELL = _Object(
    _keys(_TEXT, "task", "algorithm", "recipe", "note", "file")
    | {
        "seed": _COUNT,
        "commands": _TEXTS,
        "seconds": _Object(others=_NUMBER, required=["total"]),
        "cpu_seconds": _Object(others=_NUMBER),
        "scores": _FULL_SCORES,
        "last": _SCORES,
        "tuned": _SCORES,
        "versions": _VERSIONS,
        "steps": _Object(others=_COUNT),
        "tokens": _Object(others=_COUNT_OR_NULL),
        "returns": _NUMBERS,
    }
)
_FILES = {
    "scores.json": _SCORES,
    "timing.json": _TIMING,
    "cell.json": _CELL,
    "reproduce.json": _Object(_keys(_TEXTS, "commands", "algorithms")),
}

# Lines of a file of records: that of a dataset has fewer keys than those of runs.
_DATASET = _keys(_TEXT, "task", "algorithm") | {"seed": _COUNT, "cell": _CELL, "timing": _TIMING}
_DATASET_RECORD = _Object(_DATASET, required=list(_DATASET))
_RUN: dict[str, Kind] = {
    "config": _Object(),
    "tuning": _Object(),
    "scores": _FULL_SCORES,
    "scores_tuned": _SCORES,
    "curve_values": _Object(others=_PAIRS),
    "probe": _Object(),
    "transcript": _TEXT,
}
_RUN_RECORD = _Object(_RUN, required=list(_RUN))


def check_record(line: Any, where: str) -> None:
    """Check a line of a file of records (`lmrl.evaluation.records`).

    Args:
        line: the JSON value.
        where: file and line, for the message.

    Raises:
        UserError: a value is missing or of another kind; the message names the place and the key.
    """
    _check(line, _DATASET_RECORD, f"{where}:")
    if line["algorithm"] != "data":
        _check(line, _RUN_RECORD, f"{where}:")


def write_json(record: Mapping[str, Any], path: Path) -> None:
    """Write a JSON file in one step."""
    with replacing(path) as file:
        file.write(json.dumps(record, indent=2).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; empty if there is no such file.

    Raises:
        UserError: the file holds no JSON object, or it is one of a result folder (``scores.json``, ``timing.json``,
            ``cell.json``, ``reproduce.json``) and a value is of another kind than it must be.
    """
    if not path.exists():
        return {}
    record = json_of_file(path)
    if path.name in _FILES:
        _check(record, _FILES[path.name], f"{path}:")
    return record


def _check(value: Any, kind: Kind, where: str) -> None:
    """Raise a `UserError` if a value is not of its kind. `where` names the file and the keys down to the value."""
    if isinstance(kind, _Object):
        if not isinstance(value, dict):
            raise _wrong(value, "an object", where)
        for key, item in value.items():
            item_kind = kind.kinds.get(key, kind.others)
            if item_kind is not None:
                # The outermost key stands in quotes, inner keys follow after a dot: 'scores'.return_mean
                _check(item, item_kind, f"{where} {key!r}" if where.endswith(":") else f"{where}.{key}")
        missing = ", ".join(key for key in kind.required if key not in value)
        if missing:
            raise UserError(f"{where} lacks {missing}")
    elif kind in _LISTS:
        if not isinstance(value, list):
            raise _wrong(value, "a list", where)
        for index, item in enumerate(value):
            _check(item, _LISTS[kind], f"{where}[{index}]")
    elif not _is_right(value, kind):
        raise _wrong(value, kind, where)


def _wrong(value: Any, kind: str, where: str) -> UserError:
    return UserError(f"{where} must be {kind}, got {in_one_line(repr(value), 60)}")


def _is_right(value: Any, kind: str) -> bool:
    if kind == _TEXT:
        return isinstance(value, str)
    if kind == _PAIR:
        return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
    if kind == _COUNT_OR_NULL and value is None:
        return True
    if kind == _NUMBER:
        return _is_number(value)
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    # The comparison with a large number also refuses NaN and infinity.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
