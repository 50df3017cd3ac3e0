"""Cells as tasks of a Ray cluster on this machine."""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lmrl.errors import UserError
from lmrl.reproduce import Order, reproduce
from lmrl.reproduce.plan import plan
from lmrl.reproduce.progress import Progress
from lmrl.reproduce.ray_cells import RayCells
from lmrl.reproduce.schedule import run_cells

pytest.importorskip("ray", reason="clusters need Ray: pip install 'lmrl[ray]'")

Make = Callable[..., Order]
Trained = Callable[[], list[str]]

# The first training ends the process that runs its cell, as a machine that goes down would, half of the way.
KILLED = """
import os, signal
from pathlib import Path
if sys.argv[1] == "fit" and Path("kill-me").exists():
    Path("kill-me").unlink()
    Path("stop-bc").touch()
    os.kill(os.getppid(), signal.SIGKILL)
"""


def run_on_cluster(given: Order, address: str, jobs: int | None = None) -> dict[str, str]:
    runner = RayCells(given, address, jobs, (sys.executable, "launcher.py"))
    progress = Progress(Console(file=io.StringIO(), width=200), Path("log.txt"))
    return run_cells([cell for cell in plan(given) if cell.fit], runner, progress)


@pytest.mark.nightly
def test_cells_run_each_after_the_one_it_starts_from_though_a_process_dies(
    ray_cluster: str, place: Path, order: Make, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (place / "launcher.py").write_text(
        (place / "launcher.py").read_text().replace("verb, words", KILLED + "\nverb, words", 1)
    )
    for file in ("kill-me", "break-ilql"):
        (place / file).touch()
    (place / "need-mc").write_text("bc")
    failed = run_on_cluster(order("mc", "ilql"), ray_cluster)
    assert [*failed] == ["maze_fo/ilql"] and "out of luck" in failed["maze_fo/ilql"]
    assert trained() == ["bc", "bc-again", "mc"]
    assert json.loads((place / "runs/maze_fo/mc/words.json").read_text())[1:] == ["2", "2"]  # threads
    assert json.loads((place / "runs/maze_fo/mc/cell.json").read_text())["recipe"]
    assert run_on_cluster(order("mc"), ray_cluster, jobs=1) == {} and len(trained()) == 3  # finished before


@pytest.mark.parametrize(("device", "gpu"), [(None, False), ("cpu", False), ("cuda", True)])
def test_a_cell_takes_a_gpu_only_if_its_policies_play_there(
    device: str | None, gpu: bool, order: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    class Recorded:
        def __init__(self, address: str) -> None: ...

        def remote(self, work: Any, *, gpu: bool, **options: Any) -> None:
            asked.append(gpu)

    monkeypatch.setattr("lmrl.reproduce.ray_cells.Cluster", Recorded)
    given = order("bc")
    RayCells(replace(given, preset=replace(given.preset, device=device)), "local", None)
    assert asked == [gpu]


def test_a_place_for_cells_is_one_place(place: Path, order: Make) -> None:
    with pytest.raises(UserError, match="give slurm or ray, not both"):
        reproduce(order("bc"), slurm={"time": 5}, ray="local")
    with pytest.raises(UserError, match="ray must be local, auto or HOST:PORT, got 'here'"):
        reproduce(order("bc"), ray="here")
