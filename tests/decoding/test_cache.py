import torch
from torch import Tensor

from lmrl.decoding.cache import SlotCache, causal_mask, tree_mask

INF = float("inf")


def states(*rows: list[float]) -> Tensor:
    """(rows, 1 head, new, 1 wide) keys."""
    return torch.tensor(rows)[:, None, :, None]


def write(cache: SlotCache, first: int, start: list[int], used: int, keys: Tensor) -> Tensor:
    columns = torch.tensor(start)[:, None] + torch.arange(keys.shape[2])
    cache.place(first, columns, used, int(columns.max()) + 1)
    read, values = cache.update(keys, -keys, 0)
    assert torch.equal(values, -read)
    return read[:, 0, :, 0]


def test_rows_are_written_where_they_end_and_read_as_views() -> None:
    cache = SlotCache(rows=3, limit=8)
    write(cache, 0, [0, 0, 0], 2, states([1, 2], [3, 4], [5, 6]))
    read = write(cache, 1, [2, 1], 3, states([7], [8]))
    assert read.tolist() == [[3, 4, 7], [5, 8, 0]]
    assert read.storage_offset() == 8  # the second row of the block itself: eight columns per row, no copy


def test_growing_keeps_what_was_written() -> None:
    cache = SlotCache(rows=1, limit=200)
    write(cache, 0, [0], 2, states([1, 2]))
    cache.grow(3)
    write(cache, 2, [0], 1, states([9]))
    read = write(cache, 0, [2, 0, 130], 131, states([3], [4], [5]))
    assert read.shape == (3, 131)
    assert read[0, :4].tolist() == [1, 2, 3, 0]
    assert read[2, [0, 130]].tolist() == [9, 5]
    assert float(read.sum()) == 1 + 2 + 3 + 4 + 9 + 5


def test_swapping_exchanges_rows() -> None:
    cache = SlotCache(rows=4, limit=4)
    write(cache, 0, [0] * 4, 2, states([1, 2], [3, 4], [5, 6], [7, 8]))
    cache.swap([0, 1], [3, 2], 2)
    assert write(cache, 0, [2] * 4, 2, states([0], [0], [0], [0])).tolist() == [[7, 8], [5, 6], [3, 4], [1, 2]]


def test_causal_mask_by_hand() -> None:
    mask = causal_mask(torch.tensor([[1, 2], [0, 0]]), 4, torch.float32)
    assert mask.tolist() == [[[[0, 0, -INF, -INF], [0, 0, 0, -INF]]], [[[0, -INF, -INF, -INF], [0, -INF, -INF, -INF]]]]


def test_tree_mask_by_hand() -> None:
    owner = torch.tensor([0, 0, 1])
    depth = torch.tensor([0, 1, 0])
    mask = tree_mask(owner, depth, torch.tensor([1, 2]), 5, torch.float32)
    seen = (mask == 0).int().squeeze(1).tolist()
    assert seen == [
        [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0]],
        [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 0, 0, 1]],
    ]
    assert set(mask.flatten().tolist()) == {0.0, -INF}
