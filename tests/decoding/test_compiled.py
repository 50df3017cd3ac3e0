"""Compiled decode steps say what the others say. Backends that make no machine code show that as well, and sooner."""

import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from lmrl.decoding.engine import Engine
from lmrl.errors import UserError
from tests.decoding.test_engine import full, tiny, words

SLOTS = 4


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def fixed_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr("lmrl.decoding.reader.is_static", lambda device: True)
    monkeypatch.setattr("lmrl.decoding.reader.is_static", lambda device: True)


def play(engine: Engine, steps: int) -> list[Tensor]:
    """Logits while rows come and go, and while the longest outgrows 64 columns."""
    rng = random.Random(0)
    contexts = [words(rng, count) for count in (3, 9, 1, 60)]
    read = [engine.logits(engine.feed(range(SLOTS), contexts))]
    for step in range(steps):
        active = rng.sample(range(SLOTS), (SLOTS, 2, 3, 1)[step % 4])
        new = words(rng, len(active))
        for slot, token in zip(active, new, strict=True):
            contexts[slot].append(token)
        read.append(engine.logits(engine.append(active, new)))
    # Whoever sat out has not been overwritten.
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
    # Fixed: 64 columns, and the model's 96. Else: all rows, fewer, and one.
    assert compiled_graphs() == (2 if fixed else 3)


@pytest.mark.nightly
def test_new_weights_and_new_engines_find_the_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As rounds of PPO have it: weights move in place, and every round has a policy of its own."""
    fixed_shapes(monkeypatch)
    model = tiny()
    before = play(Engine(model, SLOTS, compile="aot_eager"), 5)
    graphs = compiled_graphs()
    engine = Engine(model, SLOTS, compile="aot_eager")
    engine.feed([0], [[1, 2, 3]])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    after, plain = play(engine, 5), play(Engine(model, SLOTS), 5)
    for ours, theirs, old in zip(after, plain, before, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
        assert (ours - old).abs().max() > 0.01
    assert compiled_graphs() == graphs > 0


def test_a_full_row_that_sits_out_keeps_all_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_shapes(monkeypatch)
    rng, engine = random.Random(3), Engine(tiny(), 2, max_length=64, compile="eager")
    whole, short = words(rng, 64), words(rng, 4)
    engine.feed([0, 1], [whole, short])
    engine.append([1], [7])
    again = engine.logits(engine.feed([0], [whole]))
    torch.testing.assert_close(again[0], full(engine.model, whole), atol=1e-4, rtol=0)


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(UserError, match=r"compile.*'swift'"):
        Engine(tiny(), compile="swift")
