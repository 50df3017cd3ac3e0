"""A chat model behind an OpenAI-compatible endpoint as the partner."""

import re
from collections.abc import Sequence
from itertools import takewhile, zip_longest
from typing import Any

from lmrl.envs.registry import partner_prompts
from lmrl.errors import UserError
from lmrl.policies.chat.client import ChatClient
from lmrl.policies.chat.endpoint import without_thoughts
from lmrl.types import PartnerRequest

__all__ = ["PROMPTS_VERSION", "ChatPartner", "conversation"]

PROMPTS_VERSION = 1
"""Goes up whenever the same request gives another conversation."""

_CONCLUDE = "The talk is over. Conclude now, with nothing but one line that begins with: {begin}"


def conversation(request: PartnerRequest) -> list[dict[str, str]]:
    """The messages that a chat model answers as the partner.

    Raises:
        UserError: for a task without prompts, or if one of the facts that it needs is missing.
    """
    prompts = partner_prompts(request.task)
    try:
        told = prompts.instructions(request.facts)
    except KeyError as error:
        raise UserError(f"a second speaker of {request.task} must know {error}, got {sorted(request.facts)}") from error
    messages = [{"role": "system", "content": told}]
    for heard, said in zip_longest(request.heard, request.said):
        messages.append({"role": "user", "content": heard.strip()})
        if said is not None:
            messages.append({"role": "assistant", "content": said.strip()})
    if request.begin:
        messages.append({"role": "user", "content": _CONCLUDE.format(begin=request.begin)})
    return messages


# Before a line of its own, and before one of the other speaker; the prompts of a task may name more.
_SPEAKERS = ("buyer", "oracle", "resident", "answer", "reply", "assistant", "you")
_OTHERS = ("seller", "player", "user", "question")
_QUOTES = "\"'*`\u201c\u201d "
_CONCLUSION = "Output:"
# characters of an answer that are read, and of a line that is said
_READ = 65_536
_LONGEST = 4_096


class ChatPartner:
    """Answers with a chat model; all requests of a turn are asked side by side.

    Args:
        model: name at the endpoint.
        temperature: of sampling; each episode has its own seed, that of the request. 0 is greedy.
        settings: all else that `ChatClient` takes: endpoint, limits, budget, cache.

    Raises:
        UserError: see `ChatClient`.
    """

    def __init__(self, model: str, temperature: float | None = 0.0, **settings: Any) -> None:
        self.client = ChatClient(model, temperature=temperature, **settings)

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """One line for each request.

        Raises:
            ChatError: an answer could not be had; those that came are in the client's cache.
        """
        conversations = [conversation(request) for request in requests]
        answers = self.client.complete(conversations, [request.seed for request in requests])
        return [_line(answer, request) for answer, request in zip(answers, requests, strict=True)]

    def describe(self) -> dict[str, Any]:
        """See `lmrl.types.Partner`."""
        return {"name": "chat", "prompts": PROMPTS_VERSION, **self.client.describe()}


def _line(answer: str, request: PartnerRequest) -> str:
    """Return the first line of the model in its role, and a conclusion if it has a line of its own.

    Thoughts, the name of the speaker, quotation marks around it and what the model made the other one say are left out.
    """
    prompts = partner_prompts(request.task)
    begin = request.begin
    speaker = _names(_SPEAKERS + prompts.speakers, " *")
    stripped = [line.strip(_QUOTES) for line in without_thoughts(answer)[:_READ].splitlines()]
    lines = [line for line in stripped if line]
    own = [speaker.sub("", line, count=1) if speaker.match(line) else line for line in _until(lines, prompts.others)]
    wanted = [line for line in own if begin and begin in line] or own[:1]
    wanted += [line for line in own[1:] if line.startswith(_CONCLUSION) and line not in wanted][:1]
    return " ".join(wanted)[:_LONGEST].strip(_QUOTES) + "\n"


def _names(names: Sequence[str], space: str) -> re.Pattern[str]:
    return re.compile(f"(?:{'|'.join(map(re.escape, names))}):{space}", re.IGNORECASE)


def _until(lines: Sequence[str], others: Sequence[str]) -> list[str]:
    """The lines before the first one of the other speaker."""
    other = _names((*_OTHERS, *others), " ")
    return list(takewhile(lambda line: not other.match(line), lines))
