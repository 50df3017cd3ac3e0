"""Rounds: when they are played, what is learned from them, and how often."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmrl.data import generate
from lmrl.data.storage import read_episodes, write_episodes
from lmrl.datamodules import Filter, OnlineDataModule
from lmrl.datamodules.spec import BatchSpec
from lmrl.envs.twenty_questions.env import ScriptedOracle
from lmrl.errors import UserError
from lmrl.tokens.collate import TokenBatch
from lmrl.types import Episode


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate("maze_fo", 10, 3, tmp_path_factory.mktemp("data") / "maze.parquet", progress=False)


class Player:
    """A collector whose round ``n`` has two episodes: ``n`` moves up, and one move down (a success in even rounds)."""

    def __init__(self, turns: bool = True) -> None:
        self.rounds: list[int] = []
        self.turns = turns

    def collect(self, number: int) -> list[Episode]:
        self.rounds.append(number)
        up = _episode(*["move up\n"] * (number if self.turns else 0), success=False)
        return [up, _episode(*["move down\n"] * self.turns, success=number % 2 == 0)]


def _episode(*actions: str, success: bool) -> Episode:
    texts = ("here\n",) * (len(actions) + 1)
    rewards = (-1.0,) * len(actions)
    return Episode("maze_fo", texts, actions, rewards, True, False, info={"success": success})


def ready(player: Player | None = None, **arguments: Any) -> tuple[OnlineDataModule, Player]:
    player = Player() if player is None else player
    data = OnlineDataModule(**{"task": "maze_fo", "batch_size": 2, **arguments})
    data.setup("fit")
    data.register_collector(player)
    data.train_dataloader()
    return data, player


def learn(data: OnlineDataModule, batches: Iterator[TokenBatch] | None = None) -> list[list[int]]:
    """Go through an epoch as the callback counts it, and return the tokens of each minibatch."""
    found = []
    for batch in data.minibatches() if batches is None else batches:
        data.start_minibatch()
        found.append(batch.token.tolist())
    return found


def tokens(batches: list[list[int]]) -> list[int]:
    return sorted(token for batch in batches for token in batch)


def test_every_epoch_is_a_new_round() -> None:
    data, player = ready()
    sizes = [sum(map(len, learn(data))) for _ in range(3)]
    assert player.rounds == [1, 2, 3]
    per_move = sizes[0] // 2
    assert sizes == [2 * per_move, 3 * per_move, 4 * per_move]


def test_a_round_is_passed_over_several_times_in_other_orders() -> None:
    data, _ = ready(epochs=3)
    learn(data)
    learn(data)
    batches = learn(data)  # round 3: four segments
    assert len(batches) == 6
    first, second, third = (tokens(batches[start : start + 2]) for start in (0, 2, 4))
    assert first == second == third
    assert len({str(batches[start : start + 2]) for start in (0, 2, 4)}) > 1


def test_so_many_batches_whatever_the_passes() -> None:
    data, _ = ready(batches=5)
    assert [len(learn(data)) for _ in range(4)] == [5] * 4


def test_minibatches_are_nearly_equal() -> None:
    data, _ = ready(batch_size=4)
    for _ in range(4):
        learn(data)
    batches = learn(data)  # round 5: six segments in two batches
    assert [len(batch) for batch in batches] == [len(batches[0])] * 2


def test_a_history_grows() -> None:
    data, _ = ready(keep_replay=True)
    sizes = [sum(map(len, learn(data))) for _ in range(3)]
    per_move = sizes[0] // 2
    assert sizes == [2 * per_move, 5 * per_move, 9 * per_move]


def test_a_history_may_begin_with_what_was_recorded(path: Path) -> None:
    data, _ = ready(keep_replay=True, offline=True, path=str(path), val_fraction=0.0)
    recorded = len(data.recorded)
    assert recorded == sum(map(len, data.episodes)) > 0
    learn(data)
    assert len(data._kept_chunks()) == recorded + 2


def test_a_recorded_game_may_call_anything_a_group(path: Path, tmp_path: Path) -> None:
    named = [replace(episode, info={**episode.info, "group": "A"}) for episode in read_episodes(path)]
    write_episodes(tmp_path / "named.parquet", named)
    data, _ = ready(keep_replay=True, offline=True, path=str(tmp_path / "named.parquet"), val_fraction=0.0)
    assert {outcome.group for outcome in data.recorded.outcomes()} == {-1}


def test_recorded_episodes_beside_the_rounds(path: Path) -> None:
    data, _ = ready(offline=True, path=str(path), batch_size=4)
    loader = data.train_dataloader()
    iter(loader)
    pairs = []
    for pair, *_ in loader:
        pairs.append(pair)
        data.start_minibatch()
    assert [pair["round"].n_tokens for pair in pairs] == [len(batch) for batch in learn(ready(batch_size=4)[0])]
    assert all(pair["bc"].n_tokens > 0 for pair in pairs)


def test_minibatches_are_divided_by_what_they_have_on_average(path: Path) -> None:
    """A round's minibatches divide by the round's mean, recorded ones by the recordings', so all tokens weigh alike."""
    data, _ = ready(offline=True, path=str(path), batch_size=2, val_fraction=0.0, batches=6)
    for _ in range(3):  # the third round has three moves up and one down: two minibatches a pass
        learn(data)
    data.consumed = 0
    batches = list(data.minibatches())
    mean = sum(map(len, tokens_of_a_pass(data))) / 2
    assert [batch.expected_tokens.item() for batch in batches] == pytest.approx([mean] * 6)
    recorded = next(data.recorded_batches())
    actions = [data.recorded[index] for index in range(len(data.recorded))]
    assert recorded.expected_tokens.item() == pytest.approx(2 * np.mean([len(s.token) for s in actions]))
    data.configure_batches(BatchSpec(observations=True))
    observed = next(data.recorded_batches()).expected_observation_tokens
    assert observed is not None
    assert observed.item() == pytest.approx(2 * np.mean([len(s.ids) - 1 - len(s.token) for s in actions]))


def tokens_of_a_pass(data: OnlineDataModule) -> list[list[int]]:
    return [data.played[index].token.tolist() for index in range(len(data.played))]


def test_returns_to_go_are_those_of_recorded_episodes() -> None:
    with pytest.raises(UserError, match="returns to go needs an offline datamodule"):
        OnlineDataModule("maze_fo").configure_batches(BatchSpec(returns_gamma=0.9))


def test_the_filter_chooses_among_what_is_at_hand() -> None:
    data, player = ready(keep_replay=True)
    data.configure_batches(BatchSpec(filter=Filter(success=True)))
    with pytest.warns(UserWarning, match=r"round 1 is skipped: Filter\(success=True.* keeps none of 2 episodes"):
        learn(data)
    assert player.rounds == [1, 2]
    assert len(data._kept_chunks()) == 1
    learn(data)  # round 3 has no success, but round 2 had
    assert (player.rounds, len(data._kept_chunks())) == ([1, 2, 3], 1)
    data, player = ready()
    data.configure_batches(BatchSpec(filter=Filter(top_fraction=0.5)))
    learn(data)
    assert len(data._kept_chunks()) == 1


@pytest.mark.filterwarnings("ignore:round .* is skipped")
def test_endless_nothing_is_an_error() -> None:
    data, player = ready(Player(turns=False))
    with pytest.raises(UserError, match=r"20 rounds in a row left nothing .*; of the last, no episode has an action"):
        learn(data)
    assert player.rounds == [*range(1, 21)]


def test_what_is_begun_is_finished_first() -> None:
    """A second request in the middle of a round gets the rest of that round, not another round."""
    whole = learn(ready(epochs=4)[0])
    data, player = ready(epochs=4)
    batches = data.minibatches()
    first = learn(data, iter([next(batches)]))
    next(batches)  # fetched ahead, not learned from
    assert first + learn(data) == whole
    assert player.rounds == [1]


@pytest.mark.parametrize("keep_replay", [False, True])
def test_a_saved_round_goes_on(keep_replay: bool, tmp_path: Path) -> None:
    data, _ = ready(epochs=4, keep_replay=keep_replay)
    learn(data)
    batches = data.minibatches()
    learn(data, iter([next(batches), next(batches)]))
    torch.save(data.state_dict(), tmp_path / "state.pt")
    rest = [learn(data), learn(data)]
    again, player = ready(epochs=4, keep_replay=keep_replay)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert [learn(again), learn(again)] == rest
    assert player.rounds == [3]


@pytest.mark.parametrize("name", ["epochs", "memory_mb"])
def test_wrong_arguments_are_named(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} must be at least 1, got 0"):
        OnlineDataModule("maze_fo", **{name: 0})


@pytest.mark.parametrize("world", [2, 3, 7])
def test_processes_share_each_minibatch(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round 4 has five segments, which cannot be shared evenly. A process without one reads, but does not learn."""
    whole, _ = ready(batch_size=world)
    expected = [learn(whole) for _ in range(4)][-1]
    found = []
    for rank in range(world):
        monkeypatch.setattr("lmrl.datamodules.online.rank_and_world_size", lambda rank=rank: (rank, world))
        data, _ = ready(batch_size=1)
        for _ in range(3):
            learn(data)
        batches = list(data.minibatches())
        assert all(batch.input_ids.numel() > 0 for batch in batches)
        found.append([batch.token.tolist() for batch in batches])
    assert [tokens(list(shares)) for shares in zip(*found, strict=True)] == [sorted(batch) for batch in expected]
    assert [] in found[-1]


def test_an_object_in_the_environment_is_refused_since_checkpoints_hold_it() -> None:
    with pytest.raises(UserError, match="must hold plain values, got ScriptedOracle for partner"):
        OnlineDataModule("twenty_questions", env={"partner": ScriptedOracle()})
