"""Returns in quantile bins."""

import pytest
import torch

from lmrl.losses import bin_means, bin_of, quantile_edges


@pytest.mark.parametrize(
    ("returns", "bins", "places", "means"),
    [
        ([4.0, 1.0, 3.0, 2.0], 2, [1, 0, 1, 0], [1.5, 3.5]),
        ([5.0, 1.0, 2.0, 3.0, 4.0], 2, [1, 0, 0, 1, 1], [1.5, 4.0]),
        ([-1.0, -1.0, -1.0, 2.0], 1, [0, 0, 0, 0], [-0.25]),
        # Equal returns share a bin; those between are empty, and the last one never is.
        ([0.0] * 6 + [1.0] * 4, 10, [5] * 6 + [9] * 4, {5: 0.0, 9: 1.0}),
        ([7.0, 7.0], 3, [2, 2], {2: 7.0}),
    ],
)
def test_bins_hold_about_equally_many(
    returns: list[float], bins: int, places: list[int], means: list[float] | dict[int, float]
) -> None:
    values = torch.tensor(returns)
    edges = quantile_edges(values, bins)
    assert len(edges) == bins - 1 and edges.dtype == torch.float32
    assert bin_of(values, edges).tolist() == places
    wanted = dict(enumerate(means)) if isinstance(means, list) else means
    found = bin_means(values, edges).tolist()
    assert {place: mean for place, mean in enumerate(found) if mean == mean} == pytest.approx(wanted)


def test_returns_beyond_the_data_are_in_the_outer_bins() -> None:
    edges = quantile_edges(torch.arange(100.0), 4)
    assert edges.tolist() == [25.0, 50.0, 75.0]
    assert bin_of(torch.tensor([-9.0, 24.9, 25.0, 74.9, 75.0, 999.0]), edges).tolist() == [0, 0, 1, 2, 3, 3]
