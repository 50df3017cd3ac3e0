"""Trained policies that come with the package ``lmrl-zoo``, by name: ``zoo:maze_fo/ilql``.

Each is a folder as `lmrl export` writes it, with weights in float16, and next to them a ``zoo.json``: with which
settings it plays, its scores with these, and a hash of every file. A name is looked up among the folders that exist;
nothing that a file says chooses another one.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lmrl.errors import UserError, unknown
from lmrl.utils.files import json_of_file

__all__ = [
    "GET_ZOO", "ZOO_FILE", "ZOO_NAME", "ZOO_PREFIX", "ZooPolicy", "file_hashes", "zoo_folder", "zoo_policies",
    "zoo_policy",
]  # fmt: skip

ZOO_PREFIX = "zoo:"
"""The names of policies of the zoo begin with it."""
ZOO_FILE = "zoo.json"
ZOO_NAME = re.compile(r"[a-z0-9_]+/[a-z0-9_]+")
"""What stands after the prefix, and the folder of the policy."""
_SETTINGS = {"temperature", "top_p", "beta"}
_SCORES = ("episodes", "seed", "return_mean", "return_ci", "normalized", "normalized_ci", "success_rate")


@dataclass(frozen=True, slots=True)
class ZooPolicy:
    """One policy of the zoo."""

    name: str
    """``TASK/ALGORITHM``, as after ``zoo:``."""
    folder: Path
    settings: Mapping[str, float]
    """``temperature``, ``top_p`` and ``beta`` with which it plays unless others are given, and was scored."""
    scores: Mapping[str, Any]
    """As in ``scores.json`` of an evaluation."""

    @property
    def task(self) -> str:
        """Name of the task that it plays."""
        return self.name.partition("/")[0]


GET_ZOO = 'pip install "git+https://github.com/lmrl/lmrl#subdirectory=zoo"'
"""The command that installs the zoo: a folder of the repository, which no package index has."""


def zoo_folder() -> Path | None:
    """Where the policies are: in the installed package ``lmrl-zoo``, else in a clone of the repository; or None."""
    spec = find_spec("lmrl_zoo")
    installed = () if spec is None else spec.submodule_search_locations or ()
    for package in (*installed, Path(__file__).parents[2] / "zoo" / "lmrl_zoo"):
        folder = Path(package) / "policies"
        if folder.is_dir():
            return folder
    return None


def zoo_policies(task: str | None = None) -> list[str]:
    """Names of the policies in the zoo, ``zoo:TASK/ALGORITHM``; of one task, or of all."""
    folder = zoo_folder()
    if folder is None:
        return []
    policies = []
    for file in sorted(folder.glob(f"*/*/{ZOO_FILE}")):
        name = "/".join(file.parts[-3:-1])
        if ZOO_NAME.fullmatch(name) and task in (None, name.partition("/")[0]):
            policies.append(f"{ZOO_PREFIX}{name}")
    return policies


def zoo_policy(name: str) -> ZooPolicy:
    """The policy of that name, after a look at whether its files are the published ones.

    Args:
        name: ``zoo:TASK/ALGORITHM``, or without the prefix.

    Raises:
        UserError: there is no zoo, or no such policy in it; or its files are not those that were published.
    """
    name = f"{ZOO_PREFIX}{name.removeprefix(ZOO_PREFIX)}"
    folder = zoo_folder()
    if folder is None:
        raise UserError(f"{name} is a policy of the zoo, which is not installed: {GET_ZOO}")
    known = zoo_policies()
    if name not in known:
        raise unknown("policy of the zoo", name, zoo_policies(name.removeprefix(ZOO_PREFIX).partition("/")[0]) or known)
    return _read(folder / name.removeprefix(ZOO_PREFIX), name.removeprefix(ZOO_PREFIX))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e18  # which NaN is not


@cache  # hashing the files takes a moment
def _read(folder: Path, name: str) -> ZooPolicy:
    file = folder / ZOO_FILE
    entry = json_of_file(file)
    settings = entry.get("settings")
    scores = entry.get("scores")
    hashes = entry.get("files")
    if not (isinstance(settings, dict) and isinstance(scores, dict) and isinstance(hashes, dict)):
        raise UserError(f"{file} must hold settings, scores and files")
    # Scores are shown in tables and reports, which expect numbers.
    for key in _SCORES:
        values = scores.get(key) if key.endswith("_ci") else [scores.get(key), 0]
        if not (isinstance(values, list) and len(values) == 2 and all(map(_is_number, values))):
            kind = "two finite numbers" if key.endswith("_ci") else "a finite number"
            raise UserError(f"{file}: {key} of its scores must be {kind}, got {scores.get(key)!r:.60}")
    if not (settings.keys() <= _SETTINGS and all(map(_is_number, settings.values()))):
        raise UserError(f"{file}: settings must be numbers for {' and '.join(sorted(_SETTINGS))}, got {settings}")
    present = file_hashes(folder)
    for part in sorted(present.keys() | hashes.keys()):
        if present.get(part) != hashes.get(part):
            raise UserError(f"{folder / part} is not the file that was published; get the zoo again: {GET_ZOO}")
    return ZooPolicy(name, folder, settings, scores)


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a policy but ``zoo.json``, by its name."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != ZOO_FILE)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
