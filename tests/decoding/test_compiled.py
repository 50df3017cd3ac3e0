"""Compiled and recorded passes of decoding read what the others read.

Backends that make no machine code show that just as well, and sooner. Passes that a GPU records run unrecorded here.
"""

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from lmrl.decoding.cache import attend, attend_on_gpu, bucket, causal_mask
from lmrl.decoding.engine import Engine
from lmrl.decoding.reader import Recorder
from lmrl.errors import UserError
from tests.decoding.test_engine import check, full, tiny, words

SLOTS = 4
ROWS = 5  # of recorded passes


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def fixed_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use fixed shapes, as on a GPU."""
    monkeypatch.setattr("lmrl.decoding.reader.is_static", lambda device: True)
    monkeypatch.setattr("lmrl.decoding.reader.is_static", lambda device: True)


def play(engine: Engine, steps: int) -> list[Tensor]:
    """Return the logits while rows come and go, and while the longest row outgrows 64 columns."""
    rng = random.Random(0)
    contexts = [words(rng, count) for count in (3, 9, 1, 60)]
    read = [engine.logits(engine.feed(range(SLOTS), contexts))]
    for step in range(steps):
        active = rng.sample(range(SLOTS), (SLOTS, 2, 3, 1)[step % 4])
        new = words(rng, len(active))
        for slot, token in zip(active, new, strict=True):
            contexts[slot].append(token)
        read.append(engine.logits(engine.append(active, new)))
    # Rows that sat out have not been overwritten.
    told = torch.stack([full(engine.model, [*context, 5]) for context in contexts])
    read.append(engine.logits(engine.feed(range(SLOTS), [[*context, 5] for context in contexts])))
    torch.testing.assert_close(read[-1], told, atol=1e-4, rtol=0)
    return read


def compiled_graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


@pytest.mark.parametrize(
    ("name", "fixed"),
    [
        pytest.param("gpt2", True, marks=pytest.mark.slow),
        pytest.param("gpt2", False, marks=pytest.mark.nightly),
        pytest.param("llama", True, marks=pytest.mark.nightly),
    ],
)
def test_a_compiled_step_reads_as_any_other(name: str, fixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if fixed:
        fixed_shapes(monkeypatch)
    model = tiny(name)
    plain = play(Engine(model, SLOTS), 16)
    assert compiled_graphs() == 0
    for ours, theirs in zip(play(Engine(model, SLOTS, compile="eager"), 16), plain, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)
    # Fixed shapes: 64 columns, all 96 of a larger cache, and 64 of these. Otherwise: all rows, fewer, and one.
    assert compiled_graphs() == 3


@pytest.mark.nightly
def test_new_weights_and_new_engines_find_the_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in rounds of PPO, weights change in place, and every round has a policy of its own."""
    fixed_shapes(monkeypatch)
    model = tiny()
    before = play(Engine(model, SLOTS, compile="aot_eager"), 5)
    graphs = compiled_graphs()
    engine = Engine(model, SLOTS, compile="aot_eager")
    engine.feed([0], [[1, 2, 3]])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    after = play(engine, 5)
    plain = play(Engine(model, SLOTS), 5)
    for ours, theirs, old in zip(after, plain, before, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
        assert (ours - old).abs().max() > 0.01
    assert compiled_graphs() == graphs > 0


def test_a_full_row_that_sits_out_keeps_all_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_shapes(monkeypatch)
    rng = random.Random(3)
    engine = Engine(tiny(), 2, max_length=64, compile="eager")
    whole = words(rng, 64)
    short = words(rng, 4)
    engine.feed([0, 1], [whole, short])
    engine.append([1], [7])
    again = engine.logits(engine.feed([0], [whole]))
    torch.testing.assert_close(again[0], full(engine.model, whole), atol=1e-4, rtol=0)


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(UserError, match=r"compile.*'swift'"):
        Engine(tiny(), compile="swift")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Record passes, as on a GPU; the list has an entry per recording."""
    recordings = []

    def record(recorder: Recorder, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        recordings.append(1)
        return run

    monkeypatch.setattr("lmrl.decoding.reader.is_recorded", lambda device: True)
    monkeypatch.setattr("lmrl.decoding.reader.Recorder.record", record)
    yield recordings


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_rows_of_any_lengths_are_read_as_by_the_model(name: str, recorded: list[int]) -> None:
    rng = random.Random(0)
    engine = Engine(tiny(name), slots=ROWS)
    contexts = {slot: words(rng, rng.randint(1, 40)) for slot in range(ROWS)}
    check(engine, list(contexts), list(contexts.values()))  # it makes the blocks and is not recorded
    assert not recorded
    for _ in range(8):
        active = rng.sample(range(ROWS), rng.randint(1, ROWS))
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
    """A new episode in a slot is read together with short replies; new rows and more columns move the blocks."""
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


def test_a_pass_is_recorded_again_when_the_blocks_have_moved(recorded: list[int]) -> None:
    engine = Engine(tiny(), slots=2)
    engine.feed([0, 1], [[1, 2], [3, 4]])
    engine.append([0, 1], [5, 6])
    engine.append([0, 1], [7, 8])
    assert len(recorded) == 1
    engine.feed([2], [list(range(40))])  # a third row: the cache makes larger blocks
    engine.append([0, 1], [9, 10])
    assert len(recorded) == 2


def test_passes_that_read_numbers_back_are_not_recorded(recorded: list[int]) -> None:
    """A Llama whose positions are stretched when a text becomes longer than those that it was trained on."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    )  # fmt: skip
    engine = Engine(LlamaForCausalLM(config).eval(), slots=2, max_length=32)
    engine.feed([0, 1], [[1, 2], [3, 4]])
    engine.append([0, 1], [5, 6])
    assert not recorded


def test_few_passes_are_recorded(recorded: list[int]) -> None:
    """A game of 60 tokens in replies of 1 to 4 records at most one pass per width (1, 2, 4) and bucket (64, 96)."""
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


def test_few_calls_stay_outside_of_what_is_recorded(recorded: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    results = {}

    def record(recorder: Recorder, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return a replay that calls no operator."""
        results[0] = run()
        return lambda: results[0]

    monkeypatch.setattr("lmrl.decoding.reader.Recorder.record", record)
    engine = Engine(tiny(), slots=16)
    engine.feed(range(16), [[1, 2, 3]] * 16)
    engine.append(range(16), [4] * 16)
    with _Calls() as calls:
        engine.append(range(16), [5] * 16)
    assert calls.count <= 20
