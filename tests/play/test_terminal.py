"""Games at the terminal: what is shown, and what an advisor says."""

import io
import re
from pathlib import Path

import pytest

from lmrl.cli import main
from lmrl.envs import registry
from lmrl.envs.registry import make
from lmrl.errors import UserError
from lmrl.play.game import Game, Order
from lmrl.policies.human import HumanPolicy
from lmrl.types import Reply, Request


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


def test_a_policy_is_watched_move_by_move_with_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["play", "maze_fo", "--policy", "optimal"]) == 0
    out = capsys.readouterr().out
    moves = [line for line in out.split("\n") if line.startswith("> ")]
    assert moves == ["> move left"] * 2 + ["> move down"] * 3 and out.endswith(
        "solved: return -4 in 5 turns, 0 illegal\n"
    )
    assert main(["symbolic", "--algorithms", "dqn", "--steps", "2"]) == 0
    capsys.readouterr()
    assert main(["play", "maze_fo", "--policy", "runs/maze_fo/symbolic_dqn", "--env", "max_steps=3"]) == 0
    moves = [line for line in capsys.readouterr().out.split("\n") if line.startswith("> ")]
    assert len(moves) == 4 and all("> move " in line and "   V " in line for line in moves)
    assert main(["play", "maze_fo", "--policy", "optimal", "--advisor", "optimal"]) == 2
    assert "an advisor is for a person who plays" in capsys.readouterr().err


def test_a_move_that_led_nowhere_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # Seed 0 starts at 5, 8, between walls above and below.
    monkeypatch.setattr("sys.stdin", io.StringIO("move up\nhop\n\nmove left\n"))
    assert main(["play", "maze_fo", "--seed", "0", "--env", "max_steps=3"]) == 0
    told = capsys.readouterr().out.replace("> ", "").split("\n")
    assert [line for line in told if line.endswith("you stay where you are.")] == [
        "There is a wall above you: you stay where you are.",
        "hop is no action: you stay where you are.",
        "An empty line is no action: you stay where you are.",
    ]
    assert "Time is up: this action did not count." in told


@pytest.mark.parametrize("task", ["maze_fo", "maze_po"])
def test_walls_are_seen_without_colours(
    task: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["play", task, "--seed", "0"]) == 2
    out = capsys.readouterr().out
    assert "██" in out and "◉" in out and "48;2" not in out


@pytest.mark.parametrize("task", ["maze_fo", "maze_po", "chess", "endgames"])
def test_a_terminal_is_not_told_of_the_page(
    task: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["play", task]) == 2
    out = capsys.readouterr().out
    assert registry.guide(task).page and not [word for word in ("click", "page", "button", "arrow") if word in out]


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
    assert told[1:5] == [
        f"Rules: {guide.rules}",
        f"Action: {guide.action}",
        "Example: paper is answered by: y y g y b",
        "Ctrl-C ends the game.",
    ]
    assert told[6:10] == [
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


@pytest.mark.parametrize("task", ["chess", "endgames"])
def test_advice_for_chess_is_spelt_like_the_moves(
    task: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["play", task, "--advisor", "behaviour"]) == 2
    (advice,) = re.findall(r"behaviour would say: (.*)", capsys.readouterr().out)
    assert re.fullmatch(r"[KQRBN]?[a-h]?[1-8]?x?[a-h][1-8](=[QRBN])?[+#]?", advice)
    assert Game(Order(task, advisor="behaviour")).advice()["move"] == advice


class Typing(io.StringIO):
    """A terminal: lines, and then Ctrl-D, or Ctrl-C where a line says so."""

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:
        line = super().readline(-1 if size is None else size)
        if line == "Ctrl-C\n":
            raise KeyboardInterrupt
        return line


@pytest.mark.parametrize(("ended", "code"), [("", 2), ("Ctrl-C\n", 130)])
def test_whoever_leaves_is_told_what_was_hidden(
    ended: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Typing(f"slate\n{ended}"))
    assert main(["play", "wordle", "--seed", "1"]) == code
    out = capsys.readouterr().out
    assert out.endswith("\nThe word was light.\n") and out.count("light") == 1
    # Where nothing is hidden, nothing is told.
    monkeypatch.setattr("sys.stdin", Typing(ended))
    assert main(["play", "maze_fo"]) == code
    assert capsys.readouterr().out.endswith("> ")


def test_an_empty_line_at_a_terminal_is_not_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "An empty line is not played: type an action, or Ctrl-C to end the game."
    monkeypatch.setattr("sys.stdin", Typing("\n  \nlight\n"))
    assert main(["play", "wordle", "--seed", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count(told) == 2 and out.endswith("solved: return 0 in 1 turn, 0 illegal\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("\nlight\n"))
    assert main(["play", "wordle", "--seed", "1"]) == 0
    out = capsys.readouterr().out
    assert told not in out and out.endswith("solved: return -1 in 2 turns, 1 illegal\n")


def test_a_wasted_action_is_told_before_a_person_plays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "helpp is not in the list of 431 words and would cost a try. Send it again to play it all the same.\n"
    monkeypatch.setattr("sys.stdin", Typing("helpp\nlight\n"))
    assert main(["play", "wordle", "--seed", "1"]) == 0
    out = capsys.readouterr().out
    assert told in out and out.endswith("solved: return 0 in 1 turn, 0 illegal\n")
    monkeypatch.setattr("sys.stdin", Typing("helpp\nhelpp\nlight\n"))
    assert main(["play", "wordle", "--seed", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count(told) == 1 and out.endswith("solved: return -1 in 2 turns, 1 illegal\n")


@pytest.mark.parametrize(("question", "is_slip"), [("asdf", True), ("Is it alive?", False), ("Is it a cat?", False)])
def test_what_the_oracle_does_not_understand_is_a_slip(question: str, is_slip: bool) -> None:
    slip = registry.guide("twenty_questions").slip
    assert bool(slip(question, {})) == is_slip
    assert not slip(question, {"partner": "chat:other"})


def test_an_illegal_text_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n???\n"))
    assert main(["play", "twenty_questions"]) == 2
    out = capsys.readouterr().out
    assert "No.\nAn empty line is an illegal action.\n" in out and "No.\n??? is an illegal action.\n" in out


def test_the_list_of_words_that_the_rules_speak_of(capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = re.findall(r"\(lmrl (play .*?) prints it\)", registry.guide("wordle").rules)
    assert main(command.split()) == 0
    words = capsys.readouterr().out.splitlines()
    assert (len(words), words[0]) == (431, "about")
    assert main(["play", "chess", "--actions"]) == 0
    assert "Nf3" in capsys.readouterr().out.splitlines()


def test_it_shows_the_newest_text_and_ends_the_action_with_one_newline() -> None:
    shown: list[str] = []
    policy = HumanPolicy(ask=lambda prompt: "move up", show=lambda request: shown.append(request.observations[-1]))
    request = Request(slot=0, seed=0, observations=["first\n", "second\n"], actions=["x\n"])
    assert policy.act([request, request]) == [Reply("move up\n"), Reply("move up\n")]
    assert shown == ["second\n", "second\n"]


def test_the_end_of_the_input_is_said_with_its_turn() -> None:
    def nobody(prompt: str) -> str:
        raise EOFError

    with pytest.raises(UserError, match="ended on turn 1"):
        HumanPolicy(ask=nobody, show=str).act([Request(slot=0, seed=0, observations=["a\n", "b\n"], actions=["x\n"])])


def test_bytes_that_are_no_text_can_be_written() -> None:
    policy = HumanPolicy(ask=lambda prompt: "move \udcff", show=str)
    assert policy.act([Request(slot=0, seed=0, observations=["a\n"])]) == [Reply("move \ufffd\n")]


def test_a_terminal_obeys_no_text_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences, half a character, and marks that turn text around are shown as a mark."""
    hostile = "\x1b]0;pwn\x07a\x9b2Jb\u202ec\ud83d\nsecond line"
    asked = HumanPolicy(ask=lambda question: "move down")
    asked.act([Request(slot=0, seed=0, observations=(hostile,))])
    assert capsys.readouterr().out == "\ufffd]0;pwn\ufffda\ufffd2Jb\ufffdc\ufffd\nsecond line\n"
