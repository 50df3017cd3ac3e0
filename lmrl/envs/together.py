"""One step of many environments of any kind; those that share a second speaker ask it all at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, SupportsFloat, TypeAlias

import gymnasium

from lmrl.envs.dialogue import DialogueEnv, Outcome
from lmrl.errors import BudgetError
from lmrl.protocols import PartnerRequest

__all__ = ["Failure", "Move", "Step", "step_together"]

Move: TypeAlias = tuple[int, "gymnasium.Env[str, str]", str]
"""Number of the slot, environment and action."""

Step: TypeAlias = tuple[str, SupportsFloat, bool, bool, dict[str, Any]]
"""Gymnasium's idea of a turn."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What came instead of a turn."""

    error: Exception
    by_partner: bool
    """The second speaker failed twice; else the environment did, once."""


def step_together(moves: Sequence[Move], failures: dict[int, Failure] | None = None) -> list[Step | None]:
    """One step of each environment.

    Args:
        moves: what to do.
        failures: if given, an environment that raises is noted here under its place, its turn is None, and the others
            go on. A second speaker that raises is asked again, question by question.

    Returns:
        The turns in the order of the moves.

    Raises:
        BudgetError: a second speaker's budget is used up, whatever ``failures`` is.
    """
    return _Together(moves, failures).turns()


class _Together:
    def __init__(self, moves: Sequence[Move], failures: dict[int, Failure] | None) -> None:
        self._moves, self._failures = moves, failures
        self._turns: list[Step | None] = [None] * len(moves)
        self._asked: dict[int, tuple[DialogueEnv, PartnerRequest]] = {}

    def turns(self) -> list[Step | None]:
        for place, (_, env, action) in enumerate(self._moves):
            if isinstance(env, DialogueEnv):
                self._half(place, env, env.say, action)
            elif (turn := self._guarded(place, partial(env.step, action))) is not None:
                self._turns[place] = turn
        while self._asked:
            partner = next(iter(self._asked.values()))[0].partner
            now = {
                place: self._asked.pop(place) for place in [*self._asked] if self._asked[place][0].partner is partner
            }
            for (place, (env, _)), reply in zip(now.items(), self._replies(now), strict=True):
                if reply is not None:
                    self._half(place, env, env.hear, reply)
        return self._turns

    def _half(self, place: int, env: DialogueEnv, half: Callable[[str], Outcome], text: str) -> None:
        """Half a step: put its outcome to the finished turns, or to what is to be asked."""
        outcome = self._guarded(place, partial(half, text))
        if isinstance(outcome, PartnerRequest):
            self._asked[place] = env, replace(outcome, slot=self._moves[place][0])
        elif outcome is not None:
            self._turns[place] = outcome

    def _replies(self, asked: dict[int, tuple[DialogueEnv, PartnerRequest]]) -> list[str | None]:
        """What the common partner of all these says; None where it fails twice."""
        partner = next(iter(asked.values()))[0].partner
        try:
            return [*partner.reply([request for _, request in asked.values()])]
        except BudgetError:
            raise
        except Exception:
            if self._failures is None:
                raise
        # Perhaps one question is at fault; the others are not to suffer for it.
        found = [self._guarded(n, partial(partner.reply, [asked[n][1]]), by_partner=True) for n in asked]
        return [None if replies is None else replies[0] for replies in found]

    def _guarded(self, place: int, call: Callable[[], Any], by_partner: bool = False) -> Any:
        try:
            return call()
        except BudgetError:
            raise
        except Exception as error:
            if self._failures is None:
                raise
            self._failures[place] = Failure(error, by_partner)
            return None
