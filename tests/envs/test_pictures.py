"""Drawings of Wordle, chess and the maze for the terminal."""

import io

from rich.console import Console

from lmrl.envs.chess.picture import draw_board
from lmrl.envs.maze.layouts import LAYOUTS
from lmrl.envs.maze.picture import draw_maze
from lmrl.envs.registry import make
from lmrl.envs.wordle.picture import draw_wordle
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
        "ZZZ  not in the list",
        " R   O   A   S   T",
        "abcdefghijklmnopqrstuvwxyz",
    ]
    letters = {
        picture.plain[span.start : span.end]: str(span.style) for span in picture.spans if span.end - span.start == 1
    }
    known = {letter: style.split("#")[1] for letter, style in letters.items() if "#" in style}
    assert known == {**dict.fromkeys("ceonst", "5c5f62"), "r": "40803b", "a": "40803b"}


def test_an_illegal_guess_is_cut_and_moves_no_cursor() -> None:
    picture = draw_wordle(request("Wordle:\n", "\x1b[2Jzz\x07" + "z" * 100_000 + "\n", "\n"))
    assert picture.plain.startswith("\ufffd[2JZZ\ufffd" + "Z" * 33 + "  not in the list\n")


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
    layout = LAYOUTS["umaze"]
    where = {"position": (1, 1), "goal": (3, 3)}
    whole = draw_maze(layout, request("Your current position is at position 1, 1.\n", **where))
    assert whole is not None
    assert whole.plain.split("\n") == ["██████████", "██◉ · · ██", "██· ██· ██", "██· ██★ ██", "██████████"]
    near = draw_maze(layout, request("There are walls.\n", **{**where, "position": (2, 3)}))
    assert near is not None
    assert near.plain.split("\n") == ["  ·   ", "██◉ ██", "  ·   "]
    walls = [span.start for span in near.spans if "5f6872" in str(span.style)]
    assert walls == [7, 11]  # to the left and to the right, a line being six signs and its end
    hidden = [
        near.plain[span.start]
        for span in near.spans
        if (colours := str(span.style).split()) and colours[0] == colours[-1]
    ]
    assert sorted(set(hidden)) == ["·", "█"], "in colours they are what they stand on"
    assert draw_maze(layout, request("x\n")) is None
