"""Collecting the rounds of an algorithm that learns from its own play, and warning when its policy collapses."""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from time import perf_counter
from typing import Any, Protocol

import lightning as L
import numpy as np
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lmrl.callbacks.health import RoundHealth, logged_of, stop_run
from lmrl.callbacks.interactive import InteractiveEvaluation, policy_of
from lmrl.callbacks.progress import say
from lmrl.callbacks.round_workers import RoundWorkers, WeightsSnapshot
from lmrl.callbacks.rounds_ahead import PlayedRound, RoundsAhead, pack_snapshots, unpack_snapshots
from lmrl.datamodules import OnlineDataModule
from lmrl.decoding.engine import default_slots
from lmrl.decoding.sampling import check_decoding
from lmrl.errors import UserError, check_range
from lmrl.evaluation.metrics import EpisodeScores, RolloutPace
from lmrl.models.sharding import summon_full_params
from lmrl.modules import LanguageModule
from lmrl.modules.policy_gradient import PolicyGradient, RolloutCorrection
from lmrl.partners import environment
from lmrl.rollout import Piece, pieces_of, play_piece, round_seed
from lmrl.training.reporting import log_now
from lmrl.types import Episode, Policy, Start
from lmrl.utils.distributed import map_over_ranks, on_first_rank, rank_and_world_size

__all__ = ["RolloutCollection", "Sampler", "signs_of_collapse"]

# A round beyond one of these limits looks like one of a policy that has collapsed.
_MIN_ENTROPY = 0.01  # nats per token
_MAX_SHARE_OF_ONE_ACTION = 0.9
_MAX_REPEATED_TRIGRAMS = 0.5  # share of the three-token pieces within actions
_MIN_COUNT = 16  # fewer tokens, actions or pieces are not judged


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
    if len(logprobs) >= _MIN_COUNT:
        entropy = -float(np.mean(logprobs))
        if entropy < _MIN_ENTROPY:
            signs.append(f"entropy is near zero: {entropy:.4f} nats per token")
    if len(returns) > 1 and float(np.std(returns)) < 1e-6:
        signs.append(f"returns do not differ: all {len(returns)} are {returns[0]:g}")
    if actions.total() >= _MIN_COUNT:
        action, count = actions.most_common(1)[0]
        if count > _MAX_SHARE_OF_ONE_ACTION * actions.total():
            signs.append(f"{count} of {actions.total()} actions are {action!r}")
    if trigrams >= _MIN_COUNT:
        repeated = 1.0 - distinct_trigrams / trigrams
        if repeated > _MAX_REPEATED_TRIGRAMS:
            signs.append(f"{repeated:.0%} of the three-token pieces within actions are repeated")
    return signs


class Sampler(Protocol):
    """Another program that samples the actions of rounds: `lmrl.callbacks.VLLMSampler`."""

    def hand_over(self, trainer: Trainer, module: LanguageModule) -> None:
        """Give it the present weights; all processes call it together."""

    def weights(self, module: LanguageModule) -> dict[str, Tensor]:
        """A copy of the present weights for `load`; all processes call it together, and the first gets them."""

    def load(self, trainer: Trainer, module: LanguageModule, weights: dict[str, Tensor]) -> object:
        """Give it such a copy; the first process calls it."""

    def policy(self, module: LanguageModule, max_new_tokens: int) -> Policy:
        """The policy that asks it."""


class RolloutCollection(Callback):
    """Plays a round whenever the datamodule begins one, with the present weights, and logs its scores.

    Seeds follow from that of the datamodule, the number of the round and the episode. Episodes never begin at the
    starts that evaluation declares. A game or partner that fails twice ends its episode, and the round continues.

    Processes that train together share the episodes of a round, and each gets all of them: the round is that of one
    process. With `workers`, other processes of this machine play instead, or with `ray` those of a Ray cluster: they
    hold the policy, and its weights are sent once per round. They get one piece at a time; a round is, bit by bit, that
    of one process with the same `piece`, whatever the number of workers and even if workers die.

    With `max_staleness` k, playing and learning overlap: while the trainer learns from a round, workers play the next k
    ones. Each round is then played with the weights of k rounds earlier, always the same, so that a run repeats itself.
    PPO and GRPO correct for that by truncated importance weights
    (`lmrl.modules.policy_gradient.RolloutCorrection`). ``info["weights"]`` of an episode is the optimizer step of the
    weights that played it. Checkpoints hold the weights of the rounds under way.

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
        max_staleness: int = 0,
        importance_cap: float | None = 2.0,
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
                a round, with workers as many as there are slots.
            ray: a Ray cluster, ``local``, ``auto`` or ``HOST:PORT`` (`lmrl.utils.cluster.Cluster`), that plays.
            workers: how many processes play; None: with `ray` as many as it has cores (or GPUs) for, else the one that
                trains, or with `max_staleness` one other.
            max_staleness: rounds that are played ahead; 0: each round is played with the newest weights.
            importance_cap: with `max_staleness`, the largest importance weight of a token; None: losses are not
                weighed.
            stop_fallen: end a training whose returns have fallen, by the rule of `lmrl.callbacks.health.RoundHealth`.

        Raises:
            UserError: for a number out of range, and if the groups do not make up a round.
        """
        check_range("[1, inf)", episodes=episodes, slots=slots, group_size=group_size, piece=piece, workers=workers)
        check_range("[0, inf)", max_staleness=max_staleness)
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
        self.max_staleness = max_staleness
        self.stop_fallen = stop_fallen
        self.correction = RolloutCorrection(importance_cap, max_gap=None, is_stale=True)
        self._workers: RoundWorkers | None = None
        self._sampler: Sampler | None = None
        self._ahead: RoundsAhead | None = None
        self._resumed: dict[int, WeightsSnapshot] = {}
        self._rollout_seconds = 0.0
        self._health = RoundHealth()
        self._logged_before: dict[str, float] = {}

    @property
    def slots(self) -> int:
        """Environments side by side, on each process."""
        if self._slots is not None:
            return self._slots
        num_processes = 1  # with workers, the first process distributes all episodes
        if not self._has_workers:
            _, num_processes = rank_and_world_size()
        return default_slots(self._module.model, math.ceil(self.episodes / num_processes))

    def set_sampler(self, sampler: Sampler) -> None:
        """Have another program sample, in place of the policy that learns.

        Raises:
            UserError: there are settings of how that policy samples, or workers of a cluster that play.
        """
        if self.decoding or self.ray is not None or self.workers is not None:
            raise UserError("rounds that a server samples take neither decoding nor ray nor workers")
        self._sampler = sampler

    @property
    def _has_workers(self) -> bool:
        """Whether other processes hold the policy and play."""
        if self._sampler is not None:
            return False
        return self.ray is not None or self.workers is not None or self.max_staleness > 0

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
        if stage == "fit" and trainer.global_step == 0:  # the same object may have been used for another run
            self._health = RoundHealth()
            self._logged_before = {}
            self._resumed = {}
            self._rollout_seconds = 0.0
        self._trainer = trainer
        self._module = pl_module
        self._data = data
        self._make_env = environment(data.task.name, data.env)
        self._start_time = perf_counter()
        if self.max_staleness and isinstance(pl_module, PolicyGradient):
            if pl_module.correction is None:
                pl_module.set_correction(self.correction)
        elif self.max_staleness and pl_module.batch_spec().learner is not None:  # ArCHer with actor_loss pg
            raise UserError(
                f"{type(pl_module).__name__} compares with the policy that played and corrects no older ones: "
                "max_staleness must be 0"
            )
        data.register_collector(self)

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        """Count the minibatches of the round that have been learned from, for checkpoints."""
        self._data.start_minibatch()

    def collect(self, number: int) -> list[Episode]:
        """Play a round with the present weights, and log its scores; `OnlineDataModule` calls it.

        Args:
            number: number of the round, from 1.

        Raises:
            UserError: if all episodes failed.
        """
        began = perf_counter()
        say(self._trainer, f"playing round {number}")
        self._data.is_preparing = False
        pace = RolloutPace()
        overlap: dict[str, float] = {}  # metrics of playing while learning
        if self.max_staleness:
            episodes, overlap = self._take_ahead(number, pace)
        else:
            episodes = self._play_round(self._starts(self._data.seed, number), pace)
        self._data.is_preparing = True
        if self.group_size > 1:
            for index, episode in enumerate(episodes):
                episodes[index] = replace(episode, info={**episode.info, "group": index // self.group_size})
        seconds = perf_counter() - began
        self._rollout_seconds += seconds

        complete = _complete(episodes, number)
        # For a round that was played ahead, `seconds` is only the time that this process waited for it.
        playing_seconds = overlap.get("overlap/playing_s", seconds)
        metrics = self._log_round(number, complete, len(episodes), pace, playing_seconds, overlap)
        for sign in signs_of_collapse(complete):
            rank_zero_warn(f"round {number}: {sign}")
        self._judge(number, complete, metrics)
        return episodes

    def _log_round(
        self,
        number: int,
        complete: Sequence[Episode],
        num_episodes: int,
        pace: RolloutPace,
        seconds: float,
        overlap: dict[str, float],
    ) -> dict[str, float]:
        """Log the scores of a round and how fast it was played, and return these metrics.

        Args:
            number: number of the round.
            complete: the episodes that no failure ended.
            num_episodes: number of all episodes, with those that failed.
            pace: the calls, turns and tokens of this process.
            seconds: time that it took to play the round.
            overlap: metrics of playing while learning, which are logged with them.
        """
        metrics = dict(overlap)
        metrics["rollout/episodes"] = float(number * self.episodes)
        metrics["rollout/failed"] = float(num_episodes - len(complete))
        scores = EpisodeScores(sync_on_compute=False)  # each process has all episodes
        scores.update(complete)
        for name, score in scores.compute().items():
            metrics[f"rollout/{name}"] = score
        counts = pace.to(self._module.device).compute()  # over all processes
        metrics["perf/slot_utilisation"] = counts["turns"] / max(1, counts["calls"] * self.slots)
        metrics["perf/tokens_per_s"] = counts["tokens"] / seconds
        metrics["perf/turns_per_s"] = counts["turns"] / seconds
        metrics["perf/episodes_per_s"] = num_episodes / seconds
        log_now(self._trainer, metrics | self._time_shares())
        return metrics

    def _judge(self, number: int, complete: Sequence[Episode], metrics: dict[str, float]) -> None:
        """Log the group ``health/``, and stop a run that has fallen."""
        health = {
            "health/return": metrics["rollout/return_mean"],
            "health/success": metrics.get("rollout/success_rate", float("nan")),
            **self._health_metrics(),
        }
        log_now(self._trainer, health)
        fallen = self._health.add(number, complete)
        if fallen is not None and self.stop_fallen:
            stop_run(self._trainer, fallen, health)

    def _health_metrics(self) -> dict[str, float]:
        """The newest values that the group ``health/`` repeats, also from before a resume.

        A checkpoint of the last step of a round is written before the means of the round are logged.
        """
        newest = self._trainer.callback_metrics | self._module.reporter.means_so_far()
        logged = logged_of(self._module.name, newest)
        if "health/noise_scale" in logged:
            # It is logged in segments, of which an episode may have one per turn.
            episodes = len(self._data.played.outcomes())
            logged["health/noise_scale"] *= episodes / max(1, len(self._data.played))
        return self._logged_before | logged

    @property
    def state_key(self) -> str:
        """The same for subclasses, so that a run can be resumed with another one."""
        return "RolloutCollection"

    def state_dict(self) -> dict[str, Any]:
        """The returns of the last rounds, see `RoundHealth`, and the weights of rounds that are under way."""
        state = self._health.state_dict()
        state["logged"] = self._health_metrics()
        if self.max_staleness:
            # A resumed run may be saved again before it has begun the rounds that were under way.
            under_way = self._resumed if self._ahead is None else self._ahead.weights
            state["ahead"] = pack_snapshots(under_way, self._data.round)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume with the returns of the last rounds, and the weights of rounds that were under way."""
        if state_dict:  # checkpoints of earlier versions have none
            self._health.load_state_dict(state_dict)
            self._logged_before = dict(state_dict.get("logged", {}))
            ahead = state_dict.get("ahead")
            self._resumed = unpack_snapshots(ahead) if ahead else {}

    # -- rounds that are played now -----------------------------------------------------------------------------

    def _play_round(self, starts: Sequence[Start], pace: RolloutPace) -> list[Episode]:
        """Return the episodes of all starts, on all processes; the calls of this process are added to the pace."""
        if self._has_workers:
            # The first process has the workers.
            played = on_first_rank(lambda: self._play_with_workers(starts))
            rank, _ = rank_and_world_size()
            return _episodes(played, pace if rank == 0 else None)
        if self._sampler is None:
            with summon_full_params(self._module, but=self._module.unused_in_rollouts):
                return self._play_in_this_process(policy_of(self._module, self._settings()), starts, pace)
        self._sampler.hand_over(self._trainer, self._module)
        policy = self._sampler.policy(self._module, self._data.task.max_action_tokens)
        return self._play_in_this_process(policy, starts, pace)

    def _play_in_this_process(self, policy: Policy, starts: Sequence[Start], pace: RolloutPace) -> list[Episode]:
        """Play the share of this process, and return the episodes of all processes."""

        def play_as_one_piece(piece: Sequence[Start]) -> list[Episode]:
            return _episodes([self._play_piece(policy, piece)], pace)

        def play_each_piece(pieces: Sequence[Sequence[Start]]) -> list[list[Episode]]:
            return [play_as_one_piece(piece) for piece in pieces]

        if self.piece is None:  # the share of a process is one piece
            return map_over_ranks(starts, play_as_one_piece)
        by_piece = map_over_ranks(pieces_of(starts, self.piece), play_each_piece)
        return list(chain.from_iterable(by_piece))

    def _play_piece(self, policy: Policy, starts: Sequence[Start]) -> Piece:
        return play_piece(policy, self._make_env, starts, self._data.task.name, self.slots)

    def _pieces(self, starts: Sequence[Start]) -> list[Sequence[Start]]:
        return pieces_of(starts, self.slots if self.piece is None else self.piece)

    def _play_with_workers(self, starts: Sequence[Start]) -> list[Piece]:
        workers = self._round_workers()
        return workers.play(self._pieces(starts), workers.weights(self._trainer.global_step))

    def _settings(self) -> dict[str, Any]:
        """Return the settings of the policy that plays."""
        return {"max_new_tokens": self._data.task.max_action_tokens, "slots": self.slots, **self.decoding}

    def _round_workers(self) -> RoundWorkers:
        """The processes that play, which are started for the first round."""
        if self._workers is None:
            self._workers = RoundWorkers(
                address=self.ray,
                count=self.workers,
                module=self._module,
                task=self._data.task.name,
                env=self._data.env or {},
                slots=self.slots,
                decoding=self._settings(),
            )
        return self._workers

    # -- rounds that are played ahead ---------------------------------------------------------------------------

    def _take_ahead(self, number: int, pace: RolloutPace) -> tuple[list[Episode], dict[str, float]]:
        """Begin the rounds up to `max_staleness` after this one, and return the episodes of this one, with metrics."""
        asked = perf_counter()
        weights = None if self._sampler is None else self._sampler.weights(self._module)
        rank, _ = rank_and_world_size()

        def take() -> tuple[int, PlayedRound]:
            ready = self._begin_ahead(number, weights)
            assert self._ahead is not None
            return ready, self._ahead.take(number)

        # Only the first process has rounds under way; it gives all others the episodes.
        ready, played = on_first_rank(take)
        episodes = _episodes(played.pieces, pace if rank == 0 else None)
        for index, episode in enumerate(episodes):
            episodes[index] = replace(episode, info={**episode.info, "weights": played.step})
        return episodes, {
            "overlap/stale_steps": float(self._trainer.global_step - played.step),
            "overlap/rounds_ready": float(ready),
            "overlap/playing_s": played.seconds,
            "overlap/players_idle_s": played.idle,
            "overlap/learner_idle_s": perf_counter() - asked,
        }

    def _begin_ahead(self, number: int, sampler_weights: dict[str, Tensor] | None) -> int:
        """Begin the rounds up to `max_staleness` after that of a number; return how many have been played by now."""
        if self._ahead is None:
            self._ahead = RoundsAhead(self._play_ahead)
        self._ahead.forget(number)
        step = self._trainer.global_step
        if sampler_weights is None:
            weights = self._round_workers().weights(step)
        else:
            weights = WeightsSnapshot(step, sampler_weights)
        for later in range(number, number + self.max_staleness + 1):
            if later not in self._ahead:
                # A resumed run plays the rounds that were under way with the weights that they began with.
                self._ahead.begin(later, self._resumed.pop(later, weights))
        return self._ahead.ready()

    def _play_ahead(self, number: int, weights: WeightsSnapshot) -> list[Piece]:
        """Play a round with the given weights; called in a thread of the first process."""
        pieces = self._pieces(self._starts(self._data.seed, number))
        if self._sampler is None:
            return self._round_workers().play(pieces, weights)
        self._sampler.load(self._trainer, self._module, weights.tensors)
        policy = self._sampler.policy(self._module, self._data.task.max_action_tokens)
        return [self._play_piece(policy, piece) for piece in pieces]

    # -- the rest -----------------------------------------------------------------------------------------------

    def teardown(self, trainer: Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """End the workers, and what they play ahead. The module may be trained again with rounds of another kind."""
        if isinstance(pl_module, PolicyGradient):
            pl_module.set_correction(None)
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def on_exception(self, trainer: Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """End the workers. Another callback may save the run after this, with the rounds that were under way."""
        if self._ahead is not None:
            self._resumed = dict(self._ahead.weights)
        self.teardown(trainer, pl_module, "fit")

    def _starts(self, seed: int, number: int) -> list[Start]:
        """Return the starts of the episodes of a round, group by group.

        Raises:
            UserError: an environment of which several episodes are to begin alike does not say how one began.
        """
        if self.group_size == 1:
            return [Start(round_seed(seed, number, index)) for index in range(self.episodes)]
        starts = []
        with closing(self._make_env()) as env:
            for group in range(self.episodes // self.group_size):
                # A seed decides where the group begins; each member repeats that start with a seed of its own.
                _, info = env.reset(seed=round_seed(seed, number, group))
                options = info.get("start")
                if options is None:
                    raise UserError(
                        f"group_size {self.group_size} needs an environment whose info has 'start', to begin alike"
                    )
                for member in range(self.group_size):
                    starts.append(Start(round_seed(seed, number, group, member), options))
        return starts

    def _time_shares(self) -> dict[str, float]:
        """Shares of the time since the beginning."""
        total = perf_counter() - self._start_time
        evaluating = 0.0
        callbacks: list[Callback] = self._trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            if isinstance(callback, InteractiveEvaluation):
                evaluating += callback.seconds
        updating = total - self._rollout_seconds - evaluating
        return {
            "time/rollout": self._rollout_seconds / total,
            "time/eval": evaluating / total,
            "time/update": updating / total,
        }


def _episodes(pieces: Sequence[Piece], pace: RolloutPace | None) -> list[Episode]:
    """Return the episodes of pieces; their calls are added to the pace."""
    episodes: list[Episode] = []
    for piece in pieces:
        if pace is not None:
            pace.update(piece.turns, piece.tokens, piece.calls)
        episodes += piece.episodes
    return episodes


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
