"""JSON that comes from files: plain values, or one line that says what is wrong and where."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmrl.errors import UserError, in_one_line

__all__ = ["json_of_file", "parse_json"]

_DEEPEST = 100
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""Half of a character beyond 16 bits: without its other half, no text."""


def parse_json(text: bytes | str, where: str) -> Any:
    """The value of a JSON text in UTF-8.

    Args:
        text: of a file, or of one line of it.
        where: file and place, for the message.

    Raises:
        UserError: it is not UTF-8 or not JSON, is nested more than 100 deep, holds a whole number of more digits than
            Python reads (4,300), or half a character.
    """
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(decoded)
    except RecursionError as error:
        raise UserError(f"{where}: not valid JSON (nested more than {_DEEPEST} deep)") from error
    except ValueError as error:  # among them those of JSON, of UTF-8 and of long numbers
        raise UserError(f"{where}: not valid JSON ({in_one_line(error)})") from error
    if decoded.count("[") + decoded.count("{") > _DEEPEST and _depth(value) > _DEEPEST:
        raise UserError(f"{where}: not valid JSON (nested more than {_DEEPEST} deep)")
    if _HALF.search(decoded) and not _is_unicode(value):
        raise UserError(f"{where}: not valid JSON (holds half a character, such as \\ud83d, which is no Unicode)")
    return value


def json_of_file(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        UserError: there is no such file, or it holds something else.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    found = parse_json(path.read_bytes(), str(path))
    if not isinstance(found, dict):
        raise UserError(f"{path}: must hold a JSON object, got {type(found).__name__}")
    return found


def _depth(value: Any) -> int:
    deepest, waiting = 0, [(value, 0)]
    while waiting:
        found, depth = waiting.pop()
        deepest = max(deepest, depth)
        waiting += [(inner, depth + 1) for inner in _children(found)]
    return deepest


def _children(value: Any) -> Iterator[Any]:
    return iter(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())


def _is_unicode(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
