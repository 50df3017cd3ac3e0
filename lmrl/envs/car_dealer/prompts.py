"""Prompts of Car Dealer for a chat model as the seller, and for models as the buyer.

The paper has no prompt for a chat model that sells. Its trained buyer reads one line with the profile and then the
whole dialogue (appendix C.8); replies are sampled.
"""

from collections.abc import Mapping
from typing import Any

from lmrl.envs.task import ChatPrompt, Guide, PartnerDialogue, PartnerPrompts
from lmrl.types import PartnerRequest

__all__ = ["CHAT", "GUIDE", "PARTNER"]


def _changed_reward(env: Mapping[str, Any]) -> str:
    if env.get("reward", "revenue") == "revenue":
        return ""
    return "The reward is changed: a sale earns the price divided by the mean of the buyer's budget and the list price."


CHAT = ChatPrompt(
    "an experienced car seller",
    """\
You sell cars. The buyer wants a brand, a type and features, has a budget, and will not tell all of it at once. Greet
them, find out what they want, offer a car with its list price (MSRP), and agree on a price. You earn the price that the
buyer pays, in thousands of dollars, and nothing if they leave. Buyers leave who are bored, asked too much or offered
what they do not want. Say one short line at a time.""",
    other="Buyer",
    header="Start",
    appendix=_changed_reward,
)


def _solution(info: Mapping[str, Any]) -> str:
    buyer = info["start"]
    wishes = f"of the type {buyer['type']}, brand {buyer['brand']}, with {', '.join(buyer['features'])}"
    return f"The buyer wanted a car {wishes}, had ${buyer['budget']:,}, and was to be won by: {buyer['strategy']}."


GUIDE = Guide(
    "You sell cars. The buyer wants a brand, a type and features, has a budget, and does not tell all of it at "
    "once. Find out what they want, offer a car with its list price (MSRP), and agree on a price. You earn that "
    "price in thousands of dollars, unless the reward was changed, and nothing if they leave. Buyers leave who are "
    "bored, asked too much, or offered what they do not want.",
    "One short line, as you would say it.",
    ("I have a Toyota sedan for $31,000.", "With respect. That is not my brand. I want a Mercedes-Benz."),
    solution=_solution,
)

_BUYER = """\
You play a person who wants to buy a car and talks to a car seller. The user's messages are what the seller says. You
are {personality} in how you talk (but use no slurs and no threats). You want a car of the brand {brand} and the type
"{type}" with {features}. Your budget is ${budget:,}. {strategy}

Reply with one line of at most twenty words, in your role, without "Buyer:" before it. Do not tell all your wishes at
once. Do not agree to a price that the seller has not named, and do not take a car that does not suit you.

When you buy, end that line with the list price (MSRP) that the seller told and the price that you agreed on, exactly as
here:
Output: Decision=Accept MSRP=$31,000 Buy Price=$29,500
When you have lost patience or know that nothing will come of it, end your line with
Output: Decision=Reject MSRP=$31,000
If no MSRP was told, write the highest price that the seller asked. Write "Output:" only to conclude: the talk is over
then."""

_STRATEGIES = {
    "discounts": "You love discounts: you buy only after the price was cut, better twice or more, by a tenth in all.",
    "features": "You want to hear that the car has each of these features before you pay what it is worth.",
    "impatient": "You are in a hurry: you dislike long lines, many questions and haggling, and soon leave.",
}


def _dialogue(request: PartnerRequest) -> PartnerDialogue:
    first = f"Start\n{request.facts['profile']}{request.heard[0]}"
    heard = (first, *request.heard[1:])
    if not request.begin:
        return heard, tuple(request.said)
    # The environment demands a decision after the buyer's last reply, so the beginning takes the seller's turn.
    return (*heard, request.begin), tuple(request.said)


def _instructions(facts: Mapping[str, Any]) -> str:
    return _BUYER.format(
        personality=facts["personality"],
        brand=facts["brand"],
        type=facts["type"],
        budget=facts["budget"],
        features=", ".join(facts["features"]),
        strategy=_STRATEGIES.get(facts.get("strategy", ""), ""),
    )


PARTNER = PartnerPrompts(_dialogue, _instructions, 1.0, others=("dealer",))
