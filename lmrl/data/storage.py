"""Read and write episodes in Parquet files (one row each) and JSON Lines files, always as a stream."""

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

from lmrl.data.dialogues import episode_from_messages, is_dialogue
from lmrl.data.records import SCHEMA, episode_from_row, json_of_info, record_from_episode, table_of
from lmrl.envs.registry import DIALOGUES, task, tasks
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

_METADATA_KEY = b"lmrl"  # in the schema of a Parquet file
_HEADER = "lmrl_metadata"  # in the first line of a JSON Lines file
_COUNT = "episodes"  # number of episodes in the same line
_PLAYED = "episodes.parquet"  # file of an evaluation
_ROW_GROUP = 512  # episodes in memory at a time


def write_episodes(
    path: str | os.PathLike[str], episodes: Iterable[Episode], metadata: Mapping[str, Any] | None = None
) -> int:
    """Write episodes as they come and return how many there were.

    The file appears in one step at the end. After an exception or a kill, the old file is still there.

    Args:
        path: a path with the suffix ``.parquet`` or ``.jsonl``; missing folders are created.
        episodes: any iterable; at most 512 episodes are in memory at a time.
        metadata: JSON-like facts about the whole file, for `read_metadata`.

    Raises:
        UserError: for another suffix, a text that is not valid Unicode, a reward that is not finite, or an ``info``
            that JSON cannot hold.
    """
    path = Path(path)
    write = {".parquet": _write_parquet, ".jsonl": _write_jsonl}[checked_suffix(path)]
    with replacing(path) as file:
        return write(file, episodes, dict(metadata or {}))


def read_episodes(source: str | os.PathLike[str] | Iterable[Episode]) -> Iterator[Episode]:
    """Yield the episodes of a file in order. Tuples in `Episode.info` come back as lists.

    Rows with ``messages`` are dialogues of your own, see `lmrl.data.dialogues.episode_from_messages`.

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
        metadata = parse_json(text, f"{path}, metadata {_METADATA_KEY.decode()!r}")
    else:
        first: Any = next(_jsonl_lines(path), (0, {}))[1]
        metadata = first[_HEADER] if _is_header(first) else {}
    if not isinstance(metadata, dict):
        raise UserError(f"{path}: its metadata must be an object, got {metadata!r:.60}")
    return metadata


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
    """Make sure that writing a dataset does not replace a different one by mistake.

    Args:
        path: the file to write.
        metadata: the metadata to write.
        overwrite: whether a different dataset may be replaced.
        inputs: files from which the dataset is made; they are never replaced.

    Raises:
        UserError: for another suffix, a path that is an input, or a file with other metadata.
    """
    checked_suffix(path)
    for source in inputs:
        if os.path.realpath(source) == os.path.realpath(path):
            raise UserError(f"{path} is the file from which the dataset is made; name another one")
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is there, and no file; name another one")
    if overwrite or not path.exists():
        return
    way_out = "name another file, or replace it (--overwrite)"
    try:
        old = read_metadata(path)
    except UserError as error:
        raise UserError(f"{path} is there, and no dataset: {way_out}") from error
    different = differences(old, metadata)
    if different:
        raise UserError(f"{path} holds another dataset ({different}): {way_out}")


def differences(old: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """Return in words how the metadata of a file differ from others; empty if they do not."""
    new = json.loads(json.dumps(metadata))  # tuples become lists, as in the file
    found = []
    for name in {**new, **old}:
        if old.get(name) != new.get(name):
            found.append(f"{name} {old.get(name, 'none')!s:.60}, not {new.get(name, 'none')!s:.60}")
    return in_one_line("; ".join(found))


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
        block = [*islice(source, _ROW_GROUP)]
        while block:
            writer.write_table(table_of(block, count))
            count += len(block)
            block = [*islice(source, _ROW_GROUP)]
    return count


def _write_jsonl(file: BinaryIO, episodes: Iterable[Episode], metadata: dict[str, Any]) -> int:
    count = 0
    begin = b""
    # The number of episodes is only known at the end: reserve its place in the first line and fill it in then.
    if metadata:
        begin = json.dumps({_HEADER: metadata}).encode()[:-1] + b", " + json.dumps(_COUNT).encode() + b": "
        file.write(_counted(begin, count))
    for episode in episodes:
        record = record_from_episode(episode)
        json_of_info(record["info"], f"episode {count}")  # all other fields are plain values
        try:
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        except UnicodeEncodeError as error:
            raise UserError(f"a text of episode {count} is not valid Unicode: {error}") from error
        count += 1
    if metadata:
        file.seek(0)
        file.write(_counted(begin, count))
    return count


def _counted(begin: bytes, count: int) -> bytes:
    """Return the first line of a JSON Lines file, which has the same length for every count."""
    return begin + f"{count:>12}}}\n".encode()


@contextmanager
def _parquet(path: Path) -> Iterator[pq.ParquetFile]:
    with _damaged(f"{path}: not a Parquet file"):
        file = pq.ParquetFile(path, page_checksum_verification=True)
    with file:
        yield file


@contextmanager
def _damaged(what: str) -> Iterator[None]:
    """Turn pyarrow's errors about a file into a `UserError`; system errors (permissions, open files) pass through."""
    try:
        yield
    except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
        # Only errors of the system have an errno.
        if isinstance(error, (UserError, MemoryError)) or getattr(error, "errno", None) is not None:
            raise
        raise UserError(f"{what} ({in_one_line(error)})") from error


# A few bytes of Parquet can expand to gigabytes, by repeated values or shared texts. Files of this package stay far
# below these limits.
_LARGEST_GROUP = 2**28  # bytes of a row group without compression
_MOST_VALUES = 2**24  # values of a column in a row group
_LARGEST_PART = 2**24  # bytes of the rows that become Python objects together, and so of one row
_BYTES_OF_VALUE = 32
_SMALLER = "write it again with small row groups (row_group_size=512)"


def parquet_batches(path: Path, rows: int = _ROW_GROUP) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in batches of a few MB. Malicious files cannot exhaust the memory.

    Args:
        path: the file.
        rows: maximum number of rows per batch.

    Raises:
        UserError: if it is no Parquet file, is damaged, or has a row or a row group that is too large.
    """
    row = 0
    with _parquet(path) as file:
        texts = _check_sizes(path, file.metadata)
        with _damaged(f"{path}: not a Parquet file"):
            # Repeated texts stay dictionary-encoded until the size of the rows is known.
            coded = pq.ParquetFile(path, read_dictionary=texts, page_checksum_verification=True)
        with coded:
            for group in range(coded.num_row_groups):
                # `next` by hand: only reading may raise pyarrow's errors, not the consumer of this generator.
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
    """Check the sizes in a file's metadata against the limits; return the paths of its text columns."""
    texts = []
    for number in range(len(metadata.schema)):
        column = metadata.schema.column(number)
        if column.physical_type == "BYTE_ARRAY":
            texts.append(column.path)
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        columns = list(map(rows.column, range(rows.num_columns)))
        size = sum(column.total_uncompressed_size for column in columns)
        if size > _LARGEST_GROUP:
            raise UserError(f"{path}: row group {group} holds {size >> 20} MB: {_SMALLER}")
        for column in columns:
            if column.num_values > _MOST_VALUES:
                name = column.path_in_schema
                raise UserError(f"{path}: row group {group} holds {column.num_values} values of {name}: {_SMALLER}")
            # Delta encodings cannot be read as dictionaries, so their expanded size would stay unknown.
            delta = [name for name in column.encodings if name.startswith("DELTA") and "BYTE_ARRAY" in name]
            if delta and column.path_in_schema in texts:
                raise UserError(
                    f"{path}: texts in the encoding {delta[0]} are not read: write it again with plain texts or "
                    "dictionaries, as pyarrow does by default"
                )
    return texts


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split rows into halves until each part is small enough or a single row."""
    if batch.num_rows <= 1 or _size(batch) <= _LARGEST_PART:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _parts(batch.slice(0, half))
    yield from _parts(batch.slice(half))


def _size(batch: pa.RecordBatch) -> int:
    """Return roughly how many bytes rows take as Python objects."""
    return sum(map(_size_of, batch.columns))


def _size_of(values: pa.Array) -> int:
    size = _BYTES_OF_VALUE * len(values)
    kind = values.type
    if pa.types.is_dictionary(kind):
        if pa.types.is_nested(kind.value_type) or pa.types.is_primitive(kind.value_type):
            return size
        # Every row gets its own copy of the text.
        lengths = pc.binary_length(values.dictionary).cast(pa.int64())
        return size + (pc.sum(lengths.take(values.indices)).as_py() or 0)
    if pa.types.is_struct(kind):
        return size + sum(map(_size_of, values.flatten()))
    if pa.types.is_nested(kind):
        return size + _size_of(values.flatten())
    return size + int(values.nbytes)


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with plain texts, which convert to Python objects faster."""
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
            place = f"{path}, row {row}"
            yield episode_from_messages(record, place) if is_dialogue(record) else episode_from_row(record, place)


def _jsonl_episodes(path: Path) -> Iterator[Episode]:
    count = 0
    expected = None
    for number, record in _jsonl_lines(path):
        if number == 1 and _is_header(record):
            expected = record.get(_COUNT)
            continue
        count += 1
        place = f"{path}, line {number}"
        # pandas writes the JSON text that a Parquet file has in ``info`` as it is.
        yield episode_from_messages(record, place) if is_dialogue(record) else episode_from_row(record, place)
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
    """Yield the episodes of a file, which must not be empty and must all belong to one known task.

    Args:
        path: a file that `lmrl.data.storage.write_episodes` wrote.
        task_name: the expected task; None: that of the first episode.

    Raises:
        UserError: for an empty file, an unknown task, episodes of another task, or a broken file.
    """
    expected = None if task_name is None else task(task_name).name
    empty = True
    for number, episode in enumerate(read_episodes(path), start=1):
        if expected is None and episode.task not in (*tasks(), DIALOGUES.name):
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
    """Join the parts that ``generate(shard=...)`` wrote into the file that a single machine would have written.

    Args:
        files: all parts of one dataset, in any order.
        out: a ``.parquet`` or ``.jsonl`` file.
        overwrite: whether `out` may replace a different dataset.

    Returns:
        The number of episodes.

    Raises:
        UserError: if a part is missing, occurs twice, is not whole or belongs to another dataset, or `out` is another
            dataset.
    """
    metadata: dict[Path, dict[str, Any]] = {}  # metadata of each part, without its number
    shards: dict[Path, Sequence[int]] = {}  # (number of the part, number of parts)
    for file in map(Path, files):
        metadata[file] = read_metadata(file)
        if "shard" not in metadata[file]:
            raise UserError(f"{file} is no part of a dataset: it was not recorded with shard")
        shards[file] = metadata[file].pop("shard")
    ordered = sorted(shards, key=lambda file: int(shards[file][0]))
    first = ordered[0]
    for file in ordered:
        if metadata[file] != metadata[first]:
            raise UserError(f"{file} is a part of another dataset than {first}")
    numbers = [shards[file][0] for file in ordered]
    count = shards[first][1]
    if len(ordered) != len(files) or numbers != list(range(count)):
        raise UserError(f"files must be all of the {count} parts, each once; got the parts {numbers}")
    check_place(Path(out), metadata[first], overwrite, ordered)
    return write_episodes(out, _of_whole_parts(ordered, metadata[first].get("size")), metadata[first])


def _of_whole_parts(files: Sequence[Path], size: int | None) -> Iterator[Episode]:
    """Yield the episodes of the parts of a dataset of that size.

    Raises:
        UserError: a part has fewer episodes than its share, as what an interrupted recording has kept.
    """
    for part, file in enumerate(files):
        count = 0
        for episode in read_episodes(file):
            count += 1
            yield episode
        if size is None:
            continue
        share = size * (part + 1) // len(files) - size * part // len(files)
        if count != share:
            raise UserError(f"{file} holds {count} of the {share} episodes of its part: record the rest with --resume")
