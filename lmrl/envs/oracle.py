"""The scripted oracle of Twenty Questions: it knows the table and answers any question by yes or no."""

from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Any

from lmrl.envs.objects import place_of
from lmrl.envs.question_meaning import meaning
from lmrl.errors import UserError
from lmrl.protocols import PartnerRequest

__all__ = ["ScriptedOracle", "scripted_oracle"]

_VERSION = 1
"""Goes up whenever the same question gets another answer."""


class ScriptedOracle:
    r"""A `Partner` that answers ``Yes.\n`` or ``No.\n`` by the table; what it does not understand is answered by no.

    Args:
        noise: probability with which an answer is turned round; it follows from the episode's seed and the turn.

    Raises:
        UserError: for a number that is no probability.
    """

    def __init__(self, noise: float = 0.0) -> None:
        if not 0 <= noise <= 1:
            raise UserError(f"noise must be from 0 to 1, got {noise}")
        self.noise = float(noise)

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """An answer for each request; ``facts`` must have the hidden ``word``."""
        return ["Yes.\n" if self._answer(request) else "No.\n" for request in requests]

    def describe(self) -> dict[str, Any]:
        """Name, version and noise."""
        return {"name": "scripted", "version": _VERSION, "noise": self.noise}

    def _answer(self, request: PartnerRequest) -> bool:
        yes = bool(meaning(request.heard[-1]) >> place_of()[request.facts["word"]] & 1)
        if not self.noise:
            return yes
        return yes != (Random(f"noise {request.seed} {len(request.heard)}").random() < self.noise)


@lru_cache(maxsize=16)
def scripted_oracle(noise: float = 0.0) -> ScriptedOracle:
    """One oracle for all environments that ask for the same, so that they ask it together."""
    return ScriptedOracle(noise)
