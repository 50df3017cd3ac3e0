"""What an algorithm declares: what it wants in its batches; one of another package is known to every command."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lmrl.cli import main
from lmrl.datamodules import BatchSpec, Filter
from lmrl.modules import AWR, BC, ILQL, MC, PPO, QSFT, ArCHer, FilteredBC, LanguageModule, ReturnConditionedBC
from tests.helpers.cases import cases
from tests.helpers.online import TINY

MODULE = '''
from dataclasses import replace

from lmrl.losses import BCLoss, gather_token_scores
from lmrl.models.lm import logits_of, trunk_of
from lmrl.modules import BC


class ReturnWeightedBC(BC):
    """Each action token counts ``exp(return to go / temperature)``."""

    name = "return_weighted_bc"

    def __init__(self, temperature: float = 20.0, **shared):
        super().__init__(**shared)
        self.temperature = temperature

    def batch_spec(self):
        return replace(super().batch_spec(), returns_gamma=0.99)

    def losses(self, batch):
        logits = logits_of(self.model, self.hidden_states(trunk_of(self.model), batch))
        nll = gather_token_scores(logits, batch.state, batch.token).nll
        weight = (batch.return_to_go / self.temperature).exp()
        return BCLoss((weight * nll).sum() / max(1, batch.n_tokens))
'''

CONFIG = """
seed_everything: 0
model:
  class_path: of_somebody_else.ReturnWeightedBC
  init_args:
    temperature: 10.0
    architecture: {n_embd: 16, n_layer: 1, n_head: 2, n_positions: 320}
data:
  class_path: lmrl.datamodules.MazeDataModule
  init_args: {task: maze_fo, batch_size: 64, max_tokens: 256}
trainer:
  default_root_dir: runs/maze_fo/return_weighted_bc
  accelerator: cpu
  max_steps: 4
  enable_checkpointing: false
  callbacks:
    - class_path: lmrl.callbacks.KeepLast
    - class_path: lmrl.callbacks.InteractiveEvaluation
      init_args: {task: maze_fo, every_n_steps: 4, episodes: 2, decoding: {max_new_tokens: 2}}
  logger:
    - class_path: lightning.pytorch.loggers.CSVLogger
      init_args: {save_dir: runs/maze_fo/return_weighted_bc, name: "", version: ""}
"""


@pytest.mark.slow
def test_fit_evaluate_and_reproduce_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "configs" / "maze_fo"
    folder.mkdir(parents=True)
    (folder / "return_weighted_bc.yaml").write_text(CONFIG)
    (tmp_path / "of_somebody_else.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("LMRL_MODULES", "of_somebody_else")
    monkeypatch.setenv("LMRL_DATA", str(tmp_path / "data"))
    words = ["--trainer.max_steps=2", "--data.init_args.size=20", "--trainer.default_root_dir=mine"]
    assert main(["fit", "--config", "configs/maze_fo/return_weighted_bc.yaml", *words]) == 0
    assert main(["evaluate", "maze_fo", "--policy", "mine", "--episodes", "2", "--out", "played"]) == 0
    assert json.loads((tmp_path / "played" / "scores.json").read_text())["episodes"] == 2
    words = ["maze_fo", "--algorithms", "return_weighted_bc", "--smoke", "--episodes", "2", "--report", "report"]
    assert main(["reproduce", *words]) == 0
    scores = tmp_path / "runs" / "smoke" / "maze_fo" / "return_weighted_bc" / "evaluation" / "scores.json"
    assert json.loads(scores.read_text())["policy"] == "runs/smoke/maze_fo/return_weighted_bc"
    told = (tmp_path / "report" / "report.md").read_text().replace("\\", "")  # which escapes Markdown
    assert "return_weighted_bc" in told


@cases(
    ("kind", "arguments", "wanted"),
    [
        (BC, {}, {}),
        (BC, {"observation_loss_weight": 0.5}, {"observations": True}),
        (FilteredBC, {"min_return": -3.0}, {"filter": Filter(min_return=-3.0)}),
        (MC, {"gamma": 0.7}, {"returns_gamma": 0.7}),
        (ILQL, {}, {"bootstrap": True}),
        (AWR, {"gamma": 0.7}, {"returns_gamma": 0.7}),
        (ArCHer, {}, {"bootstrap": True, "after": True}),
        (QSFT, {}, {"bootstrap": True}),
    ],
)
def test_it_wants_what_its_loss_needs_and_nothing_else(
    kind: type[LanguageModule], arguments: dict[str, Any], wanted: dict[str, Any]
) -> None:
    module = kind(architecture=TINY, **arguments)
    assert module.batch_spec() == BatchSpec(tokenizer=module.tokenizer, positions=TINY["n_positions"], **wanted)


def test_return_conditioned_bc_wants_its_episodes_prepared() -> None:
    module = ReturnConditionedBC(architecture=TINY)
    assert module.batch_spec() == BatchSpec(
        tokenizer=module.tokenizer, positions=TINY["n_positions"], prepare=module.prepare
    )


def test_ppo_wants_its_rounds_prepared() -> None:
    module = PPO(architecture=TINY)
    assert module.batch_spec().learner is module
