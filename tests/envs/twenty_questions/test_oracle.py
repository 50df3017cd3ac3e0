import time
from collections import Counter
from pathlib import Path

import pytest

from lmrl.envs.twenty_questions.env import ScriptedOracle, scripted_oracle
from lmrl.envs.twenty_questions.meaning import meaning
from lmrl.envs.twenty_questions.objects import everything, place_of, properties, things
from lmrl.envs.twenty_questions.wording import _index
from lmrl.errors import UserError
from lmrl.types import Partner, PartnerRequest
from tests.helpers.cases import cases

LABELLED = Path(__file__).with_name("labelled.tsv")
SIZES = [10, 10, 10, 10, 11, 10, 10, 10, 14, 10, 7, 10, 11, 5, 9, 5, 6]
YES = {item.name: item.yes for item in properties()}


def labelled() -> list[tuple[str, str, str]]:
    rows = [line.split("\t") for line in LABELLED.read_text().splitlines()[1:]]
    return [(word, question, answer) for word, question, answer in rows]


def request(word: str, *heard: str, seed: int = 0) -> PartnerRequest:
    return PartnerRequest("twenty_questions", {"word": word}, heard, ("No.\n",) * (len(heard) - 1), seed)


def answer(word: str, question: str) -> str:
    return ScriptedOracle().reply([request(word, question)])[0]


def plain(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


def test_the_objects_are_the_published_ones() -> None:
    assert len(things()) == 158
    assert list(Counter(thing.category for thing in things()).values()) == SIZES
    assert sum(len(thing.variants) > 1 for thing in things()) == 28
    assert [things()[place].name for place in (0, 31, 157)] == ["Basketball", "Truck", "Drill"]
    assert things()[place_of()["Pants"]].variants == ("Pants", "Pant", "Pair of pants")


def test_the_table_is_wide_and_asked_in_many_ways() -> None:
    assert len(properties()) >= 80  # every one is true or false of every object
    asked = [plain(text) for item in properties() for text in item.phrasings]
    assert len(asked) == len(set(asked))
    for item in properties():
        assert len(item.phrasings) >= 5, item.name
        assert 0 < item.yes < everything(), item.name
        assert all(len(text.split()) <= 10 and text.isascii() and text[-1] == "?" for text in item.phrasings)


def test_every_phrasing_is_understood() -> None:
    wrong = [text for item in properties() for text in item.phrasings if meaning(text) != item.yes]
    assert not wrong


@cases(
    ("less", "more"),
    [
        ("animal", "alive"), ("plant", "alive"), ("fruit", "edible"), ("vegetable", "edible"), ("big_cat", "feline"),
        ("feline", "predator"), ("predator", "mammal"), ("pet", "animal"), ("woodwind", "wind_instrument"),
        ("wind_instrument", "instrument"), ("string_instrument", "instrument"), ("footwear", "worn"),
        ("tiny", "small"), ("bigger_car", "bigger_person"), ("bigger_person", "bigger_breadbox"),
        ("water_body", "nature_place"), ("salt_water", "water_body"), ("internet", "electronic"),
        ("citrus", "fruit"), ("melon", "fruit"), ("hand_tool", "tool"), ("four_wheels", "wheels"),
    ],
)  # fmt: skip
def test_what_follows_from_what(less: str, more: str) -> None:
    assert YES[less] & ~YES[more] == 0


@cases(
    ("one", "other"),
    [("alive", "man_made"), ("edible", "worn"), ("pocket", "bigger_person"), ("cheap", "expensive"),
     ("light", "heavy"), ("big", "small"), ("fruit", "vegetable"), ("herbivore", "feline"),
     ("salt_water", "fresh_water")],
)  # fmt: skip
def test_what_excludes_what(one: str, other: str) -> None:
    assert YES[one] & YES[other] == 0


def test_the_oracle_is_right_about_questions_that_are_not_in_the_table() -> None:
    rows = labelled()
    known = {plain(text) for item in properties() for text in item.phrasings}
    assert len(rows) >= 400
    assert not [question for _, question, _ in rows if plain(question) in known]
    right = sum(answer(word, question).lower().startswith(label) for word, question, label in rows)
    assert right / len(rows) >= 0.97
    assert 0.4 < sum(label == "yes" for *_, label in rows) / len(rows) < 0.6


@cases(
    ("question", "yes", "no"),
    [
        ("Is it not alive?", "Rock Drill", "Cat Tree"),
        ("Isn't it alive?", "Cat Tree", "Rock Drill"),
        ("Does it not have wheels?", "Boat Cat", "Car Bus"),
        ("Is it without wheels?", "Boat Cat", "Car Bus"),
        ("Is it an animal or a fruit?", "Cat Apple", "Carrot Drill"),
        ("Is it red, yellow or green?", "Banana Spinach Tomato", "Elephant Ocean"),
        ("Is it big and alive?", "Horse Tree", "Rabbit Bus"),
        ("Is it a green vegetable?", "Spinach Peas", "Carrot Cactus"),
        ("Is it metal but not electric?", "Hammer Fork", "Microwave Shirt"),
        ("Is it a tool used for cutting?", "Saw Scissors", "Rake Blender"),
        ("Is it bigger than a dog?", "Horse Bus", "Ring Rabbit"),
        ("Is it smaller than a person?", "Cat Pen", "Elephant Train"),
        ("Does it weigh more than 10 pounds?", "Watermelon Bed", "Pen Apple"),
        ("Would it fit in a backpack?", "Camera Pen", "Bed Truck"),
        ("Does it cost less than $5?", "Banana Pencil", "Car Piano"),
        ("Does it cost more than $1,000?", "Car Piano", "Apple Pen"),
        ("Does it weigh more than 1,000 pounds?", "Truck Elephant", "Pen Bed"),
        ("Does it cost more than $1,000 or weigh more than 1,000 kg?", "Piano Elephant", "Apple Pen"),
        ("Does it weigh more than 1.5 pounds?", "Watermelon Pineapple", "Apple Pen"),
        ("Does it cost more than $1.50?", "Pen Car", "Banana Eraser"),
        ("Is it under 5 pounds?", "Apple Pen", "Bed Car"),
        ("Is it over six feet long?", "Car Train", "Pen Apple"),
        ("Does it weigh more than a car?", "Elephant Train", "Pen Bed"),
        ("Is it more expensive than a car?", "Airplane", "Pen Bed"),
        ("Does it take up more space than a person?", "Car Horse", "Pen Apple"),
        ("Is it worn under a shirt?", "", "Apple Pen"),
        ("Is it more for a woman?", "", "Elephant Train"),
        ("Is it less dangerous than a lion?", "", "Pen Apple"),
        ("Is it more dangerous than a lion?", "", "Train Piano"),
        ("Is it a sofa?", "Couch", "Chair Bed"),
        ("Is it a kind of musical instrument?", "Harp Drum", "Whisk Cat"),
    ],
)
def test_how_questions_are_read(question: str, yes: str, no: str) -> None:
    assert [answer(word, question) for word in yes.split()] == ["Yes.\n"] * len(yes.split())
    assert [answer(word, question) for word in no.split()] == ["No.\n"] * len(no.split())


@cases(
    "question",
    ["", "?", "Is it a giraffe?", "Is it a country?", "What is it?", "Tell me the word", "qwertz uiop?", "нет?",
     "Is it invisible?", "Is it an animal? " * 50],
)  # fmt: skip
def test_what_is_not_understood_is_no_for_all(question: str) -> None:
    assert meaning(question) == 0


def test_the_order_of_words_does_not_change_their_weight() -> None:
    index = _index()
    for known, _ in index.questions:
        assert index.weight(sorted(known)) == index.weight(sorted(known, reverse=True))


def test_spaces_at_the_ends_do_not_count() -> None:
    assert meaning(" " * 300 + "Is it alive?\n") == meaning("Is it alive?")
    assert meaning("Is it alive" + "?" * 300) == 0


def test_long_lists_are_understood_and_longer_ones_are_not() -> None:
    colors = "red yellow green blue brown gray white black".split()
    assert meaning("Is it " + " or ".join(colors) + "?") >> place_of()["Banana"] & 1
    assert meaning("Is it " + " or ".join(colors * 2) + "?") == 0


def test_hostile_questions_take_no_time() -> None:
    meaning("Is it alive?")
    began = time.process_time()
    for text in ("or " * 90, "used " * 50, "is it a cat or " * 15, "and not or but " * 15, "used or and big " * 12):
        meaning(text)
    assert time.process_time() - began < 2


def test_noise_turns_answers_round_and_follows_from_the_seed() -> None:
    requests = [request("Cat", "Is it alive?\n", seed=seed) for seed in range(1_000)]
    answers = scripted_oracle(0.2).reply(requests)
    assert answers == ScriptedOracle(0.2).reply(requests)
    assert 150 < answers.count("No.\n") < 250
    again = scripted_oracle(0.2).reply([request("Cat", "x?", "Is it alive?\n", seed=seed) for seed in range(1_000)])
    assert again != answers  # another turn, another chance
    assert set(scripted_oracle(1.0).reply(requests)) == {"No.\n"}


def test_one_oracle_for_all_who_ask_for_the_same() -> None:
    assert scripted_oracle(0.1) is scripted_oracle(0.1)
    assert isinstance(scripted_oracle(), Partner)
    assert scripted_oracle(0.1).describe() == {"name": "scripted", "version": 2, "noise": 0.1}
    with pytest.raises(UserError, match="noise must be from 0 to 1, got 2"):
        ScriptedOracle(2)
