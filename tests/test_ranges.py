"""Numbers that are out of range are refused where they are given."""

import inspect
import math

import pytest

from lmrl import modules
from lmrl.callbacks import InteractiveEvaluation, RolloutCollection
from lmrl.datamodules import OfflineDataModule, OnlineDataModule
from lmrl.errors import UserError
from lmrl.modules import BC, ILQL, PPO, LanguageModule
from tests.helpers.cases import cases
from tests.helpers.online import TINY

ALGORITHMS = [getattr(modules, name) for name in modules.__all__]
ALGORITHMS = [kind for kind in ALGORITHMS if inspect.isclass(kind) and not inspect.isabstract(kind)]


@cases("kind", [kind for kind in ALGORITHMS if issubclass(kind, LanguageModule) and kind is not LanguageModule])
def test_every_number_of_an_algorithm_has_a_range(kind: type[LanguageModule]) -> None:
    # All algorithms hand the arguments that they do not name to `LanguageModule`; BC is asked about those.
    parameters = dict(inspect.signature(kind).parameters)
    if kind is BC:
        parameters |= inspect.signature(LanguageModule).parameters
    numbers = []
    for name, parameter in parameters.items():
        if parameter.annotation in (int, float, int | None, float | None):
            numbers.append(name)
    assert kind is not BC or {"lr", "warmup_steps", "observation_loss_weight"} <= {*numbers}
    for name in numbers:
        with pytest.raises(UserError, match=f"^{name} must be .*, got nan$"):
            kind(architecture=TINY, **{name: math.nan})


@cases(
    ("kind", "name", "value"),
    [
        (BC, "lr", -1e-9),
        (BC, "final_lr", 1.1),
        (BC, "adam_beta2", 1.0),
        (ILQL, "expectile", 0.49),
        (ILQL, "expectile", 1.0),
        (ILQL, "polyak", 0.0),
        (PPO, "gamma", 1.1),
        (PPO, "kl_target", 0),
    ],
)
def test_the_ends_of_ranges(kind: type[LanguageModule], name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"^{name} must be .*, got {value}$"):
        kind(architecture=TINY, **{name: value})


@cases(
    ("kind", "name", "value"),
    [
        (OfflineDataModule, "size", 0),
        (OfflineDataModule, "batch_size", 0),
        (OfflineDataModule, "val_fraction", 1.0),
        (OfflineDataModule, "num_workers", -1),
        (OnlineDataModule, "epochs", 0),
        (OnlineDataModule, "memory_mb", 0),
    ],
)
def test_numbers_of_datamodules(kind: type, name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"^{name} must be .*, got {value}$"):
        kind("car_dealer", **{name: value})


@cases(("name", "value"), [("temperature", -1), ("top_p", 1.1), ("max_new_tokens", 0), ("beta", -1), ("slots", 0)])
def test_decoding_settings_are_checked_before_anything_is_played(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"{name} must be "):
        InteractiveEvaluation(task="maze_fo", decoding={name: value})
    with pytest.raises(UserError, match=f"{name} must be "):
        RolloutCollection(decoding={name: value})


@cases(("name", "value"), [("r", 0), ("lora_alpha", 0), ("lora_dropout", 1.0)])
def test_settings_of_adapters_are_checked(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"lora.{name} must be "):
        BC(architecture=TINY, lora={"r": 2, name: value})
