"""Where action tokens, states and rewards are, and which contexts are read."""

import pytest

from lmrl.errors import UserError
from lmrl.models.tokenizer import load_tokenizer
from lmrl.tokens.encoding import Encoder, Window
from lmrl.tokens.segments import Segment, context, segments
from lmrl.types import Episode
from tests.helpers.cases import cases
from tests.helpers.doubles import CHARS, CharEncoder, episode

TWO = episode("ab", "xy", "cde", "z", "f", rewards=[-1, 5], terminated=False)


def read(part: Segment) -> str:
    return CHARS.decode(part.ids.tolist())


def test_the_example_of_the_docstring() -> None:
    first, second = segments(
        episode("ab", "xy", "c", "z", "$", rewards=[-1, 0], terminated=True), CHARS, Window(texts=1)
    )
    assert read(first) == "abxy"
    assert first.col.tolist() == [1, 2]
    assert CHARS.decode(first.token.tolist()) == "xy"
    assert first.reward.tolist() == [0, -1]
    assert first.next_ids is not None
    assert CHARS.decode(first.next_ids.tolist()) == "c"
    assert (read(second), second.col.tolist(), second.next_ids) == ("cz", [0], None)


def test_a_whole_history_is_one_segment() -> None:
    (only,) = segments(TWO, CHARS, Window())
    assert read(only) == "abxycdez"
    #                        a  b  x  y  c  d  e  z
    #  states of x, y, z:       1  2           6
    assert only.col.tolist() == [1, 2, 6]
    assert only.reward.tolist() == [0, -1, 5]
    assert only.next_ids is not None
    assert CHARS.decode(only.next_ids.tolist()) == "abxycdezf"  # truncated: the state after the last observation


def test_windows_that_start_at_the_same_text_share_a_segment() -> None:
    long = episode("a", "1", "b", "2", "c", "3", "d", "4", "e", rewards=[1, 2, 3, 4], terminated=True)
    parts = list(segments(long, CHARS, Window(texts=4)))
    # Turn 0 reads a, turn 1 reads a1b; turn 2 reads the last four texts 1b2c, turn 3 reads 2c3d.
    assert [read(part) for part in parts] == ["a1b2", "1b2c3", "2c3d4"]
    assert [part.col.tolist() for part in parts] == [[0, 2], [3], [3]]
    assert [CHARS.decode(part.next_ids.tolist()) for part in parts[:2] if part.next_ids is not None] == ["1b2c", "2c3d"]


@pytest.mark.parametrize(
    "window", [Window(), Window(texts=1), Window(texts=4), Window(tokens=7), Window(texts=3, tokens=5)]
)
def test_training_reads_what_the_player_read(window: Window) -> None:
    texts = ["ab", "1\n", "cde", "2\n", "fg", "33\n", "h", "4\n", "ijkl", "5\n", "m"]
    said = episode(*texts, rewards=[1] * 5, terminated=True)
    contexts = [
        CHARS.decode(context(CHARS, window, texts[: 2 * t + 1 : 2], texts[1 : 2 * t + 1 : 2])) for t in range(5)
    ]
    states = [read(part)[: col + 1] for part in segments(said, CHARS, window) for col in part.col.tolist()]
    first_tokens = [sum(map(len, texts[1 : 2 * turn : 2])) for turn in range(5)]
    assert [states[index] for index in first_tokens] == contexts


@pytest.mark.parametrize(
    "window",
    [Window(bos=True), Window(1, bos=True), Window(4, bos=True), Window(tokens=7, bos=True), Window(3, 5, bos=True)],
)
def test_contexts_begin_with_the_bos_token_and_an_observation(window: Window) -> None:
    encoder = CharEncoder()
    encoder.bos = ord("^")
    texts = ["ab", "1\n", "cde", "2\n", "fghijklm", "33\n", "n", "4\n", "opqr", "5\n", "s"]
    said = episode(*texts, rewards=[1] * 5, terminated=True)
    contexts = [
        CHARS.decode(context(encoder, window, texts[: 2 * t + 1 : 2], texts[1 : 2 * t + 1 : 2])) for t in range(5)
    ]
    for read_first in contexts:
        assert read_first.startswith("^") and len(read_first) <= window.tokens
        assert read_first[1:] == "hijklm"[-len(read_first) + 1 :] or read_first[1] in "acfno", "whole texts otherwise"
    parts = list(segments(said, encoder, window))
    states = [read(part)[: col + 1] for part in parts for col in part.col.tolist()]
    first_tokens = [sum(map(len, texts[1 : 2 * turn : 2])) for turn in range(5)]
    assert [states[index] for index in first_tokens] == contexts
    assert sum(part.n_observation_tokens for part in parts) == sum(map(len, texts[:-1:2])) or window.tokens < 9


@cases("window", [Window(), Window(texts=1), Window(texts=2), Window(texts=4), Window(tokens=6)])
@cases("terminated", [True, False])
def test_rewards_and_tokens_are_conserved(window: Window, terminated: bool) -> None:
    said = episode("ab", "xy\n", "c", "z\n", "d", "w\n", "e", rewards=[-1, 2.5, 7], terminated=terminated)
    parts = list(segments(said, CHARS, window))
    assert sum(float(part.reward.sum()) for part in parts) == said.total_reward
    assert "".join(CHARS.decode(part.token.tolist()) for part in parts) == "".join(said.actions)
    assert all((part.ids[part.col + 1] == part.token).all() for part in parts)
    assert all(part.col[0] >= 0 for part in parts)  # something of the environment comes before the first action
    assert [part.next_ids is None for part in parts] == [False] * (len(parts) - 1) + [terminated]


def test_sampled_ids_are_trained_on_as_they_are() -> None:
    """ "ab" was sampled as two ids that the encoder would not choose: token in, token out."""

    class Merging(CharEncoder):
        def encode(self, text: str) -> tuple[int, ...]:
            return tuple(1 if part == "ab" else ord(part) for part in ([text] if text == "ab" else text))

    said = Episode("toy", ("o", "p"), ("ab",), (1.0,), True, False, action_ids=((97, 98),))
    (part,) = segments(said, Merging(), Window())
    assert part.token.tolist() == [97, 98]
    assert context(Merging(), Window(), ("o", "p"), ("ab",), ((97, 98),)) == [111, 97, 98, 112]
    assert context(Merging(), Window(), ("o", "p"), ("ab",)) == [111, 1, 112]


def test_ids_of_another_tokenizer_are_not_used() -> None:
    said = Episode("toy", ("o", "p"), ("ab",), (1.0,), True, False, action_ids=((97, 99),))
    (part,) = segments(said, CHARS, Window())
    assert CHARS.decode(part.token.tolist()) == "ab"


def test_a_clock_that_hides_the_state_is_looked_behind() -> None:
    said = Episode("toy", ("o", "Failure"), ("a",), (-1.0,), False, True, info={"final_observation": "p"})
    (part,) = segments(said, CHARS, Window(texts=1))
    assert part.next_ids is not None
    assert CHARS.decode(part.next_ids.tolist()) == "p"


def test_one_text_too_long_keeps_its_end() -> None:
    assert CHARS.decode(context(CHARS, Window(tokens=3), ("abcdef",), ())) == "def"
    (part,) = segments(episode("abcdef", "x", rewards=[1], terminated=True), CHARS, Window(tokens=3))
    assert read(part) == "defx"  # never cut inside the action


def test_an_action_without_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="turn 1"):
        list(segments(episode("a", "x", "b", "", "c", rewards=[1, 1], terminated=True), CHARS, Window()))


def test_an_action_before_which_nothing_is_read_is_refused() -> None:
    """Where there is a history, silence is a text like others."""
    first = episode("", "x", "b", rewards=[1], terminated=True)
    later = episode("a", "x", "", "y", "c", rewards=[1, 1], terminated=True)
    cut = episode("a", "x", "", rewards=[1], terminated=False)
    for window in (Window(), Window(texts=1), Window(tokens=1)):
        with pytest.raises(UserError, match=r"observation 0 of the episode with seed .* is an empty text"):
            list(segments(first, CHARS, window))
    assert [read(part) for part in segments(later, CHARS, Window())] == ["axy"]
    assert [CHARS.decode(part.ids.tolist()) for part in segments(later, CHARS, Window(texts=2))][-1] == "xy"
    for said in (later, cut):
        with pytest.raises(UserError, match="observation 1 of the episode with seed"):
            list(segments(said, CHARS, Window(texts=1)))
    assert len([*segments(episode("a", "x", "", rewards=[1], terminated=True), CHARS, Window(texts=1))]) == 1
    assert CHARS.decode(context(CHARS, Window(), ("a", ""), ("x",))) == "ax"
    with pytest.raises(UserError, match="observation 0 of the episode is an empty text"):
        context(CHARS, Window(), ("",), ())
    with pytest.raises(UserError, match="observation 3 of seed 7"):
        context(CHARS, Window(texts=1), ("a", "b", "c", ""), ("x", "y", "z"), name="seed 7")


def test_encoder_remembers_and_inverts() -> None:
    from lmrl.models.tokenizer import load_tokenizer

    encoder = Encoder(load_tokenizer())
    for text in ("move left\n", "\n\n", "Ünïcödé ✓ \t 漢字", "", "  two  spaces ", "<b>s h i r e</b>"):
        assert encoder.decode(encoder.encode(text)) == text
        assert encoder.encode(text) == encoder.encode(text)


def test_what_a_tokenizer_cuts_or_pads_elsewhere_is_whole_here() -> None:
    tokenizer = load_tokenizer()
    whole = tuple(tokenizer.encode("go north, then east\n", add_special_tokens=False))
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.backend_tokenizer.enable_padding(length=64)
    assert Encoder(tokenizer).encode("go north, then east\n") == whole


def test_a_window_holds_what_fits_to_the_last_token() -> None:
    lengths = [3, 2, 4, 1]
    assert [Window(tokens=n).start(lengths) for n in (1, 4, 5, 6, 7, 9, 10)] == [3, 3, 2, 2, 1, 1, 0]
