"""What a chat model wants to do, found in what it says."""

import json
import re

from lmrl.models.chat_text import mended, without_thoughts

__all__ = ["REPLIES", "action_of"]

REPLIES = ("json", "plain")
"""Forms of a reply: an object with the action under a key, or the action alone."""

_SPEAKER = re.compile(r"(?:action|answer|assistant|guess|move|seller|you): *", re.IGNORECASE)
_QUOTES = "\"'*`\u201c\u201d "
_READ = 65_536  # characters of an answer, without thoughts; more are not read
_LONGEST = 4_096  # characters of an action; what is longer is none


def action_of(answer: str, form: str, key: str) -> str | None:
    """The action in an answer, on one line, without a line end and valid Unicode; None if there is none.

    Args:
        answer: of the model.
        form: ``json``: the first object that has the key counts, wherever it stands; ``plain``: the first line that
            says something, without quotation marks and the name of the speaker.
        key: of the action in an object.
    """
    said = without_thoughts(answer)[:_READ]
    found = _in_object(said, key) if form == "json" else _first_line(said)
    # Mended here, too: an object may spell in ASCII what is no valid Unicode.
    action = " ".join(mended(found or "").split())
    return action if 0 < len(action) <= _LONGEST else None


def _in_object(said: str, key: str) -> str | None:
    decoder, at = json.JSONDecoder(), said.find("{")
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
    lines = (line.strip(_QUOTES) for line in said.splitlines())
    return next((words for line in lines if (words := _SPEAKER.sub("", line, count=1).strip(_QUOTES))), "")
