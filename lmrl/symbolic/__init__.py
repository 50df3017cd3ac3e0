"""The maze without language: numbers for cells and moves, and the classic learners on them."""

from lmrl.symbolic.grid import Grid, GridMaze, Transitions, from_episodes
from lmrl.symbolic.modules import GridPolicy, SymbolicCQL, SymbolicDQN
from lmrl.symbolic.tabular import q_learning, q_learning_offline

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
