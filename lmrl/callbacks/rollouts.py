"""Collecting the rounds of an algorithm that learns from its own play, and warning when its policy collapses."""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from itertools import chain
from time import perf_counter
from typing import Any, Protocol

import lightning as L
import numpy as np
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lmrl.callbacks.health import RoundHealth, health_metrics, stop_fallen
from lmrl.callbacks.interactive import InteractiveEvaluation, policy_of
from lmrl.callbacks.progress import say
from lmrl.callbacks.round_workers import RoundWorkers
from lmrl.datamodules import OnlineDataModule
from lmrl.decoding.engine import default_slots
from lmrl.decoding.sampling import check_decoding
from lmrl.errors import UserError, check_range
from lmrl.evaluation.metrics import EpisodeScores, RolloutPace
from lmrl.models.sharding import summon_full_params
from lmrl.modules import LanguageModule
from lmrl.partners import environment
from lmrl.rollout import episode_seed, pieces_of, play_piece
from lmrl.training.reporting import log_now
from lmrl.types import Episode, Policy, Start
from lmrl.utils.distributed import map_over_ranks

__all__ = ["RolloutCollection", "Sampler", "signs_of_collapse"]

# From where on a round looks like one of a policy that has collapsed.
_ENTROPY = 0.01  # nats per token
_SHARE = 0.9  # of all actions
_REPEATED = 0.5  # of the three-token pieces within actions
_FEW = 16  # fewer tokens, actions or pieces are not judged


def signs_of_collapse(episodes: Sequence[Episode]) -> list[str]:
    """Return warnings about a round of rollouts; an empty list if nothing looks wrong.

    Looks at the mean negative log-probability of what was sampled (an estimate of the entropy), at the spread of the
    returns, and at text that repeats itself, from action to action and within one.
    """
    logprobs: list[float] = []
    actions: Counter[str] = Counter()
    returns = []
    trigrams = 0
    distinct_trigrams = 0
    for episode in episodes:
        returns.append(episode.total_reward)
        actions.update(episode.actions)
        for turn in episode.action_logprobs:
            logprobs.extend(turn)
        for ids in episode.action_ids:
            # Repetition is counted within an action: short actions are alike without any collapse.
            of_action = list(zip(ids, ids[1:], ids[2:], strict=False))
            trigrams += len(of_action)
            distinct_trigrams += len(set(of_action))

    signs = []
    if len(logprobs) >= _FEW and -float(np.mean(logprobs)) < _ENTROPY:
        signs.append(f"entropy is near zero: {-float(np.mean(logprobs)):.4f} nats per token")
    if len(returns) > 1 and float(np.std(returns)) < 1e-6:
        signs.append(f"returns do not differ: all {len(returns)} are {returns[0]:g}")
    if actions.total() >= _FEW:
        action, count = actions.most_common(1)[0]
        if count > _SHARE * actions.total():
            signs.append(f"{count} of {actions.total()} actions are {action!r}")
    if trigrams >= _FEW and 1.0 - distinct_trigrams / trigrams > _REPEATED:
        share = 1.0 - distinct_trigrams / trigrams
        signs.append(f"{share:.0%} of the three-token pieces within actions are repeated")
    return signs


class Sampler(Protocol):
    """Another program that samples the actions of rounds: `lmrl.callbacks.VLLMSampler`."""

    def hand_over(self, trainer: Trainer, module: LanguageModule) -> None:
        """Give it the present weights; all processes call it together."""

    def policy(self, module: LanguageModule, max_new_tokens: int) -> Policy:
        """The policy that asks it."""


class RolloutCollection(Callback):
    """Plays a round whenever the datamodule begins one, with the present weights, and logs its scores.

    Seeds follow from that of the datamodule, the number of the round and the episode. Episodes never begin at the
    starts that evaluation declares. A game or partner that fails twice ends its episode, and the round continues.

    Processes that train together share the episodes of a round, and each gets all of them: the round is that of one
    process. With `ray`, processes of a Ray cluster play instead: they hold the policy, and its weights are sent once
    per round. They get one piece at a time; a round is, bit by bit, that of one process with the same `piece`, whatever
    the number of workers and even if workers die.

    The episodes of a group begin alike, with the same word or on the same square, and each has a seed of its own for
    the rest: for sampling, the opponent's moves and the partner's replies. ``info["group"]`` numbers the groups of a
    round.
    """

    _trainer: Trainer
    _module: LanguageModule
    _data: OnlineDataModule

    def __init__(
        self,
        episodes: int = 64,
        slots: int | None = None,
        decoding: dict[str, Any] | None = None,
        group_size: int = 1,
        piece: int | None = None,
        ray: str | None = None,
        workers: int | None = None,
        stop_fallen: bool = True,
    ) -> None:
        """Choose how a round is played.

        Args:
            episodes: per round, on all processes together.
            slots: environments side by side, on each process; None: 32, on a GPU up to 256.
            decoding: settings of the policy (``temperature``, ``beta``, ``compile``...) other than the module's own;
                PPO, which learns from what it samples, may have ``compile`` only.
            group_size: episodes that begin alike, for algorithms that compare them (GRPO).
            piece: number of episodes that are played before the policy forgets what it has read; None: all of
                a round, with `ray` as many as there are slots.
            ray: a Ray cluster, ``local``, ``auto`` or ``HOST:PORT`` (`lmrl.utils.cluster.Cluster`), that plays.
            workers: how many of its processes; None: as many as it has cores (or GPUs) for.
            stop_fallen: end a training whose returns have fallen, by the rule of `lmrl.callbacks.health.RoundHealth`.

        Raises:
            UserError: for a number below one, and if the groups do not make up a round; `workers` without `ray`.
        """
        check_range("[1, inf)", episodes=episodes, slots=slots, group_size=group_size, piece=piece, workers=workers)
        if workers is not None and ray is None:
            raise UserError("workers are those of a Ray cluster: ray must be local, auto or HOST:PORT, got None")
        if episodes % group_size:
            raise UserError(f"episodes must be a multiple of group_size, got {episodes} and {group_size}")
        check_decoding(decoding or {})
        self.episodes = episodes
        self._slots = slots
        self.group_size = group_size
        self.decoding = dict(decoding or {})
        self.piece = piece
        self.ray = ray
        self.workers = workers
        self._workers: RoundWorkers | None = None
        self._sampler: Sampler | None = None
        self._seconds = 0.0
        self.stop_fallen = stop_fallen
        self._health = RoundHealth()

    @property
    def slots(self) -> int:
        """Environments side by side, on each process."""
        return default_slots(self._module.model) if self._slots is None else self._slots

    def set_sampler(self, sampler: Sampler) -> None:
        """Have another program sample, in place of the policy that learns.

        Raises:
            UserError: there are settings of how that policy samples, or workers of a cluster that play.
        """
        if self.decoding or self.ray is not None:
            raise UserError("rounds that a server samples take neither decoding nor ray of RolloutCollection")
        self._sampler = sampler

    def setup(self, trainer: Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Register the callback as the source of rollouts.

        Raises:
            UserError: if the algorithm collects no rollouts, or for settings under which it cannot learn from them.
        """
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(pl_module, LanguageModule)
        if not isinstance(data, OnlineDataModule):
            raise UserError(f"RolloutCollection plays for lmrl.datamodules.OnlineDataModule, got {type(data).__name__}")
        if pl_module.batch_spec().learner is not None and self.decoding.keys() - {"compile"}:
            raise UserError(
                f"{type(pl_module).__name__} samples at temperature 1: decoding must hold nothing but compile, got "
                f"{', '.join(self.decoding)}"
            )
        self._trainer = trainer
        self._module = pl_module
        self._data = data
        self._make_env = environment(data.task.name, data.env)
        self._began = perf_counter()
        data.register_collector(self)

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        """Count the minibatches of the round that have been learned from, for checkpoints."""
        self._data.start_minibatch()

    def collect(self, number: int) -> list[Episode]:
        """Play the round of a number with the present weights, and log its scores; `OnlineDataModule` calls it.

        Raises:
            UserError: if all episodes failed.
        """
        began = perf_counter()
        trainer = self._trainer
        say(trainer, f"playing round {number}")
        starts = self._starts(self._data.seed, number)
        pace = RolloutPace()
        weights: AbstractContextManager[None]
        if self._sampler is None:
            weights = summon_full_params(self._module, but=self._module.unused_in_rollouts)
        else:
            weights = nullcontext()
            self._sampler.hand_over(trainer, self._module)
        with weights:
            episodes = self._play(number, starts, pace)
        if self.group_size > 1:
            for index, episode in enumerate(episodes):
                episodes[index] = replace(episode, info={**episode.info, "group": index // self.group_size})
        seconds = perf_counter() - began
        self._seconds += seconds

        complete = _complete(episodes, number)
        metrics = {
            "rollout/episodes": float(number * self.episodes),
            "rollout/failed": float(len(episodes) - len(complete)),
        }
        scores = EpisodeScores(sync_on_compute=False)  # each process has all episodes
        scores.update(complete)
        for name, score in scores.compute().items():
            metrics[f"rollout/{name}"] = score
        counts = pace.to(self._module.device).compute()  # over all processes
        metrics["perf/slot_utilisation"] = counts["turns"] / max(1, counts["calls"] * self.slots)
        metrics["perf/tokens_per_s"] = counts["tokens"] / seconds
        metrics["perf/turns_per_s"] = counts["turns"] / seconds
        metrics["perf/episodes_per_s"] = len(episodes) / seconds
        log_now(trainer, metrics | self._time_shares())
        for sign in signs_of_collapse(complete):
            rank_zero_warn(f"round {number}: {sign}")
        self._judge(number, complete, metrics)
        return episodes

    def _judge(self, number: int, complete: Sequence[Episode], metrics: dict[str, float]) -> None:
        """Log the group ``health/``, and stop a run that has fallen."""
        name = self._module.name
        won = metrics.get("rollout/success_rate", float("nan"))
        health = health_metrics(name, self._trainer.callback_metrics, metrics["rollout/return_mean"], won)
        log_now(self._trainer, health)
        fallen = self._health.add(number, complete)
        if fallen is not None and self.stop_fallen:
            stop_fallen(self._trainer, fallen, health)

    @property
    def state_key(self) -> str:
        """The same for subclasses, so that a run can be resumed with another one."""
        return "RolloutCollection"

    def state_dict(self) -> dict[str, Any]:
        """The returns of the last rounds, see `RoundHealth`."""
        return self._health.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume with the returns of the last rounds."""
        if state_dict:  # checkpoints of earlier versions have none
            self._health.load_state_dict(state_dict)

    def _play(self, number: int, starts: Sequence[Start], pace: RolloutPace) -> list[Episode]:
        """The episodes of all starts on all processes; the calls of this process are added to the pace."""
        task = self._data.task
        settings = {"max_new_tokens": task.max_action_tokens, "slots": self.slots, **self.decoding}
        policy: Policy | None = None  # None: workers of a cluster play
        if self._sampler is not None:
            policy = self._sampler.policy(self._module, task.max_action_tokens)
        elif self.ray is None:
            policy = policy_of(self._module, settings)

        def play(pieces: Sequence[Sequence[Start]]) -> list[list[Episode]]:
            if policy is None:
                played = self._round_workers(settings).play(pieces, number)
            else:
                played = [play_piece(policy, self._make_env, piece, task.name, self.slots) for piece in pieces]
            episodes = []
            for piece in played:
                pace.update(piece.turns, piece.tokens, piece.calls)
                episodes.append(piece.episodes)
            return episodes

        piece_size = self.slots if self.piece is None and self.ray is not None else self.piece
        if piece_size is None:  # the share of a process is one piece
            return map_over_ranks(starts, lambda mine: play([mine])[0])
        pieces = pieces_of(starts, piece_size)
        if policy is None:  # the first process has the workers, so all pieces together are its share
            (played,) = map_over_ranks([pieces], lambda mine: [play(mine[0])] if mine else [])
        else:
            played = map_over_ranks(pieces, play)
        return list(chain.from_iterable(played))

    def _round_workers(self, settings: dict[str, Any]) -> RoundWorkers:
        """The workers of the cluster, which are started for the first round."""
        if self._workers is None:
            assert self.ray is not None
            of_task = (self._data.task.name, self._data.env or {})
            self._workers = RoundWorkers(self.ray, self.workers, self._module, *of_task, self.slots, settings)
        return self._workers

    def teardown(self, trainer: Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """End the workers."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def on_exception(self, trainer: Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """End the workers."""
        self.teardown(trainer, pl_module, "fit")

    def _starts(self, seed: int, number: int) -> list[Start]:
        """Return the starts of the episodes of a round, group by group.

        Raises:
            UserError: an environment of which several episodes are to begin alike does not say how one began.
        """
        # The 1 at the end keeps these keys apart from those of evaluation: trailing zeros would not count.
        if self.group_size == 1:
            return [Start(episode_seed(seed, number, index, 1)) for index in range(self.episodes)]
        starts = []
        with closing(self._make_env()) as env:
            for group in range(self.episodes // self.group_size):
                # A seed decides where the group begins; each member repeats that start with a seed of its own.
                _, info = env.reset(seed=episode_seed(seed, number, group, 1))
                options = info.get("start")
                if options is None:
                    raise UserError(
                        f"group_size {self.group_size} needs an environment whose info has 'start', to begin alike"
                    )
                for member in range(self.group_size):
                    starts.append(Start(episode_seed(seed, number, group, 1, 1 + member), options))
        return starts

    def _time_shares(self) -> dict[str, float]:
        """Shares of the time since the beginning."""
        total = perf_counter() - self._began
        evaluating = 0.0
        callbacks: list[Callback] = self._trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            if isinstance(callback, InteractiveEvaluation):
                evaluating += callback.seconds
        updating = total - self._seconds - evaluating
        return {
            "time/rollout": self._seconds / total,
            "time/eval": evaluating / total,
            "time/update": updating / total,
        }


def _complete(episodes: Sequence[Episode], number: int) -> list[Episode]:
    """Return the episodes of a round that no failure ended, and warn about the others.

    Raises:
        UserError: if all failed.
    """
    complete = []
    errors = []
    for episode in episodes:
        if episode.aborted:
            errors.append(str(episode.info["error"]))
        else:
            complete.append(episode)
    if not complete:
        raise UserError(f"all {len(errors)} episodes of round {number} failed; the last: {errors[-1]}")
    if errors:
        rank_zero_warn(f"round {number}: {len(errors)} of {len(episodes)} episodes failed; the last: {errors[-1]}")
    return complete
