"""A policy that is kept during training says the same as a newly built one, however the weights were changed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from lmrl.decoding.engine import Engine, ParameterWatch
from lmrl.models.heads import polyak_update
from lmrl.models.lm import build_lm, trunk_of
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import BC
from lmrl.policies import LMPolicy, RerankPolicy, ValueGuidedLogitsProcessor, ValueGuidedPolicy
from lmrl.tokens.encoding import Window
from lmrl.types import Request

TOKENIZER = load_tokenizer()
WINDOW = Window(tokens=50)
MOVES = ("move left\n", "move up\n")
REQUESTS = [Request(slot, slot, (f"The goal is at position 8, {slot}.\n",)) for slot in range(2)]


def model(seed: int) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        settings = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 64, "initializer_range": 0.3}
        return build_lm(None, settings, len(TOKENIZER)).eval()


class Players:
    """All objects that keep keys and values of two models during training."""

    def __init__(self, speaking: PreTrainedModel, value: PreTrainedModel, head: nn.Linear) -> None:
        values: dict[str, Any] = {"value_model": trunk_of(value), "q_heads": [head]}
        short: dict[str, Any] = {"max_new_tokens": 3, "slots": 2}
        self.policies = (
            LMPolicy(speaking, TOKENIZER, WINDOW, **short),
            ValueGuidedPolicy(speaking, TOKENIZER, WINDOW, beta=0.5, **values, **short),
            RerankPolicy(speaking, TOKENIZER, WINDOW, proposals=MOVES, score="value", logit_weight=1.0, **values),
        )
        self.engine = Engine(speaking)
        self.processor = ValueGuidedLogitsProcessor(trunk_of(value), [head], 0.5)

    def say(self, length: int) -> list[Any]:
        said: list[Any] = [[(reply.ids, reply.logprobs) for reply in p.act(REQUESTS)] for p in self.policies]
        said.append(self.engine.feed([0, 1], [[5, 6, 7], [5, 6, 8]]).tolist())
        # The text has grown since the last call: a processor uses its cache in this case alone.
        return [*said, self.processor(torch.arange(length)[None], torch.zeros(1, len(TOKENIZER)))]


class Learning:
    """Two models and a head, and optimizer steps on the loss of the models."""

    def __init__(self) -> None:
        self.models, self.head = (model(0), model(1)), nn.Linear(16, len(TOKENIZER)).requires_grad_(False)
        self.kept = self.players()
        self.length = 5
        self.before = self.kept.say(self.length)[:-1]

    def players(self) -> Players:
        return Players(*self.models, self.head)

    def parameters(self) -> list[nn.Parameter]:
        return [p for m in self.models for p in m.parameters()]

    def step(self, optimizer: Optimizer) -> None:
        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            ids = torch.tensor([[5, 6, 7, 8]])
            found = torch.stack([m(input_ids=ids, labels=ids).loss for m in self.models]).sum()
            found.backward()
            return found

        optimizer.step(loss)

    def check(self) -> None:
        self.length += 1
        (*said, weighed), (*expected, anew) = (each.say(self.length) for each in (self.kept, self.players()))
        assert said == expected
        torch.testing.assert_close(weighed, anew, atol=1e-5, rtol=1e-5)
        assert said != self.before  # there was something to notice
        self.before = said


_OPTIMIZERS: tuple[tuple[type[Optimizer], dict[str, Any]], ...] = (
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.AdamW, {"foreach": True}),
    (torch.optim.AdamW, {"foreach": False}),
    (torch.optim.Adam, {"fused": True}),
    (torch.optim.SGD, {"fused": True}),
    (torch.optim.SGD, {}),
    (torch.optim.LBFGS, {"max_iter": 2}),
)
_MUON = getattr(torch.optim, "Muon", None)  # of torch 2.9
if _MUON is not None:
    _OPTIMIZERS += ((_MUON, {}),)
_MORE = (torch.optim.Adafactor, torch.optim.Adagrad, torch.optim.NAdam, torch.optim.RMSprop, torch.optim.Rprop)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [*_OPTIMIZERS, *(pytest.param(kind, {}, marks=pytest.mark.nightly) for kind in _MORE)],
    ids=lambda part: part.__name__ if isinstance(part, type) else "".join(part),
)
def test_ten_steps_of_every_optimizer(kind: type[Optimizer], settings: dict[str, Any]) -> None:
    learning = Learning()
    # Muon trains matrices alone.
    learned = [p for p in learning.parameters() if kind is not _MUON or p.ndim == 2]
    optimizer = kind(learned, lr=1e-2, **settings)  # type: ignore[call-arg]
    for _ in range(10):
        learning.step(optimizer)
        learning.check()


def _noise(target: torch.Tensor) -> torch.Tensor:
    return target + 0.1 * torch.randn_like(target)


def _another() -> PreTrainedModel:
    return model(int(torch.randint(10**6, ())))


@torch.no_grad()
def _by_data(m: PreTrainedModel) -> None:
    for p in m.parameters():
        p.data.copy_(_noise(p))


@torch.no_grad()
def _in_place(m: PreTrainedModel) -> None:
    for p in m.parameters():
        p.mul_(1.1)


def _new_data(m: PreTrainedModel) -> None:
    for p in m.parameters():
        p.data = _noise(p.data)


def _polyak(m: PreTrainedModel) -> None:
    polyak_update(m.parameters(), _another().parameters(), 0.5)


def _loaded(m: PreTrainedModel) -> None:
    m.load_state_dict(_another().state_dict())


def _assigned(m: PreTrainedModel) -> None:
    m.load_state_dict(_another().state_dict(), assign=True)
    m.tie_weights()


def _other_parameters(m: PreTrainedModel) -> None:
    m.get_input_embeddings().weight = nn.Parameter(_noise(m.get_input_embeddings().weight.detach()))
    m.tie_weights()


def _gathered(m: PreTrainedModel) -> None:
    """Write as FSDP does: free a tensor's memory, fill it again, and preserve its version."""
    for p in m.parameters():
        whole = _noise(p.detach())
        storage = p.untyped_storage()
        size = storage.size()
        with torch.autograd._unsafe_preserve_version_counter(p), torch.no_grad():
            storage.resize_(0)
            storage.resize_(size)
            p.copy_(whole)


def _by_kernel(m: PreTrainedModel) -> None:
    for p in m.parameters():
        state = [torch.rand_like(p.detach()) for _ in range(2)]
        torch._fused_adamw_(
            [p.detach()], [torch.ones_like(p)], [state[0]], [state[1]], [], [torch.tensor(1.0)],
            lr=0.1, beta1=0.9, beta2=0.9, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip


@pytest.mark.parametrize(
    "write",
    [_by_data, _in_place, _new_data, _polyak, _loaded, _assigned, _other_parameters, _gathered, _by_kernel],
)
def test_every_other_writer(write: Callable[[PreTrainedModel], None]) -> None:
    learning = Learning()
    torch.manual_seed(0)
    for _ in range(2):
        for m in learning.models:
            write(m)
        learning.check()


def test_a_step_that_is_hardly_one_and_one_of_a_few_numbers() -> None:
    """An optimizer step of a module counts whatever it changes, and so does every write that autograd sees."""
    module = BC(architecture={"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 64})
    weights = ParameterWatch(module.model)
    table = module.model.get_input_embeddings().weight
    assert not weights.changed()
    optimizer = torch.optim.AdamW([table], lr=1e-30, fused=True)
    table.grad = torch.zeros_like(table)
    module.optimizer_step(0, 0, optimizer, lambda: None)
    assert weights.changed() and not weights.changed()
    with torch.no_grad():
        table[3, 1] += 1e-3
    assert weights.changed() and not weights.changed()


def test_looking_changes_nothing() -> None:
    own = model(0)
    versions = [p._version for p in own.parameters()]
    weights = ParameterWatch(own)
    assert not any(weights.changed() for _ in range(3))
    assert [p._version for p in own.parameters()] == versions


def test_weights_without_versions() -> None:
    with torch.inference_mode():
        frozen = model(1)
    weights = ParameterWatch(frozen)
    assert not weights.changed()
    with torch.inference_mode():
        frozen.get_input_embeddings().weight.mul_(2.0)
    assert weights.changed()


def test_weights_that_lie_otherwise_in_memory() -> None:
    turned = nn.Linear(300, 2)
    scalar = nn.ParameterList([nn.Parameter(torch.tensor(1.0))])
    turned.weight = nn.Parameter(torch.randn(300, 2).T)
    weights = ParameterWatch(nn.ModuleList([turned, scalar]))
    assert not weights.changed()
    for parameter in (turned.weight, scalar[0]):
        parameter.data.add_(1.0)
        assert weights.changed() and not weights.changed()
