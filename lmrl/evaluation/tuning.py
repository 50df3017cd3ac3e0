"""How a trained policy plays best: temperature, top-p and beta of values, chosen by games that no score counts."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from lmrl.errors import UserError, check_range
from lmrl.evaluation.evaluate import evaluate
from lmrl.evaluation.result_files import read_json, write_json
from lmrl.evaluation.results import TUNED
from lmrl.loading import PolicySpec
from lmrl.policies.value_guided import ValueGuidedPolicy
from lmrl.utils.files import check_may_replace

__all__ = ["BETAS", "TEMPERATURES", "Tried", "tune"]

TEMPERATURES = (1.0, 0.5, 0.25)
BETAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


class Tried(NamedTuple):
    """A setting and how it played."""

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
    slots: int = 32,
) -> list[Tried]:
    """Play a run with every pair of settings and leave the best, by mean return, in its folder.

    A pair is a way to sample, a temperature or a top-p at temperature 1, and a beta where the run has values. All play
    the same games: starts that the task keeps for choosing (`lmrl.envs.task.Task.selection`), and seeds that no other
    evaluation has. The best of many is optimistic about itself, so its score is for `lmrl evaluate`.

    Args:
        run: a run folder.
        temperatures: to try.
        top_ps: nucleus sampling to try at temperature 1; None: those of `lmrl.envs.task.Task.tuning`.
            1 cuts nothing off and is not tried.
        betas: to try, of a run with values; None: `BETAS`, and the one that it was trained with.
        episodes: games for each pair.
        seed: of the games.
        env: arguments of the environment.
        on_tried: called with each as it is done.
        device: where the policy computes; None: on the CPU.
        slots: games side by side.

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
    check_range("[0, inf)", **{f"temperature {value}": value for value in temperatures})
    check_range("[0, inf)", **{f"beta {value}": value for value in betas or ()})
    check_range("(0, 1]", **{f"top_p {value}": value for value in top_ps or ()})
    spec = PolicySpec.parse(str(run))
    task = spec.task
    trained = spec.load(env).policy
    own = trained.beta if isinstance(trained, ValueGuidedPolicy) else None
    sampling: list[dict[str, Any]] = [{"temperature": value} for value in temperatures]
    cut = task.tuning.top_ps if top_ps is None else top_ps
    sampling += [{"temperature": 1.0, "top_p": value} for value in cut if value < 1]
    on_device: dict[str, Any] = {} if device is None else {"device": device}
    found = []
    for sampled, beta in product(sampling, (None,) if own is None else betas or sorted({*BETAS, own})):
        settings = sampled if beta is None else sampled | {"beta": beta}
        loaded = spec.load(env, **settings, **on_device)
        scores = evaluate(loaded, task.name, episodes, seed, slots=slots, env=env, selection=True).scores()
        low, high = scores["return_ci"]
        found.append(Tried(settings, float(scores["return_mean"]), (float(low), float(high))))
        if on_tried is not None:
            on_tried(found[-1])
    found.sort(key=lambda tried: -tried.return_mean)
    record = {"settings": found[0].settings, "episodes": episodes, "seed": seed, "tried": [t._asdict() for t in found]}
    write_json(record, run / TUNED)
    return found
