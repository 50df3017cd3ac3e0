"""Precision, activation checkpointing and compilation change how a loss is computed, not what it is."""

from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from lmrl.decoding.engine import Engine
from lmrl.errors import UserError
from lmrl.models.lm import compile_layers, hidden_states, trunk_of
from lmrl.modules import BC, ILQL, LanguageModule
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.encoding import Window
from lmrl.training import optimizer
from lmrl.training.optimizer import float32_products
from tests.helpers.doubles import cut, episode
from tests.modules.test_gradients import examples, loader
from tests.modules.test_lora import LLAMA, LORA

TINY = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}


class FromScratchILQL(ILQL):
    starts_from_bc = False


class Watching(L.Callback):
    """Losses and kinds of numbers, as a step sees them."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.kinds: dict[str, torch.dtype] = {}
        self.rewards: list[Tensor] = []

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: TokenBatch, *_: Any) -> None:
        self.kinds = {name: p.dtype for name, p in module.named_parameters()}
        self.rewards.append(batch.reward)
        assert torch.get_default_dtype() is torch.float32

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self.losses.append(float(trainer.callback_metrics["train/loss"]))


def run(
    module: LanguageModule, root: Path, steps: int = 2, callback: L.Callback | None = None, **settings: Any
) -> Watching:
    watching = Watching()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = L.Trainer(
        max_steps=steps,
        logger=False,
        accelerator="cpu",
        default_root_dir=root,
        callbacks=[watching] if callback is None else [watching, callback],
        **quiet,
        **settings,
    )
    trainer.fit(module, loader(8))
    return watching


def make(kind: type[LanguageModule], **arguments: Any) -> LanguageModule:
    torch.manual_seed(0)
    module = kind(**{"architecture": TINY, "warmup_steps": 0, "lr": 1e-3, **arguments})
    for name, parameter in module.named_parameters():
        if "outer.weight" in name or "lora_B" in name:  # else heads are constant and adapters do nothing
            nn.init.normal_(parameter, std=0.3)
    return module


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [(BC, {}), (FromScratchILQL, {"lora": LORA}), (FromScratchILQL, {"lora": LORA, "gamma": 1.0})],
)
def test_half_precision_leaves_heads_adapters_and_rewards_whole(
    kind: type[LanguageModule], arguments: dict[str, Any], precision: str, tmp_path: Path
) -> None:
    exact = run(make(kind, **arguments), tmp_path)
    half = run(make(kind, **arguments), tmp_path, precision=precision)
    assert half.losses == pytest.approx(exact.losses, rel=0.03) and half.losses != exact.losses
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(half.rewards, exact.rewards, strict=True))
    assert {rewards.dtype for rewards in half.rewards} == {torch.float32}  # whole numbers are the same in both
    whole = {n for n in half.kinds if "lora_" in n or "_head" in n}
    assert bool(whole) == (kind is not BC)
    for name, kept in half.kinds.items():
        in_half = precision == "bf16-true" and name not in whole
        assert kept is (torch.bfloat16 if in_half else torch.float32), name


@pytest.mark.parametrize(
    ("precision", "device", "before", "expected"),
    [
        *[(name, "cuda", "highest", "high") for name in ("bf16-mixed", "bf16-true", "16-mixed", "16-true")],
        ("bf16-mixed", "cuda", "medium", "medium"),
        ("32-true", "cuda", "highest", "highest"),
        ("64-true", "cuda", "highest", "highest"),
        ("32-true", "cuda", "high", "high"),
        ("bf16-mixed", "cpu", "highest", "highest"),
    ],
)
def test_float32_products_may_use_tf32_on_a_gpu_in_reduced_precision(
    precision: str, device: str, before: str, expected: str
) -> None:
    assert float32_products(precision, device, before) == expected


class Products(L.Callback):
    """The precision of products as a step sees it; the step can fail."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.seen = ""

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen = torch.get_float32_matmul_precision()
        if self.fails:
            raise OSError("full")


@pytest.mark.parametrize("fails", [False, True])
def test_the_precision_of_products_is_restored_after_a_run(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def lowered(*arguments: str) -> str:
        asked.append(arguments)
        return "high"

    monkeypatch.setattr(optimizer, "float32_products", lowered)
    products = Products(fails)
    with pytest.raises(OSError, match="full") if fails else nullcontext():
        run(make(BC), tmp_path, steps=1, callback=products, precision="bf16-mixed")
    assert asked == [("bf16-mixed", "cpu", "highest")]
    assert products.seen == "high"
    assert torch.get_float32_matmul_precision() == "highest"


def test_target_networks_in_half_precision_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"bf16-true rounds .* ILQL's target networks.*model\.init_args\.lora"):
        run(make(FromScratchILQL), tmp_path, precision="bf16-true")


def test_weights_saved_in_half_precision_are_trained_in_float32(tmp_path: Path) -> None:
    module = make(BC)
    module.window = Window()
    module.model.to(torch.bfloat16)  # type: ignore[arg-type]
    module.export(tmp_path / "half")
    again = BC(pretrained=str(tmp_path / "half"))
    assert {p.dtype for p in again.parameters()} == {torch.float32}


class CountingBC(BC):
    """Counts the numbers that the first step keeps for its backward pass."""

    kept = 0

    def training_step(self, batch: TokenBatch, batch_idx: int) -> Tensor:
        def count(tensor: Tensor) -> Tensor:
            self.kept += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            return super().training_step(batch, batch_idx)


def test_checkpointed_activations_are_not_kept_in_a_run_that_starts_from_weights(tmp_path: Path) -> None:
    start = make(BC)
    start.window = Window()
    start.export(tmp_path / "start")
    kept = {}
    for name, origin in (("scratch", None), ("weights", str(tmp_path / "start"))):
        for checkpointing in (False, True):
            module = make(CountingBC, pretrained=origin, activation_checkpointing=checkpointing)
            run(module, tmp_path, steps=1)
            kept[name, checkpointing] = module.kept
    assert kept["scratch", True] < 0.7 * kept["scratch", False]
    assert kept["weights", True] == kept["scratch", True]
    assert kept["weights", False] == kept["scratch", False]


def gradients(module: LanguageModule, batch: TokenBatch) -> dict[str, Tensor]:
    module.losses(batch).loss.backward()  # type: ignore[attr-defined]
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("arguments", [{}, {"lora": LORA}, {"architecture": LLAMA, "lora": LORA}])
def test_checkpointed_activations_give_the_same_gradients(
    arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = collate(cut([episode("s", "abc", "t", "de", "u", rewards=[1, -2], terminated=False)], Window()))
    found = []
    for checkpointing in (False, True):
        module = make(FromScratchILQL, activation_checkpointing=checkpointing, lr=0.0, **arguments)
        run(module, tmp_path, steps=1)  # a run is where it begins
        read = 0

        def count(*_: Any) -> None:
            nonlocal read
            read += 1

        layer = next(m for m in trunk_of(module.trainable_model).modules() if isinstance(m, nn.ModuleList))[0]
        next(layer.children()).register_forward_pre_hook(count)
        module.zero_grad()
        found.append(gradients(module, batch))
        assert read == (2 if checkpointing else 1)
    plain, checkpointed = found
    assert plain.keys() == checkpointed.keys() and plain
    for name, gradient in plain.items():
        torch.testing.assert_close(checkpointed[name], gradient, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks at inputs
def test_compiled_layers_learn_the_same() -> None:
    """With a backend that makes no machine code: layers share one graph, a second shape makes one for all shapes."""
    batch = collate(examples())
    plain = make(BC)
    compiled = make(BC)
    # As on a GPU: all rows by one pass.
    for module in (plain, compiled):
        module.hidden_states = partial(hidden_states, groups=False)  # type: ignore[assignment,method-assign]
    torch.compiler.reset()
    counters.clear()
    assert compile_layers(compiled, "aot_eager") == 2
    assert plain.state_dict().keys() == compiled.state_dict().keys()
    ours = gradients(plain, batch)
    theirs = gradients(compiled, batch)
    assert counters["stats"]["unique_graphs"] == 1
    for name, gradient in ours.items():
        torch.testing.assert_close(theirs[name], gradient, atol=1e-6, rtol=1e-5, msg=name)
    # Play and copies run the layers as they are.
    copied = deepcopy(compiled)
    for module in (compiled, copied):
        module.model.set_attn_implementation("eager")  # so that the model itself is called
    engine = Engine(compiled.model, 2)
    torch.testing.assert_close(engine.feed([0], [[1, 2, 3]]), Engine(copied.model, 2).feed([0], [[1, 2, 3]]))
    assert counters["stats"]["unique_graphs"] == 1
    torch.compiler.reset()
    with pytest.raises(UserError, match=r"compile.*'swift'"):
        make(BC, compile="swift")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_gradients_are_clipped_in_half_precision(optimizer: str, tmp_path: Path) -> None:
    """As every configuration has it: Lightning refuses to clip those of a fused optimizer that unscales by itself."""
    loose, tight = (
        run(make(BC, optimizer=optimizer), tmp_path, steps=3, precision="bf16-mixed", gradient_clip_val=limit).losses
        for limit in (1e6, 1e-9)
    )
    assert loose[0] == tight[0] and loose[2] != tight[2]
