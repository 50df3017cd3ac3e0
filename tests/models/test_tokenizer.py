from pathlib import Path

import pytest

from lmrl.errors import UserError
from lmrl.models.tokenizer import BUNDLED, bundled_name, fingerprint, load_tokenizer, train


@pytest.mark.parametrize(("name", "vocabulary"), [("lmrl", 1280), ("lmrl-chess", 1024), ("lmrl-letters", 310)])
def test_the_bundled_file_is_what_the_corpus_gives(name: str, vocabulary: int) -> None:
    assert train(name).to_str() == train(name).to_str()
    assert train(name).get_vocab() == load_tokenizer(name).get_vocab()
    assert len(load_tokenizer(name)) == vocabulary
    assert bundled_name(load_tokenizer(name)) == name


def test_letters_stay_apart() -> None:
    tokenizer = load_tokenizer("lmrl-letters")
    for text, count in (("Wordle:\n", 8), ("c r a n e\n", 6), ("b y g b b\n", 6), ("z Z x\n", 4)):
        assert len(tokenizer.encode(text)) == count


def test_ranks_of_a_chess_board_stay_together() -> None:
    tokenizer = load_tokenizer("lmrl-chess")
    position = "8 / 8 / 5 k 2 / 8 / 3 K 4 / 8 / 4 Q 3 / 8   w   -   -   0   1\n"
    ranks = ["8 /", " 8 /", " 5 k 2 /", " 8 /", " 3 K 4 /", " 8 /", " 4 Q 3 /", " 8"]
    tail = ["   w   -   -   ", "0", "   ", "1", "\n"]
    assert [tokenizer.decode([token]) for token in tokenizer.encode(position)] == ranks + tail
    assert [tokenizer.decode([token]) for token in tokenizer.encode("Q d 5 +\n")] == ["Q", " d", " 5", " +", "\n"]


@pytest.mark.parametrize("name", BUNDLED)
def test_every_byte_is_covered(name: str) -> None:
    tokenizer = load_tokenizer(name)
    for text in (bytes(range(128)).decode(), "".join(map(chr, range(160, 700))), "漢字 🙂"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("name", BUNDLED)
def test_a_line_break_is_always_a_token_of_its_own(name: str) -> None:
    tokenizer = load_tokenizer(name)
    (end,) = tokenizer.encode("\n")
    assert tokenizer.encode("\n\n\n") == [end] * 3
    assert tokenizer.encode("move left\n")[-1] == end
    assert [i for i in range(len(tokenizer)) if "\n" in tokenizer.decode([i])] == [end]


def test_a_maze_move_has_three_tokens() -> None:
    assert [len(load_tokenizer().encode(f"move {way}\n")) for way in ("left", "right", "up", "down")] == [3, 3, 3, 3]


def test_fingerprints_tell_vocabularies_apart() -> None:
    other = load_tokenizer()
    other.add_tokens(["<new>"])
    assert fingerprint(load_tokenizer()) == fingerprint(load_tokenizer())
    assert fingerprint(other) != fingerprint(load_tokenizer())


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tokenizer must be 'lmrl', 'lmrl-chess', 'lmrl-letters', a folder or a hub id"):
        load_tokenizer(str(tmp_path / "none"))
