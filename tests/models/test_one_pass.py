"""What a batch costs where it is read by one forward pass, as on a GPU: calls of operators, passes and shapes."""

import random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lmrl.models.lm import few_shapes, hidden_states, trunk_of
from lmrl.modules import BC
from lmrl.tokens.collate import collate
from lmrl.tokens.encoding import Window
from tests.helpers.doubles import cut, episode

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 12,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
}


class Calls(TorchDispatchMode):
    """Counts calls of operators, and those among them for which the host waits for a GPU."""

    count = 0
    waits = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        self.waits += str(call) in ("aten._local_scalar_dense.default", "aten.nonzero.default")
        return call(*args, **(kwargs or {}))


def dialogues(count: int, turns: int = 3) -> list[Any]:
    """Segments of dialogues that differ in length and share nothing."""
    draw = random.Random(0)
    texts = ["".join(draw.choices("abcdefghij", k=draw.randint(1, 9))) for _ in range(count * turns)]
    games = []
    for first in range(0, len(texts), turns):
        spoken = [word for text in texts[first : first + turns] for word in ("s", text)]
        games.append(episode(*spoken, rewards=[0.0] * turns, terminated=True))
    return cut(games, Window())


def test_a_step_calls_no_more_operators_than_the_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it wait for the GPU, as the plain loop does in each pass."""
    torch.manual_seed(0)
    module = BC(architecture=LLAMA).train()
    passes = []
    trunk_of(module.model).register_forward_hook(lambda *_: passes.append(1))
    monkeypatch.setattr(BC, "hidden_states", lambda _, trunk, batch: hidden_states(trunk, batch, groups=False))
    batch = collate(dialogues(64))
    with Calls() as ours:
        module.objective(module.losses(batch), batch).backward()
    assert len(passes) == 1
    with Calls() as plain:
        module.model(input_ids=batch.input_ids, labels=batch.input_ids, use_cache=False).loss.backward()
    assert ours.count <= 1.15 * plain.count
    assert ours.waits == 0


def test_batches_of_a_run_have_few_shapes() -> None:
    segments = dialogues(1000, turns=6)
    shapes = set()
    for first in range(0, 960, 48):
        ids, positions, mask = few_shapes(collate(segments[first : first + 48]), limit=512)
        assert positions is None and mask is None
        shapes.add(tuple(ids.shape))
    assert len(shapes) <= 3


def test_no_row_outgrows_the_model() -> None:
    ids, _, _ = few_shapes(collate(dialogues(2)), limit=60)
    assert ids.shape[1] <= 60
