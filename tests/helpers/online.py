"""Short online runs for tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger

from lmrl.callbacks import RolloutCollection
from lmrl.datamodules import OnlineDataModule
from lmrl.modules import LanguageModule

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128, "initializer_range": 0.3}
#: Mazes of so few moves that a round takes a moment.
ENV = {"max_steps": 4}


def rounds(**arguments: Any) -> OnlineDataModule:
    return OnlineDataModule(**{"task": "maze_fo", "batch_size": 8, "env": ENV, **arguments})


def trainer(root: Path, steps: int, callbacks: Sequence[Callback] = (), **settings: Any) -> L.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    quiet["limit_val_batches"] = 0
    return L.Trainer(
        max_steps=steps,
        logger=CSVLogger(root, name="", version=""),
        log_every_n_steps=1,
        accelerator="cpu",
        default_root_dir=root,
        callbacks=[*callbacks],
        **{**quiet, **settings},
    )


def fit(
    module: LanguageModule,
    data: OnlineDataModule,
    root: Path,
    steps: int,
    callbacks: Sequence[Callback] = (),
    playing: RolloutCollection | None = None,
    settings: dict[str, Any] | None = None,
    **more: Any,
) -> L.Trainer:
    first = RolloutCollection(episodes=6, slots=4) if playing is None else playing
    run = trainer(root, steps, [first, *callbacks], **(settings or {}))
    run.fit(module, data, **more)
    return run
