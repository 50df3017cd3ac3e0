"""Reconstruction of Black's moves and the last position, which the official chess and endgame files leave out.

A record is a list of ``{"state", "action", "reward", "done"}``; chess also comes as a stream of ``{"from_state",
"action", "reward", "done"}``, which is cut into games. ``info["start"]`` holds the first position and Black's moves,
which follow from one position and the next; the last of them is not recorded, so a final move by White that neither
ends the game nor lets Black end it is dropped.
"""

from collections.abc import Iterator
from typing import Any

import chess

from lmrl.envs.base import TextEnv
from lmrl.envs.chess.env import plain_fen, plain_san, spaced_fen, spaced_san
from lmrl.envs.official import FileFormat, Game, game_of_transitions
from lmrl.envs.task import Task
from lmrl.errors import UserError
from lmrl.types import Episode

__all__ = ["FORMAT", "chess_episode", "chess_records"]


def chess_records(records: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Games as lists of ``{"state", "action", "reward", "done"}``; a flat stream of moves is cut where one is done."""
    game: list[dict[str, Any]] = []
    first = where = ""
    for where, record in records:
        if not (isinstance(record, dict) and "from_state" in record):
            yield where, record
            continue
        if "reward" not in record or "done" not in record:
            raise UserError(f"{where}: a move without reward and done belongs to no game, got keys {', '.join(record)}")
        first = first or where
        game.append({**{key: record[key] for key in ("action", "reward", "done")}, "state": record["from_state"]})
        if record["done"]:
            yield first, game
            game = []
            first = ""
    if game:
        yield first, game


def chess_episode(game: Game, row: Task, env: TextEnv) -> Episode | None:
    """The episode of a record, or None if no move of it can be kept; the module states the rules."""
    boards = [_board(text, turn) for turn, text in enumerate(game.observations)]
    _require_task(row.name, boards[0])
    replies: list[str] = []
    last: str | None = None
    for turn, action in enumerate(game.actions):
        move = _parsed(boards[turn], action)
        after = boards[turn + 1] if turn + 1 < len(boards) else None
        last = _answered(boards[turn], move, after, game.rewards[turn], game.done, replies)
        if last is None and after is not None:
            raise UserError(f"state {turn + 1} cannot follow {action!r:.20} in state {turn}")
    known = len(game.actions) - (last is None)
    if known == 0:
        return None
    over = last is not None and game.done
    illegal = sum(_parsed(board, action) is None for board, action in zip(boards, game.actions[:known], strict=False))
    return Episode(
        task=row.name,
        observations=(*(spaced_fen(board.fen()) for board in boards[:known]), last or spaced_fen(boards[known].fen())),
        actions=tuple(spaced_san(plain_san(action)) for action in game.actions[:known]),
        rewards=game.rewards[:known],
        terminated=over,
        truncated=not over,
        info={
            "source": "official",
            "success": over and game.rewards[-1] == 1.0,
            "illegal": illegal,
            "start": {"fen": boards[0].fen(), "replies": replies},
        },
    )


def _answered(
    board: chess.Board,
    move: chess.Move | None,
    after: chess.Board | None,
    reward: float,
    done: bool,
    replies: list[str],
) -> str | None:
    """The position after both moves, as text; Black's move, if there was one, goes to ``replies``. None: unknown."""
    if move is None:
        return spaced_fen(board.fen()) if after is None or after.fen() == board.fen() else None
    board = board.copy(stack=False)
    board.push(move)
    if after is None and (not done or board.is_game_over()):
        return spaced_fen(board.fen()) if done else None
    # Only pieces that are not where they were can have moved; writing a position is what takes the time.
    gone = chess.BB_ALL if after is None else board.occupied_co[chess.BLACK] & ~after.occupied_co[chess.BLACK]
    for reply in list(board.generate_legal_moves(gone)):
        board.push(reply)
        fen = board.fen()
        mated = board.is_checkmate()
        over = board.is_game_over()
        board.pop()
        # At the end the move itself is not recorded: any that ends the game as the reward says will do.
        if fen == after.fen() if after is not None else (mated if reward < 0 else over and not mated):
            replies.append(reply.uci())
            return spaced_fen(fen)
    return None


def _require_task(name: str, first: chess.Board) -> None:
    """Both tasks have the same layout; what tells them apart is whether Black begins with more than the king."""
    alone = not first.occupied_co[chess.BLACK] & ~first.kings
    if alone != (name == "endgames"):
        expected = "Black's king alone" if name == "endgames" else "more black pieces than the king"
        raise UserError(f"state 0 of a game of {name} must have {expected}, got {first.fen()}; is it of another task?")


def _parsed(board: chess.Board, action: str) -> chess.Move | None:
    try:
        return board.parse_san(plain_san(action)) or None
    except ValueError:
        return None


def _board(text: str, turn: int) -> chess.Board:
    fen = plain_fen(text) if text[1:2] == " " else text.strip()
    try:
        board = chess.Board(fen)
    except ValueError as error:
        raise UserError(f"state {turn} must be a position in FEN, got {text!r:.90} ({error})") from error
    if board.turn != chess.WHITE or not board.is_valid():
        raise UserError(f"state {turn} must be a legal position with White to move, got {text!r:.90}")
    return board


FORMAT = FileFormat(game_of_transitions, chess_episode, "[[", chess_records)
