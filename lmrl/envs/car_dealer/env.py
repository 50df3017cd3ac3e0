"""Car Dealer: sell a car to a buyer who does not reveal at once what they want, can pay, and are won by."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lmrl.envs.base import DialogueEnv, Opening, Turn
from lmrl.envs.car_dealer.buyer import ScriptedBuyer
from lmrl.envs.car_dealer.lines import CHOICES, draw_buyer, read
from lmrl.errors import UserError
from lmrl.types import Partner, PartnerRequest

__all__ = ["BEGIN", "HEADER", "LINES", "CarDealer", "Sale", "find_sale"]

BEGIN = "Output: Decision="
"""The beginning of a conclusion."""
# The buyer's conclusion: decision, MSRP and price. Language models vary spaces, dollar signs and commas.
_OUTPUT = re.compile(
    r"Output: ?Decision= ?(Accept|Reject) +MSRP= ?\$?([1-9][\d,]{0,11})(?: +Buy Price= ?(\S*))?", re.ASCII
)
_PRICE = re.compile(r"\$?([1-9]\d{0,2},?\d{0,3})\b(?!,?\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sale:
    """The decision of a buyer."""

    bought: bool
    msrp: int
    """In dollars; 0 if unknown."""
    price: int | None = None
    """The price paid, below $1,000,000; None if nothing was bought, or if the price cannot be read."""

    def reward(self, kind: str, budget: int) -> float:
        """Return the seller's reward in one of the original's two units.

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
        """Return the record as in the original's files."""
        return {"car_bought": self.bought, "msrp": self.msrp, "buy_price": self.price}


def find_sale(line: str) -> tuple[str, Sale | None]:
    """Split a buyer's line into what the seller sees of it and the decision that it holds, if any.

    The decision is recognised anywhere in the line: ``Output: Decision=Accept MSRP=$31,000 Buy Price=$29,500`` or
    ``Output: Decision=Reject MSRP=$31,000``. Its MSRP must begin with 1 to 9.
    """
    match = _OUTPUT.search(line)
    if match is None:
        return line, None
    # The seller sees the line without the conclusion.
    rest = f"{line[: match.start()].rstrip()} {line[match.end() :].lstrip()}".strip()
    bought = match[1] == "Accept"
    price = _PRICE.match(match[3] or "")
    paid = int(price[1].replace(",", "")) if bought and price else None
    return rest, Sale(bought, int(match[2].replace(",", "")), paid)


HEADER = "Start\n"
LINES = (
    "Hello! What car are you looking for?\n",
    "What is your budget?\n",
    "Which features do you need?\n",
    "I have a BMW sedan. The MSRP is $33,000.\n",
    "I can sell it for $31,000.\n",
    "I can give you a discount. Now it is $29,000.\n",
    "It has heated seats and a sunroof.\n",
    "A Toyota truck for $45,000.\n",
    "It is a very good car.\n",
)
"""Some lines that a seller may say; any other line is legal, too."""
_MAX_LINE_CHARACTERS = 512  # characters of the seller's line
_NOISE = 0.1


class CarDealer(DialogueEnv):
    r"""A sale as a dialogue. The policy is the seller and speaks first; seller and buyer say one line each in turn.

    The buyer's profile is hidden; their lines reveal it. A buyer concludes by ``Output: Decision=Accept MSRP=$31,000
    Buy Price=$29,500`` or ``Output: Decision=Reject MSRP=$31,000`` somewhere in their line. The seller does not see
    this part, and the episode **terminates**. After ``max_texts`` lines of both, the buyer is asked once more, for a
    reply that begins with ``Output: Decision=``; if it holds no decision either, nothing is sold.

    Only the end is rewarded. ``info`` then holds ``output`` (the decision, or None), and ``revenue`` and ``fancy``, the
    reward in either unit (see `Sale`). ``info["success"]``: a car was bought.
    A line without a to z or a digit is illegal; the buyer gets it like any other. Several lines of an action are joined
    to one, and cut after 512 characters. Source: LMRL-Gym, section 4, appendix C.8, and its code for profiles and
    rewards.

    Args:
        partner: the buyer; None: `ScriptedBuyer`.
        reward: ``revenue``, in thousands of dollars, in which the published scores are; or ``fancy``, in which the
            published dataset statistics are.
        noise: noise of the scripted buyer.
        max_texts: lines of both before the buyer has to decide; even, 50 in the original.
        render_mode: see `TextEnv`.

    Raises:
        UserError: for another ``reward``, a number out of range, or ``noise`` together with a partner.
    """

    reset_options: ClassVar[tuple[str, ...]] = tuple(CHOICES)

    def __init__(
        self,
        partner: Partner | None = None,
        reward: str = "revenue",
        noise: float = _NOISE,
        max_texts: int = 50,
        render_mode: str | None = "ansi",
    ) -> None:
        if partner is not None and noise != _NOISE:
            raise UserError(
                f"noise must be left out where a partner is given: only the scripted buyer has it; got {noise}"
            )
        super().__init__(ScriptedBuyer(noise) if partner is None else partner, render_mode)
        if reward not in ("revenue", "fancy"):
            raise UserError(f"reward must be revenue or fancy, got {reward!r:.60}")
        if max_texts < 2 or max_texts % 2:
            raise UserError(f"max_texts must be an even number from 2, got {max_texts}")
        self.reward = reward
        self.max_texts = max_texts
        # An MSRP of $1, and a price of $999,999: what no scripted buyer says, but a language model may.
        self.return_range = (0.0, 999.999) if reward == "revenue" else (-89_999.0, 200.0)
        self._buyer = draw_buyer(np.random.default_rng(0), {})
        self._known: dict[str, Any] = {}  # the facts that the partner gets
        self._deciding = False  # whether the buyer has been asked for the decision
        self._heard: list[str] = []  # the seller's lines
        self._said: list[str] = []  # the buyer's replies

    def render(self) -> str:
        """Return all lines so far."""
        lines = [HEADER]
        for heard, said in zip(self._heard, self._said, strict=False):
            lines += (f"Seller: {heard}", f"Buyer: {said}")
        return "".join(lines)

    def legal_actions(self) -> tuple[str, ...]:
        """Return some lines that make sense; all others are legal too."""
        return LINES

    def begin(self, options: dict[str, Any]) -> Opening:
        self._buyer = draw_buyer(self.np_random, options)
        self._heard = []
        self._said = []
        self._deciding = False
        start = self._buyer.facts()
        self._known = {**start, "profile": self._buyer.prompt}
        return Opening(HEADER, task_id=" ".join(map(str, start.values())), start=start)

    def on_action(self, action: str) -> PartnerRequest:
        del self._heard[len(self._said) :]  # the last line, if the partner failed to answer it
        self._heard.append(" ".join(action.split())[:_MAX_LINE_CHARACTERS] + "\n")
        return self._ask("")

    def _ask(self, begin: str) -> PartnerRequest:
        self._deciding = bool(begin)
        return PartnerRequest(
            "car_dealer", self._known, tuple(self._heard), tuple(self._said), self._facts["seed"], begin
        )

    def on_reply(self, reply: str) -> Turn | PartnerRequest:
        line = " ".join(reply.split())
        if self._deciding:
            # Some partners continue the given beginning of the reply, others repeat it.
            return self._concluded(find_sale(line)[1] or find_sale(BEGIN + line)[1])
        shown, sale = find_sale(line)
        self._said.append(f"{shown}\n")
        if sale is not None:
            return self._concluded(sale)
        if 2 * len(self._said) >= self.max_texts:
            return self._ask(BEGIN)
        return Turn(self._said[-1], 0.0, terminated=False, truncated=False, info=self._info(False))

    def _concluded(self, sale: Sale | None) -> Turn:
        info = self._info(bool(sale and sale.bought))
        info["output"] = sale.output() if sale else None
        # Both units of the reward are recorded, whichever of them the policy gets.
        for kind in ("revenue", "fancy"):
            info[kind] = sale.reward(kind, self._buyer.budget) if sale else 0.0
        return Turn(self._said[-1], info[self.reward], terminated=True, truncated=False, info=info)

    def _info(self, success: bool) -> dict[str, Any]:
        return {"illegal": not read(self._heard[-1]).words, "success": success}
