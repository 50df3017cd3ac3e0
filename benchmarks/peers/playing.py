"""Dialogues in slots compared with `transformers`: ``generate`` on whole histories every turn, and continuous batching.

All play the same games with the same model of random weights, one thread, 32 games side by side, and read the whole
history. About every fourth token that the model samples ends the line, so actions are about as long as people's. The
engine of continuous batching is started once, before the clock, and keeps the blocks of earlier turns (prefix
sharing), in pages of 16 tokens, with which it is fastest here. Greedy actions must be the same on all sides.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from statistics import mean
from time import perf_counter

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

import lmrl
from benchmarks.engine import Afresh, chatty_lm
from benchmarks.peers.beside import OURS, REPEATS, alternating, beside
from benchmarks.row import Row
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer
from lmrl.policies import LMPolicy
from lmrl.rollout import rollout
from lmrl.tokens.encoding import Window
from lmrl.types import Policy, Reply, Request, Start

__all__ = ["Paged", "greedy_texts", "run"]

PACKAGES = ("transformers",)
SLOTS = EPISODES = 32
TOKENS = {"twenty_questions": 24, "wordle": 8}
GENERATE = "generate per turn"
PAGED = "continuous batching"
ASKED = {GENERATE: ">= 5x", PAGED: ">= 1.5x"}
_PAGE = 16
_ROOM = 2**16
_TOKENIZER = load_tokenizer()


class Paged:
    """A policy with `transformers`' continuous batching of whole histories, which does not read known blocks again."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        window: Window,
        tokens: int,
        greedy: bool = False,
    ) -> None:
        self._like = Afresh(model, tokenizer, window, tokens, greedy)
        how = {**self._like.how, "eos_token_id": sorted(self._like.stop_ids), "pad_token_id": self._like.pad}
        pages = ContinuousBatchingConfig(
            page_size=_PAGE, num_blocks=_ROOM // _PAGE, max_batch_tokens=4096, use_async_batching=False
        )
        self._engine = model.init_continuous_batching(GenerationConfig(max_new_tokens=tokens, **how), pages)
        self._engine.start()

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one action per request once all are finished."""
        names = self._engine.add_requests(self._like.builder.contexts(requests))
        found: dict[str, list[int]] = {}
        while len(found) < len(names):
            output = self._engine.get_result(timeout=1)
            if output is not None and output.is_finished():
                assert output.error is None, output.error
                found[output.request_id] = list(output.generated_tokens)
        return [self._like._reply(found[name]) for name in names]

    def close(self) -> None:
        """Stop the thread of the engine."""
        self._engine.stop()


def window_of(model: PreTrainedModel, tokens: int) -> Window:
    return Window(None, model.config.max_position_embeddings - tokens)


@contextmanager
def paged(model: PreTrainedModel, tokens: int, greedy: bool = False) -> Iterator[Paged]:
    player = Paged(model, _TOKENIZER, window_of(model, tokens), tokens, greedy)
    try:
        yield player
    finally:
        player.close()


def play(make: Callable[[], Policy], task: str, episodes: int) -> float:
    """Play the episodes and return the turns per second, games included."""
    policy = make()
    starts = [Start(seed) for seed in range(episodes)]
    began = perf_counter()
    turns = sum(
        len(episode)
        for _, episode in rollout(policy, partial(lmrl.make, task), starts, task=task, slots=min(SLOTS, episodes))
    )
    return turns / (perf_counter() - began)


def work(policy: LMPolicy, task: str, episodes: int) -> Iterator[Row]:
    """Yield the means per turn of the tokens read and said, and of the decoding steps that `generate` needs."""
    read: list[int] = []
    said: list[list[int]] = []

    class Counting:
        def act(self, requests: Sequence[Request]) -> list[Reply]:
            replies = policy.act(requests)
            read.extend(map(len, policy._context_builder.contexts(requests)))
            said.append([len(reply.ids) for reply in replies])
            return replies

    play(Counting, task, episodes)
    for what, number in (
        ("tokens of history in a turn", mean(read)),
        ("tokens of an action", mean(chain(*said))),
        (f"tokens of the longest of {SLOTS} actions", mean(map(max, said))),
    ):
        yield Row(f"{task}, {what}, mean", number, digits=1)


def greedy_texts(task: str, tokens: int, slots: int = 4, turns: int = 3) -> dict[str, list[tuple[str, ...]]]:
    """Return the greedy actions of each side in the first turns of the same games."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_lm(None, {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 512}, len(_TOKENIZER)).eval()
        # Words lie far apart, so that no two of them tie. Positions lie farther apart, so that the model does not just
        # repeat its last word.
        torch.nn.init.normal_(model.transformer.wte.weight, std=1.0)
        torch.nn.init.normal_(model.transformer.wpe.weight, std=3.0)
    window = window_of(model, tokens)
    found = {}
    with paged(model, tokens, greedy=True) as theirs:
        sides: dict[str, Policy] = {
            OURS: LMPolicy(model, _TOKENIZER, window, temperature=0.0, max_new_tokens=tokens, slots=slots),
            GENERATE: Afresh(model, _TOKENIZER, window, tokens, greedy=True),
            PAGED: theirs,
        }
        for name, policy in sides.items():
            starts = [Start(seed) for seed in range(slots)]
            played = rollout(
                policy, partial(lmrl.make, task), starts, task=task, slots=slots, stop=lambda its: its.turn >= turns
            )
            found[name] = [episode.actions for _, episode in sorted(played, key=lambda one: one[0])]
    return found


def run(repeats: int = REPEATS, episodes: int = EPISODES) -> Iterator[Row]:
    """Rows for `python -m benchmarks.peers playing`."""
    model = chatty_lm(_TOKENIZER).eval()
    for task, tokens in TOKENS.items():
        said = greedy_texts(task, tokens)
        same = all(texts == said[OURS] for texts in said.values())
        yield Row(f"{task}, greedy actions of all sides", float(same), shown="the same" if same else "differ")
        window = window_of(model, tokens)
        yield from work(LMPolicy(model, _TOKENIZER, window, max_new_tokens=tokens, slots=SLOTS), task, episodes)
        with paged(model, tokens) as theirs:
            ways: dict[str, Callable[[], Policy]] = {
                OURS: partial(LMPolicy, model, _TOKENIZER, window, max_new_tokens=tokens, slots=SLOTS),
                GENERATE: partial(Afresh, model, _TOKENIZER, window, tokens),
                PAGED: lambda theirs=theirs: theirs,  # type: ignore[misc]
            }
            speeds = alternating({name: partial(play, make, task, episodes) for name, make in ways.items()}, repeats)
        yield from beside(f"{task}, {SLOTS} slots", "turns/s", speeds, ASKED)
