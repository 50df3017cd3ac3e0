"""How a buyer concludes, and what the seller gets for it."""

import re
from dataclasses import dataclass
from typing import Any

from lmrl.errors import UserError

__all__ = ["BEGIN", "Sale", "find_sale"]

BEGIN = "Output: Decision="
"""How a conclusion begins."""
_OUTPUT = re.compile(
    r"Output: ?Decision= ?(Accept|Reject) +MSRP= ?\$?([1-9][\d,]{0,11})(?: +Buy Price= ?(\S*))?", re.ASCII
)
_PRICE = re.compile(r"\$?([1-9]\d{0,2},?\d{0,3})\b(?!,?\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sale:
    """What a buyer decided."""

    bought: bool
    msrp: int
    """In dollars; 0 if unknown."""
    price: int | None = None
    """What was paid, below $1,000,000; None if nothing was bought, or if the price cannot be read."""

    def reward(self, kind: str, budget: int) -> float:
        """What the seller gets, in one of the original's two units.

        ``revenue``: the price in thousands of dollars, 0 without a sale. ``fancy``: the price over the mean of budget
        and MSRP; without a sale ``-(budget - msrp) / msrp``, which is positive for a car above the budget, and 0 if
        there is no MSRP.

        Raises:
            UserError: for another kind.
        """
        if kind == "revenue":
            return (self.price or 0) / 1_000 if self.bought else 0.0
        if kind != "fancy":
            raise UserError(f"reward must be fancy or revenue, got {kind!r:.60}")
        if self.bought:
            return (self.price or 0) / (0.5 * (budget + self.msrp))
        return (self.msrp - budget) / self.msrp if self.msrp else 0.0

    def output(self) -> dict[str, Any]:
        """The record of the original's files."""
        return {"car_bought": self.bought, "msrp": self.msrp, "buy_price": self.price}


def find_sale(line: str) -> tuple[str, Sale | None]:
    """Split a buyer's line into what the seller sees of it and the decision that it holds, if any.

    The decision is recognised anywhere in the line: ``Output: Decision=Accept MSRP=$31,000 Buy Price=$29,500`` or
    ``Output: Decision=Reject MSRP=$31,000``. Its MSRP must begin with 1 to 9.
    """
    match = _OUTPUT.search(line)
    if match is None:
        return line, None
    rest = f"{line[: match.start()].rstrip()} {line[match.end() :].lstrip()}".strip()
    bought, price = match[1] == "Accept", _PRICE.match(match[3] or "")
    paid = int(price[1].replace(",", "")) if bought and price else None
    return rest, Sale(bought, int(match[2].replace(",", "")), paid)
