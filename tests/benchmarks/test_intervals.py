"""The simulated evaluations: that they run, and what the truth is that intervals are held against."""

import numpy as np
import pytest

from benchmarks import intervals


def test_every_interval_is_simulated() -> None:
    rows = list(intervals.run(simulations=1))
    assert len(rows) == 10 and {row.value for row in rows} <= {0.0, 100.0}


@pytest.mark.parametrize("draw", [intervals.normal, intervals.in_steps])
def test_the_truth_is_that_of_endless_episodes(draw: intervals.Callable[..., intervals.Floats]) -> None:
    chance = np.random.default_rng(0)
    a, b = draw(0.4, 4_000, chance)[:, None], draw(-0.3, 4_000, chance)[None]
    assert intervals.wins(draw, 0.4, -0.3) == pytest.approx(((np.sign(a - b) + 1) / 2).mean(), abs=0.02)
