"""Every notebook runs to its end, and lies in the repository with what it shows, in step with its source."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cases import cases

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]_*.py"))
MISSING = [name for name in ("jupytext", "nbclient", "ipykernel") if find_spec(name) is None]
EXECUTE = ROOT / "notebooks" / "execute.py"


def committed(path: Path) -> list[dict[str, Any]]:
    """The cells of the notebook beside a source."""
    found: list[dict[str, Any]] = json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    return found


def outputs(path: Path) -> list[dict[str, Any]]:
    return [output for cell in committed(path) for output in cell.get("outputs", [])]


@cases("path", NOTEBOOKS)
def test_the_notebook_has_the_cells_of_its_source(path: Path) -> None:
    jupytext = pytest.importorskip("jupytext")
    source = [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]
    shown = [(cell["cell_type"], "".join(cell["source"])) for cell in committed(path)]
    assert shown == source, f"make notebooks ARGS=notebooks/{path.name}"


@cases("path", NOTEBOOKS)
def test_it_was_executed_from_top_to_bottom(path: Path) -> None:
    counts = [cell["execution_count"] for cell in committed(path) if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert any("image/png" in output.get("data", {}) for output in outputs(path))


def test_a_tiny_run_does_not_replace_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    if MISSING:
        pytest.skip(f"executing needs {', '.join(MISSING)}")
    monkeypatch.setenv("LMRL_TINY", "1")
    done = subprocess.run([sys.executable, str(EXECUTE)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "--out" in done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    settings = {"LMRL_TINY": "1", "PYTHONPATH": str(ROOT), "LMRL_DATA": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"}
    # A notebook shows its pictures itself; a script must not open windows.
    command = [str(path)] if MISSING else [str(EXECUTE), str(path), "--out", str(tmp_path / "out")]
    settings |= {"MPLBACKEND": "Agg"} if MISSING else {}
    environment = {**os.environ, **settings}
    command = [sys.executable, *command]
    # Ten seconds or so; the limit is for what hangs, also on a machine that is busy with other things.
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
