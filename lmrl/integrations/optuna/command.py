"""``lmrl sweep``: search the options of a run file for the settings that play best."""

import shlex
import sys
from pathlib import Path

from lmrl.errors import UserError
from lmrl.integrations.optuna.outcome import best_table, write_outcome
from lmrl.integrations.optuna.search import run_sweep
from lmrl.integrations.optuna.space import read_space
from lmrl.integrations.optuna.trials import Sweep, best_of
from lmrl.utils.consoles import table_console

__all__ = ["sweep_command"]


def sweep_command(
    configs: list[str],
    *,
    space: Path,
    out: Path,
    trials: int = 20,
    jobs: int = 1,
    sampler: str = "tpe",
    seed: int = 0,
    episodes: int = 256,
    overrides: list[str] | None = None,
) -> None:
    """Train with one setting after another and let each play; the same command resumes where it stopped.

    Args:
        configs: files of the run, as lmrl fit --config takes them, in their order.
        space: a YAML file with dotted options and what each may be: {low: 1e-5, high: 1e-3, log: true}, with step for
            steps, or a list of choices.
        out: folder for the study, the trials, table.csv, table.json, sweep.png and best.yaml.
        trials: how many in all, with those of earlier commands.
        jobs: trials side by side, each with its share of the cores.
        sampler: tpe (learns from the trials before), random, or grid (all combinations of lists of choices).
        seed: seed of the search, of each training, and of the games.
        episodes: games by which a trial is scored; no reported score uses them.
        overrides: settings for every training, e.g. trainer.max_steps=100.
    """
    words = tuple(f"--{word.removeprefix('--')}" for word in overrides or ())
    sweep = Sweep(tuple(configs), read_space(space), out, sampler, seed, episodes, words)
    try:
        finished = run_sweep(sweep, trials=trials, jobs=jobs)
    except KeyboardInterrupt:
        print("finished trials are kept; the same command continues", file=sys.stderr)
        raise
    write_outcome(sweep, finished)
    if best_of(finished) is None:
        raise UserError(f"no trial was done; the logs are in {out / 'trials'}")
    table_console().print(best_table(sweep.space, finished))
    command = ["lmrl", "fit"]
    for name in (*configs, out / "best.yaml"):
        command += ["--config", str(name)]
    print(f"written to {out}; the best: {shlex.join([*command, *words])}")
