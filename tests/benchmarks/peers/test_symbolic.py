"""The grid as d3rlpy has it holds the same steps."""

import numpy as np
import pytest

pytest.importorskip("d3rlpy")
pytest.importorskip("stable_baselines3")

from benchmarks.peers import symbolic
from lmrl.symbolic import GridMaze, Transitions


def test_recorded_steps_become_episodes_that_hold_the_same() -> None:
    grid = GridMaze().grid
    # Two steps, of which the second arrives, and two of an episode that was cut.
    last = int(np.flatnonzero(grid.terminated.any(-1))[0])
    stay, go = int((grid.next[last] == last).argmax()), int(grid.terminated[last].argmax())
    second = int(grid.next[0, 1])
    state, action = np.array([last, last, 0, second]), np.array([stay, go, 1, 0])
    assert grid.next[last, stay] == last, "there is a wall to walk against"
    reward = grid.reward[state, action].astype(np.float32)
    data = Transitions(state, action, reward, grid.next[state, action], grid.terminated[state, action])
    arrived, cut = symbolic.as_their_dataset(data, grid.features).episodes
    assert (len(arrived), arrived.terminated, len(cut), cut.terminated) == (2, True, 2, False)
    np.testing.assert_array_equal(arrived.observations, grid.features[[last, last]])
    np.testing.assert_array_equal(arrived.actions[:, 0], [stay, go])
    np.testing.assert_array_equal(cut.observations, grid.features[[0, second]])


def test_the_best_return_is_that_of_the_benchmark() -> None:
    grid = GridMaze().grid
    assert grid.greedy_return(symbolic._best(grid)) == pytest.approx(-6.84, abs=5e-3)
