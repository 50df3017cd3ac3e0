"""A chat model of `transformers` on this machine, asked as an endpoint is."""

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmrl.checkpoints.reading import resolve_pretrained
from lmrl.decoding.engine import Engine
from lmrl.decoding.sampling import Decoder, SamplingSettings
from lmrl.errors import UserError
from lmrl.models.lm import build_lm, positions_of
from lmrl.models.tokenizer import load_tokenizer
from lmrl.policies.chat.client import Messages
from lmrl.policies.chat.endpoint import THOUGHT
from lmrl.tokens.encoding import render_chat

__all__ = ["LocalChat"]


class LocalChat:
    """Answers conversations by a causal language model with a chat template, through the decoding engine.

    What two conversations have in common is read once: rules and examples cost nothing from the second turn on.

    Args:
        path: model folder, GGUF file or hub id; its tokenizer needs a chat template.
        temperature: sampling temperature; 0 is greedy.
        max_tokens: longest answer.
        max_context: tokens that are read at most; less memory, and the model's own number if that is lower.
        slots: conversations side by side.

    Raises:
        UserError: there is no such model, it has no chat template, or a setting is out of range.
    """

    def __init__(
        self,
        path: str,
        temperature: float = 0.0,
        max_tokens: int = 128,
        max_context: int = 4096,
        slots: int = 8,
    ) -> None:
        if slots < 1:
            raise UserError(f"slots must be at least 1, got {slots}")
        folder = resolve_pretrained(path)
        self.path = path
        self.slots = slots
        self._tokenizer = load_tokenizer(folder)
        if not self._tokenizer.chat_template:
            raise UserError(f"{path!r} must be a model with a chat template, its tokenizer has none")
        model = build_lm(folder, {}, len(self._tokenizer)).train(False)
        engine = Engine(model, slots, min(max_context, positions_of(model.config)))
        self._settings = SamplingSettings(
            temperature, max_new_tokens=max_tokens, stop_ids=_ends(model, self._tokenizer)
        )
        self._decoder = Decoder(engine)
        self._requests = 0
        self._tokens = 0

    def complete(self, batch: Sequence[Messages], seeds: Sequence[int] | None = None) -> list[str]:
        """One answer for each conversation. It begins with the thought that the chat template has opened, if any.

        Args:
            batch: conversations.
            seeds: sampling seeds, one for each.

        Raises:
            UserError: a conversation and the longest answer do not fit into ``max_context``, or the template fails.
        """
        prompts = [self._prompt(messages) for messages in batch]
        contexts = [list(self._tokenizer.encode(prompt, add_special_tokens=False)) for prompt in prompts]
        room = self._decoder.engine.max_length - self._settings.max_new_tokens
        longest = max(map(len, contexts), default=0)
        if longest > room:
            raise UserError(f"max_context leaves {room} tokens for a conversation, got one of {longest}")
        given = list(seeds or [0] * len(batch))
        answers = list[str]()
        for first in range(0, len(batch), self.slots):
            answers += self._answer(contexts[first : first + self.slots], given[first : first + self.slots])
        # Then an answer that never ends its thought holds no action.
        opened = [prompt.rstrip().endswith(THOUGHT) for prompt in prompts]
        return [THOUGHT + answer if opens else answer for answer, opens in zip(answers, opened, strict=True)]

    def describe(self) -> dict[str, Any]:
        """Model and settings: what answers depend on."""
        return {
            "model": self.path,
            "endpoint": "local",
            "temperature": self._settings.temperature,
            "max_tokens": self._settings.max_new_tokens,
        }

    def spent(self) -> dict[str, int]:
        """Return the usage so far: ``requests`` and ``tokens`` of prompts and answers."""
        return {"requests": self._requests, "tokens": self._tokens}

    def _prompt(self, messages: Messages) -> str:
        try:
            return render_chat(self._tokenizer, messages)
        except TemplateError:  # templates that know no system message
            system, user, *rest = messages
            both = {"role": "user", "content": f"{system['content']}\n\n{user['content']}"}
        try:
            return render_chat(self._tokenizer, [both, *rest])
        except TemplateError as error:
            raise UserError(f"the chat template of {self.path!r} fails: {error}") from error

    def _answer(self, contexts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[str]:
        samples = self._decoder.generate(range(len(contexts)), contexts, seeds, [0] * len(contexts), self._settings)
        self._requests += len(contexts)
        self._tokens += sum(map(len, contexts)) + sum(len(sample.ids) for sample in samples)
        return [str(self._tokenizer.decode(list(sample.ids), skip_special_tokens=True)) for sample in samples]


def _ends(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that end an answer."""
    given = getattr(model.generation_config, "eos_token_id", None)
    listed = given if isinstance(given, list) else [given]
    return frozenset(token for token in (*listed, tokenizer.eos_token_id) if isinstance(token, int))
