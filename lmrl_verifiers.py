"""``vf-eval lmrl-verifiers``: where `verifiers` looks for the tasks of `lmrl.integrations.verifiers`."""

from lmrl.integrations.verifiers import ChatHarness, GameEnv, GameTaskset

__all__ = ["ChatHarness", "GameEnv", "GameTaskset"]
