"""Readers of LMRL-Gym's official files: the record formats, with every field checked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lmrl.envs.base import TextEnv
from lmrl.envs.task import Task
from lmrl.errors import UserError
from lmrl.types import Episode

__all__ = ["FileFormat", "Game", "game_of_commands", "game_of_sequence", "game_of_texts", "game_of_transitions"]

_T = TypeVar("_T")
_LARGEST_FLOAT32 = 3.4e38  # as of a reward in our files


@dataclass(frozen=True, slots=True)
class Game:
    """The content of a record in either layout."""

    observations: tuple[str, ...]
    """One per action, and one more where the record holds the last."""
    actions: tuple[str, ...]
    rewards: tuple[float, ...]
    done: bool


def game_of_transitions(record: Any) -> Game:
    """Read a list of ``{"state": str, "action": str, "reward": number, "done": bool}``; only the last may be done.

    Raises:
        UserError: saying what is wrong.
    """
    steps = _list(record, "a record", "transitions")
    observations: list[str] = []
    actions: list[str] = []
    rewards: list[float] = []
    done = False
    for number, step in enumerate(steps):
        where = f"transition {number}"
        if not isinstance(step, Mapping):
            raise UserError(f"{where} must be an object with state, action, reward and done, got {step!r:.60}")
        observations.append(_text(_field(step, "state", where), f"state of {where}"))
        actions.append(_text(_field(step, "action", where), f"action of {where}"))
        rewards.append(_number(_field(step, "reward", where), f"reward of {where}"))
        done = _flag(_field(step, "done", where), f"done of {where}")
        if done and number < len(steps) - 1:
            raise UserError(f"{where} of {len(steps)} is done, but the record goes on")
    return Game(tuple(observations), tuple(actions), tuple(rewards), done)


def game_of_texts(record: Any) -> Game:
    """Read ``{"text_history": [observation, action, ...], "rewards": [...], "dones": [...]}`` with equal lengths.

    Rewards and dones at odd places belong to the actions there; the others must be 0 and false (the last observation,
    if the record has one, may be done).

    Raises:
        UserError: saying what is wrong.
    """
    if not isinstance(record, Mapping):
        raise UserError(f"a record must be an object with text_history, rewards and dones, got {record!r:.60}")
    texts = _checked(record, "text_history", _text)
    rewards = _checked(record, "rewards", _number)
    dones = _checked(record, "dones", _flag)
    if not len(texts) == len(rewards) == len(dones):
        raise UserError(f"{len(texts)} texts, {len(rewards)} rewards and {len(dones)} dones; they must be as many")
    if len(texts) < 2:
        raise UserError("text_history must hold an observation and an action, got one text")
    # Even places are observations, odd places are actions.
    if any(rewards[::2]):
        raise UserError("rewards must be 0 for observations (even places)")
    end = len(texts) // 2 * 2 - 1  # the last action
    if any(dones[:end]):
        raise UserError(f"dones[{dones.index(True)}] is true, but the record goes on")
    return Game(tuple(texts[::2]), tuple(texts[1::2]), tuple(rewards[1::2]), any(dones[end:]))


def game_of_commands(record: Any) -> Game:
    """Read a game like `game_of_texts`, but allow one reward and one done flag per command.

    Raises:
        UserError: saying what is wrong.
    """
    if not isinstance(record, Mapping):
        return game_of_texts(record)  # it raises the error for records that are no object
    texts = _checked(record, "text_history", _text)
    rewards = _checked(record, "rewards", _number)
    dones = _checked(record, "dones", _flag)
    # Some files have one entry per command instead of one per text: their lists are half as long.
    count = len(texts) // 2
    if not count == len(rewards) == len(dones):
        return game_of_texts(record)
    if any(dones[:-1]):
        raise UserError(f"dones[{dones.index(True)}] is true, but the record goes on")
    return Game(tuple(texts[::2]), tuple(texts[1::2]), tuple(rewards), dones[-1])


def game_of_sequence(record: Any) -> Game:
    """Read ``{"sequence": [[text, is_action], ...], "reward": [...], "done": bool}``, observation first.

    There is a reward for each text but the first; those of observations must be 0.

    Raises:
        UserError: saying what is wrong.
    """
    if not isinstance(record, Mapping):
        raise UserError(f"a record must be an object with sequence, reward and done, got {record!r:.60}")
    pairs = _checked(record, "sequence", _pair)
    rewards = _checked(record, "reward", _number)
    done = _flag(_field(record, "done", "the record"), "done")
    if len(pairs) < 2 or len(rewards) != len(pairs) - 1:
        raise UserError(f"{len(pairs)} texts and {len(rewards)} rewards; there must be one for each text but the first")
    texts: list[str] = []
    for place, (text, is_action) in enumerate(pairs):
        texts.append(text)
        if is_action != place % 2:
            raise UserError(
                f"sequence[{place}] must be {'an action' if place % 2 else 'an observation'}, got {text!r:.60}"
            )
    # The first observation has no reward, so here even places are actions.
    if any(rewards[1::2]):
        raise UserError("rewards must be 0 for observations (odd places)")
    return Game(tuple(texts[::2]), tuple(texts[1::2]), tuple(rewards[::2]), done)


def _pair(value: Any, name: str) -> tuple[str, int]:
    if not isinstance(value, list) or len(value) != 2 or value[1] not in (0, 1):
        raise UserError(f"{name} must be a text and 0 or 1, got {value!r:.60}")
    return _text(value[0], name), int(value[1])


def _checked(record: Mapping[str, Any], key: str, check: Callable[[Any, str], _T]) -> list[_T]:
    values = _list(_field(record, key, "the record"), key, "values")
    return [check(value, f"{key}[{i}]") for i, value in enumerate(values)]


def _field(record: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in record:
        raise UserError(f"{where} lacks {key!r}; it has: {', '.join(map(str, record))}")
    return record[key]


def _list(value: Any, name: str, of: str) -> Sequence[Any]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{name} must be a list of {of} with at least one, got {value!r:.60}")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{name} must be a text, got {value!r:.60}")
    return value


def _number(value: Any, name: str) -> float:
    # NaN fails the comparison too.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST_FLOAT32:
        raise UserError(f"{name} must be a finite number, got {value!r:.60}")
    return float(value)


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{name} must be true or false, got {value!r:.60}")
    return value


Records = Iterator[tuple[str, Any]]
"""Pairs of the record's place in the file (for messages) and the record."""


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How to read a task's official file."""

    parse: Callable[[Any], Game]
    """Turns a record into a `Game`; raises a `UserError` for a wrong one."""
    complete: Callable[[Game, Task, TextEnv], Episode | None]
    """Turns a game into an episode with the help of the environment, or returns None where nothing can be kept."""
    list_begins: str
    """First characters (without spaces) of a file that is one JSON list; otherwise each line is a record."""
    regroup: Callable[[Records], Records] = iter
    """Turns the records of a file into records of whole games."""
