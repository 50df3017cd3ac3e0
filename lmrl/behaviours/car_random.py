"""A seller of Car Dealer who says anything that a seller may say, about any car and for any price."""

from collections.abc import Sequence
from random import Random

from lmrl.behaviours.chance import turn_chance
from lmrl.envs.car_buyers import CHOICES
from lmrl.envs.car_lines import listed, noun
from lmrl.protocols import Reply, Request

__all__ = ["RandomSeller"]

_TEXTS = (
    "Hello! What car are you looking for?",
    "What is your budget?",
    "Which features do you need?",
    "I have a {brand} {type}. The MSRP is {price}.",
    "I can sell it for {price}.",
    "I can give you a discount. Now it is {price}.",
    "It has {features}.",
    "A {brand} {type} for {price}.",
    "It is a very good car.",
    "That is my best price.",
)


class RandomSeller:
    """Draws one of ten sentences, and what it names."""

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A line for each request."""
        return [Reply(_line(turn_chance(request)) + "\n") for request in requests]


def _line(chance: Random) -> str:
    return chance.choice(_TEXTS).format(
        brand=chance.choice(CHOICES["brand"]),
        type=noun(chance.choice(CHOICES["type"])),
        price=f"${chance.randrange(5, 100) * 1_000:,}",
        features=listed(chance.sample(CHOICES["features"], 2)),
    )
