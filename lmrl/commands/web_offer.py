"""What a page may choose: what lies ready, and what the command line named, but no path or program of its own."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmrl.behaviours import policy_names
from lmrl.commands.web_game import PERSON, Order
from lmrl.envs import registration
from lmrl.errors import UserError, unknown

__all__ = ["Offer"]

_KEPT = ("best.ckpt", "last.ckpt")  # at least one of them is in the folder of a run
_MAX_SEED = 2**53  # beyond it a number of JavaScript is not exact
_PLAIN: Mapping[str, Any] = {"true": True, "false": False, "null": None}
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?", re.ASCII)


class Offer:
    """The orders that a page may give.

    Args:
        first: what the command line named: its players may play every task, its arguments hold for its task.
        runs: folder in which the finished trainings of a task lie under its name.
        chat: settings of the chat models that the command line named.
    """

    def __init__(self, first: Order, runs: Path, chat: Mapping[str, Any] | None = None) -> None:
        self.first, self.chat = first, chat
        self._runs = runs
        self._named = [name for name in (*first.policies, first.advisor) if name and name != PERSON]

    def describe(self) -> dict[str, Any]:
        """What the page offers, JSON-like."""
        tasks = {
            row.name: {"description": row.description, "players": self.players(row.name)}
            for row in registration.tasks().values()
        }
        return {"tasks": tasks, "first": asdict(self.first)}

    def players(self, task: str) -> list[str]:
        """Names of those who may play a task: its scripted players, its runs, and whom the command line named."""
        folders = sorted(self._runs.joinpath(task).glob("*"))
        trained = [str(folder) for folder in folders if any((folder / kept).exists() for kept in _KEPT)]
        return [*dict.fromkeys([*policy_names(task), *trained, *self._named])]

    def check(self, order: Order) -> Order:
        """The order, if it may be given.

        Raises:
            UserError: it names a player or an argument that is not on offer.
        """
        players = self.players(registration.task(order.task).name)
        for name in (*order.policies, *filter(None, [order.advisor])):
            if name not in players and name != PERSON:
                error = unknown("player", name[:80], [*players, PERSON])
                raise UserError(f"{error}; other runs and models are named on the command line of lmrl web")
        for word in order.env:
            self._check_argument(order.task, word)
        if order.seed > _MAX_SEED:
            raise UserError(f"seed must be at most {_MAX_SEED}, got {order.seed:.6g}")
        return order

    def _check_argument(self, task: str, word: str) -> None:
        if task == self.first.task and word in self.first.env:
            return
        name, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"env takes arguments as name=value, got {word!r:.80}")
        if not registration.may_choose(task, name, _value(text)):
            raise UserError(
                f"the page may not set {word!r:.80}: it chooses numbers, true, false and listed names; paths, programs "
                f"and partners are named on the command line: lmrl web {task} --env {name[:40]}=..."
            )


def _value(text: str) -> Any:
    """A number, true, false, null, or the text; nothing that needs a parser."""
    if text in _PLAIN:
        return _PLAIN[text]
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text
