"""Every game can be learned: a small model imitates a good player for a few steps, and plays better than chance.

The whole way is walked: game, scripted player, file, tokens, batches, training, decoding, game.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from lmrl import make
from lmrl.data.storage import write_episodes
from lmrl.datamodules import OfflineDataModule
from lmrl.envs.registry import make_policy
from lmrl.envs.registry import task as task_of
from lmrl.modules import BC
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Policy, Start

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
}


def play(policy: Policy, task: str, starts: Sequence[Start], env: Mapping[str, Any]) -> list[Episode]:
    return in_order(rollout(policy, lambda: make(task, **env), starts, task=task))


def learned(
    task: str, episodes: Sequence[Episode], tmp_path: Path, steps: int, batch_size: int, temperature: float
) -> Policy:
    path = tmp_path / "episodes.parquet"
    write_episodes(path, episodes, {"task": task})
    torch.manual_seed(0)
    module = BC(architecture={"n_head": 4, "initializer_range": 0.08}, lr=3e-3, warmup_steps=10)
    data = OfflineDataModule(task, path=str(path), batch_size=batch_size, val_fraction=0.0)
    L.Trainer(max_steps=steps, gradient_clip_val=1.0, limit_val_batches=0, **QUIET).fit(module, data)
    return module.policy(temperature=temperature, max_new_tokens=task_of(task).max_action_tokens)


def starts_of(task: str, count: int) -> list[Start]:
    given = task_of(task).starts
    return [Start(seed, given[seed % len(given)] if given else None) for seed in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "count", "steps", "wins"),
    # Wins by chance: 6 of 25 in the maze, none of 8 in the house.
    [("maze_fo", 25, 60, 20), pytest.param("text_nav_fo", 8, 60, 6, marks=pytest.mark.nightly)],
)
def test_the_way_is_learned(task: str, count: int, steps: int, wins: int, tmp_path: Path) -> None:
    starts = starts_of(task, count)
    shown = play(make_policy(task, "optimal"), task, starts, {})
    policy = learned(task, shown, tmp_path, steps, batch_size=32, temperature=0.0)
    played = play(policy, task, starts, {})
    assert sum(episode.success for episode in played) >= wins, [episode.actions for episode in played][:3]


@pytest.mark.nightly
def test_answers_are_understood_in_wordle(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("\n".join(["crane", "moldy", "fifth", "jumpy", "skunk", "vivid"]))
    env = {"vocab": str(words)}
    starts = [Start(seed) for seed in range(200)]
    shown = play(make_policy("wordle", "consistent", env), "wordle", starts, env)
    policy = learned("wordle", shown, tmp_path, 300, batch_size=32, temperature=1.0)
    played = play(policy, "wordle", starts, env)
    illegal = sum(episode.illegal for episode in played) / sum(map(len, played))
    mean = sum(episode.total_reward for episode in played) / len(played)
    # Any word each time gives -3.3 on average, a word that was not said before -2.5 at most.
    # A model that was not trained says no word at all, and earns -6.
    assert illegal < 0.15
    assert mean > -2.9


@pytest.mark.parametrize(
    ("task", "player", "env"),
    [
        ("endgames", "optimal", {}),
        ("chess", "behaviour", {"opponent": "random"}),
    ],
)
@pytest.mark.nightly
def test_a_won_game_is_won_again(task: str, player: str, env: dict[str, Any], tmp_path: Path) -> None:
    many = play(make_policy(task, player, env), task, starts_of(task, 12), env)
    game = min((episode for episode in many if episode.success), key=len)
    policy = learned(task, [game], tmp_path, 150, batch_size=32, temperature=0.0)
    assert game.seed is not None
    (again,) = play(policy, task, [Start(game.seed, game.info["start"])], env)
    assert again.success, again.actions
    assert (again.actions, again.illegal) == (game.actions, 0)
