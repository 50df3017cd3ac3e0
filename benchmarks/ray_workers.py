"""Two workers of a Ray cluster of this machine: recording beside two processes of our own, evaluating beside one.

The cluster is there before the clock starts, as one that others keep; the start of workers counts, as that of processes
does. Repeats alternate, so that what else the machine does falls on all alike.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.row import Row
from lmrl.checkpoints.export import MANIFEST
from lmrl.data import generate
from lmrl.datamodules import MazeDataModule
from lmrl.envs.chess.opponents import find_engine
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.evaluation.evaluate import RayWorkers
from lmrl.modules import BC
from lmrl.utils.cluster import Cluster

WORKERS = 2
_SHAPE = {"n_layer": 3, "n_embd": 128, "n_head": 4}


def alternating(ways: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each way, all taken in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in seconds.items()}


def recording(folder: Path, games: int, repeats: int, task: str = "chess") -> Iterator[Row]:
    """Chess, with Stockfish where there is one."""
    env = {"opponent": "stockfish"} if task == "chess" and _has_stockfish() else {}
    record = partial(generate, task, games, out=folder / "games.parquet", progress=False, env=env)
    ways = {
        "two processes": partial(record, workers=WORKERS),
        "two Ray workers": partial(record, workers=WORKERS, ray="local"),
    }
    seconds = alternating(ways, repeats)
    what = f"recording {task}{' against Stockfish' if env else ''}"
    for name, took in seconds.items():
        yield Row(f"{what}, {name}", games / took, "games/s", "higher")
    more = seconds["two Ray workers"] / seconds["two processes"] - 1.0
    yield Row(f"{what}, Ray beside processes", more, "", "lower", "<= 10 % more time", shown=f"{more:+.1%} time")


def _has_stockfish() -> bool:
    try:
        return bool(find_engine())
    except UserError:
        return False


def evaluating(folder: Path, episodes: int, repeats: int) -> Iterator[Row]:
    """A model of three layers of 128 in the maze, one thread per process."""
    path = str(_policy(folder))
    slots = 32
    play = partial(evaluate, path, "maze_fo", episodes, slots=slots)
    seconds = alternating(
        {"one process": play, "two Ray workers": partial(play, ray=RayWorkers("local", WORKERS))}, repeats
    )
    for name, took in seconds.items():
        yield Row(f"evaluating 3 x 128, {name}", episodes / took, "games/s", "higher")
    more = WORKERS * seconds["two Ray workers"] / seconds["one process"] - 1.0
    asked = "<= 10 % more core time"
    yield Row("evaluating 3 x 128, Ray beside one process", more, "", "lower", asked, shown=f"{more:+.1%} core time")


def _policy(folder: Path) -> Path:
    """A model folder with random weights, whose mazes all take as long as they may."""
    torch.manual_seed(0)
    module = BC(architecture=_SHAPE)
    data = MazeDataModule("maze_fo")
    data.configure_batches(module.batch_spec())
    module.window = data.window()
    module.made_with = {"task": "maze_fo"}
    module.export(folder / "policy")
    assert (folder / "policy" / MANIFEST).is_file()
    return folder / "policy"


def run(games: int = 256, episodes: int = 2_048, repeats: int = 1) -> Iterator[Row]:
    """Rows for `python -m benchmarks ray_workers`."""
    with TemporaryDirectory() as place:
        began = time.perf_counter()
        cluster = Cluster("local", WORKERS)
        yield Row("start of a local cluster", time.perf_counter() - began, "s", "lower")
        try:
            yield from recording(Path(place), games, repeats)
            yield from evaluating(Path(place), episodes, repeats)
        finally:
            cluster.close()
