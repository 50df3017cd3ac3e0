"""The probability of every action token under a trained model, with V and Q if the model has values."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor

from lmrl.decoding.sampling import add_q_to_logits, min_q
from lmrl.losses import probability_ratio
from lmrl.models.lm import hidden_states, logit_table, trunk_of
from lmrl.modules import QSFT, GuidedPPO, LanguageModule, ValueModule
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.encoding import Encoder, encoder_for, invalid_ids
from lmrl.tokens.segments import action_ids, segments
from lmrl.types import Episode

__all__ = ["TokenValue", "token_values"]


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
        with torch.inference_mode():
            numbers = _numbers(module, move_data_to_device(batch, module.device), encoder.end)
        # The batch holds the action tokens of the episode one after the other, as `action_ids` does.
        rows = iter(torch.stack(numbers, dim=1).tolist())
        actions = []
        for ids in action_ids(episode, encoder):
            actions.append([_value(encoder, token, next(rows)) for token in ids])
        yield actions


def _value(encoder: Encoder, token: int, row: list[float]) -> TokenValue:
    probability, v, q = row
    known = not math.isnan(q)  # NaN marks a module without values
    return TokenValue(encoder.decode((token,)), probability, v if known else None, q if known else None)


def _numbers(module: LanguageModule, batch: TokenBatch, end: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return probability, V and Q of the N action tokens, (N,) each; V and Q are NaN for a module without values."""
    logits = logit_table(module.model, hidden_states(trunk_of(module.model), batch)).float()
    invalid = invalid_ids(module.tokenizer, logits.shape[-1], logits.device, end)
    q: Tensor | None = None
    v: Tensor | None = None
    if isinstance(module, ValueModule | GuidedPPO):
        trunk, q_heads, v_head = module.played_values
        hidden = hidden_states(trunk, batch)
        q = min_q(list(q_heads), hidden)
        p = _guided(logits, q, module.beta, invalid)
        v = None if v_head is None else v_head(hidden).squeeze(-1).float()
    elif isinstance(module, QSFT):
        other = logit_table(module.q_model, hidden_states(trunk_of(module.q_model), batch)).float()
        q_logits = other.masked_fill(invalid, -torch.inf)
        base_logits = logits.masked_fill(invalid, -torch.inf)
        # The ratio of both probabilities estimates Q on a scale from 0 to 1; `return_range` maps it to returns.
        ratio = probability_ratio(q_logits, base_logits, module.support)
        p = _guided(logits, ratio, module.beta, invalid)
        low, high = module.return_range
        q = low + (high - low) * ratio
    else:
        # A policy without values: V and Q stay unknown.
        p = logits.masked_fill(invalid, -torch.inf).softmax(-1)
    here = batch.state, batch.token
    if q is None:
        return p[here], torch.full_like(p[here], torch.nan), torch.full_like(p[here], torch.nan)
    if v is None:
        v = (p * q).sum(-1)
    return p[here], v[batch.state], q[here]


def _guided(logits: Tensor, q: Tensor, beta: float, invalid: Tensor) -> Tensor:
    return add_q_to_logits(logits, q, beta).masked_fill(invalid, -torch.inf).softmax(-1)
