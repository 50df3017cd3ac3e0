"""Model folders with a damaged file: named, in one line, before a model of random numbers comes out of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmrl.errors import UserError
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import BC, load_module

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    BC(architecture=TINY).export(tmp_path / "model")
    return tmp_path / "model"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def odd_width(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "n_embd": "wide"}))


def renamed(path: Path) -> None:
    weights = load_file(path)
    weights["transformer.ln_g.bias"] = weights.pop("transformer.ln_f.bias")
    save_file(weights, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("model.safetensors", cut, "is damaged or of another kind"),
        ("model.safetensors", renamed, r"lacks the weights transformer\.ln_f\.bias"),
        ("config.json", cut, "not valid JSON"),
        ("config.json", odd_width, "is damaged or of another kind"),
        ("tokenizer.json", cut, "not valid JSON"),
        ("tokenizer.json", lambda path: path.write_text("{}"), ""),
    ],
)
def test_a_damaged_file_is_named(folder: Path, name: str, damage: Callable[[Path], None], message: str) -> None:
    damage(folder / name)
    loads: list[Callable[[], object]] = [lambda: BC(pretrained=str(folder)), lambda: load_module(folder)]
    for load in loads:
        with pytest.raises(UserError, match=message or "tokenizer") as error:
            load()
        assert str(folder / name) in str(error.value) and "\n" not in str(error.value)


def test_weights_that_are_not_those_of_the_export_show(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["transformer.ln_f.bias"][3] += 0.5
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"model\.safetensors: not the weights that .*lmrl\.json names"):
        load_module(folder)


def test_adapters_on_themselves_are_refused(tmp_path: Path) -> None:
    for name, base in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(
            json.dumps({"base_model_name_or_path": str(tmp_path / base)})
        )
    with pytest.raises(UserError, match="base_model_name_or_path must name a model"):
        build_lm(str(tmp_path / "a"), {}, len(load_tokenizer()), dtype=torch.float32)


@pytest.mark.parametrize("name", ["../other.safetensors", "ABSOLUTE", "sub/x.safetensors", "..", 3, None])
def test_the_index_of_a_folder_names_no_other_folder(folder: Path, tmp_path: Path, name: object) -> None:
    (folder / "model.safetensors").rename(tmp_path / "other.safetensors")
    weights = load_file(tmp_path / "other.safetensors")
    named = str(tmp_path / "other.safetensors") if name == "ABSOLUTE" else name
    table = {"metadata": {}, "weight_map": dict.fromkeys(weights, named)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(table))
    for load in (lambda: BC(pretrained=str(folder)), lambda: load_module(folder)):
        with pytest.raises(UserError, match=r"index\.json must name files of its own folder, got"):
            load()


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_a_configuration_chooses_no_code(folder: Path, name: str) -> None:
    change_config(folder, {name: "somebody/kernel", "auto_map": {"AutoConfig": "x.Y"}, "use_kernels": True})
    for model in (BC(pretrained=str(folder)).model, load_module(folder).model):
        assert model.config._attn_implementation in ("sdpa", "eager")
        assert "somebody" not in str(model.config._experts_implementation)
        assert not getattr(model.config, "use_kernels", False)


def test_quantized_models_are_refused(folder: Path) -> None:
    change_config(folder, {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    with pytest.raises(UserError, match=r"config\.json asks for quantization_config"):
        BC(pretrained=str(folder))


def change_config(folder: Path, settings: dict[str, object]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
