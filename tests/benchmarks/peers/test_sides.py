"""Comparisons with other packages compare the same things: same games, same losses, same statistics."""

import os
import random

import numpy as np
import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import playing, vllm
from benchmarks.peers.beside import OURS
from lmrl.contrib.symbolic import GridMaze, Transitions

# playing and vllm: all sides say the same, greedily, in the same games.


@pytest.mark.nightly
@pytest.mark.parametrize("task", playing.TOKENS)
def test_greedy_actions_are_the_same_on_all_sides(task: str) -> None:
    said = playing.greedy_texts(task, playing.TOKENS[task], slots=3, turns=3)
    assert set(said) == {OURS, playing.GENERATE, playing.PAGED}
    assert all(texts == said[OURS] for texts in said.values())
    assert len({text for episode in said[OURS] for text in episode}) > 1, "one action again and again shows little"


def test_without_a_python_that_has_vllm_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "VLLM", None)
    assert "LMRL_VLLM" in command.missing("vllm")[-1]
    monkeypatch.setattr(command, "VLLM", "python")
    assert not any("LMRL_VLLM" in one for one in command.missing("vllm"))


@pytest.mark.nightly
@pytest.mark.skipif("LMRL_VLLM" not in os.environ, reason="vLLM has an environment of its own")
def test_greedy_actions_are_those_of_our_slots() -> None:
    rows = {row.name: row for row in vllm.run(repeats=1, episodes=4)}
    for task in vllm.TOKENS:
        assert (rows[f"{task}, dialogues with the same greedy actions"].value or 0) >= 7, "ties are rare"
        assert rows[f"{task}, 32 slots, Llama, {OURS} / vLLM"].value


# ilql: the terms of the loss are those of AgileRL, on the same networks and batch.


def test_each_term_of_the_loss_is_that_of_agilerl() -> None:
    pytest.importorskip("agilerl")
    from benchmarks.peers import ilql

    parts = [*ilql.random_rows(64, rows=3, length=32), *ilql.random_rows(64, rows=2, length=64)]
    for name, (ours, theirs) in ilql.losses(parts, 64).items():
        assert ours == pytest.approx(theirs, abs=1e-4), name
        assert abs(ours) > 1e-3, f"{name} must have something to say"


def test_both_steps_learn() -> None:
    pytest.importorskip("agilerl")
    from benchmarks.peers import ilql

    parts = ilql.random_rows(64, rows=3, length=32)
    made = ilql.their_module(ilql.our_module(64))
    batch = ilql.as_theirs(parts)
    step = ilql.their_step(made, batch)
    before = ilql.their_loss(made, batch)[0].item()
    for _ in range(5):
        step()
    assert ilql.their_loss(made, batch)[0].item() < before


# statistics: point estimates are those of rliable.


@pytest.mark.parametrize("ties", [False, True])
def test_point_estimates_are_those_of_rliable(ties: bool) -> None:
    pytest.importorskip("rliable")
    from benchmarks.peers import statistics

    for shape in statistics.SHAPES:
        assert max(statistics.gaps(shape, ties).values()) <= 1e-9, shape


# games: Wordle of ours and of TextArena and GEM is one game.


def test_all_colour_guesses_alike() -> None:
    pytest.importorskip("textarena")
    pytest.importorskip("gem")
    from benchmarks.peers import games

    assert games.same_colors(20)


def test_laws_of_seeds_are_looked_at() -> None:
    pytest.importorskip("textarena")
    pytest.importorskip("gem")
    from benchmarks.peers import games

    class Careless(games.Ours):
        def reset(self, seed: int) -> str:
            super().reset(0)
            return random.choice(games.WORDS)

    assert games.broken_laws(games.SIDES[OURS]) == []
    assert games.broken_laws(Careless) == [
        "the same seed hides the same word",
        "Python's own generator stays as it was",
    ]


# symbolic: d3rlpy's dataset of the grid holds the same steps.


def test_recorded_steps_become_episodes_that_hold_the_same() -> None:
    pytest.importorskip("d3rlpy")
    pytest.importorskip("stable_baselines3")
    from benchmarks.peers import symbolic

    grid = GridMaze().grid
    # Two steps, of which the second arrives, and two of an episode that was cut.
    last = int(np.flatnonzero(grid.terminated.any(-1))[0])
    stay = int((grid.next[last] == last).argmax())
    go = int(grid.terminated[last].argmax())
    second = int(grid.next[0, 1])
    state = np.array([last, last, 0, second])
    action = np.array([stay, go, 1, 0])
    assert grid.next[last, stay] == last, "there is a wall to walk against"
    reward = grid.reward[state, action].astype(np.float32)
    data = Transitions(state, action, reward, grid.next[state, action], grid.terminated[state, action])
    arrived, cut = symbolic.as_their_dataset(data, grid.features).episodes
    assert (len(arrived), arrived.terminated, len(cut), cut.terminated) == (2, True, 2, False)
    np.testing.assert_array_equal(arrived.observations, grid.features[[last, last]])
    np.testing.assert_array_equal(arrived.actions[:, 0], [stay, go])
    np.testing.assert_array_equal(cut.observations, grid.features[[0, second]])


def test_the_best_return_is_that_of_the_benchmark() -> None:
    pytest.importorskip("d3rlpy")
    pytest.importorskip("stable_baselines3")
    from benchmarks.peers import symbolic

    grid = GridMaze().grid
    assert grid.greedy_return(symbolic._best(grid)) == pytest.approx(-6.84, abs=5e-3)
