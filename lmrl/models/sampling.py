"""From logits to a token: pure functions, and randomness that belongs to the episode."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmrl.errors import check_range

__all__ = ["SamplingSettings", "check_decoding", "draw", "process_logits", "uniforms"]

_RANGES = {
    "[0, inf)": ("temperature", "top_k", "support_top_k", "beta"),
    "(0, 1]": ("top_p", "support_top_p"),
    "[1, inf)": ("max_new_tokens", "slots"),
}


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How the next token is chosen, and when an action ends.

    Raises:
        UserError: a value is outside its range.
    """

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches p."""
    max_new_tokens: int = 64
    stop_ids: frozenset[int] = frozenset()
    """Ids after which an action is finished; the id itself belongs to the action."""

    def __post_init__(self) -> None:
        check_decoding({name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "max_new_tokens")})


def check_decoding(settings: Mapping[str, Any]) -> None:
    """Check the numbers among decoding settings: temperature, top_k, top_p, support_top_k, beta and the like.

    Raises:
        UserError: a value is outside its range.
    """
    for interval, names in _RANGES.items():
        check_range(interval, **{name: settings[name] for name in names if name in settings})


def process_logits(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    invalid: Tensor | None = None,
) -> Tensor:
    """The log-probabilities of the very distribution that is sampled from.

    The order is fixed: invalid ids out, temperature, top-k, top-p. Tokens that tie with the k-th are kept.

    Args:
        logits: ``(rows, vocabulary)`` of any floating type, ``-inf`` where a token must not be said; all arithmetic is
            float32.
        temperature: 0 puts all mass on the largest logit.
        top_k: 0 is off.
        top_p: 1 is off.
        invalid: ``(vocabulary,)``, True for ids that are never sampled (padding, ids the tokenizer does not know).

    Returns:
        ``(rows, vocabulary)`` in float32, ``-inf`` where the probability is exactly 0.
    """
    scores = logits.float()
    if invalid is not None:
        scores = scores.masked_fill(invalid, -torch.inf)
    if temperature == 0.0:
        certain = torch.full_like(scores, -torch.inf)
        return certain.scatter_(-1, scores.argmax(-1, keepdim=True), 0.0)
    if temperature != 1.0:
        scores = scores / temperature
    if 0 < top_k < scores.shape[-1]:
        scores = scores.masked_fill(scores < scores.topk(top_k).values[:, -1:], -torch.inf)
    if top_p < 1.0:
        scores = _nucleus(scores, top_p)
    return scores.log_softmax(-1)


def _nucleus(scores: Tensor, top_p: float) -> Tensor:
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    probability = ordered.softmax(-1)
    # A token goes when the mass before it already reaches top_p; so the first one always stays.
    outside = probability.cumsum(-1) - probability >= top_p
    return scores.masked_fill(torch.zeros_like(outside).scatter_(-1, order, outside), -torch.inf)


def uniforms(seed: int, turn: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Numbers in [0, 1) that depend on the episode's seed and the turn only.

    The generator is counter-based (Philox 4x64, Salmon et al. 2011, keyed by the pair), so streams of different
    episodes and turns are independent, and neither the slot nor the batch that an episode runs in matters.
    """
    key = np.array([seed % 2**64, turn % 2**64], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).random(count)


def draw(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """One token per row by the inverse of the cumulative distribution, summed in float64.

    Args:
        logprobs: ``(rows, vocabulary)`` from `process_logits`.
        uniform: ``(rows,)`` in [0, 1), float64.

    Returns:
        ``(rows,)`` ids; a token of probability 0 never comes out, whatever the uniform number.
    """
    cumulative = logprobs.double().exp().cumsum(-1)
    # The largest uniform number is 1 - 2^-53, and that times a total is below the total, so there is a token for it.
    target = uniform.to(cumulative) * cumulative[:, -1]
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
