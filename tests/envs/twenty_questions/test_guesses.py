from pathlib import Path

from lmrl.envs.twenty_questions.env import guess_of
from lmrl.envs.twenty_questions.meaning import guessed, is_framed, is_guess
from lmrl.envs.twenty_questions.objects import things
from tests.helpers.cases import cases

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "tasks" / "twenty_questions.md"
VARIANTS = {thing.name: thing.variants for thing in things()}
ACCEPTED = [
    ("Is it a cat?", "Cat"),
    ("is it a CAT ??\n", "Cat"),
    ("A cat?", "Cat"),
    ("Is the object some kind of cat?", "Cat"),
    ("Are you thinking of a big cat?", "Cat"),
    ("My final guess is a cat!", "Cat"),
    ("Could it be an orange?", "Orange"),
    ("Is it a pair of pants?", "Pants"),
    ("Is it pants?", "Pants"),
    ("Is it a bottle of glue?", "Glue"),
    ("Is your word TV?", "Television"),
    ("Is it a red apple?", "Apple"),
    (" " * 300 + "Is it an apple?\n", "Apple"),
]
REFUSED = [
    ("Is it a cat or a dog?", "Dog"),
    ("Is it bigger than a car?", "Car"),
    ("Is it a toy car?", "Car"),
    ("Is it like a cat?", "Cat"),
    ("Is it in fact a cat?", "Cat"),
    ("Do you drive a car?", "Car"),
    ("Is it something you watch?", "Watch"),
    ("Is it found in a forest?", "Forest"),
    ("Is it a cat that hunts?", "Cat"),
    ("Is it not a cat?", "Cat"),
    ("Is it a picture of a cat?", "Cat"),
    ("Is it a tennis ball?", "Tennis racket"),
    ("Is it a cat dog horse cow?", "Cow"),
    ("Is it an animal?", "Cat"),
    ("", "Cat"),
    ("Is it a?", "Cat"),
]


@cases(("question", "word"), ACCEPTED)
def test_a_guess(question: str, word: str) -> None:
    assert is_guess(question, VARIANTS[word])


@cases(("question", "word"), REFUSED)
def test_no_guess(question: str, word: str) -> None:
    assert not is_guess(question, VARIANTS[word])


def test_every_guess_that_players_say_wins_for_its_object_alone() -> None:
    for thing in things():
        assert [other.name for other in things() if is_guess(guess_of(thing), other.variants)] == [thing.name]
        assert all(is_guess(f"Is it {name}?", thing.variants) for name in thing.variants)


def test_what_is_left_of_a_guess() -> None:
    assert guessed("Is it a pair of big socks?") == ("a pair of big socks", "pair of big socks", "big socks", "socks")
    assert guessed("a " * 200 + "cat") == ()


def test_the_docs_show_true_examples() -> None:
    rows = [line.strip("| \n").split(" | ") for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    examples = [row for row in rows if len(row) == 3 and row[1] in ("yes", "no")]
    assert len(examples) == 5
    for questions, verdict, reason in examples:
        for question in questions.strip("`").split("`, `"):
            guesses = [name for name, variants in VARIANTS.items() if is_guess(question, variants)]
            assert bool(guesses) == (verdict == "yes"), question
            assert is_framed(question) or "frame" in reason, question
