"""The tables of the endings, each worked out once per machine and read once per process."""

import os
import zipfile
import zlib
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from lmrl.atomic import replacing
from lmrl.envs.endgame_retrograde import lone_kings, solve
from lmrl.envs.endgame_squares import Ints

__all__ = ["cache_file", "load_table"]

_VERSION = 1  # of the values and of their layout in the file


@lru_cache(maxsize=8)
def load_table(men: str) -> tuple[Ints, Ints]:
    """Plies to mate with White and with Black to move, see `lmrl.envs.endgame_retrograde.solve`; not to be written to.

    They come from the cache file. If there is none, or it is damaged, they are worked out (a second for one man, a few
    for two) and written there, or not where the folder cannot be written.

    Args:
        men: White's men beside the king: ``Q``, ``R``, ``QR`` or ``RR``.
    """
    path = cache_file(men)
    tables = None if path is None else _read(path, (10,) + (64,) * (1 + len(men)))
    if tables is None:
        tables = solve(men, {left: load_table(left)[0] if left else lone_kings() for left in _left(men)})
        if path is not None:
            _write(path, tables)
    for table in tables:
        table.flags.writeable = False
    return tables


def cache_file(men: str) -> Path | None:
    """Where a table is kept: under ``$XDG_CACHE_HOME/lmrl`` or ``~/.cache/lmrl``; None where there is no home."""
    folder = os.environ.get("XDG_CACHE_HOME")
    if not folder:
        try:
            folder = str(Path.home() / ".cache")
        except RuntimeError:
            return None
    return Path(folder) / "lmrl" / f"endgame-k{men}K-v{_VERSION}.npz"


def _left(men: str) -> set[str]:
    """What is left when Black takes one."""
    return {men[:taken] + men[taken + 1 :] for taken in range(len(men))}


def _read(path: Path, shape: tuple[int, ...]) -> tuple[Ints, Ints] | None:
    """The tables in a file; None if it is missing or damaged (the format has checksums)."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            tables = arrays["white"], arrays["black"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    return tables if all(table.shape == shape and table.dtype == np.int8 for table in tables) else None


def _write(path: Path, tables: tuple[Ints, Ints]) -> None:
    # Without a cache everything works, only slower.
    with suppress(OSError), replacing(path) as file:
        np.savez_compressed(file, white=tables[0], black=tables[1])
