"""A game of the page: one or two seats at the same episode, and an advisor for the person among them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmrl.commands.arguments import env_arguments
from lmrl.commands.web_seat import Seat
from lmrl.envs import registration
from lmrl.errors import UserError
from lmrl.evaluation.view_data import rounded, shown_text
from lmrl.partners import environment
from lmrl.players import is_chat, named_adviser, named_policy
from lmrl.policies.advice import advise

__all__ = ["PERSON", "Game", "Order"]

PERSON = "human"
# What a page sends for each field of an order.
_FORMS: Mapping[str, tuple[type, str]] = {
    "task": (str, "a text"),
    "policies": (list, "a list of texts"),
    "seed": (int, "a whole number"),
    "advisor": (str, "a text"),
    "env": (list, "a list of texts"),
}


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be played. The fields are those of ``lmrl web``."""

    task: str
    policies: Sequence[str] = (PERSON,)
    """One player, or two side by side; ``human`` is whoever sits at the page."""
    seed: int = 0
    advisor: str = ""
    """Empty: nobody advises."""
    env: Sequence[str] = field(default_factory=tuple)

    @classmethod
    def read(cls, told: Any) -> "Order":
        """An order from what a page sent.

        Raises:
            UserError: it is not of the form of an order.
        """
        if not isinstance(told, dict) or set(told) != set(_FORMS):
            raise UserError(f"an order has the fields {', '.join(_FORMS)}, got {told!r:.200}")
        for name, (kind, words) in _FORMS.items():
            listed = told[name] if kind is list else ()
            if type(told[name]) is not kind or not all(isinstance(word, str) for word in listed):
                raise UserError(f"{name} must be {words}, got {told[name]!r:.80}")
        return cls(**told)


class Game:
    """One or two players at the same start, each in an environment of its own.

    Args:
        order: what is played.
        chat: settings of the chat models among the players, see `lmrl.players.chat_player`.

    Raises:
        UserError: for an unknown task or policy, a wrong seed or argument, three players, or two people.
    """

    def __init__(self, order: Order, chat: Mapping[str, Any] | None = None) -> None:
        row, arguments = registration.task(order.task), env_arguments(order.env)
        if len(order.policies) not in (1, 2) or list(order.policies).count(PERSON) > 1:
            raise UserError(f"policy must be one player or two, at most one of them human, got {list(order.policies)}")
        self.order, self.actions = order, [action.strip() for action in row.actions]
        told = {name: chat if is_chat(name) else None for name in (*order.policies, order.advisor)}
        self._adviser = named_adviser(order.advisor, row, arguments, told[order.advisor]) if order.advisor else None
        players = [
            None if name == PERSON else named_policy(name, row, arguments, told[name]) for name in order.policies
        ]
        make = environment(order.task, arguments)
        self.seats = [
            Seat(order.task, make, order.seed, name, player, place)
            for place, (name, player) in enumerate(zip(order.policies, players, strict=True))
        ]

    def step(self, typed: str | None) -> None:
        """One turn of every seat whose episode is not over. If a player fails, nobody has moved.

        Args:
            typed: the person's action, if there is one at the table.

        Raises:
            UserError: all episodes are over, or the person's action is missing.
        """
        moving = [seat for seat in self.seats if not seat.over]
        if not moving:
            raise UserError("the game is over: begin another one")
        moves = [seat.move(typed) for seat in moving]
        for seat, move in zip(moving, moves, strict=True):
            seat.play(move)

    def advice(self) -> dict[str, Any]:
        """The advisor's move for the person, and V; empty where there is nobody to ask or to tell."""
        waiting = [seat for seat in self.seats if seat.person and not seat.over]
        if self._adviser is None or not waiting:
            return {}
        request = waiting[0].request()
        move, value = advise(self._adviser, request)
        told = {"name": shown_text(self.order.advisor), "move": shown_text(move), "value": rounded(value, 3)}
        return {"turn": request.turn, **told}

    def state(self) -> dict[str, Any]:
        """What the page shows, JSON-like."""
        return {
            "task": self.order.task,
            "seed": str(self.order.seed),
            "advised": self._adviser is not None,
            "actions": self.actions,
            "dialogue": self.seats[0].dialogue,
            "seats": [seat.state() for seat in self.seats],
        }

    def close(self) -> None:
        """Close the environments."""
        for seat in self.seats:
            seat.close()
