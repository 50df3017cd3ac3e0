"""A language model that plays."""

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmrl.decoding.engine import Engine
from lmrl.decoding.sampling import Decoder, Head, SamplingSettings
from lmrl.models.checkpoints import resolve_pretrained
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer
from lmrl.policies.context import ContextBuilder, sample_actions
from lmrl.tokens.encoding import Window
from lmrl.types import Reply, Request

__all__ = ["LMPolicy", "load_lm_policy"]


class LMPolicy:
    """Says what a language model samples after the episode so far, up to the end of a line.

    Args:
        model: a causal language model; it may go on being trained between calls.
        tokenizer: of the model.
        window: how much of the episode is read.
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: 1 is off.
        max_new_tokens: an action without a line break ends here, as it is.
        slots: parallel episodes to make room for; more are possible.
        v_head: ``(n, width)`` hidden vectors to V of their states; if given, replies hold the values.
        compile: have `torch.compile` make the decode steps, see `lmrl.decoding.engine.Engine`.

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
        slots: int = 32,
        v_head: Head | None = None,
        compile: bool | str = False,
    ) -> None:
        self.model = model
        engine = Engine(model, slots, compile=compile)
        self._context_builder = ContextBuilder(tokenizer, window, engine.max_length, max_new_tokens)
        self._settings = SamplingSettings(temperature, top_k, top_p, max_new_tokens, self._context_builder.stop_ids())
        invalid = self._context_builder.invalid_ids(model)
        self._decoder = Decoder(engine, invalid=invalid, v_head=v_head)

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """One action per request, in their order."""
        return sample_actions(self._decoder, self._context_builder, self._settings, requests)


def load_lm_policy(path: str, texts: int | None, max_new_tokens: int, *, temperature: float, slots: int) -> LMPolicy:
    """A saved language model as a player that reads as much as fits.

    Args:
        path: run folder, model folder or hub id.
        texts: how many of the newest texts are read; None: all.
        max_new_tokens: longest action.
        temperature: 0 is greedy.
        slots: parallel episodes to make room for.

    Raises:
        UserError: there is no such model, or it is no causal language model.
    """
    folder = resolve_pretrained(path)
    tokenizer = load_tokenizer(folder)
    model = build_lm(folder, {}, len(tokenizer)).train(False)
    window = Window(texts, model.config.max_position_embeddings - max_new_tokens)
    return LMPolicy(model, tokenizer, window, temperature=temperature, max_new_tokens=max_new_tokens, slots=slots)
