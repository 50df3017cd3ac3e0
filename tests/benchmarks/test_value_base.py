"""Values on another run's language model: none change nothing, right ones are seen to be right."""

from pathlib import Path

import pytest
import torch

from benchmarks import value_base
from lmrl.errors import UserError
from lmrl.modules import BC, MC
from lmrl.tokens.encoding import Window
from tests.helpers.corridor import STARTS, corridor_task

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}


def test_values_are_played_on_the_other_language_model() -> None:
    policy, values = BC(architecture=TINY, tokenizer="lmrl-letters"), MC(architecture=TINY, tokenizer="lmrl-letters")
    values.window = Window(tokens=16)
    with corridor_task():
        without, with_values = value_base.played("corridor", values, policy, games=len(STARTS))
        assert all(map(torch.equal, values.model.parameters(), policy.model.parameters()))
        assert without.beta == 0.0 < with_values.beta
        assert with_values.returns == without.returns  # Q is the same of all tokens

        with torch.no_grad():
            values.q_heads[0].outer.bias[values.tokenizer.convert_tokens_to_ids("R")] = 100.0
        without, with_values = value_base.played("corridor", values, policy, games=len(STARTS))
    assert without.mean < with_values.mean and sorted(with_values.returns) == [-2.0, -1.0, 0.0]


def test_it_says_which_runs_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_base, "RUNS", tmp_path)
    with pytest.raises(UserError, match="lmrl reproduce TASK --algorithms filtered_bc mc ilql"):
        next(value_base.run())
