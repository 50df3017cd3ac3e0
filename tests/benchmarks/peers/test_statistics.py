"""Point estimates are rliable's."""

import pytest

pytest.importorskip("rliable")

from benchmarks.peers import statistics


@pytest.mark.parametrize("shape", statistics.SHAPES)
@pytest.mark.parametrize("ties", [False, True])
def test_point_estimates_are_those_of_rliable(shape: tuple[int, int], ties: bool) -> None:
    assert max(statistics.gaps(shape, ties).values()) <= 1e-9
