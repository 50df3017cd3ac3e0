"""Randomness of scripted players: a generator per turn, made from seeds alone."""

from random import Random

from lmrl.protocols import Request

__all__ = ["turn_chance"]


def turn_chance(request: Request) -> Random:
    """A generator that follows from the episode's seed and the turn, and from nothing else.

    So a player's moves do not depend on which other episodes it plays at the same time.
    """
    return Random(f"turn {request.seed} {request.turn}")
