"""Rows are filled, and what shares a row does not know of it."""

import numpy as np
import pytest
import torch

from lmrl.batch import collate
from lmrl.layout import pack
from lmrl.models.lm import build_lm, hidden_states, trunk_of
from lmrl.tokens import Window
from tests.doubles import VOCABULARY, cut, episode


def uneven(count: int = 24) -> list[int]:
    return np.random.default_rng(0).integers(3, 40, count).tolist()


@pytest.mark.parametrize("lengths", [uneven(), uneven(249), [40, *[5] * 40], [7] * 9, [1], []])
def test_every_piece_has_a_place_of_its_own(lengths: list[int]) -> None:
    places, width = pack(lengths)
    taken = [
        (row, col) for (row, start), size in zip(places, lengths, strict=True) for col in range(start, start + size)
    ]
    assert len(set(taken)) == len(taken) == sum(lengths)
    assert all(col < width for _, col in taken)
    assert {row for row, _ in taken} == set(range(len({row for row, _ in taken})))


@pytest.mark.parametrize("lengths", [uneven(), uneven(249), [40, *[5] * 40]])
def test_rows_are_full_and_not_much_wider_than_the_longest_piece(lengths: list[int]) -> None:
    places, width = pack(lengths)
    rows = 1 + max(row for row, _ in places)
    assert sum(lengths) > 0.9 * rows * width
    assert width <= 2 * max(lengths)


def test_rows_that_are_full_anyway_stay_as_they_are() -> None:
    assert pack([10, 9, 10, 10]) == ([(0, 0), (1, 0), (2, 0), (3, 0)], 10)


def test_rows_do_not_become_endless() -> None:
    """Four pieces that fit behind each other only: two rows of two are as wide as rows get."""
    assert pack([100, 70, 70, 70])[1] <= 200


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_neighbours_in_a_row_change_nothing(kind: str) -> None:
    """Hidden vectors are those of each segment read alone, branches included."""
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 2, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
    most = len("8xxxxxxxxabyc")  # rows are wider than the model has positions
    small = {"n_embd": 16, "n_positions": most} if kind == "gpt2" else {**sizes, "max_position_embeddings": most}
    model = build_lm(None, {"model_type": kind, **small}, VOCABULARY).eval()
    games = [episode(f"{n}" + "x" * n, "ab", "y", "c", rewards=[0, 1], terminated=n % 2 == 0) for n in range(9)]
    games += [episode("start", said, rewards=[1], terminated=True) for said in ("l", "rr")]
    parts = cut(games, Window())
    batch = collate(parts)
    assert len(batch.input_ids) < len(parts) - 1  # that of "start" has two branches
    assert batch.positions is not None
    assert batch.input_ids.shape[1] > most > int(batch.positions.max())
    with torch.no_grad():
        together = hidden_states(trunk_of(model), batch)[batch.state]
        alone = [
            trunk_of(model)(input_ids=torch.from_numpy(p.ids)[None].long()).last_hidden_state[0][p.col] for p in parts
        ]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-5)
