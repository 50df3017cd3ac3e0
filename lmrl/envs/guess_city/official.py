"""The official Guess My City files, which have the format of Twenty Questions with sentences as answers."""

from lmrl.envs.base import TextEnv
from lmrl.envs.guess_city.cities import places_in
from lmrl.envs.guess_city.env import HEADER
from lmrl.envs.official import FileFormat, Game
from lmrl.envs.task import Task
from lmrl.envs.twenty_questions.official import episode_of_lines, game_of_lines
from lmrl.types import Episode

__all__ = ["FORMAT", "guess_city_episode"]

_WORD = "word: "


def guess_city_episode(game: Game, task: Task, env: TextEnv) -> Episode:
    """Return the episode of a record; it has ``info["start"]`` if the word names a city ("sao paulo,brazil")."""
    word = game.observations[0].removeprefix(_WORD)
    named = places_in(word).cities
    # Without a start the dataset can be trained on, but not replayed.
    start = {"start": {"city": next(iter(named))}} if len(named) == 1 else {}
    return episode_of_lines(game, task, HEADER, {"word": word, **start})


FORMAT = FileFormat(game_of_lines, guess_city_episode, "[")
