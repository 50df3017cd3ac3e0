"""Adapters and half-precision weights in shards: several processes learn what one does, and divide its memory."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import peft
import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from lmrl.callbacks import KeepLast
from lmrl.checkpoints.reading import read_checkpoint
from lmrl.cli import main
from lmrl.modules import BC, ILQL, PPO, LanguageModule
from tests.helpers.online import fit, rounds
from tests.helpers.ranks import on_ranks, strategy
from tests.modules.test_gradients import TINY
from tests.modules.test_ranks import Losses, assert_same, run

pytestmark = pytest.mark.slow

LORA = {"r": 2, "lora_alpha": 8}
EXACT = 1e-5
ROUNDED = 2e-3
IDS = torch.tensor([[5, 6, 7, 8, 9]])

#: The module and its arguments, the precision, and how near two processes come to one: gradients in bfloat16 depend on
#: the order in which they are added up.
CASES: dict[str, tuple[Callable[..., LanguageModule], str, float]] = {
    "bc": (partial(BC, lora=LORA), "32-true", EXACT),
    "ilql": (partial(ILQL, lora=LORA, polyak=0.5), "32-true", EXACT),
    "ilql in half": (partial(ILQL, lora=LORA, polyak=0.5), "bf16-true", ROUNDED),
    "bc in half": (BC, "bf16-true", ROUNDED),
}


class Looking(Callback):
    """A callback that notes what a process holds in the end: the bytes, and the dtypes."""

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        named = pl_module.named_parameters(remove_duplicate=False)
        parts = {n: p.to_local() if isinstance(p, DTensor) else p for n, p in named}
        self.bytes = memory(parts.values())
        self.kinds = {name: part.dtype for name, part in parts.items()}


def memory(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all distinct blocks of memory that hold the tensors."""
    blocks = [tensor.untyped_storage() for tensor in tensors]
    return sum({block.data_ptr(): block.nbytes() for block in blocks}.values())


def learn(name: str, start: str, root: Path, *cases: str, **more: Any) -> list[tuple[Any, ...]]:
    """Train a run of each case; return what it logs, and what a process held."""
    found = []
    for case in cases:
        kind, precision, _ = CASES[case]
        seen = Looking()
        settings = {"precision": precision, "first": name == "fsdp", **more}
        steps = settings.pop("steps", 4)
        keeping = KeepLast(every_n_steps=2)
        rows = run(name, partial(kind, pretrained=start), root / case, steps, seen, keeping, **settings)
        found.append((rows, seen.bytes, seen.kinds))
    return found


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model folder to start from."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("start") / "model"
    module = BC(architecture=TINY)
    module.model.save_pretrained(folder)
    module.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, start: str) -> tuple[Path, list[Any], list[list[Any]]]:
    """The results of all cases, on one process and on two."""
    root = tmp_path_factory.mktemp("learned")
    (one,) = on_ranks(learn, "one", start, root / "one", *CASES, world=1)
    return root, one, on_ranks(learn, "fsdp", start, root / "two", *CASES)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_learn_what_one_does(case: str, learned: Any) -> None:
    _, one, both = learned
    number = [*CASES].index(case)
    rows, held, kinds = one[number]
    assert rows[0]["train/loss"] != rows[3]["train/loss"]
    for found in both:
        ours, mine, theirs = found[number]
        if CASES[case][2] == EXACT:
            assert_same([ours], rows)
        for row, right in zip(ours, rows, strict=True):
            # In half precision each process rounds its share of a gradient to eight bits.
            assert row.keys() == right.keys()
            for key, value in row.items():
                half = key == "train/grad_norm" and CASES[case][2] == ROUNDED
                assert value == pytest.approx(right[key], rel=0.03 if half else ROUNDED, abs=ROUNDED), key
        assert 0.49 * held < mine < 0.51 * held  # this includes what copies share
        assert theirs == kinds
    whole = {name for name in kinds if "lora_" in name or "q_heads" in name or "v_head" in name}
    in_half = {name for name, kind in kinds.items() if kind is torch.bfloat16}
    assert in_half == (kinds.keys() - whole if CASES[case][1] == "bf16-true" else set())


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.float()(IDS).logits
    return found


def test_adapters_in_shards_are_exported_merged_and_alone(start: str, learned: Any, tmp_path: Path) -> None:
    root, _, _ = learned
    one = root / "one" / "bc"
    two = root / "two" / "bc"
    assert (two / "last.ckpt").is_dir() and not (one / "last.ckpt").is_dir()
    right = logits(AutoModelForCausalLM.from_pretrained(one / "last"))
    base = AutoModelForCausalLM.from_pretrained(start)
    assert (right - logits(base)).abs().max() > 0.01
    assert main(["export", str(two), "--to", str(tmp_path / "adapter"), "--adapters"]) == 0
    assert main(["export", str(two), "--to", str(tmp_path / "whole")]) == 0
    for folder in (two / "last", tmp_path / "whole"):
        model = AutoModelForCausalLM.from_pretrained(folder)
        torch.testing.assert_close(logits(model), right, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        logits(peft.PeftModel.from_pretrained(base, tmp_path / "adapter")), right, atol=1e-5, rtol=1e-4
    )


def test_a_run_with_adapters_in_shards_goes_on(start: str, learned: Any, tmp_path: Path) -> None:
    root, _, both = learned
    on_ranks(partial(learn, steps=2), "fsdp", start, tmp_path, "ilql")
    last = tmp_path / "ilql" / "last.ckpt"
    (found,), _ = on_ranks(partial(learn, ckpt_path=last), "fsdp", start, tmp_path, "ilql")
    assert found[0] == both[0][[*CASES].index("ilql")][0][2:]
    ends = []
    for path in (last, root / "two" / "ilql" / "last.ckpt"):
        ends.append(read_checkpoint(path, weights=True)["state_dict"])
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


def play(name: str, bc_run: str, root: Path, critic: str) -> list[dict[str, float]]:
    """Train a policy with adapters on rounds that it plays itself, and return what is logged."""
    torch.manual_seed(0)
    world = 1 if name == "one" else 2
    seen = Losses()
    module = PPO(pretrained=bc_run, lora=LORA, lr=1e-2, lr_schedule="constant", warmup_steps=0, critic=critic)
    data = rounds(epochs=2, batch_size=8 // world)
    settings = {"strategy": strategy(name), "devices": world}
    fit(module, data, root, 4, [seen], settings=settings)
    timed = ("perf/", "time/")
    return [{key: value for key, value in row.items() if not key.startswith(timed)} for row in seen.rows]


@pytest.mark.parametrize("critic", [pytest.param("detached", marks=pytest.mark.nightly), "own"])
def test_a_policy_with_adapters_in_shards_plays(critic: str, bc_run: str, tmp_path: Path) -> None:
    (one,) = on_ranks(play, "one", bc_run, tmp_path / "one", critic, world=1)
    assert len(one) == 4
    for found in on_ranks(play, "fsdp", bc_run, tmp_path / "two", critic):
        for row, right in zip(found, one, strict=True):
            assert row == pytest.approx(right, rel=1e-4, abs=1e-5)
