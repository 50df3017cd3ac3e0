"""A language model that plays: what it reads, the same contexts that training reads, and when it stops."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmrl.checkpoints.export import MANIFEST, prompt_line_of, read_manifest, window_of
from lmrl.checkpoints.reading import resolve_pretrained
from lmrl.decoding.engine import Engine
from lmrl.decoding.sampling import Decoder, Head, SamplingSettings
from lmrl.errors import UserError
from lmrl.models.lm import build_lm, positions_of
from lmrl.models.tokenizer import load_tokenizer, warn_of_other_template
from lmrl.policies.conditioned import with_line
from lmrl.tokens.encoding import Window, adds_bos, encoder_for, invalid_ids, stop_ids
from lmrl.tokens.segments import context
from lmrl.types import Reply, Request

__all__ = [
    "ActorCriticPolicy",
    "ContextBuilder",
    "LMPolicy",
    "load_lm_policy",
    "sample_actions",
]


class ContextBuilder:
    """Turns requests into contexts.

    Args:
        tokenizer: tokenizer of the language model.
        window: how much of the past is read; the same that the model was trained with.
        positions: how many tokens the model can read.
        room: how many tokens an action may have.
        prompt_line: a line in front of the observations, see `lmrl.policies.conditioned.with_line`.

    Raises:
        UserError: a full window and an action together do not fit into the model.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, window: Window, positions: int, room: int, prompt_line: str = ""
    ) -> None:
        if window.tokens + room > positions:
            raise UserError(
                f"window.tokens ({window.tokens}) and the longest action ({room} tokens) together must fit into the "
                f"model's {positions} positions"
            )
        self.encoder = encoder_for(tokenizer, window)
        self.window = window
        self.prompt_line = prompt_line

    def contexts(self, requests: Sequence[Request]) -> list[list[int]]:
        """The ids that come before the next action of each request.

        Raises:
            UserError: naming the episode, where there is nothing to read.
        """
        contexts = []
        for request in requests:
            observations = request.observations
            if self.prompt_line:
                observations = with_line(observations, self.prompt_line, always=self.window.texts is not None)
            where = f"the episode with seed {request.seed}"
            ids = context(self.encoder, self.window, observations, request.actions, request.action_ids, where)
            contexts.append(ids)
        return contexts

    def stop_ids(self) -> frozenset[int]:
        """Every id with which an action is complete; raises as `stop_ids`."""
        return stop_ids(self.encoder)

    def invalid_ids(self, model: PreTrainedModel) -> Tensor:
        """Return the token ids that the policy must never sample."""
        return invalid_ids(self.encoder.tokenizer, model.config.vocab_size, model.device, self.encoder.end)


def sample_actions(
    decoder: Decoder, builder: ContextBuilder, settings: SamplingSettings, requests: Sequence[Request]
) -> list[Reply]:
    """Sample one action per request. Its text is what the sampled ids say, with nothing added."""
    if not requests:
        return []
    samples = decoder.generate(
        [request.slot for request in requests],
        builder.contexts(requests),
        [request.seed for request in requests],
        [request.turn for request in requests],
        settings,
    )
    text = builder.encoder.decode_action
    return [Reply(text(sample.ids), sample.ids, sample.logprobs, sample.values) for sample in samples]


class LMPolicy:
    """Says what a language model samples after the episode so far, up to the end of a line.

    Args:
        model: a causal language model; it may go on being trained between calls.
        tokenizer: tokenizer of the model.
        window: how much of the episode is read.
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: 1 is off.
        max_new_tokens: an action without a line break ends here, as it is.
        slots: parallel episodes to make room for, None: `lmrl.decoding.engine.default_slots`; more are possible.
        compile: have `torch.compile` make the decode steps, see `lmrl.decoding.engine.Engine`.
        prompt_line: see `ContextBuilder`.

    Raises:
        UserError: a setting is outside its range, or window and action do not fit into the model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        window: Window,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        max_new_tokens: int = 32,
        slots: int | None = None,
        compile: bool | str = False,
        prompt_line: str = "",
    ) -> None:
        self.model = model
        engine = Engine(model, slots, compile=compile)
        self.slots = engine.slots
        self._context_builder = ContextBuilder(tokenizer, window, engine.max_length, max_new_tokens, prompt_line)
        self._settings = SamplingSettings(temperature, top_k, top_p, max_new_tokens, self._context_builder.stop_ids())
        invalid = self._context_builder.invalid_ids(model)
        self._decoder = Decoder(engine, invalid=invalid)

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """One action per request, in their order."""
        return sample_actions(self._decoder, self._context_builder, self._settings, requests)

    def reset(self) -> None:
        """Forget what was read; see `lmrl.types.Resettable`."""
        self._decoder.reset()


class ActorCriticPolicy(LMPolicy):
    """A language model with a value head on its trunk: it samples as the model does, and replies hold V.

    Args:
        model: a causal language model.
        tokenizer: tokenizer of the model.
        window: how much of the episode is read.
        v_head: ``(n, width)`` hidden vectors of the model to V of their states.
        **settings: settings of `LMPolicy`: ``temperature``, ...

    Raises:
        UserError: as `LMPolicy`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        window: Window,
        *,
        v_head: Head,
        **settings: Any,
    ) -> None:
        super().__init__(model, tokenizer, window, **settings)
        self._decoder.v_head = self._v_head = v_head

    def state_values(self, requests: Sequence[Request]) -> Tensor:
        """V of the state in which each request asks, ``(n,)`` float32 on the CPU."""
        slots = [request.slot for request in requests]
        contexts = self._context_builder.contexts(requests)
        hidden = self._decoder.engine.feed(slots, contexts)
        with torch.inference_mode():
            return self._v_head(hidden).reshape(-1).float().cpu().clone()


def load_lm_policy(path: str, texts: int | None, max_new_tokens: int, *, temperature: float, slots: int) -> LMPolicy:
    """A saved language model as a player, which reads what it read in training.

    Args:
        path: run folder, model folder, GGUF file or hub id.
        texts: how many of the newest texts are read, as many as fit, by a model that lmrl has not trained; None: all.
        max_new_tokens: longest action.
        temperature: 0 is greedy.
        slots: parallel episodes to make room for.

    Raises:
        UserError: there is no such model, or it is no causal language model.
    """
    folder = resolve_pretrained(path)
    tokenizer = load_tokenizer(folder)
    model = build_lm(folder, {}, len(tokenizer)).train(False)
    manifest = read_manifest(Path(folder)) if Path(folder).is_dir() else {}
    warn_of_other_template(tokenizer, manifest.get("chat_template"))
    positions = positions_of(model.config)
    trained = window_of(manifest, str(Path(folder) / MANIFEST))
    window = trained or Window(texts, positions, bos=adds_bos(tokenizer))
    # A partner's replies may be longer than those of its training.
    room = positions - max_new_tokens
    if room < 1:
        raise UserError(f"max_new_tokens must be less than the model's {positions} positions, got {max_new_tokens}")
    window = replace(window, tokens=min(window.tokens, room))
    line = prompt_line_of(manifest, folder)
    settings: dict[str, Any] = {"temperature": temperature, "max_new_tokens": max_new_tokens, "slots": slots}
    return LMPolicy(model, tokenizer, window, prompt_line=line, **settings)
