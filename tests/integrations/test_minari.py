import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lmrl.cli import main
from lmrl.data import generate
from lmrl.data.storage import read_episodes, write_episodes
from lmrl.envs import registry
from lmrl.errors import UserError
from lmrl.types import Episode
from lmrl.utils.files import locked

minari: Any = pytest.importorskip("minari", reason="needs Minari: pip install 'lmrl[minari]'")
pytest.importorskip("h5py", reason="Minari keeps datasets in HDF5: pip install 'lmrl[minari]'")

from lmrl.integrations.minari import episodes_from_minari, export_minari  # noqa: E402

SAMPLED = Episode(
    task="maze_fo",
    observations=("at 1, 1 é\n", "", "Success\n"),
    actions=("move down\n", ""),
    rewards=(-1.0, 0.1),
    terminated=False,
    truncated=True,
    seed=7,
    info={"success": True, "start": {"position": [1, 2]}, "note": "a\u0000b"},
    action_ids=((1, 2), (3,)),
    action_logprobs=((-0.5, -0.25), (-1.0,)),
    action_values=((0.0, 1.0), (2.0,)),
)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    yield tmp_path / "minari"


def test_the_way_there_and_back_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = generate("maze_fo", 12, seed=3, out=tmp_path / "maze.parquet", progress=False)
    assert main(["data", "export", str(path), "--minari", "lmrl/maze_fo/behaviour-v0"]) == 0
    assert "12 episodes written to Minari's dataset lmrl/maze_fo/behaviour-v0" in capsys.readouterr().out
    dataset = minari.load_dataset("lmrl/maze_fo/behaviour-v0")
    recorded = list(read_episodes(path))
    assert list(episodes_from_minari(dataset)) == recorded
    first = dataset[0]
    assert (first.observations, first.actions) == (list(recorded[0].observations), list(recorded[0].actions))
    np.testing.assert_array_equal(first.rewards, recorded[0].rewards)
    assert [*first.terminations] == [False] * (len(recorded[0]) - 1) + [recorded[0].terminated]
    assert dataset.total_steps == sum(map(len, recorded))
    own = registry.task("maze_fo").own_scale
    assert own is not None
    metadata = dataset.storage.metadata
    assert (metadata["ref_min_score"], metadata["ref_max_score"]) == (own.random, own.best)
    assert all(text in dataset.observation_space for text in first.observations)


def test_the_environment_can_be_recovered_and_begins_as_recorded(tmp_path: Path) -> None:
    path = generate("maze_fo", 2, seed=0, out=tmp_path / "maze.parquet", progress=False, env={"max_steps": 5})
    dataset = export_minari(path, "short-v0")
    env = dataset.recover_environment()
    (episode, _) = episodes_from_minari(dataset)
    text, _ = env.reset(seed=episode.seed, options=dict(episode.info["start"]))
    assert text == episode.observations[0]
    assert env.unwrapped.max_steps == 5
    assert "ref_min_score" not in dataset.storage.metadata  # of the task as it is, not of this one


def test_sampled_tokens_odd_texts_and_endings_come_back(tmp_path: Path) -> None:
    write_episodes(tmp_path / "odd.jsonl", [SAMPLED], {"task": "maze_fo"})
    dataset = export_minari(tmp_path / "odd.jsonl", "odd-v3")
    assert list(episodes_from_minari(dataset)) == list(read_episodes(tmp_path / "odd.jsonl")) == [SAMPLED]
    assert "é" in dataset.observation_space.characters and "" in dataset.action_space
    with pytest.raises(UserError, match=r"Minari has a dataset odd-v3 in .*; choose another version"):
        export_minari(tmp_path / "odd.jsonl", "odd-v3")


@pytest.mark.parametrize("wrong", ["maze", "../maze-v0", "maze v0", "", "a//..-v0"])
def test_an_id_that_minari_does_not_take_is_refused(wrong: str, tmp_path: Path, store: Path) -> None:
    write_episodes(tmp_path / "odd.jsonl", [SAMPLED])
    with pytest.raises(UserError, match="minari takes namespace/name-v0"):
        export_minari(tmp_path / "odd.jsonl", wrong)
    assert not store.exists()


@pytest.mark.parametrize("wrong", ["data/x-v0", "lmrl/data/x-v0"])
def test_a_namespace_that_breaks_the_list_of_minari_is_refused(wrong: str, tmp_path: Path, store: Path) -> None:
    write_episodes(tmp_path / "odd.jsonl", [SAMPLED])
    with pytest.raises(UserError, match="a namespace of Minari cannot be called data"):
        export_minari(tmp_path / "odd.jsonl", wrong)
    assert not store.exists()


def test_two_processes_do_not_write_one_dataset(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_episodes(tmp_path / "odd.jsonl", [SAMPLED], {"task": "maze_fo"})
    with locked(store / "lmrl" / "odd-v0"), pytest.raises(UserError, match=r"Minari dataset .* is in use by"):
        export_minari(tmp_path / "odd.jsonl", "lmrl/odd-v0")
    (store / "lmrl" / "odd-v0" / "data").mkdir(parents=True)
    monkeypatch.setattr("lmrl.integrations.minari._free_path", lambda dataset_id: store / dataset_id)
    with pytest.raises(UserError, match=r"Minari has a dataset lmrl/odd-v0"):
        export_minari(tmp_path / "odd.jsonl", "lmrl/odd-v0")


def test_a_broken_file_leaves_nothing(tmp_path: Path, store: Path) -> None:
    other = Episode("maze_fo", ("over\n",), (), (), True, False)
    zero = replace(SAMPLED, observations=("a\0b", "", ""))
    for wrong, told in ((other, "episode 1 has no turn"), (zero, "episode 1 has a text with the character NUL")):
        write_episodes(tmp_path / "odd.jsonl", [SAMPLED, wrong])
        with pytest.raises(UserError, match=told):
            export_minari(tmp_path / "odd.jsonl", "lmrl/odd-v0")
        assert not (store / "lmrl" / "odd-v0").exists()


def test_what_others_wrote_is_not_read_back() -> None:
    for infos, told in (({}, "infos has no 'episode'"), ({"episode": [json.dumps({})]}, "holds no texts")):
        data: Any = SimpleNamespace(infos=infos, observations=[1.0])
        with pytest.raises(UserError, match=told):
            list(episodes_from_minari([data]))
