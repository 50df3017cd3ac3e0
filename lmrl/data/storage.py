"""Episodes in files.

Parquet (one row each) and JSON lines, streamed; datasets of one task, and parts of a dataset joined.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lmrl.data.records import SCHEMA, episode_from_row, record_from_episode, table_of
from lmrl.envs.registry import task, tasks
from lmrl.errors import UserError, in_one_line, unknown
from lmrl.types import Episode
from lmrl.utils.files import parse_json, replacing

__all__ = [
    "check_place",
    "checked_suffix",
    "join_shards",
    "parquet_batches",
    "played_file",
    "read_dataset",
    "read_episodes",
    "read_metadata",
    "write_episodes",
]

_METADATA_KEY = b"lmrl"
_HEADER = "lmrl_metadata"
_COUNT = "episodes"
_PLAYED = "episodes.parquet"
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
        UserError: for another suffix, a text that is not valid Unicode, or a reward that is not finite.
    """
    path = Path(path)
    write = {".parquet": _write_parquet, ".jsonl": _write_jsonl}[checked_suffix(path)]
    with replacing(path) as file:
        return write(file, episodes, dict(metadata or {}))


def read_episodes(source: str | os.PathLike[str] | Iterable[Episode]) -> Iterator[Episode]:
    """Yield the episodes of a file in order. Tuples in `Episode.info` come back as lists.

    Args:
        source: a file; the folder of an evaluation, or of a run that was evaluated (``RUN/evaluation``); or episodes,
            which are given back.

    Raises:
        UserError: for a missing file, a folder without episodes, another suffix, a missing or unknown column, or a
            broken line or row; it names the file and the line (Parquet: the row, from 1). Damage to a Parquet file that
            `write_episodes` wrote shows in the checksums of its pages, the end of a JSON Lines file in the count of its
            first line.
    """
    if not isinstance(source, str | os.PathLike):
        return iter(source)
    path = _existing(played_file(Path(source)))
    return {".parquet": _parquet_episodes, ".jsonl": _jsonl_episodes}[checked_suffix(path)](path)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The ``metadata`` that the file was written with; empty if there was none.

    Raises:
        UserError: for a missing file, another suffix, or a file that is not what its suffix says.
    """
    path = _existing(path)
    if checked_suffix(path) == ".parquet":
        with _parquet(path) as file, _damaged(f"{path}: not a Parquet file"):
            text = (file.schema_arrow.metadata or {}).get(_METADATA_KEY, b"{}")
        found = parse_json(text, f"{path}, metadata {_METADATA_KEY.decode()!r}")
    else:
        first: Any = next((record for _, record in _jsonl_lines(path)), {})
        found = first[_HEADER] if _is_header(first) else {}
    if not isinstance(found, dict):
        raise UserError(f"{path}: its metadata must be an object, got {found!r:.60}")
    return found


def checked_suffix(path: Path) -> str:
    """The suffix of a file of episodes.

    Raises:
        UserError: for another one.
    """
    if path.suffix not in (".parquet", ".jsonl"):
        raise UserError(f"{path}: episodes are kept in .parquet or .jsonl files, got the suffix {path.suffix!r}")
    return path.suffix


def check_place(
    path: Path, metadata: Mapping[str, Any], overwrite: bool, inputs: Iterable[str | os.PathLike[str]] = ()
) -> None:
    """Make sure that a dataset may be written here: over nothing, the same one, or whatever there is if that is meant.

    Args:
        path: the file.
        metadata: of what is to be written.
        overwrite: it may take the place of another.
        inputs: files from which the dataset is made. None of them is replaced, whatever `overwrite` says.

    Raises:
        UserError: another suffix; an input; there is a file with other metadata, and which they are.
    """
    checked_suffix(path)
    for source in inputs:
        if os.path.realpath(source) == os.path.realpath(path):
            raise UserError(f"{path} is the file from which the dataset is made; name another one")
    if overwrite or not path.is_file():
        return
    way_out = "name another file, or replace it (--overwrite)"
    try:
        found = read_metadata(path)
    except UserError as error:
        raise UserError(f"{path} is there, and no dataset: {way_out}") from error
    asked = json.loads(json.dumps(metadata))
    if found == asked:
        return
    names = [name for name in {**asked, **found} if found.get(name) != asked.get(name)]
    told = [f"{name} {_told(found, name)}, not {_told(asked, name)}" for name in names]
    raise UserError(f"{path} holds another dataset ({in_one_line('; '.join(told))}): {way_out}")


def _told(metadata: Mapping[str, Any], name: str) -> str:
    return f"{metadata[name]!s:.60}" if name in metadata else "none"


def played_file(path: Path) -> Path:
    """Return the file of episodes that a path stands for: of a folder that of its evaluation, else the path itself.

    Args:
        path: a file, the folder of an evaluation, or the folder of a run that was evaluated.

    Raises:
        UserError: a folder without episodes.
    """
    if not path.is_dir():
        return path
    found = next((file for file in (path / _PLAYED, path / "evaluation" / _PLAYED) if file.is_file()), None)
    if found is None:
        raise UserError(f"{path}: no episodes there (neither {_PLAYED} nor evaluation/{_PLAYED})")
    return found


def _existing(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file" if not path.exists() else f"{path}: is not a file")
    return path


def _write_parquet(file: BinaryIO, episodes: Iterable[Episode], metadata: dict[str, Any]) -> int:
    schema = SCHEMA.with_metadata({_METADATA_KEY: json.dumps(metadata).encode()} if metadata else None)
    count = 0
    source = iter(episodes)
    with pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
        while block := [*islice(source, _ROW_GROUP)]:
            writer.write_table(table_of(block, count))
            count += len(block)
    return count


def _write_jsonl(file: BinaryIO, episodes: Iterable[Episode], metadata: dict[str, Any]) -> int:
    count = 0
    begin = b""
    if metadata:
        begin = json.dumps({_HEADER: metadata}).encode()[:-1] + b", " + json.dumps(_COUNT).encode() + b": "
        file.write(_counted(begin, count))
    for episode in episodes:
        record = json.dumps(record_from_episode(episode), ensure_ascii=False)
        try:
            file.write(record.encode() + b"\n")
        except UnicodeEncodeError as error:
            raise UserError(f"a text of episode {count} is not valid Unicode: {error}") from error
        count += 1
    if metadata:
        file.seek(0)
        file.write(_counted(begin, count))
    return count


def _counted(begin: bytes, count: int) -> bytes:
    """The first line of a JSON Lines file, as long for every count."""
    return begin + f"{count:>12}}}\n".encode()


@contextmanager
def _parquet(path: Path) -> Iterator[pq.ParquetFile]:
    with _damaged(f"{path}: not a Parquet file"):
        file = pq.ParquetFile(path, page_checksum_verification=True)
    with file:
        yield file


@contextmanager
def _damaged(what: str) -> Iterator[None]:
    """Turn an error of pyarrow about a file into one line; pass on errors of the system (permissions, open files)."""
    try:
        yield
    except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
        if isinstance(error, (UserError, MemoryError)) or getattr(error, "errno", None) is not None:
            raise
        raise UserError(f"{what} ({in_one_line(error)})") from error


# A few bytes of Parquet can stand for gigabytes: repeated values, texts that are kept once. What is read at a time is
# far below these numbers in files of this package.
_LARGEST_GROUP = 2**28  # bytes of a row group without compression
_MOST_VALUES = 2**24  # of a column in a row group
_LARGEST_PART = 2**24  # bytes of the rows that become Python objects together, and so of one row
_BYTES_OF_VALUE = 32
_SMALLER = "write it again with small row groups (row_group_size=512)"


def parquet_batches(path: Path, rows: int = _ROW_GROUP) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file, a few MB at a time, whatever the file claims to hold.

    Args:
        path: the file.
        rows: most rows at a time.

    Raises:
        UserError: it is no Parquet file, is damaged, or holds a row or a row group that is far too large.
    """
    row = 0
    with _parquet(path) as file:
        texts = _check_sizes(path, file.metadata)
        with _damaged(f"{path}: not a Parquet file"):
            # A text that occurs again and again stays one text until its size is known.
            coded = pq.ParquetFile(path, read_dictionary=texts, page_checksum_verification=True)
        with coded:
            for group in range(coded.num_row_groups):
                batches = coded.iter_batches(batch_size=rows, row_groups=[group])
                while True:
                    with _damaged(f"{path}: damaged after row {row}"):
                        batch = next(batches, None)
                    if batch is None:
                        break
                    for part in _parts(batch):
                        if _size(part) > _LARGEST_PART:
                            raise UserError(f"{path}, row {row + 1}: larger than {_LARGEST_PART >> 20} MB")
                        with _damaged(f"{path}: damaged after row {row}"):
                            yield _decoded(part)
                        row += part.num_rows
        if row != file.metadata.num_rows:
            raise UserError(f"{path}: damaged: holds {row} rows, and says that it has {file.metadata.num_rows}")


def _check_sizes(path: Path, metadata: pq.FileMetaData) -> list[str]:
    """Hold what a file says of its sizes to limits; returns the paths of its columns of texts."""
    texts = []
    for number in range(len(metadata.schema)):
        column = metadata.schema.column(number)
        if column.physical_type == "BYTE_ARRAY":
            texts.append(column.path)
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        columns = [rows.column(number) for number in range(rows.num_columns)]
        size = sum(column.total_uncompressed_size for column in columns)
        if size > _LARGEST_GROUP:
            raise UserError(f"{path}: row group {group} holds {size >> 20} MB: {_SMALLER}")
        for column in columns:
            if column.num_values > _MOST_VALUES:
                name = column.path_in_schema
                raise UserError(f"{path}: row group {group} holds {column.num_values} values of {name}: {_SMALLER}")
            delta = [name for name in column.encodings if name.startswith("DELTA") and "BYTE_ARRAY" in name]
            if delta and column.path_in_schema in texts:
                raise UserError(
                    f"{path}: texts in the encoding {delta[0]} are not read: write it again with plain texts or "
                    "dictionaries, as pyarrow does by default"
                )
    return texts


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut rows in halves until they are small enough, or single."""
    if batch.num_rows <= 1 or _size(batch) <= _LARGEST_PART:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _parts(batch.slice(0, half))
    yield from _parts(batch.slice(half))


def _size(batch: pa.RecordBatch) -> int:
    """How many bytes rows take as Python objects, roughly."""
    return sum(_size_of(column) for column in batch.columns)


def _size_of(values: pa.Array) -> int:
    size = _BYTES_OF_VALUE * len(values)
    kind = values.type
    if pa.types.is_dictionary(kind):
        if pa.types.is_nested(kind.value_type) or pa.types.is_primitive(kind.value_type):
            return size
        lengths = pc.binary_length(values.dictionary).cast(pa.int64())
        return size + (pc.sum(lengths.take(values.indices)).as_py() or 0)
    if pa.types.is_struct(kind):
        return size + sum(map(_size_of, values.flatten()))
    if pa.types.is_nested(kind):
        return size + _size_of(values.flatten())
    return size + int(values.nbytes)


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with plain texts, which become Python objects faster."""
    fields = [field.with_type(_decoded_type(field.type)) for field in batch.schema]
    columns = [column.cast(field.type) for column, field in zip(batch.columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _decoded_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_decoded_type(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_decoded_type(kind.value_type)))
    return kind


def _parquet_episodes(path: Path) -> Iterator[Episode]:
    row = 0
    for batch in parquet_batches(path):
        with _damaged(f"{path}: damaged after row {row}"):
            records = batch.to_pylist()
        for record in records:
            row += 1
            yield episode_from_row(record, f"{path}, row {row}")


def _jsonl_episodes(path: Path) -> Iterator[Episode]:
    count = 0
    expected = None
    for number, record in _jsonl_lines(path):
        if number == 1 and _is_header(record):
            expected = record.get(_COUNT)
            continue
        count += 1
        # pandas writes the JSON text that a Parquet file has in ``info`` as it is.
        yield episode_from_row(record, f"{path}, line {number}")
    if expected is not None and count != expected:
        raise UserError(
            f"{path}: ends after {count} episodes, its first line says {expected!r:.20}: it was cut off or changed (if "
            "you changed it, remove the first line)"
        )


def _jsonl_lines(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, parse_json(line, f"{path}, line {number}")


def _is_header(record: Any) -> bool:
    return isinstance(record, dict) and _HEADER in record and {*record} <= {_HEADER, _COUNT}


def read_dataset(path: str | os.PathLike[str], task_name: str | None = None) -> Iterator[Episode]:
    """Yield the episodes of a file that holds at least one, all of the same known task.

    Args:
        path: a file that `lmrl.data.storage.write_episodes` wrote.
        task_name: the task that it must be of; None: any, as the first episode says.

    Raises:
        UserError: for an empty file, an unknown task, episodes of another task, or a broken file.
    """
    expected = None if task_name is None else task(task_name).name
    empty = True
    for number, episode in enumerate(read_episodes(path), start=1):
        if expected is None and episode.task not in tasks():
            raise unknown(f"task in episode {number} of {path}:", episode.task[:80], tasks())
        expected = episode.task if expected is None else expected
        if episode.task != expected:
            raise UserError(f"{path}: episode {number} is of task {episode.task!r:.80}, expected {expected!r}")
        empty = False
        yield episode
    if empty:
        raise UserError(f"{path}: holds no episodes")


def join_shards(
    files: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], *, overwrite: bool = False
) -> int:
    """Put the parts that ``generate(shard=...)`` wrote together; the file is the one that a single machine writes.

    Args:
        files: all parts of one dataset, in any order.
        out: a ``.parquet`` or ``.jsonl`` file.
        overwrite: it may take the place of another dataset than this one.

    Returns:
        The number of episodes.

    Raises:
        UserError: a part is missing, comes twice, or belongs to another dataset; `out` is another one.
    """
    parts = {Path(file): read_metadata(file) for file in files}
    ordered = sorted(parts, key=lambda path: _number(path, parts[path]))
    whole = _without(parts[ordered[0]])
    for path in ordered:
        if _without(parts[path]) != whole:
            raise UserError(f"{path} is a part of another dataset than {ordered[0]}")
    found = [parts[path]["shard"][0] for path in ordered]
    count = parts[ordered[0]]["shard"][1]
    if len(parts) != len(files) or found != list(range(count)):
        raise UserError(f"files must be all of the {count} parts, each once; got the parts {found}")
    check_place(Path(out), whole, overwrite, ordered)
    return write_episodes(out, _all(ordered), whole)


def _number(path: Path, metadata: dict[str, Any]) -> int:
    if "shard" not in metadata:
        raise UserError(f"{path} is no part of a dataset: it was not recorded with shard")
    return int(metadata["shard"][0])


def _without(metadata: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if name != "shard"}


def _all(files: Sequence[Path]) -> Iterator[Episode]:
    for file in files:
        yield from read_episodes(file)
