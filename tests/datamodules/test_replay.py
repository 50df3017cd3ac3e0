"""The replay buffer gives back what it was given, from memory and from disk."""

import errno
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lmrl.datamodules.replay_buffer import Column, Outcome, ReplayBuffer
from lmrl.errors import UserError
from lmrl.tokens.encoding import Window
from lmrl.tokens.segments import Segment
from tests.helpers.doubles import corridor, cut, episode

EPISODES = [
    episode("ab", "xy", "cde", "z", "f", rewards=[-1, 5], terminated=False),
    episode("start", "a\n", "next", "bb\n", "last", rewards=[1, 2], terminated=True),
    *corridor(("go L\n", "go R\n"))[::3],
]
WINDOWS = [Window(), Window(texts=1), Window(texts=3), Window(tokens=6)]


def same(one: Segment, other: Segment) -> None:
    assert one.columns.keys() == other.columns.keys()
    names = ("ids", "col", "token", "reward", "next_ids", "turn_end")
    pairs = {name: (getattr(one, name), getattr(other, name)) for name in names}
    pairs |= {name: (column, other.columns[name]) for name, column in one.columns.items()}
    for name, (left, right) in pairs.items():
        assert (left is None) == (right is None), name
        if left is not None:
            assert left.dtype == right.dtype, name
            np.testing.assert_array_equal(left, right, err_msg=name)
    assert (one.key, one.next_key) == (other.key, other.next_key)


def filled(window: Window, folder: Path | None = None, columns: bool = False, limit: int = 64) -> ReplayBuffer:
    buffer = ReplayBuffer(folder, limit)
    for number, part in enumerate(_cut(window, columns)):
        buffer.append(part, Outcome(float(number), number % 2 == 0, number // 2))
    return buffer


def _cut(window: Window, columns: bool) -> list[list[Segment]]:
    draw = np.random.default_rng(0)
    found = [cut([e], window) for e in EPISODES]
    if not columns:
        return found
    names = ("value", "target")
    return [[replace(p, columns={name: _numbers(draw, p) for name in names}) for p in parts] for parts in found]


def _numbers(draw: np.random.Generator, part: Segment) -> NDArray[np.float32]:
    return draw.normal(size=len(part.col)).astype(np.float32)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
def test_segments_come_back_as_they_were(window: Window, on_disk: bool, columns: bool, tmp_path: Path) -> None:
    buffer = filled(window, tmp_path / "replay" if on_disk else None, columns)
    expected = [part for parts in _cut(window, columns) for part in parts]
    assert len(buffer) == len(expected)
    for index, part in enumerate(expected):
        same(buffer[index], part)
    assert (tmp_path / "replay" / "ids.bin").exists() == on_disk
    assert [len(span) for span in buffer.spans()] == [len(parts) for parts in _cut(window, columns)]
    assert [outcome.total_reward for outcome in buffer.outcomes()] == list(range(len(EPISODES)))
    assert buffer.outcomes()[1].success is False
    assert [outcome.group for outcome in buffer.outcomes()] == [number // 2 for number in range(len(EPISODES))]


def test_a_saved_buffer_goes_on(tmp_path: Path) -> None:
    buffer = filled(WINDOWS[1], columns=True)
    torch.save(buffer.state_dict(), tmp_path / "state.pt")
    again = ReplayBuffer(tmp_path / "replay", limit=64)
    again.append(cut(EPISODES[:1]), Outcome(0.0, False))  # forgotten by what is loaded
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert again.outcomes() == buffer.outcomes()
    for both in (buffer, again):
        both.append(_cut(WINDOWS[1], True)[0], Outcome(9.0, True))
    for index in range(len(buffer)):
        same(again[index], buffer[index])


def test_a_saved_buffer_of_an_earlier_version_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    state = filled(WINDOWS[0]).state_dict()
    del state["columns"]["turn_end"]
    buffer = filled(WINDOWS[0])
    with pytest.raises(UserError, match="earlier version and lacks turn_end; restart the run with --overwrite"):
        buffer.load_state_dict(state)
    assert len(buffer.spans()) == len(EPISODES)


def test_a_cleared_buffer_is_empty(tmp_path: Path) -> None:
    buffer = filled(WINDOWS[0], tmp_path)
    buffer.clear()
    assert (len(buffer), buffer.spans(), buffer.outcomes()) == (0, [], [])
    buffer.append(cut(EPISODES[1:2], WINDOWS[0]), Outcome(1.0, True))
    same(buffer[0], cut(EPISODES[1:2], WINDOWS[0])[0])


def test_a_column_moves_to_its_file_beyond_the_limit(tmp_path: Path) -> None:
    column = Column(np.int64, tmp_path / "column.bin", limit=8 * 3000)
    (tmp_path / "column.bin").write_bytes(b"left over from a killed run")
    for start in range(0, 10_000, 500):
        column.extend(np.arange(start, start + 500))
        np.testing.assert_array_equal(column.values(), np.arange(start + 500))
        assert column.on_disk == (start + 500 > 2048)
    np.testing.assert_array_equal(column.values(5, 8), [5, 6, 7])


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system cannot allocate files")
@pytest.mark.parametrize(("number", "is_full"), [(errno.EOPNOTSUPP, False), (errno.ENOSPC, True)])
def test_a_file_system_that_allocates_nothing_is_no_full_one(
    number: int, is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, start: int, size: int) -> None:
        os.read(descriptor, 1)  # as the C library does where the file system cannot
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.posix_fallocate", refuse)
    column = Column(np.int64, tmp_path / "column.bin", limit=0)
    with pytest.raises(OSError, match="No space left") if is_full else nullcontext():
        column.extend(np.arange(5000))
        np.testing.assert_array_equal(column.values(), np.arange(5000))
