"""How much of what a core can compute is used in play, by the number of games side by side.

The model is that of `benchmarks.engine`, 4 layers of width 128, on one thread; it reads whole histories. Operations are
those that the tokens require: each is read once, ``2 N + 4 L H c`` (N weights of the blocks, L layers of width H, c
tokens of its context), and each that is said needs a row of logits, ``2 H V``. Games, sampling and padding are part of
the time and not of the operations. The peak is that of one thread, as in `benchmarks.training`.
"""

from collections.abc import Iterator
from functools import partial
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

import lmrl
from benchmarks.device import peak
from benchmarks.engine import chatty_lm
from benchmarks.row import Row
from lmrl.models.lm import head_of
from lmrl.models.tokenizer import load_tokenizer
from lmrl.policies import LMPolicy
from lmrl.rollout import rollout
from lmrl.tokens.encoding import Encoder, Window
from lmrl.types import Episode, Start

__all__ = ["required", "run"]

TOKENS = {"twenty_questions": 24, "wordle": 8}
SLOTS = (8, 32, 128, 256, 512)
REPEATS = 3
ASKED_AT_BEST = 0.25
"""The share of the peak that is asked at the best number of slots."""
_TOKENIZER = load_tokenizer()


class Played(NamedTuple):
    """A measurement."""

    turns: float
    """Per second."""
    flops: float
    """Required, per second."""


def required(model: PreTrainedModel, read: int, said: int) -> int:
    """Floating-point operations that an episode requires.

    Args:
        model: of GPT-2's kind.
        read: tokens of its history, those that were said included.
        said: tokens of its actions.
    """
    layers = model.config.n_layer
    width = model.config.n_embd
    contexts = read * (read + 1) // 2
    return 24 * layers * width**2 * read + 4 * layers * width * contexts + 2 * head_of(model).weight.numel() * said


def play(model: PreTrainedModel, task: str, slots: int) -> Played:
    """Twice as many games as there are slots, at least 64."""
    tokens = TOKENS[task]
    encoder = Encoder(_TOKENIZER)
    window = Window(None, model.config.max_position_embeddings - tokens)
    policy = LMPolicy(model, _TOKENIZER, window, max_new_tokens=tokens, slots=slots)
    starts = [Start(seed) for seed in range(max(64, 2 * slots))]
    began = perf_counter()
    episodes = [episode for _, episode in rollout(policy, partial(lmrl.make, task), starts, task=task, slots=slots)]
    seconds = perf_counter() - began
    flops = sum(required(model, *_tokens(episode, encoder)) for episode in episodes)
    return Played(sum(map(len, episodes)) / seconds, flops / seconds)


def _tokens(episode: Episode, encoder: Encoder) -> tuple[int, int]:
    heard = episode.observations[: len(episode)]  # what follows the last action is not read
    said = sum(map(len, episode.action_ids))
    return said + sum(len(encoder.encode(text)) for text in heard), said


def run(repeats: int = REPEATS, slots: tuple[int, ...] = SLOTS) -> Iterator[Row]:
    """Rows for `python -m benchmarks`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from _rows(repeats, slots)
    finally:
        torch.set_num_threads(threads)


def _rows(repeats: int, slots: tuple[int, ...]) -> Iterator[Row]:
    model = chatty_lm(_TOKENIZER).eval()
    best = peak("cpu", half=False, side=1_024)
    yield Row(f"peak: {best.source}", best.flops / 1e9, "GFLOP/s", digits=1)
    for task in TOKENS:
        found = {number: _medians([play(model, task, number) for _ in range(repeats)]) for number in slots}
        for number, (turns, flops) in found.items():
            yield Row(f"{task}, {number} slots", turns, "turns/s", "higher")
            share = flops / best.flops
            yield Row(f"{task}, {number} slots, share of the peak", share, "", "higher", shown=f"{share:.1%}")
        number, share = max(((number, one.flops / best.flops) for number, one in found.items()), key=lambda its: its[1])
        shown = f"{share:.1%}, at {number} slots"
        yield Row(f"{task}, share of the peak at best", share, "", "higher", f">= {ASKED_AT_BEST:.0%}", shown=shown)


def _medians(played: list[Played]) -> Played:
    return Played(median(one.turns for one in played), median(one.flops for one in played))
