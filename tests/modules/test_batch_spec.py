"""What each algorithm wants in its batches."""

from typing import Any

import pytest

from lmrl.datamodules import BatchSpec, Filter
from lmrl.modules import AWR, BC, ILQL, MC, PPO, QSFT, ArCHer, FilteredBC, LanguageModule, ReturnConditionedBC

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}


@pytest.mark.parametrize(
    ("kind", "arguments", "wanted"),
    [
        (BC, {}, {}),
        (BC, {"observation_loss_weight": 0.5}, {"observations": True}),
        (FilteredBC, {"min_return": -3.0}, {"filter": Filter(min_return=-3.0)}),
        (MC, {"gamma": 0.7}, {"returns_gamma": 0.7}),
        (ILQL, {}, {"bootstrap": True}),
        (AWR, {"gamma": 0.7}, {"returns_gamma": 0.7}),
        (ArCHer, {}, {"bootstrap": True, "after": True}),
        (QSFT, {}, {"bootstrap": True}),
    ],
)
def test_it_wants_what_its_loss_needs_and_nothing_else(
    kind: type[LanguageModule], arguments: dict[str, Any], wanted: dict[str, Any]
) -> None:
    module = kind(architecture=TINY, **arguments)
    assert module.batch_spec() == BatchSpec(tokenizer=module.tokenizer, positions=64, **wanted)


def test_return_conditioned_bc_wants_its_episodes_prepared() -> None:
    module = ReturnConditionedBC(architecture=TINY)
    assert module.batch_spec() == BatchSpec(tokenizer=module.tokenizer, positions=64, prepare=module.prepare)


def test_ppo_wants_its_rounds_prepared() -> None:
    module = PPO(architecture=TINY)
    prepared: list[list[Any]] = [[]]
    module.prepare_rollout = lambda episodes, segments: prepared  # type: ignore[method-assign]
    spec = module.batch_spec()
    assert spec.post_rollout is not None and spec.post_rollout([], []) is prepared
