from collections import Counter

import pytest

import lmrl
from lmrl.behaviours import recording
from lmrl.behaviours.maze_recording import PARTS
from lmrl.episode import Episode
from lmrl.rollout import in_order, rollout

PART_OF = {cell: number for number, part in enumerate(PARTS) for cell in part}


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


def test_the_parts_are_the_maze_each_cell_once() -> None:
    together = [cell for part in PARTS for cell in part]
    assert sorted(together) == sorted(lmrl.make("maze_fo").layout.free)  # type: ignore[attr-defined]
    assert [len(part) for part in PARTS] == [8, 8, 10]
    assert [(row, 12 - col) for row, col in PARTS[0]][-1] == PARTS[1][-1] == (4, 9)
    assert {(row, 12 - col) for row, col in PARTS[0]} == set(PARTS[1])


def test_starts_have_the_intended_shares() -> None:
    recipe = recording("maze_fo")
    options = [recipe.start(0, index).options for index in range(1240)]
    starts = Counter(option["init_position"] for option in options if option is not None)
    by_part = Counter[int]()
    for cell, count in starts.items():
        by_part[PART_OF[cell]] += count
    assert by_part[2] == pytest.approx(0.16 * 1240, abs=8)
    assert by_part[0] == pytest.approx(0.42 * 1240, abs=8)
    assert starts[(4, 3)] == pytest.approx(0.42 * (0.3 + 0.7 / 8) * 1240, abs=15)
    assert starts[(1, 1)] == pytest.approx(0.42 * 0.7 / 8 * 1240, abs=15)
    assert (8, 6) not in starts
    assert len(starts) == 25


def test_a_longer_dataset_begins_with_the_shorter_and_seeds_differ() -> None:
    assert record(40)[:10] == record(10)
    assert record(10, seed=1) != record(10)
    recipe = recording("maze_po")
    assert len({recipe.start(seed, index).seed for seed in range(3) for index in range(100)}) == 300


def test_no_episode_goes_from_part_to_part() -> None:
    episodes = record(300)
    for episode in episodes:
        visited = [PART_OF[cell] for cell in cells(episode)]
        # only the last step may lead out
        assert set(visited[:-1]) <= {visited[0]}
        assert episode.truncated == (episode.observations[-1] != "Success\n") != episode.terminated
        assert len(episode) <= 100
        if episode.truncated:
            assert visited[-1] != visited[0] or len(episode) == 100
        if episode.success:
            assert visited[0] == 2
    assert any(episode.success for episode in episodes)
    assert any(len(episode) == 100 for episode in episodes)
    assert not any("Failure\n" in episode.observations for episode in episodes)


def test_statistics_of_the_default_dataset_are_near_the_published_ones() -> None:
    episodes = record(1240)
    count = len(episodes)
    assert sum(map(len, episodes)) / count == pytest.approx(19.7, rel=0.1)
    assert sum(episode.success for episode in episodes) / count == pytest.approx(0.11, rel=0.1)
    assert sum(episode.total_reward for episode in episodes) / count == pytest.approx(-19.7, rel=0.1)
