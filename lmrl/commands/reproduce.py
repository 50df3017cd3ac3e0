"""``lmrl reproduce`` and ``lmrl report``: the whole table, and its report alone."""

from pathlib import Path

from lmrl.commands.arguments import env_arguments
from lmrl.evaluation import write_report
from lmrl.reproduce import reproduce

__all__ = ["report_command", "reproduce_command"]

_OFFLINE = ["bc", "filtered_bc", "mc", "ilql"]
# Enough to see every part work; the scores mean nothing.
_SMOKE = ["trainer.max_steps=60"]
_SMOKE_EPISODES = 5


def reproduce_command(
    tasks: list[str],
    *,
    algorithms: list[str] = _OFFLINE,
    runs: Path = Path("runs"),
    report: Path = Path("report"),
    episodes: int | None = None,
    seed: int = 0,
    jobs: int = 2,
    overrides: list[str] | None = None,
    env: list[str] | None = None,
    smoke: bool = False,
) -> None:
    """Make the data, train, let everyone play, and write the report. What is finished is not done again.

    Args:
        tasks: names of tasks, e.g. maze_fo maze_po.
        algorithms: names of files in configs/<task>/.
        runs: folder for <task>/<algorithm>/.
        report: folder for the report.
        episodes: of each evaluation (default: eight from each start, or 256).
        seed: of training and evaluation.
        jobs: trainings side by side, each with its share of the cores.
        overrides: settings for every training, e.g. trainer.max_steps=100.
        env: arguments of the environments, e.g. opponent=stockfish; for data, training and evaluation.
        smoke: a few steps and episodes of everything, to see that it works.
    """
    words = [*(_SMOKE if smoke else []), *(overrides or [])]
    reproduce(
        tasks,
        algorithms,
        runs=runs,
        report=report,
        episodes=_SMOKE_EPISODES if smoke and episodes is None else episodes,
        seed=seed,
        jobs=jobs,
        overrides=[f"--{word.removeprefix('--')}" for word in words],
        few_games=_SMOKE_EPISODES if smoke else None,
        env=env_arguments(env),
    )


def report_command(
    *,
    tasks: list[str] | None = None,
    algorithms: list[str] = _OFFLINE,
    runs: Path = Path("runs"),
    out: Path = Path("report"),
) -> None:
    """Write the report again from what lies in the folder of runs.

    Args:
        tasks: names of tasks (default: all with results).
        algorithms: which ones the report expects.
        runs: folder with <task>/<algorithm>/evaluation/scores.json.
        out: folder for the report.
    """
    print(f"report: {write_report(runs, out, tasks, algorithms)}")
