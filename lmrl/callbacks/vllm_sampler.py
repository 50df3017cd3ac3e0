"""Rounds whose actions a vLLM server samples, with the present weights."""

import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lmrl.callbacks.progress import say
from lmrl.callbacks.rollouts import RolloutCollection
from lmrl.checkpoints.export import check_replaceable, export_for_reload
from lmrl.checkpoints.saving import language_model_weights, saves_adapters
from lmrl.decoding.sampling import SamplingSettings
from lmrl.errors import UserError, check_range
from lmrl.models.lm import vocabulary_of
from lmrl.models.lora import Adapters, adapter_weights, adapters_of, has_lora, save_adapters, stacked
from lmrl.models.sharding import full_state_dict
from lmrl.modules import LanguageModule
from lmrl.modules.policy_gradient import PolicyGradient, RolloutCorrection
from lmrl.policies import VLLMPolicy
from lmrl.policies.chat.reloading import WeightReloader
from lmrl.policies.chat.tokens import TokenClient
from lmrl.policies.lm import ContextBuilder
from lmrl.tokens.encoding import invalid_ids
from lmrl.types import Policy, Reply, Request
from lmrl.utils.distributed import on_first_rank

__all__ = ["VLLMSampler"]

_FOLDER = "sampler"  # the folder of the weights, in the run's folder
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the maximum LoRA ranks that a vLLM server accepts


class _Served(NamedTuple):
    """Adapters at the server."""

    name: str
    folder: Path
    path: str
    """The folder as the server finds it."""


class VLLMSampler(Callback):
    """Has a vLLM server sample the rounds of PPO and the GRPO family that `RolloutCollection` plays.

    Before each round the weights are written to a folder, from which the server reads them; then it forgets its prefix
    cache. The folder is replaced in one step, so a server that was started from it and dies comes back with the weights
    of the round.

    A run with adapters sends the adapters alone, in bfloat16, because the server has the model under them. They get a
    new name in each round, so that no round can be played with old ones.

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
            url: address of the server, ``http://127.0.0.1:8000``.
            model: name under which it serves the policy.
            folder: folder into which the weights are written; None: ``sampler`` in the run's folder.
            server_folder: the same folder as the server finds it; None: the same path.
            importance_cap: see `lmrl.modules.policy_gradient.RolloutCorrection`; None: losses are not weighed, or with
                `max_staleness` by the cap of `RolloutCollection`.
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
        self._settings: dict[str, Any] = {"timeout": timeout, "retries": retries, "max_parallel": max_parallel}
        self._policy: Policy | None = None
        self._adapters: _Served | None = None

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
                "VLLMSampler samples for policy gradients, such as PPO and GRPO, of one language model, got "
                f"{type(pl_module).__name__}"
            )
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        collection = next((callback for callback in callbacks if isinstance(callback, RolloutCollection)), None)
        if collection is None:
            raise UserError("VLLMSampler samples for the callback lmrl.callbacks.RolloutCollection: add it")
        check_replaceable(self._written_to(trainer))
        collection.set_sampler(self)
        correction = self._correction
        if collection.max_staleness:
            # Stale weights are intended here, so a log-probability gap is no error.
            cap = correction.importance_cap or collection.correction.importance_cap
            correction = replace(correction, importance_cap=cap, max_gap=None, is_stale=True)
        pl_module.set_correction(correction)

    def hand_over(self, trainer: Trainer, module: LanguageModule) -> None:
        """Have the server read the present weights; all processes call it together.

        Raises:
            UserError: as `load`.
        """
        weights = full_state_dict(module)
        if weights is not None:
            weights = language_model_weights(weights)

        def load() -> _Served | None:
            self.load(trainer, module, weights)
            return self._adapters

        # The first process writes and asks the server. The others wait, and learn the name of the adapters.
        served = on_first_rank(load)
        if served is not None:
            self._ask_for(served)

    def weights(self, module: LanguageModule) -> dict[str, torch.Tensor]:
        """A copy of the weights of the language model, on the CPU; all processes call it together."""
        weights = full_state_dict(module)
        if weights is not None:  # in shards, gathered on the first process
            return language_model_weights(weights)
        is_whole = _served_adapters(module, None) is None
        needed = module.model.state_dict() if is_whole else adapter_weights(module.model)
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in needed.items()}

    def load(self, trainer: Trainer, module: LanguageModule, weights: dict[str, torch.Tensor] | None) -> str:
        """Write weights, and have the server read them; the first process calls it.

        Args:
            trainer: the trainer of the run.
            module: the module that holds the language model.
            weights: weights of the language model; None: its present weights.

        Returns:
            The folder from which the server has read them, as it finds it.

        Raises:
            UserError: there is no server in time, or it could not read them.
        """
        say(trainer, "handing weights to the vLLM server")
        adapters = _served_adapters(module, weights)
        if adapters is not None:
            return self._load_adapters(trainer, module, adapters)
        folder = self._written_to(trainer)
        export_for_reload(folder, module.model, module.tokenizer, weights)
        served = self._server_folder or str(folder.resolve())
        # Weights can be reloaded in dev mode only.
        self._wait_for_server("VLLM_SERVER_DEV_MODE=1", served)
        self._reloader.reload(served)
        return served

    def _load_adapters(self, trainer: Trainer, module: LanguageModule, adapters: Adapters) -> str:
        """Have the server read adapters under a new name, and forget those of the round before."""
        assert module.base is not None
        # The prefix cache tells adapters apart by name and path; a server may still have those of an earlier run.
        name = f"{self._client.model}-{trainer.global_step}-{secrets.token_hex(4)}"
        weights_folder = self._written_to(trainer)
        folder = weights_folder.with_name(f"{weights_folder.name}-adapters") / name
        path = str(folder.resolve()) if self._server_folder is None else f"{self._server_folder}-adapters/{name}"
        halves = {key: tensor.to(torch.bfloat16) for key, tensor in adapters.weights.items()}
        save_adapters(adapters._replace(weights=halves), folder, module.base.whole, module.base.whole_sha256)
        rank = next((rank for rank in _RANKS if rank >= adapters.settings["r"]), adapters.settings["r"])
        options = ("--enable-lora", "--max-lora-rank", str(rank))
        self._wait_for_server("VLLM_ALLOW_RUNTIME_LORA_UPDATING=True", module.base.whole, *options)
        self._reloader.load_adapters(name, path)
        self._forget_adapters()
        self._ask_for(_Served(name, folder, path))
        return path

    def _ask_for(self, adapters: _Served) -> None:
        """Have the policies of later rounds ask for these adapters."""
        self._adapters = adapters
        self._policy = None

    def _forget_adapters(self) -> None:
        """Have the server forget the adapters of the round before, and remove their folder."""
        before = self._adapters
        if before is None:
            return
        if self._reloader.serves(before.name):  # not if it was started again
            self._reloader.unload_adapters(before.name)
        rmtree(before.folder, ignore_errors=True)

    def _wait_for_server(self, variable: str, model: str, *options: str) -> None:
        """Wait until there is a server, and say how to start one.

        Raises:
            UserError: there is none in time.
        """
        if self._reloader.answers():
            return
        # Processed log-probabilities are those after masks.
        words = ["vllm", "serve", model, "--served-model-name", self._client.model, *options]
        command = f"{variable} {shlex.join([*words, '--logprobs-mode', 'processed_logprobs'])}"
        rank_zero_warn(f"no vLLM server at {self._reloader.url}; waiting {self._wait:g} s for: {command}")
        if not self._reloader.wait(self._wait):
            raise UserError(f"no vLLM server at {self._reloader.url} within {self._wait:g} s; start: {command}")

    def policy(self, module: LanguageModule, max_new_tokens: int) -> Policy:
        """The policy that asks the server; it reads the same contexts as the module's own policy.

        Raises:
            UserError: as `lmrl.policies.VLLMPolicy`, or what is read does not fit into the server's positions.
        """
        if self._policy is None:
            window = module.context_window()
            of_server = self._client.positions()
            of_model = getattr(module.model.config, "max_position_embeddings", None)
            limits = (of_server, of_model, window.tokens + max_new_tokens)
            positions = min(limit for limit in limits if limit)  # the smallest known limit
            builder = ContextBuilder(module.tokenizer, window, positions, max_new_tokens)
            # The server masks the same ids as the module's own policy: both sample from one distribution.
            cpu = torch.device("cpu")
            invalid = invalid_ids(module.tokenizer, vocabulary_of(module.model), cpu, builder.encoder.end)
            settings = SamplingSettings(max_new_tokens=max_new_tokens, stop_ids=builder.stop_ids())
            never = invalid.nonzero()[:, 0].tolist()
            if self._adapters is None:
                self._policy = VLLMPolicy(self._client, builder, settings, never)
            else:
                client = TokenClient(self._reloader.url, self._adapters.name, **self._settings)
                policy = VLLMPolicy(client, builder, settings, never)
                self._policy = _AdaptersPolicy(policy, self._reloader, self._adapters)
        return self._policy

    def teardown(self, trainer: Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Forget the policy: another run may have another window."""
        self._policy = None

    def _written_to(self, trainer: Trainer) -> Path:
        return Path(trainer.default_root_dir) / _FOLDER if self._folder is None else Path(self._folder)


def _served_adapters(module: LanguageModule, weights: Mapping[str, torch.Tensor] | None) -> Adapters | None:
    """Return the adapters that make the module's policy of the whole model under it (`BaseModel.whole`).

    Args:
        module: the module that is being trained.
        weights: weights of its language model; None: its present weights.

    Returns:
        None if it takes more than adapters: the module learns all weights, or has ids that the model lacks.
    """
    if not has_lora(module.model) or not saves_adapters(module):
        return None
    assert module.base is not None
    return stacked([*module.base.adapters, adapters_of(module.model, weights)])


class _AdaptersPolicy:
    """Asks for adapters, and has a server that was started again in the middle of a round load them again."""

    def __init__(self, policy: VLLMPolicy, reloader: WeightReloader, adapters: _Served) -> None:
        self._policy = policy
        self._reloader = reloader
        self._adapters = adapters

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """See `VLLMPolicy.act`."""
        try:
            return self._policy.act(requests)
        except UserError:
            if self._reloader.serves(self._adapters.name):
                raise
            try:
                self._reloader.load_adapters(self._adapters.name, self._adapters.path)
            except UserError:  # perhaps because another process was first
                if not self._reloader.serves(self._adapters.name):
                    raise
            return self._policy.act(requests)
