"""Callbacks: evaluation by interaction, what a run keeps, and what is seen of it."""

from lmrl.callbacks.compute_budget import ComputeBudget
from lmrl.callbacks.interactive import InteractiveEvaluation
from lmrl.callbacks.progress import TrainingProgress
from lmrl.callbacks.rollouts import RolloutCollection
from lmrl.callbacks.saving import KeepLast, save_run
from lmrl.callbacks.vllm_sampler import VLLMSampler

__all__ = [
    "ComputeBudget",
    "InteractiveEvaluation",
    "KeepLast",
    "RolloutCollection",
    "TrainingProgress",
    "VLLMSampler",
    "save_run",
]
