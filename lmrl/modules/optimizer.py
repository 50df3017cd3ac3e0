"""AdamW and its schedule."""

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

__all__ = ["SCHEDULES", "adamw", "schedule"]

SCHEDULES = ("cosine", "constant")


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
