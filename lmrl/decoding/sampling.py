"""Sampling of actions from the logits of many slots, with or without the guidance of learned values.

A sample depends on the seed and the turn of its episode alone, whatever the slot and the batch.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lmrl.decoding.engine import Engine
from lmrl.errors import UserError, check_range
from lmrl.losses import probability_ratio

__all__ = [
    "Decoder",
    "Guidance",
    "RatioGuidance",
    "SampledAction",
    "SamplingSettings",
    "add_q_to_logits",
    "check_decoding",
    "draw",
    "min_q",
    "process_logits",
    "uniforms",
]

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
        check_range("[0, inf)", temperature=self.temperature, top_k=self.top_k)
        check_range("(0, 1]", top_p=self.top_p)
        check_range("[1, inf)", max_new_tokens=self.max_new_tokens)


def check_decoding(settings: Mapping[str, Any]) -> None:
    """Check the numbers among decoding settings: temperature, top_k, top_p, support_top_k, beta and the like.

    Raises:
        UserError: a value is outside its range.
    """
    for interval, names in _RANGES.items():
        for name in names:
            if name in settings:
                check_range(interval, **{name: settings[name]})


def process_logits(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    invalid: Tensor | None = None,
) -> Tensor:
    """The log-probabilities of the very distribution that is sampled from.

    The order is fixed: invalid ids out, temperature, top-k, top-p.

    Args:
        logits: ``(rows, vocabulary)`` of any floating type, ``-inf`` for tokens that must not be sampled; computed in
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
        # Tokens that tie with the k-th are kept.
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
    """Numbers in [0, 1) that depend on the episode's seed and the turn only."""
    # Philox 4x64 (Salmon et al. 2011) is counter-based: streams of different keys are independent.
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


Head: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Guidance:
    """Reads the same contexts with a value model and its own cache.

    Raises:
        UserError: no head, or a number outside of its range.
    """

    engine: Engine
    """Engine of the value model; never the language model's, whose keys and values are of other weights."""
    q_heads: Sequence[Head]
    """``(rows, width)`` hidden vectors to ``(rows, vocabulary)`` float32; the lowest of them counts."""
    beta: float
    """Weight of the values; 0 leaves the language model as it is."""
    support_top_k: int = 0
    """Only the k tokens that the language model finds most probable can be sampled; 0 allows all."""
    support_top_p: float = 1.0
    """Only the smallest set of tokens to which the language model gives probability p can be sampled."""

    def __post_init__(self) -> None:
        if not self.q_heads:
            raise UserError("q_heads must have at least one head, got none")
        check_range("[0, inf)", beta=self.beta, support_top_k=self.support_top_k)
        check_range("(0, 1]", support_top_p=self.support_top_p)

    def q(self, hidden: Tensor, base: Tensor) -> Tensor:
        """The values of all tokens.

        Args:
            hidden: ``(rows, width)`` hidden vectors of the value model.
            base: ``(rows, vocabulary)`` logits of the language model, nothing masked.

        Returns:
            ``(rows, vocabulary)`` float32.
        """
        return min_q(self.q_heads, hidden)


@dataclass(frozen=True, slots=True, eq=False)
class RatioGuidance(Guidance):
    """The value model is a language model, whose probabilities over the policy's are the values (Q-SFT).

    Its vocabulary head takes the place of the Q heads; see `lmrl.losses.probability_ratio`.
    """

    support: float = 0.0
    """Tokens to which the language model gives less have the value 0."""
    invalid: Tensor | None = None
    """``(vocabulary,)`` bool, True for ids that are never sampled."""

    def q(self, hidden: Tensor, base: Tensor) -> Tensor:
        """The ratios of all tokens; see `Guidance.q`."""
        (head,) = self.q_heads
        scores = head(hidden).float()
        base = base.float()
        if self.invalid is not None:
            scores = scores.masked_fill(self.invalid, -torch.inf)
            base = base.masked_fill(self.invalid, -torch.inf)
        return probability_ratio(scores, base, self.support)


def min_q(q_heads: Sequence[Head], hidden: Tensor) -> Tensor:
    """The pessimistic value of every token: the minimum over the heads, ``(rows, vocabulary)`` in float32."""
    return torch.stack([head(hidden).float() for head in q_heads]).amin(0)


def add_q_to_logits(logits: Tensor, q: Tensor, beta: float) -> Tensor:
    """``logits + beta * q`` in float32 (Snell et al. 2022, section 4.3, up to a constant of each state)."""
    # V is left out, since softmax cancels it. Ids are masked later: 0 * inf would be NaN.
    return logits.float() + beta * q.float()


class SampledAction(NamedTuple):
    """One action as it was sampled."""

    ids: tuple[int, ...]
    """The sampled ids, the stop id included."""
    logprobs: tuple[float, ...]
    """Log-probability of each id under the very distribution it was drawn from."""
    finished: bool
    """Whether a stop id ended it (else there was no room for more)."""
    values: tuple[float, ...] = ()
    """V of the state in which each id was drawn, if there is a head for it."""


class _Token(NamedTuple):
    """One sampled token."""

    id: int
    logprob: float
    value: float = 0.0
    """V of the state in which it was drawn; 0 without a head for it."""


class _NextToken(NamedTuple):
    """Outputs of the heads for the next token."""

    logits: Tensor
    """``(rows, vocabulary)`` float32."""
    values: Tensor | None
    """``(rows,)`` float32, V of each row's state; None without a head for it."""


class Decoder:
    """A language model that samples actions, alone or guided by values.

    Args:
        engine: engine of the language model.
        guidance: adds ``beta * min Q`` to its logits; None or a beta of 0 leaves them as they are, bit by bit.
        invalid: ``(vocabulary,)`` bool, True for ids that are never sampled; masked after everything is added up.
        v_head: hidden vectors (of the value model, if there is guidance) to V; without it actions have no values.
    """

    def __init__(
        self,
        engine: Engine,
        guidance: Guidance | None = None,
        invalid: Tensor | None = None,
        v_head: Head | None = None,
    ) -> None:
        if guidance is not None and guidance.engine is engine:
            raise UserError("guidance must have an engine of its own: two models must not share a cache")
        self.engine = engine
        self.guidance = guidance
        self.invalid = invalid
        self.v_head = v_head
        self._value_engine: Engine | None = None
        # With beta 0 the value model is read for V alone.
        if guidance is not None and (guidance.beta > 0 or v_head is not None):
            self._value_engine = guidance.engine

    def reset(self) -> None:
        """Forget everything that was read."""
        self.engine.reset()
        if self.guidance is not None:
            self.guidance.engine.reset()

    def score(self, slots: Sequence[int], contexts: Sequence[Sequence[int]]) -> Tensor:
        """Logits of the next token after each context.

        Returns:
            ``(rows, vocabulary)`` float32 logits: the language model's plus the guidance, ``-inf`` for ids that are
            invalid or outside of the language model's support.
        """
        return self._feed_contexts(slots, contexts).logits

    def generate(
        self,
        slots: Sequence[int],
        contexts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        turns: Sequence[int],
        settings: SamplingSettings,
    ) -> list[SampledAction]:
        """Sample an action after every context; a row leaves the batch as soon as it has drawn a stop id.

        Args:
            slots: distinct; a slot keeps its cache between calls.
            contexts: all ids of each context.
            seeds: seeds of the episodes. With the turn they decide the sample, whatever the slot and the batch.
            turns: turns of the episodes.
            settings: how to sample, and when to stop.

        Returns:
            One action per row. Of its ids all but the last are in the cache.

        Raises:
            UserError: a context is too long or empty, or logits are not finite.
        """
        # (rows, max_new_tokens) uniform numbers, one for each token that a row may draw.
        streams = [uniforms(seed, turn, settings.max_new_tokens) for seed, turn in zip(seeds, turns, strict=True)]
        draws = torch.from_numpy(np.stack(streams))

        tokens: list[list[_Token]] = [[] for _ in slots]
        active = list(range(len(slots)))  # rows that have not drawn a stop id
        with self._evaluating():
            next_token = self._feed_contexts(slots, contexts)
            for step in range(settings.max_new_tokens):
                sampled = _sample_tokens(next_token, draws[active, step], settings)
                still_active = []
                for row, token in zip(active, sampled, strict=True):
                    tokens[row].append(token)
                    if token.id not in settings.stop_ids:
                        still_active.append(row)
                active = still_active
                if not active or step + 1 == settings.max_new_tokens:
                    break
                active_slots = [slots[row] for row in active]
                newest_ids = [tokens[row][-1].id for row in active]
                next_token = self._append_tokens(active_slots, newest_ids)

        actions = []
        for row_tokens in tokens:
            ids, logprobs, values = zip(*row_tokens, strict=True)
            finished = ids[-1] in settings.stop_ids
            actions.append(SampledAction(ids, logprobs, finished, values if self.v_head is not None else ()))
        return actions

    def _evaluating(self) -> ExitStack:
        stack = ExitStack()
        for engine in (self.engine, self._value_engine):
            if engine is not None:
                stack.enter_context(engine.evaluating())
        return stack

    def _feed_contexts(self, slots: Sequence[int], contexts: Sequence[Sequence[int]]) -> _NextToken:
        """Read one context per row with both models."""
        value_hidden = None if self._value_engine is None else self._value_engine.feed(slots, contexts)
        return self._apply_heads(self.engine.feed(slots, contexts), value_hidden)

    def _append_tokens(self, slots: Sequence[int], ids: Sequence[int]) -> _NextToken:
        """Read one more id per row with both models."""
        value_hidden = None if self._value_engine is None else self._value_engine.append(slots, ids)
        return self._apply_heads(self.engine.append(slots, ids), value_hidden)

    def _apply_heads(self, hidden: Tensor, value_hidden: Tensor | None) -> _NextToken:
        """Apply the heads to ``(rows, width)`` hidden vectors of the language model and of the value model."""
        logits = self._guided_logits(hidden, value_hidden)
        if self.v_head is None:
            return _NextToken(logits, None)
        with torch.inference_mode():
            values = self.v_head(hidden if value_hidden is None else value_hidden)
            return _NextToken(logits, values.reshape(-1).float())

    def _guided_logits(self, hidden: Tensor, value_hidden: Tensor | None) -> Tensor:
        """Return ``(rows, vocabulary)`` float32 logits from ``(rows, width)`` hidden vectors; see `score`."""
        guidance = self.guidance
        with torch.inference_mode():
            base = self.engine.logits(hidden).float()
            logits = base
            if guidance is not None and guidance.beta > 0 and value_hidden is not None:
                logits = add_q_to_logits(base, guidance.q(value_hidden, base), guidance.beta)
            if self.invalid is not None:
                logits = logits.masked_fill(self.invalid, -torch.inf)
            if guidance is not None:
                logits = self._within_support(logits, base, guidance)
            return logits

    def _within_support(self, logits: Tensor, base: Tensor, guidance: Guidance) -> Tensor:
        """Mask ``(rows, vocabulary)`` logits outside of the support that the language model's logits `base` give."""
        top_k = guidance.support_top_k
        top_p = guidance.support_top_p
        if top_k == 0 and top_p == 1.0:
            return logits
        likely = process_logits(base, top_k=top_k, top_p=top_p, invalid=self.invalid)
        return logits.masked_fill(likely == -torch.inf, -torch.inf)


def _sample_tokens(next_token: _NextToken, uniform: Tensor, settings: SamplingSettings) -> list[_Token]:
    """Sample one token per row by ``(rows,)`` uniform numbers."""
    logits = next_token.logits
    logprobs = process_logits(logits, temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p)
    ids = draw(logprobs, uniform.to(logprobs.device))
    # NaN, infinite, or nothing allowed at all: what is drawn from that means nothing, and may be no id at all.
    finite = logits.amax(-1).isfinite()
    chosen = logprobs.gather(1, ids.clamp(max=logprobs.shape[1] - 1)[:, None])[:, 0]
    parts = [ids, chosen, finite]
    if next_token.values is not None:
        parts.append(next_token.values)
    # One transfer for all, since a GPU is waited for at each. float64 holds ids and float32 exactly.
    drawn = torch.stack([part.double() for part in parts], 1).tolist()
    tokens = []
    for id_, logprob, is_finite, *value in drawn:
        if not is_finite:
            raise UserError(
                "the logits of the next token must be finite; check the weights of the model and of its heads"
            )
        tokens.append(_Token(int(id_), logprob, *value))
    return tokens
