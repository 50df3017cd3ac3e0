import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from lmrl.errors import UserError
from lmrl.modules import BC, ILQL
from lmrl.training.optimizer import Muon, adamw, muon, optimizer_and_schedule, orthogonalized, schedule
from tests.helpers.cases import cases


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


@pytest.mark.parametrize("shape", [(4, 4), (3, 8), (8, 3)])
def test_an_orthogonalized_matrix_keeps_its_directions(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    found = orthogonalized(matrix)
    sizes = torch.diagonal(u.T @ found @ v.T)
    assert ((sizes > 0.6) & (sizes < 1.3)).all()
    assert torch.allclose(u @ torch.diag(sizes) @ v, found, atol=1e-4)


def test_muon_moves_a_transposed_matrix_as_the_plain_one() -> None:
    """GPT-2's layers keep inputs by outputs; their steps are those of linear layers with the same weights."""
    torch.manual_seed(0)
    module = BC(architecture={"n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 16})
    ours = muon(module, 0.02, 1e-3, 0.1, 0.95)
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, Conv1D)}
    assert len(layers) == 4  # of one block: attention in and out, and the two of the MLP
    plain = {name: nn.Parameter(layer.weight.detach().T.clone()) for name, layer in layers.items()}
    settings = {"lr": 0.02, "weight_decay": 0.1, "orthogonal": True, "momentum": 0.95}
    theirs = Muon([{"params": [*plain.values()], **settings}])
    for _ in range(3):
        for name, layer in layers.items():
            layer.weight.grad = torch.randn_like(layer.weight)
            plain[name].grad = layer.weight.grad.T.clone()
        ours.step()
        theirs.step()
    for name, layer in layers.items():
        torch.testing.assert_close(layer.weight, plain[name].T, atol=1e-6, rtol=0)


def test_muon_moves_matrices_as_torch_does_and_the_rest_as_adamw() -> None:
    torch.manual_seed(0)
    module = BC(
        architecture={
            "model_type": "llama",
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "hidden_size": 8,
            "intermediate_size": 16,
            "max_position_embeddings": 16,
        }
    )
    ours = muon(module, 0.02, 1e-3, 0.1, 0.95)
    matrices = ours.param_groups[0]["params"]
    assert len(matrices) == 7 and all(p.ndim == 2 for p in matrices)  # q, k, v, o, gate, up, down
    theirs = [nn.Parameter(p.detach().clone()) for p in module.parameters()]
    order = {id(p): i for i, p in enumerate(module.parameters())}
    rest = [p for group in ours.param_groups[1:] for p in group["params"]]
    plain = [theirs[order[id(p)]] for p in rest if p.ndim == 1 or p is module.model.get_input_embeddings().weight]
    decaying = [theirs[order[id(p)]] for p in rest if not any(theirs[order[id(p)]] is q for q in plain)]
    reference = (
        torch.optim.Muon([theirs[order[id(p)]] for p in matrices], lr=0.02, weight_decay=0.1, momentum=0.95),
        torch.optim.AdamW(decaying, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1),
        torch.optim.AdamW(plain, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0),
    )
    for _ in range(3):
        for p, q in zip(module.parameters(), theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        ours.step()
        for optimizer in reference:
            optimizer.step()
    for p, q in zip(module.parameters(), theirs, strict=True):
        # torch.optim.Muon reckons in bfloat16.
        assert torch.allclose(p, q, atol=2e-3 if id(p) in map(id, matrices) else 1e-6)


def test_muon_goes_on_from_its_state() -> None:
    def make() -> tuple[nn.Linear, Muon]:
        torch.manual_seed(0)
        layer = nn.Linear(4, 4)
        groups = [{"params": [layer.weight], "orthogonal": True, "momentum": 0.95}, {"params": [layer.bias]}]
        return layer, Muon(groups, lr=0.1)

    def steps(layer: nn.Linear, optimizer: Muon, seeds: range) -> None:
        for seed in seeds:
            torch.manual_seed(seed)
            layer.weight.grad, layer.bias.grad = torch.randn(4, 4), torch.randn(4)
            optimizer.step()

    whole = make()
    again = make()
    steps(*whole, range(4))
    steps(*again, range(2))
    resumed = make()
    resumed[0].load_state_dict(again[0].state_dict())
    resumed[1].load_state_dict(again[1].state_dict())
    steps(*resumed, range(2, 4))
    assert torch.equal(whole[0].weight, resumed[0].weight) and torch.equal(whole[0].bias, resumed[0].bias)


def test_muon_over_shards_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmrl.training.optimizer.is_sharded", lambda module: True)
    with pytest.raises(UserError, match="optimizer muon needs whole matrices"):
        muon(BC(), 0.02, 1e-3, 0.0, 0.95)


def test_an_unknown_optimizer_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="unknown optimizer 'sgd'; known: adamw, muon"):
        BC(optimizer="sgd")


@cases(
    ("settings", "steps", "message"),
    [
        ({"warmup_steps": 30}, 30, "the learning rate never reaches lr: warmup_steps is 30, and the run has 30 steps"),
        ({"warmup_steps": 30}, 31, ""),
        ({"warmup_steps": 0, "polyak": 0.005}, 100, "the target networks go only 39% of their way in 100 steps"),
        ({"warmup_steps": 0, "polyak": 0.005}, 200, ""),
        ({"warmup_steps": 0, "polyak": 0.05}, 20, ""),
        ({"polyak": 0.2}, -1, "lr_schedule cosine needs the number of steps"),
        ({"lr_schedule": "constant", "polyak": 0.2}, -1, ""),
    ],
)
def test_settings_without_effect_in_a_short_run_are_warned_of(
    settings: dict[str, Any], steps: int, message: str
) -> None:
    module = ILQL(**settings) if "polyak" in settings else BC(**settings)  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer_and_schedule(module, steps)
    texts = [str(warning.message) for warning in caught]
    assert [message in text for text in texts] == ([True] if message else [])


@pytest.mark.filterwarnings("ignore:lr_schedule cosine needs")
@pytest.mark.parametrize("steps", [-1, math.inf])
def test_a_rate_does_not_fall_where_nobody_knows_the_number_of_steps(steps: float) -> None:
    rate = optimizer_and_schedule(BC(lr=1e-3, warmup_steps=0), steps)["lr_scheduler"]["scheduler"]  # type: ignore[index]
    seen = []
    for _ in range(3):
        seen.append(rate.get_last_lr()[0])
        rate.optimizer.step()
        rate.step()
    assert seen == [1e-3] * 3
