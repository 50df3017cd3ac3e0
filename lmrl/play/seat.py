"""One policy or person that plays one episode, turn by turn, what a page shows of it, and an advisor's move."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

from lmrl import play
from lmrl.envs.base import DialogueEnv, TextEnv
from lmrl.envs.registry import guide, make_picture
from lmrl.envs.registry import task as task_named
from lmrl.errors import UserError
from lmrl.report.pages import episode_facts, rounded, said, shown_text
from lmrl.rollout import MakeEnv, Slot, step_together
from lmrl.types import Episode, LoadedPolicy, Policy, Reply, Request, Start, Valued

__all__ = ["AGAIN", "Advice", "Move", "Seat", "advise", "value_of"]

AGAIN = "Send it again to play it all the same."
"""To a person, behind `lmrl.envs.task.Guide.slip`."""

_LONGEST = 40
"""Characters of an illegal action in a note."""


class Advice(NamedTuple):
    """A move, without the ends of its line, and V of the state; None for a player without values."""

    move: str
    value: float | None
    reply: Reply
    """The move as the policy wrote it."""


def advise(policy: Policy, request: Request) -> Advice:
    """Return the policy's action and its V."""
    reply = policy.act([request])[0]
    return Advice(reply.text.strip(), value_of(policy, request), reply)


def value_of(policy: Policy, request: Request) -> float | None:
    """V of the state in which the policy is asked; None if it has no values."""
    return float(policy.state_values([request])[0]) if isinstance(policy, Valued) else None


@runtime_checkable
class _Squares(Protocol):
    """A game on a board."""

    def moves_by_squares(self) -> Mapping[str, str]: ...


class Move(NamedTuple):
    """An action of a player and its value of the state (None if it has no values)."""

    reply: Reply
    value: float | None


class Seat:
    """One player at one episode.

    Args:
        task: name of the task.
        make_env: makes its environment.
        seed: seed of the episode.
        name: name of the player.
        loaded: the policy that plays; None for a person.
        place: a number that no other seat of the game has.
        env: arguments of the environment.
    """

    def __init__(
        self,
        task: str,
        make_env: MakeEnv,
        seed: int,
        name: str,
        loaded: LoadedPolicy | None,
        place: int = 0,
        env: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.over = False
        self.notes: list[str] = []
        """Notes on each observation in words (`lmrl.envs.task.Guide.note`): one more than there are turns."""
        self._task = task
        self._make_env = make_env
        self._loaded = loaded
        self._guide = guide(task)
        self._env = {**task_named(task).kwargs, **(env or {})}
        self._slot = Slot(make_env(), place)
        self._slot.begin(0, Start(seed))
        # The slot may get a new environment, so the picture asks for the current one.
        self._drawn = make_picture(task, lambda: self._slot.env)
        self._terminated = False
        self._values: list[float | None] = []
        self._words: list[list[list[Any]] | None] = []
        self._write_note()

    @property
    def person(self) -> bool:
        """Whether a person plays."""
        return self._loaded is None

    @property
    def dialogue(self) -> bool:
        """Whether there is a partner."""
        return isinstance(self._slot.env, DialogueEnv)

    def legal(self) -> list[str]:
        """Return in readable form what can be played now, in dialogues some of it; empty where it cannot be listed."""
        env = self._slot.env
        listed = env.legal_actions() if isinstance(env, TextEnv) else ()
        return [self._guide.spelling(action).rstrip("\n") for action in listed]

    def request(self) -> Request:
        """Return the current request to the player."""
        return self._slot.request()

    def move(self, typed: str | None) -> Move:
        """Return the player's next action without taking it.

        Args:
            typed: the line that a person typed.

        Raises:
            UserError: it is a person's turn, and nothing was typed.
        """
        if self._loaded is not None:
            request = self.request()
            policy = self._loaded.policy
            return Move(policy.act([request])[0], value_of(policy, request))
        if typed is None:
            raise UserError("an action is needed: it is a person's turn")
        return Move(Reply(f"{typed}\n"), None)

    def play(self, move: Move) -> None:
        """Take an action. If the environment or its partner fails, the episode stays where it was.

        It ends if the environment cannot be brought back there.
        """
        try:
            (turn,) = step_together([(self._slot.index, self._slot.env, move.reply.text)])
        except Exception:
            # The environment may be half a turn further: replay the episode in a new one.
            try:
                self._slot.renew(self._make_env)
            except Exception:
                self.over = True
            raise
        assert turn is not None
        self._terminated, truncated = self._slot.record_step(move.reply, turn)
        self.over = self._terminated or truncated
        self._values.append(move.value)
        self._write_note()

    def episode(self) -> Episode:
        """The episode as far as it went."""
        return self._slot.episode(self._task, self._terminated, self.over and not self._terminated)

    def words_of(self, policy: LoadedPolicy, reply: Reply) -> list[list[Any]] | None:
        """Return the tokens of an action that was not taken, with their values; None for a policy without them."""
        # The values are computed from whole episodes, so the action is added as a last turn.
        so_far = self.episode()
        ids = so_far.action_ids or ((),) * len(so_far)
        imagined = replace(
            so_far,
            observations=(*so_far.observations, ""),
            actions=(*so_far.actions, reply.text),
            rewards=(*so_far.rewards, 0.0),
            action_ids=(*ids, reply.ids),
            action_logprobs=(),
            action_values=(),
            terminated=True,  # so that the empty last observation is not read
            truncated=False,
        )
        return play.words_from(policy, imagined, len(so_far))[0]

    def solution(self, leaving: bool = False) -> str:
        """Return the hidden solution in one sentence; empty without one, or before the end unless they resign."""
        return self._guide.solution(self._slot.info) if self.over or leaving else ""

    def _write_note(self) -> None:
        request = self.request()
        note = self._guide.note(request, self._env)
        if not note and request.actions and request.info.get("illegal"):
            note = f"{request.actions[-1].strip()[:_LONGEST] or 'An empty line'} is an illegal action."
        self.notes.append(note)

    def state(self) -> dict[str, Any]:
        """Return the state of the page, JSON-like. A person's own game shows no more than the observations."""
        episode = self.episode()
        # Values of tokens cost a forward pass, so they are computed for new turns only, and only for a page.
        first = len(self._words)
        has_values = any(value is not None for value in self._values)
        if self._loaded is not None and has_values:
            self._words += play.words_from(self._loaded, episode, first)
        else:
            self._words += [None] * (len(episode) - first)
        texts = []
        readable = []
        for text in said(episode):
            texts.append(shown_text(text))
            readable.append(shown_text(self._guide.spelling(text)))
        is_playing = self.person and not self.over
        # A click on the board is translated into a move; the page knows no rules.
        board = self._slot.env if is_playing else None
        picture: dict[str, Any] = {"kind": ""}
        states = None
        if self._drawn is not None:
            facts, states = self._drawn.live(episode, hidden=is_playing)
            picture = {"kind": self._drawn.kind, **facts}
        return {
            "name": shown_text(self.name),
            "person": self.person,
            "over": self.over,
            **episode_facts(episode),
            "said": texts,
            "shown": readable,
            "notes": list(map(shown_text, self.notes)),
            "solution": shown_text(self.solution()),
            "values": [rounded(value, 3) for value in self._values],
            "words": [*self._words],
            "moves": dict(board.moves_by_squares()) if isinstance(board, _Squares) else {},
            "picture": picture,
            "states": states,
        }

    def close(self) -> None:
        """Close the environment."""
        self._slot.env.close()
