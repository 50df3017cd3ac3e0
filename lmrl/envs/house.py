"""The house of Text-Nav: eight rooms, what stands and lies in them, and what commands do. No prose here.

Source: LMRL-Gym, section 4 and appendix C.2, and the rules of the text-adventure engine that it uses.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["CONTAINERS", "EXITS", "FOOD", "FURNITURE", "GOAL", "ROOMS", "Change", "State", "begin", "commands", "obey"]

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

_TABLE, _FLOOR, _HANDS = "table in the ", "floor of the ", "hands"


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
        """What the player carries, the newest first."""
        return self.at(_HANDS)

    def won(self) -> bool:
        """Whether the stale food is in the closed fridge."""
        return (GOAL, "fridge") in self.things and "fridge" not in self.open

    def lost(self) -> bool:
        """Whether the stale food is no more."""
        return all(thing != GOAL for thing, _ in self.things)


class Change(NamedTuple):
    """What a command does."""

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
    """What an admissible command does; None for any other text."""
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
    piece, place = FURNITURE.get(state.room), state.here()
    if place is not None and piece is not None and _reachable(state):
        for thing in state.at(place):
            yield f"take {thing} from {piece}", _moved(state, thing, _HANDS, "take", piece)
    for thing in state.at(state.floor()):
        yield f"take {thing}", _moved(state, thing, _HANDS, "pick up")


def _carrying(state: State) -> Iterator[tuple[str, Change]]:
    """What can be done with what is carried."""
    piece, place = FURNITURE.get(state.room), state.here()
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
