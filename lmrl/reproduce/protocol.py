"""The protocol of a fair table: every method starts, spends and chooses alike (``docs/reference/protocol.md``)."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmrl.errors import UserError
from lmrl.utils.configuration import configs_folder

__all__ = [
    "EARLIER", "END", "FOLDER", "GAMES", "START", "Settings",
    "chosen_policy", "method_of", "methods", "methods_without_trials", "rows", "settings_tried",
]  # fmt: skip

FOLDER = "protocol"
"""The folder of the configuration files."""
START = "bc"
"""The run that every method of a row starts from."""
GAMES = 256
"""Games of each decoding setting that is tried."""
EARLIER = ("at_25", "at_50")
"""Folders of a run with its policy after a quarter and a half of the compute (`lmrl.callbacks.ComputeBudget`)."""

END = "end"
"""Name of the policy at the end of the compute, beside those of `EARLIER`."""

Settings = dict[str, tuple[Any, ...]]
"""Options of ``lmrl tune`` and their values."""

_METHODS = ("filtered_bc", "mc", "ilql", "archer", "ppo", "grpo", "gigpo", "hgpo", "gagpo")
_WITH_VALUES = ("mc", "ilql", "qsft")
_SAMPLING: Settings = {"temperatures": (1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0), "top_ps": (0.9, 0.7, 0.5)}
_SAMPLING_AND_BETA: Settings = {
    "temperatures": (1.0, 0.5),
    "top_ps": (1.0,),
    "betas": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0),
}


def rows() -> list[str]:
    """Return the tasks that the protocol has settings for."""
    return sorted(path.stem for path in (configs_folder() / FOLDER).glob("*.yaml"))


def methods(task: str) -> list[str]:
    """Return the columns of a row, the start first. ``X_from_Y`` is method X that starts from Y instead."""
    second_arm = sorted(path.stem for path in (configs_folder() / FOLDER / task).glob("*_from_*.yaml"))
    return [START, *_METHODS, *second_arm]


def methods_without_trials(task: str, algorithms: Sequence[str]) -> list[str]:
    """Return those of the algorithms for which no setting has been chosen on this task.

    Args:
        task: a row.
        algorithms: columns; none: all of the row.
    """
    folder = configs_folder() / FOLDER / task
    names = [method_of(name) for name in algorithms or methods(task)]
    return [name for name in dict.fromkeys(names) if name != START and not (folder / f"{name}.yaml").is_file()]


def method_of(algorithm: str) -> str:
    """Return the method of a column: ``grpo`` for ``grpo_from_filtered_bc``."""
    return algorithm.partition("_from_")[0]


def settings_tried(algorithm: str) -> Settings:
    """Return the twelve decoding settings that are tried of a method: with values, temperatures times betas.

    A top-p of 1 cuts nothing off: it stands for none, in place of those that a task would try.
    """
    return _SAMPLING_AND_BETA if method_of(algorithm) in _WITH_VALUES else _SAMPLING


def chosen_policy(returns: Mapping[str, float]) -> str:
    """Return the policy of a run that is scored: the one with the highest return, of equals the latest.

    Args:
        returns: mean returns of selection games with the chosen decoding, by policy: `EARLIER` and `END`.

    Raises:
        UserError: one of the policies has not played.
    """
    missing = [name for name in (*EARLIER, END) if name not in returns]
    if missing:
        raise UserError(f"there are no scores of the selection games of {', '.join(missing)}")
    latest_first = [END, *reversed(EARLIER)]
    return max(latest_first, key=lambda name: returns[name])
