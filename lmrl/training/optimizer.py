"""AdamW, Muon and their schedule, half precision for trunks with float32 values, and compiled forward passes."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import lightning as L
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins.precision import HalfPrecision
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lmrl.decoding.reader import backend_of
from lmrl.errors import UserError, check_choice, check_range
from lmrl.models.lm import compile_layers
from lmrl.models.lora import is_adapter
from lmrl.models.sharding import is_sharded

__all__ = [
    "OPTIMIZERS", "SCHEDULES", "FastFloat32", "HalfTransformers", "Muon", "adamw", "check_optimizer",
    "check_start", "check_target_precision", "compile_for", "float32_products", "keep_values_float32",
    "optimizer_and_schedule", "schedule",
]  # fmt: skip

_MIN_STEPS_TO_COMPILE = 200  # a compilation of layers takes some 20 s, which shorter runs on a GPU do not gain


class HalfTransformers(HalfPrecision):
    """``bf16-true`` and ``16-true`` for transformers only.

    Heads, adapters, rewards, returns and log-probabilities stay float32, and so does whatever a loss makes of them:
    Lightning's own plugin converts everything, the numbers of a batch included.
    """

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Convert the weights of transformers, but not their adapters."""
        for part in module.modules():
            if not isinstance(part, PreTrainedModel):
                continue
            for name, parameter in part.named_parameters():
                if not is_adapter(name) and parameter.dtype is not self._desired_input_dtype:
                    # In place of `parameter.to`: optimizers and tied weights keep the parameter itself.
                    parameter.data = parameter.data.to(self._desired_input_dtype)
        return module

    def forward_context(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Leave the default precision as it is: tensors that a forward pass creates belong to a loss."""
        return nullcontext()

    def convert_input(self, data: Any) -> Any:
        """Leave a batch as it is: its ids need no conversion, and its rewards must not have one."""
        return data


def keep_values_float32(trainer: L.Trainer) -> None:
    """Have ``trainer.precision: bf16-true`` (or ``16-true``) mean `HalfTransformers`; other settings stay."""
    plugin = trainer.strategy.precision_plugin
    if type(plugin) is HalfPrecision:
        trainer.strategy.precision_plugin = HalfTransformers(plugin.precision)


class FastFloat32(Callback):
    """Lets float32 products use TF32 while a run in reduced precision goes on; see `float32_products`.

    A callback and not a hook of the module, because Lightning does not call a module's `teardown` after an error.
    """

    _before: str | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Set the precision of products for the run."""
        try:
            before = torch.get_float32_matmul_precision()
        except RuntimeError:
            return  # the user has chosen by the newer settings of `torch.backends`
        chosen = float32_products(str(trainer.precision), trainer.strategy.root_device.type, before)
        if chosen != before:
            torch.set_float32_matmul_precision(chosen)
            self._before = before

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Restore the precision from before the run."""
        if self._before is not None:
            torch.set_float32_matmul_precision(self._before)
            self._before = None

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Restore it after an error too."""
        self.teardown(trainer, pl_module, "fit")


def float32_products(precision: str, device_type: str, before: str) -> str:
    """Return the `torch.set_float32_matmul_precision` of a run.

    The products of value heads are float32 in every run, and on a GPU the largest part of ILQL's step. TF32 has three
    bits more than the bfloat16 around them, and the range of float32.

    Args:
        precision: ``trainer.precision``.
        device_type: ``cuda`` or another.
        before: the present setting; one that the user has lowered stays.
    """
    reduced = precision.startswith(("bf16", "16"))
    return "high" if device_type == "cuda" and reduced and before == "highest" else before


def check_target_precision(trainer: L.Trainer, name: str, *, can_use_adapters: bool = False) -> None:
    """Make sure that target networks are kept in float32.

    Args:
        trainer: trainer of the run.
        name: name of the algorithm, for the error.
        can_use_adapters: whether the error advises adapters, which stay float32.

    Raises:
        UserError: if they were to be kept in half precision, in which they do not move.
    """
    if isinstance(trainer.precision_plugin, HalfPrecision):
        advice = "use bf16-mixed"
        if can_use_adapters:
            advice += ", or train adapters (model.init_args.lora), which stay float32"
        raise UserError(
            f"precision {trainer.precision} rounds the steps of {name}'s target networks to nothing; {advice}"
        )


SCHEDULES = ("cosine", "constant")
OPTIMIZERS = ("adamw", "muon")


def check_optimizer(
    optimizer: str,
    lr: float,
    muon_lr: float,
    lr_schedule: str,
    warmup_steps: int,
    final_lr: float,
    weight_decay: float,
    adam_beta2: float,
) -> None:
    """Check the settings of `optimizer_and_schedule`, which are arguments of all algorithms.

    Raises:
        UserError: for an unknown optimizer or schedule, or a number outside of its range.
    """
    check_choice(OPTIMIZERS, optimizer=optimizer)
    check_choice(SCHEDULES, lr_schedule=lr_schedule)
    check_range("[0, inf)", lr=lr, muon_lr=muon_lr, warmup_steps=warmup_steps, weight_decay=weight_decay)
    check_range("[0, 1]", final_lr=final_lr)
    check_range("[0, 1)", adam_beta2=adam_beta2)


def optimizer_and_schedule(module: L.LightningModule, steps: float) -> OptimizerLRSchedulerConfig:
    """The optimizer of everything that learns, and a schedule that counts optimizer steps.

    Args:
        module: its hyperparameters hold the settings.
        steps: number of steps of the whole run; infinite or negative where it is not known.
    """
    settings = module.hparams
    if steps < 0:  # Lightning's number of steps where rounds are limited by epochs
        steps = math.inf
    if steps == math.inf and settings["lr_schedule"] != "constant":
        rank_zero_warn(
            f"lr_schedule {settings['lr_schedule']} needs the number of steps: set trainer.max_steps. Until then the "
            "learning rate does not fall"
        )
    lr = settings["lr"]
    weight_decay = settings["weight_decay"]
    beta2 = settings["adam_beta2"]
    optimizer: torch.optim.AdamW
    if settings["optimizer"] == "muon":
        optimizer = muon(module, muon_lr=settings["muon_lr"], lr=lr, weight_decay=weight_decay, beta2=beta2)
    else:
        optimizer = adamw(module, lr=lr, weight_decay=weight_decay, beta2=beta2)
    rate = schedule(optimizer, settings["lr_schedule"], settings["warmup_steps"], settings["final_lr"], steps)
    _warn_of_short_run(settings, steps)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


def _warn_of_short_run(settings: Mapping[str, Any], steps: float) -> None:
    """Warn of settings that cannot take effect in so few steps."""
    warmup = settings["warmup_steps"]
    if 0 < steps <= warmup:
        rank_zero_warn(
            f"the learning rate never reaches lr: warmup_steps is {warmup}, and the run has {steps:,.0f} steps. Take "
            "fewer warmup_steps or more steps"
        )
    polyak = settings.get("polyak")
    if polyak is not None and (1.0 - polyak) ** steps > 0.5:
        moved = 1.0 - (1.0 - polyak) ** steps
        rank_zero_warn(
            f"the target networks go only {moved:.0%} of their way in {steps:,.0f} steps with polyak {polyak}, so "
            "values hardly spread back over turns. Take a larger polyak or more steps"
        )


def adamw(module: nn.Module, lr: float, weight_decay: float, beta2: float) -> torch.optim.AdamW:
    """AdamW over all parameters that learn; only matrices that are no embeddings decay."""
    groups = adamw_groups(module, [p for p in module.parameters() if p.requires_grad], weight_decay)
    return _clippable(torch.optim.AdamW(groups, lr=lr, betas=(0.9, beta2), fused=True))


_AdamW = TypeVar("_AdamW", bound=torch.optim.AdamW)


def _clippable(optimizer: _AdamW) -> _AdamW:
    """Have gradients unscaled before the step, where they are scaled at all (``16-mixed``): then they can be clipped.

    A fused optimizer offers to do it within the step, and Lightning refuses to clip the gradients of one that does, in
    bfloat16 too, where nothing is scaled.
    """
    optimizer._step_supports_amp_scaling = False
    return optimizer


def adamw_groups(module: nn.Module, parameters: Sequence[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Groups of parameters of a module, of which matrices that are no embeddings decay."""
    # By identity: tensors compare element by element.
    embeddings = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    decaying = []
    others = []  # biases, norms, embeddings
    for parameter in parameters:
        if parameter.ndim > 1 and id(parameter) not in embeddings:
            decaying.append(parameter)
        else:
            others.append(parameter)
    groups = [{"params": decaying, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


class Muon(torch.optim.AdamW):
    """Momentum made orthogonal (Jordan et al. 2024) for groups with ``orthogonal``, AdamW for the others.

    The step of a matrix has all singular values near 1, times ``lr`` and the square root of its outputs by its inputs
    where it has more outputs. A `Linear` keeps them as rows and columns, a `Conv1D` (GPT-2) the other way round. The
    step is computed in float32: `torch.optim.Muon` always takes bfloat16, which on a processor
    without units for it takes much longer.

    Args:
        groups: groups of parameters.
        transposed: parameters whose rows are inputs.
        **settings: arguments of `torch.optim.AdamW`.
    """

    def __init__(
        self, groups: Sequence[dict[str, Any]], transposed: Sequence[nn.Parameter] = (), **settings: Any
    ) -> None:
        self._transposed = {id(parameter) for parameter in transposed}
        super().__init__(groups, **settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of all groups."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # AdamW steps all groups that it finds, so those of Muon are taken out meanwhile.
        groups = self.param_groups
        try:
            self.param_groups = [group for group in groups if not group.get("orthogonal")]
            super().step()
        finally:
            self.param_groups = groups
        for group in groups:
            if not group.get("orthogonal"):
                continue
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._orthogonal_step(parameter, group)
        return loss

    def _orthogonal_step(self, parameter: Tensor, group: dict[str, Any]) -> None:
        beta = group["momentum"]
        state = self.state[parameter]
        grad = parameter.grad
        assert grad is not None
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
            state["step"] = torch.zeros(())  # AdamW reads it from a loaded state
        state["momentum"].lerp_(grad, 1 - beta)
        update = orthogonalized(grad.lerp(state["momentum"], beta))  # Nesterov's form of momentum
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        outputs, inputs = parameter.shape
        if id(parameter) in self._transposed:
            inputs, outputs = parameter.shape
        parameter.add_(update, alpha=-group["lr"] * max(1.0, outputs / inputs) ** 0.5)


def orthogonalized(matrix: Tensor, steps: int = 5) -> Tensor:
    """Near ``U V^T`` of the singular value decomposition ``U S V^T``, by Newton and Schulz's iteration.

    The coefficients of Jordan et al. (2024) bring all singular values to between .7 and 1.2 in five steps.
    """
    a = 3.4445
    b = -4.7750
    c = 2.0315
    # The products below are of the shorter side. Dividing by the norm brings all singular values to at most 1.
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = (matrix.mT if tall else matrix) / (matrix.norm() + 1e-7)
    for _ in range(steps):
        # x <- a x + (b x x^T + c (x x^T)^2) x, a polynomial of the singular values
        square = x @ x.mT
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def muon(module: nn.Module, muon_lr: float, lr: float, weight_decay: float, beta2: float) -> Muon:
    """`Muon` for the matrices inside of transformers; AdamW for embeddings, heads, norms and biases.

    Raises:
        UserError: the weights are in shards.
    """
    if is_sharded(module):
        raise UserError("optimizer muon needs whole matrices, and these are in shards: use adamw, or DDP")
    inside = set()  # ids of the matrices of transformers
    embeddings = set()
    transposed = []  # GPT-2 keeps its matrices the other way round
    for part in module.modules():
        if isinstance(part, PreTrainedModel):
            inside |= {id(parameter) for parameter in part.base_model.parameters() if parameter.ndim == 2}
        elif isinstance(part, nn.Embedding):
            embeddings.add(id(part.weight))
        elif isinstance(part, Conv1D):
            transposed.append(part.weight)
    inside -= embeddings
    matrices = []
    others = []
    for parameter in module.parameters():
        if parameter.requires_grad and id(parameter) in inside:
            matrices.append(parameter)
        elif parameter.requires_grad:
            others.append(parameter)
    orthogonal = {
        "params": matrices,
        "lr": muon_lr,
        "weight_decay": weight_decay,
        "orthogonal": True,
        "momentum": 0.95,
    }
    groups = [orthogonal, *adamw_groups(module, others, weight_decay)]
    return _clippable(Muon(groups, transposed, lr=lr, betas=(0.9, beta2), fused=True))


def schedule(optimizer: torch.optim.Optimizer, kind: str, warmup: int, last: float, steps: float) -> LambdaLR:
    """A linear warm-up, times one or a cosine that falls to ``last`` (a share of the peak) in ``steps``."""

    def factor(step: int) -> float:
        warm = min(1.0, (step + 1) / max(1, warmup))  # not 0 in the first step, which would be lost
        if kind == "constant":
            return warm
        progress = min(1.0, step / max(1.0, steps))
        return warm * (last + (1.0 - last) * 0.5 * (1.0 + math.cos(math.pi * progress)))

    return LambdaLR(optimizer, factor)


def compile_for(module: L.LightningModule, choice: bool | str | None) -> None:
    """Compile the layers of a module that begins to train; see `lmrl.models.lm.compile_layers`.

    Args:
        module: the module, which has a trainer.
        choice: false: not; true or the name of a backend; None: on a GPU, if the run is long enough.
    """
    trainer = module.trainer
    if choice is None:
        long_enough = trainer.max_steps == -1 or trainer.max_steps >= _MIN_STEPS_TO_COMPILE
        choice = trainer.strategy.root_device.type == "cuda" and long_enough
    backend = backend_of(choice)
    if backend is not None and compile_layers(module, backend) == 0:
        rank_zero_warn("compile: this model has no layers that can be compiled one by one, and is run as it is")


def check_start(module: Any) -> None:
    """Make sure that an algorithm which starts from a BC run has one, unless a run is resumed.

    Raises:
        UserError: it has none.
    """
    if module.starts_from_bc and module.hparams["pretrained"] is None and module.trainer.ckpt_path is None:
        task = module.made_with.get("task", "TASK")
        raise UserError(
            f"{type(module).__name__} starts from a BC run: give model.init_args.pretrained (for example "
            f"runs/{task}/bc, made by: lmrl fit --config configs/{task}/bc.yaml)"
        )
