"""AdamW and its schedule, half precision for the trunk beside float32 values, and how forward passes are made."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning as L
import torch
from lightning.pytorch.plugins.precision import HalfPrecision
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from lmrl.decoding.reader import backend_of
from lmrl.errors import UserError, check_range, unknown
from lmrl.models.lm import RowReader, read_rows
from lmrl.models.lora import is_adapter

__all__ = [
    "SCHEDULES",
    "HalfTransformers",
    "adamw",
    "check_optimizer",
    "check_start",
    "compiled_reader",
    "keep_values_float32",
    "optimizer_and_schedule",
    "schedule",
]


class HalfTransformers(HalfPrecision):
    """``bf16-true`` and ``16-true`` for transformers only.

    Heads, adapters, rewards, returns and log-probabilities stay float32, and so does whatever a loss makes of them:
    Lightning's own plugin converts everything, the numbers of a batch included.
    """

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Convert the weights of transformers, but not their adapters."""
        for transformer in (part for part in module.modules() if isinstance(part, PreTrainedModel)):
            for name, parameter in transformer.named_parameters():
                if not is_adapter(name) and parameter.dtype is not self._desired_input_dtype:
                    parameter.data = parameter.data.to(self._desired_input_dtype)
        return module

    def forward_context(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Leave the default precision as it is: what is made anew belongs to a loss."""
        return nullcontext()

    def convert_input(self, data: Any) -> Any:
        """Leave a batch as it is: its ids need no conversion, and its rewards must not have one."""
        return data


def keep_values_float32(trainer: L.Trainer) -> None:
    """Have ``trainer.precision: bf16-true`` (or ``16-true``) mean `HalfTransformers`; other settings stay."""
    plugin = trainer.strategy.precision_plugin
    if type(plugin) is HalfPrecision:
        trainer.strategy.precision_plugin = HalfTransformers(plugin.precision)


SCHEDULES = ("cosine", "constant")


def check_optimizer(
    lr: float, lr_schedule: str, warmup_steps: int, final_lr: float, weight_decay: float, adam_beta2: float
) -> None:
    """Check the settings of `optimizer_and_schedule`, which are arguments of all algorithms.

    Raises:
        UserError: for an unknown schedule, or a number outside of its range.
    """
    if lr_schedule not in SCHEDULES:
        raise unknown("lr_schedule", lr_schedule, SCHEDULES)
    check_range("[0, inf)", lr=lr, warmup_steps=warmup_steps, weight_decay=weight_decay)
    check_range("[0, 1]", final_lr=final_lr)
    check_range("[0, 1)", adam_beta2=adam_beta2)


def optimizer_and_schedule(module: L.LightningModule, steps: float) -> OptimizerLRSchedulerConfig:
    """AdamW over everything that learns, and a schedule that counts optimizer steps.

    Args:
        module: its hyperparameters hold the settings.
        steps: of the whole run.
    """
    settings = module.hparams
    optimizer = adamw(module, settings["lr"], settings["weight_decay"], settings["adam_beta2"])
    rate = schedule(optimizer, settings["lr_schedule"], settings["warmup_steps"], settings["final_lr"], steps)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


def adamw(module: nn.Module, lr: float, weight_decay: float, beta2: float) -> torch.optim.AdamW:
    """AdamW over all parameters that learn; only matrices that are no embeddings decay."""
    embeddings = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in module.parameters():
        if parameter.requires_grad:
            groups[parameter.ndim > 1 and id(parameter) not in embeddings].append(parameter)
    decay = {True: weight_decay, False: 0.0}
    return torch.optim.AdamW(
        [{"params": params, "weight_decay": decay[key]} for key, params in groups.items() if params],
        lr=lr,
        betas=(0.9, beta2),
        fused=True,
    )


def schedule(optimizer: torch.optim.Optimizer, kind: str, warmup: int, last: float, steps: float) -> LambdaLR:
    """A linear warm-up, times one or a cosine that falls to ``last`` (a share of the peak) in ``steps``."""

    def factor(step: int) -> float:
        warm = min(1.0, (step + 1) / max(1, warmup))
        if kind == "constant":
            return warm
        progress = min(1.0, step / max(1.0, steps))
        return warm * (last + (1.0 - last) * 0.5 * (1.0 + math.cos(math.pi * progress)))

    return LambdaLR(optimizer, factor)


def compiled_reader(choice: bool | str) -> RowReader:
    """What reads the rows of a batch: `lmrl.models.lm.read_rows`, compiled where a backend is chosen.

    Raises:
        UserError: torch has no such backend.
    """
    backend = backend_of(choice)
    if backend is None:
        return read_rows
    compiled: RowReader = torch.compile(read_rows, dynamic=True, backend=backend)
    return compiled


def check_start(module: Any) -> None:
    """Make sure that an algorithm which starts from a BC run has one, unless a run goes on.

    Raises:
        UserError: it has none.
    """
    if module.starts_from_bc and module.hparams["pretrained"] is None and module.trainer.ckpt_path is None:
        task = module.made_with.get("task", "TASK")
        raise UserError(
            f"{type(module).__name__} starts from a BC run: give model.init_args.pretrained (for example "
            f"runs/{task}/bc, made by: lmrl fit --config configs/{task}/bc.yaml)"
        )
