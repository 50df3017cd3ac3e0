"""Episodes as a `datasets.Dataset`, and back."""

import os
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lmrl.columns import SCHEMA, episode_from_row, table_of
from lmrl.episode import Episode
from lmrl.errors import UserError
from lmrl.storage import read_episodes

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["datasets_package", "episodes_dataset", "episodes_from_dataset"]

_BLOCK = 512
"""Episodes that are turned into a table at once."""


def episodes_dataset(episodes: str | os.PathLike[str] | Iterable[Episode]) -> "Dataset":
    """Episodes as a dataset in memory, one row each, in their order.

    ==================== =========================== ==========================================================
    column               type                        what
    ==================== =========================== ==========================================================
    ``task``             string                      name of the task
    ``observations``     list of string              ``T + 1`` texts of the environment
    ``actions``          list of string              ``T`` texts of the player
    ``rewards``          list of float64             ``T`` rewards
    ``terminated``       bool                        the rules ended it
    ``truncated``        bool                        it was cut short
    ``seed``             int64                       seed of the episode
    ``info``             string                      JSON; ``success``, ``illegal``, ``start``, ...
    ``action_ids``       list of list of int32       ``T`` lists of sampled token ids, or null
    ``action_logprobs``  list of list of float32     log-probabilities of those, or null
    ``action_values``    list of list of float32     values of the states in which they were sampled, or null
    ==================== =========================== ==========================================================

    These are the columns of our Parquet files, so ``dataset.to_parquet`` writes a file that `read_episodes` reads.

    Args:
        episodes: file as of `lmrl.storage.write_episodes`, or episodes.

    Raises:
        UserError: `datasets` is missing; for a file as `lmrl.storage.read_episodes`; a text is not valid Unicode.
    """
    package = datasets_package()
    source = iter(read_episodes(episodes) if isinstance(episodes, (str, os.PathLike)) else episodes)
    tables, count = [SCHEMA.empty_table()], 0
    while block := [*islice(source, _BLOCK)]:
        tables.append(table_of(block, count))
        count += len(block)
    dataset: Dataset = package.Dataset(pa.concat_tables(tables))
    return dataset


def episodes_from_dataset(dataset: Iterable[Mapping[str, Any]]) -> Iterator[Episode]:
    """The episodes of a dataset with the columns of `episodes_dataset`, in order; other columns are left out.

    Episodes that were read from a file come back equal. Of others, tuples in `Episode.info` come back as lists, and
    log-probabilities and values as float32.

    Args:
        dataset: a ``datasets.Dataset``, an ``IterableDataset``, or rows.

    Raises:
        UserError: a column is missing or of the wrong kind; it names the row, from 1.
    """
    plain = dataset.with_format(None) if hasattr(dataset, "with_format") else dataset
    for number, row in enumerate(plain, start=1):
        known = {name: row[name] for name in SCHEMA.names if name in row}
        yield episode_from_row(known, f"row {number} of the dataset")


def datasets_package() -> ModuleType:
    """The package `datasets`.

    Raises:
        UserError: it is missing.
    """
    try:
        return import_module("datasets")
    except ImportError as error:
        raise UserError(f"datasets of episodes need the package datasets ({error}): pip install 'lmrl[trl]'") from error
