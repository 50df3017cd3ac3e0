"""All sides of playing say the same, greedily, in the same games."""

import pytest

from benchmarks.peers import playing
from benchmarks.peers.beside import OURS


@pytest.mark.parametrize("task", playing.TOKENS)
def test_greedy_actions_are_the_same_on_all_sides(task: str) -> None:
    said = playing.greedy_texts(task, playing.TOKENS[task], slots=3, turns=3)
    assert set(said) == {OURS, playing.GENERATE, playing.PAGED}
    assert all(texts == said[OURS] for texts in said.values())
    assert len({text for episode in said[OURS] for text in episode}) > 1, "one action again and again shows little"
