"""What a reasoning model says aloud before it answers."""

import re

__all__ = ["without_thoughts"]

_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


def without_thoughts(answer: str) -> str:
    """The answer without them; nothing if the model never stopped thinking."""
    return _THOUGHTS.sub("", answer)
