"""The house of Text-Nav: rooms, furniture, the effects of commands, and the sentences that describe it.

Source: LMRL-Gym, section 4 and appendix C.2, and the rules of the text-adventure engine that it uses.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from types import MappingProxyType
from typing import NamedTuple

__all__ = [
    "CONTAINERS",
    "EXITS",
    "FOOD",
    "FURNITURE",
    "GOAL",
    "OBJECTIVE",
    "ROOMS",
    "Change",
    "State",
    "begin",
    "carried",
    "commands",
    "described",
    "obey",
    "refusal",
    "told",
]  # fmt: skip

EXITS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "bedroom": {"south": "bathroom", "west": "living room"},
        "living room": {"east": "bedroom", "south": "office", "west": "dining room"},
        "dining room": {"east": "living room", "west": "kitchen"},
        "kitchen": {"east": "dining room", "north": "garden", "west": "backyard"},
        "garden": {"south": "kitchen"},
        "backyard": {"east": "kitchen"},
        "office": {"east": "bathroom", "north": "living room"},
        "bathroom": {"north": "bedroom", "west": "office"},
    }
)
"""From room and direction (in the order of the alphabet) to the next room."""
ROOMS = tuple(EXITS)
FURNITURE: Mapping[str, str] = MappingProxyType(
    {"bedroom": "table", "living room": "table", "dining room": "table", "kitchen": "fridge", "office": "chest"}
)
"""The piece of furniture in a room; there is at most one."""
CONTAINERS = ("chest", "fridge")
"""Furniture that opens and closes."""
FOOD = ("stale food", "fresh food", "fruit")
GOAL = "stale food"
"""The thing that belongs into the fridge."""

_TABLE = "table in the "
_FLOOR = "floor of the "
_HANDS = "hands"


class State(NamedTuple):
    """The state of the world."""

    room: str
    """The room of the player."""
    open: tuple[str, ...]
    """The containers that are open, in the order of the alphabet."""
    things: tuple[tuple[str, str], ...]
    """Each thing with its place (``hands``, ``fridge``, ``table in the bedroom``, ``floor of the office``). The thing
    that was moved last comes first, and eaten things are missing."""

    def at(self, place: str) -> list[str]:
        """Return the things at a place, the newest first."""
        return [thing for thing, where in self.things if where == place]

    def here(self) -> str | None:
        """Return the place on or in the furniture of this room, or None if there is no furniture."""
        piece = FURNITURE.get(self.room)
        return _TABLE + self.room if piece == "table" else piece

    def floor(self) -> str:
        """Return the place on the floor of this room."""
        return _FLOOR + self.room

    def held(self) -> list[str]:
        """Return the items that the player carries, the newest first."""
        return self.at(_HANDS)

    def won(self) -> bool:
        """Return whether the stale food is in the closed fridge."""
        return (GOAL, "fridge") in self.things and "fridge" not in self.open

    def lost(self) -> bool:
        """Return whether the stale food was eaten."""
        return all(thing != GOAL for thing, _ in self.things)


class Change(NamedTuple):
    """The effect of a command."""

    state: State
    words: tuple[str, ...]
    """The event: ``("take", thing, furniture)``, ``("pick up", thing)``, ``("go", room)`` and so on."""


# Things and their places at the start.
_THINGS = (
    ("bowl", _TABLE + "bedroom"),
    ("stale food", _TABLE + "living room"),
    ("fresh food", _TABLE + "living room"),
    ("coffee cup", _TABLE + "dining room"),
    ("plate", _TABLE + "dining room"),
    ("fruit", "fridge"),
    ("utensils", "chest"),
)


def begin(room: str) -> State:
    """Return the state at the start of a game that begins in that room."""
    return State(room, (), _THINGS)


def commands(state: State) -> tuple[str, ...]:
    """Return the admissible commands, in the order of the alphabet."""
    return tuple(_changes(state))


def obey(state: State, command: str) -> Change | None:
    """Return the effect of an admissible command, or None for any other text."""
    return _changes(state).get(command)


@lru_cache(maxsize=1 << 15)
def _changes(state: State) -> dict[str, Change]:
    """Return the effects of all admissible commands, in the order of the alphabet."""
    changes: dict[str, Change] = {}
    for direction, room in EXITS[state.room].items():
        changes[f"go {direction}"] = Change(state._replace(room=room), ("go", room))
    piece = FURNITURE.get(state.room)
    if piece in CONTAINERS:
        if piece in state.open:
            closed = tuple(name for name in state.open if name != piece)
            changes[f"close {piece}"] = Change(state._replace(open=closed), ("close", piece))
        else:
            opened = tuple(sorted((*state.open, piece)))
            changes[f"open {piece}"] = Change(state._replace(open=opened), ("open", piece))
    # The furniture, where the player can reach what is on or in it.
    reachable = piece if piece not in CONTAINERS or piece in state.open else None
    place = state.here()
    if reachable is not None and place is not None:
        for thing in state.at(place):
            changes[f"take {thing} from {reachable}"] = _moved(state, thing, _HANDS, "take", reachable)
    for thing in state.at(state.floor()):
        changes[f"take {thing}"] = _moved(state, thing, _HANDS, "pick up")
    for thing in state.held():
        changes[f"drop {thing}"] = _moved(state, thing, state.floor(), "drop")
        if thing in FOOD:
            changes[f"eat {thing}"] = Change(state._replace(things=_without(state, thing)), ("eat", thing))
        if reachable is not None and place is not None:
            verb, preposition = ("insert", "into") if reachable in CONTAINERS else ("put", "on")
            changes[f"{verb} {thing} {preposition} {reachable}"] = _moved(state, thing, place, verb, reachable)
    return dict(sorted(changes.items()))


def _without(state: State, thing: str) -> tuple[tuple[str, str], ...]:
    return tuple(item for item in state.things if item[0] != thing)


def _moved(state: State, thing: str, place: str, *words: str) -> Change:
    things = ((thing, place), *_without(state, thing))  # the newest first
    return Change(state._replace(things=things), (words[0], thing, *words[1:]))


# The objective is published word for word; the sentences below are our own.
OBJECTIVE = f"Your objective is to put the {GOAL} on the table in the living room into the fridge in the kitchen."

_ROOM = (
    "You are in the {room}.",
    "You step into the {room}. It looks like any other.",
    "This is the {room}, a plain one.",
    "Here you are, in the {room}.",
    "You have come to the {room}.",
)
_TABLE_PROSE = (
    "There is a table here.",
    "You see a table. Nothing about it is special.",
    "A table stands by the wall.",
    "In the middle you notice a table. It is an ordinary one.",
)
_CONTAINER = (
    "There is {state} {piece} here.",
    "You see {state} {piece}.",
    "{State} {piece} stands in the corner.",
    "You notice {state} {piece}. What else would one expect?",
)
_EXITS = (
    "There {are} to the {where}.",
    "You can leave to the {where}.",
    "The way is free to the {where}.",
)
_NOTHING = ("There is nothing {on} it.", "It is empty.", "Nothing lies {on} it.")
_CONTENT = ("{On} the {piece} you see {things}.", "{On} the {piece} there is {things}.")

_VERBS = ("close", "drop", "eat", "go", "insert", "open", "put", "take")
_DIRECTIONS = ("down", "east", "north", "south", "up", "west")


@lru_cache(maxsize=1 << 14)
def described(state: State, seed: int, named: bool) -> str:
    """Describe the room, its furniture, its exits and its floor; the room's name only if `named`."""
    # The same room has the same sentences in every episode.
    chance = Random(f"prose {seed} {state.room}")
    # Draw in any case, so that the other sentences are the same with and without the name.
    sentence = chance.choice(_ROOM).format(room=state.room)
    parts = [sentence] if named else []
    if state.room in FURNITURE:
        parts.append(_furniture(state, chance))
    parts.append(_exits(state, chance))
    lying = state.at(state.floor())
    if lying:
        parts.append(f"There is {_list(lying)} on the floor.")
    return "\n\n".join(parts)


def carried(state: State) -> str:
    """Return the line with the carried things."""
    held = state.held()
    return f"You are carrying: {_list(held)}." if held else "You are carrying nothing."


def told(change: Change, seed: int, named: bool) -> str:
    """Return the answer to an admissible command."""
    verb, *names = change.words
    if verb == "go":
        return described(change.state, seed, named)
    if verb == "open":
        inside = change.state.at(names[0])
        return f"You open the {names[0]}{f', revealing {_list(inside)}' if inside else ''}."
    return _ANSWERS[verb].format(*names)


_ANSWERS = {
    "close": "You close the {}.",
    "take": "You take the {} from the {}.",
    "pick up": "You pick up the {} from the ground.",
    "drop": "You drop the {} on the ground.",
    "put": "You put the {} on the {}.",
    "insert": "You put the {} into the {}.",
    "eat": "You eat the {}. Not bad.",
}


def refusal(state: State, command: str) -> str:
    """Return the answer to any other text, as the parser of the original engine gives it."""
    verb, _, rest = command.partition(" ")
    if verb not in _VERBS:
        return "That's not a verb I recognise."
    if verb == "go" and rest in _DIRECTIONS:
        return "You can't go that way."
    # The thing is here, but this verb does not fit.
    if f"take {rest}" in commands(state) or (verb in ("insert", "put", "eat", "drop") and rest in state.held()):
        return "That can't be done here."
    return "You can't see any such thing."


def _furniture(state: State, chance: Random) -> str:
    piece = FURNITURE[state.room]
    place = state.here()
    assert place is not None
    opened = piece in state.open
    word = "an open" if opened else "a closed"
    sentence = chance.choice(_CONTAINER if piece in CONTAINERS else _TABLE_PROSE)
    sentence = sentence.format(piece=piece, state=word, State=word.capitalize())
    # Draw both in any case, so that later draws do not depend on the content.
    content = chance.choice(_CONTENT)
    nothing = chance.choice(_NOTHING)
    if piece in CONTAINERS and not opened:
        return sentence
    on = "in" if piece in CONTAINERS else "on"
    things = state.at(place)
    filled = content.format(On=on.capitalize(), piece=piece, things=_list(things)) if things else nothing.format(on=on)
    return f"{sentence} {filled}"


def _exits(state: State, chance: Random) -> str:
    directions = list(EXITS[state.room])  # in the order of the alphabet
    are = "is an exit" if len(directions) == 1 else "are exits"
    return chance.choice(_EXITS).format(are=are, where=_and(directions))


def _list(things: Sequence[str]) -> str:
    return _and([f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}" for thing in things])


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
