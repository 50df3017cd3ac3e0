"""The small maze of notebooks 2 and 3, its dataset, and the training of BC and ILQL on it.

A third of the task `maze_fo`, told in the same words and recorded by the same player in the same way: 15 % of the moves
are a solver's, the others random, and no episode leaves the part of the maze in which it began. The parts meet at the
junction, so the way from a far end to the goal is in no episode.
"""

import os
from dataclasses import replace
from pathlib import Path
from random import Random

import lmrl
from lmrl.cli import main
from lmrl.data.storage import write_episodes
from lmrl.envs.maze.layouts import load_layout
from lmrl.envs.maze.players import MazePlayer
from lmrl.envs.registry import register, task
from lmrl.rollout import in_order, rollout
from lmrl.types import Request, Start

TINY = "LMRL_TINY" in os.environ  # a few steps, to see that everything works
STEPS = {"bc": 4, "ilql": 4} if TINY else {"bc": 200, "ilql": 1400}
RUNS = Path("runs/notebooks_tiny" if TINY else "runs/notebooks")
DATA = RUNS / "t_maze.parquet"
MAP = """\
#########
#       #
#### ####
#### ####
####G####
#########
"""
PARTS = ([(1, 4), (2, 4), (3, 4), (4, 4)], [(1, col) for col in range(1, 5)], [(1, col) for col in range(4, 8)])

RUNS.mkdir(parents=True, exist_ok=True)
(RUNS / "t_maze.txt").write_text(MAP)
LAYOUT = load_layout(RUNS / "t_maze.txt")
STARTS = tuple({"init_position": cell} for cell in LAYOUT.free if cell != LAYOUT.goal)
FULL = task("maze_fo")
TASK = replace(
    FULL,
    name="t_maze",
    env_id="lmrl/TMaze-v0",
    kwargs={"observe": "position", "layout": str(RUNS / "t_maze.txt"), "max_steps": 8 if TINY else 100},
    starts=STARTS,
    # These scales are those of the whole maze.
    scores=replace(FULL.scores, average=None, maximum=None),
    own_scale=None,
)
register(TASK)


def _ends(request: Request) -> bool:
    """Episodes are cut anywhere, after 20 turns on average."""
    return Random(f"{request.seed} {request.turn}").random() < 0.05


def record(size: int = 400) -> None:
    """Write the dataset, unless it is there."""
    if not DATA.is_file():
        starts = (Start(seed, STARTS[seed % len(STARTS)]) for seed in range(size))
        player = MazePlayer(0.15, LAYOUT, parts=PARTS)
        episodes = in_order(rollout(player, lambda: lmrl.make("t_maze"), starts, task="t_maze", stop=_ends))
        write_episodes(DATA, episodes, {"task": "t_maze", "behaviour": "MazePlayer"})


def train(name: str, *options: str) -> Path:
    """Run ``lmrl fit`` with ``configs/maze_fo/NAME.yaml`` on this maze, unless the run is there; return its folder."""
    folder, steps = RUNS / name, STEPS[name]
    if not (folder / "best.ckpt").is_file():
        record()
        words = [f"--trainer.default_root_dir={folder}", f"--trainer.max_steps={steps}"]
        words += ["--data.init_args.task=t_maze", f"--data.init_args.path={DATA}"]
        words += [f"--evaluation.every_n_steps={steps // 2}", f"--evaluation.episodes={3 * len(STARTS)}"]
        assert main(["fit", "--config", f"configs/maze_fo/{name}.yaml", "--overwrite", *words, *options]) == 0
    return folder
