from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from lmrl.data import generate
from lmrl.data.storage import read_metadata, write_episodes
from lmrl.datamodules import Filter, MazeDataModule, OfflineDataModule, TwentyQuestionsDataModule
from lmrl.datamodules.spec import BatchSpec
from lmrl.envs import task
from lmrl.errors import UserError
from lmrl.losses import returns_to_go
from lmrl.models.tokenizer import load_tokenizer
from lmrl.tokens.collate import TokenBatch
from lmrl.tokens.encoding import Encoder
from lmrl.tokens.segments import Segment
from lmrl.types import Episode
from lmrl.utils.log_lines import LogLines
from tests.helpers.cases import cases


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate("maze_fo", 40, 3, tmp_path_factory.mktemp("data") / "maze.parquet", progress=False)


def ready(path: Path, **arguments: object) -> MazeDataModule:
    data = MazeDataModule("maze_fo", path=str(path), **arguments)
    data.prepare_data()
    data.setup("fit")
    return data


def test_every_kept_action_comes_once_an_epoch(path: Path) -> None:
    data = ready(path, batch_size=64)
    train, held = data.split()
    assert (len(train), len(held)) == (38, 2)
    tokens = torch.cat([batch.token for batch in data.train_dataloader()])
    encoder = Encoder(load_tokenizer())
    expected = np.concatenate([encoder.encode(action) for e in train for action in e.actions])
    assert sorted(tokens.tolist()) == sorted(expected.tolist())


def test_long_work_says_how_far_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lmrl.datamodules.offline.LogLines", lambda **settings: LogLines(seconds=0.0))
    ready(path).train_dataloader()
    assert "encoding maze.parquet: 37/38 episodes\n" in capsys.readouterr().err


def test_rewards_are_conserved(path: Path) -> None:
    data = ready(path, batch_size=50, consecutive=4)
    total = sum(float(batch.reward.sum()) for batch in data.train_dataloader())
    assert total == pytest.approx(sum(e.total_reward for e in data.split()[0]))


def test_returns_are_those_of_the_whole_episode(path: Path) -> None:
    data = ready(path, batch_size=10_000, val_fraction=0.0)
    data.configure_batches(BatchSpec(returns_gamma=0.9))
    encoder = Encoder(load_tokenizer())
    expected = []
    for e in data.episodes:
        rewards = []
        for action, reward in zip(e.actions, e.rewards, strict=True):
            rewards += [0.0] * (len(encoder.encode(action)) - 1) + [reward]
        expected += returns_to_go(rewards, 0.9).tolist()
    (batch,) = data.train_dataloader()
    assert sorted(batch.return_to_go.tolist()) == pytest.approx(sorted(expected), abs=1e-4)


def test_a_misspelt_wish_is_an_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'returns_gama'"):
        replace(BatchSpec(), returns_gama=0.9)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        BatchSpec().bootstrap = True  # type: ignore[misc]


class Learner:
    def prepare_rollout(self, episodes: Sequence[Episode], segments: Sequence[list[Segment]]) -> list[list[Segment]]:
        return [*segments]


def test_rounds_are_not_prepared_where_nobody_plays(path: Path) -> None:
    with pytest.raises(UserError, match=r"needs lmrl\.datamodules\.OnlineDataModule"):
        ready(path).configure_batches(BatchSpec(learner=Learner()))


def test_without_a_discount_there_are_no_returns(path: Path) -> None:
    assert next(iter(ready(path).train_dataloader())).return_to_go.isnan().all()


def test_the_filter_applies_to_training_only(path: Path) -> None:
    data = ready(path, batch_size=10_000, val_fraction=0.2)
    everything = len(data.val_dataloader().dataset)  # type: ignore[union-attr]
    data.configure_batches(BatchSpec(filter=Filter(top_fraction=0.1)))
    kept = sum(len(e) for e in data.spec.filter.keep(data.split()[0]))
    assert len(data.train_dataloader().dataset) == kept  # type: ignore[arg-type]
    assert len(data.val_dataloader().dataset) == everything  # type: ignore[union-attr]


def test_the_data_seed_decides_the_split_and_that_of_the_training_the_order(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def order(run: int, **more: Any) -> list[list[int]]:
        monkeypatch.setenv("PL_GLOBAL_SEED", str(run))  # as L.seed_everything does
        return [batch.token.tolist() for batch in ready(path, batch_size=8, **more).train_dataloader()]

    assert order(1) == order(1) == order(2, seed=1)
    assert order(1) != order(2)
    assert order(1) != order(1, seed=0)
    assert ready(path, seed=1).split() == ready(path, seed=2).split()
    assert ready(path, data_seed=1).split() == ready(path, data_seed=1).split() != ready(path).split()


def test_processes_share_the_order_of_the_training_seed(path: Path) -> None:
    def order(seed: int, rank: int) -> list[list[int]]:
        loader: Any = ready(path, batch_size=8, seed=seed).train_dataloader()
        # As Lightning does, which knows nothing but PL_GLOBAL_SEED.
        loader.batch_sampler.sampler = DistributedSampler(loader.dataset, num_replicas=2, rank=rank)
        return [batch.token.tolist() for batch in loader]

    assert order(1, 0) == order(1, 0) != order(2, 0)
    assert order(1, 0) != order(1, 1)


def test_a_missing_dataset_is_generated_where_it_belongs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMRL_DATA", str(tmp_path))
    data = MazeDataModule("maze_po", size=3)
    data.prepare_data()
    assert data.path.parent == tmp_path
    data.setup("fit")
    assert len(data.episodes) == 3
    assert data.window().texts == 40


def test_a_generated_dataset_may_be_played_by_another_player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMRL_DATA", str(tmp_path))
    own, other = (MazeDataModule("maze_fo", size=4, behaviour=player) for player in (None, "random"))
    other.prepare_data()
    assert other.path.is_file() and not own.path.exists()
    assert read_metadata(other.path)["behaviour"] == "random"


@cases(
    ("arguments", "message"),
    [
        ({"task": "maze_xo"}, "unknown task 'maze_xo'; known: .*maze_fo"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"consecutive": 0}, "consecutive"),
        ({"val_fraction": 1.0}, "val_fraction"),
        ({"data_seed": -1}, "data_seed"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        OfflineDataModule(**{"task": "maze_fo", **arguments})  # type: ignore[arg-type]


def test_what_cannot_be_trained_on_says_so_before_training(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        ready(tmp_path / "nowhere.parquet")
    write_episodes(tmp_path / "empty.parquet", [])
    with pytest.raises(UserError, match="no episodes"):
        ready(tmp_path / "empty.parquet")
    with pytest.raises(UserError, match="'maze_fo', expected 'maze_po'"):
        data = MazeDataModule("maze_po", path=str(path))
        data.setup("fit")
    data = ready(path)
    data.configure_batches(BatchSpec(filter=Filter(min_return=1.0)))
    with pytest.raises(UserError, match="keeps none"):
        data.train_dataloader()


def test_empty_texts_name_the_file_and_the_episode(path: Path, tmp_path: Path) -> None:
    episodes = [replace(e, action_ids=(), action_logprobs=(), action_values=()) for e in ready(path).episodes[:6]]
    silent = replace(episodes[4], observations=("", *episodes[4].observations[1:]))
    none = Episode("maze_fo", ("at 1, 1\n",), (), (), False, True)
    write_episodes(tmp_path / "silent.parquet", [none, *episodes[:4], silent, episodes[5]])
    data = ready(tmp_path / "silent.parquet", val_fraction=0.0)
    told = rf"silent.parquet: episode 5: observation 0 of the episode with seed {silent.seed} is an empty text"
    with pytest.raises(UserError, match=told):
        data.train_dataloader()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_goes_on_in_the_middle_of_an_epoch_and_at_its_end(workers: int, path: Path) -> None:
    def loader() -> DataLoader[TokenBatch]:
        return ready(path, batch_size=40, num_workers=workers).train_dataloader()

    def read(source: DataLoader[TokenBatch], batches: int) -> list[list[int]]:
        found: list[list[int]] = []
        while len(found) < batches:  # epochs end as Lightning ends them: nothing is asked for beyond the last batch
            found += [batch.token.tolist() for batch in islice(source, min(len(source), batches - len(found)))]
        return found

    size = len(loader())
    whole = read(loader(), 3 * size)
    assert size > 4 and whole[:size] != whole[size : 2 * size]
    for seen in (0, 1, size - 1, size, size + 2, 2 * size) if workers == 0 else (size, size + 2):
        stopped: Any = loader()
        read(stopped, seen)
        other: Any = loader()
        other.load_state_dict(stopped.state_dict())
        assert [other.state_dict()[key] for key in ("epoch", "seen")] == [seen // size, seen % size]
        left = [batch.token.tolist() for batch in islice(other, size - seen % size)]
        assert left + read(other, 3 * size - seen - len(left)) == whole[seen:]


def test_a_dialogue_of_twenty_questions_is_one_segment_and_questions_fit(tmp_path: Path) -> None:
    path = generate("twenty_questions", 40, 3, tmp_path / "data.parquet", progress=False)
    data = TwentyQuestionsDataModule(path=str(path), batch_size=64)
    data.prepare_data()
    data.setup("fit")
    train, _ = data.split()
    (batch,) = data.train_dataloader()
    assert len(data.train_dataloader().dataset) == len(train) == 38  # type: ignore[arg-type]
    assert float(batch.reward.sum()) == sum(episode.total_reward for episode in train)
    tokenizer = load_tokenizer()
    most = task("twenty_questions").max_action_tokens
    assert all(len(tokenizer(action)["input_ids"]) <= most for episode in train for action in episode.actions)
