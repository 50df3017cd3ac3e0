"""What a study found: a row for each condition and one for each pair of them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from lmrl.errors import UserError
from lmrl.evaluation.intervals import Interval
from lmrl.evaluation.study_ratings import Ratings
from lmrl.evaluation.study_statistics import crossed_bootstrap, holm, permutation_test
from lmrl.evaluation.wording import number, with_interval

__all__ = ["ConditionRow", "PairRow", "StudyTable", "study_table"]

FloatArray: TypeAlias = NDArray[np.float64]

_GOOD = 3
"""The published study counts ratings from here on (Abdulhai et al. 2025)."""


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """How one condition was rated; intervals are 95 %, over raters and samples."""

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
            rated.add_row(row.name, str(row.samples), str(row.ratings), with_interval(row.mean, row.mean_ci, 2), good)
        compared = Table("pair", "difference [95 %]", "p", "p (Holm)", "relabellings")
        for pair in self.pairs:
            difference = with_interval(pair.difference, pair.difference_ci, 2)
            looked_at = f"{'all' if pair.exact else 'drawn'} {pair.relabellings}"
            names = f"{pair.first} - {pair.second}"
            compared.add_row(names, difference, number(pair.p, 4), number(pair.p_holm, 4), looked_at)
        return [rated, compared] if self.pairs else [rated]


def study_table(ratings: Ratings, seed: int = 0) -> StudyTable:
    """Means, shares and tests.

    Args:
        ratings: of all raters.
        seed: of resampling and, for large studies, of drawing relabellings.

    Raises:
        UserError: a condition that nobody rated.
    """
    names = ratings.names()
    groups = [ratings.of(name) for name in names]
    for name, group in zip(names, groups, strict=True):
        if np.isnan(group).all():
            raise UserError(f"nobody rated a sample of condition {name!r}")
    means = crossed_bootstrap(groups, seed)
    shares = crossed_bootstrap([_good(group) for group in groups], seed)
    rows = [
        _row(name, group, means[:, place], shares[:, place])
        for place, (name, group) in enumerate(zip(names, groups, strict=True))
    ]
    pairs = _pairs(names, groups, means, seed)
    return StudyTable(ratings.study, ratings.raters, ratings.missing(), tuple(rows), tuple(pairs))


def _good(group: FloatArray) -> FloatArray:
    return np.where(np.isnan(group), np.nan, group >= _GOOD)


def _row(name: str, group: FloatArray, means: FloatArray, shares: FloatArray) -> ConditionRow:
    given = group[~np.isnan(group)]
    return ConditionRow(
        name=name,
        samples=int((~np.isnan(group)).any(axis=0).sum()),
        ratings=given.size,
        counts=tuple(int((given == score).sum()) for score in range(1, 6)),
        mean=float(given.mean()),
        mean_ci=_middle(means),
        good=float((given >= _GOOD).mean()),
        good_ci=_middle(shares),
    )


def _pairs(names: Sequence[str], groups: Sequence[FloatArray], means: FloatArray, seed: int) -> list[PairRow]:
    pairs = list(combinations(range(len(names)), 2))
    tests = [permutation_test(groups[a], groups[b], seed) for a, b in pairs]
    rows = []
    for (a, b), test, p_holm in zip(pairs, tests, holm([test.p for test in tests]), strict=True):
        difference = float(np.nanmean(groups[a]) - np.nanmean(groups[b]))
        interval = _middle(means[:, a] - means[:, b])
        rows.append(PairRow(names[a], names[b], difference, interval, test.p, p_holm, test.relabellings, test.exact))
    return rows


def _middle(draws: FloatArray) -> Interval:
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return Interval(float(low), float(high))
