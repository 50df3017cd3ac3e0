"""Policies by name: what they play like, what is refused, and that those of the repository are what is published."""

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from safetensors.torch import load_file

import lmrl
from lmrl.checkpoints import zoo
from lmrl.checkpoints.zoo import zoo_policies, zoo_policy
from lmrl.cli import main
from lmrl.envs import registry
from lmrl.errors import UserError
from lmrl.evaluation.loading import PolicySpec, load_policy
from lmrl.evaluation.result_json import read_json
from lmrl.modules import load_module
from tests.helpers.cases import cases

SHIPPED = zoo_policies()
NAME = "zoo:maze_fo/bc"


@pytest.fixture(scope="module")
def tuned_run(tmp_path_factory: pytest.TempPathFactory, bc_run: str) -> str:
    """A copy of the BC run, for which settings were chosen."""
    run = shutil.copytree(bc_run, tmp_path_factory.mktemp("tuned") / "maze_fo" / "bc")
    (run / "tuned.json").write_text('{"settings": {"temperature": 0.5}}', encoding="utf-8")
    return str(run)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory, tuned_run: str) -> Path:
    """A zoo of one policy, made by the command."""
    folder = tmp_path_factory.mktemp("zoo")
    assert main(["zoo", "add", tuned_run, "--to", str(folder), "--episodes", "5"]) == 0
    return folder


@pytest.fixture
def here(policies: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("lmrl.checkpoints.zoo.zoo_folder", lambda: policies)
    zoo._read.cache_clear()
    return policies


def test_a_name_stands_wherever_a_policy_is_asked_for(
    here: Path, tuned_run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert zoo_policies() == zoo_policies("maze_fo") == [NAME] and zoo_policies("wordle") == []
    assert load_policy(NAME).policy._settings.temperature == 0.5  # type: ignore[attr-defined]
    assert load_policy(NAME, temperature=2.0).policy._settings.temperature == 2.0  # type: ignore[attr-defined]
    played = lmrl.evaluate(NAME, episodes=1)
    assert played.task == "maze_fo" and played.provenance["decoding"] == {"temperature": 0.5}
    assert PolicySpec.parse(NAME, "maze_fo").default_folder() == Path("runs/maze_fo/zoo-bc/evaluation")
    out = str(tmp_path / "out")
    assert main(["evaluate", "--policy", NAME, "--episodes", "1", "--out", out]) == 0
    assert f"maze_fo, policy {NAME}: 1 episode, seed 0, temperature 0.5\n" in capsys.readouterr().out
    assert main(["evaluate", "--policy", tuned_run, "--episodes", "1", "--out", out]) == 0
    assert f"maze_fo, policy {tuned_run}: 1 episode, seed 0, as trained\n" in capsys.readouterr().out
    assert main(["evaluate", "--policy", NAME, "--episodes", "1", "--out", out]) == 0
    assert read_json(tmp_path / "out" / "scores.json")["provenance"]["decoding"] == {"temperature": 0.5}
    assert main(["evaluate", "--policy", NAME, "--episodes", "1", "--rerank", "--out", out]) == 0
    assert read_json(tmp_path / "out" / "scores.json")["provenance"]["decoding"] == {"rerank": True}
    assert lmrl.modules.BC(pretrained=NAME).model.config.n_embd == 16


def test_a_run_whose_name_the_zoo_would_not_find_is_refused(
    bc_run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(bc_run, tmp_path / "maze_fo" / "bc-2")
    assert main(["zoo", "add", str(run), "--to", str(tmp_path / "zoo"), "--episodes", "1"]) == 2
    assert "names in the zoo have small letters, digits and _ alone, got 'maze_fo/bc-2'" in capsys.readouterr().err
    assert not (tmp_path / "zoo").exists()


def test_the_weights_are_those_of_the_run_in_half_precision(here: Path, tuned_run: str) -> None:
    ours = load_module(NAME).state_dict()
    theirs = load_module(tuned_run).state_dict()
    assert all(torch.equal(ours[name], tensor.half().float()) for name, tensor in theirs.items())
    kinds = {t.dtype for t in load_file(here / "maze_fo" / "bc" / "model.safetensors").values()}
    assert kinds == {torch.float16}


def test_scores_are_of_what_the_files_hold(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published = zoo_policy(NAME).scores
    again = lmrl.evaluate(NAME, episodes=5, seed=0).scores()
    assert again["return_mean"] == published["return_mean"] and published["episodes"] == 5
    assert main(["zoo", "evaluate", NAME, "--episodes", "5"]) == 0
    assert "the intervals overlap" in capsys.readouterr().out
    assert main(["zoo", "list"]) == 0
    assert NAME in capsys.readouterr().out
    assert main(["zoo", "info", NAME]) == 0
    card = capsys.readouterr().out
    assert NAME in card
    assert main(["zoo", "info", NAME.removeprefix("zoo:")]) == 0
    assert capsys.readouterr().out == card


def test_the_list_fits_80_columns(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "zoo:twenty_questions/online_filtered_bc"
    whole = {**zoo_policy(NAME).scores, "success_rate": 1.0, "return_mean": -100.5}
    scores = {**whole, "normalized": 115.1, "normalized_ci": [107.3, 122.7]}
    folder = here / "maze_fo" / "bc"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("lmrl.commands.zoo.zoo_policies", lambda task: [name])
    monkeypatch.setattr(
        "lmrl.commands.zoo.zoo_policy", lambda name: zoo.ZooPolicy("twenty_questions/x", folder, {}, scores)
    )
    assert main(["zoo", "list"]) == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["policy", "return", "normalised", "won", "MB"] and len(head) <= 80
    assert row.split()[:-1] == [name, "-100.50", "115.1", "[107.3,", "122.7]", "100%"]


def test_a_policy_that_plays_otherwise_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = {**zoo_policy(NAME).scores, "return_ci": [5.0, 6.0]}
    monkeypatch.setattr("lmrl.commands.zoo_add.zoo_policy", lambda name: zoo.ZooPolicy("maze_fo/bc", here, {}, far))
    assert main(["zoo", "evaluate", NAME, "--episodes", "5"]) == 1


def test_commands_that_take_a_path_take_a_name_or_refuse_it_and_leave_nothing(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    games = Path(__file__).parents[2] / "docs" / "games" / "maze_fo.jsonl"
    view = ["view", str(games), "--episodes", "1", "--out", "page.html"]
    assert main([*view, "--run", NAME]) == 0
    assert "1 episodes written" in capsys.readouterr().out
    assert main(["tune", NAME, "--episodes", "2"]) == 2
    assert "what is tuned is the folder of a run" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"page.html"}


@pytest.mark.parametrize("name", ["zoo:maze_fo/mc", "zoo:../../etc", "zoo:", "zoo:maze_fo/bc/.."])
def test_a_name_is_one_of_those_that_are_there(name: str, here: Path) -> None:
    with pytest.raises(UserError, match=r"unknown policy of the zoo .*known: zoo:maze_fo/bc"):
        zoo_policy(name)
    with pytest.raises(UserError, match=r"unknown policy of the zoo .*known: zoo:maze_fo/bc"):
        PolicySpec.parse(name, "maze_fo")


def test_without_a_zoo_it_is_told_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmrl.checkpoints.zoo.zoo_folder", lambda: None)
    with pytest.raises(UserError, match="not installed: pip install ") as told:
        zoo_policy(NAME)
    repository = Path(__file__).parents[2]
    found = re.search(r'"git\+(https://[\w./]+)#subdirectory=(\w+)"$', str(told.value))
    assert found is not None and f'Source = "{found[1]}"' in (repository / "pyproject.toml").read_text()
    assert 'name = "lmrl-zoo"' in (repository / found[2] / "pyproject.toml").read_text()
    assert main(["zoo", "list"]) == 2


@pytest.mark.parametrize("damage", ["weights", "file", "settings"])
def test_other_files_than_the_published_ones_are_refused(damage: str, here: Path) -> None:
    folder = here / "maze_fo" / "bc"
    changed = folder / {"weights": "model.safetensors", "file": "more.txt", "settings": "zoo.json"}[damage]
    before = changed.read_bytes() if changed.exists() else None
    try:
        if damage == "settings":
            entry = json.loads(changed.read_text())
            changed.write_text(json.dumps({**entry, "settings": {"path": "/etc"}}))
        else:
            changed.write_bytes((before or b"") + b"x")
        with pytest.raises(UserError, match=r"was published|settings must be numbers"):
            zoo_policy(NAME)
    finally:
        changed.unlink() if before is None else changed.write_bytes(before)
    assert zoo_policy(NAME).settings == {"temperature": 0.5}


#: The others play every night.
REPLAYED = ("zoo:maze_fo/ilql",)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in REPLAYED else pytest.mark.nightly) for name in SHIPPED],
)
def test_it_plays_as_published(name: str) -> None:
    """Other seeds, fewer games, of each start equally many: the intervals have to overlap."""
    starts = max(1, len(registry.task(zoo_policy(name).task).starts))
    assert main(["zoo", "evaluate", name, "--episodes", str(starts * -(-128 // starts)), "--seed", "7"]) == 0


def test_the_zoo_is_small() -> None:
    folder = Path(__file__).parents[2] / "zoo" / "lmrl_zoo" / "policies"
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 25_000_000
    assert len(SHIPPED) == len(list(folder.glob("*/*/zoo.json"))) > 0


@pytest.mark.nightly
def test_the_wheel_of_the_zoo_holds_all_its_policies(tmp_path: Path) -> None:
    if find_spec("hatchling") is None:
        pytest.skip("the wheel is built by hatchling: pip install hatchling")
    sources = Path(__file__).parents[2] / "zoo"
    copied = shutil.copytree(sources, tmp_path / "zoo")  # what is built is not written beside the sources
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "dist")]
    subprocess.run(command, cwd=copied, check=True, capture_output=True, timeout=120)
    (wheel,) = (tmp_path / "dist").glob("lmrl_zoo-*.whl")
    with ZipFile(wheel) as packed:
        held = {name for name in packed.namelist() if name.startswith("lmrl_zoo/policies/")}
    files = (path for path in (sources / "lmrl_zoo" / "policies").rglob("*") if path.is_file())
    assert held == {path.relative_to(sources).as_posix() for path in files}
    assert {f"lmrl_zoo/policies/{name.removeprefix('zoo:')}/zoo.json" for name in SHIPPED} <= held


@cases(
    "scores",
    [
        {"normalized_ci": None},
        {"normalized_ci": [1]},
        {"normalized_ci": ["a", "b"]},
        {"return_mean": "x"},
        {"return_mean": float("nan")},
        {"success_rate": [1]},
        {"return_ci": {}},
        {"episodes": 10**400},
    ],
)
def test_odd_scores_are_refused_in_one_line(
    here: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    scores: dict[str, object],
) -> None:
    shutil.copytree(here, tmp_path / "zoo", dirs_exist_ok=True)
    monkeypatch.setattr("lmrl.checkpoints.zoo.zoo_folder", lambda: tmp_path / "zoo")
    zoo._read.cache_clear()
    file = tmp_path / "zoo/maze_fo/bc/zoo.json"
    record = json.loads(file.read_text())
    record["scores"].update(scores)
    file.write_text(json.dumps(record))
    assert main(["zoo", "list"]) == 2
    assert "zoo.json: " in capsys.readouterr().err
