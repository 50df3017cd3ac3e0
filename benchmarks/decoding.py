"""Speed of decoding: tokens per second of prefill and decode, and turns per second of games, against ``generate``.

Both sides have the same model, which never ends a line, so that every action has the same number of tokens on both. The
other side is `benchmarks.engine.Afresh`, which calls `transformers`' ``generate`` on whole histories every turn. Either
both sides decode greedily or both sample.

- prefill: all slots read contexts of `Size.prompt` tokens at once, new ones each time, and generate one token;
- decode: the same with `Size.answer` tokens; the time and the token of prefill are subtracted;
- rollouts: `Size.turns` turns of partially observed mazes with whole histories; the time includes the environments.

The sides alternate, after rounds that are not counted; each figure is the median.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

import lmrl
from benchmarks.device import Stopwatch, Timing
from benchmarks.engine import Afresh
from benchmarks.row import Row
from benchmarks.size import CPU, Size
from lmrl.errors import UserError
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer
from lmrl.policies import LMPolicy
from lmrl.policies.lm import invalid_ids, stop_ids
from lmrl.rollout import rollout
from lmrl.tokens.encoding import Encoder, Window
from lmrl.types import Policy, Request, Start

__all__ = ["endless_lm", "run"]

SIDES = ("slots", "generate")
#: The parts that are measured one after the other: the speed of tokens and of games.
PARTS = ("greedy_tokens", "greedy_turns", "sampled_tokens", "sampled_turns")
LOST = "not measured: lost in noise"
TOKENIZER = load_tokenizer()


def endless_lm(size: Size) -> PreTrainedModel:
    """Build a random model that never says the end of a line or a special id, on the device and in its precision."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_lm(None, size.architecture(), size.vocabulary)
    never = invalid_ids(TOKENIZER, size.vocabulary, torch.device("cpu"))
    never[list(stop_ids(Encoder(TOKENIZER)))] = True
    with torch.no_grad():
        words = model.transformer.wte.weight
        # The first number of every hidden vector, which the norm leaves above -sqrt(width), becomes positive and large.
        # It lowers the logits of those words alone.
        words[:, 0] = torch.where(never, -10.0, 0.0)
        model.transformer.ln_f.bias[0] += 2 * size.width**0.5
    return model.to(size.device, torch.bfloat16 if size.half else torch.float32).eval()


def player(side: str, model: PreTrainedModel, window: Window, tokens: int, greedy: bool, size: Size) -> Policy:
    """Return our policy with default settings, or the policy of the other side."""
    if side == "generate":
        return Afresh(model, TOKENIZER, window, tokens, greedy)
    temperature = 0.0 if greedy else 1.0
    settings: dict[str, Any] = {"temperature": temperature, "max_new_tokens": tokens, "slots": size.slots}
    return LMPolicy(model, TOKENIZER, window, **settings)


def contexts(size: Size, number: int) -> list[Request]:
    """Return one request per slot, with more text than its window holds."""
    draw = np.random.default_rng(number)
    texts = [" ".join(map(str, draw.integers(1_000, size=size.prompt))) for _ in range(size.slots)]
    return [Request(slot, slot, (text,)) for slot, text in enumerate(texts)]


def answer(policy: Policy, requests: list[Request], tokens: int, size: Size) -> Timing:
    """Time one call for all slots."""
    watch = Stopwatch(size.device)
    watch.start()
    replies = policy.act(requests)
    timing = watch.stop()
    assert all(len(reply.ids) == tokens for reply in replies), "both sides must say as much"
    return timing


def apart(model: PreTrainedModel, size: Size, greedy: bool) -> dict[str, tuple[float, float | None]]:
    """Return tokens per second of prefill and decode, by side; None where more tokens took no more time than one."""
    window = Window(None, size.prompt)
    lengths = (1, size.answer)
    asked = [contexts(size, number) for number in range(2)]  # in turn, so that no slot still holds its text
    players = {
        (side, tokens): player(side, model, window, tokens, greedy, size) for side in SIDES for tokens in lengths
    }
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in players}
    for number in range(2 + size.rounds):
        for key, policy in players.items():
            timing = answer(policy, asked[number % 2], key[1], size)
            seconds[key] += [timing.seconds] if number >= 2 else []  # by then all texts have been encoded
    found = {}
    for side in SIDES:
        one, whole = (median(seconds[side, tokens]) for tokens in lengths)
        decode = size.slots * (size.answer - 1) / (whole - one) if whole > one else None
        found[side] = (size.slots * size.prompt / one, decode)
    return found


def games(policy: Policy, size: Size, first: int, turns: int) -> tuple[int, int]:
    """Play one game per slot and return the numbers of turns and of tokens."""
    starts = [Start(first + slot) for slot in range(size.slots)]
    stop: Callable[[Request], bool] = lambda request: request.turn >= turns  # noqa: E731
    played = rollout(policy, partial(lmrl.make, "maze_po"), starts, task="maze_po", slots=size.slots, stop=stop)
    said = [ids for _, episode in played for ids in episode.action_ids]
    assert all(len(ids) == size.action for ids in said), "both sides must say as much"
    return len(said), sum(map(len, said))


def rollouts(model: PreTrainedModel, size: Size, greedy: bool) -> dict[str, list[Timing]]:
    """Measure the seconds and the memory of a round of games, by side."""
    window = Window(None, model.config.max_position_embeddings - size.action)
    timings: dict[str, list[Timing]] = {side: [] for side in SIDES}
    uncounted = int(torch.device(size.device).type == "cuda")  # passes are recorded in this round
    for number in range(uncounted + size.rounds):
        for side in SIDES:
            watch = Stopwatch(size.device)
            # A new player each time: an old one would still hold the games that it is about to be asked for.
            policy = player(side, model, window, size.action, greedy, size)
            games(policy, size, size.slots, turns=1)
            watch.start()
            turns, _ = games(policy, size, 0, size.turns)
            timing = watch.stop()
            timings[side] += [timing] if number >= uncounted else []
            assert turns == size.slots * size.turns, "no game may end before its time"
    return timings


def run(size: Size = CPU, only: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows for `python -m benchmarks`, those of a part as soon as it is over.

    Args:
        size: of the model and its games.
        only: the parts of `PARTS` to measure; none: all.

    Raises:
        UserError: an unknown part.
    """
    for part in only:
        if part not in PARTS:
            raise UserError(f"unknown part {part!r} of decoding; known: {', '.join(PARTS)}")
    model = endless_lm(size)
    for part in only or PARTS:
        how, _, what = part.partition("_")
        greedy = how == "greedy"
        if what == "tokens":
            yield from _token_rows(size, how, apart(model, size, greedy))
        else:
            yield from _game_rows(size, how, rollouts(model, size, greedy))


def _token_rows(size: Size, how: str, speeds: Mapping[str, tuple[float, float | None]]) -> Iterator[Row]:
    """Yield tokens per second of reading and of speaking."""
    for place, phase in enumerate(("prefill", "decode")):
        speed = {side: speeds[side][place] for side in SIDES}
        yield from _beside(f"{size.label}, {how}, {phase}", speed, "tokens/s", "")
    decode = speeds["slots"][1]
    if decode:
        step = 1_000 * size.slots / decode
        yield Row(f"{size.label}, {how}, decode, slots, a step of all slots", step, "ms", "lower", digits=2)


def _game_rows(size: Size, how: str, timings: Mapping[str, Sequence[Timing]]) -> Iterator[Row]:
    """Yield turns and tokens per second of games, and the memory that they take."""
    turns = {side: size.slots * size.turns / median(t.seconds for t in timings[side]) for side in SIDES}
    name = f"{size.label}, {how}, rollout in {size.slots} slots"
    yield from _beside(name, turns, "turns/s", size.asked.get("rollout", ""))
    for side in SIDES:
        yield Row(f"{name}, {side}, tokens said", turns[side] * size.action, "tokens/s", "higher")
        memory = [t.memory for t in timings[side] if t.memory is not None]
        if memory:
            yield Row(f"{name}, {side}, memory beside the model", median(memory) / 1e9, "GB", "lower", digits=2)


def _beside(name: str, speed: Mapping[str, float | None], unit: str, asked: str) -> Iterator[Row]:
    for side in SIDES:
        yield Row(f"{name}, {side}", speed[side], unit, "higher", shown="" if speed[side] else LOST)
    ours, theirs = (speed[side] for side in SIDES)
    ratio = ours / theirs if ours and theirs else None
    yield Row(f"{name}, {' / '.join(SIDES)}", ratio, "x", "higher", asked, 1, shown="" if ratio else LOST)
