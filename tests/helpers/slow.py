"""``python -m tests.helpers.slow WORD...``: the command line, where scripted policies take a while for each turn."""

import sys
from collections.abc import Sequence
from time import sleep
from typing import Any

from lmrl.cli import main
from lmrl.envs import registry
from lmrl.types import Policy, Reply, Request

SECONDS = 0.05


class Slow:
    """Prints a line for each round of turns."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        sleep(SECONDS)
        print("round", flush=True)
        return list(self.policy.act(requests))


if __name__ == "__main__":
    make_policy = registry.make_policy

    def make_slow_policy(*arguments: Any) -> Slow:
        return Slow(make_policy(*arguments))

    registry.make_policy = make_slow_policy  # type: ignore[assignment]
    sys.exit(main(sys.argv[1:]))
