import pytest

from lmrl.envs.registry import BENCHMARK
from lmrl.envs.scores import ALGORITHMS, normalize
from tests.helpers.cases import cases

PUBLISHED = {row.name: row.scores for row in BENCHMARK}
# What the constants make of the raw scores, worked out by hand.
FROM_CONSTANTS = {
    "maze_fo": (57.2, 67.5, 72.9, 99.9, 79.7, 57.4, 78.4),
    "maze_po": (53.1, 50.1, 52.4, 76.3, 25.8, 53.1, 36.1),
    "text_nav_fo": (58.8, 68.9, 75.0, 91.9, 87.2, 74.3, 67.6),
    "text_nav_po": (48.1, 65.5, 71.6, 83.8, 86.5, 68.2, 40.4),
    "wordle": (80.0, 79.1, 95.0, 97.7, 84.2, 95.2, 15.4),
    "chess": (47.2, 42.9, 46.5, 47.3, 48.0, 47.2, 39.8),
    "endgames": (35.1, 17.7, 50.2, 45.8, 77.5, 35.1, -689),
    "twenty_questions": (63.8, 78.7, 86.2, 83.0, 75.5, 55.3, 95.7),
    "guess_city": (58.8, 67.6, 87.1, 80.8, 68.1, 33.3, 92.3),
    "car_dealer": (44.5, 54.8, 57.2, 46.3, 50.5, 40.4, 53.5),
}


def test_ten_rows_in_the_order_of_the_paper() -> None:
    assert list(PUBLISHED) == list(FROM_CONSTANTS)


@cases("name", PUBLISHED)
def test_normalised_raw_scores(name: str) -> None:
    scores = PUBLISHED[name]
    ours = [normalize(scores.raw[algorithm], scores) for algorithm in ALGORITHMS]
    assert ours == pytest.approx(FROM_CONSTANTS[name], abs=0.11 if name != "endgames" else 0.5)


@cases("name", PUBLISHED)
def test_a_row_whose_print_does_not_follow_has_a_note(name: str) -> None:
    scores = PUBLISHED[name]
    off = max(abs(normalize(scores.raw[algorithm], scores) - scores.normalized[algorithm]) for algorithm in ALGORITHMS)
    assert scores.note or off < 0.15
    assert off < 0.15 or "From the constants" in scores.note or "from the constants" in scores.note


def test_the_three_points_of_the_scale_and_no_clipping() -> None:
    scores = PUBLISHED["maze_fo"]
    assert [normalize(raw, scores) for raw in (-101, -83, -6.84)] == [0, 50, pytest.approx(100)]
    assert normalize(-92, scores) == 25
    assert normalize(-83 + 76.16 / 2, scores) == pytest.approx(75)
    assert normalize(-401, scores) == pytest.approx(-50 * 300 / 18)
    assert normalize(0, scores) > 100
