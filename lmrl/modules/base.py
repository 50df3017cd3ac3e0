"""Parts that all LightningModules share: a language model, an optimizer, and equal weights of action tokens."""

import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch import Callback
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lmrl.checkpoints.reading import files_learned_from, made_with_of_start, resolve_pretrained
from lmrl.checkpoints.saving import (
    begin_next_epoch,
    check_resumed,
    check_vocabulary,
    pack_checkpoint,
    random_state,
    read_entry,
    restore_base,
    set_random_state,
    write_folder,
)
from lmrl.data.dialogues import with_system_in_front
from lmrl.datamodules.offline import OfflineDataModule, global_seed
from lmrl.datamodules.online import OnlineDataModule
from lmrl.datamodules.spec import BatchSpec
from lmrl.decoding.check import check_model
from lmrl.decoding.reader import backend_of
from lmrl.errors import UserError
from lmrl.models.base_model import BaseModel, base_model
from lmrl.models.lm import (
    build_lm,
    checkpoint_activations,
    compose_embeddings,
    head_of,
    hidden_states,
    positions_of,
    vocabulary_of,
)
from lmrl.models.lora import add_lora, is_adapter
from lmrl.models.sharding import configure_shards, full_tensor, is_sharded
from lmrl.models.tokenizer import add_task_tokens, tokenizer_for
from lmrl.policies import LMPolicy, RerankPolicy
from lmrl.tokens.collate import TokenBatch
from lmrl.tokens.encoding import Window, encoder_for, invalid_ids
from lmrl.training.flops import StepCost, lm_cost, playing_cost
from lmrl.training.noise_scale import NoiseScale
from lmrl.training.optimizer import (
    FastFloat32,
    check_optimizer,
    check_start,
    compile_for,
    keep_values_float32,
    optimizer_and_schedule,
)
from lmrl.training.reporting import LossReporter
from lmrl.training.throughput import Throughput
from lmrl.types import Episode, Policy
from lmrl.utils.distributed import all_gather_objects, rank_and_world_size

__all__ = ["LanguageModule"]


class LanguageModule(L.LightningModule):
    """Base of all algorithms. A subclass defines `losses`, and `policy` where it does not just sample from the model.

    Arguments are plain values, so that checkpoints reload with ``weights_only=True``. A checkpoint needs no other file,
    because it holds the weights of `pretrained`. With `lora` it leaves them out, and they are read from there again.
    """

    #: Name under which the terms of the loss are logged.
    name = "language"
    #: Whether the algorithm starts from the weights of a BC run.
    starts_from_bc = False
    #: Submodules unused in rollouts.
    unused_in_rollouts: tuple[str, ...] = ()
    #: Submodules that stay in eval mode in training: frozen models and target networks. They may be None.
    always_eval: tuple[str, ...] = ()
    #: Arguments that runs of earlier versions do not record, with the values that those were made with.
    earlier_defaults: Mapping[str, Any] = MappingProxyType({})

    #: How much of an episode the policy reads; set by the datamodule or a checkpoint.
    window: Window | None = None
    #: Action tokens of all training steps so far, repeated ones included; over all ranks, and part of checkpoints.
    action_tokens = 0
    #: What it was trained on and from, JSON-like; part of checkpoints and model cards.
    made_with: dict[str, Any]
    #: The model under adapters, whose weights checkpoints leave out; None: they hold all weights.
    base: BaseModel | None = None
    _stop_waits = False

    def __init__(
        self,
        pretrained: str | None = None,
        architecture: dict[str, Any] | None = None,
        tokenizer: str | None = None,
        task_tokens: str | dict[str, Any] | None = None,
        optimizer: str = "adamw",
        lr: float = 1e-3,
        muon_lr: float = 0.02,
        lr_schedule: str = "cosine",
        warmup_steps: int = 50,
        final_lr: float = 0.02,
        weight_decay: float = 0.0,
        adam_beta2: float = 0.95,
        trust_remote_code: bool = False,
        lora: dict[str, Any] | None = None,
        activation_checkpointing: bool = False,
        compile: bool | str | None = None,
    ) -> None:
        """Build the language model.

        Args:
            pretrained: run folder (``runs/TASK/bc``), model folder, GGUF file or hub id to start from; None: from
                scratch.
            architecture: configuration values of a model from scratch, over those of a small GPT-2.
            tokenizer: a bundled one, a folder, GGUF file or hub id; None: that of `pretrained`, or ``lmrl``.
            task_tokens: task whose texts are tokens (or ``{name: ..., vocab: ...}``); None: spell everything.
            optimizer: ``adamw``, or ``muon`` for the matrices inside of the transformer and AdamW for the rest.
            lr: peak learning rate of AdamW.
            muon_lr: peak learning rate of Muon.
            lr_schedule: ``cosine`` or ``constant``, after a linear warm-up.
            warmup_steps: optimizer steps of the warm-up.
            final_lr: last learning rate of the cosine, as a share of the peak.
            weight_decay: decoupled decay of matrices (not of biases, norms and embeddings).
            adam_beta2: decay of AdamW's second moment (of the first: 0.9).
            trust_remote_code: run code that `pretrained` or `tokenizer` bring with them from a hub.
            lora: train adapters on a frozen model: settings of `lmrl.models.lora.add_lora`, as ``{r: 8}``.
            activation_checkpointing: compute the activations of what learns a second time instead of keeping them.
            compile: use `torch.compile` in training, perhaps with the backend of that name; None: on a GPU, in runs of
                200 steps and more. Decoding has its own.

        Raises:
            UserError: for unknown names, names that do not belong together, and numbers outside of their range.
        """
        super().__init__()
        check_optimizer(optimizer, lr, muon_lr, lr_schedule, warmup_steps, final_lr, weight_decay, adam_beta2)
        self.save_hyperparameters()
        folder = None if pretrained is None else resolve_pretrained(pretrained)
        self.tokenizer: PreTrainedTokenizerBase = tokenizer_for(folder, tokenizer, trust_remote_code)
        known_tokens = len(self.tokenizer)
        added_tokens = add_task_tokens(self.tokenizer, task_tokens)
        if folder is not None and lora is not None and len(self.tokenizer) > known_tokens:
            # Their rows all begin at the mean of the others.
            raise UserError(
                f"lora freezes the embeddings, so the tokens that task_tokens adds to {pretrained} cannot be learned: "
                "leave out task_tokens, or start from a run that has learned them without lora"
            )
        # In float32 whatever the precision of the saved weights: trainer.precision decides about training in bfloat16.
        self.model: PreTrainedModel = build_lm(
            folder, architecture or {}, len(self.tokenizer), trust_remote_code, dtype=torch.float32
        )
        check_model(self.model)
        if folder is None and added_tokens:
            compose_embeddings(self.model, added_tokens)
        if folder is not None and lora is not None:
            self.base = base_model(folder, trust_remote_code)
        self.add_adapters(lora)
        backend_of(compile)  # so that an unknown one is refused now
        self.reporter = LossReporter(self.name)
        self.made_with = {}
        self._random_state: dict[str, Tensor] | None = None  # from a checkpoint, until training starts

    @abstractmethod
    def losses(self, batch: TokenBatch) -> NamedTuple:
        """Terms of the loss, each a mean over the N action tokens, as they are logged; see `objective`."""

    def policy(self, **settings: Any) -> Policy:
        """Return the policy learned so far: it samples from the model. For `settings` see `lmrl.policies.LMPolicy`."""
        return LMPolicy(self.model, self.tokenizer, self.context_window(), **settings)

    def reranker(self, proposals: Sequence[str], **settings: Any) -> Policy:
        """Return a policy that scores whole actions by their likelihood and chooses the best.

        Args:
            proposals: the actions, for tasks whose actions can be listed.
            **settings: see `lmrl.policies.RerankPolicy`.
        """
        return RerankPolicy(self.model, self.tokenizer, self.context_window(), proposals=proposals, **settings)

    def batch_spec(self) -> BatchSpec:
        """Declare the content of batches. An algorithm extends it with `dataclasses.replace`."""
        return BatchSpec(tokenizer=self.tokenizer, positions=positions_of(self.model.config))

    def objective(self, terms: Any, batch: TokenBatch) -> Tensor:
        """Return the loss that is minimised, from the terms that `losses` has returned; see `TokenBatch.scale`."""
        loss: Tensor = terms.loss * batch.scale
        return loss

    def step_cost(self) -> StepCost:
        """Return what a training step costs, for MFU; an algorithm that runs more than its language model adds it."""
        return lm_cost(self.model)

    def round_cost(self) -> StepCost:
        """Return what it costs to play and prepare a round. The policy reads or samples each id once."""
        return playing_cost(self.model)

    @property
    def trainable_model(self) -> PreTrainedModel:
        """The transformer that learns."""
        return self.model

    def add_adapters(self, lora: Mapping[str, Any] | None) -> None:
        """Put adapters on the model that learns, if `lora` is given."""
        if lora is not None:
            add_lora(self.model, lora)

    def weights_of_base(self) -> set[str]:
        """Return the names of the weights that equal those of `base`, in all copies. Checkpoints leave them out.

        An algorithm that changes weights and freezes them later must override it.
        """
        if self.base is None:
            return set()
        of_base = set()
        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad and not is_adapter(name):
                of_base.add(id(parameter))
        if self.model.config.vocab_size > self.base.vocabulary:
            # The rows of tokens that the base does not have were drawn for this run.
            for layer in (self.model.get_input_embeddings(), head_of(self.model)):
                of_base.difference_update(id(parameter) for parameter in layer.parameters())
        # Frozen parameters are shared with the copies of the model, which hold them under other names.
        return {name for name, p in self.named_parameters(remove_duplicate=False) if id(p) in of_base}

    def value_state_dict(self) -> dict[str, Tensor]:
        """Weights that the language model does not hold: value heads and what carries them."""
        return {}

    def played_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the weights that play from a full state dict: `model.*` and the names in `value_state_dict`."""
        return weights

    def invalid_token_ids(self) -> Tensor:
        """(vocabulary,) bool: the ids that the policy never samples."""
        end = encoder_for(self.tokenizer, self.window).end
        return invalid_ids(self.tokenizer, vocabulary_of(self.model), self.device, end)

    def hidden_states(self, trunk: nn.Module, batch: TokenBatch) -> Tensor:
        """(S, width) hidden vectors of a trunk at the states of a batch; see `lmrl.models.lm.hidden_states`."""
        # Weights in shards are gathered by all processes together, in each forward pass.
        return hidden_states(trunk, batch, groups=self.device.type == "cpu" and not is_sharded(self))

    def copy_for_rollouts(self) -> "LanguageModule":
        """Return a shallow copy without the submodules that rollouts don't use; it can be sent to other processes."""
        lean = copy(self)  # Lightning leaves the trainer out
        lean._modules = {name: part for name, part in self._modules.items() if name not in self.unused_in_rollouts}
        lean.reporter = LossReporter(self.name)
        lean.base = None
        return lean

    @property
    def prompt_line(self) -> str:
        """Return the text that the policy reads before the first observation."""
        return ""

    def as_read(self, episode: Episode) -> Episode:
        """Return a collected episode as the policy has read it.

        Dialogues of a file without a simulator may have system messages of their own.
        """
        # Older runs did not record this. They put the system message before the first observation unless the window
        # had one.
        in_front = self.made_with.get("system_in_front", not self.context_window().system)
        return with_system_in_front(episode) if in_front else episode

    def context_window(self) -> Window:
        """Return the policy's context window, as in training.

        Raises:
            UserError: if the module has neither been fitted nor loaded.
        """
        if self.window is None:
            name = type(self).__name__
            raise UserError(f"{name} does not know what its policy reads: fit it, load it, or set `window`")
        return self.window

    def forward(self, nothing: None = None) -> None:
        """Unused; required by FSDP. Training calls `losses`, inference uses `policy`."""

    def setup(self, stage: str) -> None:
        """Pass `batch_spec` to the datamodule, and take the context window from it.

        Raises:
            UserError: if an algorithm which needs a BC run has none, or the device cannot compute in float64.
        """
        if self.trainer.strategy.root_device.type == "mps":
            raise UserError("Apple's GPU (mps) cannot compute in float64: set trainer.accelerator=cpu")
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, OfflineDataModule):
            data.configure_batches(self.batch_spec())
            self.window = data.window()
        keep_values_float32(self.trainer)
        if stage == "fit":
            check_vocabulary(self)
            self.made_with = self._training_facts(data)
            self._stop_waits = False  # forget the stop of an earlier training
            check_start(self)
            # from_pretrained leaves a model in eval mode, in which transformers keeps all activations.
            self.train()
            if self.hparams["activation_checkpointing"]:
                checkpoint_activations(self.trainable_model)
            compile_for(self, self.hparams["compile"])

    def _training_facts(self, data: object) -> dict[str, Any]:
        """Return the facts that are known when training begins, JSON-like: task, data, seeds and the start."""
        known = data.facts() if isinstance(data, OfflineDataModule) else {}
        start = self.hparams.get("pretrained")
        known["starts_from"] = start
        known["seed"] = global_seed()
        known["lmrl"] = str(sys.modules["lmrl"].__version__)
        learned_from = [] if start is None else files_learned_from(made_with_of_start(start))
        learned_from += [file for file in files_learned_from(known) if file not in learned_from]
        known["learned_from"] = learned_from or None
        return {name: value for name, value in known.items() if value is not None}

    def configure_model(self) -> None:
        """Keep on each process its share of the weights; see `lmrl.models.sharding.configure_shards`."""
        configure_shards(self)

    def configure_callbacks(self) -> Sequence[Callback]:
        """Return what logs the terms of the loss, the gradient noise scale and the pace, and what sets TF32."""
        return [self.reporter, NoiseScale(), Throughput(), FastFloat32()]

    def train(self, mode: bool = True) -> "LanguageModule":
        """Set training mode for what learns; the submodules in `always_eval` stay in eval mode."""
        super().train(mode)
        for name in self.always_eval:
            part: nn.Module | None = getattr(self, name)
            if part is not None:
                part.train(False)
        return self

    def training_step(self, batch: TokenBatch, batch_idx: int) -> Tensor:
        """Log the terms of the loss, and return what is minimised; see `objective`.

        Lightning averages the losses of micro-batches and ranks. Each loss is a sum over action tokens that is divided
        by their average number, so all tokens have the same weight however a step is cut into micro-batches.
        """
        terms = self.losses(batch)
        self.action_tokens += self.reporter.train(self, terms, batch)
        return self.objective(terms, batch)

    def validation_step(self, batch: TokenBatch, batch_idx: int) -> None:
        """Log the mean loss of held-out episodes."""
        self.reporter.validate(self, self.losses(batch), batch)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Log the norm of the gradient and the learning rate."""
        gradients = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradients.append(parameter.grad)
        self.log("train/grad_norm", full_tensor(get_total_norm(gradients)))
        self.log("train/lr", optimizer.param_groups[0]["lr"])

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Let a stop (``trainer.max_time``, `Trainer.should_stop`) wait for the end of the optimizer step.

        In the middle of a step the gradients of its first batches would be lost, and a resumed run would differ.
        """
        # Callbacks have had their turn: one that wants to stop the run has said so.
        self._stop_waits |= self.trainer.should_stop
        is_step_over = not self.trainer.fit_loop.epoch_loop._should_accumulate()
        self.trainer.should_stop = self._stop_waits and is_step_over

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Step, mark the weights as changed, and update the target networks.

        Decoding compares the versions of weights to know that its caches are stale.
        """
        super().optimizer_step(*args, **kwargs)
        # A fused optimizer writes without counting a version.
        torch.autograd.graph.increment_version(p for p in self.parameters() if p.requires_grad)
        self.update_target_networks()

    def update_target_networks(self) -> None:
        """Move target networks towards what learns. It is called once per optimizer step, also under accumulation."""

    def on_train_start(self) -> None:
        """Restore the position in the data and the random state of dropout.

        Lightning restores the loader only if it creates the loader mid-epoch, after reading the checkpoint. This hook
        covers the other case.
        """
        if self._random_state is not None:
            set_random_state(self._random_state, self.device)
            self._random_state = None
        loop = self.trainer.fit_loop
        if loop._combined_loader is not None and loop._combined_loader_states_to_load:
            loop._combined_loader._load_state_dicts(loop._combined_loader_states_to_load)
            loop._combined_loader_states_to_load = []

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """The optimizer of everything that learns; the schedule counts optimizer steps."""
        # To estimate the steps of an online run, Lightning would play a round.
        data = getattr(self.trainer, "datamodule", None)
        is_online = isinstance(data, OnlineDataModule)
        steps = self.trainer.max_steps if is_online else self.trainer.estimated_stepping_batches
        return optimizer_and_schedule(self, steps)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Make the checkpoint stand alone: no path of the run that it started from.

        Raises:
            UserError: the loss of the last batch is not finite: its step has spoiled the weights.
        """
        self.reporter.check_last()
        pack_checkpoint(self, checkpoint)
        if (self.hparams.get("lora") or {}).get("lora_dropout"):
            # Processes that train together draw different numbers.
            checkpoint["lmrl"]["random_state"] = all_gather_objects(random_state(self.device))
        if self._trainer is not None:
            checkpoint["lmrl"]["processes"] = self.trainer.world_size

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the weights of another vocabulary, and to resume a run with other data or settings."""
        if self._trainer is not None and self.trainer.state.fn == "fit":
            check_resumed(self, checkpoint, self.trainer.world_size)
            begin_next_epoch(checkpoint)
        read_entry(self, checkpoint)
        restore_base(self, checkpoint)
        states = checkpoint["lmrl"].get("random_state")
        if isinstance(states, list):
            rank, _ = rank_and_world_size()
            states = states[rank % len(states)]
        self._random_state = states

    def export(
        self,
        folder: str | Path,
        scores: Mapping[str, Any] | None = None,
        weights: Mapping[str, Tensor] | None = None,
        merge: bool = True,
    ) -> None:
        """Write a folder that `transformers` loads without this package; see `lmrl.checkpoints.saving.write_folder`."""
        write_folder(self, Path(folder), scores, weights, merge)
