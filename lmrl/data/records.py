"""`Episode` as a record of plain values with every field checked, and as a row of an Arrow table."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lmrl.errors import UserError
from lmrl.types import LARGEST_REWARD, Episode
from lmrl.utils.files import parse_json

__all__ = ["SCHEMA", "episode_from_record", "episode_from_row", "json_of_info", "record_from_episode", "table_of"]

_INT32 = 2**31
_INT64 = 2**63


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _list_of(is_element: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(map(is_element, value))


def _is_reward(value: Any) -> bool:
    return _is_number(value) and abs(value) <= LARGEST_REWARD  # which NaN is not


def _is_seed(value: Any) -> bool:
    return _is_int(value) and -_INT64 <= value < _INT64


def _is_id(value: Any) -> bool:
    return _is_int(value) and 0 <= value < _INT32


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


# What each field must be, and that rule in words.
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "task": (_is_text, "a text"),
    "observations": (_list_of(_is_text), "a list of texts"),
    "actions": (_list_of(_is_text), "a list of texts"),
    "rewards": (_list_of(_is_reward), "a list of finite numbers (of float32)"),
    "terminated": (_is_bool, "true or false"),
    "truncated": (_is_bool, "true or false"),
    "seed": (_is_seed, "a whole number of at most 64 bits"),
    "info": (_is_object, "an object"),
    "action_ids": (_list_of(_list_of(_is_id)), "a list of lists of whole numbers from 0 (of 32 bits)"),
    "action_logprobs": (_list_of(_list_of(_is_number)), "a list of lists of numbers"),
    "action_values": (_list_of(_list_of(_is_number)), "a list of lists of numbers"),
    "final_value": (_is_number, "a number"),
}
# What is read out of ``info``, where it is there.
_INFO_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "success": (_is_bool, "true or false"),
    "illegal": (lambda value: _is_int(value) and 0 <= value < _INT64, "a whole number from 0"),
    "start": (_is_object, "an object"),
    "replies": (_list_of(_is_text), "a list of texts"),
}
_OPTIONAL = frozenset({"seed", "info", "action_ids", "action_logprobs", "action_values", "final_value"})


def record_from_episode(episode: Episode) -> dict[str, Any]:
    """The fields of an episode by name; what belongs to sampled ids is None where nothing was sampled.

    Raises:
        UserError: a reward is no finite number, which no reader would take.
    """
    if not all(map(_is_reward, episode.rewards)):
        turn = [_is_reward(reward) for reward in episode.rewards].index(False)
        raise UserError(
            f"the reward of turn {turn} in the episode of seed {episode.seed} must be a finite number (of float32), "
            f"got {episode.rewards[turn]!r}"
        )
    return {
        "task": episode.task,
        "observations": list(episode.observations),
        "actions": list(episode.actions),
        "rewards": [float(reward) for reward in episode.rewards],
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "seed": episode.seed,
        "info": dict(episode.info),
        "action_ids": [list(ids) for ids in episode.action_ids] or None,
        "action_logprobs": [list(logprobs) for logprobs in episode.action_logprobs] or None,
        "action_values": [list(values) for values in episode.action_values] or None,
        "final_value": episode.final_value,
    }


def episode_from_record(record: Any, where: str) -> Episode:
    """The episode of a record; a field that is None counts as absent.

    Args:
        record: field name to value.
        where: file and line, for the messages.

    Raises:
        UserError: if the record is no object, lacks a field, has an unknown one, or one of the wrong kind.
    """
    if not isinstance(record, Mapping):
        raise UserError(f"{where}: an episode must be an object, got {type(record).__name__}")
    present = {name: value for name, value in record.items() if value is not None}
    _check_names(present, record, where)
    for name, value in present.items():
        is_right, rule = _RULES[name]
        if not is_right(value):
            raise UserError(f"{where}: column {name!r} must be {rule}, got {_shortened(value)}")
    info = present.get("info", {})
    for name, (is_right, rule) in _INFO_RULES.items():
        if name in info and not is_right(info[name]):
            raise UserError(f"{where}: {name!r} of column 'info' must be {rule}, got {_shortened(info[name])}")
    try:
        return _episode(present)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _check_names(present: Mapping[str, Any], record: Mapping[str, Any], where: str) -> None:
    known = ", ".join(_RULES)
    for name in record:
        if name not in _RULES:
            raise UserError(
                f"{where}: unknown column {_shortened(name)}; known: {known}; a dialogue of your own has messages"
            )
    for name in _RULES:
        if name not in present and name not in _OPTIONAL:
            raise UserError(f"{where}: column {name!r} is missing; an episode has: {known}")


def _episode(fields: Mapping[str, Any]) -> Episode:
    return Episode(
        task=fields["task"],
        observations=tuple(fields["observations"]),
        actions=tuple(fields["actions"]),
        rewards=tuple(map(float, fields["rewards"])),
        terminated=fields["terminated"],
        truncated=fields["truncated"],
        seed=fields.get("seed", 0),
        info=fields.get("info", {}),
        action_ids=tuple(map(tuple, fields.get("action_ids", ()))),
        action_logprobs=tuple(map(tuple, fields.get("action_logprobs", ()))),
        action_values=tuple(map(tuple, fields.get("action_values", ()))),
        final_value=fields.get("final_value"),
    )


def _shortened(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


# Nested fields are called "element", as the Parquet standard has it, whatever the version of pyarrow.
_TEXTS = pa.list_(pa.field("element", pa.string()))
_IDS = pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int32()))))
_NUMBERS = pa.list_(pa.field("element", pa.list_(pa.field("element", pa.float32()))))
SCHEMA = pa.schema(
    [
        ("task", pa.string()),
        ("observations", _TEXTS),
        ("actions", _TEXTS),
        ("rewards", pa.list_(pa.field("element", pa.float64()))),
        ("terminated", pa.bool_()),
        ("truncated", pa.bool_()),
        ("seed", pa.int64()),
        ("info", pa.string()),
        ("action_ids", _IDS),
        ("action_logprobs", _NUMBERS),
        ("action_values", _NUMBERS),
        ("final_value", pa.float32()),
    ]
)
"""The fields of `Episode`; ``info`` is JSON, what belongs to sampled ids is null where nothing was sampled."""


def json_of_info(info: Mapping[str, Any], where: str) -> str:
    """Return the ``info`` of an episode as JSON.

    Raises:
        UserError: JSON cannot hold it.
    """
    try:
        return json.dumps(info, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the info of {where} must hold what JSON knows: {error}") from error


def table_of(episodes: Sequence[Episode], first: int = 0) -> pa.Table:
    """Episodes as a table of `SCHEMA`.

    Args:
        episodes: one row each.
        first: number of the first of them, for the message.

    Raises:
        UserError: for a text that is not valid Unicode, a reward that is not finite, or an ``info`` that JSON cannot
            hold.
    """
    numbers = f"episodes {first} to {first + len(episodes) - 1}"
    rows = [record_from_episode(episode) for episode in episodes]
    for row in rows:
        row["info"] = json_of_info(row["info"], numbers)
    try:
        return pa.Table.from_pylist(rows, schema=SCHEMA)
    except UnicodeEncodeError as error:
        raise UserError(f"a text of {numbers} is not valid Unicode: {error}") from error


def episode_from_row(row: Any, where: str) -> Episode:
    """The episode of a row, whose ``info`` is JSON text or an object. Tuples in `Episode.info` come back as lists.

    Args:
        row: column name to value.
        where: file and row, for the messages.

    Raises:
        UserError: ``info`` is no JSON, or as `lmrl.data.records.episode_from_record`.
    """
    return episode_from_record(_with_info(row, where), where)


def _with_info(row: Any, where: str) -> Any:
    if not isinstance(row, Mapping) or not isinstance(row.get("info"), str):
        return row
    return {**row, "info": parse_json(row["info"], f"{where}, column 'info'")}
