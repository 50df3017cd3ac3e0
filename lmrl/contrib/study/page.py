"""A study of how people rate dialogues: draw and shuffle episodes, write the page for raters and the key to it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from lmrl.data.storage import played_file, read_episodes
from lmrl.errors import UserError
from lmrl.evaluation.result_json import read_json, write_json
from lmrl.report.pages import check_page, render_page, scripts
from lmrl.types import Episode
from lmrl.utils.files import replacing

__all__ = ["QUESTION", "Line", "Sample", "draw_samples", "fingerprint", "write_study"]

_IDS = 16**8


class Line(NamedTuple):
    """A line of one side: ``A`` is the environment (the partner), ``B`` the player."""

    speaker: str
    text: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A dialogue, or some turns of one."""

    id: str
    """Eight hexadecimal digits that say nothing."""
    condition: str
    episode: int
    """Its place in the condition's file, from 0."""
    first: int
    """The first turn shown, from 0."""
    turns: int
    """Number of turns shown."""
    lines: tuple[Line, ...]


def draw_samples(files: Mapping[str, Path], each: int, seed: int = 0, turns: int | None = None) -> list[Sample]:
    """Draw episodes at random without repetition, from each of them all turns or a window, and shuffle.

    The samples alone do not reveal the order, even with the seed: it also depends on the files. An opening
    that all drawn episodes of a task share is a heading, nothing that was said, and left out.

    Args:
        files: a file of episodes for each condition; read as a stream, so it may be larger than memory.
        each: samples of each condition.
        seed: the same files and seed give the same samples, ids and order.
        turns: length of the window, which begins anywhere; None and episodes not longer: all turns.

    Raises:
        UserError: ``each`` or ``turns`` below 1, fewer episodes with a turn than ``each``, or an unreadable file.
    """
    for name, value in (("samples", each), ("turns", turns)):
        if value is not None and value < 1:
            raise UserError(f"{name} must be at least 1, got {value}")
    drawn: list[tuple[str, int, Episode]] = []
    for condition, path in files.items():
        chance = Random(f"episodes {seed} {condition}")
        for place, episode in _drawn(path, each, chance):
            drawn.append((condition, place, episode))
    # The generator depends on the content of the files, so the seed alone does not undo the shuffling.
    chance = Random(f"order {seed} {list(map(fingerprint, files.values()))}")
    chance.shuffle(drawn)
    numbers = chance.sample(range(_IDS), len(drawn))
    # An opening is a heading where several episodes of a task were drawn and all open alike.
    openings: dict[str, list[str]] = {}
    for _, _, episode in drawn:
        openings.setdefault(episode.task, []).append(episode.observations[0])
    samples = []
    for number, (condition, place, episode) in zip(numbers, drawn, strict=True):
        shown = len(episode) if turns is None else min(turns, len(episode))
        first = chance.randint(0, len(episode) - shown)
        alike = openings[episode.task]
        has_heading = first == 0 and len(alike) > 1 and len(set(alike)) == 1
        lines = [] if has_heading else [Line("A", episode.observations[first].strip())]
        for turn in range(first, first + shown):
            lines.append(Line("B", episode.actions[turn].strip()))
            lines.append(Line("A", episode.observations[turn + 1].strip()))
        spoken = tuple(line for line in lines if line.text)
        samples.append(Sample(f"{number:08x}", condition, place, first, shown, spoken))
    return samples


def fingerprint(path: Path) -> str:
    """Return the file's SHA-256, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        # In parts: a file of episodes may be larger than memory.
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _drawn(path: Path, each: int, chance: Random) -> list[tuple[int, Episode]]:
    """Some episodes with a turn, each set of them equally likely (reservoir sampling: Vitter 1985, algorithm R)."""
    kept: list[tuple[int, Episode]] = []
    seen = 0
    for place, episode in enumerate(read_episodes(path)):
        if not len(episode):
            continue
        seen += 1
        if len(kept) < each:
            kept.append((place, episode))
            continue
        # The n-th episode is kept with probability each / n, in the place of any of those that are kept.
        slot = chance.randrange(seen)
        if slot < each:
            kept[slot] = (place, episode)
    if seen < each:
        raise UserError(f"{path}: samples must be at most the number of episodes that have a turn, {seen}, got {each}")
    return kept


QUESTION = "How natural is this dialogue?"
_SCALE = ("not at all", "a little", "fairly", "very", "completely")


def write_study(
    conditions: Mapping[str, Path],
    out: Path,
    samples: int = 9,
    seed: int = 0,
    turns: int | None = None,
    question: str = QUESTION,
) -> Path:
    """Write ``page.html``, on which people rate dialogues from 1 to 5, and ``page.key.json``, which tells them apart.

    The page holds texts and ids, nothing that names or depends on a condition; it loads nothing and runs no script but
    its own, whatever the texts are. The key holds the condition, episode and turns of each id.

    Args:
        conditions: a file of episodes for each name, or the folder of an evaluation or of an evaluated run, see
            `lmrl.data.storage.played_file`.
        out: the page, ``NAME.html``.
        samples: dialogues of each condition.
        seed: the same files and seed give the same page.
        turns: show windows of this many turns; None: whole dialogues.
        question: what people are asked about each dialogue.

    Returns:
        The path of the key.

    Raises:
        UserError: another suffix, an empty question, the key of another study in the way, or see `draw_samples`.
    """
    if out.suffix != ".html":
        raise UserError(f"out must be an .html file, got {str(out)!r}")
    if not question.strip():
        raise UserError("question must not be empty")
    check_page(out, "lmrl study")
    conditions = dict(zip(conditions, map(played_file, conditions.values()), strict=True))
    drawn = draw_samples(conditions, samples, seed, turns)
    study = _study_id(question, drawn)
    key = out.with_suffix(".key.json")
    # Without its key, the ratings of an earlier study are worth nothing, so it is never overwritten.
    other = read_json(key).get("study") if key.is_file() else study
    if other is None:
        raise UserError(f"{key} is there, and no key of a study; choose another out")
    if other != study:
        raise UserError(f"{key} is the key of another study ({other}), whose ratings need it; choose another out")
    # The key holds what the page must not: where each sample is from.
    about = {name: {"file": str(path), "sha256": fingerprint(path)} for name, path in conditions.items()}
    samples_by_id = {}
    for sample in drawn:
        samples_by_id[sample.id] = {
            "condition": sample.condition,
            "episode": sample.episode,
            "first": sample.first,
            "turns": sample.turns,
        }
    settings = {"seed": seed, "turns": turns, "question": question}
    write_json({"study": study, **settings, "conditions": about, "samples": samples_by_id}, key)
    package = "lmrl.contrib.study"
    words = {"study": study, "question": question, "samples": drawn, "scale": _SCALE, **scripts(package, "study.js")}
    with replacing(out) as file:
        file.write(render_page(package, "study.html.j2", words).encode())
    return key


def _study_id(question: str, samples: Sequence[Sample]) -> str:
    """Return an id of the page's visible content, so that ratings of different pages are never mixed up."""
    shown = [question, [(sample.id, sample.first > 0, sample.lines) for sample in samples]]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]
