"""Wordle of ours and of others: one game."""

import random

import pytest

pytest.importorskip("textarena")
pytest.importorskip("gem")

from benchmarks.peers import games
from benchmarks.peers.beside import OURS


def test_all_colour_guesses_alike() -> None:
    assert games.same_colors(20)


def test_laws_of_seeds_are_looked_at() -> None:
    class Careless(games.Ours):
        def reset(self, seed: int) -> str:
            super().reset(0)
            return random.choice(games.WORDS)

    assert games.broken_laws(games.SIDES[OURS]) == []
    assert games.broken_laws(Careless) == [
        "the same seed hides the same word",
        "Python's own generator stays as it was",
    ]
