"""The JSON files of result folders: written in one step, and checked when they are read back."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from lmrl.errors import UserError, in_one_line
from lmrl.utils.files import json_of_file, replacing

__all__ = ["SCORE_KEYS", "check_record", "check_result_file", "read_json", "write_json"]

Rule: TypeAlias = Callable[[Any, str], None]
"""Raises a `UserError` for a value that is of another kind; the second argument names the place."""

SCORE_KEYS = (
    "task policy episodes return_mean return_ci normalized normalized_ci success_rate success_ci length_mean "
    "illegal_rate seed"
).split()
"""What every ``scores.json`` holds, at least."""


def check_result_file(record: Mapping[str, Any], path: Path) -> None:
    """Check what was read from ``scores.json``, ``timing.json``, ``cell.json`` or ``reproduce.json``.

    Raises:
        UserError: naming the file and the key, for a value of another kind.
    """
    rule = _FILES.get(path.name)
    if rule is not None:
        rule(record, f"{path}: ")


def _kind(is_right: Callable[[Any], bool], words: str) -> Rule:
    def check(value: Any, where: str) -> None:
        if not is_right(value):
            raise UserError(f"{where} must be {words}, got {in_one_line(repr(value), 60)}")

    return check


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300  # which NaN is not


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_text = _kind(lambda value: isinstance(value, str), "a text")
_number = _kind(_is_number, "a finite number")
_whole = _kind(_is_whole, "a whole number from 0")
_interval = _kind(
    lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)), "a list of two numbers"
)


def _maybe(rule: Rule) -> Rule:
    return lambda value, where: None if value is None else rule(value, where)


def _list(rule: Rule) -> Rule:
    def check(value: Any, where: str) -> None:
        _kind(lambda value: isinstance(value, list), "a list")(value, where)
        for place, item in enumerate(value):
            rule(item, f"{where}[{place}]")

    return check


def _object(each: Rule | None = None, **named: Rule) -> Rule:
    """An object whose members of these names are of their kinds; ``each``: all of the others."""

    def check(value: Any, where: str) -> None:
        _kind(lambda value: isinstance(value, dict), "an object")(value, where)
        for name, item in value.items():
            rule = named.get(name, each)
            if rule is not None:
                rule(item, f"{where}.{name}" if not where.endswith(" ") else f"{where}{name!r}")

    return check


def _all_of(names: list[str], rule: Rule) -> Rule:
    def check(value: Any, where: str) -> None:
        rule(value, where)
        lacking = [name for name in names if name not in value]
        if lacking:
            raise UserError(f"{where} lacks {', '.join(lacking)}")

    return check


_made_with = _object(versions=_object(_text), decoding=_object(temperature=_number, top_p=_number, beta=_number))
_scores = _object(
    task=_text,
    policy=_text,
    episodes=_whole,
    return_mean=_number,
    return_ci=_interval,
    normalized=_number,
    normalized_ci=_interval,
    success_rate=_number,
    success_ci=_interval,
    length_mean=_number,
    illegal_rate=_number,
    seed=_whole,
    warnings=_list(_text),
    provenance=_made_with,
)
_step = _object(
    command=_text, recipe=_text, note=_text, seconds=_number, cpu_seconds=_number, before=_number, began=_number
)
_full_scores = _all_of(SCORE_KEYS, _scores)
_cell = _object(
    task=_text,
    algorithm=_text,
    seed=_whole,
    recipe=_text,
    commands=_list(_text),
    seconds=_all_of(["total"], _object(_number)),
    cpu_seconds=_object(_number),
    note=_text,
    scores=_full_scores,
    last=_scores,
    tuned=_scores,
    versions=_object(_text),
    steps=_object(_whole),
    tokens=_object(_maybe(_whole)),
    file=_text,
    returns=_list(_number),
)
_timing = _object(_step)
_dataset_record = _all_of(
    ["task", "algorithm", "seed", "cell", "timing"],
    _object(task=_text, algorithm=_text, seed=_whole, cell=_cell, timing=_timing),
)
_record = _all_of(
    ["config", "tuning", "scores", "scores_tuned", "curve_values", "probe", "transcript"],
    _object(
        config=_object(),
        tuning=_object(),
        scores=_full_scores,
        scores_tuned=_scores,
        curve_values=_object(_list(_interval)),
        probe=_object(),
        transcript=_text,
    ),
)
_FILES: Mapping[str, Rule] = {
    "scores.json": _scores,
    "timing.json": _timing,
    "cell.json": _cell,
    "reproduce.json": _object(commands=_list(_text), algorithms=_list(_text)),
}


def check_record(line: Any, where: str) -> None:
    """Check a line of a file of records (`lmrl.evaluation.records`).

    Args:
        line: the JSON value.
        where: file and line, for the message.

    Raises:
        UserError: naming the place and the key, for a value that is missing or of another kind.
    """
    _dataset_record(line, f"{where}: ")
    if line["algorithm"] != "data":
        _record(line, f"{where}: ")


def write_json(record: Mapping[str, Any], path: Path) -> None:
    """Write a JSON file in one step."""
    with replacing(path) as file:
        file.write(json.dumps(record, indent=2).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file.

    Raises:
        UserError: naming the file, if it holds something else; one of a result folder also by key, if a value is of
            another kind than it must be.
    """
    if not path.exists():
        return {}
    record = json_of_file(path)
    check_result_file(record, path)
    return record
