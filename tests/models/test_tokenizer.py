from pathlib import Path

import chess
import pytest

from lmrl.envs.chess.env import spaced_fen
from lmrl.envs.registry import task_tokens
from lmrl.envs.wordle.env import load_vocabulary, spaced
from lmrl.errors import UserError
from lmrl.models.tokenizer import BUNDLED, add_task_tokens, bundled_name, fingerprint, load_tokenizer, train
from lmrl.tokens.encoding import Encoder

FEN_ORDER = [chess.square(file, rank) for rank in reversed(range(8)) for file in range(8)]


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
    with pytest.raises(UserError, match="tokenizer must be 'lmrl', 'lmrl-chess', 'lmrl-letters', a folder, GGUF file"):
        load_tokenizer(str(tmp_path / "none"))


def test_words_and_colours_are_tokens() -> None:
    tokenizer = load_tokenizer("lmrl-letters")
    plain = load_tokenizer("lmrl-letters")
    parts = add_task_tokens(tokenizer, "wordle")
    encoder = Encoder(tokenizer)
    for text in ("Wordle:\n", "b b y g b\n", *map(spaced, load_vocabulary(None).words)):
        (token,) = encoder.encode(text)
        assert encoder.decode((token,)) == text and token >= len(plain)
    assert parts[encoder.encode("s t o r e\n")[0]] == tuple(f"letter {i} {x}" for i, x in enumerate("store"))
    assert encoder.encode("q x z q x\n") == Encoder(plain).encode("q x z q x\n")  # no word: spelt
    assert set(parts) == set(range(len(plain), len(tokenizer)))


def test_tokens_are_those_of_the_vocabulary_that_is_played(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("zonal\nzebra\n")
    tokenizer = load_tokenizer("lmrl-letters")
    add_task_tokens(tokenizer, {"name": "wordle", "vocab": str(tmp_path / "words.txt")})
    assert [len(Encoder(tokenizer).encode(word)) for word in ("z o n a l\n", "c r a n e\n")] == [1, 6]


def test_a_position_becomes_men_on_squares() -> None:
    tokenizer = load_tokenizer("lmrl-letters")
    parts = add_task_tokens(tokenizer, "chess")
    board = chess.Board()
    for move in ["", *"e4 Nf6 e5 d5 Ke2 Rg8 c4".split()]:  # en passant, and rights that are lost
        board.push_san(move) if move else None
        men = [f"{board.piece_at(s)}{chess.square_name(s)} " for s in FEN_ORDER if board.piece_at(s)]
        if board.turn:
            ids = tokenizer(spaced_fen(board.fen()))["input_ids"]
            assert [tokenizer.decode([token]) for token in ids][: len(men)] == men
            assert len(ids) == len(men) + 3 or board.has_legal_en_passant()
    last = tokenizer(spaced_fen(chess.STARTING_FEN))["input_ids"][-3:]
    assert tokenizer.decode(last) == "  w   K Q k q   -   0   1\n"
    assert parts[tokenizer("ke8 ")["input_ids"][0]] == ("k", "ke8", "on e8", "on file e", "on rank 8")
    encoder = Encoder(tokenizer)
    moves = {
        "e 4\n": ["e 4\n"],
        "N f 3\n": ["N ", "f 3\n"],
        "R a d 1 +\n": ["R ", "a ", "d 1 +\n"],
        "R a 1\n": ["R ", "a 1\n"],
        "N 3 e 4\n": ["N ", "3 ", "e 4\n"],
        "N b x d 2\n": ["N ", "b x ", "d 2\n"],
        "e x d 8 = Q #\n": ["e x ", "d 8 = Q #\n"],
        "O - O - O\n": ["O - O - O\n"],
        "K x f 2\n": ["K x ", "f 2\n"],
    }
    for text, tokens in moves.items():
        ids = encoder.encode(text)
        assert [encoder.decode([token]) for token in ids] == tokens and encoder.decode(ids) == text
    assert encoder.decode(encoder.encode("Z 3 e 4\n")) == "Z 3 e 4\n"  # spelt


def test_several_positions_and_moves_of_one_text_are_told_apart() -> None:
    tokenizer = load_tokenizer("lmrl-letters")
    add_task_tokens(tokenizer, "endgames")
    fens = ("8/8/5k2/8/3K4/8/4Q3/8 w - - 12 10", "4k2R/8/8/8/3K4/8/8/R6R w - - 0 1")
    texts = [spaced_fen(fens[0]), "Q e 7 +\n", spaced_fen(fens[1])]
    one_by_one = [tokenizer(text)["input_ids"] for text in texts]
    assert [len(ids) for ids in one_by_one] == [6, 2, 8]
    assert tokenizer("".join(texts))["input_ids"] == [token for ids in one_by_one for token in ids]
    assert tokenizer.tokenize("R a 1 a 8 #\n") == ["R ", "a ", "1 ", "a 8 #\n"]  # from a square, as SAN has it


def test_words_of_questions_are_tokens() -> None:
    tokenizer = load_tokenizer("lmrl-letters")
    parts = add_task_tokens(tokenizer, "twenty_questions")
    assert tokenizer.tokenize("Is it a frying pan?\n") == ["Is", " it", " a", " frying", " pan", "?\n"]
    assert tokenizer.tokenize("No.\n") == ["No.\n"] and tokenizer.tokenize(" carry") == [" carry"]
    assert tokenizer.decode(tokenizer("Is it a zebroid?\n")["input_ids"]) == "Is it a zebroid?\n"  # letter by letter
    assert parts.keys() == {*tokenizer.get_added_vocab().values()} - {*tokenizer.all_special_ids}


def test_words_of_cities_are_tokens() -> None:
    tokenizer = load_tokenizer("lmrl-letters")
    add_task_tokens(tokenizer, "guess_city")
    assert tokenizer.tokenize("Is your city Havana?\n") == ["Is", " your", " city", " Havana", "?\n"]
    said = "My country borders three to five countries.\n"
    assert tokenizer.tokenize(said) == ["My", *(f" {word}" for word in said[3:-2].split()), ".\n"]


def test_words_and_sums_of_car_dealer_are_tokens() -> None:
    tokenizer = load_tokenizer("lmrl-letters")
    parts = add_task_tokens(tokenizer, "car_dealer")
    said = "I have a Mercedes-Benz truck with heated seats. I can sell it for $57,500.\n"
    heard = ["I", " have", " a", " Mercedes-Benz", " truck", " with", " heated", " seats", "."]
    assert tokenizer.tokenize(said) == [*heard, " I", " can", " sell", " it", " for", " $57", ",500", ".\n"]
    assert parts[tokenizer(" $57")["input_ids"][0]] == ("$", "5 ten thousands", "7 thousands")
    sums = [f" ${value:,}" for value in range(1_000, 121_600, 100)]
    assert {len(ids) for ids in tokenizer(sums)["input_ids"]} == {2}
    assert tokenizer.decode(tokenizer(" $57,512")["input_ids"]) == " $57,512"  # digit by digit


def test_a_task_without_tokens_adds_none() -> None:
    assert add_task_tokens(load_tokenizer(), "maze_fo") == {} and not task_tokens("maze_fo").parts
