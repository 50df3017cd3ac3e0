"""Losses as functions of tensors: nothing here knows of modules, trainers or text."""

from lmrl.losses.advantages import explained_variance, gae, whiten
from lmrl.losses.bc import BCLoss, bc_loss
from lmrl.losses.gather import Taken, score_taken, taken
from lmrl.losses.ilql import ILQLLoss, expectile_loss, ilql_loss
from lmrl.losses.kl import KLController, k3, with_kl_penalty
from lmrl.losses.mc import MCLoss, mc_loss
from lmrl.losses.ppo import Experience, PPOLoss, Spoken, ppo_loss, spoken
from lmrl.losses.returns import returns_to_go, td_target
from lmrl.losses.vocabulary import LinearScores, linear_scores

__all__ = [
    "BCLoss",
    "Experience",
    "ILQLLoss",
    "KLController",
    "LinearScores",
    "MCLoss",
    "PPOLoss",
    "Spoken",
    "Taken",
    "bc_loss",
    "expectile_loss",
    "explained_variance",
    "gae",
    "ilql_loss",
    "k3",
    "linear_scores",
    "mc_loss",
    "ppo_loss",
    "returns_to_go",
    "score_taken",
    "spoken",
    "taken",
    "td_target",
    "whiten",
    "with_kl_penalty",
]
