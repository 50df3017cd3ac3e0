"""Names and colours of players in tables and pictures."""

from itertools import combinations
from pathlib import Path

import pytest

from lmrl.report.wording import colour, is_known, number

ALGORITHMS = sorted(path.stem for path in Path("configs/maze_fo").glob("*.yaml"))


def test_lines_of_two_algorithms_in_one_panel_can_be_told_apart() -> None:
    shades = {name: tuple(bytes.fromhex(colour(name)[1:])) for name in ALGORITHMS if is_known(name)}
    assert {"mc", "grpo", "gigpo"} <= set(shades)
    apart = {
        (a, b): sum((x - y) ** 2 for x, y in zip(shades[a], shades[b], strict=True)) ** 0.5
        for a, b in combinations(shades, 2)
    }
    assert {pair: distance for pair, distance in apart.items() if distance < 40} == {}


@pytest.mark.parametrize(
    ("value", "shown"), [(-0.04, "0.0"), (-0.06, "\N{MINUS SIGN}0.1"), (0.0, "0.0"), (None, "\N{EN DASH}")]
)
def test_zero_has_no_sign(value: float | None, shown: str) -> None:
    assert number(value) == shown
