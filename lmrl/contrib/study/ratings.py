"""Results of a study: ratings checked against their key, their intervals, and tables of conditions and pairs.

Neither two ratings of a person nor two of a dialogue are independent, so samples are relabelled as a whole, and raters
and samples are drawn again as a whole.

Shapes: R raters, S samples of one condition; nan where somebody did not rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, combinations
from math import comb
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from lmrl.errors import UserError
from lmrl.evaluation.intervals import Interval
from lmrl.evaluation.result_json import read_json
from lmrl.report.wording import number, with_interval

__all__ = [
    "ConditionRow",
    "PairRow",
    "Permutation",
    "Ratings",
    "StudyTable",
    "crossed_bootstrap",
    "holm",
    "permutation_test",
    "read_ratings",
    "study_table",
]

FloatArray: TypeAlias = NDArray[np.float64]

_BEST_RATING = 5


@dataclass(frozen=True, slots=True)
class Ratings:
    """The ratings of all raters.

    Example: two raters, one sample of each of two conditions, the second rater left one out::

        Ratings("5f3a...", ("AB", "CD"), ("0c1f9a3e", "77b2d041"), ("gpt", "mc"), [[4, 5], [3, nan]])
    """

    study: str
    raters: tuple[str, ...]
    samples: tuple[str, ...]
    """Ids in the order of the page."""
    conditions: tuple[str, ...]
    """Condition of each sample."""
    scores: FloatArray  # (raters, samples)
    """1 to 5; nan where somebody did not rate."""

    def names(self) -> list[str]:
        """The conditions, each once, in the order of the alphabet."""
        return sorted(set(self.conditions))

    def of(self, condition: str) -> FloatArray:
        """The columns of one condition."""
        return self.scores[:, np.array(self.conditions) == condition]

    def missing(self) -> dict[str, list[str]]:
        """Return the ids that each rater did not rate, for raters who left something out."""
        missing: dict[str, list[str]] = {}
        for rater, sample in np.argwhere(np.isnan(self.scores)):
            missing.setdefault(self.raters[rater], []).append(self.samples[sample])
        return missing


def read_ratings(key: Path, files: Sequence[Path]) -> Ratings:
    """Read what people's pages saved, and put it next to the key.

    Raises:
        UserError: naming the file, for one that is missing or not of this kind, ratings of another study, a rater
            twice or without a name, an id that is not in the key, a rating other than 1, 2, 3, 4, 5, or no rating at
            all. Samples that somebody did not rate are no error, see `Ratings.missing`.
    """
    record = _read(key, study=str, samples=dict)
    conditions = []
    for sample in record["samples"].values():
        condition = sample.get("condition") if isinstance(sample, dict) else None
        if not isinstance(condition, str):
            raise UserError(f"{key}: each sample must have a condition; is it the right file?")
        conditions.append(condition)
    if not conditions:
        raise UserError(f"{key}: each sample must have a condition; is it the right file?")
    places = {name: place for place, name in enumerate(record["samples"])}
    scores = np.full((len(files), len(places)), np.nan)
    names: list[str] = []
    # Names that differ only in case and spaces are the same rater.
    file_of: dict[str, Path] = {}
    for rater, path in enumerate(files):
        returned = _read(path, study=str, rater=str, ratings=dict)
        if returned["study"] != record["study"]:
            raise UserError(f"{path}: ratings of study {returned['study']!r}, but {key} is of {record['study']!r}")
        name = " ".join(returned["rater"].split())
        if not name:
            raise UserError(f"{path}: the rater has no name")
        earlier = file_of.get(name.casefold())
        if earlier is not None:
            raise UserError(f"{path}: rater {name!r} already rated in {earlier}; give each rater once")
        file_of[name.casefold()] = path
        names.append(name)
        for sample, rating in _checked(returned["ratings"], places, path, key).items():
            scores[rater, places[sample]] = rating
    return Ratings(record["study"], tuple(names), tuple(places), tuple(conditions), scores)


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


def _checked(ratings: Mapping[str, Any], known: Mapping[str, int], path: Path, key: Path) -> Mapping[str, int]:
    if not ratings:
        raise UserError(f"{path}: holds no rating")
    strange = [name for name in ratings if name not in known]
    if strange:
        raise UserError(f"{path}: no sample of {key} has the id {', '.join(map(repr, strange[:5]))}")
    for name, rating in ratings.items():
        if type(rating) is not int or not 1 <= rating <= _BEST_RATING:  # True is an int, too
            raise UserError(f"{path}: sample {name!r} must be rated 1 to {_BEST_RATING}, got {rating!r}")
    return ratings


_EXACT = 200_000
"""Relabellings up to which all of them are looked at."""
_DRAWS = 99_999
_CHUNK = 2_000_000
"""Numbers shuffled at once."""
_TIE = 1e-9
"""Differences closer than this are equal: two orders of the same sum differ by rounding only."""


class Permutation(NamedTuple):
    """Outcome of a permutation test."""

    p: float
    relabellings: int
    """Number that was looked at, the real one among them."""
    exact: bool
    """These were all there are."""


def permutation_test(a: FloatArray, b: FloatArray, seed: int = 0) -> Permutation:
    """Two-sided test of whether two conditions are rated alike.

    If they are, it is chance which samples bear which name. So the names are dealt to the samples again, the same for
    all raters: within each rater the labels are permuted, and all ratings of a sample stay together. The statistic is
    the difference of the two means of sample values; a sample's value is the mean of its ratings, each less the mean
    of all that its rater gave to the two conditions. If everybody rated everything this is the difference of the mean
    ratings.

    ``p`` is the share of relabellings, the real one among them, whose statistic is at least as far from zero as the
    real one. All ``comb(S_a + S_b, S_a)`` are looked at if there are at most 200,000. Otherwise 99,999 are drawn, and
    ``p = (1 + those at least as far) / 100,000`` (Phipson and Smyth 2010).

    Args:
        a: ratings of the first condition, (R, S_a).
        b: ratings of the second condition by the same raters, (R, S_b).
        seed: seed of the drawing, if not all are looked at.

    Raises:
        UserError: a condition without any rating, or other raters in ``a`` than in ``b``.
    """
    if len(a) != len(b) or np.isnan(a).all() or np.isnan(b).all():
        raise UserError(f"a test needs ratings of both conditions by the same raters, got shapes {a.shape}, {b.shape}")
    values, size = _sample_values(a, b)
    # Under the null hypothesis every set of `size` samples is as likely to be the one named `a`. The real one is first.
    total = comb(len(values), size)
    exact = total <= _EXACT
    sums = _all_sums(values, size) if exact else _drawn_sums(values, size, seed)
    others = values.sum() - sums
    differences = np.abs(sums / size - others / (len(values) - size))
    as_far = int(np.count_nonzero(differences >= differences[0] - _TIE))
    return Permutation(as_far / len(differences), len(differences), exact)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p-values: rejecting those at most alpha keeps the chance of any false one below alpha."""
    order = np.argsort(ps, kind="stable").tolist()
    adjusted = [0.0] * len(ps)
    largest = 0.0
    for rank, place in enumerate(order):
        # The smallest of n is multiplied by n, the next by n - 1, ..., and none may be below one before it.
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = largest
    return adjusted


def crossed_bootstrap(groups: Sequence[FloatArray], seed: int = 0, resamples: int = 10_000) -> FloatArray:
    """Mean ratings when raters and samples are both drawn again with replacement (Owen 2007, the pigeonhole bootstrap).

    Quantiles of a column are an interval for a condition's mean, those of the difference of two columns one for the
    difference: the raters drawn are the same for all groups.

    Args:
        groups: ratings (R, S_g) of each condition by the same raters.
        seed: seed of the drawing.
        resamples: how often.

    Returns:
        (resamples, groups); nan where a draw held no rating of the group.
    """
    generator = np.random.default_rng(seed)
    # How often each rater is drawn, (resamples, R); the same for all groups.
    raters = _drawn(len(groups[0]), generator, resamples)
    means = np.full((resamples, len(groups)), np.nan)
    for place, group in enumerate(groups):
        samples = _drawn(group.shape[1], generator, resamples)  # (resamples, S_g)
        # A rating counts as often as its rater was drawn, times as often as its sample was.
        given = ~np.isnan(group)
        counts = ((raters @ given) * samples).sum(axis=1)
        sums = ((raters @ np.where(given, group, 0.0)) * samples).sum(axis=1)
        np.divide(sums, counts, out=means[:, place], where=counts > 0)
    return means


def _sample_values(a: FloatArray, b: FloatArray) -> tuple[FloatArray, int]:
    """The value of each sample that somebody rated, those of ``a`` first, and how many are of ``a``."""
    both = np.hstack([a, b])
    given = np.asarray(~np.isnan(both))
    both = both[given.any(axis=1)]  # raters who rated anything
    rated = np.asarray(given.any(axis=0))
    # Some raters are milder than others: only the distance to their own mean counts.
    centred = (both - np.nanmean(both, axis=1, keepdims=True))[:, rated]
    return np.nanmean(centred, axis=0), int(np.count_nonzero(rated[: a.shape[1]]))


def _all_sums(values: FloatArray, size: int) -> FloatArray:
    """The sum over each set of ``size`` samples; the first is that of the first ``size``."""
    places = chain.from_iterable(combinations(range(len(values)), size))
    chosen = np.fromiter(places, dtype=np.intp, count=size * comb(len(values), size))
    return np.asarray(values[chosen.reshape(-1, size)].sum(axis=1), dtype=np.float64)


def _drawn_sums(values: FloatArray, size: int, seed: int) -> FloatArray:
    """The sum over the first ``size`` samples, and over random sets of as many."""
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK // len(values))  # shuffled in blocks, to bound the memory
    sums = [values[:size].sum(keepdims=True)]
    for start in range(0, _DRAWS, rows):
        deals = np.tile(values, (min(rows, _DRAWS - start), 1))
        sums.append(generator.permuted(deals, axis=1)[:, :size].sum(axis=1))
    return np.concatenate(sums)


def _drawn(count: int, generator: np.random.Generator, resamples: int) -> FloatArray:
    """Return how often each of ``count`` comes up in as many draws with replacement, (resamples, count)."""
    return generator.multinomial(count, np.full(count, 1 / count), size=resamples).astype(np.float64)


_GOOD = 3
"""The published study counts ratings from here on (Abdulhai et al. 2025)."""


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """Ratings of one condition; intervals are 95 %, over raters and samples."""

    name: str
    samples: int
    """That somebody rated."""
    ratings: int
    counts: tuple[int, ...]
    """Ratings of 1, 2, 3, 4 and 5."""
    mean: float
    mean_ci: Interval
    good: float
    """Share of the ratings that are 3 or more."""
    good_ci: Interval


@dataclass(frozen=True, slots=True)
class PairRow:
    """Whether two conditions differ, see `permutation_test`."""

    first: str
    second: str
    difference: float
    """Mean rating of the first less that of the second."""
    difference_ci: Interval
    p: float
    p_holm: float
    """Corrected for the number of pairs."""
    relabellings: int
    exact: bool


@dataclass(frozen=True, slots=True)
class StudyTable:
    """Everything that ``lmrl study table`` tells."""

    study: str
    raters: tuple[str, ...]
    missing: dict[str, list[str]]
    """By rater, the ids that they did not rate."""
    conditions: tuple[ConditionRow, ...]
    pairs: tuple[PairRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-like values."""
        return asdict(self)

    def shown(self) -> list[Table]:
        """Tables for a terminal: conditions, and pairs if there are any."""
        rated = Table("condition", "samples", "ratings", "mean [95 %]", f"rated >= {_GOOD} [95 %]")
        for row in self.conditions:
            good = with_interval(row.good, row.good_ci, scale=100) + " %"
            rated.add_row(
                Text(row.name), str(row.samples), str(row.ratings), with_interval(row.mean, row.mean_ci, 2), good
            )
        compared = Table("pair", "difference [95 %]", "p", "p (Holm)", "relabellings")
        for pair in self.pairs:
            difference = with_interval(pair.difference, pair.difference_ci, 2)
            looked_at = f"{'all' if pair.exact else 'drawn'} {pair.relabellings}"
            names = f"{pair.first} - {pair.second}"
            compared.add_row(Text(names), difference, number(pair.p, 4), number(pair.p_holm, 4), looked_at)
        return [rated, compared] if self.pairs else [rated]


def study_table(ratings: Ratings, seed: int = 0) -> StudyTable:
    """Means, shares and tests.

    Args:
        ratings: ratings of all raters.
        seed: seed of resampling and, for large studies, of drawing relabellings.

    Raises:
        UserError: a condition without ratings.
    """
    names = ratings.names()
    groups = []  # one (R, S) array per condition
    good_groups = []
    for name in names:
        group = ratings.of(name)
        if np.isnan(group).all():
            raise UserError(f"nobody rated a sample of condition {name!r}")
        groups.append(group)
        good_groups.append(np.where(np.isnan(group), np.nan, group >= _GOOD))
    means = crossed_bootstrap(groups, seed)
    shares = crossed_bootstrap(good_groups, seed)
    rows = []
    for place, (name, group) in enumerate(zip(names, groups, strict=True)):
        given = group[~np.isnan(group)]
        rows.append(
            ConditionRow(
                name=name,
                samples=int((~np.isnan(group)).any(axis=0).sum()),
                ratings=given.size,
                counts=tuple(np.bincount(given.astype(int), minlength=_BEST_RATING + 1)[1:].tolist()),
                mean=float(given.mean()),
                mean_ci=_middle(means[:, place]),
                good=float((given >= _GOOD).mean()),
                good_ci=_middle(shares[:, place]),
            )
        )
    pairs = _pairs(names, groups, means, seed)
    return StudyTable(ratings.study, ratings.raters, ratings.missing(), tuple(rows), tuple(pairs))


def _pairs(names: Sequence[str], groups: Sequence[FloatArray], means: FloatArray, seed: int) -> list[PairRow]:
    pairs = list(combinations(range(len(names)), 2))
    tests = [permutation_test(groups[a], groups[b], seed) for a, b in pairs]
    adjusted = holm([test.p for test in tests])  # needs the p-values of all pairs
    rows = []
    for (a, b), test, p_holm in zip(pairs, tests, adjusted, strict=True):
        difference = float(np.nanmean(groups[a]) - np.nanmean(groups[b]))
        # Both means come from the same resamples, so what the two conditions have in common cancels out.
        interval = _middle(means[:, a] - means[:, b])
        rows.append(PairRow(names[a], names[b], difference, interval, test.p, p_holm, test.relabellings, test.exact))
    return rows


def _middle(draws: FloatArray) -> Interval:
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return Interval(float(low), float(high))
