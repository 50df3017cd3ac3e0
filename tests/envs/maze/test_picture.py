from lmrl.envs.maze.layouts import LAYOUTS
from lmrl.envs.maze.picture import draw_maze
from tests.helpers.drawings import request


def test_the_map_shows_no_more_than_the_text() -> None:
    layout, where = LAYOUTS["umaze"], {"position": (1, 1), "goal": (3, 3)}
    whole = draw_maze(layout, request("Your current position is at position 1, 1.\n", **where))
    assert whole is not None
    assert whole.plain.split("\n") == ["██████████", "██◉ · · ██", "██· ██· ██", "██· ██★ ██", "██████████"]
    near = draw_maze(layout, request("There are walls.\n", **{**where, "position": (2, 3)}))
    assert near is not None
    assert near.plain.split("\n") == ["  ·   ", "██◉ ██", "  ·   "]
    walls = [span.start for span in near.spans if "5f6872" in str(span.style)]
    assert walls == [7, 11]  # to the left and to the right, a line being six signs and its end
    hidden = [
        near.plain[span.start]
        for span in near.spans
        if (colours := str(span.style).split()) and colours[0] == colours[-1]
    ]
    assert sorted(set(hidden)) == ["·", "█"], "in colours they are what they stand on"
    assert draw_maze(layout, request("x\n")) is None
