"""A policy that reads an additional line before it acts."""

from collections.abc import Sequence
from dataclasses import replace

from lmrl.types import Policy, Reply, Request, Resettable

__all__ = ["ConditionedPolicy", "told"]


def told(observations: Sequence[str], line: str, always: bool) -> tuple[str, ...]:
    """Observations with a line in front.

    Args:
        observations: texts of the environment, oldest first.
        line: ends in a line break; an empty one changes nothing.
        always: in front of every observation, for policies that read the newest texts alone; else of the first.
    """
    return tuple(f"{line}{text}" if always or turn == 0 else text for turn, text in enumerate(observations))


class ConditionedPolicy:
    r"""Has another policy read a line that the environment has not said, e.g. ``return 7 of 10\n``.

    Only what is read changes: episodes are recorded as they were played.

    Args:
        policy: reads the line.
        line: as of `told`.
        always: as of `told`.
    """

    def __init__(self, policy: Policy, line: str, always: bool) -> None:
        self.policy = policy
        self.line = line
        self.always = always

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """One action per request, in their order."""
        return self.policy.act(
            [replace(r, observations=told(r.observations, self.line, self.always)) for r in requests]
        )

    def reset(self) -> None:
        """See `lmrl.types.Resettable`."""
        if isinstance(self.policy, Resettable):
            self.policy.reset()
