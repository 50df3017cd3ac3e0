"""Two processes play and learn what one does, and are in step although their episodes end at different times."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback

import lmrl
from lmrl.callbacks import InteractiveEvaluation, KeepLast, RolloutCollection
from lmrl.models.sharding import summon_full_params
from lmrl.modules import BC, GRPO, ILQL, PPO, ArCHer, GiGPO, LanguageModule, OnlineFilteredBC
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Start
from lmrl.utils.distributed import all_gather_objects, map_over_ranks, rank_and_world_size
from tests.helpers.online import ENV, TINY, rounds
from tests.helpers.ranks import STRATEGIES, on_ranks, strategy
from tests.modules.test_ranks import Losses

STEPS = 6


def learn(name: str, kind: str, bc_run: str, data_path: str, root: Path) -> list[dict[str, float]]:
    """What is logged at each step of an online run whose policy is evaluated now and then."""
    world, seen = (1, Losses()) if name == "one" else (2, Losses())
    torch.manual_seed(0)
    shared: dict[str, Any] = {"pretrained": bc_run, "lr": 1e-2, "warmup_steps": 0, "lr_schedule": "constant"}
    kinds: Mapping[str, Callable[..., LanguageModule]] = {
        "ppo": partial(PPO, kl_target=1e-3, kl_horizon=100),
        "bc": partial(OnlineFilteredBC, top_fraction=0.5),
        "ilql": partial(ILQL, polyak=0.5),
        "ahead": partial(PPO, critic_warmup_rounds=0),
        "turn_ppo": partial(PPO, level="turn"),
        "own critic": partial(PPO, critic="own", critic_lr=1e-2),
        "grpo": partial(GRPO, kl_weight=0.1),
        "gigpo": partial(GiGPO, advantage="rloo", loss_agg_mode="seq-mean-token-sum"),
        "archer": partial(ArCHer, actor_loss="pg", polyak=0.5),
    }
    settings: dict[str, Any] = {"epochs": 2, "keep_replay": kind == "archer"}
    if kind == "ilql":
        settings = {"offline": True, "keep_replay": True, "batches": 3, "path": data_path}
    groups: dict[str, Any] = {"episodes": 6, "group_size": 3} if kind in ("grpo", "gigpo") else {"episodes": 5}
    if kind == "grpo":  # some of a group come to the goal and others do not: if all are alike, they teach nothing
        shared |= {"pretrained": "zoo:maze_fo/bc", "lr": 1e-3}
        settings["env"] = {"max_steps": 30}
    if kind == "ahead":
        groups["max_staleness"] = 1
    module = kinds[kind](**shared)
    playing = InteractiveEvaluation("maze_fo", every_n_steps=3, episodes=5, slots=2, env=ENV)
    trainer = L.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=world, strategy=strategy(name), logger=False, limit_val_batches=0,
        callbacks=[RolloutCollection(slots=2, **groups), playing, seen], enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=root,
    )  # fmt: skip
    trainer.fit(module, rounds(batch_size=8 // world, **settings))
    assert (root / "best" / "config.json").is_file()
    timed = ("perf/", "time/", "overlap/")
    return [{key: value for key, value in row.items() if not key.startswith(timed)} for row in seen.rows]


@pytest.mark.parametrize(
    ("kind", "strategies"),
    [
        pytest.param("ppo", ["fsdp"], marks=pytest.mark.slow),  # golden runs train PPO by DDP in each change
        *(
            pytest.param(kind, STRATEGIES, marks=pytest.mark.nightly)
            for kind in ("ppo", "bc", "ilql", "archer", "turn_ppo", "own critic", "grpo", "gigpo")
        ),
    ],
)
def test_online_learning_is_that_of_one_process(
    kind: str, strategies: Sequence[str], bc_run: str, data_path: Path, tmp_path: Path
) -> None:
    (one,) = on_ranks(learn, "one", kind, bc_run, str(data_path), tmp_path / "one", world=1)
    assert len(one) == STEPS and "eval/maze_fo/return_mean" in one[-1] and one[-1]["rollout/return_mean"] < 0
    assert one[0]["train/grad_norm"] > 1e-3  # an optimizer makes whole steps of rounding errors, too
    for name in strategies:
        for rows in on_ranks(learn, name, kind, bc_run, str(data_path), tmp_path / name):
            for row, expected in zip(rows, one, strict=True):
                assert row.keys() == expected.keys()
                for key, value in row.items():
                    # The noise scale is divided by a signal near 0, so that rounding has a larger part in it.
                    tolerance = 1e-2 if key == "train/noise_scale" else 1e-4
                    assert value == pytest.approx(expected[key], abs=1e-5, rel=tolerance), (name, key)


@pytest.mark.nightly
def test_rounds_that_are_played_ahead_are_those_of_one_process(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    (one,) = on_ranks(learn, "one", "ahead", bc_run, str(data_path), tmp_path / "one", world=1)
    for rows in on_ranks(learn, "ddp", "ahead", bc_run, str(data_path), tmp_path / "ddp"):
        for row, expected in zip(rows, one, strict=True):
            assert row == pytest.approx(expected, abs=1e-5, rel=1e-4)


class Uneven(type(lmrl.make("maze_fo"))):  # type: ignore[misc]
    """A maze that ends after as many moves as its seed says: 1 to 9."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = 1 + int(np.random.default_rng(seed).integers(9))
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> Any:
        self.left -= 1
        text, reward, terminated, truncated, info = super().step(action)
        return text, reward, terminated, truncated or self.left == 0, info


class EveryStep(Callback):
    """Plays other episodes after each step: how many moves those of each process took, and the scores."""

    def __init__(self, episodes: int) -> None:
        self.episodes = episodes
        self.moves: list[tuple[int, ...]] = []
        self.returns: list[list[float]] = []

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        assert isinstance(pl_module, BC)
        mine = 0

        def play(starts: Any) -> list[Episode]:
            nonlocal mine
            policy = pl_module.policy(max_new_tokens=2)
            found = in_order(rollout(policy, Uneven, starts, task="maze_fo", slots=2))
            mine += sum(map(len, found))
            return found

        starts = [Start(1000 * trainer.global_step + number) for number in range(self.episodes)]
        with summon_full_params(pl_module):
            found = map_over_ranks(starts, play)
        assert [episode.seed for episode in found] == [start.seed for start in starts]
        self.returns.append([episode.total_reward for episode in found])
        self.moves.append(tuple(all_gather_objects(mine)))


def uneven(name: str, bc_run: str, data_path: str, root: Path, steps: int) -> tuple[Any, Any]:
    playing = EveryStep(episodes=3)
    trainer = L.Trainer(
        max_steps=steps, accelerator="cpu", devices=2, strategy=strategy(name), logger=False, limit_val_batches=0,
        callbacks=[playing], enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=root,
    )  # fmt: skip
    data = lmrl.datamodules.MazeDataModule("maze_fo", path=data_path, batch_size=4)
    trainer.fit(BC(pretrained=bc_run), data)
    return playing.moves, playing.returns


@pytest.mark.nightly
@pytest.mark.parametrize("name", STRATEGIES)
def test_fifty_uneven_evaluations_end(name: str, bc_run: str, data_path: Path, tmp_path: Path) -> None:
    """Between two training steps each, which need both processes."""
    found = on_ranks(uneven, name, bc_run, str(data_path), tmp_path, 50)
    (moves, returns), (_, others) = found
    assert returns == others and len(returns) == 50
    assert sum(first != second for first, second in moves) > 40
    assert max(abs(first - second) for first, second in moves) > 5


def failing(root: Path) -> str:
    """An evaluation in which the environment of one process breaks."""
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy=strategy("ddp"), logger=False, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, default_root_dir=root, max_steps=1,
    )  # fmt: skip

    class Playing(Callback):
        def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            def work(items: Any) -> list[int]:
                if rank_and_world_size()[0] == 1:
                    raise ConnectionError("gone")
                return list(items)

            map_over_ranks(range(5), work)

    trainer.callbacks.append(Playing())  # type: ignore[attr-defined]
    module = BC(architecture=TINY)
    try:
        trainer.fit(module, [1])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.slow
def test_an_error_on_one_process_is_one_on_all(tmp_path: Path) -> None:
    first, second = on_ranks(failing, tmp_path)
    assert first == "UserError: process 1 of 2 failed: ConnectionError: gone"
    assert second == "ConnectionError: gone"


def evaluated(name: str, bc_run: str, data_path: str, root: Path, interrupted: bool, resumed: bool) -> dict[str, float]:
    """Train for two steps and evaluate the second; return what that has logged."""
    playing = InteractiveEvaluation("maze_fo", every_n_steps=2, episodes=5, slots=2, env=ENV)
    trainer = L.Trainer(
        max_steps=2, accelerator="cpu", devices=2, strategy=strategy(name), logger=False, limit_val_batches=0,
        callbacks=[playing, KeepLast()], enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=root,
    )  # fmt: skip
    data = lmrl.datamodules.MazeDataModule("maze_fo", path=data_path, batch_size=4)
    checkpoint = str(root / "last.ckpt") if resumed else None
    with pytest.MonkeyPatch.context() as patch:
        if interrupted:
            patch.setattr("lmrl.callbacks.interactive.evaluate", interrupt)
        try:
            trainer.fit(BC(pretrained=bc_run), data, ckpt_path=checkpoint, weights_only=True)
        except SystemExit:
            assert interrupted
    return {key: float(value) for key, value in trainer.callback_metrics.items() if key.startswith("eval/")}


def interrupt(*args: Any, **settings: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.nightly
@pytest.mark.parametrize("name", STRATEGIES)
def test_an_interrupted_evaluation_of_two_processes_is_made_up_for(
    name: str, bc_run: str, data_path: Path, tmp_path: Path
) -> None:
    """At the last step: the resumed run has no step left."""
    whole, _ = on_ranks(evaluated, name, bc_run, str(data_path), tmp_path / "whole", False, False)
    root = tmp_path / "again"
    assert on_ranks(evaluated, name, bc_run, str(data_path), root, True, False) == [{}, {}]
    assert on_ranks(evaluated, name, bc_run, str(data_path), root, False, True) == [whole, whole]
    assert (root / "best.ckpt").exists() and (root / "best" / "config.json").is_file()
    assert on_ranks(evaluated, name, bc_run, str(data_path), root, False, True) == [{}, {}]  # it is noted
