"""`DialogueEnv`: games in which somebody answers. Who it is comes from outside."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from lmrl.envs.base import TextEnv, Turn
from lmrl.protocols import Partner, PartnerRequest

__all__ = ["DialogueEnv", "Outcome"]

Outcome: TypeAlias = "Turn | PartnerRequest"
"""A finished turn, or what the partner has to answer before it is finished."""


class DialogueEnv(TextEnv):
    """A text game with a second speaker.

    A step has two halves, so that whoever runs many environments can ask their common partner once for all of them::

        outcome = env.say(action)
        while isinstance(outcome, PartnerRequest):
            outcome = env.hear(env.partner.reply([outcome])[0])

    `step` does just this. A game implements `_begin`, `_say` and `_hear`. At the beginning and the end of an
    episode ``info`` holds the partner's description, at the end also all ``replies`` as the partner gave them, before
    the rules had their say.

    Args:
        partner: the second speaker; it may be shared with other environments.
        render_mode: see `TextEnv`.
    """

    def __init__(self, partner: Partner, render_mode: str | None = "ansi") -> None:
        super().__init__(render_mode)
        self.partner = partner
        self._replies: list[str] = []

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """See `TextEnv.reset`."""
        text, info = super().reset(seed=seed, options=options)
        self._replies = []
        return text, {**info, "partner": self.partner.describe()}

    def step(self, action: str) -> Turn:
        """See `TextEnv.step`."""
        outcome = self.say(action)
        while isinstance(outcome, PartnerRequest):
            outcome = self.hear(self.partner.reply([outcome])[0])
        return outcome

    def say(self, action: str) -> Outcome:
        """The first half of a step: what the partner is asked, or the turn, if nobody needs to be asked.

        Raises:
            UserError: see `TextEnv.step`.
        """
        self._require_playing()
        return self._checked(self._say(action))

    def hear(self, reply: str) -> Outcome:
        """The second half: the turn, or what the partner is asked in addition."""
        self._replies.append(reply)
        return self._checked(self._hear(reply))

    def _checked(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, PartnerRequest):
            return outcome
        turn = self._ended(outcome)
        if not self._playing:
            turn[4].update(partner=self.partner.describe(), replies=[*self._replies])
        return turn

    def _say(self, action: str) -> Outcome:
        raise NotImplementedError

    def _hear(self, reply: str) -> Outcome:
        raise NotImplementedError
