"""Episodes in files: Parquet (one row each) and JSON lines, streamed, so that a file may be larger than memory."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from lmrl.atomic import replacing
from lmrl.columns import SCHEMA, episode_from_row, table_of
from lmrl.episode import Episode
from lmrl.errors import UserError
from lmrl.records import episode_from_record, record_from_episode

__all__ = ["read_episodes", "read_metadata", "write_episodes"]

_METADATA_KEY = b"lmrl"
_HEADER = "lmrl_metadata"
_ROW_GROUP = 512


def write_episodes(
    path: str | os.PathLike[str], episodes: Iterable[Episode], metadata: Mapping[str, Any] | None = None
) -> int:
    """Write episodes as they come and return how many there were.

    The file takes its place at the end in one step: an exception or a killed process leaves what was there before.

    Args:
        path: ends in ``.parquet`` or ``.jsonl``; missing folders are made.
        episodes: consumed once; at most 512 are held at a time.
        metadata: JSON-like facts about the whole file, for `read_metadata`.

    Raises:
        UserError: for another suffix, or a text that is not valid Unicode.
    """
    path = Path(path)
    write = {".parquet": _write_parquet, ".jsonl": _write_jsonl}[_suffix(path)]
    with replacing(path) as file:
        return write(file, episodes, dict(metadata or {}))


def read_episodes(path: str | os.PathLike[str]) -> Iterator[Episode]:
    """Yield the episodes of a file in order. Tuples in `Episode.info` come back as lists.

    Raises:
        UserError: for a missing file, another suffix, a missing or unknown column, or a broken line or row; it
            names the file and the line (Parquet: the row, from 1).
    """
    path = _existing(path)
    return {".parquet": _parquet_episodes, ".jsonl": _jsonl_episodes}[_suffix(path)](path)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The ``metadata`` that the file was written with; empty if there was none.

    Raises:
        UserError: for a missing file, another suffix, or a file that is not what its suffix says.
    """
    path = _existing(path)
    if _suffix(path) == ".parquet":
        with _parquet(path) as file:
            found = (file.schema_arrow.metadata or {}).get(_METADATA_KEY, b"{}")
        return dict(json.loads(found))
    for _, record in _jsonl_lines(path):
        return dict(record[_HEADER]) if _is_header(record) else {}
    return {}


def _suffix(path: Path) -> str:
    if path.suffix not in (".parquet", ".jsonl"):
        raise UserError(f"{path}: episodes are kept in .parquet or .jsonl files, got the suffix {path.suffix!r}")
    return path.suffix


def _existing(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file" if not path.exists() else f"{path}: is not a file")
    return path


def _write_parquet(file: BinaryIO, episodes: Iterable[Episode], metadata: dict[str, Any]) -> int:
    schema = SCHEMA.with_metadata({_METADATA_KEY: json.dumps(metadata).encode()} if metadata else None)
    count, source = 0, iter(episodes)
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        while block := [*islice(source, _ROW_GROUP)]:
            writer.write_table(table_of(block, count))
            count += len(block)
    return count


def _write_jsonl(file: BinaryIO, episodes: Iterable[Episode], metadata: dict[str, Any]) -> int:
    count = 0
    header = [{_HEADER: metadata}] if metadata else []
    for record in chain(header, map(record_from_episode, episodes)):
        file.write(json.dumps(record).encode() + b"\n")
        count += 1
    return count - len(header)


def _parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: not a Parquet file ({error})") from error


def _parquet_episodes(path: Path) -> Iterator[Episode]:
    row = 0
    with _parquet(path) as file:
        try:
            for batch in file.iter_batches(batch_size=_ROW_GROUP):
                for record in batch.to_pylist():
                    row += 1
                    yield episode_from_row(record, f"{path}, row {row}")
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path}: damaged after row {row} ({error})") from error


def _jsonl_episodes(path: Path) -> Iterator[Episode]:
    for number, record in _jsonl_lines(path):
        if not (number == 1 and _is_header(record)):
            yield episode_from_record(record, f"{path}, line {number}")


def _jsonl_lines(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise UserError(f"{path}, line {number}: not valid JSON ({error})") from error


def _is_header(record: Any) -> bool:
    return isinstance(record, dict) and set(record) == {_HEADER} and isinstance(record[_HEADER], dict)
