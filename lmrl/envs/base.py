"""The base classes of all games, `TextEnv` and `DialogueEnv`, and the records that their hooks return."""

import operator
import string
from collections.abc import Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import gymnasium
from gymnasium import spaces

from lmrl.errors import UserError, unknown
from lmrl.types import Partner, PartnerRequest, ask

__all__ = ["DialogueEnv", "Opening", "TextEnv", "Turn"]


class Opening(NamedTuple):
    """The beginning of an episode, as `TextEnv.begin` returns it."""

    text: str
    """The first observation; not empty, because a policy needs something to read."""
    task_id: str
    """Name of the instance (which word, which start). Seeds that lead to the same instance give the same name."""
    start: Mapping[str, Any]
    """Reset options that repeat this beginning under the same seed; values that JSON can hold."""
    info: Mapping[str, Any] = MappingProxyType({})
    """More entries for the ``info`` of ``reset``."""


class Turn(NamedTuple):
    """The answer to an action: Gymnasium's tuple of five, with names."""

    text: str
    """The new observation, without the texts before it."""
    reward: float
    """The reward of this action alone, undiscounted."""
    terminated: bool
    """Whether the rules ended the episode."""
    truncated: bool
    """Whether a time limit ended the episode; never together with ``terminated``."""
    info: dict[str, Any]
    """Facts about the turn, see `TextEnv`."""


class TextEnv(gymnasium.Env[str, str]):
    """A one-player text game with Gymnasium's interface.

    ``reset`` and ``step`` return only the new text of this turn; the policy keeps the history. Time limits
    truncate, rules terminate, and any text is an action that the rules answer. Every ``info`` holds

    - ``seed``, ``start``: ``reset(seed=info["seed"], options=info["start"])`` begins the same episode again;
    - ``task_id``: names the instance (which word, which start), whatever the seed that led to it;
    - ``illegal``: whether the rules did not know the action;
    - ``success``: whether the task is solved.

    A game sets `return_range` and implements the hooks `begin` and `turn`. It overrides `legal_actions` if it can list
    them, and `render` if it has more to show than its last text.

    Args:
        render_mode: part of Gymnasium's interface, without effect: `render` always returns text.
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
        self._facts: dict[str, Any] = {}  # entries of every ``info`` of the episode
        self._start: dict[str, Any] = {}  # reset options that repeat the episode's beginning
        self._text = ""
        self._playing = False

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: decides everything that is random. Without one, the next seed is drawn from the generator of the last.
            options: see `reset_options`; what they fix is not random.

        Returns:
            The first text and its ``info``.

        Raises:
            UserError: for a seed that is no natural number, an unknown option, or an option against the rules.
        """
        options = dict(options or {})
        self._check_options(options)
        # Without a seed, the generator of the last episode draws one; so info["seed"] repeats any episode.
        seed = int(self.np_random.integers(2**31)) if seed is None else _natural(seed)
        super().reset(seed=seed)
        opening = self.begin(options)
        self._text = opening.text
        self._start = deepcopy(dict(opening.start))
        self._facts = {"seed": seed, "task_id": opening.task_id}
        self._playing = True
        # `start` is copied each time, because the caller may change its info.
        info = {**self._facts, "start": deepcopy(self._start), "illegal": False, "success": False, **opening.info}
        return opening.text, info

    def step(self, action: str) -> Turn:
        """Play one action.

        Returns:
            The turn: new text, reward, terminated, truncated and ``info``.

        Raises:
            UserError: before the first ``reset``, and after the end of an episode.
        """
        self._require_playing()
        return self._ended(self.turn(action))

    def _require_playing(self) -> None:
        if not self._playing:
            why = "the last one is over" if self._facts else "none has begun"
            raise UserError(f"step() needs a running episode, but {why}: call reset() first")

    def _ended(self, turn: Turn) -> Turn:
        """Note the end of a turn, and add the facts of the episode to its ``info``."""
        text, _, terminated, truncated, info = turn
        self._playing = not (terminated or truncated)
        self._text = text
        info.update(self._facts)
        info["start"] = deepcopy(self._start)
        return turn

    def render(self) -> str:
        """Return the last text (games with a board draw it)."""
        return self._text

    def legal_actions(self) -> Sequence[str]:
        """Return actions that are legal now, all or some of them; empty if they cannot be listed."""
        return ()

    def _check_options(self, options: Mapping[str, Any]) -> None:
        for name in options:
            if name not in self.reset_options:
                raise unknown("reset option", name, self.reset_options)

    def begin(self, options: dict[str, Any]) -> Opening:
        """Set up a new episode (hook of every game; ``reset`` calls it).

        All that is random must be drawn from ``self.np_random``, which ``reset`` has just seeded.

        Args:
            options: the reset options of the caller; their names are among `reset_options`, their values are not
                checked yet.

        Returns:
            The first text, the name of the instance, the options that repeat it, and more for ``info``.

        Raises:
            UserError: for an option whose value is against the rules.
        """
        raise NotImplementedError

    def turn(self, action: str) -> Turn:
        """Answer one action of a running episode (hook of every game without a partner; ``step`` calls it).

        Args:
            action: any text. An illegal one is answered by the rules and never raises.

        Returns:
            The turn. Its ``info`` needs ``illegal`` (bool: whether the rules did not know the action) and, at least at
            the end of the episode, ``success`` (bool). ``final_observation`` (str) is optional: the text that the
            policy would have read after a truncation, if it differs from ``text``. ``step`` adds ``seed``, ``task_id``
            and ``start``; episodes leave out ``error`` and ``group``, which rollouts write themselves.
        """
        raise NotImplementedError


def _natural(seed: Any) -> int:
    # Whole numbers of NumPy and torch count, booleans do not.
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if number < 0 or isinstance(seed, bool):
        raise UserError(f"seed must be a whole number from 0, got {seed!r}")
    return number


class DialogueEnv(TextEnv):
    """A text game with a partner.

    A step has two halves, so that a loop over many environments can ask their common partner for all replies at once::

        outcome = env.say(action)
        while isinstance(outcome, PartnerRequest):
            outcome = env.hear(env.partner.reply([outcome])[0])

    `step` does just this. A game implements the hooks `begin`, `on_action` and `on_reply`. At the beginning and the end
    of an episode ``info`` holds the partner's description, at the end also all ``replies`` as the partner gave them,
    before the rules change them.

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
            outcome = self.hear(ask(self.partner, [outcome])[0])
        return outcome

    def say(self, action: str) -> Turn | PartnerRequest:
        """Take the first half of a step.

        Returns:
            The request to the partner, or the turn if the partner is not needed.

        Raises:
            UserError: see `TextEnv.step`.
        """
        self._require_playing()
        return self._checked(self.on_action(action))

    def hear(self, reply: str) -> Turn | PartnerRequest:
        """Take the second half of a step.

        Returns:
            The turn, or another request if the partner has to answer once more.
        """
        self._replies.append(reply)
        return self._checked(self.on_reply(reply))

    def _checked(self, outcome: Turn | PartnerRequest) -> Turn | PartnerRequest:
        if isinstance(outcome, PartnerRequest):
            return outcome
        turn = self._ended(outcome)
        if not self._playing:
            turn.info.update(partner=self.partner.describe(), replies=[*self._replies])
        return turn

    def on_action(self, action: str) -> Turn | PartnerRequest:
        """Take the policy's action (hook of every dialogue; `say` calls it).

        Args:
            action: any text. An illegal one never raises.

        Returns:
            The question for the partner, or the finished turn where the game answers by itself. ``info`` of a turn
            needs the same keys as in `TextEnv.turn`.
        """
        raise NotImplementedError

    def on_reply(self, reply: str) -> Turn | PartnerRequest:
        """Take the partner's reply to the last request (hook of every dialogue; `hear` calls it).

        Args:
            reply: any text, as the partner wrote it.

        Returns:
            The finished turn (``info`` as in `TextEnv.turn`), or another question for the partner.
        """
        raise NotImplementedError
