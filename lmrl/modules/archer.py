"""ArCHer: a critic of whole actions, and an actor that samples their tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.optim import Optimizer

from lmrl.datamodules.online import online_datamodule
from lmrl.datamodules.spec import BatchSpec
from lmrl.errors import UserError, check_choice, check_range
from lmrl.losses import ArCHerLoss, Turns, TurnValues, archer_loss, turns_of
from lmrl.models.critic import Critic
from lmrl.models.heads import frozen_copy, polyak_update
from lmrl.modules.actor_critic import ActorCritic
from lmrl.modules.policy_gradient import values_per_token, with_columns
from lmrl.tokens.collate import TokenBatch
from lmrl.tokens.segments import Segment
from lmrl.training.flops import StepCost, total_cost, trunk_cost
from lmrl.training.optimizer import check_target_precision
from lmrl.training.reporting import WeightReporter
from lmrl.types import Episode

__all__ = ["ArCHer"]

ACTOR_LOSSES = ("awr", "pg")


class ArCHer(ActorCritic):
    """Two Qs of whole actions and a V of the states before them; the language model learns from ``Q - V``.

    Zhou et al. 2024, with V as an expectile of the data's Q (their offline form) in place of the mean over actions that
    the actor samples again. A turn is a step: rewards and discounts are those of turns. As for ILQL a terminated
    episode has no value beyond its end, and a truncated one is bootstrapped from the state after its last observation.
    """

    name = "archer"
    unused_in_rollouts: tuple[str, ...] = ("critic", "target_critic")
    always_eval = ("target_critic",)
    q_heads = 2
    warmup_rounds = 0

    def __init__(
        self,
        gamma: float = 0.95,
        expectile: float = 0.7,
        polyak: float = 0.1,
        actor_loss: str = "awr",
        temperature: float = 1.0,
        max_weight: float = 20.0,
        clip: float = 0.2,
        critic_only_steps: int = 0,
        **shared: Any,
    ) -> None:
        """Build the critic, its target networks, and the actor.

        Args:
            gamma: discount per turn.
            expectile: in [0.5, 1): how near V comes to the best Q that the data supports.
            polyak: rate at which the target networks move towards what learns, after each optimizer step.
            actor_loss: ``awr``: actions of the data, weighted by ``exp(A / temperature)``; ``pg``: the clipped policy
                gradient of actions that were sampled in rounds.
            temperature: how much better an action must be to count e times as much, in ``awr``.
            max_weight: upper limit of an action's weight, in ``awr``.
            clip: clipping range epsilon of ``pg``: ratios of whole actions are clipped to [1 - clip, 1 + clip].
            critic_only_steps: optimizer steps at the beginning in which the actor does not learn.
            **shared: arguments of `ActorCritic`.

        Raises:
            UserError: for an unknown `actor_loss`, a number outside of its range, and as `ActorCritic`.
        """
        check_range("[0, 1]", gamma=gamma)
        check_range("[0.5, 1)", expectile=expectile)
        check_range("(0, 1]", polyak=polyak)
        check_range("(0, inf)", temperature=temperature, max_weight=max_weight)
        check_range("[0, inf)", clip=clip, critic_only_steps=critic_only_steps)
        check_choice(ACTOR_LOSSES, actor_loss=actor_loss)
        super().__init__(**shared)
        self.loss_arguments: dict[str, Any] = {
            "gamma": gamma, "expectile": expectile, "temperature": temperature, "max_weight": max_weight, "clip": clip
        }  # fmt: skip
        if actor_loss == "awr":
            self.reporter = WeightReporter(self.name, max_weight)
        self.polyak = polyak
        self.sampled_only = actor_loss == "pg"
        self.critic_only_steps = critic_only_steps
        self.target_critic: Critic = frozen_copy(self.critic)

    def setup(self, stage: str) -> None:
        """See `ActorCritic.setup`.

        Raises:
            UserError: if ``actor_loss: pg`` is to learn from recorded episodes or in mixed precision, or the target
                networks were to be kept in half precision, in which they do not move.
        """
        if self.sampled_only and online_datamodule(self.trainer, "actor_loss pg").offline:
            raise UserError("actor_loss pg learns from what was sampled: data.init_args.offline must be False")
        if self.sampled_only and isinstance(self.trainer.precision_plugin, MixedPrecision):
            # Play computes in the precision of the weights, so that the ratios of whole actions would not begin at 1.
            raise UserError("actor_loss pg cannot train in mixed precision: set trainer.precision to 32-true")
        super().setup(stage)
        check_target_precision(self.trainer, type(self).__name__)

    def batch_spec(self) -> BatchSpec:
        """Declare batches with the states after actions and those that follow; ``pg`` has rounds prepared."""
        learner = self if self.sampled_only else None
        return replace(super().batch_spec(), bootstrap=True, after=True, learner=learner)

    def prepare_rollout(self, episodes: Sequence[Episode], segments: Sequence[list[Segment]]) -> list[list[Segment]]:
        """Attach to each action token of a round its log-probability when it was sampled.

        Raises:
            UserError: if the episodes do not hold that of exactly the tokens in the segments.
        """
        prepared = []
        for episode, episode_segments in zip(episodes, segments, strict=True):
            logprob = values_per_token(episode, "action_logprobs", episode_segments)
            prepared.append(with_columns(episode_segments, {"logprob": logprob}))
        return prepared

    def losses(self, batch: TokenBatch) -> ArCHerLoss:
        """TD loss of both Qs, expectile loss of V, loss of the actor."""
        assert batch.turn_end is not None
        turns = turns_of(batch.turn_end)
        # The regression imitates the data's tokens; the policy gradient needs the ratio to the sampling policy.
        old_logprob = None
        if self.sampled_only:
            assert batch.columns is not None
            logprob = self.logprobs_among_valid_tokens(batch)
            old_logprob = batch.columns["logprob"]
        else:
            logprob = self.logprobs_among_all_tokens(batch)
        return archer_loss(
            self.turn_values(batch, turns),
            batch.reward,
            batch.terminated,
            turns,
            logprob,
            old_logprob,
            train_actor=self.global_step >= self.critic_only_steps,
            **self.loss_arguments,
        )

    def turn_values(self, batch: TokenBatch, turns: Turns) -> TurnValues:
        """Return the outputs of the critic and the target networks for the actions of a batch."""
        assert batch.next is not None and batch.after is not None
        # States, (T,) each: o before an action, (o, a) behind its last token, and o' where the policy acts next.
        before = batch.state[turns.first]
        behind = batch.after[turns.last]
        following = batch.next[turns.last]
        hidden = self.hidden_states(self.critic.trunk, batch)
        value, next_value = self.critic.v(hidden[torch.cat([before, following])]).chunk(2)
        with torch.no_grad():
            target_q = self.target_critic.q(self.hidden_states(self.target_critic.trunk, batch)[behind])
        return TurnValues(self.critic.q(hidden[behind]), target_q, value, next_value)

    def step_cost(self) -> StepCost:
        """See `ActorCritic.step_cost`; the target trunk runs forward."""
        return total_cost(super().step_cost(), trunk_cost(self.target_critic.trunk))

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """In the first `critic_only_steps` the actor has no gradient: not even decay and moments change."""
        if self.global_step < self.critic_only_steps:
            for parameter in self.model.parameters():
                parameter.grad = None
        super().on_before_optimizer_step(optimizer)

    def update_target_networks(self) -> None:
        """Move the target networks by `polyak`."""
        polyak_update(self.target_critic.parameters(), self.critic.parameters(), self.polyak)
