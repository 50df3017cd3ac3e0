"""The older FSDP on two processes, which learn, play and keep what one does. On the CPU, for want of GPUs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch.strategies import FSDPStrategy, Strategy
from transformers import AutoModelForCausalLM
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from lmrl.callbacks import KeepLast
from lmrl.cli import main
from lmrl.errors import UserError
from lmrl.models.checkpoints import check_checkpoint
from lmrl.models.export import exported_values
from lmrl.modules import BC, LanguageModule
from tests.callbacks.test_ranks import learn as play
from tests.helpers.ranks import ClassicOnCPU, on_ranks
from tests.modules.test_ranks import ILQLFromScratch, MCFromScratch, assert_same, run, weights_of
from tests.test_configs import CONFIGS, short, train

KINDS: dict[str, tuple[type[LanguageModule], dict[str, Any]]] = {
    "bc": (BC, {"activation_checkpointing": True}),
    "mc": (MCFromScratch, {}),
}


def seeded(kind: type[LanguageModule], **more: Any) -> Callable[..., LanguageModule]:
    """Every process draws the same weights: what hands out those of the first one wants a GPU."""

    def make(**arguments: Any) -> LanguageModule:
        torch.manual_seed(0)
        return kind(**arguments, **more)

    return make


def learn(name: str, root: Path, steps: int, **more: Any) -> list[list[dict[str, float]]]:
    """What is logged in a run of each kind, from the checkpoint in its folder if there is one."""
    found = []
    for kind, (module, arguments) in KINDS.items():
        last = root / kind / "last.ckpt"
        go = {"ckpt_path": last} if last.exists() else {}
        make = seeded(module, **arguments)
        found.append(run(name, make, root / kind, steps, KeepLast(every_n_steps=2), **go, **more))
    return found


def test_it_learns_what_one_process_does_goes_on_and_is_exported(tmp_path: Path) -> None:
    (one,) = on_ranks(learn, "one", tmp_path / "one", 4, world=1)
    for found in on_ranks(learn, "classic", tmp_path / "two", 4):
        for ours, right in zip(found, one, strict=True):
            assert ours[0]["train/grad_norm"] > 0.5  # is clipped
            assert_same([ours], right)
    on_ranks(learn, "classic", tmp_path / "halves", 2)
    for found in on_ranks(learn, "classic", tmp_path / "halves", 4):
        for ours, right in zip(found, one, strict=True):
            assert_same([ours], right[2:])
    for kind in KINDS:
        halves, right = tmp_path / "halves" / kind, torch.load(tmp_path / "one" / kind / "last.ckpt")["state_dict"]
        check_checkpoint(halves / "last.ckpt", allow_pickle=False)
        kept = weights_of(halves / "last.ckpt")
        assert kept.keys() == right.keys()
        assert main(["export", str(halves), "--to", str(tmp_path / "exported" / kind)]) == 0
        for folder in (halves / "last", tmp_path / "exported" / kind):
            model = AutoModelForCausalLM.from_pretrained(folder).state_dict()
            found = {f"model.{name}": tensor for name, tensor in model.items()} | exported_values(str(folder))
            assert found.keys() == right.keys()
            for name, tensor in found.items():
                assert torch.equal(tensor, kept[name]), name
                torch.testing.assert_close(tensor, right[name], atol=1e-4, rtol=1e-4)


def test_it_plays(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    """Rounds that are learned from, and evaluations; with the numbers of one process."""
    (one,) = on_ranks(play, "one", "bc", bc_run, str(data_path), tmp_path / "one", world=1)
    for rows in on_ranks(play, "classic", "bc", bc_run, str(data_path), tmp_path / "two"):
        for row, right in zip(rows, one, strict=True):
            assert row == pytest.approx(right, abs=1e-5, rel=1e-4)


def refused(root: Path) -> list[str]:
    said = []
    for kind, more in ((ILQLFromScratch, {}), (BC, {"lora": {"r": 2}}), (BC, {"precision": "bf16-true"})):
        precision = {name: more.pop(name) for name in [*more] if name == "precision"}
        with pytest.raises(UserError) as told:
            run("classic", seeded(kind, **more), root, 1, **precision)
        said.append(str(told.value))
    return said


def test_what_it_cannot_do_is_refused(tmp_path: Path) -> None:
    for values, lora, half in on_ranks(refused, tmp_path):
        assert "and not ILQLFromScratch: use ModelParallelStrategy" in values
        assert "without lora" in lora and "would keep values in half precision" in half


def test_the_shipped_settings(tmp_path: Path) -> None:
    """Lightning makes its strategy of them, and `lmrl fit` trains with them, but for what wants a GPU."""
    overlay = yaml.safe_load((CONFIGS / "scale" / "fsdp_classic.yaml").read_text())
    settings = overlay["trainer"]["strategy"]
    parser = ArgumentParser()
    parser.add_argument("--strategy", type=Strategy)
    made = parser.instantiate_classes(parser.parse_object({"strategy": settings})).strategy
    assert type(made) is FSDPStrategy and made.kwargs["sync_module_states"] and made.kwargs["use_orig_params"]
    assert made.kwargs["auto_wrap_policy"]._module_classes == {GPT2Block}
    settings["class_path"] = f"{ClassicOnCPU.__module__}.{ClassicOnCPU.__qualname__}"
    del settings["dict_kwargs"]["sync_module_states"]
    overlay["trainer"] |= {"accelerator": "cpu", "max_steps": 1}
    copy = tmp_path / "overlay.yaml"
    copy.write_text(yaml.safe_dump(overlay))
    words = [*short(CONFIGS / "maze_fo" / "bc.yaml", tmp_path), "--config", str(copy)]
    assert on_ranks(train, [*words, f"--trainer.default_root_dir={tmp_path / 'run'}"]) == [0, 0]
    assert (tmp_path / "run" / "last.ckpt").is_dir() and (tmp_path / "run" / "best" / "config.json").is_file()
