"""From blind play to the best there is: BC, ILQL and PPO in a corridor where every value is known.

The whole way of each algorithm is walked with small transformers, through the parts that a run of the command line is
made of. The data are all walks of three steps, so that who imitates them walks blindly.
"""

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch

from lmrl import make
from lmrl.callbacks import KeepLast, RolloutCollection
from lmrl.data.storage import write_episodes
from lmrl.datamodules import OfflineDataModule, OnlineDataModule
from lmrl.evaluation import evaluate
from lmrl.modules import BC, ILQL, PPO, load_module
from lmrl.types import Policy, Request
from tests.helpers.corridor import corridor_task
from tests.helpers.doubles import corridor
from tests.helpers.online import trainer

# Games of a step or two are soon all alike.
pytestmark = pytest.mark.filterwarnings("ignore:round [0-9]+. ")

#: Returns from the squares 0, 1 and 2 of who walks to the right.
BEST = [-2.0, -1.0, 0.0]
#: V of the squares for a discount of 0.9: the solution of V = 0.95 Q(R) + 0.05 Q(L).
VALUES = (-2.1063, -1.1830, -0.1032)
#: Time enough to arrive by chance.
LONG = {"max_steps": 20}


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    with corridor_task():
        yield


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> OfflineDataModule:
    path = tmp_path_factory.mktemp("data") / "corridor.parquet"
    write_episodes(path, [replace(episode, task="corridor") for episode in corridor()], {"task": "corridor"})
    return OfflineDataModule("corridor", path=str(path), batch_size=256, val_fraction=0.0)


@pytest.fixture(scope="module")
def bc_run(tmp_path_factory: pytest.TempPathFactory, recorded: OfflineDataModule) -> str:
    root = tmp_path_factory.mktemp("runs") / "corridor" / "bc"
    torch.manual_seed(0)
    trainer(root, 80, [KeepLast()]).fit(BC(tokenizer="lmrl-letters", lr=3e-3, warmup_steps=5), recorded)
    return str(root)


def returns(policy: Policy, episodes: int = 3, **env: int) -> list[float]:
    """The first three from the squares 0, 1 and 2, and so on."""
    return [episode.total_reward for episode in evaluate(policy, "corridor", episodes, env=env).episodes]


def test_the_data_are_what_the_game_answers() -> None:
    game = make("corridor")
    for episode in corridor():
        text, _ = game.reset(options={"square": int(episode.observations[0])})
        turns = [game.step(action) for action in episode.actions]
        assert (text, *(turn[0] for turn in turns)) == episode.observations
        assert tuple(turn[1] for turn in turns) == episode.rewards
        assert [turn[2:4] for turn in turns[:-1]] == [(False, False)] * (len(turns) - 1)
        assert turns[-1][2:4] == (episode.terminated, episode.truncated)


@pytest.mark.slow
def test_imitation_walks_blindly(bc_run: str) -> None:
    """On average the goal is 12 steps from square 0, 10 from 1 and 6 from 2, of which the last costs nothing."""
    module = load_module(bc_run)
    assert mean(returns(module.policy(max_new_tokens=1), 300, max_steps=200)) == pytest.approx(-25 / 3, abs=1.5)
    assert returns(module.policy(max_new_tokens=1, temperature=0.0)) != BEST


@pytest.mark.slow
def test_ilql_finds_the_best_way_in_walks_without_aim(bc_run: str, recorded: OfflineDataModule, tmp_path: Path) -> None:
    torch.manual_seed(0)
    settings = {"gamma": 0.9, "expectile": 0.95, "cql_weight": 0.0, "polyak": 0.05}
    module = ILQL(pretrained=bc_run, head_bias=-3.0, lr=1e-3, warmup_steps=5, **settings)
    trainer(tmp_path, 200).fit(module, recorded)
    policy = module.eval().policy(max_new_tokens=1, temperature=0.0)
    assert returns(policy) == BEST
    values = policy.state_values([Request(square, 0, (str(square),)) for square in range(3)])
    assert values.tolist() == pytest.approx(VALUES, abs=0.15)


@pytest.mark.slow
def test_ppo_finds_the_way_by_playing(bc_run: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    settings = {"value_clip": None, "value_weight": 0.1, "kl_weight": 0.01}
    module = PPO(pretrained=bc_run, gamma=0.9, head_bias=-3.0, lr=1e-3, warmup_steps=5, **settings)
    data = OnlineDataModule("corridor", batch_size=64, epochs=3, env=LONG)
    trainer(tmp_path, 120, [RolloutCollection(episodes=32)], gradient_clip_val=1.0).fit(module, data)
    policy = module.eval().policy(max_new_tokens=1)
    # 300 games of one who walks right all the time return -1; one in eight that stays back a step, -1.125.
    assert mean(returns(policy, 300, **LONG)) >= -1.1


@pytest.mark.parametrize("critic", ["detached", "own"])
def test_the_critic_sees_more_than_the_turn(critic: str, bc_run: str, tmp_path: Path) -> None:
    """The square tells how far it is; the turn alone does not. V is judged on rounds that it has not seen."""
    torch.manual_seed(0)
    # A trunk of its own can lose all of its ReLUs at the rate that a head alone bears.
    rate = 3e-3 if critic == "detached" else 1e-3
    settings = {"gamma": 1.0, "gae_lambda": 1.0, "lr": 0.0, "critic_lr": rate, "critic_passes": 20}
    module = PPO(pretrained=bc_run, critic=critic, critic_warmup_rounds=3, **settings)
    data = OnlineDataModule("corridor", batch_size=64, env=LONG)
    trainer(tmp_path, 1, [RolloutCollection(episodes=64)]).fit(module, data)
    logged: dict[str, list[float]] = {"ppo/explained_variance": [], "ppo/explained_by_turn": []}
    with (tmp_path / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            for name, values in logged.items():
                if row.get(name):
                    values.append(float(row[name]))
    assert logged["ppo/explained_variance"][-1] > logged["ppo/explained_by_turn"][-1] + 0.04
