"""A small chess player: alpha-beta over material, centre and mobility of the kings."""

from random import Random

import chess

__all__ = ["best_move", "evaluation"]

MATE = 100_000
_VALUES = {chess.PAWN: 100, chess.KNIGHT: 320, chess.BISHOP: 330, chess.ROOK: 500, chess.QUEEN: 900}
_RING = chess.BB_CENTER | 0x00003C24243C0000  # the centre and the squares around it


def best_move(board: chess.Board, depth: int, chance: Random) -> chess.Move:
    """The best of all legal moves by a search of ``depth`` plies (at least 1); `chance` chooses among equals.

    The board is the same again afterwards.
    """
    moves = list(board.legal_moves)
    chance.shuffle(moves)
    best, chosen = -2 * MATE, moves[0]
    for move in moves:
        board.push(move)
        score = -_search(board, depth - 1, -2 * MATE, -best)
        board.pop()
        if score > best:
            best, chosen = score, move
    return chosen


def _search(board: chess.Board, depth: int, alpha: int, beta: int) -> int:
    """Value for the side to move."""
    over = _over(board, depth)
    if over is not None:
        return over
    if depth <= 0:
        return evaluation(board)
    # Captures first: they cut most of the tree.
    for move in sorted(board.legal_moves, key=board.is_capture, reverse=True):
        board.push(move)
        alpha = max(alpha, -_search(board, depth - 1, -beta, -alpha))
        board.pop()
        if alpha >= beta:
            break
    return alpha


def _over(board: chess.Board, depth: int) -> int | None:
    """Value of a finished game (a nearer mate is a worse one for who is mated), else None."""
    if board.is_insufficient_material():
        return 0
    check = board.is_check()
    # At the leaves only mates are looked for: a stalemate there is rare, and finding moves is what takes the time.
    if (check or depth > 0) and not any(board.generate_legal_moves()):
        return -MATE - depth if check else 0
    return None


def evaluation(board: chess.Board) -> int:
    """Hundredths of a pawn for the side to move: material, pieces around the centre, and lone kings driven from it."""
    score = 0
    for color, sign in ((chess.WHITE, 1), (chess.BLACK, -1)):
        own = board.occupied_co[color]
        score += sign * 5 * (own & _RING).bit_count()
        for piece, value in _VALUES.items():
            score += sign * value * board.pieces_mask(piece, color).bit_count()
        if not own & ~board.kings:
            score -= sign * _driven(board, color)
    return score if board.turn == chess.WHITE else -score


def _driven(board: chess.Board, color: chess.Color) -> int:
    """How far a lone king is from the centre, and how near the other one is to it."""
    king, other = board.king(color), board.king(not color)
    assert king is not None and other is not None
    row, col = divmod(king, 8)
    return 10 * (abs(2 * row - 7) + abs(2 * col - 7)) + 8 * (7 - chess.square_distance(king, other))
