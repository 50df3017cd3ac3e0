"""The probability of every action token under a trained model, with V and Q if the model has values.

`token_values` is for readers of an episode; `action_scores` has the numbers of whole actions that statistics need.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from lightning.fabric.utilities import move_data_to_device
from numpy.typing import NDArray
from torch import Tensor

from lmrl.decoding.sampling import add_q_to_logits, min_q, process_logits
from lmrl.errors import UserError, in_one_line
from lmrl.losses import Turns, probability_ratio, returns_to_go, turns_of
from lmrl.models.lm import hidden_states, logit_table, positions_of, trunk_of
from lmrl.modules import AWR, QSFT, ArCHer, GuidedPPO, LanguageModule, ValueModule
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.encoding import Encoder, encoder_for, invalid_ids
from lmrl.tokens.segments import action_ids, segments
from lmrl.types import Episode

__all__ = ["ActionScores", "TokenValue", "action_scores", "has_values", "token_values"]


class TokenValue(NamedTuple):
    """One token of an action."""

    text: str
    probability: float
    """Probability of the token under the policy at temperature 1; with values, weighted by ``exp(beta * Q)``."""
    v: float | None
    """Value of the state before the token. For MC and Q-SFT, which have no V, it is the expected Q under that policy.
    None without values."""
    q: float | None
    """The lowest Q of the token."""


def token_values(module: LanguageModule, episodes: Iterable[Episode]) -> Iterator[list[list[TokenValue]]]:
    """Yield for each episode the tokens of each action, read in the same context in which the policy would act.

    Raises:
        UserError: the module does not record how it reads episodes, or an action has no tokens.
    """
    window = module.context_window()
    encoder = encoder_for(module.tokenizer, window)
    for episode in episodes:
        batch = collate(list(segments(module.as_read(episode), encoder, window)))
        with torch.inference_mode(), _eval_mode(module):
            numbers = _probability_v_q(module, move_data_to_device(batch, module.device), encoder.end)
        # The batch holds the action tokens of the episode one after the other, as `action_ids` does.
        rows = iter(torch.stack(numbers, dim=1).tolist())
        actions = []
        for ids in action_ids(episode, encoder):
            actions.append([_token_value(encoder, token, next(rows)) for token in ids])
        yield actions


@contextmanager
def _eval_mode(module: LanguageModule) -> Iterator[None]:
    """Switch dropout off, as in play, and leave the module in the mode that it was in."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def _token_value(encoder: Encoder, token: int, row: list[float]) -> TokenValue:
    probability, v, q = row
    known = not math.isnan(q)  # NaN marks a module without values
    return TokenValue(encoder.decode((token,)), probability, v if known else None, q if known else None)


def _probability_v_q(module: LanguageModule, batch: TokenBatch, end: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return probability, V and Q of the N action tokens, (N,) each; V and Q are NaN for a module without values."""
    outputs = _policy_and_values(module, batch, end)
    p = outputs.logits.softmax(-1)
    state_and_token = batch.state, batch.token
    probability = p[state_and_token]
    if outputs.q is None:
        return probability, torch.full_like(probability, torch.nan), torch.full_like(probability, torch.nan)
    v = (p * outputs.q).sum(-1) if outputs.v is None else outputs.v
    return probability, v[batch.state], outputs.q[state_and_token]


class _StateOutputs(NamedTuple):
    """The outputs of a module at the S states of a batch."""

    logits: Tensor
    """(S, vocabulary) logits of its policy at temperature 1; ``-inf`` for ids that are never sampled."""
    q: Tensor | None
    """(S, vocabulary) the lowest Q of each token; None without Q of tokens."""
    v: Tensor | None
    """(S,) V of each state, from a V head next to those Q heads; None without one."""


def _policy_and_values(
    module: LanguageModule, batch: TokenBatch, end: int | None, beta: float | None = None
) -> _StateOutputs:
    """Return the policy and the values at the states of a batch; ``beta`` weighs the values, None: the module's."""
    # The same combination of logits and values as in `ValueGuidedPolicy` and `RatioGuidedPolicy`.
    logits = logit_table(module.model, hidden_states(trunk_of(module.model), batch)).float()
    invalid = invalid_ids(module.tokenizer, logits.shape[-1], logits.device, end)
    q: Tensor | None = None
    v: Tensor | None = None
    if isinstance(module, ValueModule | GuidedPPO):
        trunk, q_heads, v_head = module.played_values
        hidden = hidden_states(trunk, batch)
        q = min_q(list(q_heads), hidden)
        logits = add_q_to_logits(logits, q, module.beta if beta is None else beta)
        v = None if v_head is None else v_head(hidden).squeeze(-1).float()
    elif isinstance(module, QSFT):
        other = logit_table(module.q_model, hidden_states(trunk_of(module.q_model), batch)).float()
        q_logits = other.masked_fill(invalid, -torch.inf)
        base_logits = logits.masked_fill(invalid, -torch.inf)
        # The ratio of both probabilities estimates Q on a scale from 0 to 1; `return_range` maps it to returns.
        ratio = probability_ratio(q_logits, base_logits, module.support)
        logits = add_q_to_logits(logits, ratio, module.beta if beta is None else beta)
        low, high = module.return_range
        q = low + (high - low) * ratio
    elif beta is not None:
        raise UserError(f"beta is the weight of learned values, which {type(module).__name__} does not play with")
    return _StateOutputs(logits.masked_fill(invalid, -torch.inf), q, v)


FloatArray: TypeAlias = NDArray[np.float64]


class ActionScores(NamedTuple):
    """Numbers of the T actions of an episode, (T,) float64 each."""

    logprob: FloatArray
    """Log-probability of the action under the policy with its decoding settings; ``-inf`` if it is never sampled."""
    nll: FloatArray
    """Negative log-likelihood under the policy at temperature 1, without top-k and top-p."""
    tokens: NDArray[np.int64]
    """Number of tokens."""
    v: FloatArray | None
    """V of the state before the action; None without a V head."""
    v_return: FloatArray
    """The recorded return that this V estimates, with the discount of the algorithm."""
    q: FloatArray | None
    """The lowest Q, read with the last token of the action: the value of the action as a whole. None without Q."""
    q_return: FloatArray
    """The recorded return that this Q estimates."""


def has_values(module: LanguageModule) -> bool:
    """Return whether an algorithm has values that estimate the returns of recorded actions."""
    return isinstance(module, ValueModule | QSFT | AWR | ArCHer)


def action_scores(
    module: LanguageModule,
    episodes: Iterable[Episode],
    *,
    beta: float | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Iterator[ActionScores]:
    """Yield for each episode the scores of its actions, read in the same contexts in which the policy would act.

    Values are those of MC, ILQL, Q-SFT, AWR and ArCHer, see `has_values`.

    Args:
        module: a module that was fitted or loaded.
        episodes: episodes from a file or a rollout.
        beta: weight of the values in the policy; None: that of the module.
        temperature: temperature of the policy; 0 is greedy.
        top_k: sample among the k most probable tokens only; 0 is off.
        top_p: sample among the most probable tokens with this total probability only; 1 is off.

    Raises:
        UserError: the module does not record how it reads episodes, has no values that ``beta`` could weigh, or an
            action has no tokens or does not fit into the model.
    """
    window = module.context_window()
    encoder = encoder_for(module.tokenizer, window)
    positions = positions_of(module.model.config)
    gamma = module.hparams.get("gamma", 1.0)
    for episode in episodes:
        parts = list(segments(module.as_read(episode), encoder, window))
        longest = max(len(part.ids) for part in parts)
        if longest > positions:
            beginning = in_one_line(repr(episode.observations[0]), 60)
            raise UserError(
                f"the episode that begins {beginning} needs {longest} tokens up to the end of an action, and the model "
                f"reads {positions}"
            )
        # The critic of ArCHer reads a whole action, so the states behind actions are needed too.
        batch = collate(parts, bootstrap=False, after=True)
        assert batch.turn_end is not None
        turns = turns_of(batch.turn_end)
        with torch.inference_mode(), _eval_mode(module):
            moved = move_data_to_device(batch, module.device)
            outputs = _policy_and_values(module, moved, encoder.end, beta)
            chosen = outputs.logits[moved.state]  # (N, vocabulary) where the action tokens are chosen
            played = process_logits(chosen, temperature=temperature, top_k=top_k, top_p=top_p)
            logprob = _token_logprobs(played, moved)
            full = _token_logprobs(process_logits(chosen), moved)
            v, q = _turn_values(module, moved, outputs, turns)
        # V is read before the first token of an action, Q with its last one, on which the reward sits.
        reward = batch.reward.numpy()
        if isinstance(module, ArCHer):  # its steps are turns, those of the others tokens
            v_return = q_return = returns_to_go(reward[turns.last.numpy()], gamma)
        else:
            to_go = returns_to_go(reward, gamma)
            v_return = to_go[turns.first.numpy()]
            q_return = to_go[turns.last.numpy()]
        yield ActionScores(
            logprob=turns.sum(logprob).numpy(),
            nll=-turns.sum(full).numpy(),
            tokens=(turns.last - turns.first + 1).numpy(),
            v=None if v is None else v.double().cpu().numpy(),
            v_return=v_return,
            q=None if q is None else q.double().cpu().numpy(),
            q_return=q_return,
        )


def _token_logprobs(logprobs: Tensor, batch: TokenBatch) -> Tensor:
    """Return the log-probabilities of the N action tokens, (N,) float64 on the CPU, from (N, vocabulary) of all."""
    return logprobs.gather(1, batch.token[:, None])[:, 0].double().cpu()


def _turn_values(
    module: LanguageModule, batch: TokenBatch, outputs: _StateOutputs, turns: Turns
) -> tuple[Tensor | None, Tensor | None]:
    """Return V before each of the T actions and Q of them, (T,) each; None where the algorithm has none."""
    first = turns.first.to(batch.state.device)
    last = turns.last.to(batch.state.device)
    before = batch.state[first]
    if isinstance(module, AWR | ArCHer):
        hidden = hidden_states(module.critic.trunk, batch)
        v = module.critic.v(hidden[before])
        if isinstance(module, AWR):
            return v, None
        assert batch.after is not None
        return v, torch.stack(module.critic.q(hidden[batch.after[last]])).amin(0)
    if isinstance(module, ValueModule | QSFT):
        assert outputs.q is not None
        q = outputs.q[batch.state[last], batch.token[last]]
        return None if outputs.v is None else outputs.v[before], q
    return None, None
