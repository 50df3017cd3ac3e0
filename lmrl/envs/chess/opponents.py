"""Opponents that play Black: random moves, a small alpha-beta player, or Stockfish as a process of its own."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from threading import Thread, main_thread
from typing import Any, Protocol, TypeVar

import chess
import chess.engine

from lmrl.errors import UserError, unknown

__all__ = ["OPPONENTS", "ChessOpponent", "Stockfish", "best_move", "evaluation", "find_engine", "make_opponent"]

MATE = 100_000  # larger than every sum of pieces
_CENTRAL = 5  # hundredths of a pawn for a piece in the ring
_RING = chess.BB_CENTER | 0x00003C24243C0000  # the centre and the squares around it


def best_move(board: chess.Board, depth: int, chance: Random) -> chess.Move:
    """Return the best legal move by a search of ``depth`` plies (at least 1); `chance` chooses among equals.

    The board is the same again afterwards.
    """
    # The first of equal moves wins, so shuffling chooses among them.
    moves = list(board.legal_moves)
    chance.shuffle(moves)
    best = -2 * MATE
    chosen = moves[0]
    for move in moves:
        board.push(move)
        score = -_search(board, depth - 1, -2 * MATE, -best)
        board.pop()
        if score > best:
            best = score
            chosen = move
    return chosen


def _search(board: chess.Board, depth: int, alpha: int, beta: int) -> int:
    """Return the value for the side to move (negamax with alpha-beta pruning)."""
    over = _over(board, depth)
    if over is not None:
        return over
    if depth <= 0:
        return evaluation(board)
    for move in _captures_first(board):
        board.push(move)
        alpha = max(alpha, -_search(board, depth - 1, -beta, -alpha))
        board.pop()
        if alpha >= beta:
            break
    return alpha


def _captures_first(board: chess.Board) -> Iterator[chess.Move]:
    """Generate the legal moves. Captures cut most of the tree, so that the others are often not even generated."""
    yield from board.generate_legal_captures()
    for move in board.generate_legal_moves(to_mask=~board.occupied_co[not board.turn]):
        if not board.is_en_passant(move):
            yield move


def _over(board: chess.Board, depth: int) -> int | None:
    """Return the value of a finished game for the side to move, else None; a nearer mate is worse."""
    enough = board.pawns | board.rooks | board.queens  # one of them is enough to mate
    if not enough and board.is_insufficient_material():
        return 0
    check = board.is_check()
    # At the leaves only mates are looked for: a stalemate there is rare, and generating moves takes most of the time.
    if (check or depth > 0) and not any(board.generate_legal_moves()):
        return -MATE - depth if check else 0
    return None


def evaluation(board: chess.Board) -> int:
    """Return the value in hundredths of a pawn for the side to move.

    It counts material, pieces around the centre, and how far a lone king is driven to the edge.
    """
    score = 0
    for color, sign in ((chess.WHITE, 1), (chess.BLACK, -1)):
        own = board.occupied_co[color]
        worth = _CENTRAL * (own & _RING).bit_count()
        worth += 100 * (own & board.pawns).bit_count()
        worth += 320 * (own & board.knights).bit_count()
        worth += 330 * (own & board.bishops).bit_count()
        worth += 500 * (own & board.rooks).bit_count()
        worth += 900 * (own & board.queens).bit_count()
        score += sign * worth
        if not own & ~board.kings:
            score -= sign * _driven(board, color)
    return score if board.turn == chess.WHITE else -score


def _driven(board: chess.Board, color: chess.Color) -> int:
    """Return a measure of how far a lone king is from the centre, and how near the other king is to it."""
    king = board.king(color)
    other = board.king(not color)
    assert king is not None and other is not None
    row, col = divmod(king, 8)
    # Twice the distances to the middle of the board, which is between two squares.
    return 10 * (abs(2 * row - 7) + abs(2 * col - 7)) + 8 * (7 - chess.square_distance(king, other))


_TIMEOUT = 5.0  # seconds for the engine to start
_LIVES = 3  # attempts for one question, if the process dies or does not answer
_PATIENCE = 60.0  # seconds for a move, and more for many nodes; a limit of depth alone has no time limit
_MIN_NODES_PER_SECOND = 10_000

_T = TypeVar("_T")
_DEFAULT_NODES = 1_000
_NETWORK = "Use NNUE"  # the option that turns the network off, in engines that have something else

# One process for all environments of this process with the same engine and strength; by process id, because what a
# fork inherits is not its own.
_running: dict[tuple[int, str, int | None, int | None], chess.engine.SimpleEngine] = {}


class Stockfish:
    """An engine over UCI as an opponent; the process is restarted if it dies or does not answer.

    The neural network is turned off where the engine allows it (Stockfish 12 to 15), as in the published benchmark,
    which ships none. Evaluating positions is then twice as fast.

    With a limit of nodes or depth, a move follows from the game so far alone: the engine's memory is cleared before
    each move, because games share a process. `elo` and `skill` make the engine choose weaker moves by a random
    generator that cannot be seeded: such games do not repeat.

    Args:
        engine_path: the binary; None: ``$STOCKFISH``, or ``stockfish`` on the path.
        elo: strength, within the engine's own range.
        skill: strength, 0 to 20.
        nodes: positions per move; 1,000 if neither this nor `depth` is given.
        depth: plies per move.

    Raises:
        UserError: for a missing binary (it says how to get one), a file that is no UCI engine, or a strength that
            the engine does not have.
    """

    def __init__(
        self,
        engine_path: str | None = None,
        elo: int | None = None,
        skill: int | None = None,
        nodes: int | None = None,
        depth: int | None = None,
    ) -> None:
        self.path = find_engine(engine_path)
        self.elo = elo
        self.skill = skill
        self.depth = depth
        self.nodes = _DEFAULT_NODES if nodes is None and depth is None else nodes
        self.version = self._lasting(lambda engine: engine.id).get("name", "unknown")
        self.network = self._lasting(lambda engine: _NETWORK not in engine.options)

    def move(self, board: chess.Board, seed: str) -> chess.Move:
        """Return the engine's move.

        Raises:
            UserError: if the engine dies, or does not answer, several times in a row.
        """
        # The clock is for an engine that hangs; python-chess has no timeout of its own unless the limit has a time.
        clock = None if self.nodes is None else _PATIENCE + self.nodes / _MIN_NODES_PER_SECOND
        limit = chess.engine.Limit(nodes=self.nodes, depth=self.depth, time=clock)
        move = self._lasting(lambda engine: _play(engine, board, limit)).move
        if move is None:
            raise UserError(f"{self.path} has no move for {board.fen()}")
        return move

    def _lasting(self, ask: Callable[[chess.engine.SimpleEngine], _T]) -> _T:
        """Return the engine's answer; replace an engine that has died and ask again."""
        for _ in range(_LIVES):
            try:
                return ask(self._engine())
            except (chess.engine.EngineError, BrokenPipeError, asyncio.TimeoutError):
                self._forget()
        raise UserError(f"{self.path} died or fell silent {_LIVES} times in a row")

    def describe(self) -> dict[str, Any]:
        """See `lmrl.envs.chess.opponents.ChessOpponent`."""
        description: dict[str, Any] = {"name": "stockfish", "version": self.version, "network": self.network}
        for setting in ("nodes", "depth", "elo", "skill"):
            value = getattr(self, setting)
            if value is not None:
                description[setting] = value
        description["repeats"] = self.elo is None and self.skill is None
        return description

    @property
    def _key(self) -> tuple[int, str, int | None, int | None]:
        return os.getpid(), self.path, self.elo, self.skill

    def _engine(self) -> chess.engine.SimpleEngine:
        if self._key not in _running:
            # The first engine of this process; a key that a fork inherited has another process id.
            if not any(process == os.getpid() for process, *_ in _running):
                Thread(target=_quit_at_the_end, daemon=True).start()
            _running[self._key] = _start(self.path, self.elo, self.skill)
        return _running[self._key]

    def _forget(self) -> None:
        engine = _running.pop(self._key, None)
        if engine is not None:
            engine.close()


def find_engine(path: str | None = None) -> str:
    """Return the path of the engine.

    Raises:
        UserError: if there is none.
    """
    wanted = path or os.environ.get("STOCKFISH")
    # Debian installs games in a folder that is not on every path.
    found = wanted or shutil.which("stockfish") or shutil.which("stockfish", path="/usr/games:/usr/local/bin")
    if found is None or (wanted and not Path(wanted).is_file()):
        where = f"none at {wanted!r}" if wanted else "none on the path"
        raise UserError(
            f"opponent 'stockfish' needs the engine, there is {where}: install it (apt-get install stockfish, "
            "brew install stockfish, or stockfishchess.org), or set engine_path or $STOCKFISH; "
            "'alphabeta' and 'random' need nothing"
        )
    return found


def _play(engine: chess.engine.SimpleEngine, board: chess.Board, limit: chess.engine.Limit) -> chess.engine.PlayResult:
    """Return the answer of the engine with an empty memory."""
    # python-chess would clear the memory before each new game. Here it is always the same game, and the memory is
    # cleared after the answer instead, while the other side thinks.
    answer = engine.play(board, limit, game="the only one")
    engine.protocol.loop.call_soon_threadsafe(engine.protocol.send_line, "ucinewgame")
    return answer


def _start(path: str, elo: int | None, skill: int | None) -> chess.engine.SimpleEngine:
    try:
        engine = chess.engine.SimpleEngine.popen_uci(path, timeout=_TIMEOUT)
    except (OSError, chess.engine.EngineError, asyncio.TimeoutError) as error:
        reason = str(error) or f"no answer to 'uci' within {_TIMEOUT:g} s"
        raise UserError(f"engine_path must be a UCI engine such as Stockfish, got {path!r} ({reason})") from error
    try:
        engine.configure(_options(engine, elo, skill))
    except UserError:
        engine.quit()
        raise
    return engine


def _options(engine: chess.engine.SimpleEngine, elo: int | None, skill: int | None) -> dict[str, Any]:
    """Return the settings of the process, checked against what the engine has."""
    # A small memory (hash table), because it is cleared before each move.
    wanted: dict[str, Any] = {"Threads": 1, "Hash": 1, _NETWORK: False}
    if elo is not None:
        wanted |= {"UCI_LimitStrength": True, "UCI_Elo": elo}
    if skill is not None:
        wanted |= {"Skill Level": skill}
    settings: dict[str, Any] = {}
    for name, value in wanted.items():
        option = engine.options.get(name)
        if option is None:
            # The engine can do without the first three, but not without a strength that the user has set.
            if name not in ("Threads", "Hash", _NETWORK):
                raise UserError(f"the engine has no option {name!r}, which elo and skill need")
            continue
        if option.type == "spin" and not (option.min or 0) <= value <= (option.max or value):
            raise UserError(f"{name} of this engine goes from {option.min} to {option.max}, got {value}")
        settings[name] = value
    return settings


def _quit_at_the_end() -> None:
    """Quit the engines when the main thread ends."""
    # An exit handler would come too late: Python first waits for the threads that serve the engines.
    main_thread().join()
    for (process, *_), engine in list(_running.items()):
        if process == os.getpid():
            engine.close()


OPPONENTS = ("alphabeta", "random", "stockfish")
_SETTINGS = {"alphabeta": ("depth",), "random": (), "stockfish": ("elo", "skill", "nodes", "depth", "engine_path")}


class ChessOpponent(Protocol):
    """A player of Black. Its move follows from the position and the seed alone, as far as the engine allows."""

    def move(self, board: chess.Board, seed: str) -> chess.Move: ...

    def describe(self) -> dict[str, Any]:
        """Return name, version and settings in JSON's types: part of every episode and score."""
        ...


class RandomOpponent:
    """An opponent that plays uniformly random legal moves."""

    def move(self, board: chess.Board, seed: str) -> chess.Move:
        """Return any legal move."""
        return Random(seed).choice(list(board.legal_moves))

    def describe(self) -> dict[str, Any]:
        """See `ChessOpponent`."""
        return {"name": "random"}


class AlphaBetaOpponent:
    """The built-in opponent, for machines without an engine."""

    version = 1

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def move(self, board: chess.Board, seed: str) -> chess.Move:
        """Return the best move that a search of this depth finds; the seed chooses among equals."""
        return best_move(board, self.depth, Random(seed))

    def describe(self) -> dict[str, Any]:
        """See `ChessOpponent`."""
        return {"name": "alphabeta", "version": self.version, "depth": self.depth}


def make_opponent(name: str, **settings: Any) -> ChessOpponent:
    """Make an opponent by its name.

    Args:
        name: one of `OPPONENTS`.
        settings: ``depth`` (plies; default of alphabeta: 1), and for stockfish those of `Stockfish`; None: not set.

    Raises:
        UserError: for an unknown name, a setting that this opponent does not have, or a number out of range.
    """
    if name not in OPPONENTS:
        raise unknown("chess opponent", name, OPPONENTS)
    given = {key: value for key, value in settings.items() if value is not None}
    for key, value in given.items():
        if key not in _SETTINGS[name]:
            known = ", ".join(_SETTINGS[name]) or "none"
            raise UserError(f"opponent {name!r} has no setting {key!r}; its settings: {known}")
        least = 0 if key == "skill" else 1
        if key != "engine_path" and (not isinstance(value, int) or value < least):
            raise UserError(f"{key} of the opponent must be a whole number from {least}, got {value!r}")
    if name == "random":
        return RandomOpponent()
    return AlphaBetaOpponent(given.get("depth", 1)) if name == "alphabeta" else Stockfish(**given)
