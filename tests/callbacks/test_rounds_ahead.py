"""Rounds that are played while the trainer learns: with the weights of k rounds before, and each time the same."""

import csv
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback

from lmrl.callbacks import KeepLast, RolloutCollection
from lmrl.callbacks.interactive import policy_of
from lmrl.errors import UserError
from lmrl.modules import GRPO, ILQL, PPO, LanguageModule
from lmrl.partners import environment
from lmrl.rollout import play_piece
from lmrl.training.reporting import LossReporter
from lmrl.types import Episode
from tests.helpers.mortal import MortalPPO
from tests.helpers.online import ENV, fit, rounds
from tests.helpers.ranks import fork_context

pytestmark = pytest.mark.filterwarnings("ignore:(round [0-9]+. |all advantages)")

FAST: dict[str, Any] = {"lr": 1e-2, "lr_schedule": "constant", "warmup_steps": 0, "entropy_weight": 1.0}


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes that play be forks of one that has imported all, where each would import it again."""
    monkeypatch.setattr("lmrl.utils.worker_processes.get_context", lambda method: fork_context())


class Noting(RolloutCollection):
    """Notes the rounds, the weights when each was asked for, and what is logged."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{"episodes": 6, "slots": 2, **arguments})
        self.rounds: list[list[Episode]] = []
        self.weights: list[dict[str, torch.Tensor]] = []

    def collect(self, number: int) -> list[Episode]:
        self.weights.append({name: tensor.clone() for name, tensor in self._module.state_dict().items()})
        self.rounds.append(super().collect(number))
        return self.rounds[-1]


def learned(
    kind: Callable[[], LanguageModule], root: Path, playing: RolloutCollection, steps: int = 12, **more: Any
) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)  # for the heads, which begin at random
    module = kind()
    data = more.pop("data", {})
    fit(module, rounds(**{"batch_size": 16, **data}), root, steps, playing=playing, **more)
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def column(root: Path, name: str) -> list[float]:
    with (root / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


@pytest.mark.nightly
def test_worker_processes_play_what_one_process_plays_though_one_dies(
    bc_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMRL_DATA", str(tmp_path))
    here = Noting(piece=2)
    others = Noting(workers=2)
    kind = partial(MortalPPO, pretrained=bc_run, **FAST)
    alone = learned(kind, tmp_path / "one", here)
    (tmp_path / "die-1").touch()
    assert_equal(alone, learned(kind, tmp_path / "two", others))
    assert len(here.rounds) > 1 and here.rounds == others.rounds
    assert not (tmp_path / "die-1").exists()


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("k", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_each_round_is_played_with_the_weights_of_k_rounds_before(k: int, bc_run: str, tmp_path: Path) -> None:
    playing = Noting(max_staleness=k)
    learned(partial(PPO, pretrained=bc_run, critic_warmup_rounds=0, **FAST), tmp_path, playing)
    assert len(playing.rounds) > k + 2
    player = PPO(pretrained=bc_run, critic_warmup_rounds=0)
    player.window = playing._module.window
    settings = {"max_new_tokens": playing._data.task.max_action_tokens, "slots": 2}
    for index, episodes in enumerate(playing.rounds):
        player.load_state_dict(playing.weights[max(0, index - k)])
        starts = playing._starts(playing._data.seed, index + 1)
        played = []
        for first in range(0, 6, 2):
            policy = policy_of(player, settings)
            piece = play_piece(policy, environment("maze_fo", ENV), starts[first : first + 2], "maze_fo", 2)
            played += piece.episodes
        assert [episode.action_ids for episode in episodes] == [episode.action_ids for episode in played]
        assert [episode.action_logprobs for episode in episodes] == [episode.action_logprobs for episode in played]
    stale = column(tmp_path, "overlap/stale_steps")
    assert stale[0] == 0.0 and all(steps > 0.0 for steps in stale[1:])
    assert {episode.info["weights"] for episode in playing.rounds[k]} == {0}
    assert all(episode.info["weights"] > 0 for episode in playing.rounds[k + 1])


class Columns(Callback):
    """Remembers what is learned from."""

    def __init__(self) -> None:
        self.batches: list[dict[str, torch.Tensor]] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *args: Any) -> None:
        self.batches.append(dict(batch.columns))


@pytest.mark.usefixtures("forked")
@pytest.mark.slow
@pytest.mark.parametrize("cap", [1.1, pytest.param(None, marks=pytest.mark.nightly)])
def test_stale_rounds_are_corrected_by_truncated_importance_weights(
    cap: float | None, bc_run: str, tmp_path: Path
) -> None:
    playing = Noting(max_staleness=1, importance_cap=cap, group_size=3)
    noting = Columns()
    kind = partial(GRPO, pretrained=bc_run, advantage="rebn", kl_weight=0.0, **FAST)
    # Each round is learned from twice, so the policy before it scores its tokens.
    learned(kind, tmp_path, playing, 4, data={"batch_size": 64, "epochs": 2}, callbacks=[noting])
    del noting.batches[1::2]
    assert column(tmp_path, "grpo/first_ratio") == pytest.approx([1.0, 1.0], abs=1e-4)
    played = np.concatenate([np.concatenate(episode.action_logprobs) for episode in playing.rounds[1]])
    own = noting.batches[1]["logprob"].numpy()
    if cap is None:
        assert "importance" not in noting.batches[1]
        return
    # Minibatches are shuffled, so tokens are found by what was noted in play: a weight is exp(own - noted).
    weights = noting.batches[1]["importance"].numpy()
    # Tokens beyond the clip range have weight 0.
    counts = weights > 0
    own = own[counts]
    weights = weights[counts]
    before = own - np.log(weights)
    uncapped = weights < cap - 1e-5
    assert 0 < uncapped.sum() < len(weights)
    distance = np.abs(before[uncapped][:, None] - played).min(axis=1)
    assert distance.max() < 1e-4
    assert noting.batches[0]["importance"].numpy() == pytest.approx(1.0, abs=1e-4), "the first round is not stale"


@pytest.mark.usefixtures("forked")
def test_what_is_learned_from_once_is_not_scored_again(bc_run: str, tmp_path: Path) -> None:
    """The weights are those of the step: of the policy then, against what was noted in play."""
    noting = Columns()
    playing = Noting(max_staleness=1, importance_cap=1.1, group_size=3)
    module = GRPO(pretrained=bc_run, advantage="rebn", kl_weight=0.0, **FAST)
    learned(lambda: module, tmp_path, playing, 3, data={"batch_size": 64}, callbacks=[noting])
    assert module.correction is None  # the next training may play rounds that are not stale
    for episodes, batch in zip(playing.rounds, noting.batches, strict=False):
        played = np.concatenate([np.concatenate(episode.action_logprobs) for episode in episodes])
        assert np.sort(batch["logprob"].numpy()) == pytest.approx(np.sort(played), abs=1e-6)
        assert "importance" not in batch
    ratios = column(tmp_path, "grpo/first_ratio")
    assert ratios[0] == pytest.approx(1.0, abs=1e-4), "the first round is not stale"
    assert abs(ratios[1] - 1.0) > 1e-3
    assert column(tmp_path, "grpo/clipfrac")[1] > 0.0


@pytest.mark.usefixtures("forked")
@pytest.mark.slow
@pytest.mark.parametrize("play_target", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_values_that_guide_play(play_target: bool, bc_run: str, data_path: Path, tmp_path: Path) -> None:
    data: dict[str, Any] = {"path": str(data_path), "offline": True, "keep_replay": True, "batches": 2}
    kind = partial(ILQL, pretrained=bc_run, polyak=0.5, lr=1e-2, play_target=play_target)
    runs = []
    for name in ("one", "two"):
        playing = Noting(max_staleness=1)
        runs.append(learned(kind, tmp_path / name, playing, 6, data=data))
    assert_equal(*runs)


@pytest.mark.usefixtures("forked")
@pytest.mark.slow
def test_of_adapters_only_their_weights_are_sent(bc_run: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    sent: list[dict[str, torch.Tensor]] = []

    class Spying(Noting):
        def collect(self, number: int) -> list[Episode]:
            episodes = super().collect(number)
            sent.append(self._round_workers().weights(0).tensors)
            return episodes

    playing = Spying(workers=1, piece=2)
    here = Noting(piece=2)
    kind = partial(PPO, pretrained=bc_run, lora={"r": 2}, critic_warmup_rounds=0, **FAST)
    assert_equal(learned(kind, tmp_path / "one", here, 4), learned(kind, tmp_path / "two", playing, 4))
    assert here.rounds == playing.rounds and len(sent) > 1
    language_model = [name for name in sent[0] if name.startswith("model.")]
    assert language_model and all("lora_" in name for name in language_model)


class Copying(Callback):
    """Keeps the checkpoint of the sixth step."""

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        root = Path(trainer.default_root_dir)
        if trainer.global_step == 7 and (root / "last.ckpt").exists():
            shutil.copy(root / "last.ckpt", root / "sixth.ckpt")


@pytest.mark.usefixtures("forked")
@pytest.mark.slow
@pytest.mark.parametrize("k", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_resumed_run_plays_the_rounds_that_were_under_way(k: int, bc_run: str, tmp_path: Path) -> None:
    kind = partial(PPO, pretrained=bc_run, **FAST)
    saving = [KeepLast(every_n_steps=2), Copying()]
    whole = learned(kind, tmp_path, Noting(max_staleness=k), callbacks=saving)
    sixth = tmp_path / "sixth.ckpt"
    checkpoint = torch.load(sixth, weights_only=True)
    ahead = checkpoint["callbacks"]["RolloutCollection"]["ahead"]
    assert checkpoint["global_step"] == 6 and len(ahead["steps"]) == k
    more = {"ckpt_path": sixth, "weights_only": True}
    resumed = learned(kind, tmp_path / "again", Noting(max_staleness=k), callbacks=saving[:1], **more)
    assert_equal(whole, resumed)


def test_a_resumed_run_that_is_saved_at_once_keeps_the_weights_of_rounds_under_way() -> None:
    playing = RolloutCollection(max_staleness=1)
    playing._trainer = SimpleNamespace(callback_metrics={})  # type: ignore[assignment]
    playing._module = SimpleNamespace(name="ppo", reporter=LossReporter("ppo"))  # type: ignore[assignment]
    playing._data = rounds()
    playing._data.round = 3
    ahead = {"steps": {"4": 9}, "weights": {"9": {"weight": torch.ones(2)}}}
    playing.load_state_dict({**playing.state_dict(), "ahead": ahead})
    assert playing.state_dict()["ahead"] == ahead


class Failing(PPO):
    """Its policy cannot play."""

    def policy(self, **settings: Any) -> Any:
        raise UserError("this policy cannot play")


@pytest.mark.usefixtures("forked")
def test_a_failure_of_the_players_ends_the_run(bc_run: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^this policy cannot play$"):
        learned(partial(Failing, pretrained=bc_run), tmp_path, Noting(max_staleness=1))


def test_wrong_arguments() -> None:
    with pytest.raises(UserError, match="max_staleness must be at least 0, got -1"):
        RolloutCollection(max_staleness=-1)
    with pytest.raises(UserError, match="workers must be at least 1, got 0"):
        RolloutCollection(workers=0)


class Stopping(Callback):
    """Presses Ctrl-C after a step."""

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == 3:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("forked")
def test_an_interrupted_run_keeps_the_rounds_under_way_whatever_the_order_of_callbacks(
    bc_run: str, tmp_path: Path
) -> None:
    playing = RolloutCollection(episodes=6, slots=2, max_staleness=1)
    module = PPO(pretrained=bc_run, **FAST)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(module, rounds(batch_size=16), tmp_path, 12, [Stopping(), KeepLast()], playing=playing)
    callbacks = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]
    assert callbacks["RolloutCollection"]["ahead"]["weights"]


OF_A_NOTEBOOK = """
import sys
from dataclasses import replace
from pathlib import Path

import lightning as L

from lmrl.callbacks import RolloutCollection
from lmrl.datamodules import OnlineDataModule
from lmrl.envs import registry
from lmrl.envs.maze.env import Maze
from lmrl.modules import PPO


class Mine(Maze):
    pass


game = replace(registry.task("maze_fo"), name="mine", env_id="lmrl/Mine-v0", entry_point="__main__:Mine")
registry.register(game)
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
trainer = L.Trainer(
    max_steps=2, logger=False, accelerator="cpu", limit_val_batches=0, default_root_dir=sys.argv[2],
    callbacks=[RolloutCollection(episodes=4, slots=2, workers=1)], **quiet,
)
trainer.fit(PPO(pretrained=sys.argv[1]), OnlineDataModule("mine", batch_size=16, env={"max_steps": 3}))
print("learned", trainer.global_step)
"""


@pytest.mark.slow
def test_workers_know_the_tasks_of_a_notebook(bc_run: str, tmp_path: Path) -> None:
    """A program without a file, which no other process can import."""
    words = [sys.executable, "-c", OF_A_NOTEBOOK, bc_run, str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert ended.stdout.endswith("learned 2\n"), ended.stderr
