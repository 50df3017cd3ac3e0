from lmrl.envs.chess.picture import draw_board
from lmrl.envs.registry import make
from tests.helpers.drawings import drawn, request


def test_the_board_shows_the_position_and_marks_the_last_move() -> None:
    text, info = make("endgames").reset(options={"fen": "7k/5K2/8/8/8/8/8/6Q1 w - - 0 1"})
    picture = draw_board(request(text, reply="g8h8", **{key: info[key] for key in ("fen",)}))
    assert picture is not None
    assert drawn(picture).split("\n") == [
        "8                       ♚",
        "7                 ♚",
        *(str(rank) for rank in range(6, 1, -1)),
        "1                    ♛",
        "   a  b  c  d  e  f  g  h",
    ]
    marked = [span for span in picture.spans if "#cbb94f" in str(span.style)]
    assert [picture.plain[span.start : span.end].strip() for span in marked] == ["", "♚"]
    whites = [picture.plain[s.start : s.end].strip() for s in picture.spans if "bold #ffffff" in str(s.style)]
    assert sorted(whites) == ["♚", "♛"]
    assert draw_board(request("Hello!\n")) is None
