"""Whatever is sent to a served task, it is answered, and afterwards it plays as before."""

from collections import Counter

import pytest

pytest.importorskip("websockets")

from benchmarks.hostile import is_whole, served, try_requests


def test_hostile_requests_are_answered_and_nothing_crashes() -> None:
    """The first of those of ``python -m benchmarks hostile``."""
    with served() as url:
        outcomes = list(try_requests(url, 300, seed=1))
        assert is_whole(url)
    assert [outcome for outcome in outcomes if outcome.what == "fault"] == []
    ways = Counter(outcome.way for outcome in outcomes)
    assert set(ways) == {"messages", "http", "frames", "bytes"}
    counted = Counter(outcome.what for outcome in outcomes)
    assert counted["refused"] > 150 and counted["answered"] > 20
