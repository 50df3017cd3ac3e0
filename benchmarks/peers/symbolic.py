"""The maze as a grid: DQN and CQL of ours beside d3rlpy's and stable-baselines3's.

All learn the same maze from the same features (the row and the column as one-hot vectors) with two hidden layers of 64,
Adam, batches of 128 and as many gradient steps. Offline, CQL learns from the steps of one recorded dataset; online, DQN
plays 32 steps at epsilon 0.3 before each gradient step. What comes out is the mean return of the greedy policy over all
starts, worked out exactly. What is timed is learning as a whole, playing and logging included.

Definitions differ: the targets of d3rlpy are those of double Q-learning, its TD loss and that of stable-baselines3 are
Huber's, and d3rlpy copies its target network every 20 steps where the two others move it by a twentieth in each.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import d3rlpy
import gymnasium
import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import DQN

from benchmarks.peers.beside import OURS, REPEATS, alternating, beside
from benchmarks.row import Row
from lmrl.contrib.symbolic import Grid, GridMaze, SymbolicCQL, SymbolicDQN, Transitions, from_episodes
from lmrl.data import generate
from lmrl.data.storage import read_dataset

__all__ = ["as_their_dataset", "run"]

PACKAGES = ("d3rlpy", "stable-baselines3", "gymnasium")
STEPS = 1_500
BATCH = 128
HIDDEN = 64
LR = 2e-3
GAMMA = 0.99
CQL = 0.1
PLAYED = 32
EPSILON = 0.3
ROOM = 20_000
D3RLPY = "d3rlpy"
SB3 = "stable-baselines3"
Table = NDArray[np.floating]


class Features(gymnasium.Env[NDArray[np.float32], int]):
    """The grid as arrays; the call by which time runs out is a step."""

    def __init__(self) -> None:
        self.inner = GridMaze()
        self.features = self.inner.grid.features
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, self.features.shape[1:], np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        state, info = self.inner.reset(seed=seed)
        return self.features[state], info

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        state, *rest = self.inner.step(int(action))
        return (self.features[state], *rest)  # type: ignore[return-value]


def ours(module: Any, seed: int, steps: int) -> Table:
    """Learn, and give Q of all states."""
    L.seed_everything(seed, verbose=False)
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        log_every_n_steps=steps,
    )
    trainer.fit(module)
    table: Table = module.table()
    return table


def as_their_dataset(data: Transitions, features: NDArray[np.float32]) -> d3rlpy.dataset.MDPDataset:
    """Recorded steps as episodes: one ends where it was terminated, or where the next step is somewhere else."""
    cut = np.append(data.next[:-1] != data.state[1:], True) & ~data.terminated
    columns = features[data.state], data.action[:, None], data.reward[:, None]
    ends = {"terminals": data.terminated.astype(np.float32), "timeouts": cut.astype(np.float32)}
    return d3rlpy.dataset.MDPDataset(*columns, **ends, action_space=d3rlpy.ActionSpace.DISCRETE, action_size=4)


def _config(kind: Any, **more: Any) -> Any:
    encoder = d3rlpy.models.VectorEncoderFactory([HIDDEN, HIDDEN])
    settings = {"batch_size": BATCH, "learning_rate": LR, "gamma": GAMMA, "target_update_interval": 20}
    return kind(**settings, encoder_factory=encoder, **more).create(device="cpu:0")


def _d3rlpy_table(algorithm: Any, features: NDArray[np.float32]) -> Table:
    columns = [algorithm.predict_value(features, np.full(len(features), action)) for action in range(4)]
    return np.stack(columns, axis=-1)


def d3rlpy_cql(dataset: Any, features: NDArray[np.float32], seed: int, steps: int) -> Table:
    d3rlpy.seed(seed)
    algorithm = _config(d3rlpy.algos.DiscreteCQLConfig, alpha=CQL)
    quiet = d3rlpy.logging.NoopAdapterFactory()
    algorithm.fit(dataset, n_steps=steps, n_steps_per_epoch=steps, logger_adapter=quiet, show_progress=False)
    return _d3rlpy_table(algorithm, features)


def d3rlpy_dqn(seed: int, steps: int) -> Table:
    d3rlpy.seed(seed)
    env = Features()
    algorithm = _config(d3rlpy.algos.DQNConfig)
    algorithm.fit_online(
        env,
        buffer=d3rlpy.dataset.create_fifo_replay_buffer(limit=ROOM, env=env),
        explorer=d3rlpy.algos.ConstantEpsilonGreedy(EPSILON),
        n_steps=PLAYED * steps,
        n_steps_per_epoch=PLAYED * steps,
        update_interval=PLAYED,
        update_start_step=BATCH,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        show_progress=False,
    )
    return _d3rlpy_table(algorithm, env.features)


def sb3_dqn(seed: int, steps: int) -> Table:
    env = Features()
    model = DQN(
        "MlpPolicy",
        env,
        learning_rate=LR,
        buffer_size=ROOM,
        learning_starts=BATCH,
        batch_size=BATCH,
        tau=0.05,
        gamma=GAMMA,
        train_freq=PLAYED,
        gradient_steps=1,
        target_update_interval=PLAYED,
        exploration_initial_eps=EPSILON,
        exploration_final_eps=EPSILON,
        policy_kwargs={"net_arch": [HIDDEN, HIDDEN]},
        seed=seed,
        device="cpu",
    )
    model.learn(PLAYED * steps)
    with torch.no_grad():
        table: Table = model.q_net(torch.from_numpy(env.features)).numpy()
    return table


def _way(learn: Callable[[int], Table], grid: Grid, returns: list[float], steps: int) -> Callable[[], float]:
    """Gradient steps per second; the seed is the number of the call."""

    def way() -> float:
        began = perf_counter()
        table = learn(len(returns))
        seconds = perf_counter() - began
        returns.append(grid.greedy_return(table))
        return steps / seconds

    return way


def run(repeats: int = REPEATS, steps: int = STEPS) -> Iterator[Row]:
    """Rows for `python -m benchmarks.peers symbolic`."""
    for name in ("lightning.pytorch", "d3rlpy"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.simplefilter("ignore")
    grid = GridMaze().grid
    same = {"hidden": HIDDEN, "lr": LR, "gamma": GAMMA, "batch_size": BATCH}
    best = grid.greedy_return(_best(grid))
    yield Row("the maze, best return", best, "", None, digits=2)
    with TemporaryDirectory() as place:
        path = generate("maze_fo", 500, out=Path(place) / "maze.parquet", progress=False)
        theirs = as_their_dataset(from_episodes(read_dataset(path), grid), grid.features)
        offline: dict[str, Callable[[int], Table]] = {
            OURS: lambda seed: ours(SymbolicCQL(str(path), cql_weight=CQL, seed=seed, **same), seed, steps),
            D3RLPY: lambda seed: d3rlpy_cql(theirs, grid.features, seed, steps),
        }
        yield from _compared(f"CQL, {steps:,} steps", offline, grid, repeats, steps)
    online: dict[str, Callable[[int], Table]] = {
        OURS: lambda seed: ours(SymbolicDQN(epsilon=EPSILON, room=ROOM, seed=seed, **same), seed, steps),
        D3RLPY: lambda seed: d3rlpy_dqn(seed, steps),
        SB3: lambda seed: sb3_dqn(seed, steps),
    }
    yield from _compared(f"DQN, {steps:,} steps", online, grid, repeats, steps)


def _compared(
    what: str, sides: dict[str, Callable[[int], Table]], grid: Grid, repeats: int, steps: int
) -> Iterator[Row]:
    returns: dict[str, list[float]] = {name: [] for name in sides}
    ways = {name: _way(learn, grid, returns[name], steps) for name, learn in sides.items()}
    yield from beside(what, "gradient steps/s", alternating(ways, repeats), dict.fromkeys(sides, ">= 1x"))
    for name, found in returns.items():
        shown = f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
        yield Row(f"{what}, return, {name}", median(found), "", "higher", shown=shown)


def _best(grid: Grid) -> Table:
    """Q of the best policy, by value iteration; a way is never longer than there are cells."""
    q = np.zeros(grid.next.shape)
    for _ in grid.cells:
        q = grid.reward + np.where(grid.terminated, 0.0, q.max(-1)[grid.next])
    return q
