"""The comparison of tokens: what it takes from a training."""

from pathlib import Path

import pytest

from benchmarks import task_tokens
from benchmarks.startup import cpu_seconds


@pytest.mark.slow
def test_a_side_is_a_run_of_the_run_file_with_its_tokens(tmp_path: Path) -> None:
    data = tmp_path / "games.parquet"
    cpu_seconds(["data", "generate", "wordle", "--size", "300", "--out", str(data)], tmp_path)
    seconds, excess = task_tokens.train("wordle", 2, data, tmp_path / "run")
    assert seconds > 1.0 and 0.5 < excess < 10.0  # a uniform choice among the words is .8 over the data's player
    config = (tmp_path / "run" / "config.yaml").read_text(encoding="utf-8")
    assert "task_tokens: wordle" in config and "max_steps: 2\n" in config
