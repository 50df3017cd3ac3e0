"""Stockfish, or another UCI engine, as a process of its own that is spoken to over pipes."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Thread, main_thread
from typing import Any, TypeVar

import chess
import chess.engine

from lmrl.errors import UserError

__all__ = ["Stockfish", "find_engine"]

_TIMEOUT = 5.0
_LIVES = 3  # how often the engine is asked anew when the process dies over a question, or falls silent
_PATIENCE = 60.0  # seconds for a move, and more for many nodes; whoever sets a depth alone waits as long as it takes
_SLOWEST = 10_000  # nodes per second

_T = TypeVar("_T")
_DEFAULT_NODES = 1_000
_NETWORK = "Use NNUE"  # the option that turns the network off, in engines that have something else

# One process for all environments of this process with the same engine and strength; by process id, because what a
# fork inherits is not its own.
_running: dict[tuple[int, str, int | None, int | None], chess.engine.SimpleEngine] = {}


class Stockfish:
    """An opponent over UCI, restarted when it dies or falls silent: the game goes on.

    Where the engine can do without its neural network (Stockfish 12 to 15), it does, as in the published benchmark,
    which ships none: positions are then judged twice as fast.

    With a limit of nodes or depth a move follows from the game so far alone: the engine's memory is cleared before
    each, so that it does not matter what the shared process played before. `elo` and `skill` make the engine itself
    choose weaker moves by a random generator that cannot be seeded: such games do not repeat.

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
        self.elo, self.skill, self.depth = elo, skill, depth
        self.nodes = _DEFAULT_NODES if nodes is None and depth is None else nodes
        self.version = self._lasting(lambda engine: engine.id).get("name", "unknown")
        self.network = self._lasting(lambda engine: _NETWORK not in engine.options)

    def move(self, board: chess.Board, seed: str) -> chess.Move:
        """The engine's move.

        Raises:
            UserError: if the engine dies, or does not answer, again and again.
        """
        # The clock is for an engine that has fallen silent; python-chess looks at none unless the limit has one.
        clock = None if self.nodes is None else _PATIENCE + self.nodes / _SLOWEST
        limit = chess.engine.Limit(nodes=self.nodes, depth=self.depth, time=clock)
        found = self._lasting(lambda engine: _play(engine, board, limit)).move
        if found is None:
            raise UserError(f"{self.path} has no move for {board.fen()}")
        return found

    def _lasting(self, ask: Callable[[chess.engine.SimpleEngine], _T]) -> _T:
        """What the engine answers; one that dies over it, or was dead already, is replaced."""
        for _ in range(_LIVES):
            try:
                return ask(self._engine())
            except (chess.engine.EngineError, BrokenPipeError, asyncio.TimeoutError):
                self._forget()
        raise UserError(f"{self.path} died or fell silent {_LIVES} times in a row")

    def describe(self) -> dict[str, Any]:
        """See `lmrl.envs.chess_opponents.ChessOpponent`."""
        settings = {"nodes": self.nodes, "depth": self.depth, "elo": self.elo, "skill": self.skill}
        given = {name: value for name, value in settings.items() if value is not None}
        repeats = self.elo is None and self.skill is None
        return {"name": "stockfish", "version": self.version, "network": self.network, **given, "repeats": repeats}

    @property
    def _key(self) -> tuple[int, str, int | None, int | None]:
        return os.getpid(), self.path, self.elo, self.skill

    def _engine(self) -> chess.engine.SimpleEngine:
        if self._key not in _running:
            if not any(process == os.getpid() for process, *_ in _running):
                Thread(target=_quit_at_the_end, daemon=True).start()
            _running[self._key] = _start(self.path, self.elo, self.skill)
        return _running[self._key]

    def _forget(self) -> None:
        engine = _running.pop(self._key, None)
        if engine is not None:
            engine.close()


def find_engine(path: str | None = None) -> str:
    """Where the engine is.

    Raises:
        UserError: if it is nowhere.
    """
    wanted = path or os.environ.get("STOCKFISH")
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
    """The answer of an engine that has forgotten everything; it forgets again while the other side thinks."""
    found = engine.play(board, limit, game="the only one")
    engine.protocol.loop.call_soon_threadsafe(engine.protocol.send_line, "ucinewgame")
    return found


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
    """Settings of the process; a small memory, because it is cleared before each move."""
    wanted: dict[str, Any] = {"Threads": 1, "Hash": 1, _NETWORK: False}
    if elo is not None:
        wanted |= {"UCI_LimitStrength": True, "UCI_Elo": elo}
    if skill is not None:
        wanted |= {"Skill Level": skill}
    for name, value in wanted.items():
        option = engine.options.get(name)
        if option is None and name not in ("Threads", "Hash", _NETWORK):
            raise UserError(f"the engine has no option {name!r}, which elo and skill need")
        if option is not None and option.type == "spin" and not (option.min or 0) <= value <= (option.max or value):
            raise UserError(f"{name} of this engine goes from {option.min} to {option.max}, got {value}")
    return {name: value for name, value in wanted.items() if name in engine.options}


def _quit_at_the_end() -> None:
    """Quit the engines when the main thread ends; before that, the threads that serve them keep Python from ending."""
    main_thread().join()
    for (process, *_), engine in list(_running.items()):
        if process == os.getpid():
            engine.close()
