"""Rows of similar length are read together, and what is read together does not matter."""

import numpy as np
import pytest
import torch

from lmrl.models.lm import build_lm, hidden_states, trunk_of
from lmrl.tokens.collate import collate, grouped
from lmrl.tokens.encoding import Window
from tests.helpers.doubles import VOCABULARY, cut, episode


def uneven(count: int = 24) -> list[int]:
    return sorted(np.random.default_rng(0).integers(3, 40, count).tolist(), reverse=True)


@pytest.mark.parametrize("lengths", [uneven(), uneven(249), [40, *[5] * 40], [7] * 9, [1]])
def test_every_row_is_in_a_group_that_is_as_wide_as_its_longest(lengths: list[int]) -> None:
    groups = grouped(lengths)
    assert sum(count for count, _ in groups) == len(lengths)
    assert len(groups) <= 8
    first = 0
    for count, width in groups:
        assert max(lengths[first : first + count]) == width
        first += count


@pytest.mark.parametrize("lengths", [uneven(), uneven(249), [40, *[5] * 40]])
def test_little_of_what_is_read_is_padding(lengths: list[int]) -> None:
    assert sum(lengths) > 0.9 * sum(count * width for count, width in grouped(lengths))


def test_a_cut_that_saves_nothing_is_not_made() -> None:
    assert grouped([100, 100, 100, 95]) == ((4, 100),)
    assert grouped([40, 10, 10, 10]) == ((1, 40), (3, 10))
    assert grouped([]) == ((0, 1),)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_what_is_read_together_changes_nothing(kind: str) -> None:
    """Hidden vectors are those of each segment read alone, branches included, in groups or all at once."""
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 2, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
    most = len("8xxxxxxxxabyc")  # rows with branches are wider than the model has positions
    small = {"n_embd": 16, "n_positions": most} if kind == "gpt2" else {**sizes, "max_position_embeddings": most}
    model = build_lm(None, {"model_type": kind, **small}, VOCABULARY).eval()
    games = [episode(f"{n}" + "x" * n, "ab", "y", "c", rewards=[0, 1], terminated=n % 2 == 0) for n in range(9)]
    games += [episode("start", said, rewards=[1], terminated=True) for said in ("llll", "rrrr", "uuuu")]
    parts = cut(games, Window())
    batch = collate(parts)
    assert len(batch.input_ids) == len(parts) - 2  # that of "start" has three branches
    assert len(batch.groups) > 1
    assert batch.positions is not None
    assert batch.input_ids.shape[1] > most > int(batch.positions.max())
    with torch.no_grad():
        alone = torch.cat(
            [trunk_of(model)(input_ids=torch.from_numpy(p.ids)[None].long()).last_hidden_state[0][p.col] for p in parts]
        )
        for groups in (True, False):
            together = hidden_states(trunk_of(model), batch, groups=groups)[batch.state]
            torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
