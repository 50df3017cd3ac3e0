"""What a player would say in somebody else's place, and what the place is worth to it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from lmrl.protocols import Policy, Request

__all__ = ["Advice", "advise", "value_of"]


@runtime_checkable
class _Valued(Protocol):
    def state_values(self, requests: Sequence[Request]) -> Sequence[float]: ...


class Advice(NamedTuple):
    """A move, without the ends of its line, and V of the state; None for a player without values."""

    move: str
    value: float | None


def advise(policy: Policy, request: Request) -> Advice:
    """What the policy would say, and its V."""
    return Advice(policy.act([request])[0].text.strip(), value_of(policy, request))


def value_of(policy: Policy, request: Request) -> float | None:
    """V of the state in which the policy is asked; None if it has no values."""
    return float(policy.state_values([request])[0]) if isinstance(policy, _Valued) else None
