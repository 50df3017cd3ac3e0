"""Texts as words, for all that looks for names and facts in them."""

import re
import unicodedata
from collections.abc import Container
from functools import lru_cache

__all__ = ["phrases_in", "plain_words", "stemmed_words"]

_WORD = re.compile(r"[a-z0-9]+")
_SIGNS = {"+": "plus", "-": "minus"}
_OFFSET = re.compile(r"\b(?:utc|gmt) ?([+-])")
_LONGEST = 12


@lru_cache(maxsize=1 << 16)
def plain_words(text: str) -> tuple[str, ...]:
    """Small letters and digits without accents, cut at everything else."""
    bare = unicodedata.normalize("NFKD", text.replace("n't", " not").replace("n\u2019t", " not"))
    small = "".join(sign for sign in bare if not unicodedata.combining(sign)).lower()
    return tuple(_WORD.findall(_OFFSET.sub(lambda found: f"utc {_SIGNS[found[1]]} ", small)))


def stemmed_words(text: str) -> tuple[str, ...]:
    """The same words without the ending of the plural."""
    return tuple(map(_stem, plain_words(text)))


@lru_cache(maxsize=1 << 14)
def _stem(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def phrases_in(words: tuple[str, ...], phrases: Container[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The phrases in a text from left to right; of those that overlap, the one that begins first, then the longest."""
    place, found = 0, []
    while place < len(words):
        for length in range(min(_LONGEST, len(words) - place), 0, -1):
            if (phrase := words[place : place + length]) in phrases:
                found.append(phrase)
                place += length
                break
        else:
            place += 1
    return found
