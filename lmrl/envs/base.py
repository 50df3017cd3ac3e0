"""`TextEnv` and `DialogueEnv`: what all games have in common."""

import operator
import string
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import gymnasium
from gymnasium import spaces

from lmrl.errors import UserError, unknown
from lmrl.types import Partner, PartnerRequest

__all__ = ["DialogueEnv", "Outcome", "TextEnv", "Turn"]

Turn: TypeAlias = tuple[str, float, bool, bool, dict[str, Any]]
"""New text, reward, terminated, truncated, info."""


class TextEnv(gymnasium.Env[str, str]):
    """A one-player text game with Gymnasium's interface.

    ``reset`` and ``step`` return only the new text of this turn; the policy keeps the history. Time limits
    truncate, rules terminate, and any text is an action that the rules answer. Every ``info`` holds

    - ``seed``, ``start``: ``reset(seed=info["seed"], options=info["start"])`` begins the same episode again;
    - ``task_id``: names the instance (which word, which start), whatever the seed that led to it;
    - ``illegal``: whether the rules did not know the action;
    - ``success``: whether the task is solved.

    A game sets `return_range` and implements `_begin`, `_turn` and, if it has more to show than its last text,
    `render`.

    Args:
        render_mode: for Gymnasium's sake; `render` gives text whatever it says.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (declared so by Gymnasium)
    reset_options: ClassVar[tuple[str, ...]] = ()
    """Names that ``reset(options=...)`` understands."""
    return_range: tuple[float, float]
    """Lowest and highest possible sum of rewards of an episode."""

    def __init__(self, render_mode: str | None = "ansi") -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Text(max_length=4096, charset=string.printable)
        self.action_space = spaces.Text(max_length=512, charset=string.printable)
        self._facts: dict[str, Any] = {}
        self._start: dict[str, Any] = {}
        self._text = ""
        self._playing = False

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: decides everything that is random. Without one the next seed is drawn from the generator of the last.
            options: see `reset_options`; what they fix is not random.

        Returns:
            The first text and its ``info``.

        Raises:
            UserError: for a seed that is no natural number, an unknown option, or an option against the rules.
        """
        options = dict(options or {})
        self._check_options(options)
        seed = int(self.np_random.integers(2**31)) if seed is None else _natural(seed)
        super().reset(seed=seed)
        self._text, task_id, self._start, info = self._begin(options)
        self._facts = {"seed": seed, "task_id": task_id}
        self._playing = True
        return self._text, {**self._facts, "start": {**self._start}, "illegal": False, "success": False, **info}

    def step(self, action: str) -> Turn:
        """Play one action.

        Returns:
            New text, reward, terminated, truncated and ``info``.

        Raises:
            UserError: before the first ``reset``, and after the end of an episode.
        """
        self._require_playing()
        return self._ended(self._turn(action))

    def _require_playing(self) -> None:
        if not self._playing:
            raise UserError(f"step() needs a running episode, but {self._why_not()}: call reset() first")

    def _ended(self, turn: Turn) -> Turn:
        """The end of every turn: note what was said, and complete ``info``."""
        text, reward, terminated, truncated, info = turn
        self._playing = not (terminated or truncated)
        self._text = text
        info.update(self._facts)
        info["start"] = {**self._start}  # a copy each time: infos are the caller's to change
        return text, reward, terminated, truncated, info

    def render(self) -> str:
        """The last text (games with a board draw it)."""
        return self._text

    def legal_actions(self) -> Sequence[str]:
        """Actions that are legal now, or some of them; empty where they cannot be listed."""
        return ()

    def _check_options(self, options: Mapping[str, Any]) -> None:
        for name in options:
            if name not in self.reset_options:
                raise unknown("reset option", name, self.reset_options)

    def _begin(self, options: dict[str, Any]) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
        """First text, task id, options that repeat this start, and more for ``info``; ``self.np_random`` is seeded."""
        raise NotImplementedError

    def _turn(self, action: str) -> Turn:
        """Answer one action of a running episode; ``info`` needs ``illegal`` and ``success``."""
        raise NotImplementedError

    def _why_not(self) -> str:
        return "the last one is over" if self._facts else "none has begun"


def _natural(seed: Any) -> int:
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if number < 0 or isinstance(seed, bool):
        raise UserError(f"seed must be a whole number from 0, got {seed!r}")
    return number


Outcome: TypeAlias = "Turn | PartnerRequest"
"""A finished turn, or what the partner has to answer before it is finished."""


class DialogueEnv(TextEnv):
    """A text game with a partner.

    A step has two halves, so that a loop over many environments can ask their common partner once for all of them::

        outcome = env.say(action)
        while isinstance(outcome, PartnerRequest):
            outcome = env.hear(env.partner.reply([outcome])[0])

    `step` does just this. A game implements `_begin`, `_say` and `_hear`. At the beginning and the end of an
    episode ``info`` holds the partner's description, at the end also all ``replies`` as the partner gave them, before
    the rules had their say.

    Args:
        partner: the partner; it may be shared with other environments.
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
        """The first half of a step: the request to the partner, or the turn if no partner is needed.

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
