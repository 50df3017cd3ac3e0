"""A chat model that plays: an endpoint, or a model on this machine."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Protocol

from lmrl.episode import Episode
from lmrl.errors import unknown
from lmrl.models.chat import Messages
from lmrl.policies.chat_prompts import PROMPTS_VERSION, best_examples, conversation, introduction
from lmrl.policies.chat_replies import REPLIES, action_of
from lmrl.policies.chat_tasks import CHAT_TASKS
from lmrl.protocols import Reply, Request

__all__ = ["ChatPolicy", "Speaker"]

_SHOWN = 3
"""Unreadable answers that a description shows, and how much of each."""
_LONGEST = 200


class Speaker(Protocol):
    """Whoever answers conversations: `lmrl.models.chat.ChatClient`, `lmrl.models.chat_local.LocalChat`."""

    def complete(self, batch: Sequence[Messages], seeds: Sequence[int] | None = None) -> list[str]: ...

    def describe(self) -> dict[str, Any]: ...

    def spent(self) -> dict[str, int]: ...


class ChatPolicy:
    r"""Plays a task by prompts: the rules, episodes of the dataset as examples, and the game so far.

    Each turn is one conversation of a system message and a user message; those of all waiting games are asked side by
    side. An answer without an action is played as an empty line, which the rules of most games call illegal, and is
    counted in `describe`.

    Args:
        speaker: who is asked.
        task: name of the task; see `lmrl.policies.chat_tasks` for what is told about it.
        episodes: of the task's dataset; the best of them are the examples.
        reply: ``json`` as published, or ``plain`` for models that cannot keep to it.
        env: arguments of the environment that is played, where the rules depend on them (Wordle's vocabulary).

    Raises:
        UserError: for a task without prompts or another form of reply.
    """

    def __init__(
        self,
        speaker: Speaker,
        task: str,
        episodes: Sequence[Episode] = (),
        reply: str = "json",
        env: Mapping[str, Any] | None = None,
    ) -> None:
        if task not in CHAT_TASKS:
            raise unknown("task with prompts", task, CHAT_TASKS)
        if reply not in REPLIES:
            raise unknown("reply", reply, REPLIES)
        self.speaker, self.replies, self.unreadable = speaker, 0, 0
        self._task, self._form = CHAT_TASKS[task], reply
        self._examples = best_examples(episodes, self._task)
        self._introduction = introduction(self._task, self._task.appendix(env or {}), self._examples, reply)
        self._odd: list[str] = []

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """One action per request.

        Raises:
            ChatError: an answer could not be had; those that came are in the speaker's cache, if it has one.
        """
        batch = [conversation(self._task, self._introduction, request, self._form) for request in requests]
        answers = self.speaker.complete(batch, [_seed(request) for request in requests])
        return [self._read(answer) for answer in answers]

    def describe(self) -> dict[str, Any]:
        """Model and settings, and what came of them so far: replies, how many were unreadable, requests and tokens."""
        return {
            **self.speaker.describe(),
            "prompts": PROMPTS_VERSION,
            "reply": self._form,
            "examples": [{"seed": episode.seed, "return": episode.total_reward} for episode in self._examples],
            "replies": self.replies,
            "unreadable": self.unreadable,
            "unreadable_answers": list(self._odd),
            "spent": self.speaker.spent(),
        }

    def _read(self, answer: str) -> Reply:
        self.replies += 1
        action = action_of(answer, self._form, self._task.key)
        if action is not None:
            return Reply(f"{action}\n")
        self.unreadable += 1
        if len(self._odd) < _SHOWN:
            self._odd.append(answer[:_LONGEST])
        return Reply("\n")


def _seed(request: Request) -> int:
    """Other for each episode and turn, so that equal states are not answered alike by a sampling model."""
    return Random(f"chat {request.seed} {request.turn}").getrandbits(31)
