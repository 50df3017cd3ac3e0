"""The scripted partner of Guess My City: it lives in the city, answers, and keeps the name to itself."""

from collections.abc import Sequence
from random import Random
from typing import Any

from lmrl.envs.cities import City, Topic, city_named, topics
from lmrl.envs.city_guard import REFUSALS, guessed
from lmrl.envs.city_reading import Reading, read_question
from lmrl.envs.city_truth import truth
from lmrl.errors import UserError
from lmrl.protocols import PartnerRequest

__all__ = ["ScriptedResident"]

_YES = ("Yes.", "Yes, that is true.", "Yes, you are right.")
_NO = ("No.", "No, that is wrong.", "No, it is not so.")
_HARDLY = ("Not especially.", "Not that I know.")
"""For what may be true though we are not known for it."""
_WRONG_CITY = ("No, I live elsewhere.", "No, it is another city.", "No, wrong city.")
_UNSURE = ("I am not sure.", "That is hard to say.", "I do not know that.")
_ONE_AT_A_TIME = "One place at a time, please."
_DISPUTED = "That is disputed."
_GENERAL = ("food", "landmark", "culture", "industry", "history")
_MAIN = ("language",)
"""Closed topics in which the table has the main thing only."""


class ScriptedResident:
    """A partner without weights: the same words for the same request.

    Questions are understood by the words in them, in any phrasing. Facts are told in one of several short sentences;
    the seed and the number of questions choose which. What nobody wrote down is answered evasively.

    Args:
        noise: probability of an evasive answer to a question that has a better one. It never says what is false.
        candor: probability that it tells about a topic in detail ("pad thai") where it has general terms ("noodles");
            drawn once for an episode and topic, so that asking again does not help.

    Raises:
        UserError: for ``noise`` or ``candor`` that is no probability.
    """

    def __init__(self, noise: float = 0.0, candor: float = 0.1) -> None:
        for name, share in (("noise", noise), ("candor", candor)):
            if not 0 <= share <= 1:
                raise UserError(f"{name} must be from 0 to 1, got {share}")
        self.noise, self.candor = float(noise), float(candor)

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """One line for each request."""
        return [self._reply(request) for request in requests]

    def describe(self) -> dict[str, Any]:
        """Name, version and settings."""
        return {"name": "scripted resident", "version": 1, "noise": self.noise, "candor": self.candor}

    def _reply(self, request: PartnerRequest) -> str:
        chance = Random(f"resident {request.seed} {len(request.heard)}")
        if self.noise and chance.random() < self.noise:
            return chance.choice(_UNSURE) + "\n"
        question, city = request.heard[-1], city_named(request.facts["city"])
        reading = read_question(question)
        text = _about_names(city, question, reading, chance) or self._fact(city, reading, chance, request.seed)
        return text + "\n"

    def _fact(self, city: City, reading: Reading, chance: Random, seed: int) -> str:
        said = truth(city, reading)
        if said is not None:
            return _by_yes_or_no(city, reading, said, chance)
        if reading.about_country:
            return _DISPUTED if len(reading.places.countries) == 1 and city.disputed else _ONE_AT_A_TIME
        topic = reading.topic
        if topic is None and reading.general:
            name = chance.choice(_GENERAL)
            topic = next(topic for topic in topics() if topic.name == name)
        if topic is None:
            return _HARDLY[-1] if reading.strange and reading.yes_no else chance.choice(_UNSURE)
        candid = self.candor > 0 and Random(f"candid {seed} {topic.name}").random() < self.candor
        return _sentence(topic, (city.facts if candid else city.general)[topic.name], chance)


def _about_names(city: City, question: str, reading: Reading, chance: Random) -> str:
    """The answer to a question that names cities or asks for names; "" to any other."""
    if len(reading.places.cities) > 1:
        return _ONE_AT_A_TIME
    if guess := guessed(question):
        return chance.choice(_YES if guess == city.name else _WRONG_CITY)
    if reading.places.cities:  # "Is it near Rome?": the answer must not depend on whether it is Rome
        return chance.choice(_UNSURE)
    return chance.choice(REFUSALS) if reading.name else ""


def _by_yes_or_no(city: City, reading: Reading, said: bool, chance: Random) -> str:
    topic = reading.topic
    if topic is not None and topic.name == "capital" and not reading.about_country:
        return f"{'Yes' if said else 'No'}, it is {city.facts['capital'][0]}."
    soft = topic is not None and (not topic.closed or topic.name in _MAIN) and not reading.about_country
    return chance.choice(_YES if said else _HARDLY if soft else _NO)


def _sentence(topic: Topic, values: tuple[str, ...], chance: Random) -> str:
    if not values:
        return chance.choice(topic.without)
    text = chance.choice(topic.sentences).format(chance.choice(values))
    return text[0].upper() + text[1:]
