"""A folder is replaced as a whole, or not at all."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from lmrl.checkpoints.export import MANIFEST, VALUES_FILE, export, exported_values, load_values
from lmrl.errors import UserError
from lmrl.models.heads import ValueHead
from lmrl.models.lm import build_lm, trunk_of
from lmrl.models.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer()


def model(seed: int) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build_lm(None, {"n_layer": 1, "n_embd": 8, "n_positions": 16}, len(TOKENIZER))


def values(seed: int) -> dict[str, Tensor]:
    heads = {f"q_heads.{i}.{name}": t for i in (0, 1) for name, t in ValueHead(8, 5).state_dict().items()}
    return {**heads, **{f"trunk.{name}": t for name, t in trunk_of(model(seed)).state_dict().items()}}


def write(folder: Path, seed: int, weights: dict[str, Tensor] | None = None, **settings: Any) -> None:
    export(folder, model(seed), TOKENIZER, weights or {}, f"card {seed}", GenerationConfig(), settings)


def holds(folder: Path, seed: int) -> bool:
    found = AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings().weight
    same = torch.equal(found, model(seed).get_input_embeddings().weight)
    return same and (folder / "README.md").read_text(encoding="utf-8") == f"card {seed}"


def test_an_export_takes_the_place_of_the_last(tmp_path: Path) -> None:
    write(tmp_path / "best", 0, values(0))
    write(tmp_path / "best", 1)
    assert holds(tmp_path / "best", 1)
    assert exported_values(str(tmp_path / "best")) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


@pytest.mark.parametrize("pad", ["<|pad|>", None])
def test_a_padded_batch_generates_as_its_prompts_do_alone(pad: str | None, tmp_path: Path) -> None:
    tokenizer = load_tokenizer()
    tokenizer.pad_token = pad
    torch.manual_seed(0)
    made = build_lm(None, {"n_layer": 1, "n_embd": 16, "n_positions": 64, "initializer_range": 0.5}, len(tokenizer))
    export(tmp_path / "made", made, tokenizer, {}, "", GenerationConfig(pad_token_id=0), {})
    again = AutoTokenizer.from_pretrained(tmp_path / "made")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "made")

    def greedy(texts: list[str]) -> list[list[int]]:
        inputs = again(texts, padding=True, return_tensors="pt")
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=8)
        found: list[list[int]] = ids[:, inputs.input_ids.shape[1] :].tolist()
        return found

    texts = ["move left\n", "a", "The goal is at 3, 4. You are at 1, 1.\n"]
    assert greedy(texts) == [greedy([text])[0] for text in texts]


def test_one_that_breaks_off_leaves_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "best", 0)
    with monkeypatch.context() as patch:

        def full(*args: Any, **kwargs: Any) -> None:
            (tmp_path / ".best.new" / VALUES_FILE).write_bytes(b"half of it")
            raise OSError("no space left on device")

        patch.setattr("lmrl.checkpoints.export.save_file", full)
        with pytest.raises(OSError, match="no space"):
            write(tmp_path / "best", 1, values(1))
    assert holds(tmp_path / "best", 0)
    write(tmp_path / "best", 2)
    assert holds(tmp_path / "best", 2)
    assert not (tmp_path / "best" / VALUES_FILE).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_nothing_else_is_ever_replaced(tmp_path: Path) -> None:
    """Not a model of somebody else, and not an export to which somebody has added something."""
    theirs = tmp_path / "theirs"
    ours = tmp_path / "ours"
    theirs.mkdir()
    (theirs / "config.json").write_text("{}")
    write(ours, 0)
    (ours / "notes.txt").write_text("mine")
    for folder, name in ((theirs, "config.json"), (ours, "notes.txt")):
        before = sorted(folder.iterdir())
        with pytest.raises(UserError, match=f"{folder.name} holds {name}, which no export has made"):
            write(folder, 1)
        assert sorted(folder.iterdir()) == before
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="not a folder"):
        write(tmp_path / "file", 1)
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", 1)
    assert holds(tmp_path / "empty", 1)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"files": 3}'])
def test_a_damaged_manifest_is_told(tmp_path: Path, text: str) -> None:
    write(tmp_path / "best", 0)
    (tmp_path / "best" / MANIFEST).write_text(text)
    with pytest.raises(UserError, match=f"{MANIFEST}: (not|must)"):
        write(tmp_path / "best", 1)


def test_values_come_back_ready_to_be_read(tmp_path: Path) -> None:
    weights = values(3)
    write(tmp_path / "best", 0, weights, beta=4.0)
    trunk, heads, settings = load_values(tmp_path / "best")
    assert settings == {"beta": 4.0}
    for prefix, part in (("trunk", trunk), ("q_heads.0", heads[0]), ("q_heads.1", heads[1])):
        assert not part.training
        assert not any(weight.requires_grad for weight in part.parameters())
        assert all(torch.equal(t, weights[f"{prefix}.{name}"]) for name, t in part.state_dict().items())
