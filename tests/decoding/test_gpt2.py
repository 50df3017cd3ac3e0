"""A plain GPT-2 is read by its operations alone, with the very numbers of the model; any other model is asked."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.gpt2.modeling_gpt2 import GPT2Model
from transformers.pytorch_utils import Conv1D

from lmrl.decoding.cache import SlotCache, causal_mask
from lmrl.decoding.forward import ForwardChoice
from lmrl.models.lm import build_lm, trunk_of
from tests.helpers.forwards import noticed, played

SIZE = {"n_layer": 3, "n_head": 4, "n_embd": 32, "n_positions": 64, "initializer_range": 0.3}


def trunk(**config: Any) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_lm(None, {**SIZE, **config}, 48).eval()
        for name, weight in model.named_parameters():
            if name.endswith("bias") or "ln_" in name:  # those of a new model are 0 and 1
                nn.init.normal_(weight, weight.mean().item(), 0.3)
    return trunk_of(model)


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", [{}, {"activation_function": "gelu_new"}, {"n_inner": 24}, {"n_head": 1}], ids=str)
def test_its_operations_give_the_numbers_of_the_model_bit_by_bit(config: dict[str, Any], dtype: torch.dtype) -> None:
    model = trunk(**config).to(dtype)
    alone = played(model)
    calls = noticed(model)
    assert same(alone, played(model))
    assert len(calls) == 5


def test_and_so_they_do_in_mixed_precision() -> None:
    model = trunk()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = played(model)
        noticed(model)
        assert same(mixed, played(model))
    assert not same(mixed, played(trunk()))


def test_the_default_model_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trunk()
    monkeypatch.setattr(GPT2Model, "forward", None)
    played(model)


def test_weights_that_change_in_place_are_followed() -> None:
    model = trunk()
    other = trunk()
    forward = ForwardChoice(model).choose()
    with torch.no_grad():
        for weight in (*model.parameters(), *other.parameters()):
            weight.mul_(0.5)
    ids = positions = torch.arange(4)[None]
    with torch.inference_mode():
        cache = SlotCache(1, 4)
        cache.place(0, positions, 4, 4)
        found = forward(cache, ids, positions, causal_mask(positions, 4, torch.float32))
        expected = other(input_ids=ids, position_ids=positions).last_hidden_state
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def _twice(model: PreTrainedModel) -> None:
    class Twice(Conv1D):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model.h[1].mlp.c_fc.__class__ = Twice


def _patched(model: PreTrainedModel) -> None:
    plain = model.h[2].ln_1.forward
    model.h[2].ln_1.forward = lambda x: 2 * plain(x)


def _pre_hooked(model: PreTrainedModel) -> None:
    model.h[0].attn.c_proj.register_forward_pre_hook(lambda _, args: (2 * args[0],))


def _hooked(model: PreTrainedModel) -> None:
    model.h[0].mlp.register_forward_hook(lambda _, args, output: 2 * output)


@pytest.mark.parametrize("change", [_twice, _patched, _pre_hooked, _hooked])
def test_a_model_with_other_parts_is_asked(change: Callable[[PreTrainedModel], None]) -> None:
    model = trunk()
    plain = played(model)
    change(model)
    changed = played(model)
    assert not same(changed, plain)
    noticed(model)
    assert same(changed, played(model))


@pytest.mark.parametrize("config", [{"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False}], ids=str)
def test_other_scores_are_those_of_the_model(config: dict[str, Any]) -> None:
    model = trunk(**config)
    alone = played(model)
    assert not same(alone, played(trunk()))
    noticed(model)
    assert same(alone, played(model))


def test_eager_attention_stays_eager() -> None:
    model = trunk()
    model.set_attn_implementation("eager")
    alone = played(model)
    noticed(model)
    assert same(alone, played(model))
    assert not same(alone, played(trunk()))


def test_a_subclass_has_its_say() -> None:
    class Louder(GPT2Model):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            output.last_hidden_state = 2 * output.last_hidden_state
            return output

    model = trunk()
    plain = played(model)
    model.__class__ = Louder
    assert same([2 * hidden for hidden in plain], played(model))
