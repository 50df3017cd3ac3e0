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
    """A record as texts and rewards; the first observation also names the word, for `twenty_questions_episode`.

    A line is split after its last question mark that a space follows. Each question costs 1, the last one of a correct
    record nothing; a record is done if it is correct or has 20 questions.

    Raises:
        UserError: saying what is wrong.
    """
    if not isinstance(record, Mapping) or not {"lines", "correct", "word"} <= set(record):
        raise UserError(f"a record must be an object with lines, correct and word, got {record!r:.60}")
    lines = record["lines"]
    correct = record["correct"]
    if not isinstance(lines, list) or not lines or not isinstance(correct, bool):
        raise UserError("lines must be a list of texts with at least one, and correct true or false")
    if len(lines) > QUESTIONS:
        raise UserError(f"lines must be at most {QUESTIONS}, got {len(lines)}")
    said = [_split(line, f"lines[{place}]") for place, line in enumerate(lines)]
    rewards = [-1.0] * len(said)
    rewards[-1] += correct
    return Game(
        observations=(f"{_WORD}{_name(record['word'])}", *(answer for _, answer in said)),
        actions=tuple(question for question, _ in said),
        rewards=tuple(rewards),
        done=correct or len(lines) == QUESTIONS,
    )


def _split(line: Any, where: str) -> tuple[str, str]:
    if not isinstance(line, str) or "? " not in line:
        raise UserError(f"{where} must be a question, a space and its answer, got {line!r:.60}")
    question, _, answer = line.rpartition("? ")
    return f"{question.strip()}?\n", f"{answer.strip()}\n"


def _name(word: Any) -> str:
    names = word if isinstance(word, list) else [word]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UserError(f"word must be a list of names with at least one, got {word!r:.60}")
    return str(names[0])


def twenty_questions_episode(game: Game, row: Task, env: TextEnv) -> Episode:
    """The episode of a record; ``info["start"]`` is there if the word is one of the 158."""
    name = game.observations[0].removeprefix(_WORD)
    return episode_of_lines(game, row, _HEADER, {"start": {"word": name}} if name in place_of() else {})


def episode_of_lines(game: Game, row: Task, header: str, known: Mapping[str, Any]) -> Episode:
    """The episode of a game of questions, which begins with ``header``; ``known`` joins its ``info``."""
    return Episode(
        task=row.name,
        observations=(header, *game.observations[1:]),
        actions=game.actions,
        rewards=game.rewards,
        terminated=game.done,
        truncated=not game.done,
        info={"source": "official", "success": game.rewards[-1] == 0, "illegal": 0, **known},
    )


FORMAT = FileFormat(game_of_lines, twenty_questions_episode, "[")
