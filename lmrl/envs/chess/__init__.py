"""Chess."""

from lmrl.envs.scores import OwnScale, PublishedData, Scores, by_algorithm
from lmrl.envs.task import Task

__all__ = ["TASKS"]

_OPPONENTS = ("alphabeta", "random")  # those without a program of their own

TASKS = (
    Task(
        name="chess",
        table_row=6,
        description="win a game of chess as White",
        env_id="lmrl/Chess-v0",
        entry_point="lmrl.envs.chess.env:Chess",
        choices={"opponent": _OPPONENTS},
        last_texts=1,
        max_action_tokens=12,
        dataset_size=30_000,
        dataset_version=2,
        own_scale=OwnScale(random=-0.913, recorder=0.507, best=0.98),
        entropy=1.618,
        scores=Scores(
            minimum=-401,
            average=0.21,
            maximum=1,
            raw=by_algorithm(-22.3, -56.5, -28.2, -21.4, -16.0, -22.3, -81.3),
            normalized=by_algorithm(47.2, 42.9, 46.5, 47.3, 48.0, 47.2, 0),
            data=PublishedData(625_000, 46.7, 18.16, 0.60, 0.210, 0.970),
            note="From the constants GPT-4 is 39.8; it is printed as 0.",
        ),
        players="lmrl.envs.chess.players:PLAYERS",
        recording="lmrl.envs.chess.players:recording",
        official="lmrl.envs.chess.official:FORMAT",
        chat="lmrl.envs.chess.env:CHAT",
        guide="lmrl.envs.chess.guide:GUIDE",
        tokens="lmrl.envs.chess.tokens:tokens",
        picture="lmrl.envs.chess.picture:BoardPicture",
    ),
)
"""In the order of the results table."""
