"""The gradient noise scale: how many samples a step needs before its gradient is more signal than noise."""

from typing import Any

import lightning as L
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer

from lmrl.datamodules.offline import OfflineDataModule
from lmrl.datamodules.online import OnlineDataModule
from lmrl.models.sharding import full_tensor, is_sharded
from lmrl.utils.distributed import rank_and_world_size

__all__ = ["NoiseScale"]


class NoiseScale(Callback):
    """Logs ``train/noise_scale`` in segments of a batch, where a step accumulates several micro-batches.

    ``B_noise = tr(Sigma) / |G|^2`` for gradients ``G`` with covariance ``Sigma`` per segment (McCandlish et al. 2018,
    "An Empirical Model of Large-Batch Training", appendix A.1). A gradient over B segments has an expected squared norm
    of ``|G|^2 + tr(Sigma) / B``. Two sizes are at hand for nothing: the gradient after the first micro-batch, and that
    of the whole step. Both unknowns are running means over many steps, since a single one says little.

    With ``trainer.accumulate_grad_batches: 1`` nothing is logged.
    """

    _KEPT = 0.95  # weight of the earlier steps
    _STEPS = 30  # before the estimate is worth a line
    _FAR = 8.0  # how many times larger than a round it may be without a warning

    def __init__(self) -> None:
        self.signal = 0.0
        self.noise = 0.0
        self.steps = 0
        self._small: Tensor | None = None
        self._warned = False

    @property
    def value(self) -> float:
        """The noise scale in segments; NaN before the first step, infinite where no signal can be seen."""
        if not self.steps:
            return float("nan")
        return self.noise / self.signal if self.signal > 0.0 else float("inf")

    def on_train_batch_start(self, trainer: Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin a step."""
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._small = None

    def on_after_backward(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Note the gradient of the first micro-batch of a step."""
        parts = trainer.accumulate_grad_batches
        if parts > 1 and self._small is None and _is_plain(trainer):
            # Lightning has divided the loss by the number of micro-batches.
            self._small = _squared_norm(pl_module) * parts**2

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Compare it with that of the whole step, and log."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        if self._small is None or not isinstance(data, OfflineDataModule):
            return
        segments = int(data.hparams["batch_size"])
        both = torch.stack([self._small, _squared_norm(pl_module)])
        _, world = rank_and_world_size()
        few = segments
        if is_sharded(pl_module):
            few *= world  # shards are averaged over the processes after each micro-batch
        elif world > 1:
            torch.distributed.all_reduce(both)
            both /= world
        small, large = both.tolist()
        self.add(small, few, large, segments * trainer.accumulate_grad_batches * world)
        pl_module.log("train/noise_scale", self.value)
        if isinstance(data, OnlineDataModule):
            self._compare(data)

    def add(self, small: float, few: int, large: float, many: int) -> None:
        """Add the squared norms of the gradients over few and over many segments to the running means."""
        signal = (many * large - few * small) / (many - few)
        noise = (small - large) / (1.0 / few - 1.0 / many)
        self.steps += 1
        # The first steps are averaged; later ones push the oldest out.
        weight = max(1.0 / self.steps, 1.0 - self._KEPT)
        self.signal += weight * (signal - self.signal)
        self.noise += weight * (noise - self.noise)

    def _compare(self, data: OnlineDataModule) -> None:
        """Warn once where rounds are far below the noise scale, with the number of episodes that would do."""
        segments = len(data.played)
        episodes = len(data.played.outcomes())
        if self._warned or self.steps < self._STEPS or not self.value > self._FAR * segments:
            return
        self._warned = True
        per_episode = segments / max(1, episodes)
        found = f"the gradient noise scale is {self.value / per_episode:,.0f} episodes"
        if self.signal <= 0.0:
            found = f"no signal is seen in {self.steps} steps"
        rank_zero_warn(
            f"rounds of {episodes} episodes are mostly noise: {found}. Larger rounds (rollout.episodes) and batches "
            "learn more per game"
        )

    def state_dict(self) -> dict[str, Any]:
        """The running means."""
        return {"signal": self.signal, "noise": self.noise, "steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume."""
        self.signal = float(state_dict["signal"])
        self.noise = float(state_dict["noise"])
        self.steps = int(state_dict["steps"])


def _is_plain(trainer: Trainer) -> bool:
    """Whether gradients are what they seem: with a loss scale (``16-mixed``) they are not."""
    return getattr(trainer.precision_plugin, "scaler", None) is None


def _squared_norm(module: L.LightningModule) -> Tensor:
    """() the squared norm of the gradient of all parameters."""
    gradients = [full_tensor(p.grad) for p in module.parameters() if p.grad is not None]
    norms = torch._foreach_norm(gradients)
    return torch.stack(list(norms)).square().sum().double()
