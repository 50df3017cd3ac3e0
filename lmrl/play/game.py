"""A game of the page.

What may be chosen, one or two seats at the same episode, and an advisor for the person among them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from lmrl.envs import registry
from lmrl.envs.registry import policy_names
from lmrl.errors import UserError, unknown
from lmrl.loading import PolicySpec, own_tasks_only
from lmrl.models.zoo import zoo_policies
from lmrl.partners import environment
from lmrl.play.seat import Seat, advise
from lmrl.report.pages import rounded, shown_text
from lmrl.types import LoadedPolicy
from lmrl.utils.configuration import env_arguments

__all__ = ["PERSON", "Game", "Offer", "Order", "listed_players", "read_moves"]

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
        chat: settings of the chat models among the players, see `lmrl.loading.PolicySpec.load`.

    Raises:
        UserError: for an unknown task or policy, a wrong seed or argument, three players, or two people.
    """

    def __init__(self, order: Order, chat: Mapping[str, Any] | None = None) -> None:
        task = registry.task(order.task)
        arguments = env_arguments(order.env)
        if len(order.policies) not in (1, 2) or list(order.policies).count(PERSON) > 1:
            raise UserError(f"policy must be one player or two, at most one of them human, got {list(order.policies)}")
        self.order = order
        self.actions = [action.strip() for action in task.actions]
        self._advisor: LoadedPolicy | None = None
        policies: list[LoadedPolicy | None] = []
        with own_tasks_only():
            if order.advisor:
                spec = PolicySpec.parse(order.advisor, task)
                self._advisor = spec.load_advisor(arguments, chat if spec.kind == "chat" else None)
            for name in order.policies:
                spec = PolicySpec.parse(name, task)
                if spec.kind == "human":
                    policies.append(None)
                else:
                    policies.append(spec.load(arguments, chat if spec.kind == "chat" else None))
        make = environment(order.task, arguments)
        self.seats = [
            Seat(order.task, make, order.seed, name, policy, place, arguments)
            for place, (name, policy) in enumerate(zip(order.policies, policies, strict=True))
        ]

    def step(self, typed: str | None) -> None:
        """One turn of every seat whose episode is not over. If a player fails, no seat moves.

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

    def replay(self, moves: Sequence[str]) -> None:
        """Play moves that somebody has played before, until they or the game end.

        Args:
            moves: what the person typed, see `read_moves`.
        """
        for move in moves:
            if all(seat.over for seat in self.seats):
                return
            self.step(move)

    def advice(self) -> dict[str, Any]:
        """The advisor's move for the person, with V and values of its tokens; empty without an advisor or a person."""
        waiting = [seat for seat in self.seats if seat.person and not seat.over]
        if self._advisor is None or not waiting:
            return {}
        request = waiting[0].request()
        move, value, reply = advise(self._advisor.policy, request)
        words = None if value is None else waiting[0].words_of(self._advisor, reply)
        spelt = registry.guide(self.order.task).spelling(move).strip()
        told = {"name": shown_text(self.order.advisor), "move": shown_text(spelt), "value": rounded(value, 3)}
        return {"turn": request.turn, **told, "words": words}

    def state(self) -> dict[str, Any]:
        """Return the state of the page, JSON-like."""
        return {
            "task": self.order.task,
            "seed": str(self.order.seed),
            "advised": self._advisor is not None,
            "actions": self.actions,
            "dialogue": self.seats[0].dialogue,
            "link": self._link(),
            "seats": [seat.state() for seat in self.seats],
        }

    def close(self) -> None:
        """Close the environments."""
        for seat in self.seats:
            seat.close()

    def _link(self) -> str:
        """Return the link that replays a person's own game; empty for other games."""
        if list(self.order.policies) != [PERSON] or not all(_may_set(self.order.task, word) for word in self.order.env):
            return ""
        moves = [action.removesuffix("\n") for action in self.seats[0].episode().actions]
        if not _may_replay(moves):
            return ""
        told = [("task", self.order.task), ("seed", str(self.order.seed))]
        return urlencode(
            [*told, *(("env", word) for word in self.order.env), *(("move", move) for move in moves)], errors="replace"
        )


_MOST_MOVES = 500
_LONGEST_MOVE = 2_000
"""Characters."""
_MOST_TYPED = 16_000
"""Characters of all moves of a shared game."""


def read_moves(told: Any) -> list[str]:
    """The moves of a shared game from what a page sent. They are texts for the game, which answers any.

    Raises:
        UserError: it is no list of texts, or too long.
    """
    if not isinstance(told, list) or not all(isinstance(move, str) for move in told):
        raise UserError(f"moves must be a list of texts, got {told!r:.80}")
    if not _may_replay(told):
        raise UserError(
            f"a shared game has at most {_MOST_MOVES} moves of at most {_LONGEST_MOVE} characters, {_MOST_TYPED} in all"
        )
    return told


def _may_replay(moves: Sequence[str]) -> bool:
    lengths = [len(move) for move in moves]
    return len(moves) <= _MOST_MOVES and max(lengths, default=0) <= _LONGEST_MOVE and sum(lengths) <= _MOST_TYPED


def listed_players(task: str, runs: Path) -> dict[str, list[str]]:
    """The one list of names from which a page chooses who plays a task, by the heading under which they stand.

    Args:
        task: name of the task.
        runs: folder in which the finished trainings of a task lie under its name.
    """
    folders = sorted(runs.joinpath(task).glob("*"))
    trained = [str(folder) for folder in folders if any((folder / kept).exists() for kept in _KEPT)]
    return {"scripted players": [*policy_names(task)], "zoo": zoo_policies(task), "runs": trained}


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
        self.first = first
        self.chat = chat
        self._runs = runs
        self._named = [name for name in (*first.policies, first.advisor) if name and name != PERSON]

    def describe(self) -> dict[str, Any]:
        """Return the options of the page, JSON-like."""
        tasks = {
            row.name: {"description": row.description, "guide": _told(row.name), "players": self.groups(row.name)}
            for row in registry.tasks().values()
        }
        return {"tasks": tasks, "first": asdict(self.first)}

    def players(self, task: str) -> list[str]:
        """Names of those who may play a task: its scripted players, its runs, and whom the command line named."""
        return [*dict.fromkeys(name for names in self.groups(task).values() for name in names)]

    def groups(self, task: str) -> dict[str, list[str]]:
        """The same names under headings, for a list to choose from."""
        listed = listed_players(task, self._runs)
        known = {name for names in listed.values() for name in names}
        named = [name for name in dict.fromkeys(self._named) if name not in known]
        return {**listed, "named on the command line": named}

    def check(self, order: Order, shared: bool = False) -> Order:
        """The order, if it may be given.

        Args:
            order: what is to be played.
            shared: it comes from a link, whose author chose it and which begins at once: the arguments of the
                command line, such as a partner at an endpoint, are not for it.

        Raises:
            UserError: it names a player or an argument that is not on offer.
        """
        players = self.players(registry.task(order.task).name)
        for name in (*order.policies, *filter(None, [order.advisor])):
            if name not in players and name != PERSON:
                error = unknown("player", name[:80], [*players, PERSON])
                raise UserError(f"{error}; other runs and models are named on the command line of lmrl web")
        for word in order.env:
            if shared or order.task != self.first.task or word not in self.first.env:
                self._check_argument(order.task, word)
        if order.seed > _MAX_SEED:
            digits = len(str(order.seed))
            shown = f"{order.seed:.6g}" if digits < 309 else f"a number of {digits} digits"
            raise UserError(f"seed must be at most {_MAX_SEED}, got {shown}")
        return order

    def _check_argument(self, task: str, word: str) -> None:
        name, equals, _ = word.partition("=")
        if not equals:
            raise UserError(f"env takes arguments as name=value, got {word!r:.80}")
        registry.check_arguments(task, [name.partition(".")[0][:80]])
        if not _may_set(task, word):
            raise UserError(
                f"the page may not set {word!r:.80}: it chooses numbers, true, false and listed names; paths, programs "
                f"and partners are named on the command line: lmrl web {task} --env {name[:40]}=..."
            )


def _may_set(task: str, word: str) -> bool:
    """Whether a page may give that argument, ``name=value``, by itself."""
    name, equals, text = word.partition("=")
    return bool(equals) and registry.may_choose(task, name, _value(text))


def _told(task: str) -> dict[str, Any]:
    """Return the information of a task that the page shows before the first move."""
    guide = registry.guide(task)
    return {"rules": guide.rules, "action": f"{guide.action} {guide.page}".strip(), "example": [*guide.example]}


def _value(text: str) -> Any:
    """A number, true, false, null, or the text; nothing that needs a parser."""
    if text in _PLAIN:
        return _PLAIN[text]
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text
