"""Tests of rounds that are played during training: their weights, their seeds, and what is reported about them."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import lmrl
from lmrl.callbacks import InteractiveEvaluation, RolloutCollection
from lmrl.callbacks import rollouts as module_of_rollouts
from lmrl.callbacks.rollouts import signs_of_collapse
from lmrl.datamodules import Filter, MazeDataModule
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.modules import BC, ILQL, PPO, OnlineFilteredBC
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Reply, Request, Start
from tests.helpers.online import ENV, TINY, fit, rounds, trainer

pytestmark = pytest.mark.filterwarnings("ignore:round [0-9]+. .*(differ|actions|entropy|pieces)")


class Spying(RolloutCollection):
    """A collection that records its rounds, and what a newly built policy would say at that moment."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{"episodes": 5, "slots": 3, **arguments})
        self.rounds: list[list[Episode]] = []
        self.expected: list[list[tuple[str, ...]]] = []

    def collect(self, number: int) -> list[Episode]:
        starts = [Start(e) for e in (3, 4)]
        env = lambda: lmrl.make("maze_fo", **ENV)  # noqa: E731
        played = in_order(rollout(self._module.policy(max_new_tokens=4), env, starts, task="maze_fo"))
        self.expected.append([e.actions for e in played])
        self.rounds.append(super().collect(number))
        return self.rounds[-1]


def rows(root: Path) -> list[dict[str, str]]:
    with (root / "metrics.csv").open() as file:
        return [*csv.DictReader(file)]


def test_rounds_are_played_with_the_weights_of_their_moment(bc_run: str, tmp_path: Path) -> None:
    spy = Spying()
    module = PPO(pretrained=bc_run, lr=5e-2)
    fit(module, rounds(), tmp_path, steps=9, playing=spy)
    first, *_, last = spy.expected
    assert len(spy.rounds) >= 3
    assert first != last  # it has learned, so it says something else
    seeds = [episode.seed for episodes in spy.rounds for episode in episodes]
    assert len(set(seeds)) == len(seeds)


def test_training_never_plays_the_episodes_of_evaluation(bc_run: str, tmp_path: Path) -> None:
    spy = Spying()
    fit(PPO(pretrained=bc_run), rounds(seed=0), tmp_path, steps=9, playing=spy)
    trained = {episode.seed for episodes in spy.rounds for episode in episodes}
    evaluated = {e.seed for e in evaluate(_Up(), "maze_fo", 200, seed=0, env=ENV).episodes}
    assert not trained & evaluated


def test_the_seed_of_a_training_decides_its_rounds(
    bc_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def episodes(folder: str, run: int, **more: Any) -> list[tuple[int, tuple[str, ...]]]:
        monkeypatch.setenv("PL_GLOBAL_SEED", str(run))  # as L.seed_everything does
        torch.manual_seed(0)
        spy = Spying()
        fit(PPO(pretrained=bc_run), rounds(**more), tmp_path / folder, steps=3, playing=spy)
        return [(e.seed, e.actions) for played in spy.rounds for e in played]

    ours = episodes("ours", 5)
    assert episodes("again", 5) == episodes("told", 6, seed=5) == ours
    assert not {seed for seed, _ in episodes("other", 6)} & {seed for seed, _ in ours}


class _Up:
    def act(self, requests: Sequence[Request]) -> list[Reply]:
        return [Reply("move up\n") for _ in requests]


def test_what_is_logged_of_a_round(bc_run: str, tmp_path: Path) -> None:
    spy = Spying()
    playing = InteractiveEvaluation("maze_fo", every_n_steps=4, episodes=2, env=ENV)
    fit(PPO(pretrained=bc_run), rounds(), tmp_path, steps=8, playing=spy, callbacks=[playing])
    found = [row for row in rows(tmp_path) if row["rollout/return_mean"]]
    assert len(found) == len(spy.rounds)
    assert [float(row["rollout/episodes"]) for row in found] == [5.0 * (at + 1) for at in range(len(found))]
    for row, episodes in zip(found, spy.rounds, strict=True):
        returns = [e.total_reward for e in episodes]
        lengths = [len(e) for e in episodes]
        assert float(row["rollout/return_mean"]) == pytest.approx(sum(returns) / 5)
        assert float(row["rollout/return_p100"]) == max(returns)
        assert float(row["rollout/length_p0"]) == min(lengths)
        assert float(row["rollout/illegal_rate"]) == pytest.approx(sum(e.illegal for e in episodes) / sum(lengths))
        assert float(row["rollout/failed"]) == 0.0
        assert 0.0 < float(row["perf/slot_utilisation"]) <= 1.0
        assert min(float(row[f"perf/{name}_per_s"]) for name in ("tokens", "turns", "episodes")) > 0.0
        shares = [float(row[f"time/{name}"]) for name in ("rollout", "update", "eval")]
        assert sum(shares) == pytest.approx(1.0)
        assert min(shares) >= 0.0
    assert float(found[-1]["time/eval"]) > 0.0


class Failing:
    """A maze whose steps fail for the seeds that `fails` selects."""

    def __init__(self, fails: Any) -> None:
        self.fails = fails

    def __call__(self, task: str, env: Any) -> Any:
        fails = self.fails

        class Maze(type(lmrl.make("maze_fo"))):  # type: ignore[misc]
            def reset(self, **arguments: Any) -> Any:
                self.broken = fails(arguments["seed"])
                return super().reset(**arguments)

            def step(self, action: str) -> Any:
                if self.broken:
                    raise ConnectionError("gone")
                return super().step(action)

        return lambda: Maze(**ENV)


def test_an_environment_that_fails_does_not_end_the_run(
    bc_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_of_rollouts, "environment", Failing(lambda seed: seed % 2))
    spy = Spying(episodes=8)
    with pytest.warns(UserWarning, match="of 8 episodes failed; the last: ConnectionError: gone"):
        fit(PPO(pretrained=bc_run), rounds(), tmp_path, steps=4, playing=spy)
    for episode in spy.rounds[0]:
        assert ("error" in episode.info) == bool(episode.seed % 2)
        assert bool(len(episode)) != bool(episode.seed % 2)
    complete = [episode for episode in spy.rounds[0] if not episode.aborted]
    row = next(row for row in rows(tmp_path) if row["rollout/failed"])
    assert float(row["rollout/failed"]) == 8 - len(complete)
    assert float(row["rollout/return_mean"]) == pytest.approx(sum(e.total_reward for e in complete) / len(complete))
    assert float(row["rollout/length_p0"]) == min(len(episode) for episode in complete)


def test_when_everything_fails_the_run_ends(bc_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of_rollouts, "environment", Failing(lambda seed: True))
    with pytest.raises(UserError, match="all 5 episodes of round 1 failed; the last: ConnectionError: gone"):
        fit(PPO(pretrained=bc_run), rounds(), tmp_path, steps=4, playing=Spying())


def test_collapse_is_said_and_training_goes_on(bc_run: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="round 1: returns do not differ: all 5 are"):
        run = fit(PPO(pretrained=bc_run), rounds(), tmp_path, steps=2, playing=Spying())
    assert run.global_step == 2


def test_online_filtered_bc_learns_from_the_best(bc_run: str, tmp_path: Path) -> None:
    data = rounds(epochs=2)
    spy = Spying(episodes=8)
    module = OnlineFilteredBC(pretrained=bc_run, top_fraction=0.25, lr=1e-2)
    fit(module, data, tmp_path, steps=8, playing=spy)
    assert data.spec.filter == Filter(top_fraction=0.25)
    best = sorted(e.total_reward for e in spy.rounds[-1])[-2:]
    kept = [data.played.outcomes()[index].total_reward for index in data.spec.filter.choose(data.played.outcomes())]
    assert sorted(kept) == best


def test_online_filtered_bc_needs_rounds(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"use lmrl\.datamodules\.OnlineDataModule"):
        trainer(tmp_path, 1).fit(OnlineFilteredBC(pretrained=bc_run), MazeDataModule("maze_fo", path=str(data_path)))


def test_online_ilql_begins_with_the_recorded_episodes(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    data = rounds(path=str(data_path), offline=True, keep_replay=True, batches=2, batch_size=16)
    spy = Spying(decoding={"beta": 1.0})
    fit(ILQL(pretrained=bc_run), data, tmp_path, steps=6, playing=spy)
    assert len(spy.rounds) == 3
    assert len(data.recorded) > len(data.played) == sum(len(e) for episodes in spy.rounds for e in episodes)
    losses = [float(row["ilql/q_loss"]) for row in rows(tmp_path) if row["ilql/q_loss"]]
    assert len(losses) == 6


def test_ppo_trains_on_what_it_sampled_as_it_sampled_it(bc_run: str, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="PPO samples at temperature 1: decoding must hold nothing but compile, got temperature"
    ):
        fit(PPO(pretrained=bc_run), rounds(), tmp_path, steps=1, playing=Spying(decoding={"temperature": 0.5}))


@pytest.mark.nightly
def test_rounds_played_by_compiled_steps_are_the_same_rounds(bc_run: str, tmp_path: Path) -> None:
    plain = Spying()
    compiled = Spying(decoding={"compile": "eager"})
    for name, spy in (("plain", plain), ("compiled", compiled)):
        torch.manual_seed(0)  # value heads begin at random
        fit(PPO(pretrained=bc_run), rounds(), tmp_path / name, steps=5, playing=spy)
    assert len(plain.rounds) > 1
    assert [[e.actions for e in episodes] for episodes in compiled.rounds] == [
        [e.actions for e in episodes] for episodes in plain.rounds
    ]
    torch.compiler.reset()


def test_rounds_need_a_datamodule_for_them(data_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"plays for lmrl\.datamodules\.OnlineDataModule, got MazeDataModule"):
        trainer(tmp_path, 1, [Spying()]).fit(BC(architecture=TINY), MazeDataModule("maze_fo", path=str(data_path)))


@pytest.mark.parametrize("name", ["episodes", "slots"])
def test_numbers_below_one_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} must be at least 1, got 0"):
        RolloutCollection(**{name: 0})


def test_episodes_of_a_group_begin_alike_and_go_on_by_chance(bc_run: str, tmp_path: Path) -> None:
    spy = Spying(episodes=6, slots=4, group_size=3)
    data = rounds()
    fit(PPO(pretrained=bc_run), data, tmp_path, steps=2, playing=spy)
    first = spy.rounds[0]
    assert [episode.info["group"] for episode in first] == [0, 0, 0, 1, 1, 1]
    assert [outcome.group for outcome in data.played.outcomes()] == [0, 0, 0, 1, 1, 1]
    begun = [(episode.info["start"], episode.observations[0]) for episode in first]
    assert begun[0] == begun[1] == begun[2] != begun[3] == begun[4] == begun[5]
    assert len({episode.seed for episode in first}) == 6
    assert len({episode.actions for episode in first[:3]}) > 1


def test_groups_make_up_a_round() -> None:
    with pytest.raises(UserError, match="episodes must be a multiple of group_size, got 64 and 5"):
        RolloutCollection(group_size=5)


def said(*actions: str, reward: float = 0.0, logprob: float = -1.0, ids: tuple[int, ...] = (1, 2, 3)) -> Episode:
    turns = len(actions)
    return Episode(
        "toy",
        ("o",) * (turns + 1),
        actions,
        (reward,) * turns,
        True,
        False,
        action_ids=(ids,) * turns,
        action_logprobs=((logprob,) * len(ids),) * turns,
    )


HEALTHY = [said(*f"{number}abcdefgh", reward=number) for number in range(4)]


def test_nothing_is_said_of_a_healthy_round() -> None:
    assert signs_of_collapse(HEALTHY) == []
    assert signs_of_collapse([said("same", "same")]) == []  # too little to tell


SURE = [said(*"abcdefgh", reward=n, logprob=-0.001) for n in range(3)]
EQUAL = [said("a", "b", reward=-2.0)] * 3
SAME = [said(*["go\n"] * 20, "b", reward=n) for n in range(2)]
STUTTER = [said(*"abcd", reward=n, ids=(5, 6) * 9) for n in range(2)]


@pytest.mark.parametrize(
    ("episodes", "sign"),
    [
        (SURE, "entropy is near zero: 0.0010 nats per token"),
        (EQUAL, "returns do not differ: all 3 are -4"),
        (SAME, "40 of 42 actions are 'go\\n'"),
        (STUTTER, "88% of the three-token pieces within actions"),
    ],
)
def test_a_collapse_is_told_in_words(episodes: list[Episode], sign: str) -> None:
    (found,) = signs_of_collapse(episodes)
    assert found.startswith(sign)
