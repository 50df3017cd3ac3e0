"""Games at the terminal: what is drawn, and what an advisor says."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from lmrl.cli import main
from lmrl.envs.maze.layouts import LAYOUTS
from lmrl.envs.registry import make
from lmrl.play.terminal import draw_board, draw_maze, draw_wordle
from lmrl.types import Request


def drawn(picture: object) -> str:
    """As it looks, without colours."""
    console = Console(file=io.StringIO(), width=100)
    console.print(picture)
    return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip("\n").split("\n"))  # type: ignore[attr-defined]


def request(*texts: str, **info: object) -> Request:
    return Request(0, 0, texts[::2], texts[1::2], info=info)


def test_wordle_has_a_tile_for_each_letter_and_the_best_that_is_known_of_it() -> None:
    picture = draw_wordle(
        request("Wordle:\n", "c r a n e\n", "b y g b b\n", "zzz\n", "\n", "r o a s t\n", "g b g b b\n")
    )
    assert drawn(picture).split("\n") == [
        " C   R   A   N   E",
        "ZZZ  not a word of the vocabulary",
        " R   O   A   S   T",
        "abcdefghijklmnopqrstuvwxyz",
    ]
    letters = {
        picture.plain[span.start : span.end]: str(span.style) for span in picture.spans if span.end - span.start == 1
    }
    known = {letter: style.split("#")[1] for letter, style in letters.items() if "#" in style}
    assert known == {**dict.fromkeys("ceonst", "5c5f62"), "r": "4d8f47", "a": "4d8f47"}


def test_the_board_shows_the_position_and_marks_the_last_move() -> None:
    text, info = make("endgames").reset(options={"fen": "7k/5K2/8/8/8/8/8/6Q1 w - - 0 1"})
    picture = draw_board(request(text, reply="g8h8", **{key: info[key] for key in ("fen",)}))
    assert picture is not None
    assert drawn(picture).split("\n") == [
        "8                       ♚",
        "7                 ♚",
        *(str(rank) for rank in range(6, 1, -1)),
        "1                    ♛",
        "   a  b  c  d  e  f  g  h",
    ]
    marked = [span for span in picture.spans if "#cbb94f" in str(span.style)]
    assert [picture.plain[span.start : span.end].strip() for span in marked] == ["", "♚"]
    whites = [picture.plain[s.start : s.end].strip() for s in picture.spans if "bold #ffffff" in str(s.style)]
    assert sorted(whites) == ["♚", "♛"]
    assert draw_board(request("Hello!\n")) is None


def test_the_map_shows_no_more_than_the_text() -> None:
    layout, where = LAYOUTS["umaze"], {"position": (1, 1), "goal": (3, 3)}
    whole = draw_maze(layout, request("Your current position is at position 1, 1.\n", **where))
    assert whole is not None
    assert whole.plain.split("\n") == ["          ", "  ◉       ", "          ", "      ★   ", "          "]
    near = draw_maze(layout, request("There are walls.\n", **{**where, "position": (2, 3)}))
    assert near is not None
    assert near.plain.split("\n") == ["      ", "  ◉   ", "      "]
    walls = [span.start for span in near.spans if "5f6872" in str(span.style)]
    assert walls == [7, 11]  # to the left and to the right, a line being six signs and its end
    assert draw_maze(layout, request("x\n")) is None


def test_a_game_of_wordle_to_its_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setattr("sys.stdin", io.StringIO("about\n" * 6))
    assert main(["play", "wordle", "--seed", "1"]) == 0
    out = capsys.readouterr().out
    assert "\x1b[1;37;48;2;92;95;98m A " in out
    assert out.count(" A ") == 1 + 2 + 3 + 4 + 5 + 6
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
    assert make(task).reset(seed=0)[0].split("\n")[0] in said.out
    assert "the input ended on turn 1" in said.err
