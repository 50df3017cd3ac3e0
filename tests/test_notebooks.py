"""Every notebook runs to its end, and lies in the repository with what it shows, in step with its source."""

import json
import os
import re
import subprocess
import sys
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]_*.py"))
MISSING = [name for name in ("jupytext", "nbclient", "ipykernel") if find_spec(name) is None]
EXECUTE = ROOT / "notebooks" / "execute.py"
PAGE = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def committed(path: Path) -> list[dict[str, Any]]:
    """The cells of the notebook beside a source."""
    found: list[dict[str, Any]] = json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    return found


def outputs(path: Path) -> list[dict[str, Any]]:
    return [output for cell in committed(path) for output in cell.get("outputs", [])]


def test_there_are_seven() -> None:
    assert [path.name[0] for path in NOTEBOOKS] == list("1234567")
    assert {path.stem for path in EXECUTE.parent.glob("*.ipynb")} == {path.stem for path in NOTEBOOKS}


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
    (training,) = [place for place, cell in enumerate(task) if "trainer.fit" in cell]
    assert sum(code_lines(cell) for cell in task[2:training]) < 100  # after the installation and the imports


@each
def test_the_notebook_has_the_cells_of_its_source(path: Path) -> None:
    jupytext = pytest.importorskip("jupytext")
    source = [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]
    shown = [(cell["cell_type"], "".join(cell["source"])) for cell in committed(path)]
    assert shown == source, f"make notebooks ARGS=notebooks/{path.name}"


@each
def test_it_was_executed_with_the_maze_that_lies_beside_it(path: Path) -> None:
    used = "from t_maze import" in path.read_text(encoding="utf-8")
    noted = json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8"))["metadata"].get("t_maze")
    now = sha256((path.parent / "t_maze.py").read_bytes()).hexdigest()
    assert noted == (now if used else None), f"make notebooks ARGS=notebooks/{path.name}"


@each
def test_it_was_executed_from_top_to_bottom(path: Path) -> None:
    counts = [cell["execution_count"] for cell in committed(path) if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert any("image/png" in output.get("data", {}) for output in outputs(path))


@each
def test_what_it_shows_is_small_and_of_no_machine(path: Path) -> None:
    assert path.with_suffix(".ipynb").stat().st_size < 400_000
    assert {output["output_type"] for output in outputs(path)} <= {"stream", "display_data", "execute_result"}
    for output in outputs(path):
        texts = [output.get("text", []), *(text for kind, text in output.get("data", {}).items() if kind[:4] == "text")]
        said = "".join("".join(text) for text in texts)
        assert output.get("name") != "stderr"
        assert not re.search(r"(?<![\w.])/(tmp|home|root|work|usr|Users)\b|Warning|wandb|\x1b|it/s|steps/s", said), said


@each
def test_it_says_how_to_begin_and_what_to_change(path: Path) -> None:
    text = "".join("".join(cell["source"]) for cell in committed(path))
    link = f"https://colab.research.google.com/github/lmrl/lmrl/blob/main/notebooks/{path.stem}.ipynb"
    assert link in text and "# %pip install" in text and "\n%pip" not in text
    assert re.search(r"## Change something\n", text)
    assert f"(../notebooks/{path.stem}.ipynb)" in PAGE


def test_a_tiny_run_does_not_replace_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    if MISSING:
        pytest.skip(f"executing needs {', '.join(MISSING)}")
    monkeypatch.setenv("LMRL_TINY", "1")
    done = subprocess.run([sys.executable, str(EXECUTE)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "--out" in done.stderr


@pytest.mark.slow
@each
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
