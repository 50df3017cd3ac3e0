"""Model folders with a damaged file: named, in one line, before a model of random numbers comes out of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmrl.errors import UserError
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import fingerprint, load_tokenizer
from lmrl.modules import BC, load_module
from tests.helpers.cases import cases

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


def test_the_size_of_a_vocabulary_is_no_number_of_layers(folder: Path) -> None:
    change_config(folder, {"vocab_size_per_layer_input": 262_144})  # as in Gemma 3n
    assert BC(pretrained=str(folder)).model.config.vocab_size_per_layer_input == 262_144
    change_config(folder, {"num_labels_per_layer": 262_144})
    with pytest.raises(UserError, match="num_labels_per_layer is"):
        BC(pretrained=str(folder))


def test_quantized_models_are_refused(folder: Path) -> None:
    change_config(folder, {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    with pytest.raises(UserError, match=r"config\.json asks for quantization_config"):
        BC(pretrained=str(folder))


def change_config(folder: Path, settings: dict[str, object]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


@pytest.fixture
def adapters(folder: Path, tmp_path: Path) -> Path:
    """A folder of adapters on the model of `folder`, as peft writes them."""
    peft = pytest.importorskip("peft")
    model = build_lm(str(folder), {}, len(load_tokenizer()))
    settings = {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True, "init_lora_weights": False}
    made = peft.get_peft_model(model, peft.LoraConfig(**settings))
    made.save_pretrained(tmp_path / "adapters")
    path = tmp_path / "adapters" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": str(folder)}))
    return tmp_path / "adapters"


def test_adapters_of_peft_are_read_without_its_configuration(adapters: Path) -> None:
    peft = pytest.importorskip("peft")
    model = build_lm(str(adapters), {}, len(load_tokenizer()))
    base = build_lm(str(adapters.parent / "model"), {}, len(load_tokenizer()))
    theirs = peft.PeftModel.from_pretrained(base, adapters).merge_and_unload().state_dict()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`", "ignore:Setting `save_embedding_layers`")
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to")
@pytest.mark.parametrize("settings", [{"target_modules": ["lm_head"]}, {"target_modules": ["wte", "c_attn"]}])
def test_adapters_of_a_tied_head_or_embedding_change_that_layer_alone(
    folder: Path, tmp_path: Path, settings: dict[str, object]
) -> None:
    peft = pytest.importorskip("peft")
    model = build_lm(str(folder), {}, len(load_tokenizer())).eval()
    assert model.config.tie_word_embeddings
    made = peft.get_peft_model(model, peft.LoraConfig(r=2, init_lora_weights=False, **settings))
    made.save_pretrained(tmp_path / "adapters")
    path = tmp_path / "adapters" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": str(folder)}))
    ids = torch.tensor([[5, 6, 7, 8]])
    merged = build_lm(str(tmp_path / "adapters"), {}, len(load_tokenizer())).eval()
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, made(ids).logits, atol=1e-4, rtol=1e-4)
    merged.save_pretrained(tmp_path / "merged")
    again = build_lm(str(tmp_path / "merged"), {}, len(load_tokenizer())).eval()
    with torch.no_grad():
        assert torch.equal(again(ids).logits, merged(ids).logits)


def test_adapters_without_a_tokenizer_have_that_of_their_model(adapters: Path, folder: Path) -> None:
    load_tokenizer().save_pretrained(folder)
    assert not (adapters / "tokenizer.json").exists()
    assert fingerprint(load_tokenizer(str(adapters))) == fingerprint(load_tokenizer())
    assert BC(pretrained=str(adapters), tokenizer=str(folder)).tokenizer.is_fast


@cases(
    "settings",
    [
        {"peft_type": "IA3"},
        {"peft_type": "NONE"},
        {"peft_type": 3},
        {"task_type": "SEQ_CLS"},
        {"megatron_config": {"a": 1}, "megatron_core": "evil_mod"},
        {"loftq_config": {"loftq_bits": 4}},
        {"init_lora_weights": "pissa_niter_4"},
        {"init_lora_weights": "olora"},
        {"lora_ga_config": {"cache_file": "/etc/passwd"}},
        {"unknown": 1},
        {"r": 10**9},
        {"r": 100_000},
        {"r": "x"},
        {"r": -1},
        {"r": 3},
        {"lora_alpha": "x"},
        {"lora_alpha": 10**400},
        {"target_modules": ["missing"]},
        {"target_modules": "(a+)+$"},
        {"target_modules": [[]]},
        {"rank_pattern": {"(a+)+$": 2}},
        {"rank_pattern": {"c_attn": 10**7}},
        {"modules_to_save": ["missing/../x"]},
        {"layers_to_transform": [10**30], "layers_pattern": "h"},
        {"base_model_name_or_path": ""},
        {"base_model_name_or_path": {}},
    ],
)
def test_adapters_of_another_kind_are_refused_in_one_line(
    adapters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    (tmp_path / "evil_mod.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = adapters / "adapter_config.json"
    good = path.read_text()
    path.write_text(json.dumps({**json.loads(good), **settings}))
    with pytest.raises(UserError) as error:
        build_lm(str(adapters), {}, len(load_tokenizer()))
    assert str(adapters) in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()
    path.write_text(good)
