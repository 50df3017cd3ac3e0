"""Value heads, copies, and language models from scratch or from disk."""

from pathlib import Path

import pytest
import torch

from lmrl.checkpoints.reading import resolve_checkpoint, resolve_pretrained
from lmrl.errors import UserError
from lmrl.models.heads import ValueHead, frozen_copy, polyak_update
from lmrl.models.lm import build_lm, compose_embeddings, head_of, vocabulary_of

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}


def test_a_head_starts_as_its_bias_everywhere() -> None:
    head = ValueHead(8, 5, bias=-4.4)
    torch.testing.assert_close(head(torch.randn(3, 8)), torch.full((3, 5), -4.4))


def test_heads_stay_in_float32_under_autocast_and_for_bf16_trunks() -> None:
    head = ValueHead(8, 1)
    torch.nn.init.normal_(head.outer.weight)
    hidden = torch.randn(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = head(hidden)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, head(hidden), rtol=0, atol=0)
    assert head(hidden.bfloat16()).dtype == torch.float32


def test_target_parameters_move_by_their_rate_and_arrive_at_one() -> None:
    target = torch.zeros(2)
    online = torch.tensor([1.0, -2.0])
    for n in range(1, 4):
        polyak_update([target], [online], 0.25)
        torch.testing.assert_close(target, online * (1 - 0.75**n))
    polyak_update([target], [online], 1.0)
    assert torch.equal(target, online)


def test_a_frozen_copy_does_not_share_or_learn() -> None:
    source = torch.nn.Linear(2, 2)
    copy = frozen_copy(source)
    assert not copy.training
    assert not any(p.requires_grad for p in copy.parameters())
    assert copy.weight.data_ptr() != source.weight.data_ptr()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_models_have_no_dropout_and_come_back_from_disk(kind: str, tmp_path: Path) -> None:
    llama = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    sizes = {"n_layer": 1, "n_embd": 16} if kind == "gpt2" else llama
    model = build_lm(None, {"model_type": kind, **sizes}, 40)
    model.train()
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(model(ids).logits, model(ids).logits, rtol=0, atol=0)
    model.save_pretrained(tmp_path)
    again = build_lm(str(tmp_path), {}, 40).train()
    torch.testing.assert_close(again(ids).logits, model(ids).logits)


def test_dropout_of_a_saved_model_is_switched_off(tmp_path: Path) -> None:
    model = build_lm(None, TINY, 40)
    model.config.resid_pdrop = model.config.embd_pdrop = 0.9
    model.save_pretrained(tmp_path)
    again = build_lm(str(tmp_path), {}, 40).train()
    assert torch.equal(again(torch.tensor([[1, 2]])).logits, again(torch.tensor([[1, 2]])).logits)


def test_a_smaller_vocabulary_is_extended(tmp_path: Path) -> None:
    build_lm(None, TINY, 40).save_pretrained(tmp_path)
    assert vocabulary_of(build_lm(str(tmp_path), {}, 50)) == 50
    assert vocabulary_of(build_lm(str(tmp_path), {}, 30)) == 40


def test_wrong_models_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="model_type must be one that transformers knows, got 'gpt99'"):
        build_lm(None, {"model_type": "gpt99"}, 40)
    with pytest.raises(UserError, match="pretrained must be a folder, GGUF file or hub id with a causal"):
        build_lm(str(tmp_path), {}, 40)


def test_runs_are_found_best_first(tmp_path: Path) -> None:
    run = tmp_path / "maze_fo" / "bc"
    for missing in (resolve_pretrained, resolve_checkpoint):
        with pytest.raises(UserError, match=r"lmrl fit --config configs/maze_fo/bc\.yaml"):
            missing(str(run))
        # No command is advised whose configuration does not exist.
        with pytest.raises(UserError, match=r"lmrl fit --config configs/TASK/ALGORITHM\.yaml"):
            missing(str(tmp_path / "runs" / "nothing"))
    for name in ("last", "best"):
        (run / name).mkdir(parents=True)
        (run / name / "config.json").touch()
        (run / f"{name}.ckpt").touch()
        assert resolve_checkpoint(run).name == f"{name}.ckpt"
        assert Path(resolve_pretrained(str(run))).name == name
    assert resolve_pretrained("gpt2") == "gpt2"


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "hidden_size": 64,
    "intermediate_size": 8,
    "max_position_embeddings": 8,
    "initializer_range": 0.05,
}


def test_rows_begin_as_sums_of_their_parts_with_the_deviation_of_all_rows() -> None:
    model = build_lm(None, LLAMA, 10)
    tables = [model.get_input_embeddings().weight, head_of(model).weight]
    before = [table.detach().clone() for table in tables]
    compose_embeddings(model, {3: ("a",), 4: ("b",), 5: ("a", "b"), 6: ("c",)})
    for table, old in zip(tables, before, strict=True):
        assert torch.allclose(table[5], (table[3] + table[4]) / 2**0.5, atol=1e-6)
        assert 0.03 < float(table[3:7].detach().std()) < 0.07 and not torch.equal(table[3], table[6])
        assert torch.equal(table[[0, 1, 2, 7, 8, 9]], old[[0, 1, 2, 7, 8, 9]])
    assert not torch.equal(tables[0][3], tables[1][3])


def test_weights_of_a_file_lie_where_torch_would_have_put_them(tmp_path: Path) -> None:
    """Sums begin where memory is aligned: else the last bits of numbers would depend on who has read the file."""
    build_lm(None, TINY, 51).save_pretrained(tmp_path)
    read = build_lm(str(tmp_path), {}, 51)
    assert not [name for name, tensor in read.named_parameters() if tensor.data_ptr() % 64]
    assert head_of(read).weight is read.get_input_embeddings().weight  # tied weights stay so
