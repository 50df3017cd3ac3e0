"""What the model-backed policies read and when they stop: the same contexts that training reads."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmrl.decoding.sampling import Decoder, SamplingSettings
from lmrl.errors import UserError
from lmrl.tokens.encoding import Encoder, Window, encoder_for
from lmrl.tokens.segments import context
from lmrl.types import Reply, Request

__all__ = ["ContextBuilder", "invalid_ids", "sample_actions", "stop_ids"]


class ContextBuilder:
    """Turns requests into contexts.

    Args:
        tokenizer: of the language model.
        window: how much of the past is read; the same that the model was trained with.
        positions: how many tokens the model can read.
        room: how many tokens an action may have.

    Raises:
        UserError: a full window and an action together do not fit into the model.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, window: Window, positions: int, room: int) -> None:
        if window.tokens + room > positions:
            raise UserError(
                f"window.tokens ({window.tokens}) and the longest action ({room} tokens) together must fit into the "
                f"model's {positions} positions"
            )
        self.encoder = encoder_for(tokenizer, window)
        self.window = window

    def contexts(self, requests: Sequence[Request]) -> list[list[int]]:
        """The ids that come before the next action of each request.

        Raises:
            UserError: naming the episode, where there is nothing to read.
        """
        return [
            context(
                self.encoder, self.window, r.observations, r.actions, r.action_ids, f"the episode with seed {r.seed}"
            )
            for r in requests
        ]

    def stop_ids(self) -> frozenset[int]:
        """Every id with which an action is complete; raises as `stop_ids`."""
        return stop_ids(self.encoder)

    def invalid_ids(self, model: PreTrainedModel) -> Tensor:
        """What the policy must never say, as `invalid_ids`."""
        return invalid_ids(self.encoder.tokenizer, model.config.vocab_size, model.device, self.encoder.end)


def stop_ids(encoder: Encoder) -> frozenset[int]:
    """The id that ends a turn; where there is none, every id whose text ends a line.

    Raises:
        UserError: the tokenizer has none of either kind.
    """
    if encoder.end is not None:
        return frozenset((encoder.end,))
    tokenizer = encoder.tokenizer
    ids = frozenset(token for token in range(len(tokenizer)) if encoder.decode((token,)).endswith("\n"))
    if not ids:
        raise UserError(
            f"the tokenizer must have a token that ends in a line break, {type(tokenizer).__name__} has none"
        )
    return ids


def invalid_ids(
    tokenizer: PreTrainedTokenizerBase, vocabulary: int, device: torch.device, end: int | None = None
) -> Tensor:
    """``(vocabulary,)`` bool: special ids but ``end``, and ids that pad the vocabulary beyond the tokenizer's."""
    mask = torch.arange(vocabulary) >= len(tokenizer)
    mask[[token for token in tokenizer.all_special_ids if token < vocabulary and token != end]] = True
    return mask.to(device)


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
    said = builder.encoder.said
    return [Reply(said(sample.ids), sample.ids, sample.logprobs, sample.values) for sample in samples]
