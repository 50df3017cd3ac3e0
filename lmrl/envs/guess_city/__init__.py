"""Guess My City."""

from lmrl.envs.scores import OwnScale, PublishedData, Scores, by_algorithm
from lmrl.envs.task import Task

__all__ = ["TASKS"]

TASKS = (
    Task(
        name="guess_city",
        table_row=9,
        description="find out by at most twenty questions in which city somebody lives",
        env_id="lmrl/GuessCity-v0",
        entry_point="lmrl.envs.guess_city.env:GuessCity",
        max_action_tokens=24,
        dataset_size=50_000,
        dataset_version=2,
        own_scale=OwnScale(random=-18.98, recorder=-17.79, best=-2.68),
        entropy=3.92,
        scores=Scores(
            minimum=-20,
            average=-18.8,
            maximum=-8.56,
            raw=by_algorithm(-17.0, -15.2, -11.2, -12.5, -15.1, -19.2, -10.13),
            normalized=by_algorithm(30.0, 48.0, 88.0, 75.0, 49.9, 31.6, 92.3),
            data=PublishedData(100_000, 18.8, 4.57, 0.53, -18.8, 4.12),
            note="The first five printed scores follow an average of -15 and a maximum of -10; from the constants the "
            "first six are 58.8, 67.6, 87.1, 80.8, 68.1 and 33.3. Length, success and return of the data disagree: "
            "-18.8 + .53 is -18.3, not -18.8.",
        ),
        players="lmrl.envs.guess_city.players:PLAYERS",
        recording="lmrl.envs.guess_city.players:recording",
        official="lmrl.envs.guess_city.official:FORMAT",
        chat="lmrl.envs.guess_city.prompts:CHAT",
        guide="lmrl.envs.guess_city.prompts:GUIDE",
        partner="lmrl.envs.guess_city.prompts:PARTNER",
        tokens="lmrl.envs.guess_city.players:tokens",
    ),
)
"""In the order of the results table."""
