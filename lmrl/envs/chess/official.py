"""Reconstruction of what the official chess and endgame files leave out: Black's moves and the last position.

A record is a list of ``{"state", "action", "reward", "done"}``; chess also comes as a stream of ``{"from_state",
"action", "reward", "done"}``, which is cut into games. ``info["start"]`` holds the first position and Black's moves,
which follow from one position and the next; the last of them is not recorded, so a final move by White that neither
ends the game nor lets Black end it is dropped.
"""

from collections.abc import Iterator
from typing import Any

import chess

from lmrl.envs.base import TextEnv
from lmrl.envs.chess.env import legal_move, plain_fen, plain_san, spaced_fen, spaced_san
from lmrl.envs.official import FileFormat, Game, game_of_transitions
from lmrl.envs.task import Task
from lmrl.errors import UserError
from lmrl.types import Episode

__all__ = ["FORMAT", "chess_episode", "chess_records"]


def chess_records(records: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield games as lists of ``{"state", "action", "reward", "done"}``; a stream of moves is cut where one is done."""
    game: list[dict[str, Any]] = []
    first = ""  # place of the game's first move in the file
    for where, record in records:
        if not (isinstance(record, dict) and "from_state" in record):
            yield where, record
            continue
        missing = [key for key in ("action", "reward", "done") if key not in record]
        if missing:
            raise UserError(f"{where}: a move must have action, reward and done, but lacks {' and '.join(missing)}")
        first = first or where
        move = {"state": record["from_state"], "action": record["action"]}
        game.append(move | {"reward": record["reward"], "done": record["done"]})
        if record["done"]:
            yield first, game
            game = []
            first = ""
    if game:
        yield first, game


def chess_episode(game: Game, task: Task, env: TextEnv) -> Episode | None:
    """Return the episode of a record, or None if no move of it can be kept; the module states the rules."""
    boards = [_board(text, turn) for turn, text in enumerate(game.observations)]
    _require_task(task.name, boards[0])
    observations: list[str] = []
    actions: list[str] = []
    illegal: list[bool] = []
    replies: list[str] = []  # Black's moves in UCI
    last: str | None = None  # the position after the newest action
    for turn, action in enumerate(game.actions):
        move = legal_move(boards[turn], plain_san(action))
        observations.append(spaced_fen(boards[turn].fen()))
        actions.append(spaced_san(plain_san(action)))
        illegal.append(move is None)
        after = boards[turn + 1] if turn + 1 < len(boards) else None
        last = _answered(boards[turn], move, after, game.rewards[turn], game.done, replies)
        if last is None and after is not None:
            raise UserError(f"state {turn + 1} cannot follow {action!r:.20} in state {turn}")
    # If the position after the last action is unknown, the action is dropped, and the position before it is the last.
    known = len(game.actions) - (last is None)
    if known == 0:
        return None
    if last is not None:
        observations.append(last)
    over = last is not None and game.done
    return Episode(
        task=task.name,
        observations=tuple(observations),
        actions=tuple(actions[:known]),
        rewards=game.rewards[:known],
        terminated=over,
        truncated=not over,
        info={
            "source": "official",
            "success": over and game.rewards[-1] == 1.0,
            "illegal": sum(illegal[:known]),
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
    """Return the position after both moves as text, or None if it is unknown; append Black's move to ``replies``.

    ``move`` is None if it was illegal, ``after`` is the next recorded position or None after the last action, and
    ``done`` says whether the game ends with the last action.
    """
    if move is None:
        return spaced_fen(board.fen()) if after is None or after.fen() == board.fen() else None
    board = board.copy(stack=False)
    board.push(move)
    # White's last move ended the game, or the record does not tell how Black answered it.
    if after is None and (not done or board.is_game_over()):
        return spaced_fen(board.fen()) if done else None
    # Only pieces that are not where they were can have moved. Writing a FEN takes most of the time, so try few moves.
    gone = chess.BB_ALL if after is None else board.occupied_co[chess.BLACK] & ~after.occupied_co[chess.BLACK]
    for reply in list(board.generate_legal_moves(gone)):
        board.push(reply)
        fen = board.fen()
        mated = board.is_checkmate()
        over = board.is_game_over()
        board.pop()
        if after is not None:
            fits = fen == after.fen()
        else:
            # The last reply is not recorded: take any that ends the game with this reward (mate, or a draw).
            fits = mated if reward < 0 else over and not mated
        if fits:
            replies.append(reply.uci())
            return spaced_fen(fen)
    return None


def _require_task(name: str, first: chess.Board) -> None:
    """Check by Black's pieces that the game belongs to the task: chess and endgames have the same layout."""
    alone = not first.occupied_co[chess.BLACK] & ~first.kings
    if alone != (name == "endgames"):
        expected = "Black's king alone" if name == "endgames" else "more black pieces than the king"
        raise UserError(f"state 0 of a game of {name} must have {expected}, got {first.fen()}; is it of another task?")


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
