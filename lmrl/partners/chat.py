"""A chat model behind an OpenAI-compatible endpoint as the partner."""

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from lmrl.envs.registry import partner_prompts
from lmrl.errors import UserError
from lmrl.policies.chat.client import ChatClient
from lmrl.policies.chat.endpoint import without_thoughts
from lmrl.types import PartnerRequest

__all__ = ["PROMPTS_VERSION", "ChatPartner", "conversation"]

PROMPTS_VERSION = 1
"""The version of the prompts; it changes whenever the same request gives another conversation."""

_CONCLUDE = "The talk is over. Conclude now, with nothing but one line that begins with: {begin}"


def conversation(request: PartnerRequest) -> list[dict[str, str]]:
    """Return the messages that a chat model answers as the partner.

    Raises:
        UserError: for a task without prompts, or if the prompt needs a fact that is missing.
    """
    prompts = partner_prompts(request.task)
    try:
        instructions = prompts.instructions(request.facts)
    except KeyError as error:
        raise UserError(f"a partner of {request.task} needs the fact {error}, got {sorted(request.facts)}") from error
    messages = [{"role": "system", "content": instructions}]
    # The policy is the user, the partner the assistant. The newest action has no reply yet.
    for heard, said in zip_longest(request.heard, request.said):
        messages.append({"role": "user", "content": heard.strip()})
        if said is not None:
            messages.append({"role": "assistant", "content": said.strip()})
    if request.begin:
        messages.append({"role": "user", "content": _CONCLUDE.format(begin=request.begin)})
    return messages


# Names that models write before a line of the partner or of the policy; a task's prompts may add more.
_SPEAKERS = ("buyer", "oracle", "resident", "answer", "reply", "assistant", "you")
_OTHERS = ("seller", "player", "user", "question")
_QUOTES = "\"'*`\u201c\u201d "
_CONCLUSION = "Output:"
_READ = 65_536  # characters of an answer that are parsed
_LONGEST = 4_096  # characters of a reply


class ChatPartner:
    """A partner that replies with a chat model; the requests of a turn are sent in parallel.

    Args:
        model: name at the endpoint.
        temperature: sampling temperature; 0 is greedy. The seed of each episode is that of the request.
        settings: other arguments of `ChatClient`: endpoint, limits, budget, cache.

    Raises:
        UserError: see `ChatClient`.
    """

    def __init__(self, model: str, temperature: float | None = 0.0, **settings: Any) -> None:
        self.client = ChatClient(model, temperature=temperature, **settings)

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """One line for each request.

        Raises:
            ChatError: if a request failed; the client's cache keeps the answers to the others.
        """
        seeds = [request.seed for request in requests]
        answers = self.client.complete(list(map(conversation, requests)), seeds)
        return list(map(_line, answers, requests))

    def describe(self) -> dict[str, Any]:
        """See `lmrl.types.Partner`."""
        return {"name": "chat", "prompts": PROMPTS_VERSION, **self.client.describe()}


def _line(answer: str, request: PartnerRequest) -> str:
    """Return the first line of the model in its role, followed by its conclusion if that is on another line.

    Thoughts, names of speakers, quotation marks and lines that the model wrote for the policy are removed.
    """
    prompts = partner_prompts(request.task)
    partner_name = _names(_SPEAKERS + prompts.speakers, " *")
    policy_name = _names(_OTHERS + prompts.others, " ")
    lines: list[str] = []
    for text in without_thoughts(answer)[:_READ].splitlines():
        line = text.strip(_QUOTES)
        if policy_name.match(line):
            break  # the model goes on with the dialogue by itself
        if line:
            name = partner_name.match(line)
            lines.append(line[name.end() :] if name else line)
    # A demanded conclusion may stand on any line.
    wanted = [line for line in lines if request.begin and request.begin in line] or lines[:1]
    for line in lines[1:]:
        if line.startswith(_CONCLUSION) and line not in wanted:
            wanted.append(line)
            break
    return " ".join(wanted)[:_LONGEST].strip(_QUOTES) + "\n"


def _names(names: Sequence[str], space: str) -> re.Pattern[str]:
    return re.compile(f"(?:{'|'.join(map(re.escape, names))}):{space}", re.IGNORECASE)
