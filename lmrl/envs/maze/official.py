r"""Reconstruction of what the official maze files leave out: the last observation, the end and the start.

A record of ``maze_fo`` is a list of ``{"state", "action", "reward", "done"}``, one of ``maze_po`` ``{"text_history",
"rewards", "dones"}`` whose lists go by text. What followed the last action is filled in:

- done with reward 0: ``Success\n``, terminated;
- done as the 101st action: ``Failure\n``, truncated;
- otherwise the episode was cut short: the environment is asked, from every start that fits the texts, for its answer to
  the last action. If there is one answer, it is the last observation; if not, the last action is dropped and the text
  before it is the last observation. Either way the episode is truncated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmrl.envs.base import TextEnv, Turn
from lmrl.envs.maze.env import Maze
from lmrl.envs.maze.layouts import FAILURE, SUCCESS, starts_in
from lmrl.envs.official import FileFormat, Game, game_of_texts, game_of_transitions
from lmrl.envs.task import Task
from lmrl.types import Episode

__all__ = ["FORMAT_FO", "FORMAT_PO", "maze_episode"]

_CALLS = 101  # the clock runs out with this action


@dataclass(frozen=True, slots=True)
class _Fit:
    """A start from which the environment gives the texts of the record, and its answer to the last action."""

    start: Mapping[str, Any]
    answer: Turn


def maze_episode(game: Game, task: Task, env: TextEnv) -> Episode | None:
    """Return the episode of a record, or None if no action of it can be kept; the module states the rules."""
    assert isinstance(env, Maze)
    # Several cells may look alike, so several starts may fit the texts.
    fits: list[_Fit] = []
    answers: set[str] = set()
    for start in starts_in(env.layout):
        fit = _fit(env, start, game)
        if fit is not None:
            fits.append(fit)
            answers.add(fit.answer.text)
    known = len(game.actions)  # the actions that are kept
    last = _last_text(game, answers)
    if last is None:
        known -= 1
        last = game.observations[known]
    if known == 0:
        return None
    terminated = last == SUCCESS
    info: dict[str, Any] = {"source": "official", "success": terminated}
    info["illegal"] = sum(action not in task.actions for action in game.actions[:known])
    # Only a unique start is known for certain.
    if len(fits) == 1:
        info["start"] = dict(fits[0].start)
        if last == FAILURE and "final_observation" in fits[0].answer.info:
            info["final_observation"] = fits[0].answer.info["final_observation"]
    return Episode(
        task=task.name,
        observations=(*game.observations[:known], last),
        actions=game.actions[:known],
        rewards=game.rewards[:known],
        terminated=terminated,
        truncated=not terminated,
        info=info,
    )


def _last_text(game: Game, answers: set[str]) -> str | None:
    """Return the text after the last action, or None if it cannot be known."""
    if len(game.observations) > len(game.actions):
        return game.observations[-1]
    if game.done and game.rewards[-1] == 0:
        return SUCCESS
    if game.done and len(game.actions) == _CALLS:
        return FAILURE
    return answers.pop() if len(answers) == 1 else None


def _fit(env: TextEnv, start: Mapping[str, Any], game: Game) -> _Fit | None:
    """Play the record from a start; return None as soon as the environment gives another text."""
    text, _ = env.reset(seed=0, options=start)
    for number, action in enumerate(game.actions):
        if text != game.observations[number]:
            return None
        turn = env.step(action)
        text = turn.text
        if number == len(game.actions) - 1:
            return _Fit(start, answer=turn)
        # The record goes on, so it did not begin here if the episode ends.
        if turn.terminated or turn.truncated:
            return None
    return None


FORMAT_FO = FileFormat(game_of_transitions, maze_episode, "[[")
FORMAT_PO = FileFormat(game_of_texts, maze_episode, "[")
