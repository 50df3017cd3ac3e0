"""The texts of Car Dealer that are one token each: words of both speakers' sentences, and sums in thousands."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from lmrl.envs.car_dealer.env import HEADER
from lmrl.envs.car_dealer.lines import CHOICES, HINTS, MANNERS, SENTENCES, TERSE, listed, noun
from lmrl.envs.car_dealer.players import SELLER_SENTENCES
from lmrl.envs.task import TaskTokens, words_as_tokens

__all__ = ["tokens"]

_MOST = 150
"""Thousands of dollars up to which a sum begins with one token: the dearest MSRP is 1.35 times a budget of 90."""


def tokens(env: Mapping[str, Any]) -> TaskTokens:
    """The words of sentences, wishes and brands, the thousands of a sum of money and what follows its comma."""
    sentences = [*_texts(SENTENCES), *TERSE.values(), *_texts(HINTS), *_texts(MANNERS), *SELLER_SENTENCES]
    named = [*CHOICES["brand"], *map(noun, CHOICES["type"]), listed(CHOICES["features"])]
    words = [re.sub(r"\{\w+\}", "", text) for text in sentences]
    inside = (f" {text}" for text in (*words, *named))  # of a line, after a space
    sums = {f"{space}${thousands}": _tens(thousands) for thousands in range(1, _MOST + 1) for space in ("", " ")}
    found = words_as_tokens([*words, *named, *inside, " a an and"], lines=[HEADER, ".\n", "!\n", *_hundreds()])
    return TaskTokens({**found.parts, **sums})


def _texts(kinds: Mapping[str, Iterable[str]]) -> list[str]:
    return [text for texts in kinds.values() for text in texts]


def _tens(thousands: int) -> tuple[str, ...]:
    return ("$", f"{thousands // 10} ten thousands", f"{thousands % 10} thousands")


def _hundreds() -> list[str]:
    return [f",{hundreds}00" for hundreds in range(10)]
