"""The conversation by which a chat model is asked for its next action: rules, examples, the game so far."""

import json
from collections.abc import Sequence

from lmrl.episode import Episode
from lmrl.policies.chat_tasks import ChatTask
from lmrl.protocols import Request

__all__ = ["PROMPTS_VERSION", "best_examples", "conversation", "introduction", "transcript"]

PROMPTS_VERSION = 1
"""Goes up whenever the same request gives another conversation."""

_LEAST_TURNS = 3
"""Of an episode that is shown as a whole: a lucky guess teaches nothing."""
_JSON = 'Reply with nothing but a JSON object: {{{thought}"{key}": "..."}}'
_PLAIN = "Reply with nothing but your {key}, on one line."


def best_examples(episodes: Sequence[Episode], task: ChatTask) -> list[Episode]:
    """The episodes worth showing: not over at once, solved, of the highest return; the first ones of equals."""
    enough = [episode for episode in episodes if len(episode) >= (task.example_turns or _LEAST_TURNS)]
    return sorted(enough, key=lambda episode: (-episode.success, -episode.total_reward))[: task.examples]


def introduction(task: ChatTask, appendix: str, examples: Sequence[Episode], form: str) -> str:
    """All that stays the same from turn to turn: rules and examples."""
    parts = [task.rules, appendix]
    for number, episode in enumerate(examples, start=1):
        heading = "An example" if len(examples) == 1 else f"Example {number}"
        texts = _said(episode.observations, episode.actions)
        shown = texts if task.example_turns is None else texts[: 2 * task.example_turns]
        parts.append("\n".join([f"{heading}:", *transcript(task, shown, 0, form)]))
    return "\n\n".join(part for part in parts if part)


def conversation(task: ChatTask, introduced: str, request: Request, form: str) -> list[dict[str, str]]:
    """The messages that ask for the next action.

    Args:
        task: how the task is put.
        introduced: see `introduction`.
        request: the episode so far.
        form: ``json`` or ``plain``.
    """
    thought = '"thought": "...", ' if task.key == "guess" else ""
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


def transcript(task: ChatTask, texts: Sequence[str], first: int, form: str) -> list[str]:
    """The lines of an episode from text ``first`` on; actions look as they are to be said."""
    lines = []
    for number, text in enumerate(texts, start=first):
        if number % 2:
            said = task.own_spelling(text)
            lines.append(f"{task.own}: {json.dumps({task.key: said}) if form == 'json' else said}")
        elif not (number == 0 and text.strip() == task.header):
            lines.append(f"{task.other}: {task.spelling(text)}")
    return lines or ["(You begin.)"]
