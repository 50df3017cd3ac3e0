"""A working directory, and a stand-in for the command line that is quick and can be made to fail, stop or wait."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from lmrl.data import generate
from lmrl.envs.registry import make_policy
from lmrl.evaluation.run_folder import record_evaluation
from lmrl.reproduce import Order
from lmrl.reproduce.plan import Cell, plan
from lmrl.reproduce.processes import Processes
from lmrl.reproduce.progress import Progress
from lmrl.reproduce.schedule import Threads, run_cells

# "Training" writes its arguments into the run folder and copies a checkpoint; "evaluation" and "data" copy what was
# made before. `break-mc` makes MC fail, `stop-mc` makes it wait in mid-training for the end of the one who started it,
# `hold-mc` makes it wait until that file is gone, and `need-mc` holds the name of what must have been trained before.
LAUNCHER = """
import json, os, shutil, sys, time
from pathlib import Path

verb, words = sys.argv[1], sys.argv[2:]
if verb == "data":
    assert words[-1] == "--resume"  # a recording that was broken off goes on
    made = Path(os.environ["LMRL_DATA"], Path("dataset-name").read_text())
    made.parent.mkdir()
    shutil.copy("prepared/data.parquet", made)
elif verb == "fit":
    _, task, name = Path(words[1]).with_suffix("").parts
    moved = [word.partition("=")[2] for word in words if word.startswith("--trainer.default_root_dir=")]
    folder = Path(*moved) if moved else Path("runs", task, name)
    again = "--ckpt_path" in words
    print("training", name, flush=True)
    if Path(f"break-{name}").exists():
        print("progress 1 %\\rprogress 2 %\\rout of luck", flush=True)
        sys.exit(3)
    if Path(f"hold-{name}").exists():
        (folder / "held").touch()
        while Path(f"hold-{name}").exists():
            time.sleep(0.01)
    if Path(f"need-{name}").exists():
        assert Path("runs", task, Path(f"need-{name}").read_text(), "last.ckpt").is_file()
    (folder / "metrics.csv").write_text("epoch,step,train/loss\\n0,5,1.5\\n")
    (folder / "words.json").write_text(json.dumps([words, os.environ["OMP_NUM_THREADS"], os.environ["LMRL_SHARE"]]))
    with open("trained.txt", "a") as log:
        print(name + ("-again" if again else ""), file=log)
    stopped = Path(f"stop-{name}").exists() and not again
    (folder / "last").mkdir(exist_ok=True)
    (folder / "last" / "config.json").write_text("{}")
    shutil.copy("prepared/half.ckpt" if stopped else "prepared/whole.ckpt", folder / "last.ckpt")
    if stopped:
        sys.stdin.read()
        sys.exit(1)
elif verb == "tune":
    (Path(words[0]) / "tuned.json").write_text(json.dumps({"settings": {"temperature": 0.5}}))
else:
    words = [word for word in words if word != "--tuned"]
    options = dict(zip(words[1::2], words[2::2]))
    out = Path(options["--out"])
    shutil.copytree("prepared/evaluation", out, dirs_exist_ok=True)
    scores = json.loads((out / "scores.json").read_text())
    scores |= {"policy": options["--policy"], "seed": int(options["--seed"]), "episodes": int(options["--episodes"])}
    (out / "scores.json").write_text(json.dumps(scores))
"""

CONFIG = "model:\n  init_args:\n    pretrained: {}\ntrainer:\n  max_steps: 70\n"


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation, a dataset, a finished checkpoint and one of half the way."""
    folder = tmp_path_factory.mktemp("prepared")
    record_evaluation(make_policy("maze_fo", "optimal"), "maze_fo", folder / "evaluation", episodes=5)
    generate("maze_fo", 12, 0, folder / "data.parquet", progress=False)
    for name, step in (("half", 40), ("whole", 70)):
        torch.save({"global_step": step, "lmrl": {"action_tokens": 10 * step}}, folder / f"{name}.ckpt")
    return folder


@pytest.fixture
def place(tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with configurations of four algorithms, of which three start from BC."""
    folder = tmp_path / "configs" / "maze_fo"
    folder.mkdir(parents=True)
    for name in ("bc", "filtered_bc", "mc", "ilql"):
        (folder / f"{name}.yaml").write_text(CONFIG.format("null" if name == "bc" else "runs/maze_fo/bc"))
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    (tmp_path / "prepared").symlink_to(prepared)
    (tmp_path / "dataset-name").write_text("maze_fo-v1-n12-s0.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMRL_DATA", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def order() -> Callable[..., Order]:
    def make(*algorithms: str, **settings: Any) -> Order:
        return Order(["maze_fo"], algorithms, **{"runs": Path("runs"), "episodes": 5, "data_size": 12, **settings})

    return make


@pytest.fixture
def run(place: Path) -> Callable[..., dict[str, str]]:
    """Only the trainings and their evaluations: what failed and why."""
    return _runner(place, lambda cell: cell.fit is not None)


@pytest.fixture
def run_all(place: Path) -> Callable[..., dict[str, str]]:
    """Every cell, the dataset among them."""
    return _runner(place, lambda cell: True)


def _runner(place: Path, wanted: Callable[[Cell], bool]) -> Callable[..., dict[str, str]]:
    def make(given: Order, jobs: int = 1) -> dict[str, str]:
        cells = [cell for cell in plan(given) if wanted(cell)]
        with Processes(jobs, (sys.executable, "launcher.py")) as processes, open("shown.txt", "w") as shown:
            progress = Progress(Console(file=shown), place / "log.txt", jobs)
            return run_cells(cells, Threads(given, processes, jobs, progress.say), progress)

    return make


@pytest.fixture
def trained(place: Path) -> Callable[[], list[str]]:
    """The trainings so far; ``mc-again`` went on from a checkpoint."""
    log = place / "trained.txt"
    return lambda: log.read_text().split() if log.is_file() else []


@pytest.fixture
def words_of(place: Path) -> Callable[[str], list[str]]:
    """The words after ``fit`` that a run was trained with."""

    def read(folder: str) -> list[str]:
        words: list[str] = json.loads((place / folder / "words.json").read_text())[0]
        return words

    return read
