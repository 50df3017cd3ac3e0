"""Episodes as rows of an Arrow table: what Parquet files and datasets of Hugging Face hold."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from lmrl.episode import Episode
from lmrl.errors import UserError
from lmrl.json_text import parse_json
from lmrl.records import episode_from_record, record_from_episode

__all__ = ["SCHEMA", "episode_from_row", "table_of"]

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
    ]
)
"""The fields of `Episode`; ``info`` is JSON, what belongs to sampled ids is null where nothing was sampled."""


def table_of(episodes: Sequence[Episode], first: int = 0) -> pa.Table:
    """Episodes as a table of `SCHEMA`.

    Args:
        episodes: one row each.
        first: number of the first of them, for the message.

    Raises:
        UserError: for a text that is not valid Unicode, or a reward that is not finite.
    """
    records = map(record_from_episode, episodes)
    rows = [{**record, "info": json.dumps(record["info"], ensure_ascii=False)} for record in records]
    try:
        return pa.Table.from_pylist(rows, schema=SCHEMA)
    except UnicodeEncodeError as error:
        last = first + len(rows) - 1
        raise UserError(f"a text of episodes {first} to {last} is not valid Unicode: {error}") from error


def episode_from_row(row: Mapping[str, Any], where: str) -> Episode:
    """The episode of a row. Tuples in `Episode.info` come back as lists.

    Args:
        row: column name to value.
        where: file and row, for the messages.

    Raises:
        UserError: ``info`` is no JSON, or as `lmrl.records.episode_from_record`.
    """
    return episode_from_record(_with_info(row, where), where)


def _with_info(row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    if not isinstance(row.get("info"), str):
        return row
    return {**row, "info": parse_json(row["info"], f"{where}, column 'info'")}
