"""``lmrl compare``: evaluations of one task in one table, and whether they can be told apart."""

from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase

from rich.markup import escape
from rich.table import Table

from lmrl.checkpoints.run_files import has_run
from lmrl.errors import UserError
from lmrl.evaluation.comparison import Comparison, Played, compare, read_played
from lmrl.evaluation.intervals import Interval
from lmrl.evaluation.run_folder import is_outdated
from lmrl.report.wording import number, with_interval
from lmrl.utils.consoles import table_console

__all__ = ["compare_command"]


def compare_command(evaluations: list[str]) -> None:
    """Compare evaluations of one task: mean returns, differences from the first, and which returns more how probably.

    Where the same games were played (the same seed and number of episodes), they are compared game by game. Intervals
    are 95 % over episodes: of these very players, had they played other games. What another training seed would have
    learned they do not say.

    Args:
        evaluations: two or more folders that lmrl evaluate wrote, their scores.json, or run folders with an evaluation.
    """
    if len(evaluations) > len(ascii_uppercase):
        raise UserError(f"at most {len(ascii_uppercase)} evaluations are compared, got {len(evaluations)}")
    played = [read_played(Path(name)) for name in evaluations]
    compared = compare(played)
    console = table_console()
    console.print(f"{played[0].scores['task']}, {_games(played, compared)}", markup=False, soft_wrap=True)
    for letter, one in zip(ascii_uppercase, played, strict=False):
        told = f"policy {one.scores['policy']}"
        if one.settings:
            told += f", {one.settings}"
        if one.is_selection:
            told += ", games to choose settings by"
        console.print(f"{letter}: {one.folder} ({told})", markup=False, soft_wrap=True)
        if has_run(one.folder.parent) and is_outdated(one.folder):
            note = f"note: {letter} is of weights that the run no longer has; evaluate it again"
            console.print(note, markup=False, soft_wrap=True)
    console.print(_table(played, compared))
    for letter, beside in zip(ascii_uppercase[1:], compared, strict=False):
        console.print(_reading(letter, beside), markup=False, soft_wrap=True)


def _games(played: Sequence[Played], compared: Sequence[Comparison]) -> str:
    first = played[0].scores
    if all(one.paired for one in compared):
        return f"{first['episodes']} episodes each, seed {first['seed']}: all played the same games"
    told = (f"{one.scores['episodes']} of seed {one.scores['seed']}" for one in played)
    mend = "evaluate with the same --episodes and --seed"
    if len({one.is_selection for one in played}) > 1:
        mend = "evaluate all with --selection, or none"
    return f"episodes: {'; '.join(told)}: not all played the same games, so differences are less certain ({mend})"


def _table(played: Sequence[Played], compared: Sequence[Comparison]) -> Table:
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("", min_width=1)
    for head in ("return [95 %]", "success", "minus A [95 %]", "more than A [95 %]"):
        table.add_column(escape(head), justify="right")  # in a narrow terminal an interval goes to the next line
    for letter, one, beside in zip(ascii_uppercase, played, [None, *compared], strict=False):
        means = one.table.means()
        row = [with_interval(means["return_mean"], one.mean_interval, 2), f"{means['success_rate']:.1%}"]
        if beside is not None:
            row += [with_interval(beside.difference, beside.difference_interval, 2), _percent(beside)]
        table.add_row(letter, *map(escape, row))
    return table


def _percent(one: Comparison) -> str:
    low, high = Interval(*(100 * end for end in one.improvement_interval))
    return f"{number(100 * one.improvement)} % [{number(low)}, {number(high)}]"


def _reading(letter: str, one: Comparison) -> str:
    if one.episodes < 2:
        return f"{letter} and A are not told apart: one episode does not say how returns vary"
    if not one.same_starts:
        return (
            f"{letter} and A are not told apart: they did not play the same starts equally often, which may be the "
            "whole difference"
        )
    how = "game by game" if one.paired else "each with games of its own"
    means = "the intervals of the two means are apart" if one.apart else "the intervals of the two means overlap"
    where = {
        "higher": "returns more than A: the interval of the difference lies above 0",
        "lower": "returns less than A: the interval of the difference lies below 0",
        "not told apart": "and A are not told apart: the interval of the difference holds 0",
    }[one.reading]
    return f"{letter} {where} ({how}); {means}"
