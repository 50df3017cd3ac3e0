"""Scripted players: they record the offline datasets and serve as baselines."""

from lmrl.behaviours.maze import MazePlayer
from lmrl.behaviours.recording import Recording
from lmrl.behaviours.registry import make_policy, policy_names, recording

__all__ = ["MazePlayer", "Recording", "make_policy", "policy_names", "recording"]
