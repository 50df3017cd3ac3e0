"""Losses as functions of tensors: nothing here knows of modules, trainers or text."""

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
from lmrl.losses.qsft import (
    QSFTLoss,
    TokenNLL,
    best_ratio,
    mask_scores,
    probability_ratio,
    qsft_loss,
    qsft_weight,
    token_nll,
)
from lmrl.losses.return_bins import bin_means, bin_of, quantile_edges
from lmrl.losses.token_scores import LinearScores, TokenScores, gather_scores, gather_token_scores, linear_scores

__all__ = [
    "BCLoss",
    "Experience",
    "ILQLLoss",
    "KLController",
    "LinearScores",
    "MCLoss",
    "PPOLoss",
    "QSFTLoss",
    "TokenLogprobs",
    "TokenNLL",
    "TokenScores",
    "bc_loss",
    "best_ratio",
    "bin_means",
    "bin_of",
    "expectile_loss",
    "explained_variance",
    "gae",
    "gather_scores",
    "gather_token_scores",
    "ilql_loss",
    "k3",
    "linear_scores",
    "mask_scores",
    "mc_loss",
    "ppo_loss",
    "probability_ratio",
    "qsft_loss",
    "qsft_weight",
    "quantile_edges",
    "returns_to_go",
    "td_target",
    "token_logprobs",
    "token_nll",
    "whiten",
    "with_kl_penalty",
]
