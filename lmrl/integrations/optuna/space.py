"""The search space of a sweep: a YAML file with the possible values of each option of a run file."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from omegaconf import OmegaConf

from lmrl.errors import UserError, in_one_line, unknown
from lmrl.utils.configuration import check_config, configuration, full_key

__all__ = ["Choices", "Range", "Space", "Value", "as_words", "first_values", "grid", "overlay", "read_space"]

Value: TypeAlias = bool | int | float | str | None

_OPTION = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_KEYS = ("low", "high", "log", "step")
_OWN = ("config", "ckpt_path", "overwrite", "allow_pickle", "print_config", "trainer.default_root_dir")
"""Options of ``lmrl fit`` that a sweep sets by itself, or that are no settings."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; whole ones if ``low``, ``high`` and ``step`` are."""

    low: float
    high: float
    log: bool = False
    """Drawn evenly over the logarithm."""
    step: float | None = None
    """Distance between two values; None: any number, of whole ones each."""

    @property
    def whole(self) -> bool:
        """Whether values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int) and isinstance(self.step or 1, int)


@dataclass(frozen=True, slots=True)
class Choices:
    """One of these values."""

    values: tuple[Value, ...]


Space: TypeAlias = Mapping[str, Range | Choices]
"""Dotted options, in full (``model.init_args.lr``), and what each may be."""


def read_space(path: Path) -> Space:
    """Read a space: options with ``{low, high, log, step}`` or a list of choices.

    Example::

        model.init_args.lr: {low: 1e-5, high: 1e-3, log: true}
        model.init_args.expectile: {low: 0.6, high: 0.9, step: 0.1}
        data.init_args.batch_size: [64, 128, 256]

    Raises:
        UserError: the file is missing or no YAML; an option is none, is set by the sweep itself, or comes twice; a
            range or a list that holds something else.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; it holds the options to search, e.g. model.init_args.lr: [1e-4, 1e-3]")
    check_config(path)
    content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(content, dict)
    space: dict[str, Range | Choices] = {}
    for given, values in content.items():
        where = f"{path}, {in_one_line(str(given), 80)}"
        if not (isinstance(given, str) and _OPTION.fullmatch(given)):
            raise UserError(f"{where}: must be a dotted option of a run file, such as model.init_args.lr")
        option = full_key(given)
        if option in _OWN:
            raise UserError(f"{where}: a sweep sets this itself; search settings of model, data and trainer")
        if option in space:
            raise UserError(f"{where}: {option} is there twice")
        space[option] = _dimension(values, where)
    for option in space:
        for other in space:
            if other.startswith(f"{option}."):
                raise UserError(f"{path}: {other} is a part of {option}; search one of them")
    if not space:
        raise UserError(f"{path} holds no option to search")
    return space


def _dimension(values: Any, where: str) -> Range | Choices:
    if isinstance(values, list):
        return _choices(values, where)
    if isinstance(values, dict):
        return _range(values, where)
    raise UserError(f"{where}: must be {{low, high, log, step}} or a list of choices, got {in_one_line(repr(values))}")


def _choices(values: Sequence[Any], where: str) -> Choices:
    for value in values:
        is_scalar = isinstance(value, bool | int | float | str | None)
        if not is_scalar or (isinstance(value, float) and not math.isfinite(value)):
            raise UserError(f"{where}: a choice must be a number, a text, true, false or null, got {value!r}")
    if not values or len(set(values)) < len(values):
        raise UserError(f"{where}: choices must be different values, at least one, got {values!r}")
    return Choices(tuple(values))


def _range(values: Mapping[Any, Any], where: str) -> Range:
    for key in values:
        if key not in _KEYS:
            raise UserError(f"{where}: {unknown('key', str(key), _KEYS)}")
    for key in ("low", "high"):
        if key not in values:
            raise UserError(f"{where}: {key} is missing; a range is {{low, high, log, step}}")
    low = values["low"]
    high = values["high"]
    log = values.get("log", False)
    step = values.get("step")
    for key, number in (("low", low), ("high", high), ("step", step)):
        if key == "step" and step is None:
            continue
        # True is an int, but no number of a range.
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise UserError(f"{where}: {key} must be a finite number, got {number!r}")
    if not isinstance(log, bool):
        raise UserError(f"{where}: log must be true or false, got {log!r}")
    if low >= high:
        raise UserError(f"{where}: low must be below high, got {low!r} and {high!r}")
    if log and (low <= 0 or step is not None):
        raise UserError(f"{where}: with log, low must be above 0 and there is no step")
    # Optuna would leave out `high` otherwise. As decimals, because 0.6 + 3 * 0.1 is not 0.9 in binary.
    if step is not None and (step <= 0 or (Decimal(str(high)) - Decimal(str(low))) % Decimal(str(step))):
        raise UserError(f"{where}: step must be above 0 and lead from low to high, got {step!r}")
    return Range(low, high, log, step)


def as_words(settings: Mapping[str, Value]) -> list[str]:
    """Return settings as options of ``lmrl fit``."""
    words = []
    for option, value in settings.items():
        # JSON writes true, false and null as YAML does. A text needs no quotes on the command line.
        words.append(f"--{option}={value if isinstance(value, str) else json.dumps(value)}")
    return words


def first_values(space: Space) -> dict[str, Value]:
    """The lowest value or first choice of each option."""
    return {key: part.low if isinstance(part, Range) else part.values[0] for key, part in space.items()}


def grid(space: Space) -> list[dict[str, Value]]:
    """Return all combinations of the choices; those of the last option change first.

    Raises:
        UserError: an option has a range.
    """
    for key, part in space.items():
        if not isinstance(part, Choices):
            raise UserError(f"a grid has lists of choices, and {key} has a range")
    choices = [part.values for part in space.values() if isinstance(part, Choices)]
    return [dict(zip(space, values, strict=True)) for values in product(*choices)]


def overlay(settings: Mapping[str, Value], words: Sequence[str] = ()) -> dict[str, Any]:
    """Settings as the content of a configuration file: ``{"model": {"init_args": {"lr": 0.001}}}``.

    Args:
        settings: settings by their full names.
        words: arguments of the training that the file is for. Where a setting is a part of an argument of a class
            (``model.init_args.architecture.n_layer``), the file replaces the whole argument, so it holds all of it.
    """
    whole = configuration([*words, *as_words(settings)]) if words else None
    nested: dict[str, Any] = {}
    for setting, chosen in settings.items():
        key = setting
        value: Any = chosen
        levels = setting.split(".")
        if whole is not None and levels[1:2] == ["init_args"] and len(levels) > 3:
            key = ".".join(levels[:3])
            argument = OmegaConf.select(whole, key)
            value = OmegaConf.to_container(argument, resolve=False)
        *parents, name = key.split(".")
        section = nested
        for parent in parents:
            section = section.setdefault(parent, {})
        section[name] = value
    return nested
