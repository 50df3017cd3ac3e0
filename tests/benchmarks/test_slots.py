"""The operations that play requires are those that torch counts when every token is read once."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import slots
from benchmarks.engine import chatty_lm
from lmrl.decoding.engine import Engine
from lmrl.models.tokenizer import load_tokenizer

MODEL = chatty_lm(load_tokenizer(), layers=2, width=64).eval()


def test_required_operations_are_those_that_torch_counts() -> None:
    engine, read, said = Engine(MODEL, slots=1), 7, 3
    ids = torch.arange(300, 300 + read).tolist()
    # The fused attention of a processor is not counted by torch.
    with FlopCounterMode(display=False) as counter, sdpa_kernel([SDPBackend.MATH]):
        hidden = engine.feed([0], [ids[:1]])
        for token in ids[1:]:
            hidden = engine.append([0], [token])
        for _ in range(said):
            engine.logits(hidden)
    assert counter.get_total_flops() == slots.required(MODEL, read, said)


def test_a_small_run_has_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "chatty_lm", lambda _: MODEL)
    rows = {row.name: row.value for row in slots.run(repeats=1, slots=(2, 4))}
    assert len(rows) == 1 + 2 * (2 * 2 + 1)
    best = max(rows[f"wordle, {number} slots, share of the peak"] or 0 for number in (2, 4))
    assert rows["wordle, share of the peak at best"] == best and 0 < best < 1
