"""Whether the answer to a question about a city is yes."""

from lmrl.envs.cities import City
from lmrl.envs.city_reading import Reading
from lmrl.envs.city_vocabulary import fact_words

__all__ = ["truth"]

_BIG = ("big", "large", "huge", "megacity", "populou")
_SMALL = ("small", "little", "tiny")
_MORE = ("more", "over", "above", "least", "exceed", "exceeding")
_LESS = ("less", "fewer", "under", "below", "most")
_RANGES = {"less": (0, 2), "two": (2, 5), "five": (5, 10), "more": (10, 50)}
"""Millions of people, by the first word of what the table says."""
_NUMBERS = dict(
    zip("one two three four five six seven eight nine ten twenty".split(), [*range(1, 11), 20], strict=True)
)


def truth(city: City, reading: Reading) -> bool | None:
    """Yes, no, or None where one of them would say too little or too much.

    A question about countries is about where the city is, unless it is about neighbors.
    """
    topic = reading.topic
    if not reading.yes_no or reading.full:
        return None
    if reading.about_country:
        return _in_country(city, reading)
    if topic is None:
        return None
    values = city.facts[topic.name]
    if topic.name == "size":
        return _size(values[0], reading.words)
    if reading.mentions:
        return bool(reading.mentions & {*values} if topic.closed else reading.mentions <= fact_words(city, topic))
    if topic.name == "capital":
        return values == ("a national capital",)
    if topic.name in ("sea", "river"):
        there = any("lake" not in value for value in values) and not reading.strange
        return there != bool({"inland", "landlocked", "far"} & {*reading.words})
    return None


def _in_country(city: City, reading: Reading) -> bool | None:
    if len(reading.places.countries) > 1:
        return None
    (meant,) = reading.places.countries
    return None if city.disputed in meant else city.country in meant


def _size(value: str, words: tuple[str, ...]) -> bool | None:
    """Numbers of millions compared with the range in the table; "big" is from five, "small" below two."""
    least, most = _RANGES[value.split()[0]]
    numbers = [int(word) if word.isdigit() else _NUMBERS.get(word, 0) for word in words]
    if "million" in words and len(found := [number for number in numbers if 0 < number < 100]) == 1:
        more, less = (any(word in signs for word in words) for signs in (_MORE, _LESS))
        if more == less:
            return None
        sure_more, sure_less = least >= found[0], most <= found[0]
        return None if sure_more == sure_less else sure_more == more
    if any(word in _BIG for word in words):
        return least >= 5
    return most <= 2 if any(word in _SMALL for word in words) else None
