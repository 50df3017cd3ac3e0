"""A player that chooses among a few proposals, for tasks whose actions can be listed."""

from collections.abc import Sequence
from itertools import pairwise
from math import log
from typing import Literal, TypeAlias, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmrl.errors import UserError, check_range, unknown
from lmrl.models.engine import Engine
from lmrl.models.guidance import Head
from lmrl.models.sampling import SamplingSettings, draw, process_logits, uniforms
from lmrl.policies.prompts import Prompter, invalid_ids
from lmrl.policies.proposals import Measure, advantage, likelihood, proposal_scores
from lmrl.protocols import Reply, Request
from lmrl.rendering import encoder_for
from lmrl.tokens import Window

__all__ = ["RerankPolicy", "Score"]

T = TypeVar("T")

Score: TypeAlias = Literal["likelihood", "value"]


class RerankPolicy:
    """Scores every proposal as a whole and says the best one, or samples from the softmax of the scores.

    ``"likelihood"`` is ``sum log pi(token)``; ``"value"`` is ``sum (min_i Q_i(token) - V)``, plus ``logit_weight``
    times the likelihood if that is not 0 (Abdulhai et al. 2025, rerank policies of the reference implementation). All
    proposals are read in one forward pass per model.

    Args:
        model: the language model; None if only values count.
        tokenizer: of all models.
        window: how much of the episode is read.
        proposals: the actions, as the environment understands them.
        score: what decides.
        value_model: for ``"value"``.
        q_heads: for ``"value"``: hidden vectors ``(n, width)`` to ``(n, vocabulary)``.
        v_head: hidden vectors to ``(n,)``; without it (MC) the score is ``sum min_i Q_i``.
        logit_weight: weight of the likelihood in a ``"value"`` score.
        temperature: 0 takes the best, above 0 samples from ``softmax(score / temperature)``.
        slots: parallel episodes to make room for; more are possible.

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
        logit_weight: float = 0.0,
        temperature: float = 0.0,
        slots: int = 32,
    ) -> None:
        check_range("[0, inf)", logit_weight=logit_weight)
        encoder = encoder_for(tokenizer, window)
        self._proposals, self._ids = tuple(proposals), [encoder.action(text) for text in proposals]
        if not self._ids or not all(self._ids):
            raise UserError(f"proposals must be one or more texts that are not empty, got {list(proposals)}")
        self._temperature = SamplingSettings(temperature).temperature
        self._judges: list[tuple[Engine, Measure, float]] = []
        if weight := _likelihood_weight(score, logit_weight):
            engine = Engine(_given("model", model), slots)
            invalid = invalid_ids(tokenizer, engine.model.config.vocab_size, engine.model.device, encoder.end)
            self._judges.append((engine, likelihood(engine, invalid), weight))
        if score == "value":
            measure = advantage(_given("q_heads", tuple(q_heads) or None), v_head)
            self._judges.append((Engine(_given("value_model", value_model), slots), measure, 1.0))
        positions = min(engine.max_length for engine, _, _ in self._judges)
        self._prompter = Prompter(tokenizer, window, positions, max(map(len, self._ids)))

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """One proposal per request; its log-probabilities are those of its ids among the proposals."""
        if not requests:
            return []
        logprobs = process_logits(self.scores(requests), temperature=self._temperature)
        uniform = torch.tensor([uniforms(request.seed, request.turn, 1)[0] for request in requests])
        chosen = draw(logprobs, uniform).tolist()
        return [self._reply(index, row) for index, row in zip(chosen, logprobs.double().exp().tolist(), strict=True)]

    def scores(self, requests: Sequence[Request]) -> Tensor:
        """``(n, proposals)`` float32 on the CPU, larger is better."""
        slots, contexts = [request.slot for request in requests], self._prompter.contexts(requests)
        parts = [
            weight * proposal_scores(engine, measure, slots, contexts, self._ids)
            for engine, measure, weight in self._judges
        ]
        return torch.stack(parts).sum(0)

    def _reply(self, index: int, probabilities: list[float]) -> Reply:
        ids = self._ids[index]
        # The chance to be still on the way to this proposal, before each of its ids and after the last.
        way = [
            sum(p for other, p in zip(self._ids, probabilities, strict=True) if other[:step] == ids[:step])
            for step in range(len(ids))
        ]
        way.append(probabilities[index])
        return Reply(self._proposals[index], ids, tuple(log(b / a) for a, b in pairwise(way)))


def _likelihood_weight(score: str, logit_weight: float) -> float:
    weights = {"likelihood": 1.0, "value": logit_weight}
    if score not in weights:
        raise unknown("score", score, weights)
    return weights[score]


def _given(name: str, value: T | None) -> T:
    if value is None:
        raise UserError(f"{name} must be given for this score")
    return value
