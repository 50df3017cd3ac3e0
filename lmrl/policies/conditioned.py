"""A policy that reads an additional line before it acts."""

from collections.abc import Sequence
from dataclasses import replace

from lmrl.types import Policy, Reply, Request, Resettable

__all__ = ["ConditionedPolicy", "with_line"]


def with_line(observations: Sequence[str], line: str, always: bool) -> tuple[str, ...]:
    """Return observations with a line in front.

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
        line: see `with_line`.
        always: see `with_line`.
    """

    def __init__(self, policy: Policy, line: str, always: bool) -> None:
        self.policy = policy
        self.line = line
        self.always = always

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """One action per request, in their order."""
        conditioned = []
        for request in requests:
            observations = with_line(request.observations, self.line, self.always)
            conditioned.append(replace(request, observations=observations))
        return self.policy.act(conditioned)

    def reset(self) -> None:
        """See `lmrl.types.Resettable`."""
        if isinstance(self.policy, Resettable):
            self.policy.reset()
