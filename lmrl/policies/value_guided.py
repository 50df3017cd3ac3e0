"""A language model whose words are weighed by learned values."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmrl.decoding.engine import Engine
from lmrl.decoding.sampling import Decoder, Guidance, Head, RatioGuidance, SamplingSettings, process_logits
from lmrl.errors import check_range
from lmrl.models.lm import logit_table, trunk_of
from lmrl.policies.lm import ContextBuilder, sample_actions
from lmrl.tokens.encoding import Window
from lmrl.types import Reply, Request

__all__ = ["RatioGuidedPolicy", "ValueGuidedPolicy"]


class ValueGuidedPolicy:
    """Samples from ``pi(a|s) ~ pi_beta(a|s) * exp(beta * min_i Q_i(s, a))``, token by token.

    This is how ILQL (Snell et al. 2022, section 4.3) and MC returns (Abdulhai et al. 2025, section 5) act. With
    ``beta=0`` it is the language model alone, with the same samples as `LMPolicy`.

    Args:
        model: the language model ``pi_beta``.
        tokenizer: tokenizer of both models.
        window: how much of the episode is read.
        value_model: reads the same ids; its hidden vectors go through the heads.
        q_heads: ``(n, width)`` hidden vectors to ``(n, vocabulary)``; one for MC, two for ILQL.
        v_head: ``(n, width)`` hidden vectors to ``(n,)``, for `state_values` and for the values in replies.
        beta: weight of the values.
        temperature: 0 is greedy.
        top_k: over the weighed distribution; 0 is off.
        top_p: over the weighed distribution; 1 is off.
        support_top_k: allow only this number of the language model's most probable tokens; 0 is off.
        support_top_p: likewise by probability mass; 1 is off.
        max_new_tokens: an action without a line break ends here, as it is.
        slots: parallel episodes to make room for, None: `lmrl.decoding.engine.default_slots`; more are possible.
        compile: have `torch.compile` make the decode steps of both models, see `lmrl.decoding.engine.Engine`.

    Raises:
        UserError: a setting is outside its range, or window and action do not fit into the models.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        window: Window,
        *,
        value_model: PreTrainedModel,
        q_heads: Sequence[Head],
        beta: float,
        v_head: Head | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        support_top_k: int = 0,
        support_top_p: float = 1.0,
        max_new_tokens: int = 32,
        slots: int | None = None,
        compile: bool | str = False,
    ) -> None:
        speaking = Engine(model, slots, compile=compile)
        self.slots = speaking.slots
        self._values = Engine(value_model, slots, compile=compile)
        positions = min(speaking.max_length, self._values.max_length)
        self._context_builder = ContextBuilder(tokenizer, window, positions, max_new_tokens)
        self._settings = SamplingSettings(temperature, top_k, top_p, max_new_tokens, self._context_builder.stop_ids())
        self._v_head = v_head
        invalid = self._context_builder.invalid_ids(model)
        self._guidance = self._guide(tuple(q_heads), beta, support_top_k, support_top_p, invalid)
        self._decoder = Decoder(speaking, self._guidance, invalid, v_head)

    def _guide(
        self, q_heads: tuple[Head, ...], beta: float, support_top_k: int, support_top_p: float, invalid: Tensor
    ) -> Guidance:
        return Guidance(self._values, q_heads, beta, support_top_k, support_top_p)

    @property
    def beta(self) -> float:
        """How strongly the values move the language model."""
        return self._guidance.beta

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """One action per request, in their order."""
        return sample_actions(self._decoder, self._context_builder, self._settings, requests)

    def reset(self) -> None:
        """Forget what was read; see `lmrl.types.Resettable`."""
        self._decoder.reset()

    def state_values(self, requests: Sequence[Request]) -> Tensor:
        """Return the value of each state, ``(n,)`` float32 on the CPU, read where the policy is about to act.

        With a V head, its answer (ILQL: an upper expectile of Q). Without one (MC), the expectation of the lowest Q
        under the very distribution that the next token is sampled from; for a greedy policy, the Q of its choice.
        """
        slots = [request.slot for request in requests]
        contexts = self._context_builder.contexts(requests)
        hidden = self._values.feed(slots, contexts)
        with torch.inference_mode():
            value = self._expected_q(slots, contexts, hidden) if self._v_head is None else self._v_head(hidden)
        return value.reshape(-1).float().cpu().clone()

    def _expected_q(self, slots: Sequence[int], contexts: Sequence[Sequence[int]], hidden: Tensor) -> Tensor:
        s = self._settings
        logits = self._decoder.score(slots, contexts)
        speaking = self._decoder.engine
        weights = process_logits(logits, temperature=s.temperature, top_k=s.top_k, top_p=s.top_p).exp()
        q = self._guidance.q(hidden, speaking.logits(speaking.feed(slots, contexts)))
        # Only what may be said counts: an infinite Q of an impossible token must not become 0 * inf.
        return torch.where(weights > 0, weights * q, 0.0).sum(-1)


class RatioGuidedPolicy(ValueGuidedPolicy):
    """Samples from ``pi(a|s) ~ pi_beta(a|s) * exp(beta * Q'(s, a))`` with ``Q' = p(a|s) / pi_beta(a|s)``.

    This is how Q-SFT acts (Hong et al. 2024, arXiv 2411.05193): values are the probabilities of a second language
    model over those of the policy, scaled to [0, 1].

    Args:
        model: the language model ``pi_beta``.
        tokenizer: tokenizer of both models.
        window: how much of the episode is read.
        value_model: the language model p.
        support: tokens to which ``pi_beta`` gives less than this have ``Q' = 0``; the most probable one never does.
        return_range: the returns that 0 and 1 stand for, in which `state_values` answers.
        **settings: settings of `ValueGuidedPolicy`: ``beta``, ``temperature``, ...

    Raises:
        UserError: a setting is outside its range, or window and action do not fit into the models.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        window: Window,
        *,
        value_model: PreTrainedModel,
        support: float,
        return_range: tuple[float, float] = (0.0, 1.0),
        **settings: Any,
    ) -> None:
        check_range("[0, 1]", support=support)
        self._support = support
        self._range = return_range
        scores = partial(logit_table, value_model)
        parts: dict[str, Any] = {"value_model": trunk_of(value_model), "q_heads": [scores]}
        super().__init__(model, tokenizer, window, **parts, **settings)

    def _guide(
        self, q_heads: tuple[Head, ...], beta: float, support_top_k: int, support_top_p: float, invalid: Tensor
    ) -> Guidance:
        support = self._support, invalid
        return RatioGuidance(self._values, q_heads, beta, support_top_k, support_top_p, *support)

    def state_values(self, requests: Sequence[Request]) -> Tensor:
        """Expected return of each state, ``(n,)`` float32 on the CPU; see `ValueGuidedPolicy.state_values`."""
        low, high = self._range
        return low + (high - low) * super().state_values(requests)
