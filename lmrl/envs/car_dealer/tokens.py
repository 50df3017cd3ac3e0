"""The texts of Car Dealer that are one token each: words of the seller's and the buyer's sentences, and sums."""

import re
from collections.abc import Mapping
from itertools import chain
from typing import Any

from lmrl.envs.car_dealer.env import HEADER
from lmrl.envs.car_dealer.lines import CHOICES, HINTS, MANNERS, SENTENCES, TERSE, listed, noun
from lmrl.envs.car_dealer.players import SELLER_SENTENCES
from lmrl.envs.task import TaskTokens, words_as_tokens

__all__ = ["tokens"]

# Sums up to this many thousands of dollars begin with one token: the highest MSRP is 1.35 times a budget of 90.
_MAX_THOUSANDS = 150


def tokens(env: Mapping[str, Any]) -> TaskTokens:
    """The words of sentences, wishes and brands, and the thousands and the hundreds of a sum of money."""
    sentences = [*chain.from_iterable(SENTENCES.values()), *TERSE.values(), *chain.from_iterable(HINTS.values())]
    sentences += [*chain.from_iterable(MANNERS.values()), *SELLER_SENTENCES]
    # The braces stand for names, which have tokens of their own.
    texts = [re.sub(r"\{\w+\}", "", sentence) for sentence in sentences]
    texts += [*CHOICES["brand"], *map(noun, CHOICES["type"]), listed(CHOICES["features"])]
    # A word inside a line begins with a space, which is part of its token.
    texts += [f" {text}" for text in texts]
    lines = [HEADER, ".\n", "!\n", *(f",{hundreds}00" for hundreds in range(10))]
    parts = dict(words_as_tokens([*texts, " a an and"], lines=lines).parts)
    # "$31" in "$31,000" is one token, made of the parts "$", 3 ten thousands and 1 thousand.
    for thousands in range(1, _MAX_THOUSANDS + 1):
        digits = ("$", f"{thousands // 10} ten thousands", f"{thousands % 10} thousands")
        parts[f"${thousands}"] = digits
        parts[f" ${thousands}"] = digits
    return TaskTokens(parts)
