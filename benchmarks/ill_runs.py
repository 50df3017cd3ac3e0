"""A healthy run of PPO and three ill ones, for the page that shows how to tell them apart.

The runs train on Twenty Questions from the filtered BC run of the zoo. Their settings are those of
``configs/twenty_questions/ppo.yaml``, except for the ones in `RUNS`. A run ends after `GAMES` games, or when the rule
for fallen runs stops it. The curves go to ``results/cpu/health.json``.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lmrl
from benchmarks.row import Row
from lmrl.evaluation.curves import read_curves, values_at

__all__ = ["run"]

CONFIG = "configs/twenty_questions/ppo.yaml"
CURVES = Path("results/cpu/health.json")
GAMES = 12_288
#: The settings that differ, and the optimizer steps of a round.
RUNS: dict[str, tuple[dict[str, Any], int]] = {
    "healthy": ({}, 4),
    "a critic on the policy's trunk": ({"model.init_args.critic": "shared"}, 4),
    "steps too large": ({"model.init_args.lr": 3e-3, "data.init_args.epochs": 4}, 16),
    "rounds too small": (
        {"rollout.episodes": 16, "data.init_args.batch_size": 8, "trainer.accumulate_grad_batches": 1},
        2,
    ),
}


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks ill_runs`."""
    drawn = {}
    for name, (settings, steps) in RUNS.items():
        rounds = GAMES // settings.get("rollout.episodes", 512)
        with TemporaryDirectory() as folder:
            lmrl.fit(
                CONFIG,
                **{
                    "model.init_args.pretrained": "zoo:twenty_questions/filtered_bc",
                    "trainer.default_root_dir": folder,
                    "trainer.max_steps": rounds * steps,
                    "evaluation.every_n_steps": 10**6,
                    "checkpoint.every_n_steps": 10**6,
                    **settings,
                },
            )
            curves = read_curves(Path(folder) / "metrics.csv")
        games = curves["rollout/episodes"]
        drawn[name] = {}
        for key, curve in curves.items():
            if key.startswith("health/"):
                values = [float(f"{value:.4g}") for value in curve.values]
                drawn[name][key] = {"games": list(map(int, values_at(games, curve.steps))), "values": values}
        returns = curves["health/return"].values
        part = max(1, len(returns) // 8)
        best = max(sum(returns[first : first + part]) / part for first in range(0, len(returns) - part + 1))
        yield Row(f"{name}: return of the last eighth", sum(returns[-part:]) / part, digits=2)
        yield Row(f"{name}: return of the best eighth", best, digits=2)
        yield Row(f"{name}: games played", games.values[-1])
    CURVES.write_text(json.dumps(drawn), encoding="utf-8")
