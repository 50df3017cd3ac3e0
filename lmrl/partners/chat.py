"""A chat model behind an OpenAI-compatible endpoint as the second speaker."""

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from lmrl.models.chat import ChatClient
from lmrl.models.chat_text import without_thoughts
from lmrl.partners.chat_prompts import PROMPTS_VERSION, conversation
from lmrl.protocols import PartnerRequest

__all__ = ["ChatPartner"]

_SPEAKER = re.compile(r"(?:buyer|oracle|resident|answer|reply|assistant|you): *", re.IGNORECASE)
_OTHER = re.compile(r"(?:seller|dealer|player|user|question): ", re.IGNORECASE)
_QUOTES = "\"'*`\u201c\u201d "
_CONCLUSION = "Output:"
_READ, _LONGEST = 65_536, 4_096  # characters of an answer that are read, and of a line that is said


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
        return [_line(answer, request.begin) for answer, request in zip(answers, requests, strict=True)]

    def describe(self) -> dict[str, Any]:
        """See `lmrl.protocols.Partner`."""
        return {"name": "chat", "prompts": PROMPTS_VERSION, **self.client.describe()}


def _line(answer: str, begin: str) -> str:
    """What the model says in its role: the first line, and a conclusion where that has a line of its own.

    Thoughts, the name of the speaker, quotation marks around it and what the model made the other one say are left out.
    """
    lines = [text for line in without_thoughts(answer)[:_READ].splitlines() if (text := line.strip(_QUOTES))]
    own = [_SPEAKER.sub("", line, count=1) if _SPEAKER.match(line) else line for line in _until_other(lines)]
    wanted = [line for line in own if begin and begin in line] or own[:1]
    wanted += [line for line in own[1:] if line.startswith(_CONCLUSION) and line not in wanted][:1]
    return " ".join(wanted)[:_LONGEST].strip(_QUOTES) + "\n"


def _until_other(lines: Sequence[str]) -> list[str]:
    return list(takewhile(lambda line: not _OTHER.match(line), lines))
