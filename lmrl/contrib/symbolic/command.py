"""``lmrl symbolic``: the maze without language, by Q-learning with tables and networks (the paper's appendix H)."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import lightning as L
from lightning.pytorch.loggers import CSVLogger
from rich.console import Console
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
from lmrl.errors import UserError, unknown
from lmrl.evaluation.result_json import read_json, write_json
from lmrl.evaluation.run_folder import check_evaluation_folder, record_evaluation
from lmrl.report.wording import duration, label, number
from lmrl.utils.files import check_may_replace, replacing_folder

__all__ = ["symbolic_command"]

_TASK = "maze_fo"
_LAYOUT = "double_t_maze"


_WRITTEN = ("evaluation", "timing.json", "last.ckpt", "metrics.csv", "hparams.yaml")


@dataclass(frozen=True, slots=True)
class _Job:
    """The input of a learner."""

    folder: Path
    data: Path
    seed: int
    steps: int


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
        algorithms: of q, q_offline, dqn, cql (default: all); q and dqn play, the others learn from the dataset.
        runs: folder for the results.
        data: maze dataset (default: the task's own, recorded if it is not there).
        episodes: of each evaluation.
        steps: of the optimizer, for dqn and cql.
        seed: of learning and evaluation.
    """
    chosen = algorithms or [*_LEARNERS]
    for name in chosen:
        if name not in _LEARNERS:
            raise unknown("symbolic algorithm", name, _LEARNERS)
    if steps < 1:
        raise UserError(f"steps must be at least 1, got {steps}")
    table = Table("learner", "return", "normalised", "success", "learned in", title=f"{_TASK}, {episodes} episodes")
    for name in chosen:
        job = _Job(runs / _TASK / f"symbolic_{name}", _dataset() if data is None else data, seed, steps)
        table.add_row(*_learned(name, job, episodes))
    Console().print(table)
    print(f"written to {runs / _TASK}; lmrl report puts them beside the language models")


def _learned(name: str, job: _Job, episodes: int) -> tuple[str, ...]:
    """Learn, play and write the result, which replaces an earlier one at the end; return a row of the table."""
    target = job.folder
    fit = read_json(target / "timing.json").get("fit", {})
    is_own = str(fit.get("command")).startswith("lmrl symbolic ")
    check_may_replace(target, _WRITTEN if is_own else (), "symbolic learner", inputs=[job.data])
    check_evaluation_folder(target / "evaluation")
    with replacing_folder(target) as folder:
        job = replace(job, folder=folder)
        began = monotonic()
        policy = _LEARNERS[name](job)
        seconds = monotonic() - began
        scores = record_evaluation(
            policy,
            _TASK,
            folder / "evaluation",
            episodes=episodes,
            seed=job.seed,
            name=target.name,
            greedy=lambda: policy,
            provenance={"learner": name, "seed": job.seed},
        )
        command = f"lmrl symbolic --algorithms {name} --seed {job.seed} --steps {job.steps}"
        write_json({"fit": {"command": command, "seconds": round(seconds, 2)}}, folder / "timing.json")
    shown = (number(scores["return_mean"], 2), number(scores["normalized"]), f"{scores['success_rate']:.1%}")
    return label(target.name), *shown, duration(seconds) if seconds >= 10 else f"{seconds:.1f} s"


def _dataset() -> Path:
    path = dataset_path(_TASK, task(_TASK).dataset_size, 0)
    return path if path.is_file() else generate(_TASK, progress=False)


def _q(job: _Job) -> GridPolicy:
    env = GridMaze(_LAYOUT)
    return GridPolicy(env.grid, q_learning(env, seed=job.seed))


def _q_offline(job: _Job) -> GridPolicy:
    grid = Grid(find_layout(_LAYOUT))
    return GridPolicy(grid, q_learning_offline(from_episodes(read_dataset(job.data), grid), grid, seed=job.seed))


def _dqn(job: _Job) -> GridPolicy:
    L.seed_everything(job.seed, verbose=False)
    return _trained(SymbolicDQN(layout=_LAYOUT, seed=job.seed), job)


def _cql(job: _Job) -> GridPolicy:
    L.seed_everything(job.seed, verbose=False)
    return _trained(SymbolicCQL(data=str(job.data), layout=_LAYOUT, seed=job.seed), job)


def _trained(module: SymbolicDQN | SymbolicCQL, job: _Job) -> GridPolicy:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    trainer = L.Trainer(
        max_steps=job.steps,
        accelerator="cpu",  # a step takes a millisecond
        logger=CSVLogger(job.folder, name="", version=""),
        log_every_n_steps=100,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(module)
    trainer.save_checkpoint(job.folder / "last.ckpt")
    return module.eval().policy()


_LEARNERS: dict[str, Callable[[_Job], GridPolicy]] = {"q": _q, "q_offline": _q_offline, "dqn": _dqn, "cql": _cql}
