"""``lmrl reproduce`` and ``lmrl report``: the whole table, and its report alone."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmrl.envs import registry
from lmrl.errors import UserError, check_range, without_secrets
from lmrl.evaluation.records import seed_folders, write_records
from lmrl.evaluation.run_folder import notes_on_weights
from lmrl.report.report import write_report
from lmrl.reproduce import OFFLINE, ONLINE, Order, reproduce, shortened
from lmrl.reproduce import protocol as fair
from lmrl.reproduce.plan import preset_of
from lmrl.utils.configuration import config_file, env_arguments, named_values

__all__ = ["report_command", "reproduce_command"]

_SEEDS_OF_ALL = 3
_JOBS = 2
_REPORT = Path("report")
_SMOKE = "smoke"
"""Scores of a smoke test mean nothing: they have folders of their own, in which no report looks for others."""


def reproduce_command(
    tasks: list[str] | None = None,
    *,
    all: bool = False,
    algorithms: list[str] | None = None,
    preset: str = "cpu",
    seeds: int | None = None,
    seed: int = 0,
    runs: Path | None = None,
    report: Path | None = None,
    episodes: int | None = None,
    jobs: int | None = None,
    slurm: list[str] | None = None,
    ray: str | None = None,
    overrides: list[str] | None = None,
    env: list[str] | None = None,
    weights: str | None = None,
    smoke: bool = False,
    protocol: bool = False,
    records: Path | None = None,
    device: str | None = None,
) -> None:
    """Make the data, train, let everyone play, and write the report. What is finished is not done again.

    Args:
        tasks: names of tasks, e.g. maze_fo.
        all: all tasks of the benchmark.
        algorithms: names of files in configs/<task>/ (default: of bc filtered_bc mc ilql ppo
            online_filtered_bc ilql_to_ppo those that all these tasks have; with --protocol its methods).
        preset: cpu (small models) or gpu (GPT-2 and the paper's settings).
        seeds: how many training seeds (default: 1; with --all 3).
        seed: the first of them; also of evaluation.
        runs: folder for <task>/<algorithm>/, of further seeds seed_1/<task>/<algorithm>/ (default: runs, or
            runs/gpu; with --smoke the folder smoke in it).
        report: folder for the report (default: report, with --smoke report/smoke).
        episodes: episodes of each evaluation (default: at least 256, from each start equally many).
        jobs: cells side by side, each with its share of the cores (default: 2; with --slurm or --ray as many
            as it lets).
        slurm: run cells as SLURM jobs, with time=MINUTES (needed) cpus=N mem=GB gpus=N partition=NAME account=NAME
            qos=NAME constraint=NAME.
        ray: run cells on a Ray cluster: local (this machine), auto (begun here by ray start) or HOST:PORT.
        overrides: settings for every training, e.g. trainer.max_steps=100.
        env: arguments of the environments, e.g. opponent=stockfish; for data, training and evaluation.
        weights: for preset gpu, what BC starts from: a folder, a hub id, or scratch (default: gpt2).
        smoke: a few steps and episodes of everything, to see that it works; the scores mean nothing.
        protocol: by the protocol of the fair table (docs/reference/protocol.md), with equal starts, compute and choices
            for all methods, in runs/protocol; --all stands for its rows.
        records: folder in which scores, curves and configurations of finished cells are kept, without weights and
            episodes; the report is then of all that are there.
        device: where trained policies play, e.g. cuda (default: what the preset says).
    """
    if protocol and preset != "cpu":
        raise UserError(f"the protocol has settings of its own: leave out --preset {preset}")
    size = preset_of("protocol" if protocol else preset)
    chosen = _tasks(tasks or [], all, fair.rows() if protocol else [row.name for row in registry.BENCHMARK])
    size = size if device is None else replace(size, device=device)
    if seeds is None:
        seeds = _SEEDS_OF_ALL if all else 1
    check_range("[1, inf)", seeds=seeds)
    order = Order(
        tasks=chosen,
        algorithms=algorithms or ([] if protocol else _configured(chosen)),
        runs=runs or (size.runs / _SMOKE if smoke else size.runs),
        seeds=range(seed, seed + seeds),
        episodes=episodes,
        overrides=tuple(f"--{word.removeprefix('--')}" for word in overrides or ()),
        env=env_arguments(env),
        preset=size,
        weights=weights,
    )
    for task in chosen if protocol else ():
        untried = fair.methods_without_trials(task, order.algorithms)
        if untried:
            names = ", ".join(untried)
            print(f"note: trials have not chosen the settings of {names} on {task}: those of configs/{task} are used")
    command = shlex.join(["lmrl", *without_secrets(sys.argv[1:])])
    asked = None if slurm is None else named_values(slurm, "slurm")
    if smoke and records is not None:
        records = records / _SMOKE
    jobs = _JOBS if jobs is None and slurm is None and ray is None else jobs
    asked_for: dict[str, Any] = {"jobs": jobs, "slurm": asked, "ray": ray, "command": command, "records": records}
    page = report or (_REPORT / _SMOKE if smoke else _REPORT)
    reproduce(shortened(order) if smoke else order, report=page, **asked_for)


def _tasks(named: Sequence[str], all_of_them: bool, rows: Sequence[str]) -> list[str]:
    if bool(named) == all_of_them:
        raise UserError(f"name tasks, or all of them with --all, not both; known: {', '.join(registry.tasks())}")
    return [*named] or [*rows]


def _configured(tasks: Sequence[str]) -> list[str]:
    """The algorithms that all of the tasks have configurations of; all algorithms, if there is none."""
    names = [*OFFLINE, *ONLINE]
    return [name for name in names if all(_is_config(f"configs/{task}/{name}.yaml") for task in tasks)] or names


def _is_config(name: str) -> bool:
    try:
        config_file(name)
    except UserError:
        return False
    return True


def report_command(
    *,
    tasks: list[str] | None = None,
    algorithms: list[str] | None = None,
    runs: Path = Path("runs"),
    out: Path = _REPORT,
    records: Path | None = None,
) -> None:
    """Write the report again from what lies in the folder of runs.

    Args:
        tasks: names of tasks (default: all with results).
        algorithms: which ones the report expects (default: those of the last lmrl reproduce).
        runs: folder with <task>/<algorithm>/evaluation/scores.json, or a folder of records.
        out: folder for the report.
        records: add finished cells to this folder of records first, and report on all that are there.
    """
    if records is not None:
        if not runs.is_dir():
            raise UserError(f"{runs} is no folder of runs: nothing can be added to {records}")
        write_records(runs, records)
    page = write_report(runs if records is None else records, out, tasks, algorithms)
    for task in tasks or registry.tasks():
        for folder in seed_folders(runs).values():
            for note in notes_on_weights(folder, task):
                print(f"note: {note}")
    print(f"report: {page}")
