"""Logging of training: terms of the loss as means over action tokens, batches and ranks."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.text import Perplexity

from lmrl.datamodules.offline import OfflineDataModule
from lmrl.datamodules.online import online_datamodule
from lmrl.errors import UserError
from lmrl.tokens.collate import TokenBatch
from lmrl.utils.distributed import rank_and_world_size

__all__ = [
    "FarthestRatio", "LossReporter", "PerplexityReporter", "RoundReporter", "TermMeans", "TokenMeans",
    "TokenPerplexity", "WeightReporter", "log_now",
]  # fmt: skip


class TermMeans(NamedTuple):
    """The result of `TokenMeans`."""

    means: dict[str, Tensor]
    """() each; 0 where there were no tokens."""
    tokens: Tensor
    """() int64, number of tokens."""


class TokenMeans(Metric):
    """Means of several terms over action tokens: for each what a weighted `torchmetrics.MeanMetric` is.

    One state holds the sums of all terms. A `MeanMetric` per term has two states each, and every state is gathered by
    itself: with five terms, ten messages in place of two at each training step.

    Args:
        names: names of the terms.
        **settings: arguments of `torchmetrics.Metric`.
    """

    full_state_update = False
    totals: Tensor
    tokens: Tensor

    def __init__(self, names: Sequence[str], **settings: Any) -> None:
        super().__init__(dist_sync_fn=_all_gather, **settings)
        self.names = tuple(names)
        self.add_state("totals", torch.zeros(len(self.names)), dist_reduce_fx="sum", persistent=True)
        self.add_state("tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum", persistent=True)

    def update(self, means: Mapping[str, Tensor], tokens: int | Tensor) -> None:
        """Add a batch.

        Args:
            means: () each, over the tokens of the batch.
            tokens: their number.
        """
        self.totals = self.totals + torch.stack([means[name].detach().float() for name in self.names]) * tokens
        self.tokens = self.tokens + tokens

    def compute(self) -> TermMeans:
        """Over all batches, and all ranks."""
        means = self.totals / self.tokens.clamp(min=1)
        return TermMeans(dict(zip(self.names, means.unbind(), strict=True)), self.tokens)


class TokenPerplexity(Perplexity):
    """`torchmetrics.text.Perplexity` of action tokens whose log-probabilities the loss has computed already."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(None, dist_sync_fn=_all_gather, **settings)  # type: ignore[arg-type]
        self.persistent(True)

    def update(self, nll: Tensor, tokens: int | Tensor) -> None:
        """Add a batch.

        Args:
            nll: () mean negative log-likelihood of its tokens, in nats.
            tokens: their number.
        """
        self.total_log_probs = self.total_log_probs + nll.detach().float() * tokens
        self.count = self.count + tokens


class FarthestRatio(Metric):
    """The probability ratio that is farthest from 1 by its logarithm; 1 if there were none."""

    full_state_update = False
    below: Tensor
    above: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(dist_sync_fn=_all_gather, **settings)
        for name in ("below", "above"):
            self.add_state(name, torch.zeros(()), dist_reduce_fx="max")

    def update(self, ratio: Tensor) -> None:
        """Add a ratio, ()."""
        self.below = torch.maximum(self.below, -ratio.detach().log())
        self.above = torch.maximum(self.above, ratio.detach().log())

    def compute(self) -> Tensor:
        """() the ratio."""
        return torch.where(self.above >= self.below, self.above, -self.below).exp()


def _all_gather(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """Gather the states of all ranks. Their shapes are equal on every rank, so shapes need not be exchanged first."""
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, tensor.contiguous(), group)
    return gathered


def _shapes(state: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in state.items()}


_METRICS_ENTRY = "epoch_metrics"  # entry of a checkpoint


def log_now(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    """Write metrics under the present step, wherever in the loop that is (``self.log`` works in some hooks alone)."""
    for logger in trainer.loggers:
        logger.log_metrics(dict(metrics), step=trainer.global_step)
    for name, value in metrics.items():
        trainer.callback_metrics[name] = torch.tensor(value)


class LossReporter(Callback):
    """Logs the terms of the loss: in training of each batch, in validation of all batches together.

    A module gives it to the trainer (`LanguageModule.configure_callbacks`) and calls `train` and `validate`. Metrics
    over an epoch are part of checkpoints, so that a run which is resumed in the middle of one logs the same numbers.

    Args:
        name: prefix of the keys; the loss itself is ``train/loss``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._of_batch: dict[tuple[str, ...], TokenMeans] = {}
        self._metrics: dict[str, Metric] = {}
        self._restored: dict[str, dict[str, Tensor]] = {}
        self._last: _LastBatch | None = None

    def train(self, module: L.LightningModule, losses: NamedTuple, batch: TokenBatch) -> int:
        """Log a training batch, and stop the run on all ranks where the loss is not finite.

        Returns:
            The number of action tokens of this batch on all ranks.

        Raises:
            UserError: as `check_last`.
        """
        self.check_last()
        terms = self.over_ranks(self._named(losses, "train"), batch.n_tokens)
        loss = terms.means["train/loss"]
        self._last = _LastBatch(module, batch, terms.means, module.global_step, Arriving(loss.isfinite()))
        if not _is_asynchronous(loss.device):
            self.check_last()
        self.log_batch(module, terms)
        return int(terms.tokens)

    def check_last(self) -> None:
        """Stop the run if the loss of the last training batch is not finite.

        On a GPU this is asked before the next batch and before weights are saved: asked at once, the host would wait
        for the forward pass before it could start the backward pass.

        Raises:
            UserError: it is not; the batch is in a file.
        """
        last = self._last
        self._last = None
        if last is not None and not last.is_finite.read():
            _stop_at(last)

    def validate(self, module: L.LightningModule, losses: NamedTuple, batch: TokenBatch) -> None:
        """Add a validation batch to what the epoch logs."""
        means = self._named(losses, "val")
        self.update("val", lambda: TokenMeans([*means]), means, batch.n_tokens)

    # -- hooks of subclasses ------------------------------------------------------------------------------------

    def over_ranks(self, means: dict[str, Tensor], tokens: int) -> TermMeans:
        """Average means over this rank's tokens to means over the tokens of all ranks."""
        if rank_and_world_size()[1] == 1:
            return TermMeans(means, torch.tensor(tokens))
        # One metric for each set of terms, since its state has one sum per term.
        names = tuple(means)
        if names not in self._of_batch:
            self._of_batch[names] = TokenMeans(names).to(means[names[0]].device)
        metric = self._of_batch[names]
        metric.reset()
        metric.update(means, tokens)
        terms: TermMeans = metric.compute()
        return terms

    def log_batch(self, module: L.LightningModule, terms: TermMeans) -> None:
        """Log the means of a training batch."""
        module.log_dict(terms.means, batch_size=max(1, int(terms.tokens)))

    def log_epoch(self, module: L.LightningModule, key: str, metric: Metric) -> None:
        """Log a metric over an epoch."""
        value = metric.compute()
        module.log_dict(value.means if isinstance(value, TermMeans) else {key: value})

    # -- metrics over an epoch ----------------------------------------------------------------------------------

    def update(self, key: str, make: Callable[[], Metric], *values: Any) -> None:
        """Update the metric of a key in this epoch; the first time it is made."""
        if key not in self._metrics:
            metric = make()
            state = self._restored.pop(key, None)
            # A checkpoint of an earlier version may have other terms: the means then begin with this batch.
            if state is not None and _shapes(state) == _shapes(metric.state_dict()):
                metric.load_state_dict(state)
            first = values[0]  # a tensor, or tensors by name
            device = next(iter(first.values())).device if isinstance(first, dict) else first.device
            self._metrics[key] = metric.to(device)
        self._metrics[key].update(*values)

    def means_so_far(self) -> dict[str, Tensor]:
        """Return the means over this epoch that its end will log, by key."""
        means: dict[str, Tensor] = {}
        for key, metric in self._metrics.items():
            if isinstance(metric, TokenMeans) and not _of_validation(key):
                means.update(metric.compute().means)
        return means

    def on_train_epoch_start(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Reset the metrics of training."""
        self._forget(validation=False)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Log the metrics over the epoch."""
        self._log(pl_module, validation=False)

    def on_train_end(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """See `check_last`."""
        self.check_last()

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Reset the metrics of validation."""
        self._forget(validation=True)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Log the metrics over all batches and ranks."""
        self._log(pl_module, validation=True)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the states of the training's metrics, if the epoch is not over."""
        if not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            # Validation begins again after a resume.
            training = {key: metric for key, metric in self._metrics.items() if not _of_validation(key)}
            checkpoint[_METRICS_ENTRY] = {key: metric.state_dict() for key, metric in training.items()}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Resume with these states."""
        self._metrics = {}
        # A metric is made when it is first updated, and takes its state then.
        self._restored = dict(checkpoint.get(_METRICS_ENTRY, {}))

    def _forget(self, validation: bool) -> None:
        for key in list(self._metrics):
            if _of_validation(key) == validation:
                del self._metrics[key]

    def _log(self, module: L.LightningModule, validation: bool) -> None:
        for key, metric in self._metrics.items():
            if _of_validation(key) == validation:
                self.log_epoch(module, key, metric)

    def _named(self, losses: NamedTuple, stage: str) -> dict[str, Tensor]:
        """The terms under the keys that they are logged by; ``loss`` first."""
        prefix = self.name if stage == "train" else f"{stage}/{self.name}"
        named: dict[str, Tensor] = {f"{stage}/loss": losses._asdict()["loss"].detach()}
        for name, value in losses._asdict().items():
            if name != "loss" and value is not None:
                named[f"{prefix}/{name}"] = value.detach()
        return named


class PerplexityReporter(LossReporter):
    """Logs the perplexity of the action tokens over an epoch too: ``exp`` of their mean negative log-likelihood.

    For held-out episodes it also logs the ``excess``, the KL to the behaviour policy, if the entropy of that policy is
    known: the mean number of nats by which an action is less probable to the model than to the policy that played. 0 is
    a perfect clone.
    """

    def log_batch(self, module: L.LightningModule, terms: TermMeans) -> None:
        """See `LossReporter.log_batch`; the numbers are those of all ranks already."""
        super().log_batch(module, terms)
        key = f"{self.name}/perplexity"
        nll = terms.means.get(f"{self.name}/nll", terms.means["train/loss"])
        self.update(key, lambda: TokenPerplexity(sync_on_compute=False), nll, terms.tokens)

    def validate(self, module: L.LightningModule, losses: Any, batch: TokenBatch) -> None:
        """See `LossReporter.validate`."""
        super().validate(module, losses, batch)
        nll = losses.loss if losses.nll is None else losses.nll
        self.update(f"val/{self.name}/perplexity", TokenPerplexity, nll, batch.n_tokens)

    def log_epoch(self, module: L.LightningModule, key: str, metric: Metric) -> None:
        """See `LossReporter.log_epoch`."""
        super().log_epoch(module, key, metric)
        data = getattr(module.trainer, "datamodule", None)
        if key == f"val/{self.name}/perplexity" and isinstance(data, OfflineDataModule):
            entropy = data.entropy()
            if entropy is not None and data.tokens_per_action is not None:
                module.log(f"val/{self.name}/excess", metric.compute().log() * data.tokens_per_action - entropy)


class WeightReporter(LossReporter):
    """Logs the terms of an advantage-weighted loss, and warns when all actions get the same weight.

    Args:
        name: see `LossReporter`.
        max_weight: upper limit of the weights.
    """

    _WINDOW = 200  # batches that are judged together: while the values move, one alone may look like anything
    _SATURATED_SHARE = 0.9  # share of `max_weight` that a mean weight must reach for a warning
    _VANISHING_WEIGHT = 0.01  # if no weight exceeds this, there is a warning that nothing is learned

    def __init__(self, name: str, max_weight: float) -> None:
        super().__init__(name)
        self.max_weight = max_weight
        self._window: list[Tensor] = []

    def log_batch(self, module: L.LightningModule, terms: TermMeans) -> None:
        """See `LossReporter.log_batch`; the numbers are those of all ranks already."""
        super().log_batch(module, terms)
        # Left where they are until the window is full: reading them would make each batch wait for the GPU.
        weights = [terms.means[f"{self.name}/weight_mean"], terms.means[f"{self.name}/weight_max"]]
        self._window.append(torch.stack(weights))
        if len(self._window) == self._WINDOW:
            means, maxima = torch.stack(self._window).unbind(1)
            self._window = []
            self._judge(module.trainer.global_step, float(means.mean()), float(maxima.max()))

    def _judge(self, step: int, mean: float, largest: float) -> None:
        if mean >= self._SATURATED_SHARE * self.max_weight:
            sign = f"the mean weight is {mean:.4g} of at most {self.max_weight:g}: actions count alike, V is too low"
        elif largest <= self._VANISHING_WEIGHT:
            sign = f"the largest weight is {largest:.2g}: nothing is learned, V is too high"
        else:
            return
        rank_zero_warn(f"{self.name}, the {self._WINDOW} batches up to step {step}: {sign}")


class RoundReporter(LossReporter):
    """Logs the terms of PPO's loss as means over a round, and the first ratios, which must be 1."""

    _MAX_RATIO_GAP = 0.05  # largest gap between a first ratio and 1, in any precision

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ratio = f"{name}/ratio"
        self._farthest = FarthestRatio()

    def over_ranks(self, means: dict[str, Tensor], tokens: int) -> TermMeans:
        """Means, but of the ratios the one that is farthest from 1."""
        terms = super().over_ranks(means, tokens)
        if rank_and_world_size()[1] > 1 and self.ratio in means:
            self._farthest.to(means[self.ratio].device).reset()
            self._farthest.update(means[self.ratio])
            terms.means[self.ratio] = self._farthest.compute()
        return terms

    def log_batch(self, module: L.LightningModule, terms: TermMeans) -> None:
        """Add a minibatch to the means of the round."""
        # In the first minibatch of a round the policy is still the one that sampled it.
        if online_datamodule(module.trainer, self.name).consumed == 1:
            ratio = terms.means[self.ratio].item()
            log_now(module.trainer, {f"{self.name}/first_ratio": ratio})
            # A stale round that is not scored again is compared with the policy that played it.
            is_stale = getattr(module, "step_importance_cap", None) is not None
            if abs(ratio - 1.0) > self._MAX_RATIO_GAP and not is_stale:
                rank_zero_warn(
                    f"a ratio of the first minibatch is {ratio:.3f}, not 1: what is trained is not the distribution "
                    "that was sampled from"
                )
        self._update_round(self.name, terms)

    def train_recorded(self, loss: Tensor, batch: TokenBatch) -> None:
        """Add the BC loss of a recorded batch to the mean of the round."""
        key = f"{self.name}/bc_loss"
        self._update_round(key, self.over_ranks({key: loss.detach()}, batch.n_tokens))

    def _update_round(self, key: str, terms: TermMeans) -> None:
        # All ranks add the same numbers, so the state in a checkpoint is that of each.
        self.update(key, lambda: TokenMeans([*terms.means], sync_on_compute=False), terms.means, terms.tokens)


def _of_validation(key: str) -> bool:
    return key.partition("/")[0] == "val"


class _LastBatch(NamedTuple):
    """A training batch whose loss may not be known yet."""

    module: L.LightningModule
    batch: TokenBatch
    means: dict[str, Tensor]
    step: int
    is_finite: "Arriving"


class Arriving:
    """A number on its way from a device. Reading it waits for what made it, not for all that was started since."""

    def __init__(self, number: Tensor) -> None:
        self._copy = number.to("cpu", non_blocking=True)
        self._event: torch.cuda.Event | None = None
        if number.device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def read(self) -> float:
        """Return the number."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy.item()


def _is_asynchronous(device: torch.device) -> bool:
    """Whether the host is ahead of the device."""
    return device.type != "cpu"


def _stop_at(last: _LastBatch) -> NoReturn:
    rank, world = rank_and_world_size()
    root = Path(last.module.trainer.default_root_dir)
    file = root / ("bad_batch.pt" if world == 1 else f"bad_batch-{rank}.pt")
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"batch": last.batch._asdict(), "terms": last.means, "step": last.step}, file)
    terms = ", ".join(f"{name} {float(value):.3g}" for name, value in last.means.items())
    raise UserError(f"the loss of step {last.step} is not finite ({terms}); its batch is in {file}")
