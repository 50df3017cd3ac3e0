"""Judge a policy by recorded episodes, where there is no simulator to play with.

Held-out loss, how well learned values predict the returns of the file, and an off-policy estimate of the policy's
return.
"""

from collections.abc import Sequence
from itertools import compress
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmrl.checkpoints.reading import files_learned_from
from lmrl.data import read_dataset
from lmrl.datamodules.offline import hash_of_file, held_out_mask
from lmrl.decoding.sampling import check_decoding
from lmrl.errors import UserError, check_range, counted
from lmrl.evaluation.calibration import Calibration, calibration
from lmrl.evaluation.intervals import bootstrap_mean
from lmrl.evaluation.off_policy import off_policy_estimate
from lmrl.evaluation.token_values import ActionScores, action_scores, has_values
from lmrl.modules import QSFT, LanguageModule, ValueModule
from lmrl.types import Episode

__all__ = ["HeldOut", "evaluate_recorded", "held_out_episodes"]

_MIN_EPISODES = 20
"""Fewer episodes than this say little."""

_FEW_EFFECTIVE = 10
"""With fewer effective episodes an off-policy estimate is not to be trusted, nor its interval."""


class HeldOut(NamedTuple):
    """The episodes of a file that a policy was not trained on."""

    episodes: list[Episode]
    in_file: int
    """Number of episodes in the file."""
    is_split: bool
    """Whether the policy was trained on the others of the file."""


def held_out_episodes(
    file: str | PathLike[str], module: LanguageModule, task: str | None = None, most: int | None = None
) -> HeldOut:
    """Return the episodes on which a policy can be judged.

    Of a file that it, or what it started from, was trained on these are the ones that the datamodule held out
    (``val_fraction``); of another file all.

    Args:
        file: a file of episodes.
        module: the module of the policy.
        task: the expected task of the episodes; None: any.
        most: return only the first ones; None: all.

    Raises:
        UserError: nothing was held out, or as `lmrl.data.read_dataset`.
    """
    # As `OfflineDataModule` numbers them before it splits them.
    episodes = [episode for episode in read_dataset(file, task) if len(episode) and not episode.aborted]
    file_hash = hash_of_file(Path(file))
    trainings = [known for known in files_learned_from(module.made_with) if known.get("data_hash") == file_hash]
    if not trainings:
        return HeldOut(episodes[:most], len(episodes), False)
    # What the policy started from may have learned from other episodes of the file than the policy.
    mask = np.ones(len(episodes), dtype=bool)
    for known in trainings:
        # The folder of a policy may come from anyone.
        fraction = known.get("val_fraction") or 0.0
        data_seed = known.get("data_seed") or 0
        check_range("[0, 1)", val_fraction=fraction)
        check_range("[0, inf)", data_seed=data_seed)
        mask &= held_out_mask(len(episodes), fraction, int(data_seed))
    held_out = list(compress(episodes, mask))
    if not held_out:
        raise UserError(
            f"the policy was trained on {file}, and nothing of it was held out: train with "
            "data.init_args.val_fraction=0.2, or judge the policy by a file that it has not seen"
        )
    return HeldOut(held_out[:most], len(episodes), True)


def evaluate_recorded(
    module: LanguageModule,
    episodes: Sequence[Episode],
    *,
    behaviour: LanguageModule | None = None,
    behaviour_name: str = "the behaviour model",
    seed: int = 0,
    **settings: Any,
) -> dict[str, Any]:
    """Judge a policy by episodes that another policy has played.

    The off-policy estimate needs the log-probabilities of the recorded actions under the behaviour policy, which took
    them. They come from `behaviour`; else from ``action_logprobs`` of the episodes; else, for MC, ILQL and Q-SFT, from
    their frozen pi_beta. Without any of these there is no estimate.

    Example::

        module = load_module("runs/dialogues/ilql")
        episodes = held_out_episodes("logs.jsonl", module).episodes
        evaluate_recorded(module, episodes, beta=2.0)["off_policy"]

    Args:
        module: the policy, fitted or loaded.
        episodes: episodes that it was not trained on.
        behaviour: a model of the behaviour policy, such as a BC run on its data.
        behaviour_name: name of that model in the result.
        seed: seed of the bootstrap.
        **settings: decoding settings of the policy, see `lmrl.evaluation.token_values.action_scores`.

    Returns:
        JSON-like: ``data_return_mean`` and ``data_return_ci`` of the episodes; ``nll``, nats per token of the actions
        that the policy can say, or None; ``behaviour`` and ``behaviour_nll``; ``off_policy``
        (`lmrl.evaluation.off_policy.OffPolicyEstimate`) or None; ``values``: by ``v`` and ``q`` a
        `lmrl.evaluation.calibration.Calibration`; ``warnings``, sentences.

    Raises:
        UserError: no episode, one that the model cannot read, or settings that the policy does not have.
    """
    if not episodes:
        raise UserError("there is no episode to judge the policy by")
    check_decoding(settings)
    warnings = []
    if len(episodes) < _MIN_EPISODES:
        warnings.append(f"{counted(len(episodes), 'episode')} say little, and their intervals are too narrow")
    scores = list(action_scores(module, episodes, **settings))
    returns = [episode.total_reward for episode in episodes]
    result: dict[str, Any] = {
        "episodes": len(episodes),
        "data_return_mean": float(np.mean(returns)),
        "data_return_ci": list(bootstrap_mean(returns, seed)),
        "nll": _nll(scores),
        "behaviour": None,
        "behaviour_nll": None,
        "off_policy": None,
        "values": _calibrations(module, episodes, scores, seed, warnings),
        "warnings": warnings,
    }

    unsaid = sum(int(np.isinf(score.nll).sum()) for score in scores)
    if unsaid:
        warnings.append(f"the loss leaves out {counted(unsaid, 'action')} that the policy never says")
    recorder = _behaviour(module, episodes, behaviour, behaviour_name)
    if recorder is None:
        warnings.append(
            "no off-policy estimate: the behaviour policy is not known; name a model of it, such as a BC run on the "
            "file (--behaviour RUN)"
        )
        return result
    result["behaviour"] = recorder.name
    result["behaviour_nll"] = recorder.nll
    rewards = []
    log_ratios = []
    impossible = 0
    for episode, score, behaviour_logprob in zip(episodes, scores, recorder.logprobs, strict=True):
        # No model says a reply with a special token of the tokenizer.
        if not np.isfinite(behaviour_logprob).all():
            impossible += 1
            continue
        rewards.append(np.array(episode.rewards))
        log_ratios.append(score.logprob - behaviour_logprob)
    if impossible:
        warnings.append(
            f"{counted(impossible, 'episode')} left out of the off-policy estimate: according to the behaviour policy "
            "they cannot have been written, as with special tokens of the tokenizer in a reply"
        )
    try:
        estimate = off_policy_estimate(rewards, log_ratios, seed)
    except UserError as error:
        warnings.append(f"no off-policy estimate: {error}")
        return result
    result["off_policy"] = {**estimate._asdict(), "return_ci": [*estimate.return_ci], "gain_ci": [*estimate.gain_ci]}
    if estimate.effective_episodes < _FEW_EFFECTIVE:
        why = "more episodes help"
        if estimate.effective_episodes < len(episodes) / 2:
            why = (
                "because the policy differs much from the behaviour policy; more episodes, a smaller beta or a higher "
                "temperature help"
            )
        warnings.append(
            "do not trust the off-policy estimate and its interval: they rest on about "
            f"{estimate.effective_episodes:.1f} of {counted(len(episodes), 'episode')}, {why}"
        )
    if recorder.nll is not None:
        warnings.append("the behaviour policy is a model, and its errors are part of the off-policy estimate")
    return result


class _Behaviour(NamedTuple):
    """How probable the recorded actions were to the policy that took them."""

    name: str
    logprobs: list[NDArray[np.float64]]
    """For each episode, (T,) the log-probability of each action."""
    nll: float | None
    """Nats per token, where a model says it; None where the file does."""


def _behaviour(
    module: LanguageModule, episodes: Sequence[Episode], given: LanguageModule | None, name: str
) -> _Behaviour | None:
    """Return the best known source of these probabilities; None if nothing is known."""
    if given is not None:
        scores = list(action_scores(given, episodes))
    elif all(episode.action_logprobs for episode in episodes):
        # An action has a number for each sampled token or, in files of dialogues, a single number.
        recorded = [np.array(list(map(sum, episode.action_logprobs))) for episode in episodes]
        return _Behaviour("logprobs of the file", recorded, None)
    elif isinstance(module, ValueModule | QSFT):
        # Their language model is the frozen BC run, which cloned the behaviour policy.
        name = "its BC policy (pi_beta)"
        scores = list(action_scores(module, episodes, beta=0.0))
    else:
        return None
    return _Behaviour(name, [score.logprob for score in scores], _nll(scores))


def _nll(scores: Sequence[ActionScores]) -> float | None:
    """Return the mean negative log-likelihood of an action token, in nats, over actions that the model can say."""
    nll = np.concatenate([score.nll for score in scores])
    tokens = np.concatenate([score.tokens for score in scores])
    can_be_said = np.isfinite(nll)
    if not can_be_said.any():
        return None
    return float(nll[can_be_said].sum() / tokens[can_be_said].sum())


def _calibrations(
    module: LanguageModule,
    episodes: Sequence[Episode],
    scores: Sequence[ActionScores],
    seed: int,
    warnings: list[str],
) -> dict[str, Any]:
    """Return the calibration of V and Q, as far as the algorithm has them, and add to the warnings."""
    if not has_values(module):
        return {}
    # By kind of value, the values of each episode and the returns that they estimate.
    predicted: dict[str, list[NDArray[np.float64]]] = {"v": [], "q": []}
    returned: dict[str, list[NDArray[np.float64]]] = {"v": [], "q": []}
    cut_short = 0
    for episode, score in zip(episodes, scores, strict=True):
        # What would have followed an episode that was cut short is not known.
        if not episode.terminated:
            cut_short += 1
            continue
        if score.v is not None:
            predicted["v"].append(score.v)
            returned["v"].append(score.v_return)
        if score.q is not None:
            predicted["q"].append(score.q)
            returned["q"].append(score.q_return)
    if cut_short:
        warnings.append(
            f"{counted(cut_short, 'episode')} that were cut short are left out of the values' calibration: their "
            "returns are not known"
        )
    expectile = float(module.hparams.get("expectile", 0.5))
    if isinstance(module, QSFT) or expectile > 0.5:
        warnings.append(
            "V and Q estimate the returns of a better policy than the behaviour policy: values above the returns of "
            "the file are expected"
        )
    found = {}
    for name, values in predicted.items():
        if values:
            found[name] = _plain(calibration(values, returned[name], seed=seed))
    return found


def _plain(found: Calibration) -> dict[str, Any]:
    """Return a calibration as JSON has it."""
    bins = [{**part._asdict(), "returned_ci": [*part.returned_ci]} for part in found.bins]
    correlation_ci = None if found.correlation_ci is None else [*found.correlation_ci]
    return {**found._asdict(), "correlation_ci": correlation_ci, "bias_ci": [*found.bias_ci], "bins": bins}
