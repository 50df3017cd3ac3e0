"""What is done to the text of a chat model before anybody reads it."""

import re

__all__ = ["mended", "without_thoughts"]

_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f]")  # all but white space


def mended(text: str) -> str:
    r"""Valid Unicode without control characters: U+FFFD stands for each of them and for half a surrogate pair.

    Neither Parquet nor UTF-8 can hold a lone surrogate, and JSON may have one (``"\ud83d"``).
    """
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _CONTROL.sub("\ufffd", whole)


def without_thoughts(answer: str) -> str:
    """The answer without what a reasoning model says aloud first; nothing if it never stopped thinking."""
    return _THOUGHTS.sub("", answer)
