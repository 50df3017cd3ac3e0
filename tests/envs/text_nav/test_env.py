import pytest

import lmrl
from lmrl.envs.text_nav.env import TextNav
from lmrl.envs.text_nav.house import EXITS, FURNITURE, GOAL, ROOMS, State, begin, commands, obey
from lmrl.envs.text_nav.players import best_command
from lmrl.errors import UserError
from tests.helpers.cases import cases

OPTIMAL = {
    "living room": 6,
    "bedroom": 7,
    "office": 7,
    "dining room": 7,
    "bathroom": 8,
    "kitchen": 8,
    "garden": 9,
    "backyard": 9,
}
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}


def after(room: str, *orders: str) -> State:
    state = begin(room)
    for order in orders:
        change = obey(state, order)
        assert change is not None, (order, commands(state))
        state = change.state
    return state


def test_doors_lead_both_ways_and_no_two_rooms_have_the_same() -> None:
    for room, doors in EXITS.items():
        assert all(EXITS[other][BACK[direction]] == room for direction, other in doors.items())
    assert len({tuple(doors) for doors in EXITS.values()}) == 8


@cases("room", ROOMS)
def test_the_shortest_way_to_win(room: str) -> None:
    env = lmrl.make("text_nav_fo")
    _, info = env.reset(seed=0, options={"room": room})
    steps = 0
    done = False
    while not done:
        _, reward, done, cut, info = env.step(f"{best_command(info['world'])}\n")
        steps += 1
        assert not cut and reward == float(done)
    assert (steps, info["success"]) == (OPTIMAL[room], True)


def test_the_mean_of_the_shortest_ways() -> None:
    assert sum(OPTIMAL.values()) / 8 == 7.625


def test_what_can_be_done_by_hand() -> None:
    assert commands(begin("kitchen")) == ("go east", "go north", "go west", "open fridge")
    assert commands(after("kitchen", "open fridge")) == (
        "close fridge", "go east", "go north", "go west", "take fruit from fridge"
    )  # fmt: skip
    assert commands(after("kitchen", "open fridge", "take fruit from fridge")) == (
        "close fridge", "drop fruit", "eat fruit", "go east", "go north", "go west", "insert fruit into fridge"
    )  # fmt: skip
    assert commands(after("bedroom", "take bowl from table", "go south", "drop bowl")) == (
        "go north", "go west", "take bowl"
    )  # fmt: skip
    assert commands(after("office", "open chest", "take utensils from chest", "close chest")) == (
        "drop utensils", "go east", "go north", "open chest"
    )  # fmt: skip


def test_what_was_moved_last_comes_first() -> None:
    state = after("dining room", "take plate from table", "take coffee cup from table")
    assert state.held() == ["coffee cup", "plate"]
    state = after("dining room", "take plate from table", "put plate on table")
    assert state.at("table in the dining room") == ["plate", "coffee cup"]


def test_won_only_behind_a_closed_door() -> None:
    state = after("living room", "take stale food from table", "go west", "go west", "open fridge")
    inside = obey(state, "insert stale food into fridge")
    assert inside is not None and not inside.state.won() and not inside.state.lost()
    closed = obey(inside.state, "close fridge")
    assert closed is not None and closed.state.won()


def test_other_food_does_not_count() -> None:
    state = after("living room", "take fresh food from table", "eat fresh food", "take stale food from table")
    assert not state.lost() and not state.won()
    eaten = obey(state, "eat stale food")
    assert eaten is not None and eaten.state.lost() and best_command(eaten.state) is None
    assert obey(state, "eat bowl") is None


def play(env: TextNav, room: str, *orders: str) -> list[tuple[str, float, bool, bool, bool]]:
    env.reset(seed=0, options={"room": room})
    answers = [env.step(order) for order in orders]
    return [(text, reward, done, cut, info["illegal"]) for text, reward, done, cut, info in answers]


@cases(
    ("order", "answer"),
    [
        ("sing\n", "That's not a verb I recognise."),
        ("", "That's not a verb I recognise."),
        ("go north\n", "You can't go that way."),
        ("go up\n", "You can't go that way."),
        ("go home\n", "You can't see any such thing."),
        ("take moon\n", "You can't see any such thing."),
        ("open chest\n", "You can't see any such thing."),
        ("Go east\n", "That's not a verb I recognise."),
    ],
)
def test_what_is_not_understood(order: str, answer: str) -> None:
    env = lmrl.make("text_nav_po")
    (found,) = play(env, "bedroom", order)
    assert found == (
        f"{answer}\n\nAdmissible commands: go south, go west, take bowl from table\n", 0.0, False, False, True
    )  # fmt: skip


def test_the_clock_cuts_the_fifteenth_command_but_not_a_win_with_it() -> None:
    env = lmrl.make("text_nav_fo")
    walk = ["go east", "go west"] * 7
    assert [answer[2:4] for answer in play(env, "office", *walk, "go east")][-2:] == [(False, False), (False, True)]
    win = ["take stale food from table", "go west", "go west", "open fridge", "insert stale food into fridge"]
    waste = ["go east", "go west"] * 4 + ["go east"]
    found = play(env, "bedroom", "go west", *win[:1], *(["go east", "go west"] * 4), *win[1:], "close fridge")
    assert len(found) == 15 and found[-1][1:4] == (1.0, True, False)
    assert len(waste) == 9  # one more would have been too late


def test_the_room_is_named_only_where_it_is_fully_observed() -> None:
    full = lmrl.make("text_nav_fo")
    partial = lmrl.make("text_nav_po")
    for room in ROOMS:
        named, bare = (env.reset(seed=0, options={"room": room})[0] for env in (full, partial))
        parts = named.split("\n\n")
        assert room in parts[1]
        # otherwise the same, sentence for sentence
        assert "\n\n".join([parts[0], *parts[2:]]) == bare
        assert ("carrying" in full.step("go x\n")[0], "carrying" in partial.step("go x\n")[0]) == (True, False)


def test_the_truly_partial_variant_tells_no_commands() -> None:
    env = lmrl.make("text_nav_po", show_commands=False)
    texts = [env.reset(seed=0, options={"room": "bedroom"})[0], env.step("take bowl from table")[0]]
    assert texts[1] == "You take the bowl from the table.\n"
    assert all("Admissible" not in text and text.endswith("\n") for text in texts)


def test_prose_follows_from_its_seed_alone() -> None:
    def texts(seed: int) -> list[str]:
        return [TextNav(prose_seed=seed).reset(seed=s, options={"room": room})[0] for s in (0, 1) for room in ROOMS]

    assert texts(3)[:8] == texts(3)[8:]
    assert len({tuple(texts(seed)) for seed in range(10)}) == 10


def test_furniture_in_words() -> None:
    env = TextNav(observe="partial")
    (opened, _, emptied, shut) = play(
        env, "office", "open chest\n", "take utensils from chest\n", "close chest\n", "open chest\n"
    )
    assert opened[0].startswith("You open the chest, revealing an utensils.\n")
    assert emptied[0].startswith("You close the chest.\n") and shut[0].startswith("You open the chest.\n")
    text = play(env, "bedroom", "take bowl from table", "go south", "drop bowl", "go north", "go south")[-1][0]
    assert "There is a bowl on the floor." in text
    assert set(FURNITURE.values()) == {"table", "fridge", "chest"} and GOAL == "stale food"


def test_wrong_arguments() -> None:
    with pytest.raises(UserError, match="unknown observe 'all'; known: full, partial"):
        TextNav(observe="all")
    with pytest.raises(UserError, match="max_steps must be at least 1, got 0"):
        TextNav(max_steps=0)
    with pytest.raises(UserError, match="unknown room 'attic'; known: backyard, bathroom"):
        TextNav().reset(options={"room": "attic"})
