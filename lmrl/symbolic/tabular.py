"""Q-learning with a table (Watkins 1989), by playing and from a dataset."""

import numpy as np
from numpy.typing import NDArray

from lmrl.symbolic.grid import ACTIONS, Grid, GridMaze, Transitions

__all__ = ["q_learning", "q_learning_offline"]


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
        seed: of all that is random.

    Returns:
        Q, ``(S, 4)``. It begins at 0, which is above all values of this maze: what was not tried looks good.
    """
    q = np.zeros((len(env.grid.cells), len(ACTIONS)))
    chance = np.random.default_rng(seed)
    for _ in range(episodes):
        state, _ = env.reset(seed=int(chance.integers(2**31)))
        over = False
        while not over:
            explore = chance.random() < epsilon
            action = int(chance.integers(len(ACTIONS))) if explore else int(q[state].argmax())
            following, reward, terminated, truncated, _ = env.step(action)
            if not truncated:  # that call moved nobody
                target = reward if terminated else reward + gamma * q[following].max()
                q[state, action] += alpha * (target - q[state, action])
            state, over = following, terminated or truncated
    return q


def q_learning_offline(
    data: Transitions, grid: Grid, sweeps: int = 10, alpha: float = 0.5, gamma: float = 0.99, seed: int = 0
) -> NDArray[np.float64]:
    """Learn from recorded steps alone, in an order of their own in each sweep.

    Args:
        data: the steps.
        grid: of the maze.
        sweeps: how often each step is learned from.
        alpha: step size.
        gamma: discount.
        seed: of the orders.

    Returns:
        Q, ``(S, 4)``, minus infinity where the data has no such step: nothing was seen of it, so it is never chosen,
        and no maximum runs over it. In a state without any step all actions are worth 0.
    """
    q = np.full(grid.next.shape, -np.inf)
    q[data.state, data.action] = 0.0
    q[np.isinf(q).all(-1)] = 0.0
    chance, steps = np.random.default_rng(seed), list(zip(*(column.tolist() for column in data), strict=True))
    for _ in range(sweeps):
        for place in chance.permutation(len(steps)).tolist():
            state, action, reward, following, terminated = steps[place]
            target = reward if terminated else reward + gamma * q[following].max()
            q[state, action] += alpha * (target - q[state, action])
    return q
