"""The maze without language: numbers for cells and moves, and the classic learners on them."""

from lmrl.contrib.symbolic.grid import Grid, GridMaze, Transitions, from_episodes, q_learning, q_learning_offline
from lmrl.contrib.symbolic.modules import GridPolicy, SymbolicCQL, SymbolicDQN

__all__ = [
    "Grid",
    "GridMaze",
    "GridPolicy",
    "SymbolicCQL",
    "SymbolicDQN",
    "Transitions",
    "from_episodes",
    "q_learning",
    "q_learning_offline",
]
