"""The whole table: data, training, evaluation and report for tasks x algorithms, resumable."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from lmrl.behaviours import make_policy, policy_names
from lmrl.data.generate import dataset_path, generate
from lmrl.envs import registration
from lmrl.errors import UserError
from lmrl.evaluation.record import record_evaluation
from lmrl.evaluation.report import write_report
from lmrl.evaluation.results import read_json
from lmrl.reproduce.plan import default_episodes, plan
from lmrl.reproduce.processes import LMRL, Processes
from lmrl.reproduce.schedule import run_cells
from lmrl.reproduce.summary import summary

__all__ = ["reproduce"]


def reproduce(
    tasks: Sequence[str],
    algorithms: Sequence[str] = ("bc", "filtered_bc", "mc", "ilql"),
    *,
    runs: Path | str = "runs",
    report: Path | str = "report",
    episodes: int | None = None,
    seed: int = 0,
    jobs: int = 1,
    overrides: Sequence[str] = (),
    few_games: int | None = None,
    env: Mapping[str, Any] | None = None,
    launcher: Sequence[str] = LMRL,
    console: Console | None = None,
) -> Path:
    """Make the datasets, train, let everyone play, and write the report.

    What was finished before from the same configuration, seed and number of episodes is not run again. A cell that
    fails is told with the end of its log and skipped, with those that start from it; the rest goes on.

    Args:
        tasks: names of tasks.
        algorithms: names of configuration files in ``configs/<task>/``; BC is added where they start from it.
        runs: folder for ``<task>/<algorithm>/``.
        report: folder for the report.
        episodes: of each evaluation; if left out eight from each start (the maze: 200), or 256.
        seed: of training and evaluation; the dataset is always the default one.
        jobs: how many trainings run side by side, each with its share of the cores.
        overrides: further words for every ``lmrl fit``, such as ``--trainer.max_steps=100``.
        few_games: trainings play so many games per round and none beside; None leaves their callbacks as they are.
        env: arguments of the environments, in the data, in training and in evaluation.
        launcher: the command in front of ``fit`` and ``evaluate``.
        console: where progress is shown; standard output if left out.

    Returns:
        The path of ``report.html``.

    Raises:
        UserError: an unknown task or algorithm, fewer than one job or episode; at the end, if a cell failed.
    """
    for argument, value in (("jobs", jobs), ("episodes", 1 if episodes is None else episodes)):
        if value < 1:
            raise UserError(f"{argument} must be at least 1, got {value}")
    runs, out = Path(runs), Console() if console is None else console
    cells = plan(tasks, algorithms, runs, episodes, seed, overrides, env, few_games)
    for task in tasks:
        _data(task, out, env)
        _scripted(task, runs, default_episodes(task) if episodes is None else episodes, seed, env)
    with Processes(jobs, launcher) as processes:
        failed = run_cells(cells, processes, jobs, out)
    page = write_report(runs, report, tasks, algorithms)
    out.print(summary(runs, tasks))
    out.print(f"report: {page}", highlight=False)
    if failed:
        raise UserError(f"{len(failed)} of {len(cells)} runs failed: {', '.join(failed)} (their log.txt says why)")
    return page


def _data(task: str, console: Console, env: Mapping[str, Any] | None) -> None:
    """Record the task's default dataset, the one that the configuration files train on, unless it is there."""
    path = dataset_path(task, registration.task(task).dataset_size, 0, env)
    if not path.is_file():
        generate(task, env=env)
        console.print(f"recorded {path}", highlight=False)


def _scripted(task: str, runs: Path, episodes: int, seed: int, env: Mapping[str, Any] | None) -> None:
    """Evaluate the players that need no training, unless this was done before."""
    for name in policy_names(task):
        folder = runs / task / name / "evaluation"
        done = read_json(folder / "scores.json")
        before = (done.get("episodes"), done.get("seed"), done.get("provenance", {}).get("env"))
        if before != (episodes, seed, dict(env or {})):
            player = make_policy(task, name, env)
            record_evaluation(player, task, folder, episodes=episodes, seed=seed, name=name, env=env)
