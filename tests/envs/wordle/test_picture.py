from lmrl.envs.wordle.picture import draw_wordle
from tests.helpers.drawings import drawn, request


def test_wordle_has_a_tile_for_each_letter_and_the_best_that_is_known_of_it() -> None:
    picture = draw_wordle(
        request("Wordle:\n", "c r a n e\n", "b y g b b\n", "zzz\n", "\n", "r o a s t\n", "g b g b b\n")
    )
    assert drawn(picture).split("\n") == [
        " C   R   A   N   E",
        "ZZZ  not in the list",
        " R   O   A   S   T",
        "abcdefghijklmnopqrstuvwxyz",
    ]
    letters = {
        picture.plain[span.start : span.end]: str(span.style) for span in picture.spans if span.end - span.start == 1
    }
    known = {letter: style.split("#")[1] for letter, style in letters.items() if "#" in style}
    assert known == {**dict.fromkeys("ceonst", "5c5f62"), "r": "40803b", "a": "40803b"}
