"""Texts that no rule expects: what an untrained model, or a hostile one, may say."""

import random
from collections.abc import Iterator, Sequence

__all__ = ["odd_texts"]

_FIXED = (
    "",
    "\n",
    " " * 1000,
    "x" * 100_000,
    "\n" * 5_000,
    "".join(map(chr, range(32))) + "\x7f\x85",
    "\x00",
    "\ufeffmove\u200b\u202e\u2028",
    "нет",
    "左に動く\n",
    "تحرك يسارا\n",
    "👩‍👩‍👧‍👦" * 50,
    "e\u0301" * 100,
    "{}%s%d{0}\\n$(x)`x`'\"",
    "<|endoftext|>",
    "NaN",
    "-1",
)


def odd_texts(legal: Sequence[str], count: int, seed: int) -> Iterator[str]:
    """Yield ``count`` valid Unicode texts: fixed traps first, then random ones and near misses of legal actions."""
    rng = random.Random(seed)
    for index in range(count):
        if index < len(_FIXED):
            yield _FIXED[index]
        elif legal and index % 2:
            yield _near_miss(rng.choice(legal), rng)
        else:
            yield "".join(_character(rng) for _ in range(rng.randrange(60)))


def _near_miss(action: str, rng: random.Random) -> str:
    place = rng.randrange(len(action) + 1)
    return rng.choice(
        [
            action.upper(),
            action.rstrip("\n"),
            action + "\n",
            " " + action,
            action.replace(" ", "  "),
            action * 2,
            action[:place],
            action[:place] + _character(rng) + action[place:],
        ]
    )


def _character(rng: random.Random) -> str:
    code = rng.randrange(0x110000 - 0x800)
    return chr(code if code < 0xD800 else code + 0x800)  # surrogates are no characters
