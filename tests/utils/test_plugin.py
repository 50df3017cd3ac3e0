"""The task of `docs/guide/add_task.md`, installed as a package of its own; all commands know its entry point."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.test_repo import ROOT, blocks

PAGE = ROOT / "docs" / "guide" / "add_task.md"


def install(folder: Path, package: str, entry_points: str, group: str = "lmrl.tasks") -> None:
    """Write the metadata that pip leaves for a package."""
    told = folder / f"{package}-0.1.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
    (told / "entry_points.txt").write_text(f"[{group}]\n{entry_points}\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package of the page, installed."""
    folder = tmp_path_factory.mktemp("site")
    package = folder / "lmrl_corridor"
    (package / "configs" / "corridor").mkdir(parents=True)
    (game,) = (block for block in blocks(PAGE, "python") if "class Corridor" in block)
    (tasks,) = (block for block in blocks(PAGE, "python") if "TASKS = Task" in block)
    (package / "game.py").write_text(game)
    (package / "__init__.py").write_text(tasks)
    (package / "picture.js").write_text(*blocks(PAGE, "js"))
    (package / "configs" / "corridor" / "bc.yaml").write_text(*blocks(PAGE, "yaml"))
    (project,) = (block for block in blocks(PAGE, "toml") if "lmrl.tasks" in block)
    entries = project.split('[project.entry-points."lmrl.tasks"]\n')[1].split("[tool")[0]
    install(folder, "lmrl_corridor", entries.replace('"', ""))
    return folder


def environment(site: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}


def lmrl(site: Path, folder: Path, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lmrl", *words]
    return subprocess.run(
        command, cwd=folder, env=environment(site), input=typed, capture_output=True, text=True, timeout=300
    )


def done(site: Path, folder: Path, *words: str, typed: str = "") -> str:
    result = lmrl(site, folder, *words, typed=typed)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


NAYSAYER = """
class Naysayer:
    def __init__(self, answer="No."):
        self.answer = answer

    def reply(self, requests):
        return [f"{self.answer}\\n" for _ in requests]

    def describe(self):
        return {"name": "naysayer", "answer": self.answer}
"""
ASK = """
from lmrl.partners import environment

for partner in ("naysayer", {"name": "naysayer", "answer": "Never."}, {"name": "naysayer", "mood": 1}, "nobody"):
    try:
        env = environment("guess_city", {"partner": partner})()
        print(env.reset(seed=0)[1]["partner"], env.step("What do people speak?\\n")[0])
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_partner_has_a_name_and_settings(tmp_path: Path) -> None:
    (tmp_path / "naysayer.py").write_text(NAYSAYER)
    install(tmp_path, "naysayer", "naysayer = naysayer:Naysayer", group="lmrl.partners")
    command = [sys.executable, "-c", ASK]
    asked = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    named, _, other, _, unknown_setting, unknown_partner = asked.stdout.splitlines()
    assert named == "{'name': 'naysayer', 'answer': 'No.'} No."
    assert other == "{'name': 'naysayer', 'answer': 'Never.'} Never."
    assert unknown_setting == "UserError unknown setting of the partner naysayer 'mood'; known: answer"
    assert "vllm:URL#MODEL, naysayer, got 'nobody'" in unknown_partner


@pytest.mark.slow
def test_it_is_checked_played_and_evaluated(site: Path, tmp_path: Path) -> None:
    assert "ok: any text is answered" in done(site, tmp_path, "check-env", "corridor", "--texts", "20")
    played = done(site, tmp_path, "play", "corridor", "--seed", "0", typed="right\n" * 5)
    assert "corridor: walk to the end of a corridor." in played and "\nsolved: return " in played
    evaluated = done(site, tmp_path, "evaluate", "corridor", "--policy", "optimal", "--episodes", "4").splitlines()
    assert evaluated[0] == "corridor, policy optimal: 4 episodes, seed 0" and evaluated[1].startswith("return ")
    assert [line for line in evaluated if "normalised" in line or "published" in line] == [
        "note: this task has no published scale, so scores are mean returns"
    ]


@pytest.mark.nightly
def test_its_data_are_recorded_and_read_and_mistakes_are_told(site: Path, tmp_path: Path) -> None:
    done(site, tmp_path, "data", "generate", "corridor", "--size", "30", "--out", "data.parquet")
    assert "30" in done(site, tmp_path, "data", "stats", "data.parquet")
    assert "30" in done(site, tmp_path, "data", "verify", "data.parquet")
    refused = lmrl(site, tmp_path, "data", "import", "corridor", "data.parquet", "--out", "other.parquet")
    assert refused.returncode == 2
    assert "unknown task with official files 'corridor'; known: car_dealer" in refused.stderr
    mistaken = lmrl(site, tmp_path, "fit", "--config", "configs/corridor/x.yaml")
    assert "known: configs/corridor/bc.yaml" in mistaken.stderr


@pytest.mark.nightly
def test_the_configuration_of_the_page_learns_the_game(site: Path, tmp_path: Path) -> None:
    done(site, tmp_path, "fit", "--config", "configs/corridor/bc.yaml")
    done(site, tmp_path, "evaluate", "--policy", "runs/corridor/bc/last.ckpt", "--episodes", "64", "--out", "played")
    assert json.loads((tmp_path / "played" / "scores.json").read_text())["success_rate"] > 0.8


@pytest.mark.nightly
def test_training_evaluation_and_pages(site: Path, tmp_path: Path) -> None:
    done(site, tmp_path, "reproduce", "corridor", "--algorithms", "bc", "--smoke", "--jobs", "1", "--runs", "table")
    assert "corridor" in (tmp_path / "report" / "smoke" / "report.md").read_text()
    played = tmp_path / "table" / "corridor" / "bc" / "evaluation"
    scores = json.loads((played / "scores.json").read_text())
    assert scores["task"] == "corridor"
    assert scores["normalized"] == scores["return_mean"]  # nothing was published
    done(site, tmp_path, "view", str(played / "episodes.parquet"), "--out", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert 'PICTURES.set("corridor"' in page and '"states":[[' in page


def served_page(site: Path, folder: Path) -> tuple[str, str]:
    """Return the page that ``lmrl web`` serves, and what it says about errors."""
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-u", "-m", "lmrl", "web", "corridor", "--port", "0", "--no-browser"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=environment(site), text=True, stdout=pipe, stderr=pipe) as server:
        try:
            assert server.stdout is not None and server.stderr is not None
            told = server.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+/", told)
            assert address is not None, told or server.stderr.read()
            with urllib.request.urlopen(address.group(), timeout=60) as answer:
                page = answer.read().decode()
        finally:
            server.send_signal(signal.SIGINT)
        return page, server.stderr.read()


@pytest.mark.nightly
def test_the_web_page_offers_it(site: Path, tmp_path: Path) -> None:
    page, told = served_page(site, tmp_path)
    assert 'PICTURES.set("corridor"' in page and ">corridor<" in page and told == ""


@pytest.mark.slow
def test_a_picture_without_its_script_is_told_and_costs_no_other_task_its_page(site: Path, tmp_path: Path) -> None:
    bare = tmp_path / "site"
    shutil.copytree(site, bare)
    (bare / "lmrl_corridor" / "picture.js").unlink()
    tasks = (bare / "lmrl_corridor" / "__init__.py").read_text()
    second = 'TASKS = TASKS, replace(TASKS, name="second", env_id="lmrl_corridor/Second-v0", picture="nowhere:Picture")'
    (bare / "lmrl_corridor" / "__init__.py").write_text(f"from dataclasses import replace\n{tasks}{second}\n")
    page, told = served_page(bare, tmp_path)
    assert 'PICTURES.set("corridor"' not in page and 'PICTURES.set("maze"' in page
    assert ">corridor<" in page and ">second<" in page
    hook, script = told.splitlines()
    assert "pages show no picture of task second: ModuleNotFoundError: No module named 'nowhere'" in hook
    assert "pages show no picture of 'corridor' (lmrl_corridor:picture.js): FileNotFoundError" in script


def test_a_broken_package_is_told_in_one_line_and_harms_no_other(site: Path, tmp_path: Path) -> None:
    for package, value in {
        "absent": "no_such_module:TASKS",
        "crashing": "crashing:TASKS",
        "wrong": "wrong:TASKS",
        "twice": "twice:TASKS",
        "first": "first:TASKS",
    }.items():
        install(tmp_path, package, f"tasks = {value}")
    (tmp_path / "crashing.py").write_text("1 / 0\n")
    (tmp_path / "wrong.py").write_text("TASKS = ['maze_fo']\n")
    head = "from dataclasses import replace\nfrom lmrl.envs.registry import task\n"
    copy = f"{head}TASKS = replace(task('wordle'), name={{!r}})\n"
    (tmp_path / "twice.py").write_text(copy.format("corridor"))
    (tmp_path / "first.py").write_text(copy.format("wordle"))
    both = Path(f"{site}{os.pathsep}{tmp_path}")
    code = "import lmrl; print(*lmrl.tasks()); print(lmrl.task('corridor').env_id)"
    result = subprocess.run([sys.executable, "-c", code], env=environment(both), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    names, env_id = result.stdout.splitlines()
    assert names.split()[-2:] == ["car_dealer", "corridor"] and env_id == "lmrl_corridor/Corridor-v0"
    told = {line.split()[4]: line for line in result.stderr.splitlines()}
    assert sorted(told) == ["absent", "crashing", "first", "twice", "wrong"]
    assert "No module named 'no_such_module'" in told["absent"] and "division by zero" in told["crashing"]
    assert "must be a Task or a tuple of them, got list" in told["wrong"]
    assert "there is a task 'corridor' already" in told["twice"] and "there is a task 'wordle' already" in told["first"]


def test_an_import_of_the_package_asks_no_other(site: Path) -> None:
    code = "import sys, lmrl; lmrl.task('maze_fo'); print('lmrl_corridor' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], env=environment(site), capture_output=True, text=True)
    assert result.stdout == "False\n", result.stderr
