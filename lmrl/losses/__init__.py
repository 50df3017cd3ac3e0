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
from lmrl.losses.ilql import ILQLLoss, expectile_loss, ilql_loss
from lmrl.losses.mc import MCLoss, mc_loss, returns_to_go, td_target
from lmrl.losses.ppo import (
    Experience,
    KLController,
    PPOLoss,
    TokenLogprobs,
    explained_variance,
    gae,
    k3,
    ppo_loss,
    token_logprobs,
    whiten,
    with_kl_penalty,
)
from lmrl.losses.token_scores import LinearScores, TokenScores, gather_scores, gather_token_scores, linear_scores

__all__ = [
    "AWRLoss",
    "ArCHerLoss",
    "BCLoss",
    "Experience",
    "ILQLLoss",
    "KLController",
    "LinearScores",
    "MCLoss",
    "PPOLoss",
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
    "expectile_loss",
    "explained_variance",
    "gae",
    "gather_scores",
    "gather_token_scores",
    "ilql_loss",
    "k3",
    "linear_scores",
    "mc_loss",
    "ppo_loss",
    "returns_to_go",
    "td_target",
    "token_logprobs",
    "turns_of",
    "whiten",
    "with_kl_penalty",
]
