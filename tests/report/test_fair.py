"""The fair table: scores, paired differences and pictures, of cells whose numbers are known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmrl.envs import registry
from lmrl.evaluation.episode_table import EpisodeTable
from lmrl.evaluation.intervals import student_mean
from lmrl.evaluation.records import Record
from lmrl.report import fair
from lmrl.report.fair import FairCell, Row, fair_row, paired, plot_compute, plot_heat_map, table_of
from lmrl.report.wording import with_interval

TASK = "wordle"


def cells(*scores: float) -> dict[int, FairCell]:
    return {seed: FairCell(10.0, {0.25: score - 2, 0.5: score - 1, 1.0: score}) for seed, score in enumerate(scores)}


ROW: Row = {
    "bc": cells(40.0, 43.0, 40.0),
    "filtered_bc": cells(50.0, 54.0, 52.0),
    "grpo": cells(61.0, 63.0, 62.0),
    "ppo": cells(52.0, 53.0),
    "grpo_from_filtered_bc": cells(70.0),
}


def record(algorithm: str, seed: int, mean: float, tuned: float | None, **cell: Any) -> Record:
    def made(score: float) -> Record:
        return Record(TASK, algorithm, seed, Path(), {"return_mean": score}, EpisodeTable.of([]), cell=cell)

    return made(mean) if tuned is None else replace(made(mean), tuned=made(tuned))


def test_a_cell_has_the_score_with_chosen_decoding_on_the_own_scale() -> None:
    scale = registry.task(TASK).own_scale
    assert scale is not None
    earlier = {"at_25": {"return_mean": scale.random}, "at_50": {"return_mean": scale.recorder}}
    found = record("grpo", 1, -9.0, scale.best, tflop=11.9, earlier=earlier)
    row = fair_row({"grpo": {1: found}, "ppo": {0: record("ppo", 0, -3.0, None)}})
    assert row == {"grpo": {1: FairCell(11.9, {0.25: 0.0, 0.5: 50.0, 1.0: 100.0})}}
    assert row["grpo"][1].score == 100.0


def test_the_score_is_that_of_the_chosen_policy() -> None:
    scale = registry.task(TASK).own_scale
    assert scale is not None
    earlier = {"at_25": {"return_mean": scale.random}, "at_50": {"return_mean": scale.best}}
    found = record("filtered_bc", 0, -9.0, scale.recorder, earlier=earlier, chosen="at_50")
    assert fair_row({"filtered_bc": {0: found}})["filtered_bc"][0].score == 100.0


def test_differences_are_paired_by_training_seed() -> None:
    assert paired(ROW, "grpo", "filtered_bc") == ([11.0, 9.0, 10.0], student_mean([11.0, 9.0, 10.0]))
    assert paired(ROW, "ppo", "filtered_bc")[0] == [2.0, -1.0]
    assert paired(ROW, "grpo_from_filtered_bc", "filtered_bc") == ([20.0], None)
    assert paired(ROW, "mc", "filtered_bc") == ([], None)


def test_the_table_marks_differences_that_exclude_zero() -> None:
    rows = {row[0]: row[1] for row in table_of({TASK: ROW}, base="filtered_bc").rows}
    assert rows["GRPO"] == f"**{with_interval(10.0, student_mean([11.0, 9.0, 10.0]))}**"
    assert rows["PPO"] == with_interval(0.5, student_mean([2.0, -1.0]))
    assert rows["GRPO from filtered BC"] == "20.0"
    assert "filtered BC" not in rows
    # Two pairs of seeds are no claim, however alike their differences are.
    two = {row[0]: row[1] for row in table_of({TASK: {**ROW, "mc": cells(60.0, 64.25)}}, base="filtered_bc").rows}
    assert two["MC"] == with_interval(10.125, student_mean([10.0, 10.25]))
    below = {row[0]: row[1] for row in table_of({TASK: ROW}, base="grpo").rows}
    assert below["BC"].startswith("**\N{MINUS SIGN}21.0 [")


def test_the_table_of_scores_has_dashes_where_nothing_was_run() -> None:
    other: Row = {"mc": cells(30.0, 30.0, 30.0)}
    table = table_of({TASK: ROW, "maze_po": other})
    assert table.heads == ("method", TASK, "maze_po")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["BC"] == (with_interval(41.0, student_mean([40.0, 43.0, 40.0])), "\N{EN DASH}")
    assert rows["MC"] == ("\N{EN DASH}", "30.0 [no spread]")


@pytest.mark.parametrize("plot", [plot_heat_map, plot_compute])
def test_the_pictures_are_drawn(plot: Any, tmp_path: Path) -> None:
    plot({TASK: ROW, "maze_po": {"mc": cells(30.0, 31.0)}}, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_curves_begin_at_the_start_and_end_at_the_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn = {}

    def keep(axis: Any, method: str, *more: Any) -> Any:
        line = curve(axis, method, *more)
        drawn[method] = line.get_xydata().tolist()
        return line

    curve = fair._curve
    monkeypatch.setattr(fair, "_curve", keep)
    plot_compute({TASK: ROW}, tmp_path / "picture.png")
    assert drawn["grpo"] == [[0.0, 41.0], [2.5, 60.0], [5.0, 61.0], [10.0, 62.0]]
    assert drawn["ppo"] == [[0.0, 41.5], [2.5, 50.5], [5.0, 51.5], [10.0, 52.5]]  # the starts of seeds 0 and 1
    assert drawn["grpo_from_filtered_bc"][:2] == [[0.0, 50.0], [2.5, 68.0]]
    assert "bc" not in drawn
    # The second arm starts from the end of the first one, also where an earlier policy was chosen.
    chosen_early = {seed: replace(cell, chosen=0.25) for seed, cell in ROW["filtered_bc"].items()}
    plot_compute({TASK: {**ROW, "filtered_bc": chosen_early}}, tmp_path / "picture.png")
    assert drawn["grpo_from_filtered_bc"][:2] == [[0.0, 50.0], [2.5, 68.0]]
