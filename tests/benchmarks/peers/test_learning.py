"""Learning beside TRL: both sides play and learn, and the time to a return is read off a curve."""

from pathlib import Path

import pytest

pytest.importorskip("trl")

from benchmarks.peers import learning


@pytest.mark.nightly
def test_both_sides_play_rounds_that_return_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = learning.start_of("wordle", tmp_path / "start")
    mine = learning.ours("wordle", start, tmp_path / "ours", 4, rounds=2)
    other = learning.theirs("wordle", start, tmp_path / "theirs", 4, rounds=2)
    assert len(mine) == len(other) == 2
    for curve in (mine, other):
        for _, played in curve:
            assert -3.6 < played < -2.6, "128 games of the policy that both start from return -3.1, give or take .1"
    assert mine[0][0] < mine[1][0]
    assert other[0][0] < other[1][0]


def test_the_time_to_a_return_is_that_of_the_first_rounds_that_reach_it() -> None:
    curve = [(float(second), played) for second, played in enumerate([0.0, 4.0, 0.0, 0.0, 2.0, 2.0, 4.0, 4.0])]
    assert learning.seconds_to(curve, 1.0) == 3.0
    assert learning.seconds_to(curve, 2.0) == 6.0
    assert learning.seconds_to(curve, 5.0) is None
