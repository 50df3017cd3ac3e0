"""A run that kills its own process, as a machine that goes down would."""

import os
import signal
from pathlib import Path
from typing import Any, NoReturn

import torch

from lmrl.callbacks import KeepLast, RolloutCollection
from lmrl.modules import PPO
from lmrl.types import Reply, Request
from tests.helpers.online import fit, rounds

STEPS = 20
PLACES = ("rollout", "minibatch", "saving")


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


class Dying(RolloutCollection):
    """Dies in the third round: in the middle of it, or after a few minibatches of it."""

    def __init__(self, place: str) -> None:
        super().__init__(episodes=6, slots=4)
        self.place = place

    def collect(self, number: int) -> Any:
        if self.place == "rollout" and number == 3:
            policy = self._module.policy
            module: Any = self._module
            module.policy = lambda **settings: Mortal(policy(**settings))
        return super().collect(number)

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        super().on_train_batch_start(trainer, *args)
        if self.place == "minibatch" and trainer.datamodule.round == 3 and trainer.datamodule.consumed == 3:
            die()


class Mortal:
    """Answers twice."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.answers = 0

    def act(self, requests: list[Request]) -> list[Reply]:
        self.answers += 1
        if self.answers == 3:
            die()
        replies: list[Reply] = self.policy.act(requests)
        return replies


class DyingPPO(PPO):
    """Dies while its sixth checkpoint is written."""

    saved = 0

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        self.saved += 1
        if self.saved == 6:
            die()


DyingPPO.__qualname__ = DyingPPO.__name__ = PPO.__name__  # whoever goes on from its checkpoints is one


def run(root: Path, bc_run: str, kind: type[PPO], playing: RolloutCollection, **more: Any) -> PPO:
    torch.manual_seed(0)
    module = kind(pretrained=bc_run, lr=1e-2, kl_target=1e-3, kl_horizon=100)
    fit(module, rounds(epochs=2), root, STEPS, [KeepLast(every_n_steps=2)], playing, **more)
    return module


def die_at(place: str, root: Path, bc_run: str) -> None:
    """Train until the process dies: in a rollout, after a minibatch, or while a checkpoint is written."""
    assert place in PLACES
    run(root, bc_run, DyingPPO if place == "saving" else PPO, Dying(place))
