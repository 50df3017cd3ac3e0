"""Letters as tokens against texts of the game as tokens: excess of BC after equal minutes of a core.

Both sides train Wordle's run file, whole, with its schedule, on the same games; only `task_tokens` and the steps
differ. These are as many as fit into the minutes, by the CPU time of steps 21 to 60 beside those of the first 20.
"""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.row import Row
from benchmarks.startup import cpu_seconds

TASK = "wordle"
CONFIG = "configs/wordle/bc.yaml"
SIDES: Mapping[str, str] = {"letters": "null", "words and colours": TASK}
SHORT = 20
LONG = 60


def train(tokens: str, steps: int, data: Path, folder: Path) -> tuple[float, float]:
    """CPU seconds, and the excess over the data's player at the end, in nats per action."""
    config = Path(__file__).parent.parent / CONFIG
    words = [
        *("fit", "--config", str(config), "--model.init_args.task_tokens", tokens, "--data.init_args.path", str(data)),
        *("--trainer.default_root_dir", str(folder), "--trainer.max_steps", str(steps)),
        *("--trainer.val_check_interval", str(steps), "--trainer.enable_progress_bar", "false"),
        *("--evaluation.every_n_steps", str(steps), "--evaluation.episodes", "1"),
    ]
    seconds = cpu_seconds(words, folder.parent)
    with (folder / "metrics.csv").open(encoding="utf-8") as file:
        found = [float(row["val/bc/excess"]) for row in csv.DictReader(file) if row.get("val/bc/excess")]
    return seconds, found[-1]


def run(minutes: float = 5.0, games: int = 100_000) -> Iterator[Row]:
    """Rows for `python -m benchmarks`: steps in the minutes, and the excess at their end, of each side."""
    with TemporaryDirectory() as place:
        data = Path(place) / "games.parquet"
        excess = {}
        cpu_seconds(["data", "generate", TASK, "--size", str(games), "--out", str(data)], Path(place))
        for number, (side, tokens) in enumerate(SIDES.items()):
            short, long = (train(tokens, steps, data, Path(place) / f"{number}-{steps}")[0] for steps in (SHORT, LONG))
            steps = max(LONG + 1, round(60 * minutes * (LONG - SHORT) / (long - short)))
            seconds, excess[side] = train(tokens, steps, data, Path(place) / f"{number}-{steps}")
            yield Row(f"Wordle's BC, {side}: steps in {minutes:g} min", steps, "steps", "higher")
            yield Row(f"Wordle's BC, {side}: with loading and evaluation", seconds / 60, "min", digits=1)
            yield Row(f"Wordle's BC, {side}: excess per guess", excess[side], "nats", "lower", digits=3)
        letters, words = excess.values()
        yield Row("Wordle's BC: excess with letters by that with words", letters / words, "x", "higher", "> 1", 2)
