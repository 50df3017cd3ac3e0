"""The rows of the benchmark."""

from lmrl.envs.layouts import LAYOUTS, MOVES
from lmrl.envs.scores import PUBLISHED
from lmrl.envs.task import Task

__all__ = ["ROWS"]

_MAZE = LAYOUTS["double_t_maze"]
_MAZE_STARTS = tuple({"init_position": cell} for cell in _MAZE.free if cell != _MAZE.goal)

# A new game adds its rows here; the order is that of the results tables.
ROWS = (
    Task(
        name="maze_fo",
        description="walk to the goal, told its position, one's own, and the walls around",
        env_id="lmrl/MazeFO-v0",
        entry_point="lmrl.envs.maze:Maze",
        kwargs={"observe": "position"},
        last_texts=1,
        max_action_tokens=8,
        actions=tuple(MOVES),
        dataset_size=1_240,
        paper_filter="success",
        starts=_MAZE_STARTS,
        scores=PUBLISHED["maze_fo"],
    ),
    Task(
        name="maze_po",
        description="walk to the goal, told only the walls around",
        env_id="lmrl/MazePO-v0",
        entry_point="lmrl.envs.maze:Maze",
        kwargs={"observe": "walls"},
        last_texts=40,
        max_action_tokens=8,
        actions=tuple(MOVES),
        dataset_size=1_240,
        paper_filter="success",
        starts=_MAZE_STARTS,
        scores=PUBLISHED["maze_po"],
    ),
    Task(
        name="text_nav_fo",
        description="put the stale food into the fridge, told the room, what is in it and what can be done",
        env_id="lmrl/TextNavFO-v0",
        entry_point="lmrl.envs.text_nav:TextNav",
        kwargs={"observe": "full"},
        last_texts=1,
        max_action_tokens=24,
        dataset_size=2_500,
        paper_filter="success",
        scores=PUBLISHED["text_nav_fo"],
    ),
    Task(
        name="text_nav_po",
        description="put the stale food into the fridge, told neither the room's name nor the inventory",
        env_id="lmrl/TextNavPO-v0",
        entry_point="lmrl.envs.text_nav:TextNav",
        kwargs={"observe": "partial"},
        max_action_tokens=24,
        dataset_size=2_500,
        paper_filter="success",
        scores=PUBLISHED["text_nav_po"],
    ),
    Task(
        name="wordle",
        description="find a hidden word in six guesses, told after each which letters are right",
        env_id="lmrl/Wordle-v0",
        entry_point="lmrl.envs.wordle:Wordle",
        max_action_tokens=8,
        dataset_size=20_000,
        paper_filter="top 30 % by return",
        scores=PUBLISHED["wordle"],
    ),
    Task(
        name="chess",
        description="win a game of chess as White",
        env_id="lmrl/Chess-v0",
        entry_point="lmrl.envs.chess_game:Chess",
        last_texts=1,
        max_action_tokens=12,
        dataset_size=1_000,
        paper_filter="success",
        scores=PUBLISHED["chess"],
    ),
    Task(
        name="endgames",
        description="mate the lone black king with queen, rook, or both",
        env_id="lmrl/Endgames-v0",
        entry_point="lmrl.envs.endgames:Endgames",
        last_texts=1,
        max_action_tokens=12,
        dataset_size=10_000,
        paper_filter="success",
        starts=tuple({"test": number} for number in range(645)),
        scores=PUBLISHED["endgames"],
    ),
)
