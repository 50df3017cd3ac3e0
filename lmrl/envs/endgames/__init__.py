"""Endgames of chess."""

from lmrl.envs.scores import OwnScale, PublishedData, Scores, by_algorithm
from lmrl.envs.task import Task, Tuning

__all__ = ["TASKS"]

_OPPONENTS = ("alphabeta", "random")  # those without a program of their own

TASKS = (
    Task(
        name="endgames",
        table_row=7,
        description="mate the lone black king with queen, rook, or both",
        env_id="lmrl/Endgames-v0",
        entry_point="lmrl.envs.endgames.env:Endgames",
        choices={"opponent": _OPPONENTS, "piece_sets": ("kQK", "kRK", "kQRK", "kRRK")},
        last_texts=1,
        tuning=Tuning(top_ps=(0.95, 0.9), episodes=512),
        max_action_tokens=12,
        dataset_size=300_000,
        starts=tuple({"test": number} for number in range(645)),
        selection=tuple({"selection": number} for number in range(512)),
        own_scale=OwnScale(random=0.005, recorder=0.558, best=1.0),
        entropy=2.303,
        scores=Scores(
            minimum=-1,
            average=0.586,
            maximum=1,
            raw=by_algorithm(0.112, -0.439, 0.588, 0.452, 0.814, 0.112, -22.87),
            normalized=by_algorithm(35.1, 17.7, 50.2, 45.8, 77.5, 36.2, 0),
            data=PublishedData(97_756, 11.9, 12.0, 0.59, 0.586, 0.492),
            note="-1 is no true minimum, since illegal moves repeat (-401 is): from the constants GPT-4 is -689; it is "
            "printed as 0. Online filtered BC has the raw score of BC (35.1) but is printed as 36.2.",
        ),
        players="lmrl.envs.endgames.players:PLAYERS",
        recording="lmrl.envs.endgames.players:recording",
        official="lmrl.envs.chess.official:FORMAT",
        chat="lmrl.envs.endgames.env:CHAT",
        guide="lmrl.envs.endgames.env:GUIDE",
        tokens="lmrl.envs.endgames.env:tokens",
        picture="lmrl.envs.chess.picture:BoardPicture",
    ),
)
"""In the order of the results table."""
