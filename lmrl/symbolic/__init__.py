"""The maze without language: numbers for cells and moves, and the classic learners on them."""

from lmrl.symbolic.grid import Grid, GridMaze
from lmrl.symbolic.modules import SymbolicCQL, SymbolicDQN
from lmrl.symbolic.policy import GridPolicy
from lmrl.symbolic.tabular import q_learning, q_learning_offline
from lmrl.symbolic.transitions import Transitions, from_episodes

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
