"""What the words of a ``lmrl fit`` come to, as far as a plan has to know it: files and overrides, merged."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lmrl.config_files import check_config, config_file

__all__ = ["base_of", "configuration", "differences", "max_steps_of", "value_at"]

_PRETRAINED = "model.init_args.pretrained"
# Where a run lies and what it starts from are told apart by the plan, not by their names.
_COMPARED = ("model.class_path", "model.init_args", "data.class_path", "data.init_args", "trainer.max_steps")
_APART = (_PRETRAINED, "data.init_args.path")


def configuration(words: Sequence[str]) -> DictConfig:
    """The merged configuration of ``fit --config FILE ... --key=value ...``.

    Raises:
        UserError: a file that is not there, or no configuration.
    """
    files = [config_file(after) for word, after in pairwise(words) if word == "--config"]
    for file in files:
        check_config(file)
    given = [word.removeprefix("--") for word in words if word.startswith("--") and "=" in word]
    merged = OmegaConf.merge(*(OmegaConf.load(file) for file in files), OmegaConf.from_dotlist(given))
    assert isinstance(merged, DictConfig)
    return merged


def base_of(config: Any, task: str) -> str | None:
    """``bc`` for a configuration whose ``pretrained`` is ``runs/<task>/bc``."""
    parts = Path(str(value_at(config, _PRETRAINED) or "")).parts
    return parts[2] if len(parts) == 3 and parts[:2] == ("runs", task) else None


def max_steps_of(config: Any) -> int | None:
    """Length of the training, if it has one."""
    steps = value_at(config, "trainer.max_steps")
    return int(steps) if str(steps).isdigit() else None


def value_at(config: Any, key: str) -> Any:
    """The value of a dotted key; None if there is none, or if it cannot be told here."""
    try:
        return OmegaConf.select(config, key)
    except OmegaConfBaseException:  # it refers to a value that another file of the run holds
        return None


def differences(planned: Any, done: Any) -> list[str]:
    """What a run was trained with, where that is not as planned: ``lr 0.002, not 0.001``."""
    found = []
    for key, value in (leaf for top in _COMPARED for leaf in _leaves(planned, top)):
        other = value_at(done, key)
        if key not in _APART and other != value:
            found.append(f"{key.rpartition('.')[2]} {other}, not {value}")
    return found


def _leaves(config: Any, key: str) -> Iterator[tuple[str, Any]]:
    value = value_at(config, key)
    if isinstance(value, DictConfig) and len(value):
        for name in value:
            yield from _leaves(config, f"{key}.{name!s}")
    else:
        yield key, value
