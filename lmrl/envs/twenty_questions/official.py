"""The official Twenty Questions files: ``{"lines": ["Is it alive? No.", ...], "correct": ..., "word": [...]}``."""

from collections.abc import Mapping
from typing import Any

from lmrl.envs.base import TextEnv
from lmrl.envs.official import FileFormat, Game
from lmrl.envs.task import Task
from lmrl.envs.twenty_questions.env import QUESTIONS
from lmrl.envs.twenty_questions.objects import place_of
from lmrl.errors import UserError
from lmrl.types import Episode

__all__ = ["FORMAT", "episode_of_lines", "game_of_lines", "twenty_questions_episode"]

_HEADER = "Questions:\n"
_WORD = "word: "


def game_of_lines(record: Any) -> Game:
    """Parse a record into texts and rewards; the first observation holds the word, for `twenty_questions_episode`.

    A line is split after its last question mark before a space. Each question costs 1, except for the last one of a
    correct record. A record is done if it is correct or has 20 questions.

    Raises:
        UserError: if the record is malformed.
    """
    if not isinstance(record, Mapping) or not {"lines", "correct", "word"} <= set(record):
        raise UserError(f"a record must be an object with lines, correct and word, got {record!r:.60}")
    lines = record["lines"]
    correct = record["correct"]
    if not isinstance(lines, list) or not lines or not isinstance(correct, bool):
        raise UserError("lines must be a list of texts with at least one, and correct true or false")
    if len(lines) > QUESTIONS:
        raise UserError(f"lines must be at most {QUESTIONS}, got {len(lines)}")
    questions = []
    answers = []
    for index, line in enumerate(lines):
        if not isinstance(line, str) or "? " not in line:
            raise UserError(f"lines[{index}] must be a question, a space and its answer, got {line!r:.60}")
        question, _, answer = line.rpartition("? ")
        questions.append(f"{question.strip()}?\n")
        answers.append(f"{answer.strip()}\n")
    # The names of the word; the first is the usual one.
    names = record["word"] if isinstance(record["word"], list) else [record["word"]]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UserError(f"word must be a list of names with at least one, got {record['word']!r:.60}")
    rewards = [-1.0] * len(lines)
    rewards[-1] += correct
    return Game(
        observations=(f"{_WORD}{names[0]}", *answers),
        actions=tuple(questions),
        rewards=tuple(rewards),
        done=correct or len(lines) == QUESTIONS,
    )


def twenty_questions_episode(game: Game, task: Task, env: TextEnv) -> Episode:
    """Return the episode of a record; it has ``info["start"]`` if the word is one of the 158 objects."""
    name = game.observations[0].removeprefix(_WORD)
    # The replay of a dataset needs the start; without it an episode cannot be verified.
    return episode_of_lines(game, task, _HEADER, {"start": {"word": name}} if name in place_of() else {})


def episode_of_lines(game: Game, task: Task, header: str, known: Mapping[str, Any]) -> Episode:
    """Return the episode of a game of questions with the first observation ``header`` and ``known`` in its ``info``."""
    return Episode(
        task=task.name,
        observations=(header, *game.observations[1:]),
        actions=game.actions,
        rewards=game.rewards,
        terminated=game.done,
        truncated=not game.done,
        info={"source": "official", "success": game.rewards[-1] == 0, "illegal": 0, **known},
    )


FORMAT = FileFormat(game_of_lines, twenty_questions_episode, "[")
