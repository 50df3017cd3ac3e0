"""Every notebook runs to its end, as a notebook where that can be, else as the script that it is too."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]_*.py"))
MISSING = [name for name in ("jupytext", "nbclient", "ipykernel") if find_spec(name) is None]
EXECUTE = ROOT / "notebooks" / "execute.py"


def test_there_are_five() -> None:
    assert [path.name[0] for path in NOTEBOOKS] == ["1", "2", "3", "4", "5"]


def cells(path: Path) -> list[str]:
    """The code of a notebook, cell by cell."""
    parts = path.read_text(encoding="utf-8").split("\n# %%")
    return [part for part in parts[1:] if not part.startswith(" [markdown]")]


def code_lines(text: str) -> int:
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.split("\n"))


def test_the_sizes_that_are_promised() -> None:
    (algorithm,) = [cell for cell in cells(NOTEBOOKS[3]) if "class AdvantageWeightedBC" in cell]
    assert code_lines(algorithm) < 60
    task = cells(NOTEBOOKS[4])
    assert sum(code_lines(cell) for cell in task[1:-1]) < 100


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    settings = {"LMRL_TINY": "1", "PYTHONPATH": str(ROOT), "LMRL_DATA": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"}
    # A notebook shows its pictures itself; a script must not open windows.
    command = [str(path)] if MISSING else [str(EXECUTE), str(path)]
    settings |= {"MPLBACKEND": "Agg"} if MISSING else {}
    environment = {**os.environ, **settings}
    command = [sys.executable, *command]
    # Ten seconds or so; the limit is for what hangs, also on a machine that is busy with other things.
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
