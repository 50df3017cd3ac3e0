"""Evaluation by interaction: the policy plays while it is being trained."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import lightning as L
from lightning.pytorch import Callback, Trainer

from lmrl.callbacks.progress import say, while_evaluating
from lmrl.callbacks.saving import is_between_steps, save_again, save_run
from lmrl.decoding.sampling import check_decoding
from lmrl.envs.registry import DIALOGUES
from lmrl.envs.registry import task as task_of
from lmrl.errors import UserError, check_range
from lmrl.evaluation import evaluate
from lmrl.models.sharding import summon_full_params
from lmrl.modules import LanguageModule
from lmrl.training.reporting import log_now
from lmrl.types import Episode, Policy

__all__ = ["InteractiveEvaluation", "policy_of"]

_LOGGED = {
    "return": ("return_mean", "return_ci"),
    "normalized": ("normalized", "normalized_ci"),
    "success": ("success_rate", "success_ci"),
}


class InteractiveEvaluation(Callback):
    """Evaluates the policy every ``every_n_steps`` steps, logs ``eval/<task>/...``, saves the best return as ``best``.

    Episodes are those of `lmrl.evaluate` with `selection`: starts that the task reserves for it, if any, and seeds of
    its own.

    Processes that train together share the episodes; the scores are over all of them, as if one had played.
    """

    def __init__(
        self,
        task: str | None,
        every_n_steps: int = 1000,
        episodes: int = 50,
        seed: int = 10_000,
        slots: int | None = None,
        decoding: dict[str, Any] | None = None,
        env: dict[str, Any] | None = None,
    ) -> None:
        """Choose the episodes and how often they are played.

        Args:
            task: name of a task; None: dialogues without a simulator, which nothing is played of.
            every_n_steps: optimizer steps between evaluations; the last step is always evaluated.
            episodes: number of episodes, with the same starts and seeds each time.
            seed: seed of the evaluation. Final scores never use these episodes, whatever the seed, because they choose
                the checkpoint.
            slots: environments side by side, on each process; None: 32, on a GPU up to 256.
            decoding: settings of the policy (``temperature``, ``beta``, ``compile``...) other than the module's own.
            env: arguments of the environment.

        Raises:
            UserError: for an unknown task or a number outside of its range.
        """
        check_range("[1, inf)", every_n_steps=every_n_steps, episodes=episodes, slots=slots)
        check_range("[0, inf)", seed=seed)
        check_decoding(decoding or {})
        self.task = DIALOGUES if task is None else task_of(task)
        self.every_n_steps = every_n_steps
        self.episodes = episodes
        self.seed = seed
        self.slots = slots
        self.decoding = {"max_new_tokens": self.task.max_action_tokens, **(decoding or {})}
        self.env = dict(env or {})
        self._begin()

    def _begin(self) -> None:
        self.best = float("-inf")
        self.best_step = 0
        self.seconds = 0.0
        self._seconds_before = 0.0  # seconds of training by earlier processes of this run
        self._start_time = perf_counter()
        self._evaluation_start_time: float | None = None  # None between evaluations
        self._last_evaluated_step: int | None = -1  # None: unknown
        self._resumed_step = -1

    def setup(self, trainer: Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Forget another run, for which the same object was used before."""
        if stage == "fit" and trainer.global_step == 0:
            self._begin()

    def on_train_start(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Make the policy once, so that unknown settings are refused now, and make up for a missed evaluation."""
        assert isinstance(pl_module, LanguageModule)
        # Where nothing is played, weights in shards stay there: together they may not fit.
        if self.task is not DIALOGUES:
            with summon_full_params(pl_module, but=pl_module.unused_in_rollouts):
                policy_of(pl_module, self.decoding)
        self._start_time = perf_counter()
        if self._is_due(trainer) and self._was_missed(trainer):
            self._evaluate(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        """Evaluate if it is time."""
        if self._is_due(trainer):
            self._evaluate(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Evaluate the last policy of a run that ends by epochs, time or compute."""
        if self.task is not DIALOGUES:
            self._evaluate(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Make up for the missed last evaluation of a resumed run that had no step left, so that no other hook ran."""
        if self.task is DIALOGUES or not self._was_missed(trainer):
            return
        assert isinstance(pl_module, LanguageModule)
        pl_module.to(trainer.strategy.root_device)  # the trainer has moved it to the CPU
        self._evaluate(trainer, pl_module)
        save_again(trainer, pl_module, "last", None, self)

    def _is_due(self, trainer: Trainer) -> bool:
        step = trainer.global_step
        is_due = step > 0 and (step % self.every_n_steps == 0 or step == trainer.max_steps)
        return self.task is not DIALOGUES and is_due and is_between_steps(trainer)

    def _was_missed(self, trainer: Trainer) -> bool:
        """Whether a run was stopped at the present step before its evaluation was complete, and is resumed here."""
        step = trainer.global_step
        return step == self._resumed_step and self._last_evaluated_step not in (None, step)

    def _evaluate(self, trainer: Trainer, module: L.LightningModule) -> None:
        if trainer.global_step == self._last_evaluated_step:  # accumulated batches end without a step
            return
        self._evaluation_start_time = perf_counter()
        with while_evaluating(trainer, f"playing {self.episodes} episodes"):
            self._play(trainer, module)
        self.seconds += perf_counter() - self._evaluation_start_time
        self._evaluation_start_time = None

    def _play(self, trainer: Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, LanguageModule)
        # Dropout and the like are off in play; the module is left in the mode that it was in.
        training = module.training
        is_missed = self._was_missed(trainer)
        module.eval()
        with summon_full_params(module, but=module.unused_in_rollouts):
            policy = policy_of(module, self.decoding)
            counts = _Counts(trainer, self.episodes)
            played = evaluate(
                policy,
                self.task.name,
                self.episodes,
                self.seed,
                self.slots,
                counts.episode,
                on_turns=counts.turns,
                env=self.env,
                together=True,
                selection=True,
            )
        scores = played.scores()
        module.train(training)
        log_now(trainer, self._metrics(scores) | {"time/train_seconds": self._trained()})
        before = (self.best, self.best_step, self._last_evaluated_step)
        self._last_evaluated_step = trainer.global_step
        if scores["return_mean"] <= self.best:
            return
        self.best = scores["return_mean"]
        self.best_step = trainer.global_step
        try:
            if is_missed:
                save_again(trainer, module, "best", scores, self)
            else:
                save_run(trainer, module, "best", scores)
        except BaseException:
            # Ctrl-C: the run that resumes has no such checkpoint, so it must evaluate this step again.
            self.best, self.best_step, self._last_evaluated_step = before
            raise

    def _trained(self) -> float:
        """Seconds that the run has been training, without its evaluations."""
        now = perf_counter() if self._evaluation_start_time is None else self._evaluation_start_time
        return self._seconds_before + now - self._start_time - self.seconds

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
        """The best return so far and its step, so that a resumed run does not overwrite a better one; and the time.

        With the last evaluated step, a resumed run knows whether Ctrl-C has ended the evaluation of its present step.
        """
        return {
            "best": self.best,
            "best_step": self.best_step,
            "seconds": self._trained(),
            "last_evaluated_step": self._last_evaluated_step,
        }

    def on_load_checkpoint(self, trainer: Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note the step at which the run is resumed."""
        self._resumed_step = int(checkpoint["global_step"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a saved best return."""
        self.best = float(state_dict["best"])
        self.best_step = int(state_dict["best_step"])
        self._seconds_before = float(state_dict.get("seconds", 0.0))  # older checkpoints lack it
        self._last_evaluated_step = state_dict.get("last_evaluated_step")  # None: an older checkpoint lacks it


class _Counts:
    """Says how far an evaluation is: a large model on a CPU needs minutes for its first game."""

    def __init__(self, trainer: Trainer, episodes: int) -> None:
        self._trainer = trainer
        self._episodes = episodes
        self._played = 0
        self._turns = 0

    def episode(self, episode: Episode) -> None:
        self._played += 1

    def turns(self, count: int) -> None:
        self._turns += count
        say(self._trainer, f"playing {self._episodes} episodes: {self._played} ended, {self._turns:,} turns")


def policy_of(module: LanguageModule, decoding: Mapping[str, Any]) -> Policy:
    """The policy that a module has learned so far.

    Raises:
        UserError: a setting is unknown, or its value is out of range.
    """
    try:
        return module.policy(**decoding)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise UserError(
            f"decoding: the policy of {type(module).__name__} does not take all of {', '.join(decoding)}; it takes "
            "temperature, top_k, top_p, max_new_tokens, compile; with values also beta, support_top_k, support_top_p"
        ) from error
