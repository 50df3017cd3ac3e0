"""A plain Llama is read by our own operations, which equal the model up to rounding; any other model is called."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaModel

from lmrl.decoding.engine import Engine
from lmrl.models.lm import build_lm, trunk_of
from tests.helpers.forwards import VOCABULARY, noticed, played

SIZE = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}


def language_model(**config: Any) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_lm(None, {**SIZE, **config}, VOCABULARY).eval()
        for name, weight in model.named_parameters():
            if "norm" in name:  # the norms of a new model are 1
                nn.init.normal_(weight, 1.0, 0.3)
    return model


def trunk(**config: Any) -> PreTrainedModel:
    return trunk_of(language_model(**config))


def close(left: list[Tensor], right: list[Tensor], tolerance: float = 2e-5) -> bool:
    return all(bool((one - other).abs().max() < tolerance) for one, other in zip(left, right, strict=True))


@pytest.mark.parametrize(
    "config",
    [
        *({}, {"num_key_value_heads": 2}, {"num_key_value_heads": 1}, {"num_attention_heads": 1}, {"head_dim": 6}),
        *({"rms_norm_eps": 0.5}, {"rope_theta": 10.0}),
    ],
    ids=str,
)
def test_its_operations_give_the_numbers_of_the_model(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = trunk(**config)
    with monkeypatch.context() as patch:
        patch.setattr(LlamaModel, "forward", None)  # the model is not called
        alone = played(model)
    calls = noticed(model)
    asked = played(model)
    assert close(alone, asked) and len(calls) == 5
    assert min(float(hidden.abs().max()) for hidden in asked) > 0.5  # so 2e-5 is small compared with it


def test_weights_that_an_optimizer_moves_are_followed() -> None:
    """Matrices that were joined before an optimizer step are not used after it."""
    model = language_model()
    engine = Engine(model, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    context = [[3, 1, 4, 1], [5, 9]]
    before = engine.feed([0, 1], context).clone()
    model(torch.tensor(context[:1])).logits.square().sum().backward()
    optimizer.step()
    after = engine.feed([0, 1], context)
    with torch.inference_mode():
        expected = trunk_of(model)(torch.tensor(context[:1])).last_hidden_state[:, -1]
    assert not close([before[:1]], [after[:1]], 1e-2)
    assert close([after[:1]], [expected])


def _patched(model: PreTrainedModel) -> None:
    plain = model.layers[2].input_layernorm.forward
    model.layers[2].input_layernorm.forward = lambda x: 2 * plain(x)


def _hooked(model: PreTrainedModel) -> None:
    model.layers[0].mlp.register_forward_hook(lambda _, args, output: 2 * output)


def _other_part(model: PreTrainedModel) -> None:
    class Twice(LlamaMLP):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model.layers[1].mlp.__class__ = Twice


@pytest.mark.parametrize("change", [_patched, _hooked, _other_part])
def test_a_model_with_other_parts_is_asked(change: Callable[[PreTrainedModel], None]) -> None:
    model = trunk()
    plain = played(model)
    change(model)
    changed = played(model)
    assert not close(plain, changed, 1e-2)
    noticed(model)
    assert close(changed, played(model), 1e-9)


@pytest.mark.parametrize(
    "config",
    [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}},
    ],
    ids=str,
)
def test_other_kinds_are_asked(config: dict[str, Any]) -> None:
    model = trunk(**config)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(weight)
    calls = []
    alone = played(model)
    model.register_forward_hook(lambda *_: calls.append(1))
    assert close(alone, played(model), 1e-9) and len(calls) == 5
    assert not close(alone, played(trunk()), 1e-2)


def test_other_precisions_are_those_of_the_model() -> None:
    model = trunk()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = played(model)
    half = played(trunk().to(torch.bfloat16))
    noticed(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert close(mixed, played(model), 1e-9)
    assert half[0].dtype == torch.bfloat16 and not close(mixed, played(model), 1e-5)
