"""Car Dealer."""

from lmrl.envs.scores import OwnScale, PublishedData, Scores, by_algorithm
from lmrl.envs.task import Task

__all__ = ["TASKS"]

TASKS = (
    Task(
        name="car_dealer",
        table_row=10,
        description="sell a car to a buyer whose wishes, budget and weakness show only in what they say",
        env_id="lmrl/CarDealer-v0",
        entry_point="lmrl.envs.car_dealer.env:CarDealer",
        choices={"reward": ("revenue", "fancy")},
        max_action_tokens=48,
        dataset_size=50_000,
        # Raw scores of online filtered BC and GPT-4 are missing in Table 4 and are taken from Table 2, where every
        # other one equals the raw one.
        own_scale=OwnScale(random=5.42, recorder=28.54, best=52.49),
        entropy=1.209,
        scores=Scores(
            minimum=0,
            average=None,
            maximum=None,
            raw=by_algorithm(44.5, 54.8, 57.2, 46.3, 50.5, 40.4, 53.5),
            normalized=by_algorithm(44.5, 54.8, 57.2, 46.3, 50.5, 40.4, 53.5),
            # The paper counts the lines of both speakers: 16.5 (3.61). Half of them are actions.
            data=PublishedData(19_000, 8.25, 1.8, 0.53, 0.562, 0.422, {"reward": "fancy"}),
            note="No average and maximum were published; raw and normalised scores are the same numbers, in thousands "
            "of dollars. The data's return is the reward fancy.",
        ),
        players="lmrl.envs.car_dealer.players:PLAYERS",
        recording="lmrl.envs.car_dealer.players:recording",
        official="lmrl.envs.car_dealer.official:FORMAT",
        chat="lmrl.envs.car_dealer.prompts:CHAT",
        guide="lmrl.envs.car_dealer.prompts:GUIDE",
        partner="lmrl.envs.car_dealer.prompts:PARTNER",
        tokens="lmrl.envs.car_dealer.tokens:tokens",
    ),
)
"""In the order of the results table."""
