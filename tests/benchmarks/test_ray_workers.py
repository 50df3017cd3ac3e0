"""A small part of ``python -m benchmarks ray_workers``."""

from pathlib import Path

import pytest

from benchmarks import ray_workers
from lmrl.modules import load_policy


@pytest.mark.slow
def test_recording_is_compared_with_two_processes(ray_cluster: str, tmp_path: Path) -> None:
    *rates, overhead = ray_workers.recording(tmp_path, 130, 1, "maze_fo")
    assert [row.name.rpartition(", ")[2] for row in rates] == ["two processes", "two Ray workers"]
    processes, workers = (row.value or 0.0 for row in rates)
    assert overhead.value == pytest.approx(processes / workers - 1.0) and overhead.shown.endswith("% time")


def test_ways_alternate() -> None:
    called: list[str] = []
    ways = {name: lambda name=name: called.append(name) for name in ("a", "b")}
    assert ray_workers.alternating(ways, 2).keys() == ways.keys()
    assert called == ["a", "b", "a", "b"]


def test_the_policy_is_one_that_workers_can_load(tmp_path: Path) -> None:
    assert load_policy(ray_workers._policy(tmp_path), "maze_fo")
