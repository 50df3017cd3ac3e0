import math

import pytest
import torch
from torch import nn

from lmrl.errors import UserError
from lmrl.modules import BC
from lmrl.training.optimizer import adamw, schedule


def rates(kind: str, warmup: int, last: float, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    rate = schedule(optimizer, kind, warmup, last, steps)
    found = []
    for _ in range(steps + 1):
        found.append(rate.get_last_lr()[0])
        optimizer.step()
        rate.step()
    return found


def test_a_cosine_falls_from_the_peak_to_its_last_share() -> None:
    found = rates("cosine", 1, 0.1, 4)
    expected = [2.0 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * k / 4))) for k in range(5)]
    assert found == pytest.approx(expected)
    assert found[0] == pytest.approx(2.0)
    assert found[-1] == pytest.approx(0.2)


def test_a_warm_up_is_linear() -> None:
    assert rates("constant", 4, 0.1, 5) == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0, 2.0])


def test_only_matrices_that_are_no_embeddings_decay() -> None:
    module = nn.ModuleDict({"embed": nn.Embedding(3, 2), "inner": nn.Linear(2, 2), "norm": nn.LayerNorm(2)})
    frozen = nn.Linear(2, 2).requires_grad_(False)
    module["frozen"] = frozen
    groups = {group["weight_decay"]: group["params"] for group in adamw(module, 1e-3, 0.1, 0.95).param_groups}
    assert [id(p) for p in groups[0.1]] == [id(module["inner"].weight)]
    assert len(groups[0.0]) == 4  # embedding, bias, norm's weight and bias
    assert not any(p is q for p in frozen.parameters() for group in groups.values() for q in group)


def test_an_unknown_schedule_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="unknown lr_schedule 'linear'; known: constant, cosine"):
        BC(lr_schedule="linear")
