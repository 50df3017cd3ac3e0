"""The house agrees with the real engine: the same commands, scores, endings and places of things in random play."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lmrl
from lmrl.envs.text_nav.house import CONTAINERS, EXITS, FOOD, FURNITURE, GOAL, ROOMS, begin, carried
from lmrl.envs.text_nav.players import best_command

textworld = pytest.importorskip("textworld", reason="needs TextWorld: pip install 'lmrl[textnav]'")
from textworld.generator.game import Event, Quest  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the engine and of its imports
EPISODES = 200


def build(start: str, path: Path) -> str:
    """Compile the house with the engine's own tools."""
    options = textworld.GameOptions()
    options.seeds, options.path, options.force_recompile = 1, str(path), True
    options.grammar.include_adj = False
    maker = textworld.GameMaker(options)
    rooms = {name: maker.new_room(name) for name in ROOMS}
    doors = set()
    for room, exits in EXITS.items():
        for direction, other in exits.items():
            if (other, room) not in doors:
                back = {"north": "south", "south": "north", "east": "west", "west": "east"}[direction]
                maker.connect(getattr(rooms[room], direction), getattr(rooms[other], back))
                doors.add((room, other))
    places: dict[str, Any] = {}
    for room, piece in FURNITURE.items():
        thing = maker.new(type="c" if piece in CONTAINERS else "s", name=piece)
        rooms[room].add(thing)
        if piece in CONTAINERS:
            maker.add_fact("closed", thing)
        places[piece if piece in CONTAINERS else f"{piece} in the {room}"] = thing
    things = {name: maker.new(type="f" if name in FOOD else "o", name=name) for name, _ in begin(start).things}
    for name, place in begin(start).things:
        places[place].add(things[name])
    maker.set_player(rooms[start])
    fridge = places["fridge"]
    food = things[GOAL]
    won = Event(conditions={maker.new_fact("in", food, fridge), maker.new_fact("closed", fridge)})
    lost = Event(conditions={maker.new_fact("eaten", food)})
    maker.quests = [Quest(win_events=[won], fail_events=[lost], reward=1)]
    return str(textworld.generator.compile_game(maker.build(), options))


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    wanted = textworld.EnvInfos(admissible_commands=True, feedback=True, inventory=True, facts=True, location=True)
    folder = tmp_path_factory.mktemp("house")
    found = {room: textworld.start(build(room, folder / f"{index}.z8"), wanted) for index, room in enumerate(ROOMS)}
    yield found
    for engine in found.values():
        engine.close()


def admissible(state: Any) -> list[str]:
    return [word for word in state.admissible_commands if not re.search("examine|look|inventory", word)]


def facts(state: Any) -> set[tuple[str, ...]]:
    """Return where things are and what is open, according to the engine."""
    names = ("in", "on", "at", "open", "closed")
    return {
        (fact.name, *(str(argument.name) for argument in fact.arguments))
        for fact in state.facts
        if fact.name in names and not (fact.name == "at" and fact.arguments[0].name in FURNITURE.values())
    }


def expected(world: Any) -> set[tuple[str, ...]]:
    """Return the same facts according to the house."""
    found = {("at", "P", world.room)}
    for piece in CONTAINERS:
        found.add(("open" if piece in world.open else "closed", piece))
    for thing, place in world.things:
        if place == "hands":
            found.add(("in", thing, "I"))
        elif place in CONTAINERS:
            found.add(("in", thing, place))
        elif place.startswith("floor"):
            found.add(("at", thing, place.removeprefix("floor of the ")))
        else:
            found.add(("on", thing, "table"))
    return found


def strip(text: str) -> str:
    """Return the engine's answer without its prompt and status line."""
    return text.split("\n>")[0].strip()


@pytest.mark.nightly
def test_random_play_agrees_with_the_engine(engines: dict[str, Any]) -> None:
    env = lmrl.make("text_nav_po", max_steps=25)
    endings = []
    for seed in range(EPISODES):
        chance = random.Random(seed)
        room = ROOMS[seed % len(ROOMS)]
        _, info = env.reset(seed=seed, options={"room": room})
        state = engines[room].reset()
        over = False
        score = 0
        while True:
            world = info["world"]
            assert facts(state) == expected(world)
            if over:
                break
            orders = admissible(state)
            assert [f"{order}\n" for order in orders] == list(env.legal_actions())
            assert strip(state.inventory) == carried(world)
            best = best_command(world) if seed % 4 == 0 and chance.random() < 0.6 else None  # some should win
            order = best or chance.choice(orders)
            state, score, over = engines[room].step(order)
            text, reward, terminated, truncated, info = env.step(f"{order}\n")
            assert (reward, terminated) == (float(score), over), order
            if not order.startswith("go") and not over:
                assert strip(state.feedback) == text.split("\n\n")[0], order
            if truncated:
                break
        endings.append((over, score))
    assert endings.count((True, 0)) > 10  # some ate the food
    assert (True, 1) in endings  # some won
