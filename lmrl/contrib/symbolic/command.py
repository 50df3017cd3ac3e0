"""``lmrl symbolic``: the maze without language, by Q-learning with tables and networks (the paper's appendix H)."""

import logging
from pathlib import Path
from time import monotonic

import lightning as L
from lightning.pytorch.loggers import CSVLogger
from rich.table import Table

from lmrl.contrib.symbolic import (
    Grid,
    GridMaze,
    GridPolicy,
    SymbolicCQL,
    SymbolicDQN,
    from_episodes,
    q_learning,
    q_learning_offline,
)
from lmrl.data.recording import dataset_path, generate
from lmrl.data.storage import read_dataset
from lmrl.envs.maze.layouts import find_layout
from lmrl.envs.registry import task
from lmrl.errors import check_range, unknown
from lmrl.evaluation.result_json import read_json, write_json
from lmrl.evaluation.run_folder import check_evaluation_folder, record_evaluation
from lmrl.report.wording import duration, label, number
from lmrl.utils.consoles import table_console
from lmrl.utils.files import check_may_replace, locked, replacing_folder

__all__ = ["symbolic_command"]

_TASK = "maze_fo"
_LAYOUT = "double_t_maze"
_WRITTEN = ("evaluation", "timing.json", "last.ckpt", "metrics.csv", "hparams.yaml")


_LEARNERS = ("q", "q_offline", "dqn", "cql")


def symbolic_command(
    *,
    algorithms: list[str] | None = None,
    runs: Path = Path("runs"),
    data: Path | None = None,
    episodes: int = 200,
    steps: int = 3000,
    seed: int = 0,
) -> None:
    """Learn the maze as a grid, play the maze of words with what was learned, and put it next to the language models.

    Each result goes to <runs>/maze_fo/symbolic_<algorithm>, where lmrl report finds it.

    Args:
        algorithms: some of q, q_offline, dqn, cql (default: all); q and dqn play, the others learn from the dataset.
        runs: folder for the results.
        data: maze dataset (default: the task's own, recorded if it is not there).
        episodes: episodes of each evaluation.
        steps: steps of the optimizer, for dqn and cql.
        seed: seed of learning and evaluation.
    """
    chosen = algorithms or _LEARNERS
    for name in chosen:
        if name not in _LEARNERS:
            raise unknown("symbolic algorithm", name, _LEARNERS)
    check_range("[1, inf)", steps=steps, episodes=episodes)
    check_range("[0, inf)", seed=seed)
    table = Table("learner", "return", "normalised", "success", "learned in", title=f"{_TASK}, {episodes} episodes")
    for name in chosen:
        if data is None:
            default = dataset_path(_TASK, task(_TASK).dataset_size, 0)
            data = default if default.is_file() else generate(_TASK, progress=False)
        target = runs / _TASK / f"symbolic_{name}"
        table.add_row(*_learn_and_evaluate(name, target, data, seed, steps, episodes))
    table_console().print(table)
    print(f"written to {runs / _TASK}; lmrl report shows them next to the language models")


def _learn_and_evaluate(name: str, target: Path, data: Path, seed: int, steps: int, episodes: int) -> tuple[str, ...]:
    """Write the result of one learner, which replaces an earlier one at the end; return a row of the table."""
    fit = read_json(target / "timing.json").get("fit", {})
    is_own = str(fit.get("command")).startswith("lmrl symbolic ")
    check_may_replace(target, _WRITTEN if is_own else (), "symbolic learner", inputs=[data])
    check_evaluation_folder(target / "evaluation")
    with locked(target, "run folder"), replacing_folder(target) as folder:
        began = monotonic()
        policy = _learn(name, folder, data, seed, steps)
        seconds = monotonic() - began
        scores = record_evaluation(
            policy,
            _TASK,
            folder / "evaluation",
            episodes=episodes,
            seed=seed,
            name=target.name,
            greedy=lambda: policy,
            provenance={"learner": name, "seed": seed},
        )
        command = f"lmrl symbolic --algorithms {name} --seed {seed} --steps {steps}"
        write_json({"fit": {"command": command, "seconds": round(seconds, 2)}}, folder / "timing.json")
    shown = (number(scores["return_mean"], 2), number(scores["normalized"]), f"{scores['success_rate']:.1%}")
    return label(target.name), *shown, duration(seconds) if seconds >= 10 else f"{seconds:.1f} s"


def _learn(name: str, folder: Path, data: Path, seed: int, steps: int) -> GridPolicy:
    """Train one of the learners; networks leave their checkpoint and curves in the folder."""
    # Tables: Watkins' Q-learning, online and from the dataset.
    if name == "q":
        env = GridMaze(_LAYOUT)
        return GridPolicy(env.grid, q_learning(env, seed=seed))
    if name == "q_offline":
        grid = Grid(find_layout(_LAYOUT))
        return GridPolicy(grid, q_learning_offline(from_episodes(read_dataset(data), grid), grid, seed=seed))
    # Networks: DQN online, CQL from the dataset.
    L.seed_everything(seed, verbose=False)
    module: SymbolicDQN | SymbolicCQL
    if name == "dqn":
        module = SymbolicDQN(layout=_LAYOUT, seed=seed)
    else:
        module = SymbolicCQL(data=str(data), layout=_LAYOUT, seed=seed)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    trainer = L.Trainer(
        max_steps=steps,
        accelerator="cpu",  # a step takes a millisecond
        logger=CSVLogger(folder, name="", version=""),
        log_every_n_steps=100,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(module)
    trainer.save_checkpoint(folder / "last.ckpt")
    return module.eval().policy()
