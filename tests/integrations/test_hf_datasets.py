"""Episodes as a dataset of Hugging Face's library: nothing is lost on the way there and back."""

import sys
from pathlib import Path

import pytest

from lmrl.data import generate
from lmrl.data.records import SCHEMA
from lmrl.data.storage import read_episodes, write_episodes
from lmrl.envs import tasks
from lmrl.errors import UserError
from lmrl.integrations.hf_datasets import episodes_dataset, episodes_from_dataset
from lmrl.types import Episode
from tests.helpers.cases import cases

datasets = pytest.importorskip("datasets")

SAMPLED = Episode(
    task="maze_fo",
    observations=("at 1, 1\n", "at 1, 2\n", "Success\n"),
    actions=("move right\n", "move down\n"),
    rewards=(-1.0, 0.1),
    terminated=True,
    truncated=False,
    seed=2**53 - 1,
    info={"success": True, "illegal": 0, "start": {"init_position": [1, 1]}, "note": None},
    action_ids=((5, 6), (7,)),
    action_logprobs=((-0.5, -0.25), (0.0,)),
    action_values=((1.5, -2.0), (0.125,)),
)
SAID = Episode("wordle", ("Wordle:\n",), (), (), False, True)


@cases("task", tasks())
def test_the_data_of_every_task_comes_back_equal(task: str, tmp_path: Path) -> None:
    path = generate(task, 3, 0, tmp_path / f"{task}.parquet", progress=False)
    written = list(read_episodes(path))
    dataset = episodes_dataset(path)
    assert isinstance(dataset, datasets.Dataset) and len(dataset) == 3 and set(dataset["task"]) == {task}
    assert list(episodes_from_dataset(dataset)) == written
    dataset.to_parquet(tmp_path / "again.parquet")
    assert list(read_episodes(tmp_path / "again.parquet")) == written


def test_the_columns_are_those_of_our_files() -> None:
    dataset = episodes_dataset([SAMPLED])
    assert dataset.features == datasets.Features.from_arrow_schema(SCHEMA)
    documented = str(episodes_dataset.__doc__)
    assert all(f"``{name}``" in documented for name in dataset.column_names)
    assert dataset[0]["observations"][-1] == "Success\n" and dataset[0]["rewards"] == [-1.0, 0.1]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_files_and_lists_of_episodes_give_the_same_rows(suffix: str, tmp_path: Path) -> None:
    write_episodes(tmp_path / f"some.{suffix}", [SAMPLED, SAID])
    assert episodes_dataset(tmp_path / f"some.{suffix}").to_list() == episodes_dataset(iter([SAMPLED, SAID])).to_list()


def test_more_than_a_block_keeps_its_order_and_none_is_an_empty_dataset() -> None:
    many = [Episode("maze_fo", ("a\n",), (), (), False, True, seed=seed) for seed in range(1100)]
    assert list(episodes_from_dataset(episodes_dataset(many))) == many
    empty = episodes_dataset([])
    assert len(empty) == 0 and empty.column_names == SCHEMA.names and not list(episodes_from_dataset(empty))


def test_a_dataset_that_was_worked_on_still_gives_episodes(tmp_path: Path) -> None:
    dataset = episodes_dataset([SAID, SAMPLED])
    solved = dataset.map(lambda row: {"turns": len(row["actions"])}).filter(lambda row: row["turns"] == 2)
    solved.with_format("numpy").save_to_disk(tmp_path / "kept")
    assert list(episodes_from_dataset(datasets.load_from_disk(tmp_path / "kept"))) == [SAMPLED]
    assert list(episodes_from_dataset(dataset.to_iterable_dataset())) == [SAID, SAMPLED]


def test_a_row_that_is_no_episode_is_named() -> None:
    rows = episodes_dataset([SAMPLED, SAID])
    with pytest.raises(UserError, match="row 1 of the dataset: column 'actions' is missing"):
        next(episodes_from_dataset(rows.remove_columns("actions")))
    spoilt = [rows[0], {**rows[1], "info": "{"}]
    with pytest.raises(UserError, match="row 2 of the dataset, column 'info': not valid JSON"):
        list(episodes_from_dataset(spoilt))


def test_a_text_that_is_no_unicode_is_an_error() -> None:
    with pytest.raises(UserError, match="a text of episodes 0 to 0 is not valid Unicode"):
        episodes_dataset([Episode("wordle", ("\ud800",), (), (), False, True)])


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'lmrl\[trl\]'"):
        episodes_dataset([SAMPLED])
