"""A policy that chooses among a few proposals by their log-probs or values, for tasks whose actions can be listed."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import log
from typing import Literal, TypeAlias, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmrl.decoding.engine import Engine
from lmrl.decoding.sampling import (
    Guidance,
    Head,
    SamplingSettings,
    add_q_to_logits,
    draw,
    min_q,
    process_logits,
    uniforms,
)
from lmrl.errors import UserError, check_range, unknown
from lmrl.policies.lm import ContextBuilder
from lmrl.tokens.encoding import Window, encoder_for, invalid_ids
from lmrl.types import Reply, Request

__all__ = ["Measure", "RerankPolicy", "Score", "advantage", "guided_likelihood", "likelihood", "proposal_scores"]

Measure: TypeAlias = Callable[..., Tensor]
"""``(n, width)`` hidden vectors of each engine and the ``(n,)`` ids that follow them to ``(n,)`` float32."""


def likelihood(engine: Engine, invalid: Tensor) -> Measure:
    """``log pi(id)`` among the ids that may be said."""

    def measure(hidden: Tensor, ids: Tensor) -> Tensor:
        return process_logits(engine.logits(hidden), invalid=invalid).gather(1, ids[:, None])[:, 0]

    return measure


def guided_likelihood(engine: Engine, guidance: Guidance, invalid: Tensor) -> Measure:
    """``log pi(id)`` of a policy that values guide, among the ids that may be said."""

    def measure(hidden: Tensor, value: Tensor, ids: Tensor) -> Tensor:
        base = engine.logits(hidden).float()
        logits = add_q_to_logits(base, guidance.q(value, base), guidance.beta)
        return process_logits(logits, invalid=invalid).gather(1, ids[:, None])[:, 0]

    return measure


def advantage(q_heads: Sequence[Head], v_head: Head | None) -> Measure:
    """``min_i Q_i(id) - V``; without a V head the lowest Q alone."""

    def measure(hidden: Tensor, ids: Tensor) -> Tensor:
        q = min_q(q_heads, hidden).gather(1, ids[:, None])[:, 0]
        return q if v_head is None else q - v_head(hidden).reshape(-1).float()

    return measure


def proposal_scores(
    engines: Sequence[Engine],
    measure: Measure,
    slots: Sequence[int],
    contexts: Sequence[Sequence[int]],
    proposals: Sequence[Sequence[int]],
) -> Tensor:
    """Sum a measure over the ids of every proposal after every context, in one forward pass of each engine.

    Returns:
        ``(contexts, proposals)`` float32 on the CPU.
    """
    hidden = [engine.branch(slots, contexts, proposals) for engine in engines]
    # One entry per id of all proposals: number of the proposal, place in it, and the id.
    entries = []
    for number, proposal in enumerate(proposals):
        for place, token in enumerate(proposal):
            entries.append((number, place, token))
    owner, depth, ids = torch.tensor(entries).unbind(1)
    with torch.inference_mode():
        tokens = ids.to(hidden[0].device).repeat(len(slots))
        # (contexts * all ids of all proposals, width) each
        states = [vectors[:, owner, depth].reshape(len(tokens), -1) for vectors in hidden]
        values = measure(*states, tokens).reshape(len(slots), -1).cpu()
    return torch.zeros(len(slots), len(proposals)).index_add(1, owner, values)


T = TypeVar("T")

Score: TypeAlias = Literal["likelihood", "value", "guided"]


class RerankPolicy:
    """Scores every proposal as a whole and says the best one, or samples from the softmax of the scores.

    ``"likelihood"`` is ``sum log pi(token)``; ``"value"`` is ``sum (min_i Q_i(token) - V)``, plus ``logit_weight``
    times the likelihood if that is not 0 (Abdulhai et al. 2025, rerank policies of the reference implementation);
    ``"guided"`` is the likelihood under the policy that `guidance` makes. All proposals are read in one forward pass
    per model.

    Args:
        model: the language model; None if only values count.
        tokenizer: tokenizer of all models.
        window: how much of the episode is read.
        proposals: the actions, as the environment understands them.
        score: what decides.
        value_model: for ``"value"``.
        q_heads: for ``"value"``: hidden vectors ``(n, width)`` to ``(n, vocabulary)``.
        v_head: hidden vectors to ``(n,)``; without it (MC) the score is ``sum min_i Q_i``.
        guidance: for ``"guided"``: the values that guide the language model.
        logit_weight: weight of the likelihood in a ``"value"`` score.
        temperature: 0 takes the best, above 0 samples from ``softmax(score / temperature)``.
        slots: parallel episodes to make room for, None: `lmrl.decoding.engine.default_slots`; more are possible.

    Raises:
        UserError: a model or the proposals are missing, or window and proposals do not fit into a model.
    """

    def __init__(
        self,
        model: PreTrainedModel | None,
        tokenizer: PreTrainedTokenizerBase,
        window: Window,
        *,
        proposals: Sequence[str],
        score: Score = "likelihood",
        value_model: PreTrainedModel | None = None,
        q_heads: Sequence[Head] = (),
        v_head: Head | None = None,
        guidance: Guidance | None = None,
        logit_weight: float = 0.0,
        temperature: float = 0.0,
        slots: int | None = None,
    ) -> None:
        check_range("[0, inf)", logit_weight=logit_weight)
        encoder = encoder_for(tokenizer, window)
        self._proposals = tuple(proposals)
        self._ids = [encoder.action(text) for text in proposals]
        if not self._ids or not all(self._ids):
            raise UserError(f"proposals must be one or more texts that are not empty, got {list(proposals)}")
        self._temperature = SamplingSettings(temperature).temperature
        self._judges: list[tuple[Sequence[Engine], Measure, float]] = []
        weight = _likelihood_weight(score, logit_weight)
        if weight:
            engine = Engine(_given("model", model), slots)
            invalid = invalid_ids(tokenizer, engine.model.config.vocab_size, engine.model.device, encoder.end)
            if score == "guided":
                guide = _given("guidance", guidance)
                self._judges.append(((engine, guide.engine), guided_likelihood(engine, guide, invalid), weight))
            else:
                self._judges.append(((engine,), likelihood(engine, invalid), weight))
        if score == "value":
            measure = advantage(_given("q_heads", tuple(q_heads) or None), v_head)
            self._judges.append(((Engine(_given("value_model", value_model), slots),), measure, 1.0))
        positions = min(engine.max_length for engines, _, _ in self._judges for engine in engines)
        self._context_builder = ContextBuilder(tokenizer, window, positions, max(map(len, self._ids)))

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """One proposal per request; its log-probabilities are those of its ids among the proposals."""
        if not requests:
            return []
        logprobs = process_logits(self.scores(requests), temperature=self._temperature)
        uniform = torch.tensor([uniforms(request.seed, request.turn, 1)[0] for request in requests])
        chosen = draw(logprobs, uniform).tolist()
        probabilities = logprobs.double().exp().tolist()
        return [self._reply(index, row) for index, row in zip(chosen, probabilities, strict=True)]

    def reset(self) -> None:
        """Forget what was read; see `lmrl.types.Resettable`."""
        for engines, _, _ in self._judges:
            for engine in engines:
                engine.reset()

    def scores(self, requests: Sequence[Request]) -> Tensor:
        """``(n, proposals)`` float32 on the CPU, larger is better."""
        slots = [request.slot for request in requests]
        contexts = self._context_builder.contexts(requests)
        parts = [
            weight * proposal_scores(engines, measure, slots, contexts, self._ids)
            for engines, measure, weight in self._judges
        ]
        return torch.stack(parts).sum(0)

    def _reply(self, index: int, probabilities: list[float]) -> Reply:
        ids = self._ids[index]
        # The probability of the proposals that begin with the first ids of this one, before each id and after the last.
        masses = []
        for step in range(len(ids)):
            alike = [p for other, p in zip(self._ids, probabilities, strict=True) if other[:step] == ids[:step]]
            masses.append(sum(alike))
        masses.append(probabilities[index])
        logprobs = tuple(log(after / before) for before, after in pairwise(masses))
        return Reply(self._proposals[index], ids, logprobs)


def _likelihood_weight(score: str, logit_weight: float) -> float:
    weights = {"likelihood": 1.0, "value": logit_weight, "guided": 1.0}
    if score not in weights:
        raise unknown("score", score, weights)
    return weights[score]


def _given(name: str, value: T | None) -> T:
    if value is None:
        raise UserError(f"{name} must be given for this score")
    return value
