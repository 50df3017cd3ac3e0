"""Episodes that an error aborted take no part in what the others teach."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch import Callback

import lmrl
from lmrl.data.storage import read_episodes, write_episodes
from lmrl.datamodules import MazeDataModule
from lmrl.modules import GRPO, PPO, GiGPO, LanguageModule, OnlineFilteredBC, load_module
from lmrl.rollout import in_order, rollout
from lmrl.tokens.collate import TokenBatch
from lmrl.types import Episode, Start
from tests.helpers.online import ENV, rounds, trainer

pytestmark = pytest.mark.filterwarnings("ignore:(round [0-9]+. |all advantages|Experiment logs directory)")

EPISODES = 32
GROUP = 4
#: Three of the first group, which leaves one episode alone, and two of others.
ABORTED = (0, 1, 3, 9, 30)
KINDS: list[tuple[type[LanguageModule], dict[str, Any]]] = [
    (GRPO, {"advantage": "grpo"}),
    (GRPO, {"advantage": "rloo"}),
    (GRPO, {"advantage": "rebn"}),
    (GiGPO, {}),
    (PPO, {}),
    (PPO, {"level": "turn"}),
    (OnlineFilteredBC, {"top_fraction": 0.5}),
]


class Given(Callback):
    """Hands out the same episodes in each round, and keeps the batch that is made of them."""

    def __init__(self, episodes: list[Episode]) -> None:
        self.episodes = episodes

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        trainer.datamodule.register_collector(self)  # type: ignore[attr-defined]

    def collect(self, number: int) -> list[Episode]:
        return self.episodes

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, index: int) -> None:
        self.batch: TokenBatch = batch


def batch_of(kind: type[LanguageModule], given: dict[str, Any], run: str, episodes: list[Episode], root: Path) -> Any:
    """The only minibatch of a round."""
    torch.manual_seed(0)
    callback = Given(episodes)
    trainer(root, 1, [callback]).fit(kind(pretrained=run, **given), rounds(batch_size=EPISODES))
    return callback.batch


def played(run: str) -> list[Episode]:
    """A round in groups, by a policy with values; returns differ."""
    policy = PPO(pretrained=run)
    policy.window = load_module(run).window
    env = lambda: lmrl.make("maze_fo", **ENV)  # noqa: E731
    starts = [Start(100 + index) for index in range(EPISODES)]
    found = in_order(rollout(policy.policy(max_new_tokens=4), env, starts, task="maze_fo"))
    return [
        replace(episode, rewards=(*episode.rewards[:-1], float(index % 5)), info={"group": index // GROUP})
        for index, episode in enumerate(found)
    ]


def aborted(episode: Episode) -> Episode:
    """The first turn alone, without a price."""
    return replace(
        episode,
        observations=episode.observations[:2],
        actions=episode.actions[:1],
        rewards=(0.0,),
        action_ids=episode.action_ids[:1],
        action_logprobs=episode.action_logprobs[:1],
        action_values=episode.action_values[:1],
        terminated=False,
        truncated=True,
        info={**episode.info, "error": "OSError: no answer"},
    )


@pytest.mark.parametrize(("kind", "given"), KINDS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_round_teaches_what_it_does_without_its_aborted_episodes(
    kind: type[LanguageModule], given: dict[str, Any], bc_run: str, tmp_path: Path
) -> None:
    episodes = played(bc_run)
    mixed = [aborted(episode) if index in ABORTED else episode for index, episode in enumerate(episodes)]
    complete = [episode for index, episode in enumerate(episodes) if index not in ABORTED]
    found = batch_of(kind, given, bc_run, mixed, tmp_path / "mixed")
    expected = batch_of(kind, given, bc_run, complete, tmp_path / "complete")
    assert torch.equal(found.token, expected.token) and len(found.token) > 0
    columns = expected.columns or {}
    assert (found.columns or {}).keys() == columns.keys()
    for name, column in columns.items():
        assert torch.equal(found.columns[name], column), name


def test_recorded_episodes_that_an_error_aborted_are_left_out(data_path: Path, tmp_path: Path) -> None:
    """Otherwise the fewest turns, each of which costs 1, would look like the best episodes."""
    recorded = list(read_episodes(data_path))
    broken = [replace(episode, terminated=False, truncated=True, info={"error": "gone"}) for episode in recorded[:5]]
    path = tmp_path / "some_aborted.parquet"
    write_episodes(path, [*broken, *recorded[5:]])
    whole = tmp_path / "complete.parquet"
    write_episodes(whole, recorded[5:])
    data = MazeDataModule("maze_fo", path=str(path), data_seed=3)
    with pytest.warns(UserWarning, match="5 episodes aborted by an error left out"):
        data.setup("fit")
    expected = MazeDataModule("maze_fo", path=str(whole), data_seed=3)
    expected.setup("fit")
    assert data.split() == expected.split()
