"""Tests of the guides for people: every task has rules and a true example, and a guide tells no more than the texts."""

from pathlib import Path

import chess
import pytest

from lmrl.envs import registry
from lmrl.envs.chess.guide import board_note
from lmrl.envs.task import Task
from lmrl.envs.wordle.env import load_vocabulary
from lmrl.rollout import rollout
from lmrl.types import Request, Start
from tests.helpers.cases import cases

GREETING = "Hello! What kind of car are you looking for?\n"
# The reset options and earlier actions after which the example's action gets the example's answer.
EXAMPLES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "wordle": ({"word": "apple"}, ()),
    "car_dealer": ({}, (GREETING,)),
}
NAMES = [row.name for row in registry.BENCHMARK]


@cases("name", NAMES)
def test_the_example_is_what_the_game_answers(name: str) -> None:
    guide = registry.guide(name)
    (options, before) = EXAMPLES.get(name, ({}, ()))
    env = registry.make(name)
    env.reset(seed=1, options=options)
    for action in before:
        env.step(action)
    action, answer = guide.example
    text, _, _, _, info = env.step(f"{action}\n")
    assert guide.spelling(text).startswith(answer) and not info["illegal"]
    assert guide.rules.endswith(".") and guide.action


@pytest.mark.parametrize("name", ["wordle", "twenty_questions", "guess_city", "car_dealer"])
def test_what_was_hidden_is_told_from_the_last_info(name: str) -> None:
    player = registry.make_policy(name, "random")
    ((_, episode),) = rollout(player, lambda: registry.make(name), [Start(4)], task=name)
    told = registry.guide(name).solution(episode.info)
    hidden = episode.info["start"]
    for value in hidden.values() if name == "car_dealer" else [episode.info["task_id"]]:
        if value != hidden.get("personality"):
            words = value if isinstance(value, list) else [f"{value:,}" if isinstance(value, int) else value]
            assert all(word in told for word in words)


def noted(name: str, seed: int, *actions: str, env: dict[str, object] | None = None) -> list[str]:
    """Return the notes of an episode; the first one is made before the first action."""
    played = registry.make(name, **(env or {}))
    observations = [played.reset(seed=seed)[0]]
    guide = registry.guide(name)
    notes = []
    for turn in range(len(actions) + 1):
        notes.append(guide.note(Request(0, seed, observations, actions[:turn]), env or {}))
        if turn < len(actions):
            observations.append(played.step(actions[turn])[0])
    return notes


def test_wordle_says_which_guess_is_no_word_and_what_is_known_of_each_letter() -> None:
    first, wrong, right, empty = noted("wordle", 1, "zzzzz\n", "slate\n", "\n")  # the word is "light"
    assert (first, wrong) == ("", "zzzzz is not in the list of 431 words.")
    known = "elsewhere in the word: l t\nnot in the word: a e s\nnot tried: bcdfghijkmnopqruvwxyz"
    assert right == known
    assert empty == f"An empty line is not in the list of 431 words.\n{known}"
    *_, solved = noted("wordle", 1, "slate\n", "light\n")
    assert solved.startswith("at its place: g h i l t\nnot in the word: a e s\nnot tried: bcdfj")


def test_wordle_counts_the_words_of_the_list_that_is_played(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("about\nother\n")
    assert noted("wordle", 0, "light\n", env={"vocab": str(path)})[1] == "light is not in the list of 2 words."


def test_both_moves_are_told_in_san() -> None:
    notes = noted("chess", 1, "e 4\n", "K e 8\n", "x" * 500 + "\n", env={"opponent": "alphabeta"})
    assert notes[:2] == ["", "You played e4. Black played Nc6."]
    assert notes[2] == "Ke8 is no legal move here: the board stays as it is."
    assert notes[3] == f"{'x' * 20} is no legal move here: the board stays as it is."


@cases("text", ["--", "Z0", "0000", "@@@@"])
def test_a_null_move_is_not_said_to_be_played(text: str) -> None:
    *_, note = noted("chess", 1, f"{text}\n", env={"opponent": "random"})
    assert note == f"{text} is no legal move here: the board stays as it is."


@pytest.mark.parametrize(
    ("before", "move", "after", "told"),
    [
        ("7k/Q7/6K1/8/8/8/8/8 w - - 0 1", "Qh7#", None, "You played Qh7#. Checkmate."),
        (
            "7k/8/6K1/8/8/8/Q7/8 w - - 0 1",
            "Qf7",
            None,
            "You played Qf7. Draw: Black is not in check and has no legal move (stalemate).",
        ),
        (
            "rnbqkbnr/pppp1ppp/8/4p3/8/5P2/PPPPP1PP/RNBQKBNR w KQkq - 0 2",
            "g4",
            "Qh4#",
            "You played g4. Black played Qh4#. Checkmate.",
        ),
    ],
)
def test_how_a_game_of_chess_ends_is_told(before: str, move: str, after: str | None, told: str) -> None:
    board = chess.Board(before)
    board.push_san(move)
    if after is not None:
        board.push_san(after)
    texts = [" ".join(fen) + "\n" for fen in (before, board.fen())]
    assert board_note(Request(0, 0, texts, [" ".join(move) + "\n"]), {}) == told


SHUFFLE = ("Nf3", "Ng1")
SHUFFLED = ("g8f6", "f6g8")


@pytest.mark.parametrize(
    ("options", "moves", "why"),
    [
        # Black's last move repeats the first position, White's the one after the pawn's move.
        ({"replies": SHUFFLED * 4}, SHUFFLE * 4, "the position came up five times"),
        ({"replies": SHUFFLED * 4}, ("e3", *SHUFFLE * 4), "the position came up five times"),
        # A text that is no move repeats no position.
        ({"replies": SHUFFLED * 4}, (*("hop",) * 6, *SHUFFLE * 4), "the position came up five times"),
        ({"fen": "2k5/8/8/8/8/8/1q6/K7 w - - 0 1"}, ("Kxb2",), "neither side has the pieces to mate"),
        (
            {"fen": "7k/8/8/8/8/8/R7/K7 w - - 149 100"},
            ("Rb2",),
            "75 moves of both sides without a capture or a move of a pawn",
        ),
    ],
)
def test_a_drawn_game_of_chess_says_why_when_it_ends(
    options: dict[str, object], moves: tuple[str, ...], why: str
) -> None:
    env = registry.make("chess", opponent="random")
    observations = [env.reset(seed=0, options=options)[0]]
    played = list[str]()
    for move in moves:
        assert "Draw" not in board_note(Request(0, 0, observations, played), {})
        text, reward, over, _, _ = env.step(f"{move}\n")
        observations.append(text)
        played.append(f"{move}\n")
    assert (over, reward) == (True, 0.0)
    assert board_note(Request(0, 0, observations, played), {}).endswith(f" Draw: {why}.")


def test_positions_and_moves_are_shown_without_their_spaces() -> None:
    spelling = registry.guide("chess").spelling
    assert spelling("N f 3\n") == spelling("Nf3\n") == "Nf3\n"
    fen = "4k3/8/8/8/8/8/8/4K3 w - - 0 1"
    assert spelling(" ".join(fen) + "\n") == f"{fen}\n"
    assert spelling("no move at all\n") == "no move at all\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b o u t\n", "about\n"),
        ("y y g y b\n", "y y g y b\n"),
        ("b b b b b", "b b b b b"),
        ("about\n", "about\n"),
        ("Wordle:\n", "Wordle:\n"),
        ("", ""),
    ],
)
def test_people_read_guesses_of_wordle_as_words_and_colours_apart(text: str, shown: str) -> None:
    assert registry.guide("wordle").spelling(text) == shown


def test_no_word_of_wordle_looks_like_colours() -> None:
    words = load_vocabulary(None).words
    assert [word for word in words if {*word} <= {*"gyb"}] == []


def test_a_task_without_a_guide_has_its_description_and_actions() -> None:
    rows = registry._TASKS
    rows["bare"] = Task("bare", "walk on", "lmrl/Bare-v0", "none:None", 4, actions=("left\n", "right\n"))
    try:
        guide = registry.guide("bare")
    finally:
        del rows["bare"]
    assert (guide.rules, guide.action, guide.example) == ("walk on.", "One of: left, right.", ("", ""))
    assert (guide.spelling("a"), guide.note(Request(0, 0, ["a"]), {}), guide.solution({})) == ("a", "", "")
