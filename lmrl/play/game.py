"""A game of the page: one or two players at the same episode, an advisor, and what the page may choose."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from weakref import WeakValueDictionary

from lmrl.checkpoints.zoo import zoo_policies
from lmrl.envs import registry
from lmrl.envs.registry import policy_names
from lmrl.envs.task import Task
from lmrl.errors import UserError, unknown
from lmrl.evaluation.loading import PolicySpec, own_tasks_only
from lmrl.partners import environment, make_partner
from lmrl.play.seat import AGAIN, Seat, advise
from lmrl.policies.chat.policy import ChatPolicy
from lmrl.report.pages import rounded, shown_text
from lmrl.rollout import MakeEnv
from lmrl.types import LoadedPolicy
from lmrl.utils.configuration import env_arguments

__all__ = ["PERSON", "Game", "Offer", "Order", "listed_players", "read_moves"]

PERSON = "human"
# The type of each field of an order in the JSON that a page sends, and its name in messages.
_FORMS: Mapping[str, tuple[type, str]] = {
    "task": (str, "a text"),
    "policies": (list, "a list of texts"),
    "seed": (int, "a whole number"),
    "advisor": (str, "a text"),
    "env": (list, "a list of texts"),
}


@dataclass(frozen=True, slots=True)
class Order:
    """An order of a game. The fields are those of ``lmrl web``."""

    task: str
    policies: Sequence[str] = (PERSON,)
    """One player, or two side by side; ``human`` is the person at the page."""
    seed: int = 0
    advisor: str = ""
    """Empty: no advisor."""
    env: Sequence[str] = field(default_factory=tuple)

    @classmethod
    def read(cls, content: Any) -> "Order":
        """An order from what a page sent.

        Raises:
            UserError: it is not of the form of an order.
        """
        if not isinstance(content, dict) or set(content) != set(_FORMS):
            raise UserError(f"an order has the fields {', '.join(_FORMS)}, got {content!r:.200}")
        for name, (kind, words) in _FORMS.items():
            value: Any = content[name]
            # Not isinstance: True is an int, but no seed.
            is_kind = type(value) is kind
            if not is_kind or (kind is list and not _are_texts(value)):
                raise UserError(f"{name} must be {words}, got {value!r:.80}")
        return cls(**content)


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


_playing: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()
"""Trained modules, chat models and partners of running games. Games with the same one share its weights."""


def _key(kind: str, name: str, *settings: Any) -> tuple[Any, ...]:
    """Return the key of a chat model or partner in `_playing`; it changes with the folder that a name holds."""
    path = Path(name.partition(":")[2])
    written = path.stat().st_mtime_ns if path.name and path.exists() else 0
    return kind, name, written, json.dumps(settings, sort_keys=True, default=str)


def _loaded(
    spec: PolicySpec,
    load: Callable[..., LoadedPolicy],
    arguments: Mapping[str, Any],
    chat: Mapping[str, Any] | None,
) -> LoadedPolicy:
    if spec.kind == "chat":
        key = _key("chat", spec.name, spec.task.name, chat)
        loaded = load(arguments, chat, speaker=_playing.get(key))
        assert isinstance(loaded.policy, ChatPolicy)
        _playing[key] = loaded.policy.speaker
        return loaded
    if spec.file is None:
        return load(arguments)
    key = spec.file, spec.file.stat().st_mtime_ns
    loaded = load(arguments, module=_playing.get(key))
    if loaded.module is not None:
        _playing[key] = loaded.module
    return loaded


def _environment(task: str, arguments: Mapping[str, Any]) -> MakeEnv:
    """Return `environment`, with the partner of another running game where it has the same."""
    partner = arguments.get("partner")
    if not isinstance(partner, str | Mapping):
        return environment(task, arguments)
    name = partner if isinstance(partner, str) else str(partner.get("name", ""))
    key = _key("partner", name, task, partner)
    made = _playing.get(key) or make_partner(partner, task)
    if made is not None:
        with suppress(TypeError):  # that of a plugin may have no weak references
            _playing[key] = made
    return environment(task, {**arguments, "partner": made})


class Game:
    """One or two players at the same start, each in an environment of its own.

    Args:
        order: what is played.
        chat: settings of the chat models among the players, see `lmrl.evaluation.loading.PolicySpec.load`.

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
        make = _environment(order.task, arguments)
        self._advisor: LoadedPolicy | None = None
        self._refused: str | None = None
        self.seats: list[Seat] = []
        # A run that was trained on another task is refused here without naming an option that the page does not have.
        with own_tasks_only():
            if order.advisor:
                spec = PolicySpec.parse(order.advisor, task)
                self._advisor = _loaded(spec, spec.load_advisor, arguments, chat)
            policies: list[LoadedPolicy | None] = []
            for name in order.policies:
                spec = PolicySpec.parse(name, task)
                if spec.kind == "human":
                    policies.append(None)
                else:
                    policies.append(_loaded(spec, spec.load, arguments, chat))
        # Both seats begin with the same seed, each in its own environment.
        for place, policy in enumerate(policies):
            self.seats.append(Seat(order.task, make, order.seed, order.policies[place], policy, place, arguments))
        self.first_moves: list[str] = []
        """What a person can type first, in dialogues some of it; empty where buttons show it, or without a person."""
        for seat in self.seats:
            if seat.person and not self.actions:
                self.first_moves = [shown_text(move) for move in seat.legal()]

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
        # First all moves, which may fail, then their effects: so no seat is a turn ahead of the other.
        moves = [seat.move(typed) for seat in moving]
        for seat, move in zip(moving, moves, strict=True):
            seat.play(move)

    def check_slip(self, typed: str | None) -> None:
        """Tell a person once that an action would be wasted.

        Args:
            typed: the person's action, if there is one at the table.

        Raises:
            UserError: it would be, and it is not the one that was refused last.
        """
        refused = self._refused
        self._refused = typed
        if typed is None or typed == refused or PERSON not in self.order.policies:
            return
        slip = registry.guide(self.order.task).slip(typed, env_arguments(self.order.env))
        if slip:
            raise UserError(f"{slip} {AGAIN}")

    def replay(self, moves: Sequence[str]) -> None:
        """Play moves that somebody has played before, until they or the game end.

        Args:
            moves: what the person typed, see `read_moves`.
        """
        for move in moves:
            if all(seat.over for seat in self.seats):  # the link may have been edited
                return
            self.step(move)

    def advice(self) -> dict[str, Any]:
        """The advisor's move for the person, with V and values of its tokens; empty without an advisor or a person."""
        if self._advisor is None:
            return {}
        for seat in self.seats:
            if seat.person and not seat.over:
                request = seat.request()
                move, value, reply = advise(self._advisor.policy, request)
                readable = registry.guide(self.order.task).spelling(move).strip()
                return {
                    "turn": request.turn,
                    "name": shown_text(self.order.advisor),
                    "move": shown_text(readable),
                    "value": rounded(value, 3),
                    "words": None if value is None else seat.words_of(self._advisor, reply),
                }
        return {}

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
        may_set = all(_may_set(self.order.task, word) for word in self.order.env)
        if list(self.order.policies) != [PERSON] or not may_set:
            return ""
        moves = [action.removesuffix("\n") for action in self.seats[0].episode().actions]
        if not _may_replay(moves):
            return ""
        fields = {"task": self.order.task, "seed": str(self.order.seed), "env": self.order.env, "move": moves}
        # A lone surrogate that a person typed cannot be a part of an address.
        return urlencode(fields, doseq=True, errors="replace")


_MOST_MOVES = 500
_LONGEST_MOVE = 2_000
"""Characters."""
_MOST_TYPED = 16_000
"""Characters of all moves of a shared game."""


def read_moves(content: Any) -> list[str]:
    """The moves of a shared game from what a page sent. They are texts for the game, which answers any.

    Raises:
        UserError: it is no list of texts, or too long.
    """
    if not isinstance(content, list) or not _are_texts(content):
        raise UserError(f"moves must be a list of texts, got {content!r:.80}")
    if not _may_replay(content):
        raise UserError(
            f"a shared game has at most {_MOST_MOVES} moves of at most {_LONGEST_MOVE} characters, {_MOST_TYPED} in all"
        )
    return content


def _may_replay(moves: Sequence[str]) -> bool:
    # One request replays the whole link, so its length limits the time for which the server is busy.
    lengths = list(map(len, moves))
    return len(moves) <= _MOST_MOVES and max(lengths, default=0) <= _LONGEST_MOVE and sum(lengths) <= _MOST_TYPED


def listed_players(task: str, runs: Path) -> dict[str, list[str]]:
    """The one list of names from which a page chooses who plays a task, by the heading under which they stand.

    Args:
        task: name of the task.
        runs: folder in which the finished trainings of a task lie under its name.
    """
    trained = []
    for folder in sorted(runs.joinpath(task).glob("*")):
        # A training that has begun has none of them yet.
        if (folder / "best.ckpt").exists() or (folder / "last.ckpt").exists():
            trained.append(str(folder))
    return {"scripted players": [*policy_names(task)], "zoo": zoo_policies(task), "runs": trained}


_MAX_SEED = 2**53  # numbers of JavaScript are exact up to here
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
        # The policies that the command line named, each once.
        self._named = list(dict.fromkeys((*first.policies, first.advisor)))

    def describe(self) -> dict[str, Any]:
        """Return the options of the page, JSON-like."""
        tasks = {}
        for name, task in self.tasks().items():
            guide = registry.guide(name)
            # What the page shows before the first move.
            shown = {
                "rules": guide.rules,
                "action": f"{guide.action} {guide.page}".strip(),
                "example": [*guide.example],
            }
            tasks[name] = {"description": task.description, "guide": shown, "players": self.groups(name)}
        return {"tasks": tasks, "first": asdict(self.first)}

    def tasks(self) -> dict[str, Task]:
        """Return the tasks by name; the first one may come from outside of the package."""
        return {**registry.tasks(), self.first.task: registry.task(self.first.task)}

    def players(self, task: str) -> list[str]:
        """Return the names of the policies that may play a task, each once."""
        return list(dict.fromkeys(chain.from_iterable(self.groups(task).values())))

    def groups(self, task: str) -> dict[str, list[str]]:
        """Return the same names under headings, for a list to choose from."""
        listed = listed_players(task, self._runs)
        known = {"", PERSON, *chain.from_iterable(listed.values())}
        listed["named on the command line"] = [name for name in self._named if name not in known]
        return listed

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
        for name in (*order.policies, order.advisor or PERSON):
            if name not in players and name != PERSON:
                error = unknown("player", name[:80], [*players, PERSON])
                raise UserError(f"{error}; other runs and models are named on the command line of lmrl web")
        for word in order.env:
            # The user chose the words of the command line; all others come from the page.
            if shared or order.task != self.first.task or word not in self.first.env:
                self._check_argument(order.task, word)
        if order.seed > _MAX_SEED:
            digits = len(str(order.seed))
            # From 1e309 on it is no float.
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


def _value(text: str) -> Any:
    """A number, true, false, null, or the text; nothing that needs a parser."""
    if text in _PLAIN:
        return _PLAIN[text]
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text
