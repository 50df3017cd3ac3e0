from itertools import product
from pathlib import Path
from random import Random

import pytest

from lmrl.envs.wordle.env import Vocabulary, colors, load_vocabulary
from lmrl.errors import UserError

SMALL = Vocabulary(["abbey", "babes", "kebab", "abide", "speed", "erase", "eerie", "creek"])


def test_the_default_list() -> None:
    words = load_vocabulary().words
    assert len(words) == len(set(words)) == 431
    assert list(words) == sorted(words)
    assert all(len(word) == 5 and word.isascii() and word.isalpha() and word.islower() for word in words)


@pytest.mark.parametrize("counted", [False, True])
def test_who_agrees_is_who_would_have_been_coloured_the_same(counted: bool) -> None:
    for guess, hidden in product(SMALL.words, SMALL.words):
        said = colors(guess, hidden, counted)
        same = [word for word in SMALL.words if colors(guess, word, counted) == said]
        found = SMALL.agreeing(guess, said, counted)
        assert [SMALL.words[place] for place in SMALL.members(found)] == same, (guess, hidden, said)


@pytest.mark.parametrize("counted", [False, True])
def test_knowledge_of_a_large_list_is_exact(counted: bool) -> None:
    chance = Random(0)
    letters = "abcde"  # few letters, so that they repeat
    words = Vocabulary(dict.fromkeys("".join(chance.choices(letters, k=5)) for _ in range(400)))
    for _ in range(200):
        guess = chance.choice(words.words)
        hidden = chance.choice(words.words)
        said = colors(guess, hidden, counted)
        expected = [place for place, word in enumerate(words.words) if colors(guess, word, counted) == said]
        assert words.members(words.agreeing(guess, said, counted)) == expected


def test_guesses_outside_of_the_list_tell_as_much() -> None:
    assert SMALL.members(SMALL.agreeing("zzbzz", "bbgbb", False)) == [0, 1, 2]  # abbey, babes, kebab


def test_picking_counts_through_a_set() -> None:
    subset = SMALL.everything & ~1 & ~(1 << 4)
    assert [SMALL.pick(subset, number) for number in range(6)] == [
        word for word in SMALL.words if word not in ("abbey", "speed")
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("crane\nslates\n", "line 2: a word must be 5 letters from a to z, got 'slates'"),
        ("crane\nSlate\n", "line 2: a word must be 5 letters from a to z, got 'Slate'"),
        ("crane\n\nslate\n", "line 2: a word must be 5 letters"),
        ("crane\nslate\ncrane\n", "line 3: 'crane' is on line 1 already"),
        ("", "holds no words"),
    ],
)
def test_lists_that_are_none(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "words.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        load_vocabulary(str(path))


def test_a_missing_list_and_one_in_another_encoding(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="vocab must be a file with one word per line, there is none at 'nowhere'"):
        load_vocabulary("nowhere")
    path = tmp_path / "words.txt"
    path.write_bytes(b"cr\xe4ne\n")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        load_vocabulary(str(path))
