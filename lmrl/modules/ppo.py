"""Proximal policy optimisation of a language model over whole episodes, token by token or turn by turn."""

from collections.abc import Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import get_total_norm

from lmrl.datamodules.online import online_datamodule
from lmrl.errors import UserError, check_choice, check_range
from lmrl.losses import (
    PolicyLoss,
    PPOColumns,
    Scores,
    explained_variance,
    gae,
    lambda_by_turn,
    loss_weights,
    ppo_loss,
    returns_to_go,
    token_logprobs,
    whiten,
    with_kl_penalty,
)
from lmrl.models.critic import DetachedCritic, OwnCritic
from lmrl.models.heads import ValueHead, frozen_copy
from lmrl.models.lm import checkpoint_activations, logits_of, trunk_of
from lmrl.models.sharding import is_sharded
from lmrl.modules.policy_gradient import (
    PolicyGradient,
    RolloutEpisode,
    Vector,
    joined,
    set_column,
    split_as,
    values_per_token,
)
from lmrl.policies import ActorCriticPolicy, LMPolicy
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.segments import Segment
from lmrl.training.flops import StepCost, matmul_flops, total_cost, trunk_cost
from lmrl.training.reporting import log_now
from lmrl.types import Policy
from lmrl.utils.distributed import all_gather_objects, rank_and_world_size

__all__ = ["PPO", "compute_advantages"]

LEVELS = ("token", "turn")
CRITICS = ("detached", "own", "shared")


class _EpisodeSteps(NamedTuple):
    """The steps of an episode, with arrays over them. A step is a token or a turn."""

    lengths: NDArray[np.int64]
    """Number of tokens of each step."""
    value: Vector
    advantage: Vector
    return_to_go: Vector
    """Discounted return from each step on."""


def compute_advantages(
    rollout: Sequence[RolloutEpisode],
    values: Sequence[Vector],
    end_values: Sequence[float],
    *,
    kl_weight: float,
    gamma: float,
    gae_lambda: float,
    level: str = "token",
    lambda_level: str = "turn",
    loss_agg_mode: str = "token-mean",
) -> list[Vector]:
    """Set the columns of `lmrl.losses.PPOColumns`: KL-penalised rewards become advantages and value targets.

    Args:
        rollout: the episodes of a round.
        values: for each episode, (T,) V of the states in which its tokens were chosen.
        end_values: V after the last observation of each; 0 where the rules ended it.
        kl_weight: KL penalty coefficient.
        gamma: discount per step.
        gae_lambda: see `lmrl.losses.gae`.
        level: ``token``: each action token is a step; ``turn``: each action is one, with the sum of its tokens' rewards
            and V of the state in which it begins.
        lambda_level: whether lambda applies from ``turn`` to turn or from ``token`` to token; see
            `lmrl.losses.lambda_by_turn`.
        loss_agg_mode: see `lmrl.losses.loss_weights`.

    Returns:
        For each episode, (T,) the discounted return that followed each token, or the turn that it is part of.
    """
    steps_by_episode = []
    for episode, value, end_value in zip(rollout, values, end_values, strict=True):
        # (T,) the reward of each action token, less the KL penalty.
        reward = with_kl_penalty(episode.reward, episode.logprob, episode.ref_logprob, kl_weight)
        # (steps,) A step is a token or a turn. Its reward is the sum over its tokens, its V that of its first state.
        starts = episode.turn_starts if level == "turn" else np.arange(episode.num_tokens)
        step_reward = np.add.reduceat(reward, starts)
        lambdas: float | Vector = gae_lambda
        if level == "token" and lambda_level == "turn":
            lambdas = lambda_by_turn(episode.turn_lengths, gae_lambda)
        step_value = value[starts]
        steps_by_episode.append(
            _EpisodeSteps(
                lengths=np.diff(starts, append=episode.num_tokens),
                value=step_value,
                advantage=gae(step_reward, step_value, end_value, gamma, lambdas),
                return_to_go=returns_to_go(step_reward, gamma, end_value),
            )
        )

    # Advantages are whitened over all steps of the round, so a long turn counts once. Targets keep their scale.
    advantages = [steps.advantage for steps in steps_by_episode]
    whitened = split_as(whiten(joined(advantages)), advantages)
    returns = []
    for episode, steps, whitened_advantage in zip(rollout, steps_by_episode, whitened, strict=True):
        # (T,) Every token of a step has the values of the step.
        episode.columns["logprob"] = episode.logprob
        episode.columns["value"] = np.repeat(steps.value, steps.lengths)
        episode.columns["advantage"] = np.repeat(whitened_advantage, steps.lengths)
        episode.columns["target"] = np.repeat(steps.advantage + steps.value, steps.lengths)
        returns.append(np.repeat(steps.return_to_go, steps.lengths))
    if loss_agg_mode != "token-mean":
        set_column(rollout, "weight", loss_weights([episode.turn_lengths for episode in rollout], loss_agg_mode))
    return returns


class PPO(PolicyGradient):
    """PPO of a language model: clipped ratios, and advantages over the action tokens of all turns.

    Schulman et al. 2017, with a KL penalty towards the reference model in the rewards (Ziegler et al. 2019), in the
    form of Abdulhai et al. 2025 with its episode ends corrected.

    The critic cannot harm the policy: it reads the policy's hidden states, but no gradient of it flows back
    (`lmrl.models.critic.DetachedCritic`). With ``critic: own`` it has a trunk of its own. With ``critic: shared`` V is
    a head on the policy's trunk and the value loss part of the loss, as published. Where returns are large or V
    explains little, its gradient then bends the trunk more than the policy's own does.

    With ``level: turn`` the turn is the step: V, discount and advantages by turn, and the ratio that of the whole
    action. Zeng, Wei, Brown, Frunza, Nevmyvaka and Hong (2025, arXiv 2505.11821) argue for credit by turn; theirs is
    GRPO with turn-level advantages, without a critic.
    """

    name = "ppo"
    unused_in_rollouts: tuple[str, ...] = ("ref_model", "critic")
    earlier_defaults = MappingProxyType({"critic": "shared", "lambda_level": "token"})
    critic: DetachedCritic | None

    def __init__(
        self,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        level: str = "token",
        lambda_level: str = "turn",
        critic: str = "detached",
        critic_lr: float = 3e-4,
        critic_passes: int = 2,
        critic_warmup_rounds: int = 1,
        value_clip: float | None = 0.2,
        value_weight: float = 0.5,
        head_bias: float = 0.0,
        loss_agg_mode: str | None = None,
        **shared: Any,
    ) -> None:
        """Build the policy, its critic, and the reference model: a frozen copy of what it starts from.

        Args:
            gamma: discount per step.
            gae_lambda: lambda of the advantages: 0 trusts V after one step, 1 trusts the rewards alone.
            level: what a step is, ``token`` or ``turn``.
            lambda_level: whether `gae_lambda` applies from ``turn`` to turn, or from ``token`` to token as published.
                By token, the first token of a game of n turns with k tokens each gets only ``gae_lambda ** (n * k)`` of
                the credit for the end. With ``level: turn`` it applies by turn in any case.
            critic: ``detached``: a head of its own on hidden states that it cannot change, added to the mean by turn;
                ``own``: the same on a trunk (or adapters) of its own; ``shared``: a head on the policy's trunk, by a
                value loss.
            critic_lr: learning rate of a detached or own critic.
            critic_passes: passes of a detached or own critic over a round; 0: V is the running mean by turn.
            critic_warmup_rounds: rounds before the policy learns, to which only such a critic is fitted.
            value_clip: clipping range of a shared critic's V around its value at collection time; None does not clip.
            value_weight: weight of a shared critic's value loss.
            head_bias: V of a shared critic everywhere at the start; near the data's typical return.
            loss_agg_mode: see `PolicyGradient`; None: the mean over steps, ``token-mean`` or ``turn-mean``.
            **shared: arguments of `PolicyGradient`.

        Raises:
            UserError: for an unknown level or critic, a number outside of its range, and as `PolicyGradient`.
        """
        check_range("[0, 1]", gamma=gamma, gae_lambda=gae_lambda)
        check_range("[0, inf)", value_clip=value_clip, value_weight=value_weight)
        check_range("[0, inf)", critic_lr=critic_lr, critic_passes=critic_passes)
        check_range("[0, inf)", critic_warmup_rounds=critic_warmup_rounds)
        check_range("(-inf, inf)", head_bias=head_bias)
        check_choice(LEVELS, level=level, lambda_level=lambda_level)
        check_choice(CRITICS, critic=critic)
        super().__init__(loss_agg_mode=loss_agg_mode, **shared)
        self.loss_arguments |= {"value_clip": value_clip, "value_weight": value_weight}
        self.gamma = gamma
        self.gae_lambda = gae_lambda
        self.level = level
        self.lambda_level = lambda_level
        self.by_turn = level == "turn"
        self.is_critic_shared = critic == "shared"
        self.build_values(head_bias)
        self.critic = None
        if critic == "detached":
            self.critic = DetachedCritic(int(self.model.config.hidden_size), critic_lr, critic_passes)
        elif critic == "own":
            self.critic = OwnCritic(self.trainable_model, critic_lr, critic_passes)
        if self.critic is not None:
            self.warmup_rounds = critic_warmup_rounds

    def build_values(self, head_bias: float) -> None:
        """Put the head of a shared critic on the policy, and keep a frozen copy of the policy as `ref_model`."""
        if self.is_critic_shared:
            self.v_head = ValueHead(int(self.model.config.hidden_size), 1, head_bias)
        # The policy starts from a BC run, so that run is the reference.
        self.ref_model = frozen_copy(self.model)

    def setup(self, stage: str) -> None:
        """See `LanguageModule.setup`.

        Also enable activation checkpointing for the trunk of an own critic, if it is on for the model.
        """
        super().setup(stage)
        if stage == "fit" and self.hparams["activation_checkpointing"] and isinstance(self.critic, OwnCritic):
            checkpoint_activations(self.critic.trunk)

    # -- a round ------------------------------------------------------------------------------------------------

    def process(self, rollout: Sequence[RolloutEpisode]) -> dict[str, float]:
        """Set the columns of `lmrl.losses.PPOColumns`, see `compute_advantages`; then fit the detached critic."""
        if self.critic is None:
            values = [values_per_token(episode.episode, "action_values", episode.segments) for episode in rollout]
            returns = self._set_advantages(rollout, values)
            return {"explained_variance": self._explained(rollout, values, returns)}

        if not rollout:
            return {}
        # V(s) = baseline(turn) + residual(s). Both were fitted to earlier rounds, so V does not depend on the returns
        # of this one.
        baseline = self._turn_means(self.critic, rollout)
        hidden, index = self._read_states(rollout)
        residual = split_as(self._residual(self.critic, hidden, index), baseline)
        values = [mean + rest for mean, rest in zip(baseline, residual, strict=True)]
        returns = self._set_advantages(rollout, values)
        metrics = {
            "explained_variance": self._explained(rollout, values, returns),
            "explained_by_turn": self._explained(rollout, baseline, returns),
        }

        # Now the critic may see the round.
        turn_returns = []
        for episode, episode_returns in zip(rollout, returns, strict=True):
            turn_returns.append(episode_returns[episode.turn_starts])
        self.critic.baseline.update(turn_returns)
        targets = joined(returns) - joined(self._turn_means(self.critic, rollout))
        data = online_datamodule(self.trainer, self.name)
        seed = [data.seed, data.round]
        if isinstance(self.critic, OwnCritic):
            self._fit_trunk(self.critic, rollout, hidden, targets, seed)
        else:
            self.critic.fit(hidden, index, targets, seed)
        return metrics

    def _explained(
        self, rollout: Sequence[RolloutEpisode], values: Sequence[Vector], returns: Sequence[Vector]
    ) -> float:
        """Return the share of the variance of returns that V explains, over the states in which steps begin."""
        if self.level == "turn":  # a step begins where an action begins
            starts = [episode.turn_starts for episode in rollout]
            values = [value[start] for value, start in zip(values, starts, strict=True)]
            returns = [own_returns[start] for own_returns, start in zip(returns, starts, strict=True)]
        return explained_variance(joined(values), joined(returns))

    def _fit_trunk(
        self,
        critic: OwnCritic,
        rollout: Sequence[RolloutEpisode],
        hidden: Tensor,
        targets: Vector,
        seed: Sequence[int],
    ) -> None:
        """Fit a critic with a trunk of its own, which reads the round again for each step."""
        segments, token_index = self._batches_with_index(rollout)

        def read(batch_index: int) -> Tensor:
            batch = collate(segments[batch_index], bootstrap=False).to(self.device)
            return self.critic_states(batch)[batch.state]

        critic.fit_trunk(hidden, read, token_index, targets, seed)

    def _batches_with_index(
        self, rollout: Sequence[RolloutEpisode]
    ) -> tuple[list[Sequence[Segment]], list[NDArray[np.int64]]]:
        """Return the segments of each batch that is read of a round, and the index of its tokens among all N."""
        batches = self.read_groups(list(chain.from_iterable(episode.segments for episode in rollout)))
        token_index = []
        end = 0
        for segments in batches:
            start = end
            end += sum(len(segment.col) for segment in segments)
            token_index.append(np.arange(start, end))
        return batches, token_index

    def _turn_means(self, critic: DetachedCritic, rollout: Sequence[RolloutEpisode]) -> list[Vector]:
        """Return (T,) for each episode: the critic's baseline of the turn of each token."""
        turns = []  # per episode, (T,) index of the turn of each token
        for episode in rollout:
            turns.append(np.repeat(np.arange(len(episode.turn_lengths)), episode.turn_lengths))
        return split_as(critic.baseline.values(np.concatenate(turns)), turns)

    def _set_advantages(self, rollout: Sequence[RolloutEpisode], values: Sequence[Vector]) -> list[Vector]:
        """See `compute_advantages`."""
        return compute_advantages(
            rollout,
            values,
            self._end_values(rollout),
            kl_weight=float(self.kl_weight),
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            level=self.level,
            lambda_level=self.lambda_level,
            loss_agg_mode=self.loss_agg_mode,
        )

    def _read_states(self, rollout: Sequence[RolloutEpisode]) -> tuple[Tensor, NDArray[np.int64]]:
        """Return the hidden states in which the round's N action tokens were chosen, of this process's batches.

        They stay on the device: 40,000 tokens of a model of width 4,096 take 330 MB in half precision.

        Returns:
            (n, width) states, and (n,) their index among the N.
        """
        parts: list[Tensor] = []

        def keep(batch: TokenBatch, counts: Tensor) -> None:
            parts.append(self.critic_states(batch)[batch.state])

        segments, token_index = self._batches_with_index(rollout)
        self.read_batches(list(chain.from_iterable(segments)), keep, bootstrap=False)
        rank, world = rank_and_world_size()
        index = np.concatenate([*token_index[rank::world], np.zeros(0, dtype=np.int64)])
        # A process without a batch of its own at the end has read the last one once more.
        return torch.cat(parts)[: len(index)], index

    def _residual(self, critic: DetachedCritic, hidden: Tensor, index: NDArray[np.int64]) -> Vector:
        """Return (N,) residuals of all states, gathered from the processes that computed them."""
        mine = critic.residual(hidden).double().cpu().numpy()
        by_rank = all_gather_objects((index, mine))
        residual = np.zeros(sum(len(rank_index) for rank_index, _ in by_rank))
        for rank_index, rank_residual in by_rank:
            residual[rank_index] = rank_residual
        return residual

    def _end_values(self, rollout: Sequence[RolloutEpisode]) -> list[float]:
        """Return V of the state after the last observation of each truncated episode; 0 for a terminated one.

        The policy that played has noted it where it has V. Otherwise the state is read again.
        """

        def values_after(batch: TokenBatch, counts: Tensor) -> list[float]:
            assert batch.next is not None
            last_tokens = torch.cumsum(counts, 0) - 1
            hidden = self.critic_states(batch)[batch.next[last_tokens]]
            value = self.v_head(hidden).squeeze(-1) if self.critic is None else self.critic.residual(hidden)
            values: list[float] = value.tolist()
            return values

        end_values = [0.0] * len(rollout)
        unread = []
        for index, episode in enumerate(rollout):
            if episode.segments[-1].next_ids is None:  # terminated: the rules ended it
                continue
            if self.critic is None and episode.episode.final_value is not None:
                end_values[index] = episode.episode.final_value
            else:
                unread.append(index)
        last_segments = [rollout[index].segments[-1] for index in unread]
        batches = self.read_batches(last_segments, values_after, bootstrap=True)
        for index, value in zip(unread, chain.from_iterable(batches), strict=True):
            end_values[index] = value
            if self.critic is not None:
                # If a time limit cuts all episodes at one turn, the next turn has no mean. `TurnBaseline.values` then
                # returns that of the last turn played.
                next_turn = np.asarray([len(rollout[index].turn_lengths)])
                end_values[index] += float(self.critic.baseline.values(next_turn)[0])
        return end_values

    # -- the policy, the loss and V -----------------------------------------------------------------------------

    def states(self, batch: TokenBatch) -> Tensor:
        """(S, width) hidden states of the policy, from which its logits are made."""
        return self.hidden_states(trunk_of(self.model), batch)

    def critic_states(self, batch: TokenBatch) -> Tensor:
        """(S, width) hidden states that the critic reads; of one that is not shared, in the precision of the steps."""
        if self.critic is None:
            return self.states(batch)
        with self.trainer.precision_plugin.forward_context():
            if isinstance(self.critic, OwnCritic):
                return self.hidden_states(self.critic.trunk, batch)
            return self.states(batch)

    def logits_from(self, hidden: Tensor, batch: TokenBatch) -> Scores:
        """(S, vocabulary) logits of the policy, given its hidden states."""
        return logits_of(self.model, hidden)

    def logits(self, batch: TokenBatch) -> Scores:
        """(S, vocabulary) logits of the policy."""
        return self.logits_from(self.states(batch), batch)

    def losses(self, batch: TokenBatch) -> PolicyLoss:
        """Clipped policy loss of a minibatch of a round, with the value loss of a shared critic.

        Raises:
            UserError: for a batch that was never prepared by `prepare_rollout`.
        """
        if batch.columns is None:
            raise UserError("PPO learns from rounds that it has played and prepared, not from recorded batches")
        hidden = self.states(batch)
        now = token_logprobs(self.logits_from(hidden, batch), batch.state, batch.token, self.invalid)
        value = None
        if self.critic is None:  # V shares the trunk and its gradient with the policy
            value = self.v_head(hidden).squeeze(-1)[batch.state]
        turn_end = batch.turn_end if self.by_turn else None
        return ppo_loss(
            now,
            value,
            PPOColumns(**batch.columns),
            turn_end=turn_end,
            importance_cap=self.step_importance_cap,
            **self.loss_arguments,
        )

    def objective(self, terms: PolicyLoss, batch: TokenBatch) -> Tensor:
        """See `LanguageModule.objective`; once a round, logs how much of the gradient is a shared critic's."""
        is_measured = self.critic is None and not is_sharded(self)
        if is_measured and online_datamodule(self.trainer, self.name).consumed == 1:
            log_now(self.trainer, {f"{self.name}/critic_share": self._critic_share(terms, batch)})
        return super().objective(terms, batch)

    def _critic_share(self, terms: PolicyLoss, batch: TokenBatch) -> float:
        """Return the norm of the value loss's gradient on the trunk, over the sum of both losses' norms."""
        assert terms.value_loss is not None
        weights = [parameter for parameter in self.trainable_model.parameters() if parameter.requires_grad]
        _, world = rank_and_world_size()
        norms = []
        for loss in (terms.policy_loss, self.loss_arguments["value_weight"] * terms.value_loss):
            gradients = torch.autograd.grad(loss * batch.scale, weights, retain_graph=True, materialize_grads=True)
            if world > 1:  # the gradient of all processes together
                for gradient in gradients:
                    dist.all_reduce(gradient)
            norms.append(float(get_total_norm(gradients)))
        return norms[1] / sum(norms) if sum(norms) else 0.0

    def step_cost(self) -> StepCost:
        """The policy and the head of a shared critic; another critic learns between the rounds."""
        value = StepCost(per_state=matmul_flops(self.v_head, learns=True) if self.critic is None else 0)
        return total_cost(super().step_cost(), value)

    def round_cost(self) -> StepCost:
        """See `PolicyGradient.round_cost`; critics that are not shared read the round, and their own trunk learns."""
        costs = [super().round_cost()]
        if isinstance(self.critic, OwnCritic):
            costs.append(trunk_cost(self.critic.trunk, learns=False))
            with self.critic.learning():
                costs += [trunk_cost(self.critic.trunk)] * self.critic.passes
        elif self.critic is not None:
            costs.append(trunk_cost(trunk_of(self.trainable_model), learns=False))
        return total_cost(*costs)

    def action_scores(self, batch: TokenBatch) -> Tensor:
        """See `PolicyGradient.action_scores`; (N, 2) with V of a shared critic."""
        hidden = self.states(batch)
        logprob = token_logprobs(self.logits_from(hidden, batch), batch.state, batch.token, self.invalid).logprob
        if self.critic is not None:
            return logprob[:, None]
        value = self.v_head(hidden).squeeze(-1)
        return torch.stack([logprob, value[batch.state].float()], dim=-1)

    def policy(self, **settings: Any) -> Policy:
        """Sample from the model; with a shared critic replies hold V. For `settings` see `lmrl.policies.LMPolicy`."""
        window = self.context_window()
        if not self.is_critic_shared:  # processes that play hold no other critic
            return LMPolicy(self.model, self.tokenizer, window, **settings)
        return ActorCriticPolicy(self.model, self.tokenizer, window, v_head=self.v_head, **settings)

    def value_state_dict(self) -> dict[str, Tensor]:
        """The head of a shared critic (``v_head.*``), which reads the language model's own hidden states."""
        return {} if self.critic is not None else self.v_head.state_dict(prefix="v_head.")

    # -- checkpoints --------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """See `LanguageModule.on_save_checkpoint`; with the state of the critic's own optimizer."""
        super().on_save_checkpoint(checkpoint)
        if self.critic is not None:
            checkpoint["critic_optimizer"] = self.critic.optimizer_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """See `LanguageModule.on_load_checkpoint`."""
        super().on_load_checkpoint(checkpoint)
        if self.critic is not None:
            self.critic.restore_optimizer(checkpoint.get("critic_optimizer"))
