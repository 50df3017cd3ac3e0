import json
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmrl.contrib.study.ratings import Ratings, read_ratings, study_table
from lmrl.errors import UserError
from tests.helpers.cases import cases

CONDITIONS = {"0a": "mc", "0b": "gpt", "0c": "gpt", "0d": "mc"}
Put = Callable[..., Path]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "page.key.json"
    path.write_text(json.dumps({"study": "s1", "samples": {id: {"condition": c} for id, c in CONDITIONS.items()}}))
    return path


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Write what a rater's page saves."""

    def write(name: str, ratings: Any, rater: Any = "AB", study: str = "s1") -> Path:
        path = tmp_path / name
        path.write_text(json.dumps({"study": study, "rater": rater, "ratings": ratings}))
        return path

    return write


def test_ratings_stand_beside_their_conditions(key: Path, put: Put) -> None:
    first = put("1.json", {"0d": 1, "0c": 2, "0b": 3, "0a": 4})
    second = put("2.json", {"0b": 5}, rater="  C  D ")
    ratings = read_ratings(key, [first, second])
    assert (ratings.study, ratings.raters, ratings.samples) == ("s1", ("AB", "C D"), ("0a", "0b", "0c", "0d"))
    np.testing.assert_array_equal(ratings.scores, [[4, 3, 2, 1], [nan, 5, nan, nan]])
    np.testing.assert_array_equal(ratings.of("mc"), [[4, 1], [nan, nan]])
    assert ratings.names() == ["gpt", "mc"]
    assert ratings.missing() == {"C D": ["0a", "0c", "0d"]}


@cases("rating", [0, 6, -1, 2.5, 3.0, "3", True, None, [3]])
def test_a_rating_is_a_whole_number_from_1_to_5(rating: Any, key: Path, put: Put) -> None:
    with pytest.raises(UserError, match=r"1\.json: sample '0b' must be rated 1 to 5, got"):
        read_ratings(key, [put("1.json", {"0a": 3, "0b": rating})])


def test_what_does_not_belong_is_named(key: Path, put: Put) -> None:
    good = put("1.json", {"0a": 3})
    with pytest.raises(UserError, match=r"2\.json: ratings of study 's2', but .*page\.key\.json is of 's1'"):
        read_ratings(key, [good, put("2.json", {"0a": 3}, study="s2")])
    with pytest.raises(UserError, match=r"2\.json: no sample of .* has the id 'ff'"):
        read_ratings(key, [put("2.json", {"ff": 3, "0a": 3})])
    with pytest.raises(UserError, match=r"2\.json: rater 'ab' already rated in .*1\.json"):
        read_ratings(key, [good, put("2.json", {"0b": 3}, rater=" ab ")])
    with pytest.raises(UserError, match=r"1\.json: rater 'AB' already rated in .*1\.json"):
        read_ratings(key, [good, good])
    with pytest.raises(UserError, match=r"2\.json: the rater has no name"):
        read_ratings(key, [put("2.json", {"0b": 3}, rater="  ")])
    with pytest.raises(UserError, match=r"2\.json: holds no rating"):
        read_ratings(key, [put("2.json", {})])


@cases(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[1]", "must hold a JSON object, got list"),
        (b"{}", "must have 'study', a text; is it the right file"),
        (b'{"study": "s1", "rater": 3, "ratings": {}}', "must have 'rater', a text"),
        (b'{"study": "s1", "rater": "AB", "ratings": [3]}', "must have 'ratings', a JSON object"),
    ],
)
def test_a_file_of_another_kind(content: bytes, message: str, key: Path, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"odd\.json: {message}"):
        read_ratings(key, [path])


def test_a_file_that_is_not_there_and_a_key_that_is_none(key: Path, put: Put, tmp_path: Path) -> None:
    good = put("1.json", {"0a": 3})
    with pytest.raises(UserError, match=r"gone\.json: no such file"):
        read_ratings(key, [tmp_path / "gone.json"])
    with pytest.raises(UserError, match=r"1\.json: must have 'samples', a JSON object"):
        read_ratings(good, [good])
    key.write_text('{"study": "s1", "samples": {"0a": {}}}')
    with pytest.raises(UserError, match="each sample must have a condition"):
        read_ratings(key, [good])


# -- the table --------------------------------------------------------------------------------------------------------


def ratings_of(scores: list[list[float]], conditions: str) -> Ratings:
    ids = tuple(f"{place:08x}" for place in range(len(conditions)))
    raters = tuple(f"rater {row}" for row in range(len(scores)))
    return Ratings("s1", raters, ids, tuple(conditions), np.array(scores, dtype=float))


def test_the_table_by_hand() -> None:
    table = study_table(ratings_of([[5, 1, 4, 2], [4, 2, 3, nan]], "abab"))
    a, b = table.conditions
    assert (a.name, a.samples, a.ratings, a.counts, a.mean, a.good) == ("a", 2, 4, (0, 0, 1, 2, 1), 4.0, 1.0)
    assert (b.name, b.samples, b.ratings, b.counts, b.good) == ("b", 2, 3, (1, 2, 0, 0, 0), 0.0)
    assert b.mean == pytest.approx(5 / 3)
    (pair,) = table.pairs
    assert (pair.first, pair.second, pair.exact, pair.relabellings) == ("a", "b", True, 6)
    assert pair.difference == pytest.approx(4 - 5 / 3)
    assert pair.p == pair.p_holm == pytest.approx(2 / 6)
    assert a.mean_ci == (3.0, 5.0) and a.good_ci == (1.0, 1.0)
    assert pair.difference_ci.low <= pair.difference <= pair.difference_ci.high
    assert table.missing == {"rater 1": ["00000003"]}
    assert json.loads(json.dumps(table.to_dict()))["pairs"][0]["difference_ci"] == list(pair.difference_ci)


def test_a_three_is_good_and_a_two_is_not() -> None:
    (row,) = study_table(ratings_of([[1, 2, 3, 4, 5]], "aaaaa")).conditions
    assert row.good == 3 / 5
    assert 0 <= row.good_ci.low < row.good < row.good_ci.high <= 1


def test_several_pairs_are_corrected_together() -> None:
    table = study_table(ratings_of([[5, 4, 5, 4, 1, 2, 1, 2, 3, 3, 3, 4]], "aaaabbbbcccc"))
    found = {(pair.first, pair.second): (pair.p, pair.p_holm) for pair in table.pairs}
    assert found["a", "b"][0] == pytest.approx(2 / 70)
    assert found["a", "b"][1] == pytest.approx(3 * 2 / 70)
    assert list(found) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert all(p <= p_holm for p, p_holm in found.values())


def test_one_condition_has_no_pairs() -> None:
    table = study_table(ratings_of([[1, 5], [2, 4]], "aa"))
    assert table.pairs == ()
    assert [part.row_count for part in table.shown()] == [1]


def test_a_condition_that_nobody_rated_is_refused() -> None:
    with pytest.raises(UserError, match="nobody rated a sample of condition 'b'"):
        study_table(ratings_of([[3, nan]], "ab"))
