"""Passes over all rows, which a GPU records, read what the others read. Here "recorded" passes run as they are."""

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lmrl.decoding.cache import attend, attend_on_gpu, bucket, causal_mask
from lmrl.decoding.engine import Engine
from tests.decoding.test_engine import check, full, tiny, words

SLOTS = 5


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """As on a GPU; the list has an entry per recording."""
    recordings = []

    def record(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        recordings.append(1)
        return run

    monkeypatch.setattr("lmrl.decoding.reader.is_recorded", lambda device: True)
    monkeypatch.setattr("lmrl.decoding.reader.record", record)
    yield recordings


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_rows_of_any_lengths_are_read_as_by_the_model(name: str, recorded: list[int]) -> None:
    rng = random.Random(0)
    engine = Engine(tiny(name), slots=SLOTS)
    contexts = {slot: words(rng, rng.randint(1, 40)) for slot in range(SLOTS)}
    check(engine, list(contexts), list(contexts.values()))  # makes the blocks: not recorded
    assert not recorded
    for _ in range(8):
        active = rng.sample(range(SLOTS), rng.randint(1, SLOTS))
        for slot in active:
            contexts[slot] += words(rng, rng.randint(0, 6))
        check(engine, active, [contexts[slot] for slot in active])
        for slot in active:
            contexts[slot] += words(rng, 1)
        logits = engine.logits(engine.append(active, [contexts[slot][-1] for slot in active]))
        expected = torch.stack([full(engine.model, contexts[slot]) for slot in active])
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    assert recorded


def test_long_texts_and_more_slots_than_announced(recorded: list[int]) -> None:
    """A new episode in a slot is read beside short replies; new rows and more columns move the blocks."""
    rng = random.Random(1)
    engine = Engine(tiny(), slots=2)
    contexts = {slot: words(rng, 5) for slot in range(2)}
    check(engine, list(contexts), list(contexts.values()))
    for slot in range(2):
        contexts[slot] += words(rng, 2)
    check(engine, list(contexts), list(contexts.values()))
    before = len(recorded)
    contexts[1] = words(rng, 50)
    for slot in (0, 2, 3):
        contexts[slot] = contexts.get(slot, []) + words(rng, 3)
    check(engine, list(contexts), list(contexts.values()))
    contexts[1] += words(rng, 30)
    contexts[2] += words(rng, 1)
    check(engine, list(contexts), list(contexts.values()))
    assert len(recorded) > before


def test_few_passes_are_recorded(recorded: list[int]) -> None:
    """A game of 60 tokens in replies of 1 to 4: as many passes as widths (1, 2, 4) times buckets (64, 96)."""
    rng = random.Random(2)
    engine = Engine(tiny(), slots=3)
    contexts = [words(rng, 8) for _ in range(3)]
    engine.feed(range(3), contexts)
    for _ in range(20):
        for context in contexts:
            context += words(rng, rng.randint(1, 4))
        check(engine, [0, 1, 2], contexts)
    assert len(recorded) <= 6


@pytest.mark.parametrize(("columns", "size"), [(1, 64), (64, 64), (65, 96), (97, 128), (129, 192), (193, 256)])
def test_bucket(columns: int, size: int) -> None:
    assert bucket(columns) == size


@pytest.mark.parametrize("new", [1, 3, 9])
@pytest.mark.parametrize("key_heads", [2, 6])
def test_attention_of_a_gpu(new: int, key_heads: int) -> None:
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(4, 6, new, 8, generator=draw)
    keys, values = torch.randn(2, 4, key_heads, 20, 8, generator=draw)
    mask = causal_mask(torch.randint(0, 20, (4, new), generator=draw), 20, torch.float32)
    expected = attend(query, keys, values, mask)
    found = attend_on_gpu(query, keys, values, mask)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


class _Calls(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return call(*args, **(kwargs or {}))


def test_few_calls_stay_outside_of_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {}

    def record(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """What a replay costs: no call of an operator."""
        results[0] = run()
        return lambda: results[0]

    monkeypatch.setattr("lmrl.decoding.reader.record", record)
    engine = Engine(tiny(), slots=16)
    engine.feed(range(16), [[1, 2, 3]] * 16)
    engine.append(range(16), [4] * 16)
    with _Calls() as calls:
        engine.append(range(16), [5] * 16)
    assert calls.count <= 20
