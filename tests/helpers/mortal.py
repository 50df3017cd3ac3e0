"""An algorithm whose players can be killed while they play, in a process of a cluster."""

import os
from pathlib import Path
from typing import Any

from lmrl.modules import PPO
from lmrl.types import Reply, Request
from tests.helpers.clusters import die_if_told


class MortalPPO(PPO):
    """Its policy dies in the middle of an episode, wherever `$LMRL_DATA` has a file for it."""

    def policy(self, **settings: Any) -> Any:
        return Mortal(super().policy(**settings))


class Mortal:
    """Answers a few times."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.answers = 0

    def act(self, requests: list[Request]) -> list[Reply]:
        self.answers += 1
        if self.answers % 3 == 0:
            die_if_told(Path(os.environ["LMRL_DATA"]))
        replies: list[Reply] = self.policy.act(requests)
        return replies

    def reset(self) -> None:
        self.policy.reset()
