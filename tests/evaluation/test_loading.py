"""Tests of the names of policies: what they play, which tasks they may play, and where the result goes."""

import io
import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest

import lmrl
from lmrl.cli import main
from lmrl.data.storage import write_episodes
from lmrl.errors import UserError
from lmrl.evaluation.loading import PolicySpec, load_policy
from lmrl.modules import BC, find_trained, load_module
from lmrl.tokens.encoding import Window
from tests.helpers.cases import cases

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two untrained runs: ``runs/maze_fo/bc``, and ``runs/maze_fo/unknown``, which does not say its task."""
    monkeypatch.chdir(tmp_path)
    for name, made_with in (("bc", {"task": "maze_fo"}), ("unknown", {})):
        module = BC(architecture=TINY)
        module.window = Window(texts=1, tokens=64)
        module.made_with = made_with
        trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
        trainer.strategy.connect(module)
        for kept in ("best", "last"):
            trainer.save_checkpoint(Path("runs") / "maze_fo" / name / f"{kept}.ckpt")
    return Path("runs") / "maze_fo"


def failed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line that a wrong command prints."""
    capsys.readouterr()
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


def test_the_task_of_a_run_is_its_default(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--policy", str(runs / "bc"), "--episodes", "1"]) == 0
    assert capsys.readouterr().out.endswith(
        "written to runs/maze_fo/bc/evaluation/scores.json and runs/maze_fo/bc/evaluation/episodes.parquet\n"
    )
    scores = json.loads((runs / "bc" / "evaluation" / "scores.json").read_text())
    assert scores["task"] == "maze_fo"
    played = lmrl.evaluate(str(runs / "bc"), episodes=1)
    assert played.task == "maze_fo"
    written = lmrl.read_episodes(runs / "bc" / "evaluation" / "episodes.parquet")
    assert [episode.actions for episode in played.episodes] == [episode.actions for episode in written]
    assert lmrl.evaluate(lmrl.load_policy(runs / "bc"), "maze_fo", 1).episodes == played.episodes


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *("path", "zoo"),
        *(
            pytest.param(kind, marks=pytest.mark.nightly)
            for kind in ("name", "text of a path", "checkpoint", "module", "policy")
        ),
    ],
)
def test_a_name_a_path_and_an_object_stand_for_the_same_everywhere(runs: Path, kind: str) -> None:
    def player() -> Any:
        return {
            "name": lambda: "random",
            "path": lambda: runs / "bc",
            "text of a path": lambda: str(runs / "bc"),
            "checkpoint": lambda: runs / "bc" / "best.ckpt",
            "zoo": lambda: "zoo:maze_fo/bc",
            "module": lambda: lmrl.load_module(runs / "bc"),
            "policy": lambda: load_policy(runs / "bc"),
        }[kind]()

    def said(policy: Any, task: str | None = "maze_fo") -> list[list[str]]:
        return [list(episode.actions) for episode in lmrl.evaluate(policy, task, 2).episodes]

    whole = said(player())
    assert whole == said(lmrl.load_policy(player(), "maze_fo"))
    if kind not in ("name", "policy"):  # a trained policy knows its task
        assert whole == said(player(), None) == said(lmrl.load_policy(player()))
    else:
        with pytest.raises(UserError, match="name a task"):
            lmrl.evaluate(player())
    if kind in ("path", "text of a path", "checkpoint", "module"):
        assert whole == said(runs / "bc")
        assert lmrl.load_policy(player(), temperature=0.25).policy._settings.temperature == 0.25  # type: ignore[attr-defined]


def test_settings_are_refused_by_what_has_none(runs: Path) -> None:
    policy = lmrl.load_policy(runs / "bc")
    assert lmrl.load_policy(policy) is policy
    with pytest.raises(UserError, match="temperature can be set where a policy is made, not of LMPolicy"):
        lmrl.load_policy(policy, "maze_fo", temperature=0.5)
    with pytest.raises(UserError, match="temperature can be set for a trained policy only, not for 'random'"):
        lmrl.load_policy("random", "maze_fo", temperature=0.5)
    with pytest.raises(UserError, match="no policy 'runs/none'"):
        lmrl.load_policy("runs/none", "maze_fo")


def test_episodes_are_read_of_a_file_a_folder_and_a_run(runs: Path) -> None:
    assert main(["evaluate", "--policy", str(runs / "bc"), "--episodes", "2"]) == 0
    folder = runs / "bc" / "evaluation"
    wanted = [*lmrl.read_episodes(folder / "episodes.parquet")]
    assert len(wanted) == 2
    for source in (folder, runs / "bc", str(runs / "bc"), wanted, iter(wanted)):
        assert [*lmrl.read_episodes(source)] == wanted
    with pytest.raises(UserError, match=r"unknown: no episodes there \(neither episodes\.parquet nor evaluation/"):
        lmrl.read_episodes(runs / "unknown")


def test_a_run_of_another_task_is_refused_unless_that_is_meant(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs / "bc")
    play = ["play", "wordle", "--advisor", run]
    web = ["web", "wordle", "--policy", run]
    for words in (["evaluate", "wordle", "--policy", run], play, ["play", "wordle", "--policy", run], web):
        line = failed(capsys, *words)
        assert f"{run} was trained on maze_fo, not on wordle" in line
        # Only a command that has the option names it.
        assert ("allow_other_task" in line) is (words[0] == "evaluate")
        assert ("lmrl play and lmrl web let a policy play its own task only" in line) is (words[0] != "evaluate")
    with pytest.raises(UserError, match="was trained on maze_fo, not on maze_po"):
        load_policy(run, "maze_po")
    with pytest.raises(UserError, match="was trained on maze_fo, not on maze_po"):
        lmrl.evaluate(run, "maze_po", 1)
    assert lmrl.evaluate(run, "maze_po", 1, allow_other_task=True).task == "maze_po"
    assert main(["evaluate", "maze_po", "--policy", run, "--episodes", "1", "--allow_other_task"]) == 0
    # The result is not among the run's own results: the report would take it for one of them.
    assert Path("runs/maze_po/bc_of_maze_fo/evaluation/scores.json").is_file()
    assert not (runs / "bc" / "evaluation").exists()


def test_a_run_that_does_not_say_its_task_plays_the_one_that_is_named(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(runs / "unknown")
    assert (find_trained(runs / "bc").task, find_trained(run).task) == ("maze_fo", None)
    assert lmrl.evaluate(run, "maze_fo", 1).task == "maze_fo"
    with pytest.raises(UserError, match=r"name a task; .*unknown does not say which it plays"):
        load_policy(run)
    assert f"name a task; {run} does not say which it plays; known: " in failed(capsys, "evaluate", "--policy", run)


@cases(
    ("words", "message"),
    [
        ("evaluate --policy random", "name a task; random does not say which it plays; known: maze_fo, "),
        ("evaluate --policy runs/maze_fo/ilq", "no policy 'runs/maze_fo/ilq': there is no such run folder"),
        (
            "evaluate --policy clever",
            "known: human, zoo:TASK/NAME, chat:MODEL, local:PATH, vllm:URL#MODEL; with the name of a task also its "
            "scripted policies",
        ),
        (
            "evaluate wordle --policy clever",
            "known: random, behaviour, optimal, consistent, opener, repeated, wrong, h",
        ),
        ("evaluate runs/maze_fo/bc --policy random", "not a path: --policy runs/maze_fo/bc plays the task of that run"),
        ("play", "name a task; known: maze_fo, "),
        ("web --policy random --no_browser", "name a task; random does not say which it plays"),
    ],
)
def test_what_cannot_be_played_is_said_in_one_line(
    words: str, message: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in failed(capsys, *words.split())


def test_a_page_of_episodes_is_coloured_by_runs_of_their_task_alone(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = Path("maze.parquet")
    other = Path("wordle.parquet")
    for file, played in ((own, lmrl.evaluate("random", "maze_fo", 1)), (other, lmrl.evaluate("random", "wordle", 1))):
        write_episodes(file, played.episodes)
    line = failed(capsys, "view", str(other), "--run", str(runs / "bc"))
    assert "was trained on maze_fo, the episodes of wordle.parquet are of wordle" in line
    assert main(["view", str(other), "--run", str(runs / "bc"), "--allow_other_task"]) == 0
    assert main(["view", str(own), "--run", str(runs / "bc")]) == 0


def test_the_advisor_decides_what_is_played(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("move left\nmove left\n" + 3 * "move down\n"))
    assert main(["play", "--advisor", str(runs / "bc")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("maze_fo: ")
    assert f"{runs / 'bc'} would say: " in out


@cases(
    ("name", "settings", "folder"),
    [
        ("runs/maze_fo/bc", "", "runs/maze_fo/bc/evaluation"),
        ("runs/maze_fo/bc/best.ckpt", "", "runs/maze_fo/bc/evaluation"),
        ("runs/maze_fo/bc/last.ckpt", "", "runs/maze_fo/bc/evaluation_last"),
        ("runs/maze_fo/bc", "temperature=0.0", "runs/maze_fo/bc/evaluation_temperature=0.0"),
        ("runs/maze_fo/bc/at_25", "", "runs/maze_fo/bc/evaluation_at_25"),
        ("random", "", "runs/maze_fo/random/evaluation"),
        ("chat:meta/llama", "", "runs/maze_fo/llama/evaluation"),
        ("local:models/qwen", "", "runs/maze_fo/qwen/evaluation"),
        ("local:runs/maze_fo/bc", "", "runs/maze_fo/local-bc/evaluation"),
    ],
)
def test_where_results_go_if_nobody_says(name: str, settings: str, folder: str, runs: Path) -> None:
    if name.endswith("at_25"):  # a policy that a budget of compute has kept
        load_module(runs / "bc").export(runs / "bc" / "at_25")
    assert PolicySpec.parse(name, "maze_fo").default_folder(settings) == Path(folder)


def test_policies_with_one_name_do_not_share_a_folder(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_module(runs / "bc").export(Path("policies") / "bc")
    exported = PolicySpec.parse("policies/bc", "maze_fo")
    assert exported.default_folder() == Path("runs/maze_fo/exported-bc/evaluation")
    played = Path("runs/maze_fo/qwen/evaluation")
    played.mkdir(parents=True)
    (played / "scores.json").write_text('{"policy": "chat:other/qwen"}')
    assert main(["evaluate", "maze_fo", "--policy", "local:policies/qwen"]) == 2
    assert "name another folder with --out" in capsys.readouterr().err


def test_other_settings_do_not_replace_the_results_of_a_run(runs: Path) -> None:
    words = ["evaluate", "--policy", str(runs / "bc"), "--episodes", "6", "--temperature", "0", "--device", "cpu"]
    assert main([*words, "--env", "layout=umaze", "max_steps=2"]) == 0
    folders = [path.name for path in (runs / "bc").glob("evaluation*")]
    assert folders == ["evaluation_temperature=0.0_layout=umaze_max_steps=2"]


@cases(
    ("words", "message"),
    [
        ("--beta 2", "is a BC run, and its policy has no beta: leave it out"),
        ("--device tpu", "unknown device 'tpu'; take cpu, cuda"),
        ("--device mps", "cannot compute in float64"),
    ],
)
def test_settings_that_a_policy_does_not_have(
    words: str, message: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", "--policy", str(runs / "bc"), "--episodes", "6", *words.split()]
    assert main(command) == 2
    assert message in capsys.readouterr().err
