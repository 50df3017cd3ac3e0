"""Parts of a dataset, recorded by several machines, as one file."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lmrl.episode import Episode
from lmrl.errors import UserError
from lmrl.storage import read_episodes, read_metadata, write_episodes

__all__ = ["join_shards"]


def join_shards(files: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> int:
    """Put the parts that ``generate(shard=...)`` wrote together; the file is the one that a single machine writes.

    Args:
        files: all parts of one dataset, in any order.
        out: a ``.parquet`` or ``.jsonl`` file.

    Returns:
        The number of episodes.

    Raises:
        UserError: a part is missing, comes twice, or belongs to another dataset.
    """
    parts = {Path(file): read_metadata(file) for file in files}
    ordered = sorted(parts, key=lambda path: _number(path, parts[path]))
    whole = _without(parts[ordered[0]])
    for path in ordered:
        if _without(parts[path]) != whole:
            raise UserError(f"{path} is a part of another dataset than {ordered[0]}")
    found, count = [parts[path]["shard"][0] for path in ordered], parts[ordered[0]]["shard"][1]
    if len(parts) != len(files) or found != list(range(count)):
        raise UserError(f"files must be all of the {count} parts, each once; got the parts {found}")
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
