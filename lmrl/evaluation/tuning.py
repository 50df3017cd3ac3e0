"""Choice of decoding settings for a trained policy: temperature, top-p and beta, by games that no score counts."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from lmrl import checkpoints, policies, utils
from lmrl.checkpoints.run_files import has_run
from lmrl.errors import UserError, check_range
from lmrl.evaluation.evaluate import evaluate
from lmrl.evaluation.loading import PolicySpec
from lmrl.evaluation.result_json import read_json, write_json
from lmrl.utils.files import check_may_replace

__all__ = ["BETAS", "CHOSEN", "TEMPERATURES", "TUNED", "Tried", "has_weights", "tune", "tuned_settings"]

CHOSEN = ("temperature", "top_p", "beta")
"""Decoding settings that `tune` chooses."""
TUNED = "tuned.json"
"""The file in a run's folder that holds its best decoding settings."""
TEMPERATURES = (1.0, 0.5, 0.25)
BETAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


class Tried(NamedTuple):
    """A combination of settings, and the mean return with it."""

    settings: dict[str, float]
    return_mean: float
    return_ci: tuple[float, float]


def tune(
    run: Path,
    temperatures: Sequence[float] = TEMPERATURES,
    top_ps: Sequence[float] | None = None,
    betas: Sequence[float] | None = None,
    episodes: int = 256,
    seed: int = 0,
    env: Mapping[str, Any] | None = None,
    on_tried: Callable[[Tried], None] | None = None,
    device: str | None = None,
    slots: int | None = None,
) -> list[Tried]:
    """Evaluate a run with every pair of settings and write the best pair, by mean return, into its folder.

    A pair is a way to sample, a temperature or a top-p at temperature 1, and a beta where the run has values. All pairs
    play the same games: starts that the task keeps for choosing (`lmrl.envs.task.Task.selection`), and seeds that no
    other evaluation has. The return of the best of many pairs is biased upwards, so score it with `lmrl evaluate`.

    Args:
        run: a run folder.
        temperatures: temperatures to try.
        top_ps: nucleus sampling to try at temperature 1; None: those of `lmrl.envs.task.Task.tuning`.
            1 cuts nothing off and is not tried.
        betas: betas to try, if the run has values; None: `BETAS`, and the beta of its training.
        episodes: games for each pair.
        seed: seed of the games.
        env: arguments of the environment.
        on_tried: called with each pair when it is done.
        device: where the policy computes; None: on the CPU.
        slots: number of games that run in parallel; see `evaluate`.

    Returns:
        All pairs, the best first; among equals the one that was tried first.

    Raises:
        UserError: no run folder, nothing to try, or a number outside of its range.
    """
    if not run.is_dir():
        raise UserError(f"what is tuned is the folder of a run, got {str(run)!r}")
    if not temperatures or (betas is not None and not betas):
        raise UserError("temperatures and betas need at least one value each")
    is_own = "settings" in read_json(run / TUNED)
    check_may_replace(run, (TUNED,) if is_own else (), "choice of settings", written=(TUNED,))
    for name, values, interval in (
        ("temperature", temperatures, "[0, inf)"),
        ("beta", betas or (), "[0, inf)"),
        ("top_p", top_ps or (), "(0, 1]"),
    ):
        for value in values:
            check_range(interval, **{f"{name} {value}": value})
    spec = PolicySpec.parse(str(run))
    task = spec.task
    placed: dict[str, Any] = {} if device is None else {"device": device}
    trained = spec.load(env, **placed)
    trained_beta = trained.policy.beta if isinstance(trained.policy, policies.ValueGuidedPolicy) else None
    if betas and trained_beta is None:
        warnings.warn(f"{run} has no values, so no beta is tried", stacklevel=2)
    ways_to_sample: list[dict[str, Any]] = [{"temperature": value} for value in temperatures]
    for top_p in task.tuning.top_ps if top_ps is None else top_ps:
        if top_p < 1:
            ways_to_sample.append({"temperature": 1.0, "top_p": top_p})
    # A run without values has no beta to choose.
    tried_betas: Sequence[float | None] = (None,) if trained_beta is None else betas or sorted({*BETAS, trained_beta})
    tried = []
    for sampling, beta in product(ways_to_sample, tried_betas):
        settings = sampling if beta is None else sampling | {"beta": beta}
        loaded = spec.load(env, module=trained.module, **settings, **placed)
        with utils.threads_for(trained.module):
            # The same seed for each pair, so that all pairs play the same games.
            evaluation = evaluate(loaded, task.name, episodes, seed, slots=slots, env=env, selection=True)
        scores = evaluation.scores()
        low, high = scores["return_ci"]
        tried.append(Tried(settings, float(scores["return_mean"]), (float(low), float(high))))
        if on_tried is not None:
            on_tried(tried[-1])
    tried.sort(key=lambda pair: -pair.return_mean)  # a stable sort: the first of equals stays first
    all_pairs = [pair._asdict() for pair in tried]
    record = {
        "settings": tried[0].settings,
        "weights": trained.weights,
        "episodes": episodes,
        "seed": seed,
        "tried": all_pairs,
    }
    write_json(record, run / TUNED)
    return tried


def tuned_settings(run: Path) -> dict[str, float]:
    """Return the best settings of a run, which `tune` has written.

    Args:
        run: a run folder, or a checkpoint or policy that is kept in one: ``last.ckpt``, ``best``, ``at_25``.

    Raises:
        UserError: it was not tuned, or with other weights, or the file holds something else.
    """
    is_in_run = run.is_file() or (not has_run(run) and has_run(run.parent))
    if is_in_run and not (run / TUNED).is_file():
        run = run.parent
    record = read_json(run / TUNED)
    settings = record.get("settings")
    if not isinstance(settings, dict) or not settings or not set(settings) <= set(CHOSEN):
        raise UserError(f"{run} has no {TUNED}; make it with: lmrl tune {run}")
    numbers = {}
    for name, value in settings.items():
        if not isinstance(value, int | float):
            raise UserError(f"{run / TUNED}: settings must be numbers, got {settings}")
        numbers[name] = float(value)
    if not has_weights(run, record.get("weights")):
        raise UserError(
            f"{run / TUNED} holds settings of other weights than the run has now; tune again: lmrl tune {run}"
        )
    return numbers


def has_weights(run: Path, weights: str | None) -> bool:
    """Whether a run has weights of this hash now. Without a hash, and where its checkpoints are gone, it may have."""
    try:
        present = checkpoints.weights_of(run)
    except UserError:
        return True
    return weights is None or present is None or weights == present
