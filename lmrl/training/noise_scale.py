"""The gradient noise scale: how many samples a step needs before its gradient is more signal than noise."""

from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.functional import pad
from torch.optim import Optimizer

from lmrl.datamodules.offline import OfflineDataModule
from lmrl.datamodules.online import OnlineDataModule
from lmrl.models.sharding import is_sharded
from lmrl.utils.distributed import rank_and_world_size

__all__ = ["NoiseScale", "sketch"]

_BUCKETS = 2**14
_SIGNS = 2**20 + 7  # no multiple of the buckets, see `sketch`
_CHUNK = 2**24  # elements of gradients that are copied side by side


class NoiseScale(Callback):
    """Logs ``train/noise_scale`` in segments of a batch.

    ``B_noise = tr(Sigma) / |G|^2`` for gradients ``G`` with covariance ``Sigma`` per segment (McCandlish et al. 2018,
    "An Empirical Model of Large-Batch Training", appendix A.1). A gradient ``g`` over B segments has an expected
    squared norm of ``|G|^2 + tr(Sigma) / B``. Gradients of different steps have independent noise, so their scalar
    product has the expectation ``|G|^2``. It is taken between the gradient of a step and a running mean of those
    before it, both as sketches of 64 kB (`sketch`). Both unknowns are running means over some forty steps, since a
    single one says little.

    The policy moves between steps, which makes the estimate too large rather than too small. Of a round that is
    learned from several times, the first pass counts alone: later ones repeat its noise.
    """

    _GRADIENT_DECAY = 0.9  # weight of the earlier gradients in their running mean
    _ESTIMATE_DECAY = 0.95  # weight of the earlier estimates
    _MIN_STEPS = 30  # before there can be a warning
    _MAX_RATIO = 8.0  # largest ratio of the noise scale to a round without a warning

    def __init__(self) -> None:
        self.signal = torch.zeros((), dtype=torch.float64)
        self.noise = torch.zeros((), dtype=torch.float64)
        self.steps = 0
        self._earlier: Tensor | None = None  # running mean of sketches
        self._weight = 0.0  # sum of the weights in it
        self._warned = False
        self._batches = 0  # number of batches of the step so far

    @property
    def value(self) -> Tensor:
        """() the noise scale in segments; NaN before the second step, infinite where no signal can be seen."""
        if not self.steps:
            return torch.full_like(self.noise, float("nan"))
        seen = self.signal > 0.0
        scale = self.noise / torch.where(seen, self.signal, 1.0)
        return torch.where(seen, scale, float("inf"))

    def on_train_batch_start(self, trainer: Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        """Count the batches of a step: the last step of a round may have fewer than others."""
        self._batches += 1

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Compare the gradient of the step with those before it, and log. Nothing here waits for the device."""
        batches = self._batches
        self._batches = 0
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, OfflineDataModule) or not _is_plain(trainer):
            return
        if getattr(pl_module, "bc_weight", 0.0):  # recorded episodes add a gradient of their own
            return
        if not _is_repetition(data):
            self._add_step(pl_module, data, batches)
        # Repetitions log the last estimate. Lightning would do so by itself, but not after a resume.
        if self.steps:
            pl_module.log("train/noise_scale", self.value.float())
        if isinstance(data, OnlineDataModule) and data.consumed <= trainer.accumulate_grad_batches:
            self._compare(data)

    def _add_step(self, pl_module: L.LightningModule, data: OfflineDataModule, batches: int) -> None:
        """Add the gradient of this step, of a number of batches on each process."""
        rank, _ = rank_and_world_size()
        gradients = [_local(p.grad) for p in pl_module.parameters() if p.grad is not None]
        norms = torch.stack([norm.double() for norm in torch._foreach_norm(gradients)])
        squared_norm = norms.square().sum()
        if is_sharded(pl_module):
            # Each process has a part of every gradient. Gathering them would take the memory that shards save.
            projected = sketch(gradients, part=rank)
            torch.distributed.all_reduce(projected)
            torch.distributed.all_reduce(squared_norm)
        else:
            projected = sketch(gradients)
        self.add(projected, squared_norm, batches * data.segments_per_batch)

    def add(self, gradient: Tensor, squared_norm: Tensor, segments: float) -> None:
        """Add the gradient of a step to the running means.

        Args:
            gradient: (k,) its sketch.
            squared_norm: () its squared norm.
            segments: size of its batch.
        """
        if self._earlier is None:
            self._earlier = torch.zeros_like(gradient)
        # A checkpoint holds them on the CPU.
        self._earlier = self._earlier.to(gradient.device)
        self.signal = self.signal.to(gradient.device)
        self.noise = self.noise.to(gradient.device)
        if self._weight > 0.0:
            signal = (gradient @ self._earlier).double() / self._weight
            noise = (squared_norm - signal) * segments
            self.steps += 1
            # The first steps are averaged; later ones push the oldest out.
            weight = max(1.0 / self.steps, 1.0 - self._ESTIMATE_DECAY)
            self.signal = torch.lerp(self.signal, signal, weight)
            self.noise = torch.lerp(self.noise, noise, weight)
        self._earlier.lerp_(gradient, 1.0 - self._GRADIENT_DECAY)
        self._weight += (1.0 - self._GRADIENT_DECAY) * (1.0 - self._weight)

    def _compare(self, data: OnlineDataModule) -> None:
        """Warn once where rounds are far below the noise scale, with the number of episodes that would do."""
        if self._warned or self.steps < self._MIN_STEPS:
            return
        segments = len(data.played)
        episodes = len(data.played.outcomes())
        scale = self.value.item()
        if not scale > self._MAX_RATIO * segments:
            return
        self._warned = True
        per_episode = segments / max(1, episodes)
        found = f"the gradient noise scale is {scale / per_episode:,.0f} episodes"
        if scale == float("inf"):
            found = f"no signal is seen in {self.steps} steps"
        rank_zero_warn(
            f"rounds of {episodes} episodes are mostly noise: {found}. Larger rounds (rollout.episodes) and batches "
            "learn more per game"
        )

    def state_dict(self) -> dict[str, Any]:
        """The running means."""
        return {
            "signal": self.signal.item(),
            "noise": self.noise.item(),
            "steps": self.steps,
            "earlier": None if self._earlier is None else self._earlier.cpu(),
            "weight": self._weight,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume."""
        earlier: Tensor | None = state_dict["earlier"]
        self.signal = torch.tensor(float(state_dict["signal"]), dtype=torch.float64)
        self.noise = torch.tensor(float(state_dict["noise"]), dtype=torch.float64)
        self.steps = int(state_dict["steps"])
        self._earlier = earlier
        self._weight = float(state_dict["weight"])


def sketch(gradients: list[Tensor], part: int = 0) -> Tensor:
    """Project gradients onto 16,384 numbers whose scalar products have those of the gradients as expectation.

    Each element gets a random sign and is added to a bucket (the count sketch of Charikar et al. 2002). Two gradients
    ``a`` and ``b`` have a product within about ``|a| |b| / 128`` of the true one. Elements with the same sign are never
    in the same bucket, since the signs repeat after ``_SIGNS`` elements, and each chunk and part begins at another
    bucket. The sketch of a whole is the sum of those of its parts.

    Args:
        gradients: gradients of all parameters, in an order that stays the same.
        part: number of the part, where processes hold shards of each gradient.

    Returns:
        (16384,) the sketch, in float32.
    """
    total = torch.zeros(_BUCKETS, device=gradients[0].device)
    for number, chunk in enumerate(_chunks(gradients)):
        total += _by_bucket(chunk).roll(101 * number + 1009 * part)
    return total


def _by_bucket(chunk: Tensor) -> Tensor:
    """Return (16384,) the sums of the signed elements of each bucket."""
    total = torch.zeros(_BUCKETS, device=chunk.device)
    step = max(_BUCKETS, _CHUNK - _CHUNK % _BUCKETS)
    for start in range(0, len(chunk), step):  # the matrix of the vocabulary is larger than `_CHUNK`
        piece = chunk[start : start + step].float()
        signed = piece * _signs(start, len(piece), chunk.device)
        total += pad(signed, (0, -len(signed) % _BUCKETS)).view(-1, _BUCKETS).sum(0)
    return total


def _chunks(gradients: list[Tensor]) -> Iterator[Tensor]:
    """The gradients one after the other, in parts of at most `_CHUNK` elements, or of one parameter."""
    parts: list[Tensor] = []
    size = 0
    for gradient in gradients:
        if parts and size + gradient.numel() > _CHUNK:
            yield _joined(parts)
            parts = []
            size = 0
        parts.append(gradient.flatten())
        size += gradient.numel()
    yield _joined(parts)


def _joined(parts: list[Tensor]) -> Tensor:
    """Put vectors behind each other; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


_longest_signs: dict[torch.device, Tensor] = {}


def _signs(start: int, count: int, device: torch.device) -> Tensor:
    """(count,) random signs from that index on, the same in every process; they repeat after `_SIGNS` elements."""
    first = start % _SIGNS
    signs = _longest_signs.get(device)
    if signs is None or len(signs) < first + count:
        draw = torch.Generator().manual_seed(0)
        once = torch.randint(0, 2, (_SIGNS,), generator=draw, dtype=torch.int8) * 2 - 1
        signs = once.to(device).repeat(-(-(first + count) // _SIGNS))
        _longest_signs[device] = signs
    return signs[first : first + count]


def _local(gradient: Tensor) -> Tensor:
    """The part of a gradient that this process holds; all of it, unless the module is in shards."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _is_plain(trainer: Trainer) -> bool:
    """Whether gradients are what they seem: with a loss scale (``16-mixed``) they are not."""
    return getattr(trainer.precision_plugin, "scaler", None) is None


def _is_repetition(data: OfflineDataModule) -> bool:
    """Whether the minibatch repeats segments of the round that were learned from before."""
    return isinstance(data, OnlineDataModule) and data.is_repetition
