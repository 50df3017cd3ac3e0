"""What an answer says about the city. Sets of cities are integers with a bit for each, as in `lmrl.envs.cities`."""

from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from math import log

from lmrl.envs.cities import City, Topic, cities, topics
from lmrl.envs.city_reading import Reading, read_question, values_in
from lmrl.envs.city_truth import truth
from lmrl.envs.city_words import plain_words

__all__ = ["EVERYWHERE", "agreeing", "best_topic", "members"]

EVERYWHERE = (1 << len(cities())) - 1
"""All cities."""


@lru_cache(maxsize=1 << 16)
def agreeing(question: str, answer: str) -> int:
    """The cities of which the answer may be true; all where it says nothing.

    That there is nothing ("There is no sea here.") counts first, then facts that the answer names, then yes and no.
    """
    reading, said = read_question(question), plain_words(answer)
    if reading.places.cities:
        return EVERYWHERE & ~_where(lambda city: city.name in reading.places.cities)
    topic = reading.topic
    if topic is not None and any(plain_words(text) == said for text in topic.without):
        return _where(lambda city: not city.facts[topic.name])
    if topic is not None and not reading.about_country and (named := values_in(answer, topic)):
        return _where(lambda city: not named.isdisjoint(city.every(topic.name))) or EVERYWHERE
    if said[:1] in (("yes",), ("no",), ("not",)) and (reading.about_country or topic is not None):
        return _saying(reading, said[0] == "yes") or EVERYWHERE
    return EVERYWHERE


def members(some: int) -> list[City]:
    """The cities of a set, in order."""
    return [city for place, city in enumerate(cities()) if some >> place & 1]


@lru_cache(maxsize=1 << 14)
def best_topic(some: int) -> Topic:
    """The topic of which the answer to an open question is expected to leave the fewest of these cities."""
    return min(topics(), key=lambda topic: round(_left(members(some), topic), 9))


def _left(some: list[City], topic: Topic) -> float:
    """The expected logarithm of how many cities are left, where nothing but general terms is told."""
    weight: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for city in some:
        values = city.general[topic.name] or ("",)
        for value in values:
            weight[value] += 1 / len(values)
            count[value] += 1
    return sum(weight[value] * log(count[value]) for value in weight)


def _saying(reading: Reading, yes: bool) -> int:
    """The cities where the answer is yes, or is no."""
    return sum(1 << place for place, said in enumerate(_truths(reading)) if said is yes)


@lru_cache(maxsize=1 << 12)
def _truths(reading: Reading) -> tuple[bool | None, ...]:
    return tuple(truth(city, reading) for city in cities())


def _where(holds: Callable[[City], bool]) -> int:
    return sum(1 << place for place, city in enumerate(cities()) if holds(city))
