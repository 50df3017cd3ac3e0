import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lmrl.cli import main
from lmrl.data import dataset_stats, stats_table
from lmrl.data.storage import write_episodes
from lmrl.envs import registry
from lmrl.envs.scores import PublishedData
from lmrl.errors import UserError
from lmrl.types import Episode

LEFT = "move left\n"
UP = "move up\n"
THREE = Episode(
    "maze_fo", ("a", "b", "c", "d"), (LEFT, UP, "no\n"), (-1.0, -1.0, -4.0), False, True, info={"illegal": 1}
)
ONE = Episode("maze_fo", ("a", "Success\n"), (LEFT,), (0.0,), True, False, info={"success": True, "illegal": 0})


def write(folder: Path, *episodes: Episode) -> Path:
    write_episodes(folder / "e.parquet", episodes)
    return folder / "e.parquet"


def test_figures_by_hand(tmp_path: Path) -> None:
    stats = dataset_stats(write(tmp_path, THREE, ONE))
    assert (stats.task, stats.episodes) == ("maze_fo", 2)
    assert (stats.length_mean, stats.length_std) == (2.0, 1.0)
    assert (stats.return_mean, stats.return_std) == (-3.0, 3.0)
    assert (stats.success, stats.terminated) == (0.5, 0.5)
    assert stats.illegal_rate == 0.25
    assert stats.actions == {LEFT: 0.5, UP: 0.25, "no\n": 0.25}
    compared = stats.compared()
    assert compared["length_mean"] == (2.0, 19.7, pytest.approx(2 / 19.7 - 1))
    assert compared["return_mean"][2] == pytest.approx(-3 / -19.7 - 1)
    assert compared["size"] == (2, 1240, pytest.approx(2 / 1240 - 1))


def test_only_the_ten_most_frequent_actions(tmp_path: Path) -> None:
    many = [replace(ONE, actions=(f"{i}\n",)) for i in range(30)]
    stats = dataset_stats(write(tmp_path, *many, ONE, ONE))
    assert len(stats.actions) == 10
    assert next(iter(stats.actions.items())) == (LEFT, 2 / 32)


def test_actions_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Signs of the markup of terminals are a part of them."""
    file = write(tmp_path, replace(ONE, actions=("see [/docs] or [name]\n",)))
    assert main(["data", "stats", str(file)]) == 0
    assert "see [/docs] or [name]" in capsys.readouterr().out


def test_json_and_table_show_the_published_figures(tmp_path: Path) -> None:
    stats = dataset_stats(write(tmp_path, THREE, ONE))
    loaded = json.loads(json.dumps(stats.to_dict()))
    assert loaded["published"]["length_mean"] == 19.7
    assert loaded["relative_difference"]["success"] == pytest.approx(0.5 / 0.11 - 1)
    page = io.StringIO()
    Console(width=100, file=page).print(stats_table(stats))
    shown = page.getvalue()
    assert "maze_fo: 2 episodes" in shown
    row = next(line for line in shown.splitlines() if "length mean" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["length mean", "2", "19.7", "-89.8%"]
    assert r"'move left\n'" in shown


@pytest.mark.parametrize("data", [None, PublishedData(0, 0.0, 0.0, 0.0, 0.0, 0.0)])
def test_a_task_of_which_no_dataset_was_published(
    data: PublishedData | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = registry.task("maze_fo")
    mine = replace(row, scores=replace(row.scores, data=data))
    monkeypatch.setattr("lmrl.data.inspection.task", lambda name: mine)
    file = write(tmp_path, THREE, ONE)
    assert set(dataset_stats(file).to_dict()["relative_difference"].values()) == {None}
    assert main(["data", "stats", str(file)]) == 0
    shown = capsys.readouterr().out
    line = next(line for line in shown.splitlines() if "length mean" in line)
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["length mean", "2", *(["0", ""] if data else [])]
    assert ("published" in shown) == (data is not None)


def test_returns_are_compared_only_if_the_reward_is_that_of_the_published_dataset(tmp_path: Path) -> None:
    sale = Episode("car_dealer", ("Start\n", "Sold.\n"), ("Hi\n",), (1.0,), True, False, info={"success": True})
    for env, compared in (({}, False), ({"reward": "revenue"}, False), ({"reward": "fancy"}, True)):
        write_episodes(tmp_path / "e.parquet", [sale], {"task": "car_dealer", "env": env})
        stats = dataset_stats(tmp_path / "e.parquet")
        assert stats.compared()["length_mean"] == (1.0, 8.25, pytest.approx(1 / 8.25 - 1))  # in actions
        published = (0.562, pytest.approx(1 / 0.562 - 1)) if compared else (None, None)
        assert stats.compared()["return_mean"] == (1.0, *published)
        page = io.StringIO()
        Console(width=100, file=page).print(stats_table(stats))
        assert ("0.562" in page.getvalue()) == compared


def test_files_that_have_no_statistics(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no episodes"):
        dataset_stats(write(tmp_path))
    with pytest.raises(UserError, match=r"unknown task in episode 1 of .*'go'"):
        dataset_stats(write(tmp_path, replace(ONE, task="go")))
    with pytest.raises(UserError, match="expected 'maze_po'"):
        dataset_stats(write(tmp_path, ONE), "maze_po")
    with pytest.raises(UserError, match="no such file"):
        dataset_stats(tmp_path / "none.parquet")
