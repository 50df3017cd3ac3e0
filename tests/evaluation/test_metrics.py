from pathlib import Path

import pytest

from lmrl.errors import UserError
from lmrl.evaluation.episode_table import EpisodeTable, read_table, write_table
from lmrl.evaluation.run_folder import transcript
from lmrl.types import Episode
from tests.helpers.cases import cases

WON = Episode(
    "maze_fo",
    ("a\n", "b\n", "c\n"),
    ("up\n", "odd\n"),
    (-1.0, 0.1 + 0.2),
    True,
    True,
    info={"success": True, "illegal": 1},
)
LOST = Episode("maze_fo", ("a\n", "b\n"), ("down\n",), (-4.0,), False, False)


def test_numbers_are_read_back_as_they_were(tmp_path: Path) -> None:
    table = EpisodeTable.of([WON, LOST])
    write_table(table, tmp_path / "episodes.csv")
    again = read_table(tmp_path / "episodes.csv")
    assert all(one.tolist() == other.tolist() for one, other in zip(table, again, strict=True))
    assert again.returns[0] == WON.total_reward and again.means() == table.means()
    first = (tmp_path / "episodes.csv").read_text().splitlines()[:2]
    assert first == ["episode,return,length,success,illegal", f"0,{WON.total_reward},2,1,1"]


@cases(
    "text",
    ["", "episode\n", "episode,return,length,success,illegal\n", "a,b\n1,2\n"]
    + [f"episode,return,length,success,illegal\n0,{row}\n" for row in ("x,1,1,0", "nan,1,1,0", "1,-1,1,0", "1,1", "1")],
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "episodes.csv").write_text(text)
    with pytest.raises(UserError, match="no table of episodes"):
        read_table(tmp_path / "episodes.csv")


def test_a_missing_one_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"lacks episodes\.csv: play again"):
        read_table(tmp_path / "episodes.csv")


def test_an_episode_to_read() -> None:
    assert transcript(WON).splitlines() == [
        *("a", "> up   [\N{MINUS SIGN}1.00]", "b", "> odd   [0.30]", "c"),
        "(solved; return \N{MINUS SIGN}0.70, 2 turns, 1 illegal)",
    ]
    assert transcript(WON, turns=1).splitlines()[-2] == "... and 1 more turn"
    assert "cut short" in transcript(LOST)
