"""Sampling actions for many slots at once."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmrl.errors import UserError
from lmrl.models.engine import Engine
from lmrl.models.guidance import Guidance, combine, lowest
from lmrl.models.sampling import SamplingSettings, draw, process_logits, uniforms

__all__ = ["Decoder", "Sample"]


class Sample(NamedTuple):
    """One action as it was sampled."""

    ids: tuple[int, ...]
    """What was sampled, the stop id included."""
    logprobs: tuple[float, ...]
    """Log-probability of each id under the very distribution it was drawn from."""
    finished: bool
    """Whether a stop id ended it (else there was no room for more)."""


class Decoder:
    """A language model that speaks, alone or guided by values.

    Args:
        engine: of the language model.
        guidance: adds ``beta * min Q`` to its logits; None or a beta of 0 leaves them as they are, bit by bit.
        invalid: ``(vocabulary,)`` bool, True for ids that are never sampled; masked after everything is added up.
    """

    def __init__(self, engine: Engine, guidance: Guidance | None = None, invalid: Tensor | None = None) -> None:
        if guidance is not None and guidance.engine is engine:
            raise UserError("guidance must have an engine of its own: two models must not share a cache")
        self.engine = engine
        self.guidance = guidance
        self.invalid = invalid
        self._values = guidance.engine if guidance is not None and guidance.beta > 0 else None

    def score(self, slots: Sequence[int], contexts: Sequence[Sequence[int]]) -> Tensor:
        """What is known about the next token after each context.

        Returns:
            ``(rows, vocabulary)`` float32 logits: the language model's plus the guidance, ``-inf`` for ids that are
            invalid or outside of the language model's support.
        """
        value = None if self._values is None else self._values.feed(slots, contexts)
        return self._logits(self.engine.feed(slots, contexts), value)

    def generate(
        self,
        slots: Sequence[int],
        contexts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        turns: Sequence[int],
        settings: SamplingSettings,
    ) -> list[Sample]:
        """Say something after every context; a row leaves the batch as soon as it has said a stop id.

        Args:
            slots: distinct; a slot keeps its cache between calls.
            contexts: all ids of each context.
            seeds: of the episodes. With the turn they decide the sample, whatever the slot and the batch.
            turns: of the episodes.
            settings: how to sample, and when to stop.

        Returns:
            One sample per row. Of its ids all but the last are in the cache.

        Raises:
            UserError: a context is too long or empty, or logits are not finite.
        """
        draws = torch.from_numpy(
            np.stack([uniforms(seed, turn, settings.max_new_tokens) for seed, turn in zip(seeds, turns, strict=True)])
        )
        said: list[list[tuple[int, float]]] = [[] for _ in slots]
        active = list(range(len(slots)))
        with self._evaluating():
            logits = self.score(slots, contexts)
            for step in range(settings.max_new_tokens):
                for row, token in zip(active, _choose(logits, draws[active, step], settings), strict=True):
                    said[row].append(token)
                active = [row for row in active if said[row][-1][0] not in settings.stop_ids]
                if not active or step + 1 == settings.max_new_tokens:
                    break
                logits = self._next([slots[row] for row in active], [said[row][-1][0] for row in active])
        return [_sample(tokens, settings.stop_ids) for tokens in said]

    def _evaluating(self) -> ExitStack:
        stack = ExitStack()
        for engine in (self.engine, self._values):
            if engine is not None:
                stack.enter_context(engine.evaluating())
        return stack

    def _next(self, slots: Sequence[int], ids: Sequence[int]) -> Tensor:
        value = None if self._values is None else self._values.append(slots, ids)
        return self._logits(self.engine.append(slots, ids), value)

    def _logits(self, hidden: Tensor, value: Tensor | None) -> Tensor:
        with torch.inference_mode():
            logits = base = self.engine.logits(hidden).float()
            if self.guidance is not None and value is not None:
                logits = combine(base, lowest(self.guidance.q_heads, value), self.guidance.beta)
            if self.invalid is not None:
                logits = logits.masked_fill(self.invalid, -torch.inf)
            return logits if self.guidance is None else self._within_support(logits, base, self.guidance)

    def _within_support(self, logits: Tensor, base: Tensor, guidance: Guidance) -> Tensor:
        top_k, top_p = guidance.support_top_k, guidance.support_top_p
        if top_k == 0 and top_p == 1.0:
            return logits
        likely = process_logits(base, top_k=top_k, top_p=top_p, invalid=self.invalid)
        return logits.masked_fill(likely == -torch.inf, -torch.inf)


def _choose(logits: Tensor, uniform: Tensor, settings: SamplingSettings) -> list[tuple[int, float]]:
    # Not a number, endless, or nothing allowed at all: sampling from that would give an id that means nothing.
    if not bool(logits.amax(-1).isfinite().all()):
        raise UserError("the logits of the next token must be finite; check the weights of the model and of its heads")
    logprobs = process_logits(logits, temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p)
    ids = draw(logprobs, uniform.to(logprobs.device))
    chosen = logprobs.gather(1, ids[:, None])[:, 0]
    return list(zip(ids.tolist(), chosen.tolist(), strict=True))


def _sample(tokens: list[tuple[int, float]], stop_ids: frozenset[int]) -> Sample:
    ids, logprobs = zip(*tokens, strict=True)
    return Sample(ids, logprobs, ids[-1] in stop_ids)
