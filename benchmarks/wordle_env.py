"""Guesses per second of Wordle with the mixture player, on the default list and on one as long as the official one."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import lmrl
from benchmarks.row import Row
from lmrl.envs.wordle.players import WordlePlayer, mixture
from lmrl.rollout import rollout
from lmrl.types import Start

LONG = 12_972
SHARE = 0.33


def guesses_per_second(games: int, vocab: str | None) -> float:
    """Player, environment and the loop that joins them; processor time."""
    player = WordlePlayer(mixture(SHARE), vocab)
    lmrl.make("wordle", vocab=vocab)  # reading the list is not what is measured
    began = time.process_time()
    played = rollout(player, lambda: lmrl.make("wordle", vocab=vocab), map(Start, range(games)), task="wordle")
    count = sum(len(episode) for _, episode in played)
    return count / (time.process_time() - began)


def write_long_list(path: Path) -> None:
    """Words of random letters, as frequent as in English."""
    chance = random.Random(0)
    letters = "eeeeeeaaaaaarrrroooottttiiiinnnnssssllllccuuddppmmhhggbbffyywwkkvxzjq"
    words: set[str] = set()
    while len(words) < LONG:
        words.add("".join(chance.choices(letters, k=5)))
    path.write_text("\n".join(sorted(words)), encoding="utf-8")


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks`."""
    yield Row("Wordle, 431 words", guesses_per_second(10_000, None), "guesses/s", "higher", ">= 20,000 guesses/s")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "words.txt"
        write_long_list(path)
        rate = guesses_per_second(2_000, str(path))
    yield Row(f"Wordle, {LONG:,} words", rate, "guesses/s", "higher", ">= 2,000 guesses/s")
