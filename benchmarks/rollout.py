"""Turns per second of rounds as they are played for training, how full their slots are, and the memory of a round.

Models have 4 layers of width 128 and random weights except for the end of the line (see `benchmarks.engine`), and play
in 32 slots. In the maze they read the last observation. In Wordle and Twenty Questions they read the whole history, and
are compared with calling ``generate`` afresh every turn. Returns do not matter here.
"""

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

import lmrl
from benchmarks.engine import Afresh, chatty_lm
from benchmarks.row import Row
from lmrl.datamodules.replay_buffer import Outcome, ReplayBuffer
from lmrl.envs.registry import make_policy
from lmrl.models.heads import ValueHead
from lmrl.models.lm import trunk_of
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules.policy_gradient import rollout_episode
from lmrl.modules.ppo import compute_advantages
from lmrl.policies import LMPolicy, ValueGuidedPolicy
from lmrl.rollout import rollout
from lmrl.tokens.encoding import Encoder, Window
from lmrl.tokens.segments import segments
from lmrl.types import Episode, Policy, Reply, Request, Start

__all__ = ["memory", "run"]

SLOTS = 32
EPISODES = 64
REPEATS = 3
TOKENIZER = load_tokenizer()


class Counting:
    """A policy that counts requests and passes them on to another policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.turns = 0
        self.calls = 0

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        self.turns = self.turns + len(requests)
        self.calls = self.calls + 1
        return self.policy.act(requests)


def round_of(policy: Policy, task: str, episodes: int = EPISODES, turns: int | None = None) -> tuple[float, float]:
    """Play a round; return turns per second of wall clock, environments included, and the share of busy slots."""
    counting = Counting(policy)
    begin = perf_counter()
    stop = None if turns is None else lambda request: request.turn >= turns
    starts = [Start(seed) for seed in range(episodes)]
    for _ in rollout(counting, partial(lmrl.make, task), starts, task=task, slots=SLOTS, stop=stop):
        pass
    return counting.turns / (perf_counter() - begin), counting.turns / (counting.calls * SLOTS)


def alternating(players: dict[str, Callable[[], Policy]], task: str, **settings: Any) -> dict[str, float]:
    """Return the median turns per second of each player. Each round has a new one, since an old one would remember."""
    speeds: dict[str, list[float]] = {name: [] for name in players}
    for _ in range(REPEATS):
        for name, make in players.items():
            speeds[name].append(round_of(make(), task, **settings)[0])
    return {name: median(values) for name, values in speeds.items()}


def guided(model: PreTrainedModel, window: Window, tokens: int) -> ValueGuidedPolicy:
    """Return a policy that plays like an ILQL run: two Qs and a V on a trunk of their own."""
    width = model.config.hidden_size
    vocabulary = model.config.vocab_size
    heads = nn.ModuleList([ValueHead(width, out) for out in (vocabulary, vocabulary, 1)]).requires_grad_(False)
    *q_heads, v_head = heads
    return ValueGuidedPolicy(
        model,
        TOKENIZER,
        window,
        value_model=trunk_of(chatty_lm(TOKENIZER)),
        q_heads=q_heads,
        v_head=v_head,
        beta=1.0,
        max_new_tokens=tokens,
        slots=SLOTS,
    )


def maze() -> Iterator[Row]:
    model = chatty_lm(TOKENIZER)
    window = Window(1, 256)
    players: dict[str, Callable[[], Policy]] = {
        "BC": lambda: LMPolicy(model, TOKENIZER, window, max_new_tokens=8, slots=SLOTS),
        "ILQL": lambda: guided(model, window, 8),
    }
    for name, speed in alternating(players, "maze_fo", turns=20).items():
        yield Row(f"FO maze, {name}", speed, "turns/s", "higher")


def dialogues() -> Iterator[Row]:
    model = chatty_lm(TOKENIZER)
    for task, tokens in (("twenty_questions", 24), ("wordle", 8)):
        window = Window(None, model.config.max_position_embeddings - tokens)
        players: dict[str, Callable[[], Policy]] = {
            "slots": partial(LMPolicy, model, TOKENIZER, window, max_new_tokens=tokens, slots=SLOTS),
            "generate": partial(Afresh, model, TOKENIZER, window, tokens),
        }
        speed = alternating(players, task)
        yield Row(f"{task}, whole history", speed["slots"], "turns/s", "higher")
        yield Row(f"{task}, generate afresh", speed["generate"], "turns/s", "higher")
        yield Row(f"{task}, slots / generate", speed["slots"] / speed["generate"], "x", "higher", ">= 5x", 1)


def utilisation() -> Iterator[Row]:
    """Yield the shares of busy slots, in episodes of 1 to 100 turns, drawn evenly, and in games of scripted players."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 101, size=256).tolist()
    policy = Counting(_Silent())
    starts = [Start(seed) for seed in range(256)]
    stop: Callable[[Request], bool] = lambda request: request.turn >= lengths[request.seed]  # noqa: E731
    for _ in rollout(policy, partial(lmrl.make, "maze_fo"), starts, task="maze_fo", slots=SLOTS, stop=stop):
        pass
    busy = 100 * policy.turns / (policy.calls * SLOTS)
    yield Row("256 episodes of 1 to 100 turns, busy slots", busy, "%", "higher", ">= 90%", 1)
    for task in ("twenty_questions", "wordle", "text_nav_fo", "maze_fo", "endgames"):
        busy = 100 * round_of(make_policy(task, "behaviour"), task, episodes=256)[1]
        yield Row(f"256 episodes of {task}, scripted player, busy slots", busy, "%", "higher", ">= 90%", 1)


class _Silent:
    def act(self, requests: Sequence[Request]) -> list[Reply]:
        return [Reply("\n") for _ in requests]


def memory(episodes: int = 2048, turns: int = 32) -> tuple[float, float, float]:
    """Return the MB of a round of ``turns`` x 16 tokens, half of them said: episodes, buffer, and peak on the way.

    Episodes hold what was sampled, as a rollout yields it; the buffer holds the segments with what PPO attaches.
    """
    draw = np.random.default_rng(0)
    encoder = Encoder(TOKENIZER)
    heard = encoder.decode([token for token in range(300, 308)])
    tracemalloc.start()
    begun = tracemalloc.get_traced_memory()[0]
    played = [_episode(draw, encoder, heard, turns) for _ in range(episodes)]
    kept = tracemalloc.get_traced_memory()[0]
    parts = [list(segments(episode, encoder, Window(None, 1024))) for episode in played]
    ref = [np.zeros(sum(len(part.col) for part in its)) for its in parts]
    buffer = ReplayBuffer()
    settings = {"kl_weight": 0.0, "gamma": 1.0, "gae_lambda": 0.95}
    collected = [rollout_episode(*its) for its in zip(played, parts, ref, strict=True)]
    values = [np.concatenate(episode.action_values) for episode in played]
    compute_advantages(collected, values, [0.0] * episodes, **settings)
    for episode in collected:
        buffer.append(episode.trained_segments(), Outcome(0.0, False))
    del episode, collected, parts, ref
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (kept - begun) / 2**20, (held - kept) / 2**20, (peak - begun) / 2**20


def _episode(draw: np.random.Generator, encoder: Encoder, heard: str, turns: int) -> Episode:
    ids = [tuple(draw.integers(300, 1000, size=8).tolist()) for _ in range(turns)]
    noted = tuple(tuple(draw.normal(size=8).tolist()) for _ in range(turns))
    values = tuple(tuple(draw.normal(size=8).tolist()) for _ in range(turns))
    said = tuple(map(encoder.decode, ids))
    texts = tuple(heard for _ in range(turns + 1))
    return Episode("toy", texts, said, (0.0,) * turns, True, False, 0, {}, tuple(ids), noted, values)


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks`; with as many threads as torch takes."""
    yield Row("threads", torch.get_num_threads(), asked="2")
    yield from maze()
    yield from dialogues()
    yield from utilisation()
    episodes, buffer, peak = memory()
    yield Row("2,048 episodes x 512 tokens: buffer", buffer, "MB", "lower", "< 300 MB")
    yield Row("2,048 episodes x 512 tokens: with their episodes", episodes + buffer, "MB", "lower")
    yield Row("2,048 episodes x 512 tokens: at most, on the way", peak, "MB", "lower")
