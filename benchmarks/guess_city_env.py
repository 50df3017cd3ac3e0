"""Guess My City: dialogues recorded and answers given per second, and how often the informed guesser succeeds."""

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import lmrl
from benchmarks.row import Row
from lmrl.data import generate
from lmrl.envs.guess_city.cities import cities, topics
from lmrl.envs.guess_city.oracle import ScriptedResident
from lmrl.envs.registry import make_policy
from lmrl.rollout import rollout
from lmrl.types import PartnerRequest, Start

DIALOGUES = 2_000


def dialogues_per_second(size: int) -> float:
    """Recording as `lmrl data generate` does it, the file included; processor time."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "games.parquet"
        # The tables are not what is measured.
        generate("guess_city", 100, 0, path.with_name("first.parquet"), progress=False)
        began = time.process_time()
        generate("guess_city", size, 1, path, progress=False)
        return size / (time.process_time() - began)


def answers_per_second() -> float:
    """One answer to each question of the table about each city, ten times."""
    resident = ScriptedResident()
    asked = [question for topic in topics() for question in topic.questions] * 10
    requests = [
        PartnerRequest("guess_city", {"city": city.name}, (f"{question}\n",), (), seed)
        for city in cities()
        for seed, question in enumerate(asked)
    ]
    began = time.process_time()
    resident.reply(requests)
    return len(requests) / (time.process_time() - began)


def informed_success(seeds: int) -> float:
    """Share of the cities that the informed guesser finds, each with so many seeds."""
    starts = [Start(seed, {"city": city.name}) for seed in range(seeds) for city in cities()]
    games = rollout(make_policy("guess_city", "optimal"), lambda: lmrl.make("guess_city"), starts, task="guess_city")
    return sum(game.success for _, game in games) / len(starts)


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks`."""
    recording = dialogues_per_second(DIALOGUES)
    yield Row("Guess My City, recording", recording, "dialogues/s", "higher", ">= 300 dialogues/s")
    yield Row("Guess My City, scripted partner", answers_per_second(), "answers/s", "higher")
    yield Row("Guess My City, informed guesser, success", 100 * informed_success(10), "%", "higher", ">= 90 %", 1)
