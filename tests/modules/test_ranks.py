"""Two processes learn what one does: the same losses, weights and gradients, whatever holds the weights."""

import faulthandler
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoModelForCausalLM

from lmrl.callbacks import KeepLast
from lmrl.checkpoints.export import exported_values
from lmrl.checkpoints.reading import check_checkpoint, read_checkpoint
from lmrl.cli import main
from lmrl.errors import UserError
from lmrl.models.lm import weights_on_first_process
from lmrl.modules import AWR, BC, ILQL, MC, QSFT, ArCHer, LanguageModule
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.encoding import Window
from lmrl.tokens.segments import Segment
from lmrl.utils.distributed import rank_and_world_size
from tests.helpers.ranks import STRATEGIES, on_ranks, strategy
from tests.modules.test_gradients import TINY, examples


class Losses(Callback):
    """Remembers what is logged at each step, but the largest weight: of that the mean over processes is logged."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.rows.append({name: value for name, value in logged.items() if not name.endswith("/weight_max")})


class ILQLFromScratch(ILQL):
    starts_from_bc = False


class MCFromScratch(MC):
    starts_from_bc = False


class AWRFromScratch(AWR):
    starts_from_bc = False


class ArCHerFromScratch(ArCHer):
    starts_from_bc = False


class QSFTFromScratch(QSFT):
    starts_from_bc = False


KINDS: Mapping[str, Callable[..., LanguageModule]] = {
    "bc": BC,
    "mc": MCFromScratch,
    "ilql": ILQLFromScratch,
    "awr": partial(AWRFromScratch, temperature=20.0),
    "bootstrapped_awr": partial(AWRFromScratch, bootstrap=True, temperature=20.0),
    "archer": partial(ArCHerFromScratch, temperature=20.0),
    "qsft": partial(QSFTFromScratch, return_range=[0.0, 40.0], bc_weight=0.5),
}


def segments() -> list[Segment]:
    """Short and long ones in turn, so that of two processes one has far more tokens."""
    parts = [replace(part, return_to_go=np.arange(len(part.col), dtype=float)) for part in examples()]
    parts.sort(key=lambda part: len(part.col))
    return [part for pair in zip(parts[:16], parts[16:], strict=True) for part in pair]


class Data(L.LightningDataModule):
    """16 segments a step, however many processes share them."""

    def train_dataloader(self) -> DataLoader[TokenBatch]:
        (rank, world), parts = rank_and_world_size(), segments()
        order = DistributedSampler(parts, world, rank, shuffle=False)  # type: ignore[arg-type]
        expected = (sum(len(part.col) for part in parts) / 2 / world, 1.0)  # of the two steps of an epoch
        together = partial(collate, pad=0, expected=expected, after=True)
        return DataLoader(parts, 16 // world, sampler=order, collate_fn=together)  # type: ignore[arg-type]


def run(
    name: str, kind: Callable[..., LanguageModule], root: Path, steps: int = 4, *callbacks: Callback, **more: Any
) -> list[dict[str, float]]:
    """What is logged at each step of a run."""
    torch.manual_seed(int(os.environ["RANK"]))  # only what the first process draws counts
    seen = Losses()
    resume = more.pop("ckpt_path", None)
    architecture = more.pop("architecture", TINY)
    first = more.pop("first", False)
    precision = more.pop("precision", "32-true")
    trainer = L.Trainer(
        max_steps=steps, accelerator="cpu", devices=1 if name == "one" else 2, strategy=strategy(name, **more),
        logger=False, callbacks=[seen, *callbacks], enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, gradient_clip_val=0.5, default_root_dir=root, use_distributed_sampler=False,
        precision=precision,
    )  # fmt: skip
    with weights_on_first_process() if first else nullcontext():
        module = kind(architecture=architecture, lr=1e-2, lr_schedule="constant", warmup_steps=0)
    assert first is False or next(module.model.parameters()).is_meta == (trainer.global_rank > 0)
    module.window = Window()
    trainer.fit(module, Data(), ckpt_path=resume)
    return seen.rows


def assert_same(found: Sequence[list[dict[str, float]]], expected: list[dict[str, float]]) -> None:
    for rows in found:
        for row, right in zip(rows, expected, strict=True):
            assert row == pytest.approx(right, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=name, marks=pytest.mark.slow if name == "ilql" else pytest.mark.nightly)
        for name, kind in KINDS.items()
    ],
)
def test_losses_are_those_of_one_process(kind: Callable[..., LanguageModule], tmp_path: Path) -> None:
    (one,) = on_ranks(run, "one", kind, tmp_path, world=1)
    assert len(one) == 4 and one[0]["train/loss"] != one[3]["train/loss"]
    for name in STRATEGIES:
        assert_same(on_ranks(run, name, kind, tmp_path), one)


def saving(root: Path, steps: int, more: dict[str, Any]) -> list[dict[str, float]]:
    return run("fsdp", ILQLFromScratch, root, steps, KeepLast(every_n_steps=2), **more)


def weights_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = read_checkpoint(checkpoint, weights=True)["state_dict"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("in_shards", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_run_in_shards_is_saved_goes_on_and_is_exported(in_shards: bool, tmp_path: Path) -> None:
    settings = {"save_distributed_checkpoint": in_shards}
    whole = on_ranks(saving, tmp_path / "whole", 4, settings)
    on_ranks(saving, tmp_path / "halves", 2, settings)
    last = tmp_path / "halves" / "last.ckpt"
    assert last.is_dir() == in_shards
    check_checkpoint(last, allow_pickle=False)
    halves = on_ranks(saving, tmp_path / "halves", 4, {**settings, "ckpt_path": last})
    assert [rows[2:] for rows in whole] == halves
    expected = weights_of(tmp_path / "whole" / "last.ckpt")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights_of(last).items())
    assert main(["export", str(tmp_path / "halves"), "--to", str(tmp_path / "exported")]) == 0
    for folder in (tmp_path / "exported", tmp_path / "halves" / "last"):
        model = AutoModelForCausalLM.from_pretrained(folder)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, expected[f"model.{name}"]), name
        values = exported_values(str(folder))
        assert {name.split(".")[0] for name in values} == {"trunk", "q_heads", "v_head"}
        assert all(torch.equal(tensor, expected[name]) for name, tensor in values.items())
    assert not [path for path in (tmp_path / "halves").iterdir() if path.name.startswith(".")]


LLAMA = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.nightly
def test_weights_that_only_the_first_process_has_reach_all(tmp_path: Path) -> None:
    """Buffers too, without which a rotary embedding knows no positions."""
    more = {"architecture": LLAMA}
    (one,) = on_ranks(partial(run, "one", ILQLFromScratch, tmp_path, 3, **more), world=1)
    assert_same(on_ranks(partial(run, "fsdp", ILQLFromScratch, tmp_path, 3, first=True, **more)), one)


def test_the_weights_are_really_in_shards(tmp_path: Path) -> None:
    """Each of two processes holds half of them, but for what cannot be halved."""
    for total, mine in on_ranks(held, tmp_path):
        assert 0.45 * total < mine < 0.55 * total


def held(root: Path) -> tuple[int, int]:
    counts: list[tuple[int, int]] = []

    class Counting(Callback):
        def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
            parameters = [p for p in pl_module.parameters() if isinstance(p, DTensor)]
            assert len(parameters) == len([*pl_module.parameters()])
            counts.append((sum(p.numel() for p in parameters), sum(p.to_local().numel() for p in parameters)))

    run("fsdp", ILQLFromScratch, root, 1, Counting())
    return counts[0]


def refused(root: Path) -> str:
    module = BC(architecture=TINY)
    settings = {"data_parallel_size": 1, "tensor_parallel_size": 2}
    trainer = L.Trainer(
        max_steps=1, accelerator="cpu", devices=2, logger=False, enable_checkpointing=False, default_root_dir=root,
        enable_progress_bar=False, enable_model_summary=False, strategy=ModelParallelStrategy(**settings),
    )  # fmt: skip
    with pytest.raises(UserError) as told:
        trainer.fit(module, Data())
    return str(told.value)


def test_tensors_in_parallel_are_refused(tmp_path: Path) -> None:
    assert all("tensor_parallel_size must be 1" in text for text in on_ranks(refused, tmp_path))


def stuck() -> None:
    if os.environ["RANK"] == "0":
        time.sleep(600)


def test_a_deadlock_is_a_failure() -> None:
    with pytest.raises(AssertionError, match=r"processes \[0.* were not done after 2.0 s"):
        on_ranks(stuck, seconds=2.0)


def knows(name: str) -> bool:
    return name in sys.modules


def test_processes_begin_with_all_imports_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder in which the first of them is started does not matter."""
    monkeypatch.chdir(tmp_path)
    assert on_ranks(knows, "tests.test_golden_runs", world=1) == [True]


def talk() -> float:
    torch.distributed.init_process_group("gloo")
    found = torch.ones(1)
    torch.distributed.all_reduce(found)
    return found.item()


def test_processes_know_nothing_of_the_threads_of_this_one() -> None:
    faulthandler.dump_traceback_later(200)  # a thread whose lock a fork would wait for
    try:
        assert on_ranks(talk, seconds=60.0) == [2.0, 2.0]
    finally:
        faulthandler.cancel_dump_traceback_later()
