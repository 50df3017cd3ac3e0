"""Two processes play and learn what one does, and are in step although their episodes end at different times."""

from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback

import lmrl
from lmrl.callbacks import InteractiveEvaluation, RolloutCollection
from lmrl.envs.registration import task
from lmrl.errors import UserError
from lmrl.episode import Episode
from lmrl.evaluation import evaluate
from lmrl.modules import BC, ILQL, PPO, OnlineFilteredBC
from lmrl.modules.sharding import whole
from lmrl.ranks import gathered, place, shared_out
from lmrl.rollout import Start, in_order, rollout
from tests.modules.test_ranks import Losses
from tests.online import ENV, TINY, rounds
from tests.ranks import STRATEGIES, on_ranks, strategy

STEPS = 6


def learn(name: str, kind: str, bc_run: str, data_path: str, root: Path) -> list[dict[str, float]]:
    """What is logged at each step of an online run whose policy is evaluated now and then."""
    world, seen = (1, Losses()) if name == "one" else (2, Losses())
    torch.manual_seed(0)
    shared = {"pretrained": bc_run, "lr": 1e-2, "warmup_steps": 0, "lr_schedule": "constant"}
    module = {
        "ppo": partial(PPO, kl_target=1e-3, kl_horizon=100),
        "bc": partial(OnlineFilteredBC, top_fraction=0.5),
        "ilql": partial(ILQL, polyak=0.5),
    }[kind](**shared)
    settings = {"offline": True, "history": True, "batches": 3, "path": data_path} if kind == "ilql" else {"epochs": 2}
    playing = InteractiveEvaluation("maze_fo", every_n_steps=3, episodes=5, slots=2, env=ENV)
    trainer = L.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=world, strategy=strategy(name), logger=False, limit_val_batches=0,
        callbacks=[RolloutCollection(episodes=5, slots=2), playing, seen], enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=root,
    )  # fmt: skip
    trainer.fit(module, rounds(batch_size=8 // world, **settings))
    assert (root / "best" / "config.json").is_file()
    timed = ("perf/", "time/")
    return [{key: value for key, value in row.items() if not key.startswith(timed)} for row in seen.rows]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ppo", "bc", "ilql"])
def test_online_learning_is_that_of_one_process(kind: str, bc_run: str, data_path: Path, tmp_path: Path) -> None:
    (one,) = on_ranks(learn, "one", kind, bc_run, str(data_path), tmp_path / "one", world=1)
    assert len(one) == STEPS and "eval/maze_fo/return_mean" in one[-1] and one[-1]["rollout/return_mean"] < 0
    for name in STRATEGIES:
        for rows in on_ranks(learn, name, kind, bc_run, str(data_path), tmp_path / name):
            for row, expected in zip(rows, one, strict=True):
                assert row == pytest.approx(expected, abs=1e-5, rel=1e-4), name
