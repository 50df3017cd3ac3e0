from pathlib import Path

import pytest

import lmrl
from lmrl.errors import UserError
from lmrl.models.tokenizer import fingerprint, load_tokenizer, train

ASSETS = Path(lmrl.__file__).parent / "assets"


def test_the_bundled_file_is_what_the_corpus_gives() -> None:
    assert train(ASSETS / "corpus.txt").to_str() == train(ASSETS / "corpus.txt").to_str()
    assert train(ASSETS / "corpus.txt").get_vocab() == load_tokenizer().get_vocab()
    assert len(load_tokenizer()) == 1024


def test_every_byte_is_covered() -> None:
    tokenizer = load_tokenizer()
    for text in (bytes(range(128)).decode(), "".join(map(chr, range(160, 700))), "漢字 🙂"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_line_break_is_always_a_token_of_its_own() -> None:
    tokenizer = load_tokenizer()
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
    with pytest.raises(UserError, match="tokenizer must be 'lmrl', a folder or a hub id"):
        load_tokenizer(str(tmp_path / "none"))
