"""What the house looks like in words. The sentences about rooms and furniture follow from a seed and stay the same."""

from collections.abc import Sequence
from functools import lru_cache
from random import Random

from lmrl.envs.house import CONTAINERS, FURNITURE, GOAL, Change, State, commands

__all__ = ["OBJECTIVE", "carried", "described", "refusal", "told"]

# As published, word for word.
OBJECTIVE = f"Your objective is to put the {GOAL} on the table in the living room into the fridge in the kitchen."

_ROOM = (
    "You are in the {room}.",
    "You step into the {room}. It looks like any other.",
    "This is the {room}, a plain one.",
    "Here you are, in the {room}.",
    "You have come to the {room}.",
)
_TABLE = (
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
    if lying := state.at(state.floor()):
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
    piece, place = FURNITURE[state.room], state.here()
    assert place is not None
    opened = piece in state.open
    word = "an open" if opened else "a closed"
    sentence = chance.choice(_CONTAINER if piece in CONTAINERS else _TABLE)
    sentence = sentence.format(piece=piece, state=word, State=word.capitalize())
    content, nothing = chance.choice(_CONTENT), chance.choice(_NOTHING)
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
