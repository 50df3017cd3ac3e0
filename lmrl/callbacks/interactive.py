"""Evaluation by interaction: the policy plays while it is being trained."""

from time import perf_counter
from typing import Any

import lightning as L
from lightning.pytorch import Callback, Trainer

from lmrl.callbacks.saving import save_run
from lmrl.envs.registration import task as task_of
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.modules import LanguageModule
from lmrl.modules.rounds import log_now
from lmrl.modules.sharding import whole

__all__ = ["InteractiveEvaluation"]

_LOGGED = {
    "return": ("return_mean", "return_ci"),
    "normalized": ("normalized", "normalized_ci"),
    "success": ("success_rate", "success_ci"),
}


class InteractiveEvaluation(Callback):
    """Lets the policy play every so many steps, logs ``eval/<task>/...``, and keeps the best by return as ``best``.

    Processes that train together share the episodes; the scores are over all of them, as if one had played.
    """

    def __init__(
        self,
        task: str,
        every_n_steps: int = 1000,
        episodes: int = 50,
        seed: int = 10_000,
        slots: int = 32,
        decoding: dict[str, Any] | None = None,
        env: dict[str, Any] | None = None,
    ) -> None:
        """Choose what is played.

        Args:
            task: name of a task.
            every_n_steps: optimizer steps between evaluations; the last step is always evaluated.
            episodes: how many are played each time; the same starts and seeds each time.
            seed: of the evaluation; another one than that of the final scores, which must not choose the checkpoint.
            slots: environments side by side, on each process.
            decoding: settings of the policy (``temperature``, ``beta``, ``compile``...) other than the module's own.
            env: arguments of the environment.

        Raises:
            UserError: for an unknown task or a number below one.
        """
        for name, value in (("every_n_steps", every_n_steps), ("episodes", episodes), ("slots", slots)):
            if value < 1:
                raise UserError(f"{name} must be at least 1, got {value}")
        self.task = task_of(task)
        self.every_n_steps, self.episodes, self.seed, self.slots = every_n_steps, episodes, seed, slots
        self.decoding = {"max_new_tokens": self.task.max_action_tokens, **(decoding or {})}
        self.env = dict(env or {})
        self.best = float("-inf")
        self.seconds = 0.0
        self._evaluated = -1

    def on_train_batch_end(self, trainer: Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        """Play if it is time."""
        step = trainer.global_step
        if step and (step % self.every_n_steps == 0 or step == trainer.max_steps):
            self._evaluate(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Make sure that a run which ends by epochs or time has a best checkpoint."""
        if self.best == float("-inf"):
            self._evaluate(trainer, pl_module)

    def _evaluate(self, trainer: Trainer, module: L.LightningModule) -> None:
        if trainer.global_step == self._evaluated:  # accumulated batches end without a step
            return
        self._evaluated = trainer.global_step
        began = perf_counter()
        assert isinstance(module, LanguageModule)
        training = module.training
        module.eval()
        with whole(module, but=module.silent):
            policy = module.policy(**self.decoding)
            played = evaluate(policy, self.task.name, self.episodes, self.seed, self.slots, env=self.env, together=True)
        scores = played.scores()
        module.train(training)
        log_now(trainer, self._metrics(scores))
        if scores["return_mean"] > self.best:
            self.best = scores["return_mean"]
            save_run(trainer, module, "best", scores)
        self.seconds += perf_counter() - began

    def _metrics(self, scores: dict[str, Any]) -> dict[str, float]:
        prefix = f"eval/{self.task.name}"
        metrics = {f"{prefix}/length_mean": scores["length_mean"], f"{prefix}/illegal_rate": scores["illegal_rate"]}
        for name, (mean, interval) in _LOGGED.items():
            low, high = scores[interval]
            metrics |= {
                f"{prefix}/{name}_mean": scores[mean],
                f"{prefix}/{name}_ci_low": low,
                f"{prefix}/{name}_ci_high": high,
            }
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The best return so far, so that a resumed run does not overwrite a better one."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved best return."""
        self.best = float(state_dict["best"])
