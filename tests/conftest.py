"""A short BC run in the maze, which tests of online learning start from, and players that know the maze."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lmrl.callbacks import KeepLast
from lmrl.data import generate
from lmrl.datamodules import MazeDataModule
from lmrl.evaluation.intervals import improvement_interval, stratified_interval
from lmrl.modules import BC
from tests.helpers.mazes import player, run_of, seer
from tests.helpers.online import TINY, trainer

# A shell without job control lets its background jobs ignore Ctrl-C, and so would the tests that send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

__all__ = ["bc_run", "data_path", "player", "ray_cluster", "run_of", "seeded", "seer"]


@pytest.fixture(scope="module", autouse=True)
def seeded() -> None:
    """Begin each module with the same random numbers, whatever ran before."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of the maze. No test may change the file."""
    return generate("maze_fo", 30, 0, tmp_path_factory.mktemp("data") / "maze.parquet", progress=False)


@pytest.fixture(scope="session")
def bc_run(tmp_path_factory: pytest.TempPathFactory, data_path: Path) -> str:
    """The folder of a run. Tests that write into it copy it first."""
    root = tmp_path_factory.mktemp("runs") / "maze_fo" / "bc"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        trainer(root, 5, [KeepLast()]).fit(BC(architecture=TINY), MazeDataModule("maze_fo", path=str(data_path)))
    return str(root)


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make intervals cheap, for tests that read where they stand and not how wide they are."""
    monkeypatch.setattr(stratified_interval, "__defaults__", (0, 0.95, 200))
    monkeypatch.setattr(improvement_interval, "__defaults__", (0, 0.95, 200))


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the pictures out of reports, for tests that read their words. Drawing takes longer than all else."""
    monkeypatch.setattr("lmrl.report.report.draw", lambda *parts: [])


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """Address of a small Ray cluster on this machine, which this process is in."""
    ray = pytest.importorskip("ray", reason="clusters need Ray: pip install 'lmrl[ray]'")
    small = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": 100 * 2**20}
    before = signal.getsignal(signal.SIGTERM)
    context = ray.init("local", **small, log_to_driver=False, logging_level="ERROR")
    signal.signal(signal.SIGTERM, before)  # tests of trainings that are told to end run in this process too
    yield context.address_info["gcs_address"]
    ray.shutdown()
