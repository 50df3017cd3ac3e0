"""Losses as functions of tensors: nothing here knows of modules, trainers or text."""

from lmrl.losses.bc import BCLoss, bc_loss
from lmrl.losses.gather import Taken, taken
from lmrl.losses.ilql import ILQLLoss, expectile_loss, ilql_loss
from lmrl.losses.mc import MCLoss, mc_loss
from lmrl.losses.returns import returns_to_go, td_target

__all__ = [
    "BCLoss",
    "ILQLLoss",
    "MCLoss",
    "Taken",
    "bc_loss",
    "expectile_loss",
    "ilql_loss",
    "mc_loss",
    "returns_to_go",
    "taken",
    "td_target",
]
