"""GGUF files: what they give is a plain model, and one that cannot be read exactly is refused in one line."""

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from lmrl.checkpoints.reading import resolve_pretrained
from lmrl.cli import main
from lmrl.data import generate
from lmrl.errors import UserError
from lmrl.evaluation.loading import PolicySpec
from lmrl.models.base_model import held_with_base
from lmrl.models.gguf import _SPLITS
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import BC, load_module
from lmrl.partners.lm import LMPartner
from lmrl.policies.chat.local import LocalChat
from lmrl.tokens.encoding import adds_bos
from tests.helpers.ggufs import CHATML, tiny_llama, vocabulary, write_gguf

pytest.importorskip("gguf", reason="GGUF files need the extra gguf: pip install 'lmrl[gguf]'")
pytest.importorskip("accelerate", reason="GGUF files need the extra gguf: pip install 'lmrl[gguf]'")

IDS = torch.tensor([[5, 400, 7, 1280, 33, 900]])


@pytest.fixture
def model() -> LlamaForCausalLM:
    return tiny_llama()


@pytest.fixture
def file(tmp_path: Path, model: LlamaForCausalLM) -> Path:
    write_gguf(tmp_path / "tiny.gguf", model)
    return tmp_path / "tiny.gguf"


@torch.no_grad()
def test_a_file_gives_a_plain_model_that_can_be_saved(file: Path, model: LlamaForCausalLM, tmp_path: Path) -> None:
    # What lies beside the file belongs to others.
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    loaded = build_lm(str(file), {}, 0)
    assert loaded.dtype == torch.float32 and not hasattr(loaded.config, "quantization_config")
    torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits, atol=1e-6, rtol=0)
    loaded.save_pretrained(tmp_path / "folder")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "folder")
    assert torch.equal(again(IDS).logits, loaded(IDS).logits)
    assert build_lm(str(file), {}, 0, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_a_file_gives_its_tokenizer_and_both_ends_of_a_turn(model: LlamaForCausalLM, tmp_path: Path) -> None:
    tokens, _, _ = vocabulary()
    file = tmp_path / "tiny.gguf"
    write_gguf(file, model, eot=tokens.index("<|endoftext|>"))
    tokenizer = load_tokenizer(str(file))
    assert tokenizer.get_vocab() == {token: number for number, token in enumerate(tokens)}
    assert tokenizer.chat_template == CHATML
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<|im_start|>", "<|im_end|>", "<|pad|>")
    assert tokenizer.encode("<|im_end|>") == [tokens.index("<|im_end|>")]
    assert tokenizer.decode(tokenizer.encode("the maze, é 12")) == "the maze, é 12"
    tokenizer.save_pretrained(tmp_path / "folder")
    again = AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    ends = [tokens.index("<|endoftext|>"), tokens.index("<|im_end|>")]
    assert build_lm(str(file), {}, 0).generation_config.eos_token_id == ends


# The pieces of "It'S 1234  x\n\ny", with Ġ for a space and Ċ for a line break.
@pytest.mark.parametrize(
    ("rule", "pieces"),
    [
        ("gpt-2", ["It", "'", "S", "Ġ1234", "Ġ", "Ġx", "Ċ", "Ċ", "y"]),
        ("smollm", ["It", "'", "S", "Ġ", "1", "2", "3", "4", "Ġ", "Ġx", "Ċ", "Ċ", "y"]),
        ("llama-bpe", ["It", "'S", "Ġ", "123", "4", "Ġ", "Ġx", "ĊĊ", "y"]),
        ("qwen2", ["It", "'S", "Ġ", "1", "2", "3", "4", "Ġ", "Ġx", "ĊĊ", "y"]),
    ],
)
def test_texts_are_split_as_the_file_says(
    rule: str, pieces: list[str], model: LlamaForCausalLM, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "tiny.gguf", model, pre=rule)
    split = load_tokenizer(str(tmp_path / "tiny.gguf")).backend_tokenizer.pre_tokenizer
    assert [piece for piece, _ in split.pre_tokenize_str("It'S 1234  x\n\ny")] == pieces


@pytest.mark.parametrize(("rule", "begins"), [("llama-bpe", True), ("smollm", False)])
def test_texts_begin_with_bos_where_the_model_has_learned_it(
    rule: str, begins: bool, model: LlamaForCausalLM, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "tiny.gguf", model, pre=rule)
    assert adds_bos(load_tokenizer(str(tmp_path / "tiny.gguf"))) == begins


def cut_header(content: bytes) -> bytes:
    return content[:200]


def cut_weights(content: bytes) -> bytes:
    return content[:-7]


def web_page(content: bytes) -> bytes:
    return b"<html>Sign in to download this file</html>"


def empty(content: bytes) -> bytes:
    return b""


def future(content: bytes) -> bytes:
    return content[:4] + struct.pack("<I", 9) + content[8:]


def many_tensors(content: bytes) -> bytes:
    return content[:8] + struct.pack("<Q", 2**62) + content[16:]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_header, "is damaged or cut short, download it again"),
        (
            cut_weights,
            r"is damaged or cut short, download it again \(ValueError: 20 tensors of 226,176 bytes in a file of",
        ),
        (web_page, "is not a GGUF file"),
        (empty, "is not a GGUF file"),
        (future, "version 9 of the format"),
        (many_tensors, "is damaged or cut short"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(file: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    file.write_bytes(damage(file.read_bytes()))
    for load in (lambda: BC(pretrained=str(file)), lambda: build_lm(str(file), {}, 0)):
        with pytest.raises(UserError, match=message) as error:
            load()
        assert str(file) in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_would_be_read_in_part_is_refused(file: Path, model: LlamaForCausalLM) -> None:
    """transformers leaves out tensors that it does not know, and begins from random numbers where one is missing."""
    write_gguf(file, model, more={"rope_freqs.weight": torch.ones(4)})
    with pytest.raises(UserError, match=r"holds 56,548 weights, and transformers reads 56,544 of them"):
        build_lm(str(file), {}, 0)
    write_gguf(file, model, blocks=3)
    with pytest.raises(UserError, match=r"lacks the weights model\.layers\.2\."):
        build_lm(str(file), {}, 0)
    write_gguf(file, model, blocks=2_000_000_000)
    with pytest.raises(UserError, match="block_count is 2e"):
        build_lm(str(file), {}, 0)
    write_gguf(file, model, parts=2)
    with pytest.raises(UserError, match="one of several parts: join them"):
        build_lm(str(file), {}, 0)
    write_gguf(file, model, pre="unheard-of")
    with pytest.raises(UserError, match=f"the rule 'unheard-of', known are {', '.join(_SPLITS)}"):
        load_tokenizer(str(file))


def test_a_missing_package_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match=r"need the packages gguf: pip install 'lmrl\[gguf\]'"):
        load_tokenizer(str(file))


def test_a_file_has_to_be_there_and_to_be_named(file: Path) -> None:
    assert resolve_pretrained(str(file)) == str(file)
    with pytest.raises(UserError, match=r"there is no file '.*other\.gguf'"):
        resolve_pretrained(str(file.with_name("other.gguf")))
    with pytest.raises(UserError, match=rf"is a folder with GGUF files, name one of them: {file}"):
        resolve_pretrained(str(file.parent))


def test_a_file_is_a_chat_model_and_a_partner(file: Path, tmp_path: Path) -> None:
    build_lm(str(file), {}, 0).save_pretrained(tmp_path / "folder")
    load_tokenizer(str(file)).save_pretrained(tmp_path / "folder")
    messages = [[{"role": "system", "content": "Count."}, {"role": "user", "content": "1 2 3"}]]
    answers = [LocalChat(str(path), max_tokens=8).complete(messages) for path in (file, tmp_path / "folder")]
    assert answers[0] == answers[1] != [""]
    assert LMPartner(str(file)).describe()["hash"] == LMPartner(str(tmp_path / "folder")).describe()["hash"]
    for path in (file, tmp_path / "folder"):
        with pytest.raises(UserError, match=f"that lmrl has not trained: it plays as local:{path}"):
            PolicySpec.parse(str(path), "maze_fo")


def test_adapters_on_a_file_count_the_weights_of_the_file(file: Path, model: LlamaForCausalLM, tmp_path: Path) -> None:
    """By this number a run with adapters is checked before its model is built."""
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    settings = {"peft_type": "LORA", "r": 2, "base_model_name_or_path": str(file)}
    (adapters / "adapter_config.json").write_text(json.dumps(settings))
    assert held_with_base(adapters).numbers >= sum(weight.numel() for weight in {*model.parameters()})


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, {"r": 2}], ids=["whole", "adapters"])
def test_a_run_starts_from_a_file_is_resumed_and_exported(
    lora: dict[str, int] | None, file: Path, model: LlamaForCausalLM, tmp_path: Path
) -> None:
    data = generate("maze_fo", 8, 0, tmp_path / "maze.parquet", progress=False)
    run = tmp_path / "runs" / "maze_fo" / "bc"
    overlay = tmp_path / "small.yaml"
    settings = {
        "model": {
            "class_path": "lmrl.modules.BC",
            "init_args": {
                "pretrained": str(file),
                "warmup_steps": 0,
                "lr": 1e-2,
                "lr_schedule": "constant",
                "lora": lora,
            },
        },
        "data": {
            "class_path": "lmrl.datamodules.MazeDataModule",
            "init_args": {"task": "maze_fo", "path": str(data), "batch_size": 4, "rendering": "chat"},
        },
        "trainer": {
            "logger": False,
            "max_steps": 4,
            "limit_val_batches": 0,
            "default_root_dir": str(run),
            "enable_progress_bar": False,
            "callbacks": [{"class_path": "lmrl.callbacks.KeepLast", "init_args": {"every_n_steps": 2}}],
        },
    }
    overlay.write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert main(["fit", "--config", str(overlay)]) == 0
    whole = load_module(run / "last").model

    other = tmp_path / "runs" / "maze_fo" / "halted"
    words = ["fit", "--config", str(overlay), f"--trainer.default_root_dir={other}"]
    assert main([*words, "--trainer.max_steps=2"]) == 0
    assert main([*words, f"--ckpt_path={other / 'last.ckpt'}"]) == 0
    assert main(["export", str(other), "--to", str(tmp_path / "exported")]) == 0
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    with torch.no_grad():
        assert (exported(IDS).logits - model(IDS).logits).abs().max() > 0.01
    assert AutoTokenizer.from_pretrained(tmp_path / "exported").chat_template == CHATML
    for name, tensor in whole.state_dict().items():
        assert torch.equal(exported.state_dict()[name], tensor), name
