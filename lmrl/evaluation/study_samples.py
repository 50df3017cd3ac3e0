"""Dialogues for people to rate, drawn from files of episodes and mixed so that nobody can tell where each is from."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from lmrl.episode import Episode
from lmrl.errors import UserError
from lmrl.storage import read_episodes

__all__ = ["Line", "Sample", "draw_samples", "fingerprint"]

_IDS = 16**8


class Line(NamedTuple):
    """What one side said: ``A`` is the environment (the second speaker), ``B`` the player."""

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
    """How many turns are shown."""
    lines: tuple[Line, ...]


def draw_samples(files: Mapping[str, Path], each: int, seed: int = 0, turns: int | None = None) -> list[Sample]:
    """Draw episodes at random without repetition, from each of them all turns or a window, and shuffle.

    Whoever has only the samples cannot find the order again from the seed: it also depends on the files. An opening
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
        drawn += [(condition, place, episode) for place, episode in _drawn(path, each, chance)]
    chance = Random(f"order {seed} {[fingerprint(path) for path in files.values()]}")
    chance.shuffle(drawn)
    ids = (f"{number:08x}" for number in chance.sample(range(_IDS), len(drawn)))
    headings = _headings([episode for _, _, episode in drawn])
    return [
        _sample(id, condition, place, episode, _window(episode, turns, chance), headings)
        for id, (condition, place, episode) in zip(ids, drawn, strict=True)
    ]


def fingerprint(path: Path) -> str:
    """The file's SHA-256, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
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
        elif (slot := chance.randrange(seen)) < each:
            kept[slot] = place, episode
    if seen < each:
        raise UserError(f"{path}: samples must be at most the number of episodes that have a turn, {seen}, got {each}")
    return kept


def _headings(episodes: Iterable[Episode]) -> set[tuple[str, str]]:
    """Task and opening where there are several episodes of a task and all open alike."""
    openings: dict[str, list[str]] = {}
    for episode in episodes:
        openings.setdefault(episode.task, []).append(episode.observations[0])
    return {(task, texts[0]) for task, texts in openings.items() if len(texts) > 1 and len(set(texts)) == 1}


def _window(episode: Episode, turns: int | None, chance: Random) -> range:
    shown = len(episode) if turns is None else min(turns, len(episode))
    first = chance.randint(0, len(episode) - shown)
    return range(first, first + shown)


def _sample(
    id: str, condition: str, place: int, episode: Episode, window: range, headings: set[tuple[str, str]]
) -> Sample:
    before = episode.observations[window.start]
    heading = window.start == 0 and (episode.task, before) in headings
    lines = [] if heading else [Line("A", before)]
    for turn in window:
        lines += [Line("B", episode.actions[turn]), Line("A", episode.observations[turn + 1])]
    return Sample(id, condition, place, window.start, len(window), tuple(_said(lines)))


def _said(lines: Iterable[Line]) -> list[Line]:
    """Lines without the white space around them, and without those that then are empty."""
    return [Line(speaker, text.strip()) for speaker, text in lines if text.strip()]
