"""Where the runs of further training seeds are: ``runs/seed_1`` is a folder of runs as ``runs`` is, of seed 0."""

import re
from pathlib import Path

from lmrl.evaluation.results import Result, read_results

__all__ = ["read_seeds", "seed_folder", "seed_folders"]


def seed_folder(runs: Path, seed: int) -> Path:
    """``runs`` for seed 0, which is that of the configuration files; ``runs/seed_1`` for seed 1."""
    return runs if seed == 0 else runs / f"seed_{seed}"


def seed_folders(runs: Path) -> dict[int, Path]:
    """Every seed of which there is a folder, and seed 0."""
    found = {int(path.name[5:]): path for path in runs.glob("seed_*") if re.fullmatch(r"seed_[1-9]\d*", path.name)}
    return {0: runs, **dict(sorted(found.items()))}


def read_seeds(runs: Path, task: str) -> dict[str, dict[int, Result]]:
    """The finished evaluations of a task: player to training seed to result.

    Raises:
        UserError: naming the file, if one is broken.
    """
    players: dict[str, dict[int, Result]] = {}
    for seed, folder in seed_folders(runs).items():
        for name, result in read_results(folder, task).items():
            players.setdefault(name, {})[seed] = result
    return players
