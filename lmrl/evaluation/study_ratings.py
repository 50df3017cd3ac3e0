"""The ratings that came back, checked against the key of their study."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lmrl.errors import UserError
from lmrl.evaluation.results import read_json

__all__ = ["Ratings", "read_ratings"]

FloatArray: TypeAlias = NDArray[np.float64]

_BEST = 5


@dataclass(frozen=True, slots=True)
class Ratings:
    """Who rated what how.

    Example: two raters, one sample of each of two conditions, the second rater left one out::

        Ratings("5f3a...", ("AB", "CD"), ("0c1f9a3e", "77b2d041"), ("gpt", "mc"), [[4, 5], [3, nan]])
    """

    study: str
    raters: tuple[str, ...]
    samples: tuple[str, ...]
    """Ids in the order of the page."""
    conditions: tuple[str, ...]
    """Of each sample."""
    scores: FloatArray  # (raters, samples)
    """1 to 5; nan where somebody did not rate."""

    def names(self) -> list[str]:
        """The conditions, each once, in the order of the alphabet."""
        return sorted(set(self.conditions))

    def of(self, condition: str) -> FloatArray:
        """The columns of one condition."""
        return self.scores[:, [name == condition for name in self.conditions]]

    def missing(self) -> dict[str, list[str]]:
        """By rater, the ids that they did not rate; only raters who left something out."""
        gaps = zip(self.raters, np.isnan(self.scores), strict=True)
        return {rater: [self.samples[place] for place in np.flatnonzero(gap)] for rater, gap in gaps if gap.any()}


def read_ratings(key: Path, files: Sequence[Path]) -> Ratings:
    """Read what people's pages saved, and put it beside the key.

    Raises:
        UserError: naming the file, for one that is missing or not of this kind, ratings of another study, a rater
            twice or without a name, an id that is not in the key, a rating other than 1, 2, 3, 4, 5, or no rating at
            all. Samples that somebody did not rate are no error, see `Ratings.missing`.
    """
    record = _read(key, study=str, samples=dict)
    places = {name: place for place, name in enumerate(record["samples"])}
    scores = np.full((len(files), len(places)), np.nan)
    raters: dict[str, tuple[str, Path]] = {}
    for row, path in enumerate(files):
        returned = _read(path, study=str, rater=str, ratings=dict)
        if returned["study"] != record["study"]:
            raise UserError(f"{path}: ratings of study {returned['study']!r}, but {key} is of {record['study']!r}")
        _enter(raters, returned["rater"], path)
        for name, rating in _checked(returned["ratings"], places, path, key).items():
            scores[row, places[name]] = rating
    names = tuple(name for name, _ in raters.values())
    return Ratings(record["study"], names, tuple(places), _conditions(record["samples"], key), scores)


def _read(path: Path, **kinds: type[str] | type[dict[str, Any]]) -> dict[str, Any]:
    """A JSON object with these members; others are ignored."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    record = read_json(path)
    for name, kind in kinds.items():
        if not isinstance(record.get(name), kind):
            what = "a text" if kind is str else "a JSON object"
            raise UserError(f"{path}: must have {name!r}, {what}; is it the right file?")
    return record


def _enter(raters: dict[str, tuple[str, Path]], name: str, path: Path) -> None:
    """Note a rater; names that differ only in case and spaces are the same."""
    shown = " ".join(name.split())
    if not shown:
        raise UserError(f"{path}: the rater has no name")
    if shown.casefold() in raters:
        raise UserError(f"{path}: rater {shown!r} already rated in {raters[shown.casefold()][1]}; give each rater once")
    raters[shown.casefold()] = shown, path


def _checked(ratings: Mapping[str, Any], known: Mapping[str, int], path: Path, key: Path) -> Mapping[str, int]:
    if not ratings:
        raise UserError(f"{path}: holds no rating")
    if strange := [name for name in ratings if name not in known]:
        raise UserError(f"{path}: no sample of {key} has the id {', '.join(map(repr, strange[:5]))}")
    for name, rating in ratings.items():
        if type(rating) is not int or not 1 <= rating <= _BEST:  # True is an int, too
            raise UserError(f"{path}: sample {name!r} must be rated 1 to {_BEST}, got {rating!r}")
    return ratings


def _conditions(samples: Mapping[str, Any], key: Path) -> tuple[str, ...]:
    found = [sample.get("condition") if isinstance(sample, dict) else None for sample in samples.values()]
    if not found or not all(isinstance(name, str) for name in found):
        raise UserError(f"{key}: each sample must have a condition; is it the right file?")
    return tuple(map(str, found))
