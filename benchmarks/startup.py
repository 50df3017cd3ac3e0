"""CPU seconds of whole commands, most of it for what they import; files are in the disk cache, torch has one thread."""

import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.row import Row

DATASET = "maze.parquet"
#: Name, the words after ``lmrl``, what is asked. A person's input ends at the first prompt, so ``play`` ends there.
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("lmrl --help", "--help", ""),
    ("lmrl play wordle, to its first prompt", "play wordle", "<= 2 s"),
    ("lmrl data stats, 1,240 mazes", f"data stats {DATASET}", "<= 1.5 s"),
    ("lmrl fit --help", "fit --help", "<= 6 s"),
    ("lmrl fit --config FILE --help, all options", "fit --config configs/maze_fo/bc.yaml --help", ""),
)
_ENDS = {"play wordle": 2}  # with an error, since the input ends


def cpu_seconds(words: Sequence[str], folder: Path, exit_code: int = 0) -> float:
    """User and system time of ``lmrl`` with those words in a process of its own.

    Raises:
        RuntimeError: another exit code than that.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "lmrl", *words]
    done = subprocess.run(command, cwd=folder, env=environment, input="", capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != exit_code:
        raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr[-500:]}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def run(repeats: int = 5) -> Iterator[Row]:
    """Rows for `python -m benchmarks`: medians; a run before them fills the cache."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        cpu_seconds(["data", "generate", "maze_fo", "--out", DATASET], folder)
        for name, words, asked in COMMANDS:
            seconds = [cpu_seconds(words.split(), folder, _ENDS.get(words, 0)) for _ in range(repeats + 1)][1:]
            yield Row(name, statistics.median(seconds), "s", "lower", asked, 2)
