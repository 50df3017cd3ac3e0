"""Losses as functions of tensors: nothing here knows of modules, trainers or text."""

from lmrl.losses.archer import (
    ArCHerLoss,
    Turns,
    TurnValues,
    archer_loss,
    awr_actor_loss,
    clipped_actor_loss,
    turns_of,
)
from lmrl.losses.awr import AWRLoss, advantage_weights, awr_loss
from lmrl.losses.bc import BCLoss, bc_loss
from lmrl.losses.groups import GROUP_ADVANTAGES, group_advantages
from lmrl.losses.grpo import GRPOLoss, Sampled, grpo_loss
from lmrl.losses.ilql import ILQLLoss, expectile_loss, ilql_loss
from lmrl.losses.mc import MCLoss, mc_loss, returns_to_go, td_target
from lmrl.losses.policy_gradient import (
    KL_ESTIMATORS,
    LOSS_AGG_MODES,
    KLController,
    PolicyTerms,
    TokenLogprobs,
    clipped_policy_loss,
    first_of_turn,
    k3,
    kl_penalty,
    loss_weights,
    sum_over_turn,
    token_logprobs,
    whiten,
    with_kl_penalty,
)
from lmrl.losses.ppo import Experience, PPOLoss, explained_variance, gae, ppo_loss
from lmrl.losses.token_scores import LinearScores, TokenScores, gather_scores, gather_token_scores, linear_scores

__all__ = [
    "GROUP_ADVANTAGES",
    "KL_ESTIMATORS",
    "LOSS_AGG_MODES",
    "AWRLoss",
    "ArCHerLoss",
    "BCLoss",
    "Experience",
    "GRPOLoss",
    "ILQLLoss",
    "KLController",
    "LinearScores",
    "MCLoss",
    "PPOLoss",
    "PolicyTerms",
    "Sampled",
    "TokenLogprobs",
    "TokenScores",
    "TurnValues",
    "Turns",
    "advantage_weights",
    "archer_loss",
    "awr_actor_loss",
    "awr_loss",
    "bc_loss",
    "clipped_actor_loss",
    "clipped_policy_loss",
    "expectile_loss",
    "explained_variance",
    "first_of_turn",
    "gae",
    "gather_scores",
    "gather_token_scores",
    "group_advantages",
    "grpo_loss",
    "ilql_loss",
    "k3",
    "kl_penalty",
    "linear_scores",
    "loss_weights",
    "mc_loss",
    "ppo_loss",
    "returns_to_go",
    "sum_over_turn",
    "td_target",
    "token_logprobs",
    "turns_of",
    "whiten",
    "with_kl_penalty",
]
