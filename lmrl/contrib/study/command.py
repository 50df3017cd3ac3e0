"""``lmrl study``: have people rate dialogues without knowing where each is from, and evaluate the ratings."""

import json as json_format
import sys
from collections.abc import Sequence
from pathlib import Path

from lmrl.contrib.study.page import QUESTION, write_study
from lmrl.contrib.study.ratings import read_ratings, study_table
from lmrl.errors import UserError
from lmrl.utils.consoles import table_console

__all__ = ["make_command", "table_command"]

_PUBLISHED = "Published (6 people, 18 examples), rated >= 3: GPT 55.56 %, MC model 58.52 %."


def make_command(
    files: list[str],
    *,
    out: Path,
    samples: int = 9,
    seed: int = 0,
    turns: int | None = None,
    question: str = QUESTION,
) -> None:
    """Write an HTML page with shuffled dialogues to rate from 1 to 5, and the key that tells them apart.

    Args:
        files: .parquet or .jsonl files of episodes, one for each condition; NAME=FILE names a condition.
        out: the page, an .html file; the key is written next to it as .key.json.
        samples: dialogues of each condition.
        seed: the same files and seed give the same page.
        turns: show windows of this many turns (default: whole dialogues).
        question: what people are asked about each dialogue.
    """
    conditions = _conditions(files)
    key = write_study(conditions, out, samples, seed, turns, question)
    print(f"{samples * len(conditions)} dialogues written to {out}; send it to the people who rate")
    print(f"which is which: {key}; keep it to yourself until all ratings are in")


def table_command(key: Path, ratings: list[str], *, seed: int = 0, json: bool = False) -> None:
    """Compare conditions by their ratings: means, shares of 3 and more, permutation tests.

    Args:
        key: the .key.json file of the study.
        ratings: the files that people's pages saved.
        seed: seed of the resampling.
        json: print JSON instead of tables.
    """
    returned = read_ratings(key, [Path(name) for name in ratings])
    table = study_table(returned, seed)
    if json:
        print(json_format.dumps(table.to_dict(), indent=2))
        return
    console = table_console()
    for part in table.shown():
        console.print(part)
    print(_PUBLISHED)
    # Dialogues are named by the numbers that the page shows.
    numbers = {name: str(place) for place, name in enumerate(returned.samples, start=1)}
    for rater, ids in returned.missing().items():
        shown = ", ".join(map(numbers.__getitem__, ids))
        print(f"{rater} did not rate {len(ids)} of {len(numbers)}: dialogue {shown}", file=sys.stderr)


def _conditions(words: Sequence[str]) -> dict[str, Path]:
    """Return the file of each condition; a file without a name gets the one that its path ends in."""
    conditions: dict[str, Path] = {}
    for word in words:
        name, equals, file = word.partition("=")
        # Folders of evaluations have "=" in their names.
        is_named = bool(equals) and not Path(word).exists()
        path = Path(file if is_named else word)
        if not is_named:
            name = path.name if path.is_dir() else path.stem
        if not name.strip() or name in conditions:
            raise UserError(f"each file needs a condition of its own, got {name!r} for {word!r}; say NAME=FILE")
        conditions[name] = path
    return conditions
