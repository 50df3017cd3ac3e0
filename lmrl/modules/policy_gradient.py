"""A round of on-policy learning, from the sampled episodes to the batches of the loss.

`PolicyGradient.prepare_rollout` is the round, step by step. `RolloutEpisode` holds the arrays of one episode of it.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from lmrl.datamodules.online import online_datamodule
from lmrl.datamodules.spec import BatchSpec
from lmrl.errors import UserError, check_choice, check_range
from lmrl.losses import (
    LOSS_AGG_MODES,
    KLController,
    Scores,
    bc_loss,
    beyond_clip,
    importance_weights,
    k3,
    token_logprobs,
)
from lmrl.models.lm import logits_of, trunk_of
from lmrl.models.lora import adapter_weights, changes_nothing
from lmrl.modules.base import LanguageModule
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.segments import Segment, split_by_length
from lmrl.training.flops import StepCost, playing_cost, total_cost
from lmrl.training.reporting import RoundReporter, log_now
from lmrl.types import Episode
from lmrl.utils.distributed import all_gather_objects, rank_and_world_size

__all__ = ["PolicyGradient", "RolloutCorrection", "RolloutEpisode", "Vector", "rollout_episode"]

# Where the KL to the reference model is only logged, the model scores about 32 episodes of a round, and at least every
# eighth one.
_KL_EPISODES = 32
_KL_STRIDE = 8
_MAX_RATIO = 1e6  # limit of importance weights before they are capped, so that nothing overflows

T = TypeVar("T")
Vector: TypeAlias = NDArray[np.float64]


@dataclass(slots=True)
class RolloutEpisode:
    """An episode of a round, with arrays over its T action tokens."""

    episode: Episode
    segments: list[Segment]
    logprob: Vector
    """(T,) log-probability of each token when it was sampled, or when the round was read again."""
    ref_logprob: Vector
    """(T,) log-probability of each token under the reference model; `logprob` in episodes that it did not score."""
    reward: Vector
    """(T,) reward of each token; that of a turn sits on its last one."""
    turn_lengths: NDArray[np.int64]
    """(turns,) number of tokens of each action."""
    columns: dict[str, Vector] = field(default_factory=dict)
    """The columns that the loss reads, (T,) each, by name."""

    @property
    def num_tokens(self) -> int:
        """The number of action tokens, T."""
        return len(self.reward)

    @property
    def turn_starts(self) -> NDArray[np.int64]:
        """(turns,) index of the first token of each action."""
        return np.cumsum(self.turn_lengths) - self.turn_lengths

    def trained_segments(self) -> list[Segment]:
        """Return the segments with `columns`, as batches are made from them."""
        return with_columns(self.segments, self.columns)


def rollout_episode(episode: Episode, segments: list[Segment], ref_logprob: Vector) -> RolloutEpisode:
    """Return the record of an episode of a round.

    Args:
        episode: the episode, with what was sampled.
        segments: its segments.
        ref_logprob: (T,) log-probability of each action token under the reference model.

    Raises:
        UserError: if the episode does not hold the log-probabilities of exactly the tokens in the segments.
    """
    logprob = values_per_token(episode, "action_logprobs", segments)
    reward = np.concatenate([segment.reward for segment in segments])
    last_tokens = np.concatenate([segment.turn_end for segment in segments]).nonzero()[0]
    turn_lengths = np.diff(last_tokens, prepend=-1)
    return RolloutEpisode(episode, segments, logprob, ref_logprob, reward, turn_lengths)


@dataclass(frozen=True, slots=True)
class RolloutCorrection:
    """Settings for rounds that another program, or older weights, have sampled; see `PolicyGradient`.

    Raises:
        UserError: a number that is not positive.
    """

    importance_cap: float | None = None
    """Upper limit of `lmrl.losses.importance_weights`, which weigh the losses; None: losses are not weighed."""
    max_gap: float | None = 0.1
    """Refuse a round with a larger mean gap of log-probabilities, in nats per token; None: refuse no round."""
    is_stale: bool = False
    """Whether older weights may have sampled, on purpose."""

    def __post_init__(self) -> None:
        check_range("(0, inf)", importance_cap=self.importance_cap, max_gap=self.max_gap)


class PolicyGradient(LanguageModule):
    """On-policy learning with a clipped importance ratio between the current policy and the one that sampled.

    A subclass computes the columns that the loss reads about each action token of a round (`process`), and the loss
    (`losses`). The policy reads some rounds again (`rescores_rollouts`), to compute its own log-probabilities, and some
    losses have importance weights. Both depend on what has sampled the round:

    | sampled by | read again | importance weights |
    |---|---|---|
    | this policy; steps compute in the precision of the weights | no | none |
    | this policy; steps compute in mixed precision | yes | none |
    | another program, with the current weights | yes | column ``importance``, if a cap is set |
    | older weights; a cap is set, each token is used once, no shared critic | no | in each step |
    | older weights, otherwise | yes | column ``importance``, if a cap is set; 0 beyond the clip range |

    Steps that compute the weights themselves use `lmrl.losses.truncated_policy_loss` with `step_importance_cap`.
    """

    starts_from_bc = True
    unused_in_rollouts: tuple[str, ...] = ("ref_model",)
    always_eval: tuple[str, ...] = ("ref_model",)
    #: Whether ratios of new to old probabilities are those of whole actions.
    by_turn = False
    #: Whether V is a head on the policy's trunk. Its values for a round must then come from the current policy, so
    #: stale rounds are read again.
    is_critic_shared = False
    #: Rounds before the policy learns, which are prepared and then dropped.
    warmup_rounds = 0
    #: How to correct for rounds that another program or older weights have sampled; None: this policy samples them.
    correction: RolloutCorrection | None = None
    #: Whether the KL penalty is part of the rewards, instead of the loss.
    use_kl_in_reward = True
    reporter: RoundReporter
    ref_model: nn.Module
    invalid: Tensor
    kl_weight: Tensor

    def __init__(
        self,
        clip: float = 0.2,
        clip_high: float | None = None,
        entropy_weight: float = 0.0,
        kl_weight: float = 0.001,
        kl_target: float | None = None,
        kl_horizon: float | None = None,
        bc_weight: float = 0.0,
        loss_agg_mode: str | None = None,
        **shared: Any,
    ) -> None:
        """Build the policy, which the algorithm starts from.

        Args:
            clip: clipping range epsilon: ratios are clipped to [1 - clip, 1 + clip_high].
            clip_high: upper clipping range; None: equal to `clip`.
            entropy_weight: weight of an entropy bonus; 0 as published.
            kl_weight: KL penalty coefficient, per action token.
            kl_target: KL per action token towards which the coefficient is moved after each round; None keeps it.
            kl_horizon: number of episodes over which the coefficient rises by at most 22 % or falls by at most 20 %;
                goes with `kl_target`.
            bc_weight: weight of the BC loss on recorded episodes; needs ``data.init_args.offline``.
            loss_agg_mode: how the losses of tokens are averaged, see `lmrl.losses.loss_weights`; None: ``token-mean``,
                or ``turn-mean`` where ratios are those of whole actions: a mean over tokens would count an action once
                for each of its tokens.
            **shared: arguments of `LanguageModule`.

        Raises:
            UserError: only one of `kl_target` and `kl_horizon`, or a target without a `kl_weight`; a number outside of
                its range; adapters with dropout; and as `LanguageModule`.
        """
        lora = shared.get("lora") or {}
        if lora.get("lora_dropout"):
            raise UserError(
                f"{type(self).__name__} needs lora.lora_dropout 0, got {lora['lora_dropout']}: rounds are played "
                "without dropout, and its ratios compare updates with them"
            )
        check_range("[0, inf)", clip=clip, clip_high=clip_high)
        check_range("[0, inf)", kl_weight=kl_weight, entropy_weight=entropy_weight, bc_weight=bc_weight)
        if loss_agg_mode is not None:
            check_choice(LOSS_AGG_MODES, loss_agg_mode=loss_agg_mode)
        super().__init__(**shared)
        self.loss_arguments: dict[str, Any] = {"clip": clip, "clip_high": clip_high, "entropy_weight": entropy_weight}
        self.bc_weight = bc_weight
        self._loss_agg_mode = loss_agg_mode
        self.kl_controller = KLController(kl_target, kl_horizon)
        if kl_target is not None and kl_weight == 0.0:
            raise UserError("kl_target multiplies kl_weight, which must not be 0 then")
        self.reporter = RoundReporter(self.name)
        # A buffer, so that checkpoints hold the coefficient that the controller has reached.
        self.register_buffer("kl_weight", torch.tensor(kl_weight, dtype=torch.float64))
        #: Whether there is a KL penalty; otherwise the KL to the reference model is only logged.
        self.has_kl_penalty = kl_weight > 0.0
        self.register_buffer("invalid", self.invalid_token_ids(), persistent=False)

    @property
    def loss_agg_mode(self) -> str:
        """How the losses of the tokens are averaged, one of `lmrl.losses.LOSS_AGG_MODES`."""
        default = "turn-mean" if self.by_turn else "token-mean"
        return default if self._loss_agg_mode is None else self._loss_agg_mode

    # -- what an algorithm computes -----------------------------------------------------------------------------

    @abstractmethod
    def process(self, rollout: Sequence[RolloutEpisode]) -> dict[str, float]:
        """Set `RolloutEpisode.columns`, which the loss reads, for each episode of a round.

        Returns:
            Numbers to log, by name.
        """

    @abstractmethod
    def logits(self, batch: TokenBatch) -> Scores:
        """(S, vocabulary) logits of the policy."""

    # -- a round ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare_rollout(self, episodes: Sequence[Episode], segments: Sequence[list[Segment]]) -> list[list[Segment]]:
        """Attach the columns that the loss reads to each action token, and update the KL penalty coefficient.

        The datamodule has collected the episodes; it cuts the result into minibatches.

        Args:
            episodes: the episodes of the round, with what was sampled.
            segments: the segments of each episode.

        Raises:
            UserError: if the episodes do not hold what was noted about exactly the tokens in the segments.
        """
        # 1. Where this policy reads the round again, replace the log-probabilities of the sampler by its own.
        sampler_ratio = None
        if self.rescores_rollouts:
            scores = self._own_scores(segments)
            if self.correction is not None:
                sampler_ratio = self._compare_with_sampler(self.correction, episodes, segments, scores)
            episodes = [_rescored(episode, score) for episode, score in zip(episodes, scores, strict=True)]

        # 2. Score the tokens with the reference model. Where its KL is only logged, it scores a sample of the episodes.
        #    The others keep their own log-probabilities in place of the reference's.
        rollout = []
        for episode, parts in zip(episodes, segments, strict=True):
            own_logprob = values_per_token(episode, "action_logprobs", parts)
            rollout.append(rollout_episode(episode, parts, ref_logprob=own_logprob))
        scored = rollout[:: self._ref_stride(len(rollout))]
        ref_logprobs = self._ref_logprobs([scored_episode.segments for scored_episode in scored])
        for scored_episode, ref_logprob in zip(scored, ref_logprobs, strict=True):
            scored_episode.ref_logprob = ref_logprob

        # 3. Compute advantages and the other columns of the loss.
        metrics = self.process(rollout)
        if sampler_ratio is not None:
            set_column(rollout, "importance", self._importance(sampler_ratio, rollout))

        # 4. Update the coefficient from the mean KL of the scored episodes (all, if there is a penalty). KL in the
        #    rewards used the old coefficient, so log that one. A KL loss will use the new one.
        round_logprob = joined(scored_episode.logprob for scored_episode in scored)
        round_ref_logprob = joined(scored_episode.ref_logprob for scored_episode in scored)
        kl = k3(round_ref_logprob - round_logprob)
        kl_mean = float(kl.mean()) if len(kl) else 0.0
        kl_weight = float(self.kl_weight)
        if not self._is_warming_up():
            self.kl_weight.fill_(self.kl_controller.updated(kl_weight, kl_mean, len(rollout)))
        if not self.use_kl_in_reward:
            kl_weight = float(self.kl_weight)

        metrics = {"kl": kl_mean, "kl_weight": kl_weight, **metrics}
        log_now(self.trainer, {f"{self.name}/{name}": value for name, value in metrics.items()})
        return [episode.trained_segments() for episode in rollout]

    def _is_warming_up(self) -> bool:
        """Return whether nothing is learned from the round that is being prepared."""
        if self.warmup_rounds == 0:
            return False
        rounds_before = online_datamodule(self.trainer, self.name).round
        return rounds_before < self.warmup_rounds

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """See `LanguageModule.training_step`; the loss of a BC batch is added, divided by its own expectation."""
        if isinstance(batch, TokenBatch):
            return super().training_step(batch, batch_idx)
        recorded = batch["bc"]
        imitation: Tensor = bc_loss(self.logits(recorded), recorded.state, recorded.token).loss
        self.reporter.train_recorded(imitation, recorded)
        clipped = super().training_step(batch["round"], batch_idx)
        loss: Tensor = clipped + self.bc_weight * imitation * recorded.scale
        return loss

    def reading_cost(self) -> StepCost:
        """Return what it costs the policy, or its reference model, to read a round once."""
        return playing_cost(self.model)

    def round_cost(self) -> StepCost:
        """The policy plays, and the reference model scores; some rounds are scored by the policy, too.

        A reference of which the KL is only logged reads few episodes, and is left out.
        """
        reading = self.reading_cost()
        costs = [reading]
        if self.has_kl_penalty:
            costs.append(reading)
        if self.rescores_rollouts:
            costs.append(reading)
        return total_cost(*costs)

    @property
    def rescores_rollouts(self) -> bool:
        """Whether this policy computes the log-probabilities of a round again, in place of those of the sampler.

        It does so if another program or older weights sample the rounds, unless each step corrects for that
        (`step_importance_cap`). It also does so if steps compute in another precision than play, or the first ratios
        would not be 1.
        """
        if self.correction is not None:
            return self.step_importance_cap is None
        return self._trains_in_mixed_precision()

    def _trains_in_mixed_precision(self) -> bool:
        """Return whether steps compute in mixed precision. Play uses the precision of the weights."""
        return self._trainer is not None and isinstance(self.trainer.precision_plugin, MixedPrecision)

    # -- log-probabilities of a round's tokens ------------------------------------------------------------------

    def _ref_logprobs(self, segments: Sequence[list[Segment]]) -> list[Vector]:
        """(T,) per episode: the log-probability of each action token under the reference model."""

        def logprobs(batch: TokenBatch) -> Tensor:
            return token_logprobs(self.ref_logits(batch), batch.state, batch.token, self.invalid).logprob

        with self.trainer.precision_plugin.forward_context():
            return self._read_tokens(segments, logprobs)

    def _ref_stride(self, episodes: int) -> int:
        """Return n: the reference model scores every n-th episode, only a sample if its KL is merely logged."""
        if self.has_kl_penalty:
            return 1
        return min(_KL_STRIDE, max(1, episodes // _KL_EPISODES))

    def ref_logits(self, batch: TokenBatch) -> Scores:
        """(S, vocabulary) logits of the reference model."""
        assert isinstance(self.ref_model, PreTrainedModel)
        return logits_of(self.ref_model, self.hidden_states(trunk_of(self.ref_model), batch))

    def action_scores(self, batch: TokenBatch) -> Tensor:
        """(N, 1) log-probabilities of the action tokens, as the policy samples them; (N, 2) with V of their states."""
        return token_logprobs(self.logits(batch), batch.state, batch.token, self.invalid).logprob[:, None]

    def set_correction(self, correction: RolloutCorrection | None) -> None:
        """Announce that another program or older weights sample the rounds; None: this policy does."""
        self.correction = correction

    @property
    def step_importance_cap(self) -> float | None:
        """The cap of the importance weights that each step computes with the present policy; None: no step does.

        Where each token is learned from once, the policy before the round does not matter, and it need not read the
        round again. See `lmrl.losses.truncated_policy_loss`.
        """
        if self.correction is None or not self.correction.is_stale or self.is_critic_shared:
            return None
        settings = online_datamodule(self.trainer, self.name).hparams
        is_learned_from_once = settings["epochs"] == 1 and settings["batches"] is None
        return self.correction.importance_cap if is_learned_from_once else None

    def _compare_with_sampler(
        self,
        correction: RolloutCorrection,
        episodes: Sequence[Episode],
        segments: Sequence[list[Segment]],
        scores: Sequence[Vector],
    ) -> Vector | None:
        """Log the gap to the sampler, and raise if it is too large.

        Args:
            correction: settings, of which a cap asks for ratios.
            episodes: the episodes of the round, with the log-probabilities of the sampler ``mu``.
            segments: the segments of each episode.
            scores: `action_scores` of each episode, by this policy ``pi``.

        Returns:
            (N,) ratios ``pi / mu`` of tokens or, if `by_turn`, of whole actions; None without a cap.

        Raises:
            UserError: see `values_per_token`; or the log-probabilities differ too much.
        """
        sampler_logprobs = []
        for episode, parts in zip(episodes, segments, strict=True):
            sampler_logprobs.append(values_per_token(episode, "action_logprobs", parts))
        logprob = joined(score[:, 0] for score in scores)
        sampler_logprob = joined(sampler_logprobs)
        metrics = _logprob_gaps(logprob, sampler_logprob, correction.max_gap)

        ratio = None
        if correction.importance_cap is not None:
            lengths = None
            if self.by_turn:
                lengths = [len(ids) for episode in episodes for ids in episode.action_ids]
            ratio = importance_weights(logprob, sampler_logprob, _MAX_RATIO, lengths)
            capped = np.minimum(ratio, correction.importance_cap)
            metrics["importance_mean"] = float(capped.mean()) if len(capped) else 1.0
        log_now(self.trainer, {f"rollout/{name}": value for name, value in metrics.items()})
        return ratio

    def _own_scores(self, segments: Sequence[list[Segment]]) -> list[Vector]:
        """`action_scores` per episode, computed as in the steps that learn from them."""
        with self.trainer.precision_plugin.forward_context():
            return self._read_tokens(segments, self.action_scores)

    def _importance(self, ratio: Vector, rollout: Sequence[RolloutEpisode]) -> Vector:
        """Return (N,) importance weights. As in `truncated_policy_loss`, stale rounds have 0 beyond the clip range."""
        assert self.correction is not None and self.correction.importance_cap is not None
        weights: Vector = np.minimum(ratio, self.correction.importance_cap)
        if self.correction.is_stale:
            advantage = joined(episode.columns["advantage"] for episode in rollout)
            clip = self.loss_arguments["clip"]
            beyond = beyond_clip(ratio, advantage, clip, self.loss_arguments["clip_high"])
            weights[beyond.low | beyond.high] = 0.0
        return weights

    def _read_tokens(self, segments: Sequence[list[Segment]], use: Callable[[TokenBatch], Tensor]) -> list[Vector]:
        """Apply a function to the action tokens of batches, and return its (T, ...) results for each episode."""

        def values(batch: TokenBatch, counts: Tensor) -> Vector:
            return use(batch).double().cpu().numpy()

        all_segments = []
        tokens_per_episode = []
        for parts in segments:
            all_segments += parts
            tokens_per_episode.append(sum(len(segment.col) for segment in parts))
        results = self.read_batches(all_segments, values, bootstrap=False)
        return split_by_length(np.concatenate(results), tokens_per_episode) if results else []

    def read_batches(
        self, segments: Sequence[Segment], use: Callable[[TokenBatch, Tensor], T], bootstrap: bool
    ) -> list[T]:
        """Apply a function to batches of segments, which the ranks share.

        Args:
            segments: in any order.
            use: is given a batch and the number of action tokens of each of its segments.
            bootstrap: whether batches hold the states that follow.

        Returns:
            One result per batch, on all ranks.
        """
        rank, world = rank_and_world_size()
        groups = self.read_groups(segments)
        results = []
        for first in range(0, len(groups), world):
            # A rank that has no batch left reads the last one too: sharded weights need all ranks in each forward pass.
            group = groups[min(first + rank, len(groups) - 1)]
            counts = torch.tensor([len(segment.col) for segment in group])
            batch = collate(group, bootstrap=bootstrap).to(self.device)
            results.append(use(batch, counts.to(self.device)))
        by_rank = all_gather_objects(results)
        # Rank r has read the batches r, r + world, r + 2 world, ...
        return [by_rank[index % world][index // world] for index in range(len(groups))]

    def read_groups(self, segments: Sequence[Segment]) -> list[Sequence[Segment]]:
        """Return the segments of each batch of `read_batches`; the process r of n reads the batches r, r + n, ..."""
        size = online_datamodule(self.trainer, self.name).minibatch_size
        return [segments[first : first + size] for first in range(0, len(segments), size)]

    # -- Lightning's hooks, and the policy ----------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Have rounds prepared.

        Raises:
            UserError: if the datamodule does not play rounds, keeps old ones, or lacks what `bc_weight` needs.
        """
        data = online_datamodule(self.trainer, type(self).__name__)
        super().setup(stage)
        # Only now is it known which id ends an action, which depends on how texts are rendered.
        self.invalid = self.invalid_token_ids().to(self.invalid.device)
        if data.keep_replay:
            name = type(self).__name__
            raise UserError(f"{name} learns from the current round alone: data.init_args.keep_replay must be False")
        if data.offline != (self.bc_weight > 0.0):
            raise UserError(f"with bc_weight {self.bc_weight}, data.init_args.offline must be {self.bc_weight > 0.0}")

    def batch_spec(self) -> BatchSpec:
        """Declare batches of rounds as `prepare_rollout` makes them."""
        return replace(super().batch_spec(), learner=self)

    def weights_of_base(self) -> set[str]:
        """See `LanguageModule.weights_of_base`; the adapters of a reference model that is `base` change nothing."""
        names = super().weights_of_base()
        if names and isinstance(self.ref_model, PreTrainedModel) and changes_nothing(self.ref_model):
            names.update(f"ref_model.{name}" for name in adapter_weights(self.ref_model))
        return names


# -- arrays over the action tokens of episodes -----------------------------------------------------------------------


def values_per_token(episode: Episode, name: str, segments: Sequence[Segment]) -> Vector:
    """Return (T,) the values that were noted about each action token of an episode when it was sampled.

    Args:
        episode: an episode of a round.
        name: ``action_logprobs`` or ``action_values``.
        segments: its segments.

    Raises:
        UserError: if that is not about exactly the action tokens in the segments.
    """
    values: list[float] = list(chain.from_iterable(getattr(episode, name)))
    ids = list(chain.from_iterable(episode.action_ids))
    # Ids that were encoded again may differ from the sampled ones. Their log-probabilities would be of other tokens.
    trained_ids: list[int] = []
    for segment in segments:
        trained_ids += segment.token.tolist()
    if len(values) != len(ids) or trained_ids != ids:
        raise UserError(
            f"episodes of a round need {name} of the very tokens that are trained on; seed {episode.seed} has "
            f"{len(values)} of them for {len(ids)} sampled tokens"
        )
    return np.asarray(values, dtype=np.float64)


def joined(vectors: Iterable[Vector]) -> Vector:
    """Return the vectors of all episodes, one after the other."""
    return np.concatenate([*vectors, np.zeros(0)])


def split_as(values: Vector, vectors: Sequence[NDArray[Any]]) -> list[Vector]:
    """Cut what `joined` has put together, or an array of that length, into the lengths of the vectors again."""
    return split_by_length(values, [len(vector) for vector in vectors])


def set_column(rollout: Sequence[RolloutEpisode], name: str, values: Vector) -> None:
    """Give each episode its part of a column over all action tokens of a round, (N,)."""
    parts = split_by_length(values, [episode.num_tokens for episode in rollout])
    for episode, part in zip(rollout, parts, strict=True):
        episode.columns[name] = part


def with_columns(segments: Sequence[Segment], columns: Mapping[str, Vector]) -> list[Segment]:
    """Return the segments of an episode with further columns of values of their action tokens.

    Args:
        segments: the segments of one episode.
        columns: (T,) each, by name.
    """
    lengths = [len(segment.col) for segment in segments]
    columns_by_segment = [dict(segment.columns) for segment in segments]
    for name, column in columns.items():
        for segment_columns, part in zip(columns_by_segment, split_by_length(column, lengths), strict=True):
            segment_columns[name] = part.astype(np.float32)
    attached = []
    for segment, segment_columns in zip(segments, columns_by_segment, strict=True):
        attached.append(replace(segment, columns=segment_columns))
    return attached


def _rescored(episode: Episode, scores: Vector) -> Episode:
    """Return the episode with the (T, 1) log-probabilities, or (T, 2) with V, of the policy that learns."""
    turn_lengths = [len(ids) for ids in episode.action_ids]
    columns = []
    for column in scores.transpose():
        columns.append(tuple(tuple(turn.tolist()) for turn in split_by_length(column, turn_lengths)))
    values = columns[1] if len(columns) > 1 else ()
    # The value after the end was noted by the other sampler; without it PPO reads that state again.
    return replace(episode, action_logprobs=columns[0], action_values=values, final_value=None)


def _logprob_gaps(logprobs: Vector, sampler_logprobs: Vector, max_gap: float | None) -> dict[str, float]:
    """Return the mean and the largest gap between the policy's log-probabilities and the sampler's, (N,) each.

    Raises:
        UserError: the mean is larger than `RolloutCorrection.max_gap`.
    """
    gaps = np.abs(logprobs - sampler_logprobs)
    mean = float(gaps.mean()) if len(gaps) else 0.0
    largest = float(gaps.max()) if len(gaps) else 0.0
    # Written so that NaN is refused too.
    if max_gap is not None and not mean <= max_gap:
        raise UserError(
            f"the round was not sampled with the weights that learn: log-probabilities of its tokens differ by "
            f"{mean:.3g} nats on average (max_gap: {max_gap:g}). Has the server not loaded them, or not as they are?"
        )
    return {"logprob_gap": mean, "logprob_gap_max": largest}
