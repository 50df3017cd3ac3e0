import json
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from lmrl.envs.maze.probe import PROBE, probe_maze
from lmrl.envs.maze.probe_plot import PROBE_PLOT
from lmrl.errors import UserError
from lmrl.report.pictures import plot_probes
from lmrl.types import Request


def test_the_seer_is_right_everywhere(seer: Any) -> None:
    probe = probe_maze(seer, "maze_fo")
    assert probe.right == len(probe.positions) == probe.best_possible == 25
    assert probe.values is not None
    values = dict(zip(probe.positions, probe.values, strict=True))
    assert (values[7, 6], values[5, 6], values[1, 1]) == (0.0, -2.0, -11.0)
    assert probe.goal == (8, 6) and (8, 6) not in values


def test_one_move_only_is_right_where_it_leads_on(player: Any) -> None:
    probe = probe_maze(player(lambda request: "move down\n"), "maze_fo")
    # Below: the two stems (rows 1 to 4) and the last one (rows 5 to 7).
    right = {cell for place, cell in enumerate(probe.positions) if probe.is_right(place)}
    assert right == {(row, col) for row in (1, 2, 3, 4) for col in (3, 9)} | {(5, 6), (6, 6), (7, 6)}
    assert probe.right == 11 and probe.values is None


def test_what_looks_alike_cannot_all_be_right(seer: Any, player: Any) -> None:
    # By hand: left-right corridors 1,2 1,4 1,8 1,10 5,4 5,5 5,7 5,8 need right (4) or left (4); the ends 1,1 and 1,7
    # look alike and so do 1,5 and 1,11; the other texts are of cells that agree. 25 - 4 = 21.
    assert probe_maze(seer, "maze_po").best_possible == 21
    texts: dict[str, str] = {}

    def first(request: Request) -> str:
        return texts.setdefault(request.observations[0], "move down\n")

    assert probe_maze(player(first), "maze_po").right == 11
    assert len(texts) == 8 - 1  # the eighth is at the goal


def test_every_cell_is_asked_at_once_in_a_slot_of_its_own(player: Any) -> None:
    asked: list[Request] = []
    probe_maze(player(lambda request: asked.append(request) or "move up\n"), "maze_fo")
    assert [request.slot for request in asked] == list(range(25))
    assert all(
        f"position {' '.join(str(request.info['position'][0]))}," in request.observations[0] for request in asked
    )


def test_written_and_read_back(seer: Any) -> None:
    probe = probe_maze(seer, "maze_fo")
    text = json.dumps(PROBE.to_json(probe))
    assert PROBE.from_json(json.loads(text), "probe.json") == probe
    with pytest.raises(UserError, match=r"probe.json: not a maze probe"):
        PROBE.from_json({"rows": []}, "probe.json")


def test_the_picture_shows_wrong_moves(seer: Any, player: Any, tmp_path: Path) -> None:
    framed = []
    for name, policy in (
        ("ilql", seer),
        ("bc", player(lambda request: "move down\n")),
        ("mc", player(lambda _: "?\n")),
    ):
        plot_probes(PROBE_PLOT, {name: probe_maze(policy, "maze_fo")}, tmp_path / "maze.png")
        red, green, blue = matplotlib.image.imread(tmp_path / "maze.png")[..., :3].transpose(2, 0, 1)
        framed.append(int(((red > 0.8) & (green < 0.2) & (blue > 0.3) & (blue < 0.5)).sum()))
    assert framed[0] == 0 < framed[1] < framed[2]
