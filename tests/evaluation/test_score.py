import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from lmrl.errors import UserError
from lmrl.evaluation.aggregates import aggregates, improvements, seed_difference
from lmrl.evaluation.evaluate import Evaluation
from lmrl.evaluation.intervals import student_mean, welch_difference, wilson
from lmrl.evaluation.records import read_records, seed_folder, seed_folders
from lmrl.evaluation.result_json import write_json
from lmrl.evaluation.run_folder import write_evaluation
from lmrl.evaluation.scores import Score, data_score, mark_few, score
from lmrl.report.report import write_report
from lmrl.report.wording import MINUS, with_interval
from lmrl.reproduce.progress import summary
from lmrl.types import Episode

Lay = Callable[..., None]


pytestmark = pytest.mark.usefixtures("few_resamples", "no_pictures")

OWN = 0.246
"""The return of 50 points on Text-Nav's own scale; the published scale has .26."""


def lay(
    runs: Path,
    returns: Sequence[float],
    name: str = "bc",
    task: str = "text_nav_fo",
    seed: int = 0,
    starts: int = 0,
    part: str = "evaluation",
    **provenance: Any,
) -> None:
    """Write a finished run whose episodes have these returns; Text-Nav's 0 is 0 points, .26 is 50, 1 is 100."""
    episodes = tuple(Episode(task, ("a\n", "b\n"), ("c\n",), (value,), True, False) for value in returns)
    folder = seed_folder(runs, seed) / task / name
    write_evaluation(Evaluation(task, name, episodes, seed, starts, provenance), folder / part)


def scores_of(runs: Path, task: str = "text_nav_fo") -> dict[str, Score]:
    return {name: score(task, name, results) for name, results in read_records(runs, task).items()}


def test_seeds_are_folders_of_runs(tmp_path: Path) -> None:
    lay(tmp_path, [0.0])
    lay(tmp_path, [1.0], seed=2)
    (tmp_path / "seed_x").mkdir()
    assert seed_folders(tmp_path) == {0: tmp_path, 2: tmp_path / "seed_2"}
    assert {seed: r.scores["seed"] for seed, r in read_records(tmp_path, "text_nav_fo")["bc"].items()} == {0: 0, 2: 2}


def test_the_two_kinds_of_interval_are_kept_apart(tmp_path: Path) -> None:
    """The episodes of BC vary over seeds alone, and not within a seed. For MC it is the other way round."""
    for seed, value in enumerate((0.0, 0.26, 1.0)):
        lay(tmp_path, [value] * 4, seed=seed)
        lay(tmp_path, [0.0, 0.26, 0.0, 0.26], "mc", seed=seed)
    found = scores_of(tmp_path)
    assert found["bc"].by_seed == (0.0, 50.0, 100.0) and found["bc"].normalized == 50.0
    assert found["bc"].over_episodes == (50.0, 50.0) and found["bc"].over_seeds == student_mean([0.0, 50.0, 100.0])
    assert found["mc"].over_seeds is None  # equal runs do not show how far the next one would be from them
    low, high = found["mc"].over_episodes
    assert 5 < low < 20 and 30 < high < 45
    assert found["bc"].return_mean == pytest.approx(0.42) and found["bc"].seeds == (0, 1, 2)


def test_fixed_starts_are_given_everywhere(tmp_path: Path) -> None:
    """Returns follow from the start alone, so no interval over episodes has any width."""
    for name, values in (("bc", [0.0, 0.5] * 6), ("mc", [0.2, 0.9] * 6)):
        for seed in (0, 1):
            lay(tmp_path, values, name, seed=seed, starts=2)
            lay(tmp_path, values, name, "text_nav_po", seed, starts=2)
    found = scores_of(tmp_path)
    for one in found.values():
        for interval in (one.over_episodes, one.return_over_episodes, one.iqm_over_episodes):
            assert interval.low == pytest.approx(interval.high)
    assert found["mc"].return_over_episodes == pytest.approx((0.55, 0.55))
    assert improvements(found, ["mc"])[0].interval == pytest.approx((0.75, 0.75))
    both = {task: scores_of(tmp_path, task) for task in ("text_nav_fo", "text_nav_po")}
    assert aggregates(both, ["bc"])[0].over_episodes == pytest.approx([aggregates(both, ["bc"])[0].iqm] * 2)
    page = write_report(tmp_path, tmp_path / "report").with_suffix(".md").read_text()
    assert f"| MC {MINUS} BC | 21.5 [21.5, 21.5] § | 21.5 [no spread] |" in page
    lay(tmp_path, [0.2, 0.9] * 6, "mc", seed=1)  # with a run of another design, nothing counts as fixed
    low, high = scores_of(tmp_path)["mc"].return_over_episodes
    assert low < 0.5 and high > 0.6


def test_a_run_is_resampled_once_for_all_that_it_is_compared_with(tmp_path: Path) -> None:
    for seed in range(3):
        lay(tmp_path, [0.5] * 4, seed=seed)
    lay(tmp_path, [0.0, 1.0] * 8, "mc")
    (against_three,) = improvements(scores_of(tmp_path), ["mc"])
    lay(tmp_path / "one", [0.5] * 4)
    lay(tmp_path / "one", [0.0, 1.0] * 8, "mc")
    (against_one,) = improvements(scores_of(tmp_path / "one"), ["mc"])
    assert against_three == against_one and against_one.probability == 0.5
    assert against_one.interval.high - against_one.interval.low > 0.4


def test_one_seed_has_no_interval_over_seeds(tmp_path: Path) -> None:
    lay(tmp_path, [0.0, 1.0, 1.0, 1.0])
    found = scores_of(tmp_path)["bc"]
    assert found.over_seeds is None and found.iqm == 100.0 and found.return_mean == 0.75
    # The mean is normalised, not every episode, which would give 75.
    assert found.normalized == pytest.approx(50 + 50 * (0.75 - 0.26) / 0.74)


def test_one_run_has_one_interval_wherever_it_is_shown(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    lay(tmp_path, chance.normal(0.5, 0.2, 64).round(3).tolist())
    found = scores_of(tmp_path)["bc"]
    (run,) = read_records(tmp_path, "text_nav_fo")["bc"].values()
    assert list(found.over_episodes) == run.scores["normalized_ci"]
    assert list(found.return_over_episodes) == run.scores["return_ci"]
    shown = with_interval(run.scores["normalized"], run.scores["normalized_ci"])
    page = write_report(tmp_path, tmp_path / "report").with_suffix(".md").read_text()
    terminal = Console(width=200, file=(said := io.StringIO()))
    terminal.print(summary(tmp_path, ["text_nav_fo"]))
    assert shown in page and shown in said.getvalue()


def test_the_interquartile_mean_over_tasks_and_seeds(tmp_path: Path) -> None:
    for seed, (easy, hard) in enumerate(((1.0, 0.0), (OWN, OWN))):
        lay(tmp_path, [easy] * 3, seed=seed)
        lay(tmp_path, [hard] * 3, task="text_nav_po", seed=seed)
    found = {task: scores_of(tmp_path, task) for task in ("text_nav_fo", "text_nav_po")}
    (one,) = aggregates(found, ["bc", "mc"])
    assert (one.name, one.tasks, one.iqm, one.over_episodes) == ("bc", 2, 50.0, (50.0, 50.0))
    assert one.over_seeds is not None and one.over_seeds == (25.0, 75.0)  # strata {100, 50} and {0, 50}
    assert one.beats_bc is None
    assert aggregates({"text_nav_fo": found["text_nav_fo"]}, ["bc"]) == []


def test_over_tasks_beside_bc(tmp_path: Path) -> None:
    """Both are above BC in one task and below it in the other; PPO has a single seed in the second."""
    tasks = {"text_nav_fo": 0.5, "text_nav_po": 0.1}
    for seed in (0, 1):
        for task, value in tasks.items():
            for name in ("bc", "mc", "ppo") if seed == 0 or task == "text_nav_fo" else ("bc", "mc"):
                lay(tmp_path, [OWN if name == "bc" else value] * 2, name, task, seed)
    bc, mc, ppo = aggregates({task: scores_of(tmp_path, task) for task in tasks}, ["bc", "mc", "ppo"])
    assert (bc.beats_bc, mc.beats_bc, ppo.beats_bc) == (None, 0.5, 0.5)
    assert (mc.beats_bc_over_seeds, ppo.beats_bc_over_seeds, ppo.over_seeds) == ((0.5, 0.5), None, None)


def test_a_single_seed_of_bc_has_no_interval_over_seeds_beside_it(tmp_path: Path) -> None:
    """One task has two seeds of BC, the other one."""
    tasks = ("text_nav_fo", "text_nav_po")
    for task in tasks:
        for seed, value in enumerate((0.2, 0.4)):
            lay(tmp_path, [value] * 4, "mc", task, seed)
        lay(tmp_path, [0.3] * 4, "bc", task)
    lay(tmp_path, [0.1] * 4, "bc", tasks[0], 1)
    _, mc = aggregates({task: scores_of(tmp_path, task) for task in tasks}, ["bc", "mc"])
    assert mc.over_seeds is not None
    assert (mc.beats_bc, mc.beats_bc_over_seeds) == (0.625, None)


def test_improvement_pairs_equal_seeds(tmp_path: Path) -> None:
    """At each seed MC is just above its own BC run, although BC of the other seed is far above both."""
    for seed, base in enumerate((0.0, 0.8)):
        lay(tmp_path, [base] * 3, seed=seed)
        lay(tmp_path, [base + 0.1] * 3, "mc", seed=seed)
    found = scores_of(tmp_path)
    assert improvements(found, ["bc", "mc", "ppo"]) == [("mc", 1.0, (1.0, 1.0))]
    lay(tmp_path, [0.5] * 3, "random")
    assert improvements(scores_of(tmp_path), ["random"])[0].probability == 0.5


def test_training_runs_are_paired_by_seed_or_independent(tmp_path: Path) -> None:
    """Scores on the published scale, by seed: BC 0, 50, 100; MC the same and a little; ILQL without the last seed."""
    for seed, (base, more) in enumerate(((0.0, 0.0), (0.26, 0.0), (1.0, 0.74))):
        lay(tmp_path, [base] * 4, seed=seed)
        lay(tmp_path, [base + 0.0026 * (seed + 1)] * 4, "mc", seed=seed)
        if seed < 2:
            lay(tmp_path, [1.0 - more] * 4, "ilql", seed=seed)
    found = scores_of(tmp_path)
    paired = seed_difference(found["mc"], found["bc"])
    assert paired is not None and paired.interval is not None
    gains = [ours - base for ours, base in zip(found["mc"].by_seed, found["bc"].by_seed, strict=True)]
    assert (paired.mean, paired.pairs) == (pytest.approx(np.mean(gains)), 3)
    assert paired.interval == pytest.approx(student_mean(gains))
    apart = seed_difference(found["ilql"], found["bc"])
    assert apart is not None and apart.interval is not None and (apart.mean, apart.pairs) == (50.0, 0)
    assert apart.interval == pytest.approx(welch_difference([100.0, 100.0], [0.0, 50.0, 100.0]))
    alike = seed_difference(found["bc"], found["bc"])
    assert alike == (0.0, None, 3)
    lay(tmp_path, [0.5] * 4, "ppo")
    assert seed_difference(scores_of(tmp_path)["ppo"], found["bc"]) is None


def test_intervals_that_rest_on_few_games_are_marked(tmp_path: Path) -> None:
    """BC wins about half of its games. MC won all, and so did the optimal policy; nothing says that MC always will."""
    half = [0.0, 1.0] * 32
    lay(tmp_path, half)
    lay(tmp_path, [1.0] * 64, "mc")
    lay(tmp_path, half, "mc", part="evaluation_tuned", decoding={"temperature": 0.25})
    lay(tmp_path, [1.0] * 64, "optimal")
    found = mark_few("text_nav_fo", scores_of(tmp_path))
    marked = {name: one.is_interval_too_narrow for name, one in found.items()}
    assert marked == {"bc": False, "mc": True, "optimal": False}
    assert found["mc"].tuned is not None and not found["mc"].tuned.is_interval_too_narrow
    page = write_report(tmp_path, tmp_path / "report").with_suffix(".md").read_text()
    assert "| MC | as trained | 100.0 [100.0, 100.0] § |" in page and "§ Too narrow to trust" in page
    assert "| optimal |  | 100.0 [100.0, 100.0] |" in page


def test_seeds_on_both_sides_of_a_bend_of_the_scale_rest_on_no_few_games(tmp_path: Path) -> None:
    """The mean of their scores is not the score of their mean, and no single game is the reason."""
    for seed, value in enumerate((0.0, 1.0)):
        lay(tmp_path, [value, value + 0.001] * 500, seed=seed)
    assert not mark_few("text_nav_fo", scores_of(tmp_path))["bc"].is_interval_too_narrow


def test_rates_are_means_over_seeds_whatever_their_numbers_of_games(tmp_path: Path) -> None:
    for seed, lengths in enumerate(((1, 1, 1), (3,))):
        episodes = []
        for length in lengths:
            info = {"success": length == 3, "illegal": length - 1}
            texts = tuple("abcd"[: length + 1])
            episodes.append(Episode("text_nav_fo", texts, texts[1:], (0.0,) * length, True, False, info=info))
        folder = seed_folder(tmp_path, seed) / "text_nav_fo" / "bc"
        write_evaluation(Evaluation("text_nav_fo", "bc", tuple(episodes), seed, 0, {}), folder / "evaluation")
    found = scores_of(tmp_path)["bc"]
    assert (found.success_rate, found.length_mean, found.illegal_rate) == (0.5, 2.0, pytest.approx(1 / 3))


def lay_wins(runs: Path, seed: int, *wins: bool) -> None:
    episodes = []
    for won in wins:
        info = {"success": won}
        episodes.append(Episode("text_nav_fo", ("a\n", "b\n"), ("c\n",), (0.0,), True, False, info=info))
    folder = seed_folder(runs, seed) / "text_nav_fo" / "bc" / "evaluation"
    write_evaluation(Evaluation("text_nav_fo", "bc", tuple(episodes), seed, 0, {}), folder)


def test_a_success_rate_is_within_its_interval_whatever_the_numbers_of_games(tmp_path: Path) -> None:
    """No win in 100 games and a win in a single game: the mean of both rates varies as one of 3.96 games."""
    lay_wins(tmp_path, 0, *[False] * 100)
    lay_wins(tmp_path, 1, True)
    found = scores_of(tmp_path)["bc"]
    assert found.success_rate == 0.5 and found.success_ci.low < 0.5 < found.success_ci.high
    games = 4 / (1 / 100 + 1)
    assert found.success_ci == pytest.approx(wilson(games / 2, games))
    lay_wins(tmp_path, 0, False, True, True)
    lay_wins(tmp_path, 1, False, False, True)
    assert scores_of(tmp_path)["bc"].success_ci == pytest.approx(wilson(3, 6))


def test_checkpoints_tokens_and_time_are_means_over_seeds(tmp_path: Path) -> None:
    for seed, tokens in enumerate((100, 300)):
        lay(tmp_path, [0.26], seed=seed)
        folder = seed_folder(tmp_path, seed) / "text_nav_fo" / "bc"
        write_json({"last": {"normalized": 10.0 + seed}, "tokens": {"trained": tokens}}, folder / "cell.json")
        timing = {"fit": {"seconds": 8.0, "cpu_seconds": 5.0}, "evaluate": {"seconds": 2.0 * seed, "cpu_seconds": 1.0}}
        write_json(timing, folder / "timing.json")
    found = scores_of(tmp_path)["bc"]
    assert (found.last, found.tokens, found.seconds, found.cpu_seconds) == (10.5, 200, 9.0, 6.0)


def test_core_time_is_that_of_every_step_or_unknown(tmp_path: Path) -> None:
    lay(tmp_path, [0.26])
    timing = {"fit": {"seconds": 8.0}, "evaluate": {"seconds": 2.0, "cpu_seconds": 1.0}}
    write_json(timing, seed_folder(tmp_path, 0) / "text_nav_fo" / "bc" / "timing.json")
    found = scores_of(tmp_path)["bc"]
    assert (found.seconds, found.cpu_seconds) == (10.0, None)


def test_the_data_stand_among_the_players(tmp_path: Path) -> None:
    assert data_score(tmp_path, "text_nav_fo") is None
    lay(tmp_path, [0.0, 1.0])
    scores = Evaluation("text_nav_fo", "data", (Episode("text_nav_fo", ("a",), (), (), True, False),) * 2, 0).scores()
    record = {"scores": scores, "returns": np.linspace(0, 1, 101).tolist()}
    write_json(record, tmp_path / "text_nav_fo" / "data" / "cell.json")
    assert (found := data_score(tmp_path, "text_nav_fo")) is not None and found.normalized == 0.0
    page = write_report(tmp_path, tmp_path / "report").with_suffix(".md").read_text()
    assert "| task | BC | data | GPT-4 |" in page and "\n| data |  | 0.0 [0.0, 0.0] |" in page
    assert found.own == 0.0 and found.own_over_episodes == (0.0, 0.0)


def test_both_ways_to_play_stand_beside_each_other(tmp_path: Path) -> None:
    """Comparisons use the settings that were chosen for a run; a run without a choice plays as it was trained."""
    for task in ("text_nav_fo", "text_nav_po"):
        lay(tmp_path, [0.0] * 4, task=task)
        lay(tmp_path, [1.0] * 4, task=task, part="evaluation_tuned", decoding={"temperature": 0.25})
        lay(tmp_path, [OWN] * 4, "mc", task)
    found = {task: scores_of(tmp_path, task) for task in ("text_nav_fo", "text_nav_po")}
    bc = found["text_nav_fo"]["bc"]
    assert bc.normalized == 0.0 and bc.settings == () and bc.chosen is bc.tuned
    assert bc.tuned is not None and (bc.tuned.own, bc.tuned.settings) == (100.0, ("temperature 0.25",))
    assert [(one.name, one.iqm) for one in aggregates(found, ["bc", "mc"])] == [("bc", 100.0), ("mc", 50.0)]
    assert improvements(found["text_nav_fo"], ["mc"])[0].probability == 0.0
    page = write_report(tmp_path, tmp_path / "report").with_suffix(".md").read_text()
    assert "| text\\_nav\\_fo | 0.0, 100.0 / " in page.replace("text_nav_fo", "text\\_nav\\_fo")
    assert (
        "\n| BC | as trained | 0.0 [0.0, 0.0] § |" in page
        and "\n| BC | temperature 0.25 | 100.0 [100.0, 100.0] § |" in page
    )
    lay(tmp_path, [0.0], seed=1)  # a second run, which was not tuned
    assert scores_of(tmp_path)["bc"].tuned is None


def test_a_policy_with_settings_of_its_own_is_not_said_to_play_as_trained(tmp_path: Path) -> None:
    """A policy of the zoo plays with chosen settings, and has no second evaluation."""
    lay(tmp_path, [1.0], "zoo-bc", decoding={"temperature": 0.25})
    lay(tmp_path, [1.0], "zoo-ilql")
    page = write_report(tmp_path, tmp_path / "report").with_suffix(".md").read_text()
    assert "\n| zoo-bc | temperature 0.25 |" in page and "\n| zoo-ilql | as trained |" in page


def test_the_choice_of_other_weights_does_not_count(tmp_path: Path) -> None:
    lay(tmp_path, [0.0], weights="a" * 16)
    lay(tmp_path, [1.0], part="evaluation_tuned", weights="b" * 16)
    assert scores_of(tmp_path)["bc"].tuned is None


def test_settings_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    lay(tmp_path, [0.0])
    lay(tmp_path, [1.0], part="evaluation_tuned", decoding={"temperature": "cold"})
    with pytest.raises(UserError, match=r"decoding\.temperature must be a finite number, got 'cold'"):
        scores_of(tmp_path)


def test_the_own_scale_is_of_the_game_as_it_is(tmp_path: Path) -> None:
    lay(tmp_path, [OWN])
    lay(tmp_path, [OWN], "mc", env={"max_steps": 3})
    found = scores_of(tmp_path)
    assert found["bc"].own == 50.0 and found["mc"].own is None and found["mc"].own_by_seed == ()


def test_the_excess_is_that_of_the_end(tmp_path: Path) -> None:
    lay(tmp_path, [OWN])
    (tmp_path / "text_nav_fo" / "bc" / "metrics.csv").write_text("step,val/bc/excess\n5,0.5\n9,0.25\n")
    assert scores_of(tmp_path)["bc"].excess == 0.25
