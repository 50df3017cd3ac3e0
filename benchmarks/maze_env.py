"""Steps per second of the maze in one process, resets included, beside a maze that works out every text anew.

The plain maze keeps the whole history, checks the clock, finds the walls and writes the sentence at each step, as the
published benchmark's environment does. Both play the same uniform moves.
"""

import random
import time
from collections.abc import Callable, Iterator

import lmrl
from benchmarks.row import Row
from lmrl.envs.maze.layouts import LAYOUTS, MOVES

STEPS = 300_000
ASKED = 250_000


class PlainMaze:
    """A maze without tables: texts in, texts out, the history in a tuple."""

    def __init__(self, max_steps: int = 100, last_texts: int = 1) -> None:
        self.rows, self.goal = LAYOUTS["double_t_maze"].rows, LAYOUTS["double_t_maze"].goal
        self.max_steps, self.last_texts = max_steps, last_texts
        self.rng = random.Random(0)

    def reset(self) -> tuple[str, ...]:
        """Begin at a random cell."""
        free = [(r, c) for r, row in enumerate(self.rows) for c, mark in enumerate(row) if mark == " "]
        free.remove(self.goal)
        self.cell, self.steps = self.rng.choice(free), 0
        return (self.describe(),)

    def describe(self) -> str:
        """Write the sentence for the present cell."""
        (r, c), walls = self.cell, []
        for name, (dr, dc) in {"right": (0, 1), "left": (0, -1), "above": (-1, 0), "below": (1, 0)}.items():
            if self.rows[r + dr][c + dc] == "#":
                walls.append(f"{name} you" if name in ("above", "below") else f"to your {name}")
        if not walls:
            sentence = "There are no walls near you."
        elif len(walls) == 1:
            sentence = f"There is a wall {walls[0]}."
        else:
            sentence = f"There are walls {', '.join(walls)}."
        goal = ", ".join(" ".join(str(number)) for number in self.goal)
        here = ", ".join(" ".join(str(number)) for number in self.cell)
        return f"The goal is at position {goal}. Your current position is at position {here}. {sentence}\n"

    def step(self, history: tuple[str, ...]) -> tuple[tuple[str, ...], float, bool]:
        """Answer a history that ends in an action by the new history, the reward and whether it is over."""
        if self.steps >= self.max_steps:
            return ("Failure\n",), -1.0, True
        self.steps += 1
        if history[-1] not in MOVES:
            return (self.describe(),), -4.0, False
        dr, dc = MOVES[history[-1]]
        moved = (self.cell[0] + dr, self.cell[1] + dc)
        if self.rows[moved[0]][moved[1]] != "#":
            self.cell = moved
        if self.cell == self.goal:
            return ("Success\n",), 0.0, True
        return (*history, self.describe())[-self.last_texts :], -1.0, False


def play_lmrl(actions: list[str]) -> None:
    env = lmrl.make("maze_fo")
    env.reset(seed=0)
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()


def play_plain(actions: list[str]) -> None:
    env = PlainMaze()
    history = env.reset()
    for action in actions:
        history, _, done = env.step((*history, action))
        if done:
            history = env.reset()


def rate(play: Callable[[list[str]], None], actions: list[str], rounds: int = 3) -> float:
    """Steps per second of processor time in the best of a few rounds, so that others on the machine count little."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        play(actions)
        times.append(time.process_time() - began)
    return len(actions) / min(times)


def measure() -> dict[str, float]:
    """Steps per second of `lmrl.make("maze_fo")` and of the plain maze, and how many times faster the first is."""
    actions = random.Random(0).choices(list(MOVES), k=STEPS)
    ours, plain = rate(play_lmrl, actions), rate(play_plain, actions)
    return {"lmrl": ours, "plain": plain, "ratio": ours / plain}


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks`."""
    figures = measure()
    yield Row("maze, texts worked out at each step", figures["plain"], "steps/s", "higher")
    yield Row("maze, lmrl.make", figures["lmrl"], "steps/s", "higher", f">= {ASKED:,} steps/s")
    yield Row("lmrl.make / texts worked out at each step", figures["ratio"], "x", "higher", digits=1)
