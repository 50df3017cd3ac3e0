from pathlib import Path

import torch

from lmrl.models.lm import build_lm, compose_embeddings, head_of
from tests.helpers.online import TINY

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
