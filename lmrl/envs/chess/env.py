"""Chess as White against an opponent. Positions and moves are texts with a space between all characters.

The paper's erratum: its examples spelled moves and positions differently.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import chess

from lmrl.envs.base import Opening, TextEnv, Turn
from lmrl.envs.chess.opponents import make_opponent
from lmrl.envs.task import ChatPrompt
from lmrl.errors import UserError, check_range

__all__ = ["CHAT", "Chess", "legal_move", "plain_fen", "plain_san", "spaced_fen", "spaced_san"]


def spaced_fen(fen: str) -> str:
    """Return a position as the policy reads it; a space of the FEN becomes three, and a line end follows."""
    return " ".join(fen) + "\n"


def plain_fen(text: str) -> str:
    """Return the FEN in such a text (the line end may be missing)."""
    return text.removesuffix("\n")[::2]


def spaced_san(san: str) -> str:
    r"""Return a move as the policy writes it: ``N f 3\n``."""
    return " ".join(san) + "\n"


def plain_san(text: str) -> str:
    """Return the move in a text: ends stripped, all spaces removed."""
    return text.strip().replace(" ", "")


_MAX_SAN_CHARACTERS = 12  # no move in SAN has more characters; longer texts are not parsed


class Chess(TextEnv):
    r"""A game of chess; the player is White and reads the newest position.

    A position is a FEN with a space between all characters and a line end; a move is SAN with the same spaces,
    ``N f 3\n``. Any other text costs 1 and leaves the board as it is. Mate by White is worth 1, by Black -1, any
    other end 0 (stalemate, insufficient material, fivefold repetition, 75 moves; draws that would have to be claimed
    are not); all of these terminate. More than ``max_moves`` actions truncate. Source: LMRL-Gym, section 4 and
    appendix C.4.

    ``info`` also has ``fen``, ``reply`` (Black's last move in UCI, empty before it) and ``opponent`` (name, version,
    settings). ``reset(options={"fen": ..., "replies": [...]})`` sets the position and, for replaying, Black's moves in
    UCI, for as long as they are legal.

    Args:
        opponent: ``alphabeta`` (built in), ``random``, or ``stockfish``.
        depth: plies that alphabeta or stockfish look ahead.
        nodes: positions that stockfish looks at per move.
        elo: strength of stockfish; such games do not repeat.
        skill: strength of stockfish, 0 to 20; such games do not repeat.
        engine_path: the stockfish binary; None: ``$STOCKFISH`` or the one on the path.
        max_moves: the clock runs out with the action after this number of moves.
        render_mode: see `TextEnv`.

    Raises:
        UserError: see `lmrl.envs.chess.opponents.make_opponent`, and for ``max_moves`` below 1.
    """

    reset_options: ClassVar[tuple[str, ...]] = ("fen", "replies")

    def __init__(
        self,
        opponent: str = "alphabeta",
        depth: int | None = None,
        nodes: int | None = None,
        elo: int | None = None,
        skill: int | None = None,
        engine_path: str | None = None,
        max_moves: int = 400,
        render_mode: str | None = "ansi",
    ) -> None:
        super().__init__(render_mode)
        check_range("[1, inf)", max_moves=max_moves)
        self.max_moves = max_moves
        self.return_range = (-float(max_moves + 1), 1.0)
        self.opponent = make_opponent(opponent, depth=depth, nodes=nodes, elo=elo, skill=skill, engine_path=engine_path)
        self._described = self.opponent.describe()
        self._board = chess.Board()
        self._moves = 0  # White's moves, legal or not
        self._replies: list[str] = []  # Black's next moves, where they are given
        self._reply = ""  # Black's last move, in UCI
        self._seed = ""
        self._fen = ""

    def render(self) -> str:
        """Return the board in letters."""
        return f"{self._board}\n"

    def legal_actions(self) -> list[str]:
        """Return all legal moves."""
        return [spaced_san(self._board.san(move)) for move in self._board.legal_moves]

    def moves_by_squares(self) -> dict[str, str]:
        """Return all legal moves by their squares: ``{"g1f3": "N f 3", ...}``."""
        return {move.uci(): spaced_san(self._board.san(move)).strip() for move in self._board.legal_moves}

    def _start_board(self, options: Mapping[str, Any]) -> tuple[chess.Board, str]:
        """Return the first position, and its name among the instances of the task."""
        board = _position(options["fen"]) if "fen" in options else chess.Board()
        return board, board.fen()

    def begin(self, options: dict[str, Any]) -> Opening:
        replies = _black_moves(options.get("replies", ()))
        self._board, task_id = self._start_board(options)
        self._moves = 0
        self._reply = ""
        self._seed = f"reply {int(self.np_random.integers(2**53))}"
        self._replies = replies
        start: dict[str, Any] = {"fen": self._board.fen()}
        if self._replies:
            start["replies"] = list(self._replies)
        self._fen = start["fen"]
        return Opening(spaced_fen(self._fen), task_id, start, info=self._facts_now())

    def turn(self, action: str) -> Turn:
        self._moves += 1
        move = legal_move(self._board, plain_san(action))
        if move is None:
            reward = -1.0
            over = False
        else:
            reward, over = self._play(move)
            self._fen = self._board.fen()
        info = {"illegal": move is None, "success": over and reward == 1.0, **self._facts_now()}
        out_of_time = not over and self._moves > self.max_moves
        return Turn(spaced_fen(self._fen), reward, terminated=over, truncated=out_of_time, info=info)

    def _play(self, move: chess.Move) -> tuple[float, bool]:
        """Play White's move and Black's reply; return the reward of White and whether the game is over."""
        self._board.push(move)
        if _over(self._board):
            return float(_mated(self._board)), True
        reply = self._answer()
        self._reply = reply.uci()
        self._board.push(reply)
        if _over(self._board):
            return (-1.0 if _mated(self._board) else 0.0), True
        return 0.0, False

    def _answer(self) -> chess.Move:
        if self._replies:
            try:
                return self._board.parse_uci(self._replies.pop(0))
            except ValueError:
                self._replies = []  # not legal here: from now on the opponent decides
        return self.opponent.move(self._board, f"{self._seed} {self._moves}")

    def _facts_now(self) -> dict[str, Any]:
        return {"fen": self._fen, "reply": self._reply, "opponent": {**self._described}}


def _position(fen: Any) -> chess.Board:
    try:
        board = chess.Board(fen)
    except (ValueError, AttributeError, TypeError) as error:
        raise UserError(f"fen must be a position in FEN, got {fen!r:.90} ({error})") from error
    if board.turn != chess.WHITE or not board.is_valid() or _over(board):
        raise UserError(f"fen must be a legal position with White to move and the game not over, got {fen!r:.90}")
    return board


def _black_moves(replies: Any) -> list[str]:
    """Check the syntax of Black's moves; their legality is checked when it is their turn."""
    try:
        # A null move is false; it is never legal.
        if isinstance(replies, str) or not all(map(chess.Move.from_uci, replies)):
            raise ValueError
    except (TypeError, ValueError):
        example = "such as ['e7e5', 'g8f6']"
        raise UserError(f"replies must be a list of Black's moves in UCI {example}, got {replies!r:.60}") from None
    return list(replies)


def legal_move(board: chess.Board, san: str) -> chess.Move | None:
    """Return the legal move that a text in SAN names, or None; a null move (``--``) is not legal."""
    if len(san) > _MAX_SAN_CHARACTERS:
        return None
    try:
        return board.parse_san(san) or None  # a null move is false
    except ValueError:
        return None


def _over(board: chess.Board) -> bool:
    """Return whether the rules end the game here."""
    # The tests that rarely matter come last.
    return (
        not any(board.generate_legal_moves())
        or board.is_insufficient_material()
        or board.is_seventyfive_moves()
        or board.is_fivefold_repetition()
    )


def _mated(board: chess.Board) -> bool:
    return board.is_check() and not any(board.generate_legal_moves())


CHAT = ChatPrompt(
    "a chess grandmaster",
    """\
You play White in a game of chess against an engine. Each position is given in FEN. Your action is a legal move in SAN,
such as "Nf3", "exd5", "O-O" or "Qxf7#". Giving mate earns 1, being mated costs 1, and any text that is no legal move
costs 1 and leaves the board as it is.""",
    other="Position",
    last_texts=1,
    example_turns=3,
    games=25,
    spelling=plain_fen,
    own_spelling=plain_san,
)
