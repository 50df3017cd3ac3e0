"""``lmrl evaluate FILE``: judge a trained policy by recorded episodes, and print and write what they say."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lmrl.datamodules.offline import hash_of_file
from lmrl.errors import OtherTaskError, UserError
from lmrl.evaluation.evaluate import versions
from lmrl.evaluation.loading import PolicySpec
from lmrl.evaluation.recorded import evaluate_recorded, held_out_episodes
from lmrl.evaluation.result_json import read_json, write_json
from lmrl.modules import load_module
from lmrl.modules.load import device_of
from lmrl.utils.consoles import table_console
from lmrl.utils.files import check_may_replace, locked

__all__ = ["evaluate_file"]

_SCORES = "scores.json"


def evaluate_file(
    file: Path,
    spec: PolicySpec,
    *,
    behaviour: str | None,
    episodes: int | None,
    seed: int,
    out: Path,
    settings: Mapping[str, Any],
    device: str,
    allow_other_task: bool,
) -> None:
    """Judge a policy by the episodes of a file that it was not trained on.

    Args:
        file: file of episodes.
        spec: the policy.
        behaviour: the name of a model of who wrote the file; None: see `evaluate_recorded`.
        episodes: use only the first ones; None: all.
        seed: seed of the bootstrap.
        out: folder for ``scores.json``.
        settings: decoding settings of the policy.
        device: where the models compute.
        allow_other_task: judge a policy by another task than its own.

    Raises:
        UserError: the policy is not a trained one or of another task, and as `held_out_episodes` and
            `evaluate_recorded`.
    """
    if spec.file is None:
        raise UserError(f"{file} can judge a policy that lmrl trained (a run folder, zoo:TASK/NAME), not {spec.name!r}")
    if spec.trained_on not in (None, spec.task.name) and not allow_other_task:
        raise OtherTaskError(f"{spec.name} was trained on {spec.trained_on}, and {file} is of {spec.task.name}")
    # Another evaluation of a file may be replaced, but not one of played games.
    own = [_SCORES] if "file" in read_json(out / _SCORES) else []
    check_may_replace(out, own, "evaluation of a file", written=[_SCORES])
    decoding = {**spec.published_settings, **settings}
    place = device_of(device)
    module = load_module(spec.file, allow_pickle=spec.allow_pickle).to(place)
    model = None
    if behaviour is not None:
        model = load_module(behaviour, allow_pickle=spec.allow_pickle).to(place)
        wrote = getattr(model, "made_with", {}).get("task")
        if wrote not in (None, spec.task.name) and not allow_other_task:
            raise OtherTaskError(f"{behaviour} was trained on {wrote}, and {file} is of {spec.task.name}")
    held_out = held_out_episodes(file, module, spec.task.name, episodes)
    with locked(out, "evaluation folder"):
        found = evaluate_recorded(
            module, held_out.episodes, behaviour=model, behaviour_name=behaviour or "", seed=seed, **decoding
        )
        scores = {
            "task": spec.task.name,
            "policy": spec.name,
            "file": str(file),
            "episodes_in_file": held_out.in_file,
            "held_out": held_out.is_split,
            "seed": seed,
            **found,
            "provenance": {
                "policy": spec.name,
                "decoding": decoding,
                "weights": module.made_with.get("weights"),
                "data_hash": hash_of_file(file),
                "versions": versions(),
            },
        }
        write_json(scores, out / _SCORES)
    _show(scores)
    print(f"written to {out / _SCORES}")


def _show(scores: Mapping[str, Any]) -> None:
    """Print the scores."""
    console = table_console()
    which = f"{scores['episodes']} of {scores['episodes_in_file']} episodes"
    if scores["held_out"]:
        which += ", held out from its training"
    lines = [
        f"{scores['file']}, policy {scores['policy']}: {which}",
        f"return of the file    {scores['data_return_mean']:.3f}  {_interval(scores['data_return_ci'])}",
    ]
    estimate = scores["off_policy"]
    if estimate is not None:
        lines += [
            f"return of the policy  {estimate['return_mean']:.3f}  {_interval(estimate['return_ci'])}, off-policy "
            f"estimate by {estimate['effective_episodes']:.0f} effective episodes",
            f"gain                  {estimate['gain']:+.3f}  {_interval(estimate['gain_ci'])}",
        ]
    loss = "loss                  none: the policy says none of the replies"
    if scores["nll"] is not None:
        loss = f"loss                  {scores['nll']:.3f} nats a token"
    if scores["behaviour_nll"] is not None:
        loss += f"; {scores['behaviour']}: {scores['behaviour_nll']:.3f}"
    lines.append(loss)
    console.print("\n".join(lines), markup=False, soft_wrap=True)
    for name, found in scores["values"].items():
        _show_values(console, name.upper(), found)
    for warning in scores["warnings"]:
        console.print(f"note: {warning}", markup=False, soft_wrap=True)


def _show_values(console: Console, name: str, found: Mapping[str, Any]) -> None:
    """Print how V or Q predicts the returns, and its reliability table."""
    correlation = "none"
    if found["correlation"] is not None:
        correlation = f"{found['correlation']:.2f}"
    if found["correlation_ci"] is not None:
        low, high = found["correlation_ci"]
        correlation += f" [{low:.2f}, {high:.2f}]"
    explained = "none" if found["explained_variance"] is None else f"{found['explained_variance']:.2f}"
    low, high = found["bias_ci"]
    console.print(
        f"{name} of the actions      correlation with the return {correlation}, explained variance {explained}, "
        f"bias {found['bias']:+.2f} [{low:+.2f}, {high:+.2f}]",
        markup=False,
        soft_wrap=True,
    )
    table = Table("predicted", "returned", "95 % interval", "actions")
    for part in found["bins"]:
        low, high = part["returned_ci"]
        table.add_row(
            f"{part['predicted']:.3f}", f"{part['returned']:.3f}", f"{low:.3f} to {high:.3f}", str(part["actions"])
        )
    console.print(table)


def _interval(interval: list[float]) -> str:
    low, high = interval
    return f"(95 % interval {low:.3f} to {high:.3f})"
