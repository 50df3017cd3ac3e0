import base64
import csv
import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from lmrl.envs import registry
from lmrl.envs.scores import Scores
from lmrl.errors import UserError
from lmrl.report.report import write_report
from lmrl.report.wording import colour, count, is_known, number
from tests.helpers.browser import in_browser

pytestmark = pytest.mark.usefixtures("few_resamples")

ALWAYS = {"report.md", "report.html", "table.csv", "table.json", "scores.png", "returns.png", "lengths.png"}
DASH = "\N{EN DASH}"
METRICS = "epoch,ilql/q_loss,step,train/loss\n0,1.5,9,2.5\n0,1.0,19,1.5\n"
EVIL = "<script>alert(1)</script>|`x` **b** [a](javascript:1)\x1b[31m\x00\n"


class Page(HTMLParser):
    """Tags, text and pictures of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, run_of: Callable[..., Path], seer: Any, player: Any) -> Path:
    """A finished BC (always down) and ILQL (always right), and a player with bad manners; no filtered BC, no MC."""
    place = tmp_path_factory.mktemp("report")
    run_of(place / "runs", "bc", player(lambda request: "move down\n"))
    run_of(place / "runs", "ilql", seer, metrics=METRICS)
    run_of(place / "runs", "evil<b>|name", player(lambda request: EVIL), episodes=2)
    return write_report(place / "runs", place / "report").parent


def row(report: Path, begin: str) -> list[str]:
    lines = (report / "report.md").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"| {begin} |")).strip("| ").split(" | ")


def test_all_files_are_there(report: Path) -> None:
    expected = {*ALWAYS, "learning_curves.png", "losses_maze_fo.png", "improvement.png", "maze_values_maze_fo.png"}
    assert {path.name for path in report.iterdir()} == expected


def test_a_row_holds_ours_beside_the_published(report: Path) -> None:
    cells = row(report, "ILQL")
    assert cells[1] == "as trained" and cells[2].startswith("100.0 [") and cells[3:5] == [DASH, "99.9"]
    assert cells[5].startswith("100.0 [") and cells[6] == DASH
    assert cells[7].startswith("\N{MINUS SIGN}6.84 [") and cells[8] == "\N{MINUS SIGN}6.97"
    assert cells[9:] == ["100.0 [86.7, 100.0] %", "7.8", "0.00 %", DASH, "25", DASH, DASH, "5 min 03 s"]
    assert row(report, "BC")[4] == "58.2 †"


def test_the_table_holds_all_tasks_and_players_beside_the_published(report: Path) -> None:
    cells = row(report, "maze_fo")
    lines = (report / "report.md").read_text().splitlines()
    heads = next(line for line in lines if line.startswith("| task | BC")).strip("| ").split(" | ")
    assert (
        heads == ["task", "BC", "ILQL", r"evil&lt;b&gt;\|name", "GPT-4"]
        and cells[4] == f"{DASH} / 78.2"
        and cells[2] == "100.0 / 99.9"
        and cells[1].endswith(" / 58.2 †")
    )
    section = (report / "report.md").read_text().split("### Published scores that do not follow")[1].split("###")[0]
    assert "| maze_fo | MC | \N{MINUS SIGN}48.10 | 75.0 | 72.9 |" in section


@pytest.fixture(scope="module")
def every(report: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[list[str]]]:
    """The heads of the three tables over all tasks, and the line below the first, with players of these names."""
    runs = tmp_path_factory.mktemp("every")

    def heads(*names: str, algorithms: Sequence[str] = ()) -> list[list[str]]:
        shutil.rmtree(runs / "maze_fo", ignore_errors=True)
        for name in names:
            shutil.copytree(report.parent / "runs/maze_fo/bc", runs / "maze_fo" / name)
        page = write_report(runs, runs / "report", algorithms=algorithms or None).with_suffix(".md").read_text()
        lines = [line for line in page.splitlines() if line.startswith("| task | BC")]
        below = re.search(r"^In the tables of the tasks: .*", page, re.MULTILINE)
        return [*(line.strip("| ").split(" | ") for line in lines), [below.group()] if below else []]

    return heads


@pytest.mark.usefixtures("no_pictures")
def test_every_player_that_is_found_has_a_column(every: Callable[..., list[list[str]]]) -> None:
    table, own, returns, below = every("smooth_bc", "bc", "behaviour", "optimal")
    assert returns == own == ["task", "BC", "optimal", "behaviour", r"smooth_bc"]
    assert table == [*returns, "GPT-4"] and below == []


@pytest.mark.usefixtures("no_pictures")
def test_where_there_are_too_many_those_of_the_benchmark_ones_own_and_those_asked_for_have(
    every: Callable[..., list[list[str]]],
) -> None:
    more = ("awr", "archer", "grpo", "gigpo", "behaviour", "turn_ppo")
    benchmark = ("bc", "filtered_bc", "mc", "ilql", "ppo", "online_filtered_bc", "random", "optimal")
    table, _, returns, _ = every(*benchmark, *more)
    assert len(returns) == 15 and returns[-1] == "GiGPO"
    table, _, returns, below = every(*benchmark, *more, "smooth_bc", algorithms=["bc", "grpo"])
    assert returns[-4:] == ["random", "optimal", "GRPO", "smooth_bc"] and table == [*returns, "GPT-4"]
    assert below == ["In the tables of the tasks: behaviour, AWR, ArCHer, PPO by turn, GiGPO."]


@pytest.fixture
def own_task() -> Iterator[str]:
    """A maze of one's own, about which nothing was published."""
    row = dataclasses.replace(
        registry.task("maze_fo"), name="my_maze", env_id="lmrl/MyMaze-v0", scores=Scores(), own_scale=None
    )
    registry.register(row)
    yield row.name
    del registry._TASKS[row.name], gymnasium.registry[row.env_id]


def test_of_a_task_without_published_numbers_no_empty_tables_are_shown(
    tmp_path: Path, own_task: str, run_of: Callable[..., Path], player: Any
) -> None:
    for name in ("bc", "optimal"):
        run_of(tmp_path / "runs", name, player(lambda request: "move down\n"), task=own_task, episodes=2)
    page = write_report(tmp_path / "runs", tmp_path / "report").with_suffix(".md")
    text = page.read_text().replace("\\", "")
    assert text.startswith("# Results\n") and "<h1>Results</h1>" in page.with_suffix(".html").read_text()
    assert "Mean returns: the task has no published constants.\n\n| task | BC | optimal |\n" in text
    assert "Mean undiscounted returns.\n" in text
    for words in (text, Page(page.with_suffix(".html").read_text()).words):
        assert "The task has no published constants: its normalised scores are mean returns." in words
        for absent in (
            "GPT-4",
            "The constants",
            "do not follow\n",
            "numbers, checked",
            "the paper's Table",
            "own scale [",
        ):
            assert absent not in words.partition("How to read this")[0]
    heads = next(line for line in text.splitlines() if line.startswith("| player | play | normalised"))
    assert "published" not in heads and not (page.parent / "scores.png").exists()


def test_beside_tasks_of_the_benchmark_it_has_dashes(
    tmp_path: Path, own_task: str, run_of: Callable[..., Path], player: Any
) -> None:
    for task in ("maze_fo", own_task):
        run_of(tmp_path / "runs", "bc", player(lambda request: "move down\n"), task=task, episodes=2)
    page = write_report(tmp_path / "runs", tmp_path / "report").with_suffix(".md")
    text = page.read_text().replace("\\", "")
    assert text.startswith("# LMRL-Gym, reproduced\n")
    assert "constants. Mean returns of my_maze: the task has no published constants.\n" in text
    section = text.split("### The constants")[1].split("###")[0]
    assert f"| my_maze | {DASH} | {DASH} | {DASH} |" in section and "our data" not in section
    assert "| my_maze | \N{MINUS SIGN}" in text.split("### Returns")[1] and (page.parent / "scores.png").is_file()


def test_the_table_as_files(report: Path) -> None:
    table = json.loads((report / "table.json").read_text())
    ilql = next(cell for cell in table["cells"] if cell["name"] == "ilql")
    assert ilql["normalized"] == pytest.approx(100) and ilql["over_seeds"] is None and ilql["published"] == 99.9
    assert table["constants"]["maze_fo"]["minimum"] == -101
    with (report / "table.csv").open() as file:
        rows = {line["name"]: line for line in csv.DictReader(file)}
    assert float(rows["ilql"]["over_episodes_low"]) == ilql["over_episodes"][0]
    assert rows["ilql"]["over_seeds_low"] == "" and rows["bc"]["published_follows"] == "False"


def test_the_difference_has_an_interval(report: Path) -> None:
    cells = row(report, "ILQL \N{MINUS SIGN} BC")
    assert cells[5] == "of these runs: higher" and cells[2:4] == [DASH, "41.7"]
    low, high = re.findall(r"\[([\d.]+), ([\d.]+)\]", cells[1])[0]
    assert 30 < float(low) < float(cells[1].split()[0]) < float(high) < 110


def test_printed_scores_that_do_not_follow_are_marked(report: Path) -> None:
    section = (report / "report.md").read_text().split("### The published numbers, checked")[1].split("The scale:")[0]
    marked = {line.split(" | ")[0].strip("| ") for line in section.splitlines() if "† does not follow" in line}
    assert marked == {"BC", "filtered BC", "MC"}
    assert "| \N{MINUS SIGN}48.10 | 75.0 | 72.9 |" in section


def test_missing_algorithms_warnings_and_commands_are_told(report: Path) -> None:
    for name in ("report.md", "report.html"):
        words = (report / name).read_text()
        words = Page(words).words if name.endswith("html") else words.replace("\\", "")
        assert "no evaluation of filtered BC, MC was found; made by: lmrl reproduce maze_fo" in words
        assert "2 of 2 returns are below -101, the lowest of the published scale" in words
        assert "lmrl fit --config configs/maze_fo/ilql.yaml --seed_everything 0    # 5 min 03 s" in words


def test_the_page_needs_nothing_else_and_runs_nothing(report: Path) -> None:
    page = Page((report / "report.html").read_text())
    assert not {"script", "b", "link", "iframe"} & set(page.tags)
    assert EVIL.split("\x1b")[0] in page.words and "evil<b>|name" in page.words
    assert [source[:22] for source in page.sources] == ["data:image/png;base64,"] * 7
    assert base64.b64decode(page.sources[0][22:]) == (report / "scores.png").read_bytes()


@pytest.mark.slow
def test_everyone_can_read_the_page(report: Path) -> None:
    in_browser(report / "report.html", "return null;")


def test_control_characters_are_gone(report: Path) -> None:
    for name in ("report.md", "report.html"):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", (report / name).read_text())


def test_markdown_shows_hostile_text_as_text(report: Path) -> None:
    lines = (report / "report.md").read_text().splitlines()
    assert row(report, r"evil&lt;b&gt;\|name")[13] == "2"
    for line in lines:
        assert "<script" not in line or line.startswith("    ")


def test_without_curves_or_probes_there_are_no_such_pictures(
    tmp_path: Path, run_of: Callable[..., Path], player: Any
) -> None:
    run_of(tmp_path / "runs", "bc", player(lambda request: "move down\n"), task="maze_po")
    page = write_report(tmp_path / "runs", tmp_path / "report", algorithms=["bc"])
    assert {path.name for path in page.parent.iterdir()} == ALWAYS
    assert "no evaluation of" not in page.read_text()


@pytest.mark.usefixtures("no_pictures")
def test_the_tokens_of_a_row_are_said(tmp_path: Path, run_of: Callable[..., Path], player: Any) -> None:
    run = run_of(tmp_path / "runs", "bc", player(lambda request: "move down\n"))
    settings = {"pretrained": None, "tokenizer": "lmrl-letters", "task_tokens": {"name": "wordle"}}
    for given, said in (
        (settings, "Tokens: those of lmrl-letters, with the texts of wordle as tokens."),
        (settings | {"tokenizer": None, "task_tokens": None}, "Tokens: those of the default tokenizer."),
        (settings | {"pretrained": "gpt2"}, None),
    ):
        (run / "config.yaml").write_text(json.dumps({"model": {"init_args": given}}))
        page = write_report(tmp_path / "runs", tmp_path / "report").with_suffix(".md").read_text()
        assert said in page if said else "Tokens:" not in page


def test_curves_over_time_and_over_what_was_drawn(tmp_path: Path, run_of: Callable[..., Path], player: Any) -> None:
    lines = "rollout/episodes,eval/maze_fo/return_mean,step,time/train_seconds\n64,,0,\n,-50,5,30\n128,,5,\n,-40,9,60\n"
    run_of(tmp_path / "runs", "ppo", player(lambda request: "move down\n"), metrics=lines)
    page = write_report(tmp_path / "runs", tmp_path / "report").with_suffix(".md").read_text()
    assert (tmp_path / "report" / "minutes.png").is_file() and "(samples.png)" in page


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="make some with: lmrl reproduce"):
        write_report(tmp_path)
    with pytest.raises(UserError, match="unknown task"):
        write_report(tmp_path, tasks=["maze"])
    assert not (tmp_path / "report").exists()


def test_bcs_distance_from_the_floor_is_drawn_where_it_was_logged(
    tmp_path: Path, run_of: Callable[..., Path], player: Any
) -> None:
    logged = "epoch,step,train/loss,val/bc/excess\n0,9,2.5,\n0,9,,0.75\n0,19,,0.5\n"
    run_of(tmp_path / "runs", "bc", player(lambda request: "move down\n"), episodes=2, metrics=logged)
    out = write_report(tmp_path / "runs", tmp_path / "report").parent
    assert (out / "excess.png").is_file()
    assert "### BC above the floor" in (out / "report.md").read_text()
    (tmp_path / "runs" / "maze_fo" / "bc" / "metrics.csv").write_text(METRICS)
    write_report(tmp_path / "runs", out)
    assert not (out / "excess.png").exists() and "above the floor" not in (out / "report.md").read_text()


ALGORITHMS = sorted(path.stem for path in Path("configs/maze_fo").glob("*.yaml"))


def test_lines_of_two_algorithms_in_one_panel_can_be_told_apart() -> None:
    shades = {name: tuple(bytes.fromhex(colour(name)[1:])) for name in ALGORITHMS if is_known(name)}
    assert {"mc", "grpo", "gigpo"} <= set(shades)
    apart = {
        (a, b): sum((x - y) ** 2 for x, y in zip(shades[a], shades[b], strict=True)) ** 0.5
        for a, b in combinations(shades, 2)
    }
    assert {pair: distance for pair, distance in apart.items() if distance < 40} == {}


@pytest.mark.parametrize(
    ("value", "shown"), [(-0.04, "0.0"), (-0.06, "\N{MINUS SIGN}0.1"), (0.0, "0.0"), (None, "\N{EN DASH}")]
)
def test_zero_has_no_sign(value: float | None, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(980, "980"), (999.6, "1.00 k"), (9_996, "10.0 k"), (123_456, "123 k"), (999_600, "1.00 M"), (1.5e12, "1500 G")],
)
def test_counts_have_three_digits(value: float, shown: str) -> None:
    assert count(value) == shown
