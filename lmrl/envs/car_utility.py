"""How much a buyer likes what is on the table, what they pay for it, and when they leave.

The model, for a buyer with budget B who is to pay the price P for the car that was described last:

- **worth** is a multiple of B: ``1.15``, for whoever gets all they want goes 15 % above their budget; times ``.75`` if
  the brand is another or unknown, times ``.85`` if the type is, times what the strategy makes of the rest, where *told*
  is the share of the wanted features that the seller named for this car:

  - ``discounts``: ``.95 + .05 told``, times ``.5, .7, .85`` with none, one and two discounts, and ``1`` with three that
    together come to 10 % of the highest price or MSRP that was asked;
  - ``features``: ``.5 + .5 told``;
  - ``impatient``: ``.95 + .05 told``, times ``1, .9, .75`` for up to 7, 8 and more lines heard, a line of more
    than 16 words counting twice; and times ``1, .85, .7`` for up to two, three and more discounts: they do not haggle.

- Each buyer keeps back a share of the worth that follows from the seed, up to ``noise``. What is left is the limit.
  They **accept** a price at or below it (and at or below the MSRP, if they know one) for a car whose brand or type
  they know, in answer to a line without fault.
- They **leave** when their patience is used up: 11 lines (impatient: 9, long ones counting twice), one more for the
  polite, respectful and talkative, one less for the abusive, angry and toxic. Faults cost lines on top, and nothing of
  such a line is taken in: see `lmrl.envs.car_talk.FAULTS`.
- A line that only asks is no offer. A new brand or type is another car, of which nothing is known yet. At most three
  features of a line are taken in. Sums below $5,000 are no MSRP.
"""

from zlib import crc32

from lmrl.envs.car_buyers import Buyer
from lmrl.envs.car_talk import Talk

__all__ = ["accepts", "by_discount", "leaves", "limit"]

_TOTAL_CUT = 0.9
_PATIENCE = {"discounts": 11, "features": 11, "impatient": 9}
_MORE = dict.fromkeys(("polite", "respectful", "talkative"), 1) | dict.fromkeys(("abusive", "angry", "toxic"), -1)
_STRETCH = 1.15
_BY_CUTS = (0.5, 0.7, 0.85, 1.0)


def limit(buyer: Buyer, talk: Talk, kept: float) -> float:
    """The highest price, in dollars, that the buyer pays now; ``kept`` is the share that they keep back."""
    told = len(talk.features & {*buyer.features}) / len(buyer.features)
    worth = _STRETCH * (1 if talk.brand == buyer.brand else 0.75) * (1 if talk.type == buyer.type else 0.85)
    if buyer.strategy == "features":
        worth *= 0.5 + 0.5 * told
    else:
        worth *= 0.95 + 0.05 * told
        worth *= by_discount(talk) if buyer.strategy == "discounts" else _by_haste(talk)
    return worth * (1 - kept) * buyer.budget


def accepts(buyer: Buyer, talk: Talk, noise: float, seed: int) -> bool:
    """Whether the buyer takes the car for the price on the table."""
    kept = noise * crc32(f"kept {seed}".encode()) / 2**32
    offered = bool(talk.price and (talk.brand or talk.type)) and not talk.fault
    return offered and talk.price <= limit(buyer, talk, kept)


def leaves(buyer: Buyer, talk: Talk) -> bool:
    """Whether the buyer has had enough."""
    return talk.lines >= _PATIENCE[buyer.strategy] + _MORE.get(buyer.personality, 0)


def by_discount(talk: Talk) -> float:
    """By what the discounts so far multiply the worth of a car for those who love them; 1 if they are enough."""
    enough = talk.price <= _TOTAL_CUT * talk.highest
    return _BY_CUTS[min(talk.cuts, 3 if enough else 2)]


def _by_haste(talk: Talk) -> float:
    late = 1.0 if talk.lines <= 7 else 0.9 if talk.lines == 8 else 0.75
    return late * (1.0 if talk.cuts <= 2 else 0.85 if talk.cuts == 3 else 0.7)
