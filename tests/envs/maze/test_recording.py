from collections import Counter
from itertools import pairwise

import pytest

import lmrl
from lmrl.envs.maze.players import PARTS
from lmrl.envs.registry import recording
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode


def record(count: int, seed: int = 0) -> list[Episode]:
    recipe = recording("maze_fo")
    starts = (recipe.start(seed, index) for index in range(count))
    make = lambda: lmrl.make("maze_fo")  # noqa: E731
    return in_order(rollout(recipe.policy, make, starts, task="maze_fo", stop=recipe.stop))


def cells(episode: Episode) -> list[tuple[int, int]]:
    """The positions that an episode tells, start to last."""
    found = []
    for text in episode.observations:
        if "position is at position" in text:
            row, col = text.split("position is at position ")[1].split(". ")[0].replace(" ", "").split(",")
            found.append((int(row), int(col)))
    return found


def test_the_parts_are_the_maze_and_meet_in_two_cells() -> None:
    together = Counter(cell for part in PARTS for cell in part)
    assert sorted(together) == sorted(lmrl.make("maze_fo").layout.free)  # type: ignore[attr-defined]
    assert [len(part) for part in PARTS] == [9, 9, 10]
    assert {cell for cell, count in together.items() if count > 1} == {(5, 3), (5, 9)}
    assert {(row, 12 - col) for row, col in PARTS[0]} == set(PARTS[1])


def test_starts_have_the_intended_shares() -> None:
    recipe = recording("maze_fo")
    options = [recipe.start(0, index).options for index in range(1240)]
    starts = Counter(option["init_position"] for option in options if option is not None)
    by_row = Counter[int]()
    for (row, _), count in starts.items():
        by_row[row] += count
    assert by_row == {1: pytest.approx(0.7 * 1240, abs=8), 5: pytest.approx(0.3 * 1240, abs=8)}
    assert starts[(1, 1)] == pytest.approx(0.35 / 5 * 1240, abs=8)
    assert starts[(5, 6)] == pytest.approx(0.3 / 7 * 1240, abs=8)
    assert len(starts) == 17


def test_a_longer_dataset_begins_with_the_shorter_and_seeds_differ() -> None:
    assert record(40)[:10] == record(10)
    assert record(10, seed=1) != record(10)
    recipe = recording("maze_po")
    assert len({recipe.start(seed, index).seed for seed in range(3) for index in range(100)}) == 300


def test_no_episode_leaves_its_part() -> None:
    episodes = record(300)
    for episode in episodes:
        visited = cells(episode)
        (home,) = (part for part in PARTS if visited[0] in part and (visited[0][0] == 1 or part is PARTS[2]))
        assert set(visited) <= set(home)
        assert episode.terminated == episode.success == (episode.observations[-1] == "Success\n") != episode.truncated
        assert len(episode) <= 100
        assert not episode.success or home is PARTS[2]
    assert any(episode.success for episode in episodes)
    assert not any("Failure\n" in episode.observations for episode in episodes)


def test_the_parts_meet_in_the_data() -> None:
    """Some episode walks into the corner from an arm, another leaves it along the corridor: no one does both."""
    corner = (5, 3)
    above = (4, 3)
    beside = (5, 4)
    steps = [set(pairwise(walk)) for walk in map(cells, record(300))]
    assert any((above, corner) in walk for walk in steps)
    assert any((corner, beside) in walk for walk in steps)
    assert not any((above, corner) in walk and (corner, beside) in walk for walk in steps)


@pytest.mark.nightly
def test_the_clock_is_memoryless() -> None:
    """A geometric limit with mean 22.5: about 1 - 1/22.5 of the episodes that reach a turn reach the next."""
    lengths = [len(episode) for episode in record(1500) if not episode.success]
    for turn in (5, 15, 30):
        alive = sum(length >= turn for length in lengths)
        assert sum(length >= turn + 5 for length in lengths) / alive == pytest.approx((1 - 1 / 22.5) ** 5, abs=0.05)


def test_statistics_of_the_default_dataset_are_near_the_published_ones() -> None:
    episodes = record(1240)
    count = len(episodes)
    assert sum(map(len, episodes)) / count == pytest.approx(19.7, rel=0.1)
    assert sum(episode.success for episode in episodes) / count == pytest.approx(0.11, rel=0.1)
    assert sum(episode.total_reward for episode in episodes) / count == pytest.approx(-19.7, rel=0.1)
