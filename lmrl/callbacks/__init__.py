"""Callbacks: evaluation by interaction, and what a run keeps."""

from lmrl.callbacks.interactive import InteractiveEvaluation
from lmrl.callbacks.rollouts import RolloutCollection
from lmrl.callbacks.saving import KeepLast, save_run

__all__ = ["InteractiveEvaluation", "KeepLast", "RolloutCollection", "save_run"]
