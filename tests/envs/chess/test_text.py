import chess
import pytest

from lmrl.envs.chess.env import plain_fen, plain_san, spaced_fen, spaced_san

START = (
    "r n b q k b n r / p p p p p p p p / 8 / 8 / 8 / 8 / P P P P P P P P / R N B Q K B N R   w   K Q k q   -   0   1\n"
)


def test_the_first_position_as_published() -> None:
    assert spaced_fen(chess.STARTING_FEN) == START
    assert plain_fen(START) == plain_fen(START[:-1]) == chess.STARTING_FEN


@pytest.mark.parametrize(
    ("san", "text"), [("Nf3", "N f 3\n"), ("O-O", "O - O\n"), ("exd5", "e x d 5\n"), ("e8=Q#", "e 8 = Q #\n")]
)
def test_moves(san: str, text: str) -> None:
    assert spaced_san(san) == text
    assert plain_san(text) == plain_san(f"  {text[:-1]}") == plain_san(san) == san
