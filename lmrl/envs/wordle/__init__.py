"""Wordle."""

from lmrl.envs.scores import OwnScale, PublishedData, Scores, by_algorithm
from lmrl.envs.task import Task

__all__ = ["TASKS"]

TASKS = (
    Task(
        name="wordle",
        table_row=5,
        description="find a hidden word in six guesses, told after each which letters are right",
        env_id="lmrl/Wordle-v0",
        entry_point="lmrl.envs.wordle.env:Wordle",
        max_action_tokens=8,
        dataset_size=1_000_000,
        own_scale=OwnScale(random=-5.956, recorder=-4.062, best=-1.86),
        entropy=5.244,
        scores=Scores(
            minimum=-6,
            average=-4.12,
            maximum=-1.94,
            raw=by_algorithm(-2.81, -2.85, -2.16, -2.04, -2.63, -2.15, -5.42),
            normalized=by_algorithm(79.9, 79.1, 94.9, 97.7, 84.2, 95.2, 15.4),
            data=PublishedData(1_000_000, 4.82, 1.27, 0.70, -4.12, 1.59),
            note="The released script has -4.121715 for the average and -1.935 for the maximum.",
        ),
        players="lmrl.envs.wordle.players:PLAYERS",
        recording="lmrl.envs.wordle.players:recording",
        official="lmrl.envs.wordle.official:FORMAT",
        chat="lmrl.envs.wordle.env:CHAT",
        guide="lmrl.envs.wordle.guide:GUIDE",
        tokens="lmrl.envs.wordle.env:tokens",
        picture="lmrl.envs.wordle.picture:WordlePicture",
    ),
)
"""In the order of the results table."""
