"""Batches of similar lengths: everything once, in an order that is chance, and little padding on any task."""

from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import RandomSampler, SequentialSampler

import lmrl
from benchmarks.padding import padding
from lmrl.datamodules.by_length import LengthBatches
from lmrl.errors import UserError

LENGTHS = np.random.default_rng(0).integers(5, 500, 103).tolist()


def batches(size: int = 8, pool: int = 4, drop_last: bool = False) -> LengthBatches:
    return LengthBatches(RandomSampler(LENGTHS), size, drop_last, LENGTHS, pool)


def test_every_item_comes_once_an_epoch() -> None:
    sampler = batches()
    for _ in range(3):
        found = list(sampler)
        assert sorted(item for batch in found for item in batch) == list(range(len(LENGTHS)))
        assert len(found) == len(sampler) == 13
        assert sorted(map(len, found)) == [7, *[8] * 12]


def test_the_rest_may_be_dropped() -> None:
    sampler = batches(drop_last=True)
    assert [len(batch) for batch in sampler] == [8] * len(sampler) == [8] * 12


def spread(found: list[list[int]]) -> float:
    return float(np.mean([np.std([LENGTHS[item] for item in batch]) for batch in found]))


def test_lengths_in_a_batch_are_similar() -> None:
    assert spread(list(batches())) < 0.5 * spread(list(batches(pool=1)))


def test_neighbours_and_order_change_from_epoch_to_epoch() -> None:
    sampler = batches()
    first, second = list(sampler), list(sampler)
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}
    middle = [np.mean([LENGTHS[item] for item in batch]) for batch in first]
    assert middle != sorted(middle)


def test_the_batch_that_is_not_full_is_anywhere() -> None:
    """Over many epochs its items are about as long as all."""
    sampler = batches(pool=13)
    short = [LENGTHS[item] for _ in range(100) for batch in sampler if len(batch) == 7 for item in batch]
    assert np.mean(short) == pytest.approx(np.mean(LENGTHS), rel=0.2)


def test_without_pools_batches_are_cut_as_drawn() -> None:
    found = list(LengthBatches(SequentialSampler(range(10)), 3, False, [1] * 10, 1))  # type: ignore[arg-type]
    assert found == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize("task", lmrl.tasks())
def test_less_than_a_tenth_is_padding(task: str, folder: Path) -> None:
    """With the settings of the shipped configuration, but for fewer episodes."""
    share = padding(task, folder, episodes=40 if task == "chess" else 160)
    assert 0.0 <= share < 0.10


def test_a_pool_has_batches(folder: Path) -> None:
    with pytest.raises(UserError, match="pool must be at least 1, got 0"):
        lmrl.datamodules.MazeDataModule(pool=0)
