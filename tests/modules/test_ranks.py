"""Two processes learn what one does: the same losses, weights and gradients, whatever holds the weights."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch.utils.data import DataLoader, DistributedSampler

from lmrl.batch import TokenBatch, collate
from lmrl.modules import BC, ILQL, MC, LanguageModule
from lmrl.ranks import place
from lmrl.tokens import Segment
from tests.modules.test_gradients import TINY, examples
from tests.ranks import STRATEGIES, on_ranks, strategy


class Losses(Callback):
    """Remembers what is logged at each step."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self.rows.append({name: float(value) for name, value in trainer.callback_metrics.items()})


class ILQLFromScratch(ILQL):
    starts_from_bc = False


class MCFromScratch(MC):
    starts_from_bc = False


KINDS: Sequence[type[LanguageModule]] = (BC, MCFromScratch, ILQLFromScratch)


def segments() -> list[Segment]:
    return [replace(part, return_to_go=np.arange(len(part.col), dtype=float)) for part in examples()]


def losses(name: str, kind: type[LanguageModule], root: Path) -> list[dict[str, float]]:
    """Of four steps on 16 segments each, however many processes share them."""
    rank, world = (0, 1) if name == "one" else (None, 2)
    torch.manual_seed(0)
    seen, settings = Losses(), {"warmup_steps": 0, "lr": 1e-2, "architecture": TINY}
    module = kind(**settings)
    trainer = L.Trainer(
        max_steps=4, accelerator="cpu", devices=world, strategy=strategy(name), logger=False, callbacks=[seen],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=0.5,
        default_root_dir=root, use_distributed_sampler=False,
    )  # fmt: skip
    parts = segments()

    class Data(L.LightningDataModule):
        def train_dataloader(self) -> DataLoader[TokenBatch]:
            rank, world = place()
            order = DistributedSampler(parts, world, rank, shuffle=False)  # type: ignore[arg-type]
            return DataLoader(parts, 16 // world, sampler=order, collate_fn=partial(collate, pad=0))  # type: ignore[arg-type]

    trainer.fit(module, Data())
    return seen.rows


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_one_process(kind: type[LanguageModule], tmp_path: Path) -> None:
    (one,) = on_ranks(losses, "one", kind, tmp_path, world=1)
    assert len(one) == 4 and one[0]["train/loss"] != one[3]["train/loss"]
    for name in STRATEGIES:
        for rows in on_ranks(losses, name, kind, tmp_path):
            for row, expected in zip(rows, one, strict=True):
                assert row == pytest.approx(expected, abs=1e-5, rel=1e-5), name
