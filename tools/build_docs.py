"""Write the parts of README and docs that follow from records, commands and functions.

Pages mark these parts by comments such as ``<!-- results of maze_fo -->``. ``python tools/build_docs.py`` writes all of
them, and ``--check`` only names the pages that would change.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from lmrl.contrib.symbolic import GridMaze, q_learning
from lmrl.data.storage import read_episodes
from lmrl.envs import registry
from lmrl.evaluation.records import read_records
from lmrl.evaluation.run_folder import transcript
from lmrl.evaluation.scores import Score, score, task_scores
from lmrl.report.fair import fair_rows, table_of
from lmrl.report.tables import Table, footnotes, named, overview, scored
from lmrl.report.wording import UNKNOWN, duration, label, number, ordered, percent, with_interval
from lmrl.reproduce import OFFLINE, ONLINE

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECORDS = ROOT / "results" / "cpu"
FAIR = ROOT / "results" / "protocol"
BENCHMARKS = ROOT / "benchmarks" / "results"
GAMES = ROOT / "docs" / "games"
ZOO = ROOT / "zoo" / "lmrl_zoo" / "policies"
BLOCK = re.compile(r"(<!-- (?!end of )([^>]+?) -->\n)(.*?)(<!-- end of [\w ]+ -->)", re.DOTALL)
"""A generated part of a page: its mark, what the mark says, the text, and the mark at the end."""
LEFT_OUT = {
    *(f"a round of PPO, {task}, V after the last observation, share of it" for task in ("maze_fo", "wordle")),
    *(
        f"ILQL, {batch}, {part}_loss of both"
        for batch in ("32 rows of 128 tokens", "32 games of Wordle")
        for part in ("q", "v", "cql")
    ),
    *(
        f"{task}, tokens of {part}, mean"
        for task in ("twenty_questions", "wordle")
        for part in ("history in a turn", "an action", "the longest of 32 actions")
    ),
}
"""Rows of the comparisons with other packages that the page does not show."""
RATIOS = (
    ("all", "rollout", "twenty_questions, slots / generate"),
    ("all", "rollout", "wordle, slots / generate"),
    ("chat_play", "chat_play", "turns per second, slot engine / generate"),
    ("chat_play", "chat_play", "turns per second, slot engine / vLLM"),
    ("session-nvidia-h200", "gpu_decoding", "GPT-2 small size, bf16, greedy, prefill, slots / generate"),
    ("session-nvidia-h200", "gpu_decoding", "GPT-2 small size, bf16, greedy, rollout in 256 slots, slots / generate"),
    ("all", "training_step", "step, a quarter action tokens: BC / bare"),
    ("all", "training_step", "step, a quarter action tokens: ILQL / BC"),
    ("all", "vocabulary", "time, pieces / all positions"),
    ("all", "vocabulary", "memory, pieces / all positions"),
)
"""Ratios on the page of the benchmarks: the beginning of a file's name, the benchmark, the row."""


@cache
def scores_of(task: str) -> dict[str, Score]:
    """Scores of all policies of a task by name."""
    return task_scores(RECORDS, task)


def with_notes(table: str, tasks: Iterable[str]) -> str:
    """The table and what its marks mean."""
    players = [one for task in tasks for one in scores_of(task).values()]
    return "\n\n".join([table, *footnotes(players, table)])


def grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, [":--", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def of_task(task: str) -> str:
    """Return the table of a task, a row per policy: as trained, and with the decoding settings chosen for it."""
    heads = ["policy", "as trained", "chosen [95 %]", "published", "won", "illegal", "seeds", "minutes"]
    scores = scores_of(task)
    published = registry.task(task).scores.normalized
    rows = []
    for name in ordered(scores):
        trained = scores[name]
        seconds = trained.cpu_seconds or trained.seconds
        # Scripted policies learn nothing and take no time to train.
        minutes = number(seconds / 60) if trained.tokens and seconds else ""
        row = [named(trained), number(trained.normalized), scored(trained.chosen), number(published.get(name))]
        row += [percent(trained.chosen.success_rate), percent(trained.chosen.illegal_rate)]
        row += [str(len(trained.seeds) or UNKNOWN), minutes]
        rows.append(row)
    return with_notes(grid(heads, rows), [task])


def of_all() -> str:
    """Return the report's table: a row per task that has records, as trained, tuned, published."""
    return with_notes(of_table(overview(all_scores())["table"]), registry.tasks())


def of_all_with_starts() -> str:
    """Return the table of `of_all`, and from which run each algorithm starts."""
    return f"{of_all()}\n\n{starts(all_scores())}"


def all_scores() -> dict[str, dict[str, Score]]:
    """Return the scores of all tasks that have records."""
    return {task: players for task in registry.tasks() if (players := scores_of(task))}


def starts(found: Mapping[str, Mapping[str, Score]]) -> str:
    """Return a sentence that says from which run the algorithms start, by their recorded configurations."""
    others: dict[tuple[str, str], list[str]] = {}
    for task, players in found.items():
        records = read_records(RECORDS, task)
        for name in (name for name, one in players.items() if one.tokens and name not in ("bc", "ilql_to_ppo")):
            first = records[name][min(records[name])]
            start = first.config["model"]["init_args"]["pretrained"].rpartition("/")[2]
            if start != "bc":
                others.setdefault((name, start), []).append(task)
    exceptions = ["*ILQL, then PPO* from the ILQL run"]
    for (name, start), tasks in others.items():
        exceptions.append(f"{label(name)} from {label(start)} in {' and '.join(tasks)}")
    return f"Algorithms start from the BC run, except {'; '.join(exceptions)}."


def of_quickstart(task: str) -> str:
    """Return the table that ends ``make quickstart``: the offline algorithms of the first training seed, as trained."""
    records = read_records(RECORDS, task)
    published = registry.task(task).scores
    rows = []
    for name in OFFLINE:
        result = score(task, name, {0: records[name][0]})
        row = [label(name)]
        row += [with_interval(result.normalized, result.over_episodes), number(published.normalized[name])]
        row += [with_interval(result.return_mean, result.return_over_episodes, 2), number(published.raw[name], 2)]
        row.append(percent(result.success_rate, 0))
        rows.append(row)
    return grid([task, "normalised [95 %]", "published", "return [95 %]", "published", "success"], rows)


def of_table(table: Table) -> str:
    """A table of the report in Markdown."""
    return grid(table.heads, table.rows)


def of_fair(base: str | None) -> str:
    """Return the fair table, or with a base its differences from the runs of this method."""
    return of_table(table_of(fair_rows(FAIR), base))


def of_zoo() -> str:
    """Return a row per policy of the repository, with the settings that it was scored with."""
    rows = []
    for task in registry.tasks():
        names = [file.parent.name for file in ZOO.glob(f"{task}/*/zoo.json")]
        for name in ordered(names):
            folder = ZOO / task / name
            entry = json.loads((folder / "zoo.json").read_text(encoding="utf-8"))
            scores = entry["scores"]
            size = sum(file.stat().st_size for file in folder.iterdir())
            settings = ", ".join(f"{key} {value:g}" for key, value in entry["settings"].items())
            row = [f"`zoo:{task}/{name}`", with_interval(scores["normalized"], scores["normalized_ci"])]
            row += [percent(scores["success_rate"]), str(scores["episodes"]), settings or "as trained"]
            row.append(f"{size / 1e6:.1f}")
            rows.append(row)
    return grid(["policy", "normalised [95 %]", "won", "episodes", "settings", "MB"], rows)


def newest(pattern: str) -> dict[str, Any]:
    """Return the newest record of a benchmark: each machine on which it ran has a file of its own.

    Args:
        pattern: of the names of the files.
    """
    records = [json.loads(path.read_text(encoding="utf-8")) for path in BENCHMARKS.glob(pattern)]
    if not records:
        raise FileNotFoundError(f"{BENCHMARKS} lacks {pattern}")
    return max(records, key=lambda record: str(record["date"]))


def of_peers(name: str) -> str:
    """Return what a comparison with other packages found: a table of speeds, all other rows, and what it ran with."""
    # Each comparison is in the file of the machine on which it ran last.
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(BENCHMARKS.glob("peers-*.json"))]
    record = max((file for file in files if name in file["made"]), key=lambda file: str(file["made"][name]["date"]))
    rows = {row["name"]: row for row in record["rows"] if row["benchmark"] == name}
    speeds = []
    used = set()
    for ratio, row in rows.items():
        what, versus, package = ratio.partition(", lmrl / ")
        if not versus:
            continue
        ours = f"{what}, lmrl"
        theirs = f"{what}, {package}"
        used |= {ratio, ours, theirs}
        # The interval of a speed says less than that of the ratio, since both sides share the state of the machine.
        pair = [rows[side]["shown"].partition(" (")[0] for side in (ours, theirs)]
        speeds.append([what, package, *pair, row["shown"]])
    heads = ["what", "other side", "speed of lmrl", "of the other side", "ratio"]
    tables = [grid(heads, speeds)] if speeds else []
    others = [row for row_name, row in rows.items() if row_name not in used | LEFT_OUT]
    if others:
        columns = {"what": "name", "measured": "shown"}
        if any(row["asked"] for row in others):
            columns["asked"] = "asked"
        checks = [[row[key] for key in columns.values()] for row in others]
        tables.append(grid(list(columns), checks))
    facts = record["made"][name]
    versions = ", ".join(f"{package} {number}" for package, number in facts["versions"].items())
    made = f"{facts['machine']['cpu']}; {versions}; commit {facts['commit']}, {facts['date']}."
    return "\n\n".join([*tables, made])


def of_anchors() -> str:
    """Return how often states come again within a group, a row per task."""
    rows: dict[str, list[str]] = {}
    for row in newest("anchors-*.json")["rows"]:
        rows.setdefault(row["name"].partition(":")[0], []).append(row["shown"])
    return grid(["task", "`observation`", "`context`"], [[task, *shown] for task, shown in rows.items()])


def of_illegal_moves(task: str) -> str:
    """Return the shares of illegal first tries in a position, by kind, a row per player of the first training seed."""
    rows: dict[str, dict[str, str]] = {}
    for row in newest("illegal_moves-*.json")["rows"]:
        player, _, what = row["name"].removeprefix(f"{task}, ").partition(": ")
        if row["name"].startswith(f"{task}, ") and not player.startswith("seed "):
            rows.setdefault(player, {})[what] = row["shown"].partition(" of ")[0].replace("%", " %")
    heads = [what.removeprefix("illegal: ") for what in next(iter(rows.values()))]
    return grid(["policy", *heads], [[label(name), *rows[name].values()] for name in ordered(rows)])


def of_costs() -> str:
    """Return a row per task: how long the cells of the first training seed took, one after the other."""
    rows = []
    for task in registry.tasks():
        took = {}
        for name, by_seed in read_records(RECORDS, task).items():
            if name in (*OFFLINE, *ONLINE) and 0 in by_seed:
                cell = by_seed[0].cell
                took[name] = (cell.get("cpu_seconds") or cell["seconds"])["total"]
        longest = max(took, key=lambda name: took[name])
        trainings = f"{len(took)} of {len((*OFFLINE, *ONLINE))}"
        rows.append([task, trainings, duration(sum(took.values())), f"{label(longest)}, {duration(took[longest])}"])
    return grid(["task", "trainings", "together", "the longest"], rows)


def of_ratios() -> str:
    """Return the ratios of `RATIOS`, each with the machine that measured it."""
    lines = []
    for start, benchmark, name in RATIOS:
        record = newest(f"{start}-*.json" if "-" not in start else f"{start}.json")
        row = next(row for row in record["rows"] if (row["benchmark"], row["name"]) == (benchmark, name))
        lines.append([f"`{benchmark}`", name, row["shown"], record["machine"].get("gpu") or record["machine"]["cpu"]])
    return grid(["benchmark", "ratio", "measured", "machine"], lines)


def of_chat_model() -> str:
    """Return a row per algorithm: peak memory and speed with all weights of SmolLM2 and with adapters."""
    record = newest("chat_model-*.json")
    shown = {row["name"]: row["shown"] for row in record["rows"]}
    lines = []
    for name in ("BC", "ILQL", "PPO", "GRPO"):
        labels = [f"SmolLM2, {name}, {weights}" for weights in ("all weights", "adapters")]
        if f"{labels[0]}: learning" in shown:
            lines.append([name, *(shown[f"{row}: {what}"] for row in labels for what in ("peak memory", "learning"))])
    heads = ["algorithm", "all weights: peak memory", "speed", "adapters: peak memory", "speed"]
    time = shown["a step of BC, lmrl / bare loop"]
    memory = shown["peak memory of BC, lmrl / bare loop"]
    beside = f"BC with adapters takes {time} of the time and {memory} of the memory of a bare loop with `peft`."
    return f"{grid(heads, lines)}\n\n{beside} {record['machine']['cpu']}, {record['date'].partition(' ')[0]}."


def of_first_game() -> str:
    """Return a sentence that says how long ``make demo`` takes."""
    record = newest("first_game-*.json")
    (drawn,) = [row["value"] for row in record["rows"] if row["name"].endswith("drawn")]
    machine = f"{record['machine']['cpu']}, {record['machine']['cores']} cores"
    return f"After installation, the browser shows the first game after {duration(drawn)} ({machine})."


def expected(task: str, names: Sequence[str]) -> str:
    """Return the final scores of the commands above the mark and how long they take, a line per algorithm."""
    lines = []
    for name in names:
        result = scores_of(task)[name]
        line = f"- `{name}`: normalised {scored(result)} as trained"
        if result.tuned is not None:
            line += f", {number(result.tuned.normalized)} with chosen settings"
        runs = "one run" if len(result.seeds) == 1 else f"{len(result.seeds)} training seeds"
        measured = "of one core" if result.cpu_seconds else "by the clock"
        lines.append(f"{line}; {duration(result.cpu_seconds or result.seconds)} {measured} with evaluation, {runs}")
    return with_notes("\n".join(lines), [task])


def played() -> str:
    """A game of Wordle as `transcript` prints it."""
    return transcript(min(read_episodes(GAMES / "wordle.jsonl"), key=len))


def values() -> str:
    """Return a map of the maze: the highest Q of each cell, as a table has learned it, and the goal."""
    env = GridMaze()
    q = q_learning(env)
    best = {cell: f"{np.max(row):.1f}" for cell, row in zip(env.grid.cells, q, strict=True)}
    best[env.grid.layout.goal] = "G"
    rows = len(env.grid.layout.rows)
    cols = len(env.grid.layout.rows[0])
    lines = ("".join(f"{best.get((row, col), '#'):>5}" for col in range(cols)) for row in range(rows))
    return "\n".join(lines)


def api(package: str) -> str:
    """A heading of the API page for each class of a package."""
    found = import_module(package)
    classes = [name for name in found.__all__ if isinstance(getattr(found, name), type)]
    return "\n\n".join(f"::: {package}.{name}" for name in sorted(classes, key=str.lower))


SHOWN = {"played": played, "values": values}
"""Outputs that a page shows, by the word after ``shown:``."""

RESULTS = {
    "all": of_all_with_starts,
    "costs": of_costs,
    "zoo": of_zoo,
}
"""Tables over several tasks, by the word after ``results of``."""


@cache
def generated(mark: str) -> str | None:
    """Return the text that belongs below a mark, or None for a comment that is no mark.

    Args:
        mark: the words of the comment, such as ``results of maze_fo``.
    """
    kind, _, name = mark.partition(" of ")
    if kind == "results":
        return RESULTS[name]() if name in RESULTS else of_task(name)
    if mark == "fair scores":
        return of_fair(None)
    if mark.startswith("fair differences from "):
        return of_fair(mark.removeprefix("fair differences from "))
    if kind == "peers":
        return of_peers(name)
    if kind == "expected":
        task, _, names = name.partition(": ")
        return expected(task, names.split())
    if kind == "illegal moves":
        return of_illegal_moves(name)
    if kind == "quickstart":
        return of_quickstart(name)
    if kind == "api":
        return api(name)
    if mark == "first game":
        return of_first_game()
    if mark == "anchors":
        return of_anchors()
    if mark == "chat model":
        return of_chat_model()
    if mark == "ratios":
        return of_ratios()
    if mark.startswith("shown: "):
        show = SHOWN[mark.removeprefix("shown: ")]
        return f"```text\n{show().rstrip()}\n```"
    return None


def renewed(page: str) -> str:
    """Return a page with its generated parts as they are today."""

    def renew(block: re.Match[str]) -> str:
        start, mark, _, end = block.groups()
        text = generated(mark)
        return block[0] if text is None else f"{start}\n{text}\n\n{end}"

    return BLOCK.sub(renew, page)


def main(words: Sequence[str] | None = None) -> int:
    """Write the pages that change, or with ``--check`` only name them and return 1 if there are any.

    Args:
        words: arguments of the command line; those of the process by default.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and exit with 1 if a page would change")
    check = parser.parse_args(words).check
    stale = False
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        after = renewed(before)
        if after == before:
            continue
        stale = True
        print(f"{path.relative_to(ROOT)} {'is stale: run python tools/build_docs.py' if check else 'written'}")
        if not check:
            path.write_text(after, encoding="utf-8")
    return int(check and stale)


if __name__ == "__main__":
    sys.exit(main())
