"""A chat model that plays, at an endpoint or on this machine: its conversation, and the action found in its reply."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Protocol

from lmrl.envs.registry import chat_prompt
from lmrl.envs.task import ChatPrompt
from lmrl.errors import unknown
from lmrl.policies.chat.client import Messages
from lmrl.policies.chat.endpoint import mended, without_thoughts
from lmrl.types import Episode, Reply, Request

__all__ = [
    "PROMPTS_VERSION",
    "REPLIES",
    "ChatPolicy",
    "Speaker",
    "action_of",
    "best_examples",
    "conversation",
    "introduction",
    "system_prompt",
    "transcript",
]

REPLIES = ("json", "plain")
"""Forms of a reply: an object with the action under a key, or the action alone."""

_SPEAKER = re.compile(r"(?:action|answer|assistant|guess|move|seller|you): *", re.IGNORECASE)
_QUOTES = "\"'*`\u201c\u201d "
_READ = 65_536  # characters of an answer, without thoughts; more are not read
_LONGEST_REPLY = 4_096  # characters of an action; what is longer is none


def action_of(answer: str, form: str, key: str) -> str | None:
    """The action in an answer, on one line, without a line end and valid Unicode; None if there is none.

    Args:
        answer: answer of the model.
        form: ``json``: the first object that has the key counts, wherever it stands; ``plain``: the first line that
            says something, without quotation marks and the name of the speaker.
        key: key of the action in an object.
    """
    said = without_thoughts(answer)[:_READ]
    found = _in_object(said, key) if form == "json" else _first_line(said)
    # Mended here, too: an object may spell in ASCII what is no valid Unicode.
    action = " ".join(mended(found or "").split())
    return action if 0 < len(action) <= _LONGEST_REPLY else None


def _in_object(said: str, key: str) -> str | None:
    decoder = json.JSONDecoder()
    at = said.find("{")
    while at >= 0:
        try:
            record, _ = decoder.raw_decode(said, at)
        except (ValueError, RecursionError):
            record = {}
        value = record.get(key)
        if isinstance(value, str) and value.strip():
            return value
        at = said.find("{", at + 1)
    return None


def _first_line(said: str) -> str:
    for line in said.splitlines():
        words = _SPEAKER.sub("", line.strip(_QUOTES), count=1).strip(_QUOTES)
        if words:
            return words
    return ""


PROMPTS_VERSION = 1
"""Goes up whenever the same request gives another conversation."""

_LEAST_TURNS = 3
"""Fewest turns of an episode that is shown as a whole: a lucky guess teaches nothing."""
_JSON = 'Reply with nothing but a JSON object: {{{thought}"{key}": "..."}}'
_PLAIN = "Reply with nothing but your {key}, on one line."


def best_examples(episodes: Sequence[Episode], task: ChatPrompt) -> list[Episode]:
    """The episodes worth showing: not over at once, solved, of the highest return; the first ones of equals."""
    enough = [episode for episode in episodes if len(episode) >= (task.example_turns or _LEAST_TURNS)]
    return sorted(enough, key=lambda episode: (-episode.success, -episode.total_reward))[: task.examples]


def introduction(task: ChatPrompt, appendix: str, examples: Sequence[Episode], form: str) -> str:
    """All that stays the same from turn to turn: rules and examples."""
    parts = [task.rules, appendix]
    for number, episode in enumerate(examples, start=1):
        heading = "An example" if len(examples) == 1 else f"Example {number}"
        texts = _said(episode.observations, episode.actions)
        shown = texts if task.example_turns is None else texts[: 2 * task.example_turns]
        parts.append("\n".join([f"{heading}:", *transcript(task, shown, 0, form)]))
    return "\n\n".join(part for part in parts if part)


def system_prompt(task: ChatPrompt, env: Mapping[str, Any], examples: Sequence[Episode] = ()) -> str:
    """The system message of a dialogue whose user is the game and whose assistant is the policy.

    It holds what `conversation` sends before the game: role, form of the reply, rules and examples.

    Args:
        task: the prompt of the task.
        env: arguments of the environment, on which some rules depend.
        examples: episodes to show.
    """
    ask = _PLAIN.format(key=task.key)
    return f"You are {task.role}. {ask}\n\n{introduction(task, task.appendix(env), examples, 'plain')}"


def conversation(task: ChatPrompt, introduced: str, request: Request, form: str) -> list[dict[str, str]]:
    """The messages that ask for the next action.

    Args:
        task: how the task is put.
        introduced: see `introduction`.
        request: the episode so far.
        form: ``json`` or ``plain``.
    """
    thought = '"thought": "...", ' if task.thought else ""
    ask = _JSON.format(thought=thought, key=task.key) if form == "json" else _PLAIN.format(key=task.key)
    texts = _said(request.observations, request.actions)
    first = 0 if task.last_texts is None else max(0, len(texts) - task.last_texts)
    before = ["..."] if first and task.last_texts != 1 else []
    said = transcript(task, texts[first:], first, form)
    now = "\n".join(["Now you play:", *before, *said])
    return [
        {"role": "system", "content": f"You are {task.role}. {ask}"},
        {"role": "user", "content": "\n\n".join([introduced, now, f"What is your {task.key}? {ask}"])},
    ]


def _said(observations: Sequence[str], actions: Sequence[str]) -> list[str]:
    """All texts in their order; one more observation than actions."""
    both = zip(actions, observations[1:], strict=True)
    return [observations[0], *(text for pair in both for text in pair)]


def transcript(task: ChatPrompt, texts: Sequence[str], first: int, form: str) -> list[str]:
    """The lines of an episode from text ``first`` on; actions look as they are to be said."""
    lines = []
    for number, text in enumerate(texts, start=first):
        if number % 2:
            said = task.own_spelling(text)
            lines.append(f"{task.own}: {json.dumps({task.key: said}) if form == 'json' else said}")
        elif not (number == 0 and text.strip() == task.header):
            lines.append(f"{task.other}: {task.spelling(text)}")
    return lines or ["(You begin.)"]


_SHOWN = 3
"""Unreadable answers that a description shows, and how much of each."""
_MAX_QUOTED_CHARACTERS = 200


class Speaker(Protocol):
    """The interface of chat models: `lmrl.policies.chat.client.ChatClient`, `lmrl.policies.chat.local.LocalChat`."""

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
        task: name of the task; `lmrl.envs.task.ChatPrompt` describes its prompt.
        episodes: episodes of the task's dataset; the best of them are the examples.
        reply: ``json`` as published, or ``plain`` for models that cannot keep to it.
        env: arguments of the environment that is played, where the rules depend on them.
        examples: how many of the episodes are shown at most; None: as many as the task's prompt.

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
        examples: int | None = None,
    ) -> None:
        prompt = chat_prompt(task)
        if examples is not None:
            prompt = replace(prompt, examples=examples)
        if reply not in REPLIES:
            raise unknown("reply", reply, REPLIES)
        self.speaker = speaker
        # A model on this machine answers a few conversations at a time. As many games at once keep its caches.
        slots = getattr(speaker, "slots", None)
        if slots is not None:
            self.slots: int = slots
        self.replies = 0
        self.unreadable = 0
        self._task = prompt
        self._form = reply
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
            self._odd.append(answer[:_MAX_QUOTED_CHARACTERS])
        return Reply("\n")


def _seed(request: Request) -> int:
    """Other for each episode and turn, so that equal states are not answered alike by a sampling model."""
    return Random(f"chat {request.seed} {request.turn}").getrandbits(31)
