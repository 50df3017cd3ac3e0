"""The maze as a table, and Q-learning with a table (Watkins 1989), by playing and from a dataset.

States are cells, actions are the four moves, everything else is as in `lmrl.envs.maze.env.Maze`.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lmrl.envs.maze.env import REWARDS
from lmrl.envs.maze.layouts import MOVES, Cell, Layout, find_layout, walked
from lmrl.errors import UserError
from lmrl.types import Episode

__all__ = ["ACTIONS", "Grid", "GridMaze", "Transitions", "from_episodes", "q_learning", "q_learning_offline"]

ACTIONS = tuple(MOVES)
"""The texts of the actions by number."""
_MAX_STEPS = 100


class Grid:
    """The transition table of a maze with S free cells and the rewards of the benchmark.

    Args:
        layout: the maze.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.cells = layout.free
        self.state = {cell: number for number, cell in enumerate(self.cells)}
        rewards = REWARDS["standard"]
        goal = self.state[layout.goal]
        self.starts = np.delete(np.arange(len(self.cells)), goal)
        """States in which an episode may begin: all but the goal."""
        self.next = np.zeros((len(self.cells), len(ACTIONS)), dtype=np.int64)
        """(S, 4) where each action leads; into a wall, back to the same cell."""
        for state, cell in enumerate(self.cells):
            for action, text in enumerate(ACTIONS):
                self.next[state, action] = self.state[layout.after(cell, text)]
        self.terminated = self.next == goal
        """(S, 4) bool: whether that is the goal."""
        self.reward = np.where(self.terminated, rewards.goal, rewards.move)
        """(S, 4)"""

    @cached_property
    def features(self) -> NDArray[np.float32]:
        """(S, rows + columns) one-hot row, then one-hot column: the input of a network."""
        rows = len(self.layout.rows)
        cols = len(self.layout.rows[0])
        features = np.zeros((len(self.cells), rows + cols), dtype=np.float32)
        for state, (row, col) in enumerate(self.cells):
            features[state, row] = 1.0
            features[state, rows + col] = 1.0
        return features

    def greedy_return(self, q: NDArray[np.floating]) -> float:
        """Mean undiscounted return of the greedy policy of ``q``, ``(S, 4)``, over all starts, as the benchmark counts.

        A player who has not arrived after 100 moves gets one more -1, for the call that ends the episode.
        """
        # All starts are played at once: one entry per start.
        moves = q.argmax(-1)
        here = self.starts.copy()
        total = np.zeros(len(here))
        running = np.ones(len(here), dtype=bool)
        for _ in range(_MAX_STEPS):
            move = moves[here]
            total += np.where(running, self.reward[here, move], 0.0)
            running = running & ~self.terminated[here, move]
            here = self.next[here, move]
        return float((total - running).mean())


class GridMaze(gymnasium.Env[int, int]):
    """The maze for learners of numbers: ``reset`` and ``step`` give the number of a cell and take that of a move.

    Steps, rewards, and the 101st call, which does not move the player and truncates, are those of the text environment.
    ``info["position"]`` is the cell.

    Args:
        layout: a name from `lmrl.envs.maze.layouts.LAYOUTS`, the path of a text file, or a `Layout`.
    """

    def __init__(self, layout: str | Layout = "double_t_maze") -> None:
        self.grid = Grid(layout if isinstance(layout, Layout) else find_layout(layout))
        self.observation_space: spaces.Space[Any] = spaces.Discrete(len(self.grid.cells))
        self.action_space: spaces.Space[Any] = spaces.Discrete(len(ACTIONS))
        self._state = 0
        self._steps = -1

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Begin in a cell drawn by the seed, or in ``options["init_position"]``.

        Raises:
            UserError: that cell is not free, or it is the goal.
        """
        super().reset(seed=seed)
        given = (options or {}).get("init_position")
        drawn = self.grid.starts[int(self.np_random.integers(len(self.grid.starts)))]
        state = int(drawn) if given is None else self.grid.state.get(tuple(given), -1)
        if state not in self.grid.starts:
            raise UserError(f"init_position must be a free cell that is not the goal, got {given}")
        self._state = state
        self._steps = 0
        return state, {"position": self._cell}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Move.

        Raises:
            UserError: before the first ``reset``, after the end of an episode, or for another number than 0 to 3.
        """
        if self._steps < 0:
            raise UserError("step() needs a running episode: call reset() first")
        if not 0 <= action < len(ACTIONS):
            raise UserError(f"action must be from 0 to {len(ACTIONS) - 1}, got {action}")
        if self._steps == _MAX_STEPS:
            self._steps = -1
            return self._state, REWARDS["standard"].move, False, True, {"position": self._cell}
        reward = self.grid.reward[self._state, action]
        over = self.grid.terminated[self._state, action]
        self._state = int(self.grid.next[self._state, action])
        self._steps = -1 if over else self._steps + 1
        return self._state, float(reward), bool(over), False, {"position": self._cell}

    @property
    def _cell(self) -> Cell:
        return self.grid.cells[self._state]


class Transitions(NamedTuple):
    """N steps; N is the length of every field."""

    state: NDArray[np.int64]
    action: NDArray[np.int64]
    reward: NDArray[np.float32]
    next: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    """Nothing beyond has value; a step after which time ran out is not terminated."""


def from_episodes(episodes: Iterable[Episode], grid: Grid) -> Transitions:
    """The steps of a text dataset: the same that the language models learn from, without the words.

    Illegal actions have no number and are left out, and so is the call by which time runs out.

    Raises:
        UserError: there is no step, or an episode does not say where it began.
    """
    steps: list[tuple[int, int]] = []
    for number, episode in enumerate(episodes):
        cells = walked(episode, grid.layout)
        if cells is None:
            raise UserError(f"episode {number} does not say in which cell it began (a start in info, or a position)")
        lost = episode.truncated and episode.observations[-1] == "Failure\n"
        actions = episode.actions[:-1] if lost else episode.actions
        # There is one cell more than actions: the last one, in which nothing was done any more.
        for cell, text in zip(cells, actions, strict=False):
            if text in ACTIONS:
                steps.append((grid.state[cell], ACTIONS.index(text)))
    if not steps:
        raise UserError("the dataset must hold at least one legal action")
    states_and_actions = np.array(steps, dtype=np.int64)  # (N, 2)
    state = states_and_actions[:, 0]
    action = states_and_actions[:, 1]
    # The maze is deterministic, so the table tells the rest of each step.
    reward = grid.reward[state, action].astype(np.float32)
    return Transitions(state, action, reward, grid.next[state, action], grid.terminated[state, action])


def q_learning(
    env: GridMaze, episodes: int = 600, alpha: float = 0.5, gamma: float = 0.99, epsilon: float = 0.3, seed: int = 0
) -> NDArray[np.float64]:
    """Play epsilon-greedily and learn from each step: ``Q(s, a) += alpha * (r + gamma * max Q(s', .) - Q(s, a))``.

    Args:
        env: is played.
        episodes: how many.
        alpha: step size.
        gamma: discount.
        epsilon: probability of a move at random.
        seed: seed of all that is random.

    Returns:
        Q, ``(S, 4)``. It begins at 0, which is above all values of this maze: what was not tried looks good.
    """
    q = np.zeros((len(env.grid.cells), len(ACTIONS)))
    chance = np.random.default_rng(seed)
    for _ in range(episodes):
        state, _ = env.reset(seed=int(chance.integers(2**31)))
        over = False
        while not over:
            # Epsilon-greedy.
            explore = chance.random() < epsilon
            action = int(chance.integers(len(ACTIONS))) if explore else int(q[state].argmax())
            following, reward, terminated, truncated, _ = env.step(action)
            if not truncated:  # the call at which time runs out moves nothing
                target = reward if terminated else reward + gamma * q[following].max()
                q[state, action] += alpha * (target - q[state, action])
            state = following
            over = terminated or truncated
    return q


def q_learning_offline(
    data: Transitions, grid: Grid, sweeps: int = 10, alpha: float = 0.5, gamma: float = 0.99, seed: int = 0
) -> NDArray[np.float64]:
    """Learn from recorded steps alone, in an order of their own in each sweep.

    Args:
        data: the steps.
        grid: grid of the maze.
        sweeps: how often each step is learned from.
        alpha: step size.
        gamma: discount.
        seed: seed of the orders.

    Returns:
        Q, ``(S, 4)``, minus infinity where the data has no such step: nothing was seen of it, so it is never chosen,
        and no maximum runs over it. In a state without any step all actions are worth 0.
    """
    # Actions that the data does not have stay at minus infinity, so that no maximum overestimates them.
    q = np.full(grid.next.shape, -np.inf)
    q[data.state, data.action] = 0.0
    q[np.isinf(q).all(-1)] = 0.0
    chance = np.random.default_rng(seed)
    for _ in range(sweeps):
        # Plain Python numbers are several times faster here than scalars of numpy.
        order = chance.permutation(len(data.state))
        columns = [column[order].tolist() for column in data]
        for state, action, reward, following, terminated in zip(*columns, strict=True):
            target = reward if terminated else reward + gamma * q[following].max()
            q[state, action] += alpha * (target - q[state, action])
    return q
