"""Evaluations side by side: what is compared game by game, what is not, and what is refused."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lmrl.cli import main
from lmrl.errors import UserError
from lmrl.evaluation import Evaluation, write_evaluation
from lmrl.evaluation.comparison import compare, read_played
from lmrl.report.wording import MINUS
from lmrl.types import Episode


def lay(
    folder: Path, returns: Sequence[float], seed: int = 0, task: str = "wordle", starts: int = 0, **provenance: Any
) -> Path:
    """An evaluation of episodes of one turn."""
    episodes = tuple(Episode(task, ("a\n", "b\n"), ("x\n",), (value,), True, False) for value in returns)
    write_evaluation(Evaluation(task, folder.name, episodes, seed, starts, provenance), folder)
    return folder


def test_the_same_games_are_compared_game_by_game(tmp_path: Path) -> None:
    """Means of -3 and -2.5 with wide intervals, but the second is better by a half in every game."""
    base = [-5.0, -1.0] * 20
    one = compare(
        [read_played(lay(tmp_path / name, [v + gain for v in base])) for name, gain in [("a", 0), ("b", 0.5)]]
    )
    assert len(one) == 1 and one[0].paired and not one[0].apart
    assert one[0].difference == 0.5 and one[0].difference_interval == (0.5, 0.5) and one[0].reading == "higher"
    assert one[0].improvement == 1.0 and one[0].improvement_interval == (1.0, 1.0)


def test_the_same_games_from_fixed_starts_are_resampled_within_their_start(tmp_path: Path) -> None:
    """The near start is better by one in each game, the far start is the same: nothing is left to chance."""
    near_and_far = {"a": [0.0, -10.0] * 20, "b": [1.0, -10.0] * 20}
    played = [read_played(lay(tmp_path / name, returns, starts=2)) for name, returns in near_and_far.items()]
    (one,) = compare(played)
    assert one.paired and one.difference_interval == (0.5, 0.5) and one.improvement_interval == (0.75, 0.75)


def test_other_games_are_compared_as_a_whole(tmp_path: Path) -> None:
    base = [-5.0, -1.0] * 20
    first = read_played(lay(tmp_path / "a", base))
    for name, seed, count in (("seed", 1, 40), ("fewer", 0, 20)):
        (one,) = compare([first, read_played(lay(tmp_path / name, [v + 0.5 for v in base[:count]], seed))])
        assert not one.paired and one.difference == 0.5 and one.reading == "not told apart"
        low, high = one.difference_interval
        assert -1.5 < low < 0.5 < high < 2.5
        assert one.improvement == 0.75  # of -4.5 and -0.5 against -5 and -1: 1, 0, 1, 1


def test_ties_count_half_and_lower_is_lower(tmp_path: Path) -> None:
    places = [lay(tmp_path / "a", [-1.0] * 30), lay(tmp_path / "b", [-1.0] * 30), lay(tmp_path / "c", [-4.0] * 30)]
    same, worse = compare([read_played(place) for place in places])
    assert (same.difference, same.improvement, same.reading, same.apart) == (0.0, 0.5, "not told apart", False)
    assert (worse.difference, worse.improvement, worse.reading, worse.apart) == (-3.0, 0.0, "lower", True)


@pytest.mark.parametrize("counts", [(1, 1), (1, 5), (5, 1)])
def test_one_episode_tells_nothing_apart(
    counts: tuple[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = lay(tmp_path / "a", [-5.0] * counts[0])
    second = lay(tmp_path / "b", [-1.0] * counts[1])
    (one,) = compare([read_played(first), read_played(second)])
    assert (one.reading, one.apart, one.difference) == ("not told apart", False, 4.0)
    assert main(["compare", str(first), str(second)]) == 0
    assert "B and A are not told apart: one episode does not say how returns vary" in capsys.readouterr().out


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    first = read_played(lay(tmp_path / "a", [-1.0] * 4))
    with pytest.raises(UserError, match="two evaluations or more, got 1"):
        compare([first])
    other = read_played(lay(tmp_path / "b", [0.5] * 4, task="chess"))
    with pytest.raises(UserError, match="are not of the same task: wordle and chess"):
        compare([first, other])
    changed = read_played(lay(tmp_path / "c", [-1.0] * 4, env={"max_steps": 3}))
    with pytest.raises(UserError, match=r"same settings of the environment: the task's own and max_steps=3"):
        compare([first, changed])
    (tmp_path / "a" / "episodes.csv").unlink()
    with pytest.raises(UserError, match=r"a lacks episodes\.csv: play again with lmrl evaluate"):
        read_played(tmp_path / "a")


def test_the_command_names_who_played_and_says_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lay(Path("plain/evaluation"), [-5.0, -1.0] * 20, weights="0" * 32)
    lay(Path("tuned"), [-1.0] * 40, weights="0" * 32, decoding={"temperature": 0.25})
    lay(Path("elsewhere"), [-5.0, -1.0] * 20, seed=1)
    assert main(["compare", "plain", "tuned/scores.json"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "wordle, 40 episodes each, seed 0: all played the same games"
    assert told[1:3] == [
        "A: plain/evaluation (policy evaluation, as trained)",
        "B: tuned (policy tuned, temperature 0.25)",
    ]
    assert told[3].split() == "return [95 %] success minus A [95 %] more than A [95 %]".split()
    assert told[5].split()[:4] == ["B", f"{MINUS}1.00", f"[{MINUS}1.00,", f"{MINUS}1.00]"] and " 75.0 % [" in told[5]
    assert told[-1] == (
        "B returns more than A: the interval of the difference lies above 0 (game by game); the intervals of the two "
        "means are apart"
    )
    assert main(["compare", "plain", "elsewhere"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == (
        "wordle, episodes: 40 of seed 0; 40 of seed 1: not all played the same games, so differences are less certain "
        "(evaluate with the same --episodes and --seed)"
    )
    assert told[-1] == (
        "B and A are not told apart: the interval of the difference holds 0 (each with games of its own); the "
        "intervals of the two means overlap"
    )


def test_games_for_choosing_settings_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay(tmp_path / "a", [-5.0, -1.0])
    lay(tmp_path / "b", [-5.0, -1.0], selection=True)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].endswith("(evaluate all with --selection, or none)")
    assert told[2].endswith("games to choose settings by)")


def test_other_starts_tell_nothing_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The far start costs ten. Two evaluations had the near one more often than the first had it."""
    near_and_far = [0.0, -10.0]
    lay(tmp_path / "a", [*near_and_far * 20, 0.0], starts=2)
    lay(tmp_path / "seed", [*near_and_far * 20, 0.0], seed=1, starts=2)
    lay(tmp_path / "part", [0.0, -10.0, 0.0], starts=2)
    lay(tmp_path / "selection", [0.0] * 41, starts=2, selection=True)
    assert main(["compare", *(str(tmp_path / name) for name in ("a", "seed", "part", "selection"))]) == 0
    readings = capsys.readouterr().out.splitlines()[-3:]
    assert "the interval of the difference holds 0" in readings[0]
    for letter, reading in zip("CD", readings[1:], strict=True):
        assert reading.startswith(f"{letter} and A are not told apart: they did not play the same starts equally often")


def test_an_evaluation_of_weights_that_are_gone_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        lay(tmp_path / name / "evaluation", [-5.0, -1.0], weights="first")
        (tmp_path / name / "best").mkdir()
        manifest = {"files": [], "made_with": {"weights": "first" if name == "a" else "second"}}
        (tmp_path / name / "best" / "lmrl.json").write_text(json.dumps(manifest))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note")]
    assert notes == ["note: B is of weights that the run no longer has; evaluate it again"]


def test_a_run_that_was_not_evaluated_is_told_where_its_evaluation_would_be(tmp_path: Path) -> None:
    run = tmp_path / "bc"
    (run / "last").mkdir(parents=True)
    with pytest.raises(UserError) as told:
        read_played(run)
    made = f"there is no {run}/evaluation/scores.json; make it with: lmrl evaluate --policy {run}"
    assert str(told.value) == made


@pytest.mark.parametrize("columns", ["60", None], ids=["narrow", "file"])
def test_no_letter_and_no_digit_is_cut(
    columns: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    for name, gain in (("one", 0.0), ("two", 321.25)):
        lay(tmp_path / name, [gain - 1234.5 - 100.0 * (number % 9) for number in range(36)])
    assert main(["compare", "one", "two"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    words = shown.split()
    for letter in ("A", "B"):
        assert letter in words
    for number in ("1634.50", "1313.25", "321.25"):
        assert any(number in word for word in words), number
