"""Tests of processes in a Ray cluster on this machine: results in order, none lost, and what the processes get."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from lmrl.data import generate
from lmrl.errors import UserError
from lmrl.utils.cluster import Cluster, Workers
from tests.helpers.clusters import Dying, refusing, squares, surroundings

pytest.importorskip("ray", reason="clusters need Ray: pip install 'lmrl[ray]'")


@pytest.mark.nightly
def test_results_come_in_the_order_of_their_items(ray_cluster: str) -> None:
    with Workers[int, tuple[int, int, int]](ray_cluster, 2, squares) as workers:
        assert workers.count == 2
        found = [*workers.map(range(9))]
        again = [*workers.map([5])]
    assert [square for square, _, _ in found] == [number**2 for number in range(9)]
    assert len({process for _, process, _ in found}) == 2 and os.getpid() not in {process for _, process, _ in found}
    assert max(done for _, _, done in found) > 2  # each keeps what it was made with
    assert again[0][1] in {process for _, process, _ in found} and again[0][2] > 1


@pytest.mark.nightly
def test_as_many_processes_as_the_cluster_has_cores_for(ray_cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, count in (("1", 4), ("2", 2), ("5", 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        with Workers[int, int](ray_cluster, None, squares) as workers:
            assert workers.count == count


@pytest.mark.nightly
def test_what_processes_are_told(ray_cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("LMRL_DATA", "somewhere")
    with Workers[str, object](ray_cluster, 1, surroundings) as workers:
        assert [*workers.map(["folder", "torch", "OMP_NUM_THREADS", "LMRL_DATA"])] == [
            str(tmp_path),
            2,
            "2",
            "somewhere",
        ]
        assert [*workers.map(["common"], "weights", 7)] == [("weights", 7)]


@pytest.mark.nightly
def test_the_item_of_a_process_that_dies_is_begun_anew(ray_cluster: str, tmp_path: Path) -> None:
    for name in ("die-1", "die-2"):
        (tmp_path / name).touch()
    with Workers[int, int](ray_cluster, 2, Dying(tmp_path)) as workers:
        assert [*workers.map(range(6))] == [*range(6)]
    assert not [*tmp_path.iterdir()]


@pytest.mark.nightly
def test_processes_that_die_again_and_again_are_told_of(
    ray_cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmrl.utils.cluster._DEATHS", 2)
    for name in range(2):
        (tmp_path / f"die-{name}").touch()
    with (
        Workers[int, int](ray_cluster, 1, Dying(tmp_path)) as workers,
        pytest.raises(UserError, match="a worker died 2 times over the same episodes"),
    ):
        [*workers.map([1, 3])]


@pytest.mark.nightly
def test_errors_are_those_of_one_process(ray_cluster: str) -> None:
    with (
        Workers[int, int](ray_cluster, 1, refusing) as workers,
        pytest.raises(UserError, match=r"^there is no such policy$"),
    ):
        [*workers.map([1])]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_the_same_file_whatever_the_number_of_workers(workers: int, ray_cluster: str, tmp_path: Path) -> None:
    one = generate("maze_po", 300, seed=3, out=tmp_path / "one.parquet", progress=False)
    many = generate("maze_po", 300, 3, tmp_path / "many.parquet", workers, progress=False, ray=ray_cluster)
    assert many.read_bytes() == one.read_bytes()


@pytest.mark.parametrize("ray", ["here", "10.0.0.1", "head:63x79", ""])
def test_addresses(ray: str) -> None:
    with pytest.raises(UserError, match=f"ray must be local, auto or HOST:PORT, got '{ray}'"):
        Cluster(ray)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "ray://nobody.invalid:10001", "a..b:1"])
def test_a_cluster_that_is_not_there(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest.importorskip("ray"), "is_initialized", lambda: False)
    with pytest.raises(UserError, match=rf"^no Ray cluster at {address}: .*; is it running\?$"):
        Cluster(address)


@pytest.mark.parametrize("ours", [lambda number, frame: None, signal.SIG_DFL])
def test_who_waits_for_the_end_is_still_told_of_it(monkeypatch: pytest.MonkeyPatch, ours: Any) -> None:
    """Lightning saves a training at SIGTERM, unless it finds a handler; Ray's handler ends the process at once."""
    before = signal.getsignal(signal.SIGTERM)
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    try:
        signal.signal(signal.SIGTERM, ours)
        Cluster("auto")
        assert signal.getsignal(signal.SIGTERM) == ours
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_cluster_needs_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"ray needs the package ray: pip install 'lmrl\[ray\]'"):
        Cluster("local")
