"""Playing rounds to learn from, and warning when a policy has collapsed."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol

import lightning as L
import numpy as np
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lmrl.callbacks.interactive import InteractiveEvaluation, policy_of
from lmrl.callbacks.progress import say
from lmrl.callbacks.round_workers import RoundWorkers, pieces_of, play_piece
from lmrl.datamodules import OnlineDataModule
from lmrl.decoding.sampling import check_decoding
from lmrl.errors import UserError, check_range
from lmrl.evaluation.metrics import EpisodeScores, RolloutPace
from lmrl.modules import LanguageModule
from lmrl.partners import environment
from lmrl.rollout import episode_seed
from lmrl.training.reporting import log_now
from lmrl.training.sharding import summon_full_params
from lmrl.types import Episode, Policy, Start
from lmrl.utils.distributed import map_over_ranks

__all__ = ["RolloutCollection", "Sampler", "signs_of_collapse"]

_ENTROPY = 0.01  # nats per token
_SHARE = 0.9  # of all actions
_REPEATED = 0.5  # of the three-token pieces within actions
_FEW = 16  # fewer actions or pieces than this say nothing


def signs_of_collapse(episodes: Sequence[Episode]) -> list[str]:
    """Return warnings about a round of rollouts; an empty list if nothing looks wrong.

    Looks at the mean negative log-probability of what was sampled (an estimate of the entropy), at the spread of the
    returns, and at text that repeats itself, from action to action and within one.
    """
    logprobs = [p for e in episodes for turn in e.action_logprobs for p in turn]
    actions = Counter(action for e in episodes for action in e.actions)
    pieces = [tuple(ids[i : i + 3]) for e in episodes for ids in e.action_ids for i in range(len(ids) - 2)]
    fresh = sum(len({ids[i : i + 3] for i in range(len(ids) - 2)}) for e in episodes for ids in e.action_ids)
    returns = [e.total_reward for e in episodes]
    found = []
    if len(logprobs) >= _FEW and -float(np.mean(logprobs)) < _ENTROPY:
        found.append(f"entropy is near zero: {-float(np.mean(logprobs)):.4f} nats per token")
    if len(returns) > 1 and float(np.std(returns)) < 1e-6:
        found.append(f"returns do not differ: all {len(returns)} are {returns[0]:g}")
    if actions.total() >= _FEW:
        action, count = actions.most_common(1)[0]
        if count > _SHARE * actions.total():
            found.append(f"{count} of {actions.total()} actions are {action!r}")
    if len(pieces) >= _FEW and 1.0 - fresh / len(pieces) > _REPEATED:
        found.append(f"{1.0 - fresh / len(pieces):.0%} of the three-token pieces within actions are repeated")
    return found


class Sampler(Protocol):
    """Another program that samples the actions of rounds: `lmrl.callbacks.VLLMSampler`."""

    def hand_over(self, trainer: Trainer, module: LanguageModule) -> None:
        """Give it the weights of now; all processes call it together."""

    def policy(self, module: LanguageModule, max_new_tokens: int) -> Policy:
        """The player that asks it."""


class RolloutCollection(Callback):
    """Plays a round whenever the datamodule begins one, with the weights of that moment, and logs how it went.

    Seeds follow from that of the datamodule, the number of the round and the episode, and episodes begin where their
    seeds have them begin, never at the starts that evaluation declares. A game or partner that fails twice ends
    its episode, as `lmrl.rollout` has it; the round goes on.

    Processes that train together share the episodes of a round, and each gets all of them: the round is that of one
    process. With `ray`, processes of a Ray cluster play in its place: they hold the policy and are sent its weights
    once in a round. What they are given at a time is a piece; a round is, bit by bit, that of one process with the same
    `piece`, whatever the number of workers and whichever of them die.

    The episodes of a group begin alike, with the same word or on the same square, and each has a seed of its own for
    what happens then: what is sampled, how an opponent moves, what a partner says. ``info["group"]`` numbers the
    groups of a round.
    """

    def __init__(
        self,
        episodes: int = 64,
        slots: int = 32,
        decoding: dict[str, Any] | None = None,
        group_size: int = 1,
        piece: int | None = None,
        ray: str | None = None,
        workers: int | None = None,
    ) -> None:
        """Choose how a round is played.

        Args:
            episodes: per round, on all processes together.
            slots: environments side by side, on each process.
            decoding: settings of the policy (``temperature``, ``beta``, ``compile``...) other than the module's own;
                PPO, which learns from what it samples, may have ``compile`` only.
            group_size: episodes that begin alike, for algorithms that compare them (GRPO).
            piece: number of episodes that are played before the policy forgets what it has read; None: all of
                a round, with `ray` as many as there are slots.
            ray: a Ray cluster, ``local``, ``auto`` or ``HOST:PORT`` (`lmrl.utils.cluster.Cluster`), that plays.
            workers: how many of its processes; None: as many as it has cores (or GPUs) for.

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
        self.slots = slots
        self.group_size = group_size
        self.decoding = dict(decoding or {})
        self.piece = slots if piece is None and ray is not None else piece
        self.ray = ray
        self.workers = workers
        self._workers: RoundWorkers | None = None
        self._sampler: Sampler | None = None
        self._seconds = 0.0

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
        if pl_module.batch_spec().post_rollout is not None and self.decoding.keys() - {"compile"}:
            raise UserError(
                f"{type(pl_module).__name__} samples at temperature 1: decoding must hold nothing but compile, got "
                f"{', '.join(self.decoding)}"
            )
        self._make_env = environment(data.task.name, data.hparams["env"])
        self._began = perf_counter()

        def collect(number: int) -> list[Episode]:
            return self._collect(trainer, pl_module, data, number)

        data.set_rollout_source(collect)

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        """Count the minibatches of the round that have been learned from, for checkpoints."""
        trainer.datamodule.consumed += 1  # type: ignore[attr-defined]

    def _collect(self, trainer: Trainer, module: LanguageModule, data: OnlineDataModule, number: int) -> list[Episode]:
        began = perf_counter()
        say(trainer, f"playing round {number}")
        starts = self._starts(data.seed, number)
        pace = RolloutPace()
        if self._sampler is not None:
            self._sampler.hand_over(trainer, module)
        own = self._sampler is None
        whole = summon_full_params(module, but=module.unused_in_rollouts) if own else nullcontext()
        with whole, trainer.precision_plugin.forward_context():
            played = list(self._played(trainer, module, data, number, starts, pace))
        if self.group_size > 1:
            played = [
                replace(episode, info={**episode.info, "group": index // self.group_size})
                for index, episode in enumerate(played)
            ]
        seconds = perf_counter() - began
        self._seconds += seconds
        _check_failures(played, number)
        log_now(
            trainer,
            _scores(played)
            | {"rollout/episodes": float(number * self.episodes)}
            | _per_second(pace.to(module.device), len(played), self.slots, seconds)
            | self._shares(trainer),
        )
        for sign in signs_of_collapse([episode for episode in played if not episode.aborted]):
            rank_zero_warn(f"round {number}: {sign}")
        return played

    def _played(
        self,
        trainer: Trainer,
        module: LanguageModule,
        data: OnlineDataModule,
        number: int,
        starts: Sequence[Start],
        pace: RolloutPace,
    ) -> list[Episode]:
        """The episodes of all starts on all ranks; what this one has played is added to the pace."""
        settings = {"max_new_tokens": data.task.max_action_tokens, "slots": self.slots, **self.decoding}
        policy = self._policy(module, settings)

        def play(mine: Sequence[Sequence[Start]]) -> list[list[Episode]]:
            if policy is None:
                found = self._round_workers(trainer, module, data, settings).play(mine, number) if mine else []
            else:
                found = [play_piece(policy, self._make_env, piece, data.task.name, self.slots) for piece in mine]
            for piece in found:
                pace.update(piece.turns, piece.tokens, piece.calls)
            return [piece.episodes for piece in found]

        if self.piece is None:
            return map_over_ranks(starts, lambda mine: play([mine])[0])
        pieces = pieces_of(starts, self.piece)
        if policy is None:  # the first process has the workers
            (found,) = map_over_ranks([pieces], lambda mine: [play(mine[0])] if mine else [])
        else:
            found = map_over_ranks(pieces, play)
        return [episode for episodes in found for episode in episodes]

    def _policy(self, module: LanguageModule, settings: dict[str, Any]) -> Policy | None:
        """Return the policy that plays the rollout, or None if workers of a cluster play it."""
        if self._sampler is not None:
            return self._sampler.policy(module, settings["max_new_tokens"])
        return policy_of(module, settings) if self.ray is None else None

    def _round_workers(
        self, trainer: Trainer, module: LanguageModule, data: OnlineDataModule, settings: dict[str, Any]
    ) -> RoundWorkers:
        if self._workers is None:
            assert self.ray is not None
            of_task = (data.task.name, data.hparams["env"] or {})
            self._workers = RoundWorkers(self.ray, self.workers, module, trainer, *of_task, self.slots, settings)
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
        # The last word keeps the keys apart from those of evaluation: trailing zeros would not count.
        seeds = [episode_seed(seed, number, index, 1) for index in range(self.episodes // self.group_size)]
        if self.group_size == 1:
            return [Start(first) for first in seeds]
        with closing(self._make_env()) as env:
            begun = [env.reset(seed=first)[1].get("start") for first in seeds]
        if None in begun:
            raise UserError(f"group_size {self.group_size} needs an environment whose info has 'start', to begin alike")
        return [
            Start(episode_seed(seed, number, index, 1, 1 + member), options)
            for index, options in enumerate(begun)
            for member in range(self.group_size)
        ]

    def _shares(self, trainer: Trainer) -> dict[str, float]:
        """Shares of the time since the beginning."""
        whole = perf_counter() - self._began
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        played = sum(callback.seconds for callback in callbacks if isinstance(callback, InteractiveEvaluation))
        shares = {"rollout": self._seconds / whole, "eval": played / whole}
        return {f"time/{name}": share for name, share in {**shares, "update": 1.0 - sum(shares.values())}.items()}


def _per_second(pace: RolloutPace, episodes: int, slots: int, seconds: float) -> dict[str, float]:
    """Return the rate over all processes together."""
    counts = pace.compute()
    return {
        "perf/slot_utilisation": counts["turns"] / max(1, counts["calls"] * slots),
        "perf/tokens_per_s": counts["tokens"] / seconds,
        "perf/turns_per_s": counts["turns"] / seconds,
        "perf/episodes_per_s": episodes / seconds,
    }


def _scores(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the scores of the episodes of a round that no failure ended, and the number of the others.

    Each process has all episodes.
    """
    complete = [episode for episode in episodes if not episode.aborted]
    metric = EpisodeScores(sync_on_compute=False)
    metric.update(complete)
    found = {f"rollout/{name}": number for name, number in metric.compute().items()}
    return {**found, "rollout/failed": float(len(episodes) - len(complete))}


def _check_failures(episodes: Sequence[Episode], number: int) -> None:
    """Say what failed.

    Raises:
        UserError: if everything did.
    """
    errors = [str(episode.info["error"]) for episode in episodes if episode.aborted]
    if len(errors) == len(episodes):
        raise UserError(f"all {len(errors)} episodes of round {number} failed; the last: {errors[-1]}")
    if errors:
        rank_zero_warn(f"round {number}: {len(errors)} of {len(episodes)} episodes failed; the last: {errors[-1]}")
