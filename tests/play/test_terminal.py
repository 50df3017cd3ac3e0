"""Games at the terminal: what is shown, and what an advisor says."""

import io
from pathlib import Path

import pytest

from lmrl.cli import main
from lmrl.envs import registry
from lmrl.envs.registry import make


def test_a_game_of_wordle_to_its_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setattr("sys.stdin", io.StringIO("about\n" * 6))
    assert main(["play", "wordle", "--seed", "1"]) == 0
    out = capsys.readouterr().out
    assert "\x1b[1;37;48;2;92;95;98m A " in out
    assert out.count("m A ") == 1 + 2 + 3 + 4 + 5 + 6
    assert out.endswith("in 6 turns, 0 illegal\n")


def test_an_advisor_says_its_move_and_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # One cell right of the goal's stem, and then the way down.
    moves = "move left\nmove left\nmove down\nmove down\nmove down\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(moves))
    assert main(["play", "maze_fo", "--seed", "0", "--advisor", "optimal"]) == 0
    out = capsys.readouterr().out
    assert out.count("optimal would say: move left\n") == 2
    assert out.count("optimal would say: move down\n") == 3
    assert main(["symbolic", "--algorithms", "dqn", "--steps", "2"]) == 0
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO(moves))
    run = "runs/maze_fo/symbolic_dqn"
    assert main(["play", "maze_fo", "--seed", "0", "--advisor", run]) == 0
    advice = [line for line in capsys.readouterr().out.split("\n") if line.startswith(f"> {run} would") or run in line]
    assert len(advice) == 5
    assert all(" would say: move " in line and "   V " in line for line in advice)
    assert main(["play", "maze_fo", "--advisor", "nobody"]) == 2
    assert "no policy 'nobody'" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["chess", "maze_po", "text_nav_fo", "twenty_questions"])
def test_texts_of_other_games_are_shown_as_they_are(
    task: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stdin", io.StringIO("[bold]nothing[/bold]\n"))
    assert main(["play", task, "--seed", "0"]) == 2
    said = capsys.readouterr()
    first = registry.guide(task).spelling(make(task).reset(seed=0)[0])
    assert first.split("\n")[0] in said.out
    assert "the input ended on turn 1" in said.err


def test_rules_come_first_scores_as_they_change_and_the_answer_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("zzzzz\nslate\nlight\n"))
    assert main(["play", "wordle", "--seed", "1"]) == 0
    told = capsys.readouterr().out.replace("> ", "").split("\n")
    guide = registry.guide("wordle")
    assert told[1:4] == [
        f"Rules: {guide.rules}",
        f"Action: {guide.action}",
        "Example: paper is answered by: y y g y b",
    ]
    assert told[5:9] == [
        "Wordle:",
        "zzzzz is not in the list of 431 words.",
        "turn 1: reward -1, return -1",
        "b y b y b",
    ]
    assert told[-4:-1] == [
        "turn 3: reward 0, return -2",
        "The word was light.",
        "solved: return -2 in 3 turns, 1 illegal",
    ]
    assert "".join(told[:-3]).count("light") == 0
