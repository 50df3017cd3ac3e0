"""The maze with the position observed (``maze_fo``) or only the walls around (``maze_po``)."""

from dataclasses import replace

from lmrl.envs.maze.layouts import LAYOUTS, MOVES, starts_in
from lmrl.envs.scores import OwnScale, PublishedData, Scores, by_algorithm
from lmrl.envs.task import Task

__all__ = ["TASKS"]

_CHOICES = {
    "layout": tuple(LAYOUTS),
    "observe": ("position", "walls", "goal"),
    "reward": ("standard", "illegal_penalty", "illegal_penalty_diff_scale"),
}
# Both tasks share one line of the paper's Table 1.
_DATA = PublishedData(1_240, 19.7, 24.5, 0.11, -19.7, 24.5)

_FO = Task(
    name="maze_fo",
    table_row=1,
    description="walk to the goal, told its position, one's own, and the walls around",
    env_id="lmrl/MazeFO-v0",
    entry_point="lmrl.envs.maze.env:Maze",
    kwargs={"observe": "position"},
    choices=_CHOICES,
    last_texts=1,
    max_action_tokens=8,
    actions=tuple(MOVES),
    dataset_size=1_240,
    starts=starts_in(LAYOUTS["double_t_maze"]),
    starts_of="lmrl.envs.maze.layouts:starts_of",
    own_scale=OwnScale(random=-85.65, recorder=-52.03, best=-6.84),
    entropy=1.320,
    scores=Scores(
        minimum=-101,
        average=-83,
        maximum=-6.84,
        raw=by_algorithm(-72.1, -56.4, -48.1, -6.97, -37.7, -71.7, -39.7),
        normalized={
            **by_algorithm(58.2, 68.9, 75.0, 99.9, 79.7, 57.4, 78.2),
            **{"symbolic_dqn": 100.0, "symbolic_cql": 100.0},  # Table 9, on the grid
        },
        data=_DATA,
        note="From the constants BC, filtered BC and MC are 57.2, 67.5 and 72.9; the printed ones look like "
        "those of Text-Nav FO. The average is the return of a player that draws actions as often as the data has "
        "them, not the mean return of the data (-19.7). The minimum ignores illegal actions (with them: -401).",
    ),
    players="lmrl.envs.maze.players:PLAYERS",
    recording="lmrl.envs.maze.players:recording",
    official="lmrl.envs.maze.official:FORMAT_FO",
    chat="lmrl.envs.maze.env:CHAT_FO",
    guide="lmrl.envs.maze.env:GUIDE_FO",
    picture="lmrl.envs.maze.picture:MazePicture",
    probe="lmrl.envs.maze.probe:PROBE",
    probe_plot="lmrl.envs.maze.probe_plot:PROBE_PLOT",
)
_PO = replace(
    _FO,
    name="maze_po",
    table_row=2,
    description="walk to the goal, told only the walls around",
    env_id="lmrl/MazePO-v0",
    kwargs={"observe": "walls"},
    last_texts=40,
    scores=Scores(
        minimum=-101,
        average=-83,
        maximum=-25.75,
        raw=by_algorithm(-79.5, -82.9, -80.3, -52.9, -91.7, -79.5, -88.0),
        normalized=by_algorithm(53.1, 50.1, 52.4, 76.3, 42.4, 53.1, 60.4),
        data=_DATA,
        note="From the constants PPO and GPT-4 are 25.8 and 36.1. Average and minimum as in Maze FO.",
    ),
    official="lmrl.envs.maze.official:FORMAT_PO",
    chat="lmrl.envs.maze.env:CHAT_PO",
    guide="lmrl.envs.maze.env:GUIDE_PO",
)

TASKS = (_FO, _PO)
"""In the order of the results table."""
