"""Numbers outside of their documented range are refused where they are given: every public class, every number."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import lmrl.datamodules
import lmrl.modules
from lmrl.callbacks import InteractiveEvaluation, KeepLast, RolloutCollection, TrainingProgress, VLLMSampler
from lmrl.datamodules import Filter, OfflineDataModule, OnlineDataModule
from lmrl.decoding.engine import Engine
from lmrl.errors import UserError
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import (
    AWR,
    BC,
    GRPO,
    ILQL,
    MC,
    PPO,
    QSFT,
    ArCHer,
    FilteredBC,
    GiGPO,
    GuidedPPO,
    OnlineFilteredBC,
    ReturnConditionedBC,
)
from lmrl.policies import LMPolicy, RatioGuidedPolicy, RerankPolicy, ValueGuidedLogitsProcessor, ValueGuidedPolicy
from lmrl.tokens.encoding import Window
from tests.helpers.online import TINY

#: Values that are just outside of a range, or beyond it.
NOT_NEGATIVE, POSITIVE, COUNT = (-1e-9, -1), (0, -1), (0, -1)
SHARE, OPEN_SHARE, FRACTION = (-0.1, 1.1), (-0.1, 1.0), (0.0, 1.1)
ANY: tuple[float, ...] = ()

_LANGUAGE = {
    "lr": NOT_NEGATIVE,
    "muon_lr": NOT_NEGATIVE,
    "warmup_steps": (-1,),
    "final_lr": SHARE,
    "weight_decay": NOT_NEGATIVE,
    "adam_beta2": OPEN_SHARE,
}
_BC = {**_LANGUAGE, "observation_loss_weight": NOT_NEGATIVE}
_FILTER = {"top_fraction": FRACTION, "min_return": ANY}
_VALUES = {**_LANGUAGE, "beta": NOT_NEGATIVE, "head_bias": ANY, "q_rank": COUNT}
_GRADIENT = {
    **_LANGUAGE,
    "clip_high": NOT_NEGATIVE,
    "clip": NOT_NEGATIVE,
    "entropy_weight": NOT_NEGATIVE,
    "kl_weight": NOT_NEGATIVE,
    "kl_target": POSITIVE,
    "kl_horizon": POSITIVE,
    "bc_weight": NOT_NEGATIVE,
}
_PPO = {
    **_GRADIENT,
    "gamma": SHARE,
    "gae_lambda": SHARE,
    "value_clip": NOT_NEGATIVE,
    "value_weight": NOT_NEGATIVE,
    "head_bias": ANY,
}
_GRPO = {**_GRADIENT, "gamma": SHARE}
_OFFLINE = {
    "size": COUNT,
    "data_seed": (-1,),
    "seed": (-1,),
    "batch_size": COUNT,
    "consecutive": COUNT,
    "val_fraction": OPEN_SHARE,
    "max_tokens": COUNT,
    "num_workers": (-1,),
}
_DECODING = {"temperature": NOT_NEGATIVE, "top_k": (-1,), "top_p": FRACTION, "max_new_tokens": COUNT, "slots": COUNT}
_GUIDED = {**_DECODING, "beta": NOT_NEGATIVE, "support_top_k": (-1,), "support_top_p": FRACTION}

#: Numbers of classes, with values that they must not have. What is not finite is refused for all of them.
TABLE: dict[type, Mapping[str, tuple[float, ...]]] = {
    BC: _BC,
    FilteredBC: {**_BC, **_FILTER},
    OnlineFilteredBC: {**_BC, **_FILTER},
    MC: {**_VALUES, "gamma": SHARE, "cql_weight": NOT_NEGATIVE},
    ILQL: {
        **_VALUES,
        "gamma": SHARE,
        "expectile": (0.49, 1.0, 1.5),
        "cql_weight": NOT_NEGATIVE,
        "polyak": FRACTION,
    },
    AWR: {
        **_LANGUAGE,
        "gamma": SHARE,
        "temperature": POSITIVE,
        "max_weight": POSITIVE,
        "expectile": (0.49, 1.0, 1.5),
        "head_bias": ANY,
    },
    ArCHer: {
        **_LANGUAGE,
        "gamma": SHARE,
        "expectile": (0.49, 1.0, 1.5),
        "polyak": FRACTION,
        "temperature": POSITIVE,
        "max_weight": POSITIVE,
        "clip": NOT_NEGATIVE,
        "critic_only_steps": (-1,),
        "head_bias": ANY,
    },
    ReturnConditionedBC: {**_BC, "bins": COUNT},
    QSFT: {
        **_LANGUAGE,
        "gamma": SHARE,
        "beta": NOT_NEGATIVE,
        "polyak": FRACTION,
        "support": SHARE,
        "bc_weight": NOT_NEGATIVE,
    },
    PPO: _PPO,
    GRPO: _GRPO,
    GiGPO: {**_GRPO, "step_weight": NOT_NEGATIVE, "step_gamma": SHARE},
    GuidedPPO: {**_PPO, **_VALUES},
    Filter: _FILTER,
    OnlineDataModule: {**_OFFLINE, "epochs": COUNT, "batches": COUNT, "memory_mb": COUNT},
    InteractiveEvaluation: {"every_n_steps": COUNT, "episodes": COUNT, "seed": (-1,), "slots": COUNT},
    RolloutCollection: {"episodes": COUNT, "slots": COUNT, "group_size": COUNT, "piece": COUNT, "workers": COUNT},
    KeepLast: {"every_n_steps": COUNT},
    VLLMSampler: {
        "importance_cap": POSITIVE,
        "max_gap": POSITIVE,
        "wait": NOT_NEGATIVE,
        "timeout": POSITIVE,
        "retries": (-1,),
        "max_parallel": COUNT,
    },
    TrainingProgress: {"seconds": POSITIVE},
    LMPolicy: _DECODING,
    ValueGuidedPolicy: _GUIDED,
    RatioGuidedPolicy: {**_GUIDED, "support": SHARE},
    RerankPolicy: {"logit_weight": NOT_NEGATIVE, "temperature": NOT_NEGATIVE, "slots": COUNT},
    ValueGuidedLogitsProcessor: {"beta": NOT_NEGATIVE},
    Engine: {"slots": COUNT},
} | {
    kind: _OFFLINE
    for name in lmrl.datamodules.__all__
    if issubclass(kind := getattr(lmrl.datamodules, name), OfflineDataModule) and kind is not OnlineDataModule
}


@pytest.fixture(scope="module")
def needed() -> Mapping[type, dict[str, Any]]:
    """Arguments without a default."""
    tokenizer = load_tokenizer()
    model = build_lm(None, TINY, len(tokenizer)).train(False)
    heads = [torch.nn.Linear(16, len(tokenizer))]
    player = {"model": model, "tokenizer": tokenizer, "window": Window(1, 32)}
    return {
        InteractiveEvaluation: {"task": "maze_fo"},
        VLLMSampler: {"url": "http://127.0.0.1:8000"},
        LMPolicy: player,
        ValueGuidedPolicy: {"value_model": model, "q_heads": heads, "beta": 1.0, **player},
        RatioGuidedPolicy: {"value_model": model, "support": 0.01, "beta": 1.0, **player},
        RerankPolicy: {"proposals": ["up\n"], **player},
        ValueGuidedLogitsProcessor: {"value_model": model, "q_heads": heads, "beta": 1.0},
        Engine: {"model": model},
    }


@pytest.mark.parametrize("kind", TABLE, ids=lambda kind: kind.__name__)
def test_a_number_outside_of_its_range_is_refused(kind: type, needed: Mapping[type, dict[str, Any]]) -> None:
    arguments = dict(needed.get(kind, {}))
    if issubclass(kind, lmrl.modules.LanguageModule):
        arguments["architecture"] = TINY
    if issubclass(kind, OfflineDataModule) and "task" in inspect.signature(kind).parameters:
        arguments["task"] = "car_dealer"
    for name, values in TABLE[kind].items():
        for value in (*values, math.nan, -math.inf, math.inf):
            with pytest.raises(UserError) as caught:
                kind(**{**arguments, name: value})
            said = str(caught.value)
            is_refused = said.startswith(f"{name} must be ") and said.endswith(f", got {value}")
            # An endless action is refused for not fitting into the model.
            assert is_refused or "(inf tokens)" in said, (name, value)


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in _GUIDED.items() for v in values])
@pytest.mark.parametrize("callback", [InteractiveEvaluation, RolloutCollection])
def test_decoding_settings_are_checked_before_anything_is_played(callback: type, name: str, value: float) -> None:
    task = {"task": "maze_fo"} if callback is InteractiveEvaluation else {}
    with pytest.raises(UserError, match=f"{name} must be "):
        callback(**task, decoding={name: value})


@pytest.mark.parametrize(("name", "value"), [("r", 0), ("lora_alpha", 0), ("lora_dropout", 1.0)])
def test_settings_of_adapters_are_checked(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"lora.{name} must be "):
        BC(architecture=TINY, lora={"r": 2, name: value})
