"""One evaluation from player to files: play, probe the policy where the task says how, write the result folder."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lmrl.data.storage import write_episodes
from lmrl.envs import registry
from lmrl.errors import UserError
from lmrl.evaluation.evaluate import evaluate
from lmrl.evaluation.results import check_evaluation_folder, write_evaluation
from lmrl.types import Episode, Policy

__all__ = ["record_evaluation"]


def record_evaluation(
    policy: Policy,
    task: str,
    directory: Path | str,
    *,
    episodes: int,
    seed: int = 0,
    slots: int = 32,
    name: str | None = None,
    greedy: Callable[[], Policy] | None = None,
    provenance: Mapping[str, Any] | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    env: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Evaluate and write ``episodes.parquet``, ``scores.json`` and, for a task with a probe, ``probe.json``, at once.

    Args:
        policy: whoever plays.
        task: name of the task.
        directory: where the files go, for the report ``runs/<task>/<name>/evaluation``.
        episodes: how many to play.
        seed: of the evaluation.
        slots: how many environments play side by side.
        name: how the policy is called in tables.
        greedy: makes the same policy at temperature 0, for the task's probe (`lmrl.envs.hooks.Probe`).
        provenance: decoding settings, checkpoint, dataset: what the result was made with.
        on_episode: called with each episode as it ends.
        env: arguments of the environment.

    Returns:
        The content of ``scores.json``.

    Raises:
        UserError: the folder holds something else than an evaluation; as `evaluate`, and then the episodes that were
            finished are kept in ``episodes.partial.parquet``, in the order in which they ended; the message says so.
    """
    check_evaluation_folder(directory)
    finished: list[Episode] = []

    def note(episode: Episode) -> None:
        finished.append(episode)
        if on_episode is not None:
            on_episode(episode)

    partial = Path(directory) / "episodes.partial.parquet"
    try:
        played = evaluate(policy, task, episodes, seed, slots, note, name=name, provenance=provenance, env=env)
    except UserError as error:
        if not finished:
            raise
        write_episodes(partial, finished, {"task": task, "policy": name or type(policy).__name__, "seed": seed})
        raise UserError(f"{error}; the {len(finished)} episodes that were finished are in {partial}") from error
    return write_evaluation(played, directory, _probe(policy, greedy, task, env or {}))


def _probe(policy: Policy, greedy: Callable[[], Policy] | None, task: str, arguments: Mapping[str, Any]) -> Any:
    """What the task's probe finds; None if it has none, or the policy cannot be probed."""
    probe = registry.probe(task)
    if greedy is None or probe is None:
        return None
    asked = greedy()
    same = getattr(asked, "weights", None) == getattr(policy, "weights", None)  # a training may have replaced them
    return probe.run(asked, task, arguments) if same else None
