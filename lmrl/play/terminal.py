"""A person at the terminal plays one episode, with a drawing of the game and, if wanted, advice."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from lmrl.envs.chess.env import plain_fen
from lmrl.envs.maze.layouts import Cell, Layout, find_layout
from lmrl.envs.task import Task
from lmrl.envs.wordle.env import word_of
from lmrl.partners import environment
from lmrl.play.seat import advise
from lmrl.policies.human import HumanPolicy
from lmrl.report.wording import number
from lmrl.rollout import rollout
from lmrl.types import Episode, Policy, Request, Start

__all__ = ["draw_board", "draw_maze", "draw_wordle", "play_episode"]

_TILES = {"g": "bold white on #4d8f47", "y": "bold white on #a98800", "b": "bold white on #5c5f62"}
_NO_WORD = "bold red strike"
_LIGHT, _DARK, _MOVED = "#a3b5c3", "#70899b", "#cbb94f"
_PIECES = "♟♜♞♝♛♚"
_WALL, _SEEN = "on #5f6872", "on #f2f4f6"


def draw_wordle(request: Request) -> Text:
    """The guesses so far, and the letters by what is known of them."""
    drawn, known = Text(), dict[str, str]()
    for action, answer in zip(request.actions, request.observations[1:], strict=True):
        guess, colours = word_of(action), answer.replace(" ", "").strip()
        if len(colours) != len(guess):
            drawn.append(guess.upper(), _NO_WORD)
            drawn.append("  not a word of the vocabulary\n", "red")
            continue
        for letter, colour in zip(guess, colours, strict=True):
            drawn.append(f" {letter.upper()} ", _TILES[colour])
            drawn.append(" ")
            known[letter] = max(known.get(letter, "b"), colour, key="byg".index)
        drawn.append("\n")
    for letter in "abcdefghijklmnopqrstuvwxyz":
        drawn.append(letter, _TILES[known[letter]] if letter in known else "")
    return drawn


def draw_board(request: Request) -> Text | None:
    """The newest position with the squares of Black's last move marked; None if the text holds no position."""
    ranks = [_spread(rank) for rank in plain_fen(request.observations[-1]).split(" ")[0].split("/")]
    if [len(rank) for rank in ranks] != [8] * 8:
        return None
    reply = str(request.info.get("reply", ""))
    marked = {reply[:2], reply[2:4]}
    drawn = Text()
    for row, rank in enumerate(ranks):
        drawn.append(f"{8 - row} ", "dim")
        for col, piece in enumerate(rank):
            square = f"{'abcdefgh'[col]}{8 - row}"
            ground = _MOVED if square in marked else _DARK if (row + col) % 2 else _LIGHT
            drawn.append(f" {_glyph(piece)} ", f"{'bold #ffffff' if piece.isupper() else '#000000'} on {ground}")
        drawn.append("\n")
    drawn.append("   " + "  ".join("abcdefgh"), "dim")
    return drawn


def draw_maze(layout: Layout, request: Request) -> Text | None:
    """The map where the text tells the position, else no more than it tells: the four cells around."""
    if "position" not in request.info:
        return None
    cell, goal = _cell(request.info["position"]), _cell(request.info["goal"])
    told = "current position" in request.observations[0]
    rows = range(len(layout.rows)) if told else range(cell[0] - 1, cell[0] + 2)
    cols = range(len(layout.rows[0])) if told else range(cell[1] - 1, cell[1] + 2)
    drawn = Text()
    for row in rows:
        for col in cols:
            near = told or row == cell[0] or col == cell[1]
            drawn.append(*_square(layout, (row, col), cell, goal if told else None) if near else ("  ", ""))
        drawn.append("\n")
    drawn.right_crop(1)
    return drawn


def _square(layout: Layout, at: Cell, cell: Cell, goal: Cell | None) -> tuple[str, str]:
    if at == cell:
        return "◉ ", f"bold #b4461f {_SEEN}"
    if at == goal:
        return "★ ", f"bold #a07400 {_SEEN}"
    return "  ", _WALL if layout.rows[at[0]][at[1]] == "#" else _SEEN


def _cell(pair: Sequence[int]) -> Cell:
    row, col = pair
    return row, col


def _spread(rank: str) -> str:
    """``3R4`` as eight signs."""
    return "".join("." * int(sign) if sign.isdigit() else sign for sign in rank)


def _glyph(piece: str) -> str:
    kinds: Mapping[str, str] = dict(zip("prnbqk", _PIECES, strict=True))
    return kinds.get(piece.lower(), " ")


def play_episode(
    task: Task, arguments: Mapping[str, Any], seed: int, adviser: Policy | None = None, name: str = ""
) -> None:
    """Let the person at the terminal play one episode, and print how it ended.

    Args:
        task: what is played.
        arguments: of its environment.
        seed: of the episode.
        adviser: whose move is shown each turn; None: nobody's.
        name: of the adviser.
    """
    console = Console(highlight=False)
    print(f"{task.name}: {task.description}.")
    if task.actions:
        print(f"Actions: {', '.join(action.strip() for action in task.actions)}.")

    def show(request: Request) -> None:
        _show(console, task.name, arguments, request)
        if adviser is not None:
            console.print(_advice(adviser, name, request), style="cyan", markup=False)

    make = environment(task.name, arguments)
    for _, episode in rollout(HumanPolicy(show=show), make, [Start(seed)], task=task.name, slots=1):
        _show(console, task.name, arguments, _ended(episode))
        ending = "solved" if episode.success else "not solved"
        print(f"{ending}: return {episode.total_reward:g} in {len(episode)} turns, {episode.illegal} illegal")


def _advice(adviser: Policy, name: str, request: Request) -> str:
    move, value = advise(adviser, request)
    return f"{name} would say: {move}" + ("" if value is None else f"   V {number(value, 2)}")


def _show(console: Console, task: str, arguments: Mapping[str, Any], request: Request) -> None:
    """The newest text, below a drawing if this is a terminal."""
    drawing = _drawing(task, arguments, request) if console.is_terminal else None
    if drawing is not None:
        console.print(drawing)
    console.print(request.observations[-1].rstrip("\n"), markup=False, soft_wrap=True)


def _drawing(task: str, arguments: Mapping[str, Any], request: Request) -> Text | None:
    if task == "wordle":
        return draw_wordle(request)
    if task in ("chess", "endgames"):
        return draw_board(request)
    if task in ("maze_fo", "maze_po"):
        return draw_maze(find_layout(arguments.get("layout", "double_t_maze")), request)
    return None


def _ended(episode: Episode) -> Request:
    """The end as if there were one more turn."""
    return Request(0, episode.seed, episode.observations, episode.actions, info=episode.info)
