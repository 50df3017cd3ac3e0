"""What the LightningModules share: a language model, an optimizer, gradients in which all action tokens count alike."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmrl.decoding.reader import backend_of
from lmrl.distributed import place
from lmrl.errors import UserError, check_range, unknown
from lmrl.models.checkpoints import resolve_pretrained
from lmrl.models.lm import RowReader, build_lm, checkpoint_activations, hidden_states, read_rows
from lmrl.models.lora import add_lora
from lmrl.models.tokenizer import BUNDLED, fingerprint, load_tokenizer
from lmrl.policies import RerankPolicy
from lmrl.tokens.collate import TokenBatch
from lmrl.tokens.encoding import Window
from lmrl.training.optimizer import SCHEDULES, adamw, keep_values_whole, schedule
from lmrl.training.saving import plain_arguments, read_entry, stand_alone, training_facts, write_folder
from lmrl.training.sharding import is_sharded, prepare, shard, total_norm, whole_tensor, wrapper_of
from lmrl.types import Policy

__all__ = ["LanguageModule"]


class LanguageModule(L.LightningModule):
    """Base of all algorithms. A subclass says what its losses are and hands out the policy that it has learned.

    Arguments are plain values, so that checkpoints reload with ``weights_only=True``. A checkpoint needs no other
    file: what was read from `pretrained` is part of it.
    """

    #: Name under which the terms of the loss are logged.
    name = "language"
    #: Whether the algorithm starts from the weights of a BC run.
    starts_from_bc = False
    #: Whether it learns from what it has just sampled itself, as it was sampled, and from nothing else.
    on_policy = False
    #: Children that are not read when it plays.
    silent: tuple[str, ...] = ()
    #: Whether the policy itself is what learns; else something beside it does (see `learner`).
    policy_learns = True
    #: Whether its weights are read and moved in steps alone, and while it plays.
    in_steps = True

    def __init__(
        self,
        pretrained: str | None = None,
        architecture: dict[str, Any] | None = None,
        tokenizer: str | None = None,
        lr: float = 1e-3,
        lr_schedule: str = "cosine",
        warmup_steps: int = 50,
        final_lr: float = 0.02,
        weight_decay: float = 0.0,
        adam_beta2: float = 0.95,
        trust_remote_code: bool = False,
        lora: dict[str, Any] | None = None,
        activation_checkpointing: bool = False,
        compile: bool | str = False,
    ) -> None:
        """Build the language model.

        Args:
            pretrained: run folder (``runs/maze_fo/bc``), model folder or hub id to start from; None: from scratch.
            architecture: configuration values of a model from scratch, over those of a small GPT-2.
            tokenizer: a bundled one (see `lmrl.models.tokenizer`), a folder or hub id; None: that of `pretrained`, or
                ``lmrl``.
            lr: peak learning rate of AdamW.
            lr_schedule: ``cosine`` or ``constant``, after a linear warm-up.
            warmup_steps: optimizer steps of the warm-up.
            final_lr: last learning rate of the cosine, as a share of the peak.
            weight_decay: decoupled decay of matrices (not of biases, norms and embeddings).
            adam_beta2: decay of AdamW's second moment (of the first: 0.9).
            trust_remote_code: run code that `pretrained` or `tokenizer` bring with them from a hub.
            lora: train adapters on a model that stays as it is, and hold that model once, however many copies the
                algorithm has: settings of `lmrl.models.lora.add_lora`, as ``{r: 8, lora_alpha: 16}``.
            activation_checkpointing: compute the activations of what learns a second time instead of keeping them.
            compile: have `torch.compile` make the forward and backward passes of training; a word is the name of a
                backend (true: ``inductor``). Decode steps are compiled where ``decoding`` of the callbacks that
                play says so.

        Raises:
            UserError: if `pretrained` or `tokenizer` name nothing, or do not belong together; for `lora` as `add_lora`;
                for an unknown backend or schedule, or a number outside of its range.
        """
        super().__init__()
        if lr_schedule not in SCHEDULES:
            raise unknown("lr_schedule", lr_schedule, SCHEDULES)
        check_range("[0, inf)", lr=lr, warmup_steps=warmup_steps, weight_decay=weight_decay)
        check_range("[0, 1]", final_lr=final_lr)
        check_range("[0, 1)", adam_beta2=adam_beta2)
        self.save_hyperparameters()
        folder = None if pretrained is None else resolve_pretrained(pretrained)
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(tokenizer or folder or BUNDLED[0], trust_remote_code)
        if folder is not None and tokenizer is not None:
            _same_vocabulary(self.tokenizer, load_tokenizer(folder, trust_remote_code), folder)
        # Learning in bfloat16 is for trainer.precision to choose, not for whoever saved the weights.
        self.model: PreTrainedModel = build_lm(
            folder, architecture or {}, len(self.tokenizer), trust_remote_code, dtype=torch.float32
        )
        if lora is not None:
            self.model.requires_grad_(False)
            if self.policy_learns:
                add_lora(self.model, lora)
        self._read_rows = _compiled(compile)
        self.window: Window | None = None
        #: What it was trained on and from, JSON-like; part of checkpoints and model cards.
        self.made_with: dict[str, Any] = {}
        #: Action tokens that it has learned from so far, each time anew; over all ranks, and part of checkpoints.
        self.action_tokens = 0
        self._kind = type(self)  # sharding changes the class
        self._count = 0

    @abstractmethod
    def losses(self, batch: TokenBatch) -> NamedTuple:
        """Terms of the loss, each a mean over the N action tokens, as they are logged; see `objective`."""

    @abstractmethod
    def policy(self, **settings: Any) -> Policy:
        """The policy learned so far, as it plays."""

    @abstractmethod
    def reranker(self, proposals: Sequence[str], **settings: Any) -> RerankPolicy:
        """The player that scores whole actions and says the best, for tasks whose actions can be listed."""

    @property
    def learner(self) -> PreTrainedModel:
        """The transformer that learns."""
        return self.model

    def hidden_states(self, trunk: nn.Module, batch: TokenBatch) -> Tensor:
        """(S, width) what a trunk makes of the states of a batch; see `lmrl.models.lm.hidden_states`."""
        # Weights in shards are gathered by all processes together, in each forward pass.
        in_shards = is_sharded(self) or wrapper_of(self) is not None
        return hidden_states(trunk, batch, self._read_rows, groups=not in_shards)

    # -- training -----------------------------------------------------------------------------------------------

    def forward(self) -> None:
        """Nothing: what is learned comes from `losses`, and what is played from `policy`."""

    def configure_model(self) -> None:
        """Leave on each process its share of the weights, where the strategy asks for that (`ModelParallelStrategy`).

        Raises:
            UserError: if it asks for tensors in parallel.
        """
        mesh = self.device_mesh
        if mesh is not None and not is_sharded(self):
            if mesh["tensor_parallel"].size() > 1:
                raise UserError("tensor_parallel_size must be 1, and data_parallel_size the number of processes")
            self.trainer.precision_plugin.convert_module(self)  # too late for what is in shards
            shard(self, mesh["data_parallel"])

    def training_step(self, batch: TokenBatch, batch_idx: int) -> Tensor:
        """What is minimised: sums over action tokens, divided by a number that does not depend on the batch.

        Lightning averages over micro-batches and ranks, so a step is divided by the number of action tokens that steps
        have on average, however they are cut.
        """
        terms = self._log_losses(batch, "train")
        self._count += batch.n_tokens
        return self.objective(terms, batch)

    def objective(self, terms: Any, batch: TokenBatch) -> Tensor:
        """The loss of a batch as it enters the gradient; see `TokenBatch.scale`.

        Args:
            terms: what `losses` returned.
            batch: of which it was computed.
        """
        loss: Tensor = terms.loss * batch.scale
        return loss

    def validation_step(self, batch: TokenBatch, batch_idx: int) -> None:
        """Log the mean loss of held-out episodes."""
        self._log_losses(batch, "val")

    def _log_losses(self, batch: TokenBatch, stage: str) -> NamedTuple:
        losses = self.losses(batch)
        terms = {name: value for name, value in losses._asdict().items() if value is not None}
        loss: Tensor = terms.pop("loss")
        prefix = self.name if stage == "train" else f"{stage}/{self.name}"
        values = {f"{stage}/loss": loss, **{f"{prefix}/{name}": value for name, value in terms.items()}}
        detached, count = {name: value.detach() for name, value in values.items()}, batch.n_tokens
        if stage == "train" and place()[1] > 1:
            detached, count = self._over_ranks(detached, count)
        if not detached[f"{stage}/loss"].isfinite():
            self._stop_at(batch, detached)
        self._log_terms(detached, count, stage)
        return losses

    def _over_ranks(self, terms: dict[str, Tensor], count: int) -> tuple[dict[str, Tensor], int]:
        """Means over the action tokens of all ranks, and their number: what is not finite stops all ranks at once."""
        sums = torch.stack([*terms.values(), torch.ones_like(next(iter(terms.values())))]) * count
        *totals, tokens = self.trainer.strategy.reduce(sums, reduce_op="sum")
        means = {name: total / tokens.clamp(min=1.0) for name, total in zip(terms, totals, strict=True)}
        return means, int(tokens)

    def _log_terms(self, terms: dict[str, Tensor], count: int, stage: str) -> None:
        self.log_dict(terms, batch_size=max(1, count), prog_bar=False, sync_dist=stage == "val")

    def _stop_at(self, batch: TokenBatch, terms: Mapping[str, Tensor]) -> NoReturn:
        rank, world = place()
        file = Path(self.trainer.default_root_dir) / ("bad_batch.pt" if world == 1 else f"bad_batch-{rank}.pt")
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"batch": batch._asdict(), "terms": dict(terms), "step": self.global_step}, file)
        said = ", ".join(f"{name} {float(value):.3g}" for name, value in terms.items())
        raise UserError(f"the loss of step {self.global_step} is not finite ({said}); its batch is in {file}")

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Count the action tokens of all ranks, and log the norm of the gradient and the learning rate."""
        count = self.trainer.strategy.reduce(torch.tensor(float(self._count), device=self.device), reduce_op="sum")
        self._count = 0
        self.action_tokens += int(count)
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        wrapper = wrapper_of(self)
        norm = whole_tensor(get_total_norm(gradients)) if wrapper is None else total_norm(wrapper)
        self.log("train/grad_norm", norm)
        self.log("train/lr", optimizer.param_groups[0]["lr"])

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """As the trainer has it; the strategy ``fsdp``, which could not clip by the norm, lets the wrapper do it."""
        wrapper = wrapper_of(self)
        if wrapper is None or gradient_clip_algorithm == "value":
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val:
            wrapper.clip_grad_norm_(gradient_clip_val)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW over everything that learns; the schedule counts optimizer steps."""
        settings = self.hparams
        optimizer = adamw(self, settings["lr"], settings["weight_decay"], settings["adam_beta2"])
        steps = self.trainer.estimated_stepping_batches
        rate = schedule(optimizer, settings["lr_schedule"], settings["warmup_steps"], settings["final_lr"], steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    # -- checkpoints --------------------------------------------------------------------------------------------

    @staticmethod
    def arguments_of_checkpoint(arguments: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
        """What a checkpoint may choose among its arguments.

        Raises:
            UserError: it names a model or a tokenizer that it may not.
        """
        return plain_arguments(arguments, file)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Make the checkpoint stand alone: no path of the run that it started from."""
        stand_alone(self, self._kind, checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the weights of another vocabulary."""
        read_entry(self, checkpoint)

    def reading(self) -> Window:
        """What the policy reads, as in training.

        Raises:
            UserError: if the module has neither been fitted nor loaded.
        """
        if self.window is None:
            raise UserError(
                f"{type(self).__name__} does not know what its policy reads: fit it, load it, or set `window`"
            )
        return self.window

    def export(
        self,
        folder: Path,
        scores: Mapping[str, Any] | None = None,
        weights: Mapping[str, Tensor] | None = None,
        merge: bool = True,
    ) -> None:
        """Write a folder that `transformers` loads without this package, and what was learned beside the model.

        Args:
            folder: replaced if it exists.
            scores: content of ``scores.json``, for the model card.
            weights: the whole state dict, where the module itself holds a share of it (see `whole_weights`).
            merge: of a policy with adapters, write a whole model; else the adapters alone, for `peft`.

        Raises:
            UserError: if adapters are to be written and it is not known what they were trained on.
        """
        write_folder(self, folder, scores, weights, merge)

    def values(self) -> dict[str, Tensor]:
        """Weights that the language model does not hold: value heads and what carries them."""
        return {}

    def played_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Of a whole state dict: `model.*` and what `values` names are what plays."""
        return weights

    def ask(self, **wanted: Any) -> None:
        """Tell the datamodule what its batches shall hold; nothing where batches come from elsewhere."""
        data = getattr(self.trainer, "datamodule", None)
        for name, value in wanted.items() if data is not None else ():
            setattr(data, name, value)

    def setup(self, stage: str) -> None:
        """Learn from the datamodule what is read, and check that an algorithm which needs a BC run has one."""
        data = getattr(self.trainer, "datamodule", None)
        if data is not None and hasattr(data, "window"):
            self.window = data.window()
        keep_values_whole(self.trainer)
        prepare(self.trainer, type(self).__name__, self.in_steps and self.hparams["lora"] is None)
        if stage == "fit":
            self.made_with = training_facts(self, data)
            if self.hparams["activation_checkpointing"]:
                checkpoint_activations(self.learner)
        fresh = stage == "fit" and self.trainer.ckpt_path is None
        if fresh and self.starts_from_bc and self.hparams["pretrained"] is None:
            raise UserError(
                f"{type(self).__name__} starts from a BC run: give model.init_args.pretrained (for example "
                "runs/maze_fo/bc, made by: lmrl fit --config configs/maze_fo/bc.yaml)"
            )


def _compiled(choice: bool | str) -> RowReader:
    backend = backend_of(choice)
    if backend is None:
        return read_rows
    compiled: RowReader = torch.compile(read_rows, dynamic=True, backend=backend)
    return compiled


def _same_vocabulary(ours: PreTrainedTokenizerBase, theirs: PreTrainedTokenizerBase, folder: str) -> None:
    if fingerprint(ours) != fingerprint(theirs):
        raise UserError(
            f"tokenizer {ours.name_or_path!r} is another one than that of {folder!r} ({fingerprint(theirs)})"
        )
