"""PPO finds the way through a corridor from a policy that moves at random (T24)."""

from pathlib import Path

import pytest
import torch

import lmrl
from lmrl.behaviours import make_policy
from lmrl.callbacks import KeepLast, RolloutCollection
from lmrl.datamodules import MazeDataModule
from lmrl.evaluation import evaluate
from lmrl.modules import BC, PPO, LanguageModule
from lmrl.rollout import Start, in_order, rollout
from lmrl.storage import write_episodes
from tests.online import fit, rounds, trainer


@pytest.mark.filterwarnings("ignore:round [0-9]+. ")
def test_ppo_walks_straight_to_the_goal(tmp_path: Path) -> None:
    """Three cells and the goal: -2, -1 and 0 are the best returns, -1 on average."""
    (tmp_path / "corridor.txt").write_text("######\n#   G#\n######\n")
    env = {"layout": str(tmp_path / "corridor.txt"), "max_steps": 10}

    def score(module: LanguageModule) -> float:
        module.eval()
        played = [
            e.total_reward
            for column in (1, 2, 3)
            for e in in_order(
                rollout(
                    module.policy(max_new_tokens=8),
                    lambda: lmrl.make("maze_fo", **env),
                    [Start(seed, {"init_position": (1, column)}) for seed in range(20)],
                    task="maze_fo",
                )
            )
        ]
        return sum(played) / len(played)

    shown = evaluate(make_policy("maze_fo", "random", env), "maze_fo", 40, env={"max_steps": 10})
    write_episodes(tmp_path / "random.parquet", shown.episodes, {"task": "maze_fo"})
    torch.manual_seed(0)
    start = BC(architecture={"initializer_range": 0.1, "n_positions": 128}, lr=3e-3, warmup_steps=10)
    data = MazeDataModule("maze_fo", path=str(tmp_path / "random.parquet"), batch_size=128, val_fraction=0.0)
    trainer(tmp_path / "bc", 40, [KeepLast()]).fit(start, data)
    before = score(start)
    rate = {"lr": 1e-3, "lr_schedule": "constant", "warmup_steps": 0}
    module = PPO(pretrained=str(tmp_path / "bc"), value_weight=0.1, head_bias=-4.0, **rate)
    playing = RolloutCollection(episodes=64)
    fit(module, rounds(batch_size=128, epochs=3, env=env), tmp_path / "ppo", 120, playing=playing)
    assert before < -4.0
    assert score(module) >= -1.1
