"""Sampling actions for many slots at once."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmrl.errors import UserError
from lmrl.models.engine import Engine
from lmrl.models.guidance import Guidance, Head, combine, lowest
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
    values: tuple[float, ...] = ()
    """V of the state in which each id was drawn, if there is a head for it."""


class _Read(NamedTuple):
    """What is known after reading: logits of the next token, and V of each row."""

    logits: Tensor
    values: list[float] | None


class Decoder:
    """A language model that speaks, alone or guided by values.

    Args:
        engine: of the language model.
        guidance: adds ``beta * min Q`` to its logits; None or a beta of 0 leaves them as they are, bit by bit.
        invalid: ``(vocabulary,)`` bool, True for ids that are never sampled; masked after everything is added up.
        v_head: hidden vectors (of the value model, if there is guidance) to V; without it samples have no values.
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
        needed = guidance is not None and (guidance.beta > 0 or v_head is not None)
        self._values = guidance.engine if guidance is not None and needed else None

    def score(self, slots: Sequence[int], contexts: Sequence[Sequence[int]]) -> Tensor:
        """What is known about the next token after each context.

        Returns:
            ``(rows, vocabulary)`` float32 logits: the language model's plus the guidance, ``-inf`` for ids that are
            invalid or outside of the language model's support.
        """
        return self._begin(slots, contexts).logits

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
        said: list[list[tuple[int, float, float]]] = [[] for _ in slots]
        active = list(range(len(slots)))
        with self._evaluating():
            read = self._begin(slots, contexts)
            for step in range(settings.max_new_tokens):
                for row, token in zip(active, _choose(read, draws[active, step], settings), strict=True):
                    said[row].append(token)
                active = [row for row in active if said[row][-1][0] not in settings.stop_ids]
                if not active or step + 1 == settings.max_new_tokens:
                    break
                read = self._next([slots[row] for row in active], [said[row][-1][0] for row in active])
        return [_sample(tokens, settings.stop_ids, self.v_head is not None) for tokens in said]

    def _evaluating(self) -> ExitStack:
        stack = ExitStack()
        for engine in (self.engine, self._values):
            if engine is not None:
                stack.enter_context(engine.evaluating())
        return stack

    def _begin(self, slots: Sequence[int], contexts: Sequence[Sequence[int]]) -> _Read:
        value = None if self._values is None else self._values.feed(slots, contexts)
        return self._read(self.engine.feed(slots, contexts), value)

    def _next(self, slots: Sequence[int], ids: Sequence[int]) -> _Read:
        value = None if self._values is None else self._values.append(slots, ids)
        return self._read(self.engine.append(slots, ids), value)

    def _read(self, hidden: Tensor, value: Tensor | None) -> _Read:
        logits = self._logits(hidden, value)
        if self.v_head is None:
            return _Read(logits, None)
        with torch.inference_mode():
            return _Read(logits, self.v_head(hidden if value is None else value).reshape(-1).float().tolist())

    def _logits(self, hidden: Tensor, value: Tensor | None) -> Tensor:
        with torch.inference_mode():
            logits = base = self.engine.logits(hidden).float()
            if self.guidance is not None and self.guidance.beta > 0 and value is not None:
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


def _choose(read: _Read, uniform: Tensor, settings: SamplingSettings) -> list[tuple[int, float, float]]:
    logits = read.logits
    # Not a number, endless, or nothing allowed at all: sampling from that would give an id that means nothing.
    if not bool(logits.amax(-1).isfinite().all()):
        raise UserError("the logits of the next token must be finite; check the weights of the model and of its heads")
    logprobs = process_logits(logits, temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p)
    ids = draw(logprobs, uniform.to(logprobs.device))
    chosen = logprobs.gather(1, ids[:, None])[:, 0]
    return list(zip(ids.tolist(), chosen.tolist(), read.values or [0.0] * len(ids), strict=True))


def _sample(tokens: list[tuple[int, float, float]], stop_ids: frozenset[int], valued: bool) -> Sample:
    ids, logprobs, values = zip(*tokens, strict=True)
    return Sample(ids, logprobs, ids[-1] in stop_ids, values if valued else ())
