"""Tests of the order of methods, on scores whose comparison is known by hand."""

from collections.abc import Sequence

import pytest

from lmrl.evaluation.intervals import Interval, student_mean
from lmrl.evaluation.scores import Score
from lmrl.report.order import differences, offline_rl, order, side_by_side
from lmrl.report.wording import with_interval

SURE = Interval(0.0, 0.0)


def played(name: str, *runs: Sequence[float], tuned: Score | None = None) -> Score:
    """Return the score of a player with these returns of each of its runs; normalised scores are returns."""
    means = tuple(sum(run) / len(run) for run in runs)
    return Score(
        task="wordle",
        name=name,
        seeds=tuple(range(len(runs))),
        episodes=len(runs[0]),
        normalized=sum(means) / len(means),
        over_episodes=SURE,
        over_seeds=None,
        return_mean=sum(means) / len(means),
        return_over_episodes=SURE,
        iqm=0.0,
        iqm_over_episodes=SURE,
        success_rate=0.0,
        success_ci=SURE,
        length_mean=1.0,
        illegal_rate=0.0,
        returns=tuple(map(tuple, runs)),
        by_seed=means,
        tuned=tuned,
    )


def of(*scores: Score) -> dict[str, Score]:
    return {score.name: score for score in scores}


LOW = (-6.0, -5.0, -5.0, -4.0)
HIGH = (-3.0, -2.0, -2.0, -1.0)


def test_the_best_comes_first_and_ties_count_half() -> None:
    found = of(played("bc", LOW), played("mc", HIGH), played("ppo", HIGH), played("random", HIGH), played("data", HIGH))
    rows = order("wordle", found).rows
    assert [row[0] for row in rows] == ["MC", "PPO", "BC"]  # without players that never learned
    assert rows[0][3].startswith("0.50 [") and rows[1][3] == "1.00 [1.00, 1.00]"
    assert rows[2][3:5] == ("\N{EN DASH}", "\N{EN DASH}") and [row[-1] for row in rows] == ["1", "1", "1"]


def test_runs_are_compared_where_both_have_several() -> None:
    several = played("mc", HIGH, LOW), played("bc", LOW, LOW)
    (first, _) = order("wordle", of(*several)).rows
    assert first[4] == with_interval(1.5, student_mean([3.0, 0.0]))  # paired by seed
    assert order("wordle", of(several[0], played("bc", LOW))).rows[0][4] == "\N{EN DASH}"
    equal = played("mc", LOW, LOW, LOW), played("bc", LOW, LOW, LOW)
    assert order("wordle", of(*equal)).rows[0][4] == "0.0 [no spread]"


def test_each_plays_as_was_chosen() -> None:
    found = of(played("bc", LOW, tuned=played("bc", HIGH)), played("mc", LOW))
    assert [row[0] for row in order("wordle", found).rows] == ["BC", "MC"]
    assert [row[0] for row in order("wordle", of(played("bc", LOW), played("mc", HIGH))).rows] == ["MC", "BC"]


def test_the_choice_that_was_made_beforehand_counts_even_where_it_scores_less() -> None:
    """MC was tuned, and scores less with those settings in the games that count. The better number may not be used."""
    found = of(played("mc", HIGH, tuned=played("mc", LOW)), played("filtered_bc", LOW))
    (row,) = side_by_side({"wordle": found}, ["mc"], "filtered_bc").rows
    assert row[2].startswith("0.0 [")


def test_offline_rl_shows_both_methods_and_counts_over_seeds_alone() -> None:
    """In Wordle ILQL has one run, in chess MC has three runs that differ less than they are apart from filtered BC."""
    wordle = of(played("filtered_bc", LOW), played("mc", LOW), played("ilql", HIGH))
    near = [[value + shift for value in HIGH] for shift in (0.0, 0.1, 0.2)]
    chess = of(played("filtered_bc", LOW, LOW, LOW), played("mc", *near))
    table, words = offline_rl({"wordle": wordle, "chess": chess, "maze_fo": of(played("mc", LOW))})
    assert [(row[0], row[1], row[-1]) for row in table.rows] == [
        ("wordle", "MC", "of these runs: not told apart"),
        ("wordle", "ILQL", "of these runs: higher"),
        ("chess", "MC", "higher"),
    ]
    assert words.endswith(": MC is higher in 1 of the 1 tasks with such seeds.")
    assert offline_rl({"wordle": of(played("mc", LOW))})[1] == ""
    # Without three seeds of both there is nothing to count.
    few, words = offline_rl({"wordle": wordle})
    assert few.rows and words == ""


def test_a_reading_is_over_training_seeds_where_there_are_three() -> None:
    """Every episode of these runs tells the methods apart; the three runs of each do not."""
    far = (-3.0,) * 4
    near = (-5.9,) * 4
    base = played("grpo", (-6.0,) * 4, (-6.0,) * 4, (-6.0,) * 4)
    (row,) = side_by_side({"wordle": of(base, played("gigpo", far, near, near))}, ["gigpo"], "grpo").rows
    assert row[-1] == "not told apart"
    both = of(played("grpo", (-6.0,) * 4, (-6.0,) * 4), played("gigpo", far, near))
    assert side_by_side({"wordle": both}, ["gigpo"], "grpo").rows[0][-1] == "of these runs: higher"
    (difference,) = differences("wordle", of(played("bc", *base.returns), played("gigpo", far, near, near))).rows
    assert difference[-1] == "not told apart"


def test_methods_side_by_side_are_compared_over_episodes_and_runs() -> None:
    several = of(played("grpo", LOW, LOW), played("gigpo", HIGH, LOW))
    table = side_by_side({"wordle": several, "chess": of(played("gigpo", LOW))}, ["gigpo"], "grpo")
    (row,) = table.rows  # chess has no GRPO
    assert [*table.heads][2].endswith("GRPO, normalised [95 %, episodes]") and row[:2] == ("wordle", "GiGPO")
    assert row[2].startswith("1.5 [") and row[4] == with_interval(1.5, student_mean([3.0, 0.0]))
    assert row[5:] == ("2, 2", "of these runs: higher")
    one_run = of(played("grpo", LOW), played("gigpo", LOW, LOW))
    (row,) = side_by_side({"wordle": one_run}, ["gigpo"], "grpo").rows
    assert row[3].startswith("0.50 [") and row[4:] == ("\N{EN DASH}", "2, 1", "of these runs: not told apart")


def test_differences_from_bc_of_all_that_learned() -> None:
    heads, rows, _ = differences("wordle", of(played("bc", HIGH), played("gigpo", LOW), played("random", LOW)))
    assert [(row[0], row[-1]) for row in rows] == [("GiGPO \N{MINUS SIGN} BC", "of these runs: lower")]
    assert "published" not in heads  # nothing was published for GiGPO
    assert rows[0][3].startswith("\N{MINUS SIGN}3.00 [")
    assert differences("wordle", of(played("mc", LOW))).rows == []


@pytest.mark.parametrize("wrong", ["data", "gpt4", "optimal"])
def test_who_never_learned_has_no_rank(wrong: str) -> None:
    assert [row[0] for row in order("wordle", of(played("bc", LOW), played(wrong, HIGH))).rows] == ["BC"]


def test_where_nobody_learned_the_table_is_empty() -> None:
    assert order("wordle", of(played("random", LOW))).rows == []
