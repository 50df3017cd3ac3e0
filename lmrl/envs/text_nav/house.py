"""The house of Text-Nav: rooms, furniture, what commands do, and the sentences that describe it.

Source: LMRL-Gym, section 4 and appendix C.2, and the rules of the text-adventure engine that it uses.
"""

from collections.abc import Iterator, Mapping, Sequence
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
]

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
"""What stands in a room; there is at most one piece."""
CONTAINERS = ("chest", "fridge")
"""Furniture that opens and closes."""
FOOD = ("stale food", "fresh food", "fruit")
GOAL = "stale food"
"""What belongs into the fridge."""

_TABLE = "table in the "
_FLOOR = "floor of the "
_HANDS = "hands"


class State(NamedTuple):
    """Where everything is."""

    room: str
    """Where the player is."""
    open: tuple[str, ...]
    """The containers that are open, in the order of the alphabet."""
    things: tuple[tuple[str, str], ...]
    """Each thing with its place (``hands``, ``fridge``, ``table in the bedroom``, ``floor of the office``); what was
    moved last comes first, and what was eaten is gone."""

    def at(self, place: str) -> list[str]:
        """The things at a place, the newest first."""
        return [thing for thing, where in self.things if where == place]

    def here(self) -> str | None:
        """The place on or in the furniture of this room."""
        piece = FURNITURE.get(self.room)
        return _TABLE + self.room if piece == "table" else piece

    def floor(self) -> str:
        """The place on the floor of this room."""
        return _FLOOR + self.room

    def held(self) -> list[str]:
        """Return the items that the player carries, the newest first."""
        return self.at(_HANDS)

    def won(self) -> bool:
        """Whether the stale food is in the closed fridge."""
        return (GOAL, "fridge") in self.things and "fridge" not in self.open

    def lost(self) -> bool:
        """Whether the stale food is no more."""
        return all(thing != GOAL for thing, _ in self.things)


class Change(NamedTuple):
    """The effect of a command."""

    state: State
    words: tuple[str, ...]
    """What happened: ``("take", thing, furniture)``, ``("pick up", thing)``, ``("go", room)`` and so on."""


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
    """The world at the start of a game that begins in that room."""
    return State(room, (), _THINGS)


def commands(state: State) -> tuple[str, ...]:
    """The admissible commands, in the order of the alphabet."""
    return tuple(_changes(state))


def obey(state: State, command: str) -> Change | None:
    """Return the effect of an admissible command, or None for any other text."""
    return _changes(state).get(command)


@lru_cache(maxsize=1 << 15)
def _changes(state: State) -> dict[str, Change]:
    return dict(sorted([*_moves(state), *_handling(state), *_carrying(state)]))


def _moves(state: State) -> Iterator[tuple[str, Change]]:
    for direction, room in EXITS[state.room].items():
        yield f"go {direction}", Change(state._replace(room=room), ("go", room))
    piece = FURNITURE.get(state.room)
    if piece in CONTAINERS:
        verb = "close" if piece in state.open else "open"
        others = tuple(name for name in state.open if name != piece)
        opened = others if verb == "close" else tuple(sorted((*others, piece)))
        yield f"{verb} {piece}", Change(state._replace(open=opened), (verb, piece))


def _handling(state: State) -> Iterator[tuple[str, Change]]:
    """Taking what lies here."""
    piece = FURNITURE.get(state.room)
    place = state.here()
    if place is not None and piece is not None and _reachable(state):
        for thing in state.at(place):
            yield f"take {thing} from {piece}", _moved(state, thing, _HANDS, "take", piece)
    for thing in state.at(state.floor()):
        yield f"take {thing}", _moved(state, thing, _HANDS, "pick up")


def _carrying(state: State) -> Iterator[tuple[str, Change]]:
    """Return the commands that are possible with the carried items."""
    piece = FURNITURE.get(state.room)
    place = state.here()
    for thing in state.held():
        yield f"drop {thing}", _moved(state, thing, state.floor(), "drop")
        if thing in FOOD:
            left = tuple(item for item in state.things if item[0] != thing)
            yield f"eat {thing}", Change(state._replace(things=left), ("eat", thing))
        if place is not None and piece is not None and _reachable(state):
            verb, preposition = ("insert", "into") if piece in CONTAINERS else ("put", "on")
            yield f"{verb} {thing} {preposition} {piece}", _moved(state, thing, place, verb, piece)


def _reachable(state: State) -> bool:
    piece = FURNITURE.get(state.room)
    return piece not in CONTAINERS or piece in state.open


def _moved(state: State, thing: str, place: str, *words: str) -> Change:
    others = tuple(item for item in state.things if item[0] != thing)
    return Change(state._replace(things=((thing, place), *others)), (words[0], thing, *words[1:]))


# As published, word for word.
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
    """The room, its furniture, its exits and its floor; the room's name only if `named`."""
    chance = Random(f"prose {seed} {state.room}")
    parts = [chance.choice(_ROOM).format(room=state.room)] if named else []
    if not named:
        chance.choice(_ROOM)  # the other sentences are the same with and without the name
    if state.room in FURNITURE:
        parts.append(_furniture(state, chance))
    parts.append(_exits(state, chance))
    lying = state.at(state.floor())
    if lying:
        parts.append(f"There is {_list(lying)} on the floor.")
    return "\n\n".join(parts)


def carried(state: State) -> str:
    """The inventory."""
    held = state.held()
    return f"You are carrying: {_list(held)}." if held else "You are carrying nothing."


def told(change: Change, seed: int, named: bool) -> str:
    """The answer to an admissible command."""
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
    """The answer to anything else."""
    verb, _, rest = command.partition(" ")
    if verb not in _VERBS:
        return "That's not a verb I recognise."
    if verb == "go" and rest in _DIRECTIONS:
        return "You can't go that way."
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
    content = chance.choice(_CONTENT)
    nothing = chance.choice(_NOTHING)
    if piece in CONTAINERS and not opened:
        return sentence
    on = "in" if piece in CONTAINERS else "on"
    things = state.at(place)
    filled = content.format(On=on.capitalize(), piece=piece, things=_list(things)) if things else nothing.format(on=on)
    return f"{sentence} {filled}"


def _exits(state: State, chance: Random) -> str:
    directions = [command.removeprefix("go ") for command in commands(state) if command.startswith("go ")]
    are = "is an exit" if len(directions) == 1 else "are exits"
    return chance.choice(_EXITS).format(are=are, where=_and(directions))


def _list(things: Sequence[str]) -> str:
    return _and([f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}" for thing in things])


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
