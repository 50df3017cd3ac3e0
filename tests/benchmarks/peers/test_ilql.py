"""The terms of ILQL's loss are those of AgileRL, on the same networks and batch."""

import pytest

pytest.importorskip("agilerl")

from benchmarks.peers import ilql


def test_each_term_of_the_loss_is_that_of_agilerl() -> None:
    parts = [*ilql.random_rows(64, rows=3, length=32), *ilql.random_rows(64, rows=2, length=64)]
    for name, (ours, theirs) in ilql.losses(parts, 64).items():
        assert ours == pytest.approx(theirs, abs=1e-4), name
        assert abs(ours) > 1e-3, f"{name} must have something to say"


def test_both_steps_learn() -> None:
    parts = ilql.random_rows(64, rows=3, length=32)
    made = ilql.their_module(ilql.our_module(64))
    batch = ilql.as_theirs(parts)
    step, before = ilql.their_step(made, batch), ilql.their_loss(made, batch)[0].item()
    for _ in range(5):
        step()
    assert ilql.their_loss(made, batch)[0].item() < before
