"""Half precision for what reads, float32 for what values are learned with."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning as L
from lightning.pytorch.plugins.precision import HalfPrecision
from torch import nn
from transformers import PreTrainedModel

from lmrl.models.lora import is_adapter

__all__ = ["HalfTransformers", "keep_values_whole"]


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


def keep_values_whole(trainer: L.Trainer) -> None:
    """Have ``trainer.precision: bf16-true`` (or ``16-true``) mean `HalfTransformers`; other settings stay."""
    plugin = trainer.strategy.precision_plugin
    if type(plugin) is HalfPrecision:
        trainer.strategy.precision_plugin = HalfTransformers(plugin.precision)
