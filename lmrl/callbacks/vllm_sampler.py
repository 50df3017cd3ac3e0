"""Rounds whose actions a vLLM server samples, with the present weights."""

import shlex
from dataclasses import replace
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lmrl.callbacks.progress import say
from lmrl.callbacks.rollouts import RolloutCollection
from lmrl.checkpoints.export import check_replaceable, export_for_reload
from lmrl.checkpoints.saving import language_model_weights
from lmrl.decoding.sampling import SamplingSettings
from lmrl.errors import UserError, check_range
from lmrl.models.lm import vocabulary_of
from lmrl.models.sharding import full_state_dict
from lmrl.modules import LanguageModule
from lmrl.modules.policy_gradient import PolicyGradient, RolloutCorrection
from lmrl.policies import VLLMPolicy
from lmrl.policies.chat.reloading import WeightReloader
from lmrl.policies.chat.tokens import TokenClient
from lmrl.policies.lm import ContextBuilder
from lmrl.tokens.encoding import invalid_ids
from lmrl.utils.distributed import map_over_ranks

__all__ = ["VLLMSampler"]

_FOLDER = "sampler"  # of the weights, in the run's folder


class VLLMSampler(Callback):
    """Has a vLLM server sample the rounds of PPO and GRPO that `RolloutCollection` plays.

    Before each round the weights are written to a folder, from which the server reads them; then it forgets its prefix
    cache. The folder is replaced in one step, so a server that was started from it and dies comes back with the weights
    of the round.

    The policy does not learn from the server's log-probabilities: its own are computed again, and V with them, before
    the first step of a round. ``rollout/logprob_gap`` is the difference.
    """

    def __init__(
        self,
        url: str,
        model: str = "policy",
        folder: str | None = None,
        server_folder: str | None = None,
        importance_cap: float | None = None,
        max_gap: float | None = 0.1,
        wait: float = 600.0,
        timeout: float = 300.0,
        retries: int = 30,
        max_parallel: int = 256,
    ) -> None:
        """Choose the server, and how to correct for the gap between its log-probabilities and those of the trainer.

        Args:
            url: of the server, ``http://127.0.0.1:8000``.
            model: name under which it serves the policy.
            folder: into which the weights are written; None: ``sampler`` in the run's folder.
            server_folder: the same folder as the server finds it; None: the same path.
            importance_cap: see `lmrl.modules.policy_gradient.RolloutCorrection`; None: losses are not weighed.
            max_gap: likewise: a server with other weights is refused.
            wait: seconds to wait for the server to start.
            timeout: seconds for one answer, and for reading the weights.
            retries: how often a request is tried again.
            max_parallel: requests at the same time.

        Raises:
            UserError: the address is malformed, or a number is out of range.
        """
        self._correction = RolloutCorrection(importance_cap, max_gap)
        check_range("[0, inf)", wait=wait)
        self._reloader = WeightReloader(url, timeout)
        self._client = TokenClient(url, model, timeout, retries, max_parallel)
        self._folder = folder
        self._server_folder = server_folder
        self._wait = wait
        self._policy: VLLMPolicy | None = None

    def setup(self, trainer: Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Take the place of the policy in rounds.

        Raises:
            UserError: the algorithm does not play rounds with one language model, nothing collects them, or the folder
                holds something else.
        """
        if stage != "fit":
            return
        if not isinstance(pl_module, PolicyGradient) or pl_module.trainable_model is not pl_module.model:
            raise UserError(
                "VLLMSampler samples for PPO, GRPO and GiGPO, whose policy is one language model, got "
                f"{type(pl_module).__name__}"
            )
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        collection = next((callback for callback in callbacks if isinstance(callback, RolloutCollection)), None)
        if collection is None:
            raise UserError("VLLMSampler samples for the callback lmrl.callbacks.RolloutCollection: add it")
        check_replaceable(self._written_to(trainer))
        collection.set_sampler(self)
        correction = self._correction
        if collection.max_staleness:  # weights of earlier rounds are as they should be
            correction = replace(correction, max_gap=None)
        pl_module.correct_rollouts(correction)

    def hand_over(self, trainer: Trainer, module: LanguageModule) -> None:
        """Have the server read the present weights; all processes call it together.

        Raises:
            UserError: as `load`.
        """
        weights = full_state_dict(module)
        if weights is not None:
            weights = language_model_weights(weights)
        # The first process writes and asks the server; the others wait for it.
        map_over_ranks([None], lambda mine: [self.load(trainer, module, weights)] if mine else [])

    def weights(self, module: LanguageModule) -> dict[str, torch.Tensor]:
        """A copy of the weights of the language model, on the CPU; all processes call it together."""
        weights = full_state_dict(module)
        if weights is not None:  # in shards, gathered on the first process
            return language_model_weights(weights)
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in module.model.state_dict().items()}

    def load(self, trainer: Trainer, module: LanguageModule, weights: dict[str, torch.Tensor] | None) -> str:
        """Write weights, and have the server read them; the first process calls it.

        Args:
            trainer: of the run.
            module: that holds the language model.
            weights: of the language model; None: those that it has.

        Returns:
            The folder from which the server has read them, as it finds it.

        Raises:
            UserError: there is no server in time, or it could not read them.
        """
        say(trainer, "handing weights to the vLLM server")
        folder = self._written_to(trainer)
        export_for_reload(folder, module.model, module.tokenizer, weights)
        served = self._server_folder or str(folder.resolve())
        if not self._reloader.answers():
            # Weights can be reloaded in dev mode only. Processed log-probabilities are those after masks.
            words = ["vllm", "serve", served, "--served-model-name", self._client.model]
            command = f"VLLM_SERVER_DEV_MODE=1 {shlex.join([*words, '--logprobs-mode', 'processed_logprobs'])}"
            rank_zero_warn(f"no vLLM server at {self._reloader.url}; waiting {self._wait:g} s for: {command}")
            if not self._reloader.wait(self._wait):
                raise UserError(f"no vLLM server at {self._reloader.url} within {self._wait:g} s; start: {command}")
        self._reloader.reload(served)
        return served

    def policy(self, module: LanguageModule, max_new_tokens: int) -> VLLMPolicy:
        """The policy that asks the server; it reads the same contexts as the module's own policy.

        Raises:
            UserError: as `lmrl.policies.VLLMPolicy`, or what is read does not fit into the server's positions.
        """
        if self._policy is None:
            window = module.context_window()
            of_server = self._client.positions()
            of_model = getattr(module.model.config, "max_position_embeddings", None)
            limits = (of_server, of_model, window.tokens + max_new_tokens)
            positions = min(limit for limit in limits if limit)  # of those that are known
            builder = ContextBuilder(module.tokenizer, window, positions, max_new_tokens)
            # The server masks the same ids as the module's own policy: both sample from one distribution.
            cpu = torch.device("cpu")
            invalid = invalid_ids(module.tokenizer, vocabulary_of(module.model), cpu, builder.encoder.end)
            settings = SamplingSettings(max_new_tokens=max_new_tokens, stop_ids=builder.stop_ids())
            self._policy = VLLMPolicy(self._client, builder, settings, invalid.nonzero()[:, 0].tolist())
        return self._policy

    def teardown(self, trainer: Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Forget the policy: another run may have another window."""
        self._policy = None

    def _written_to(self, trainer: Trainer) -> Path:
        return Path(trainer.default_root_dir) / _FOLDER if self._folder is None else Path(self._folder)
