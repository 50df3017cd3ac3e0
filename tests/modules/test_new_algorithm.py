"""Tests of new algorithms: they declare what their batches contain, and every command knows one of another package."""

import json
import os
import shutil
import subprocess
import sys
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


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the package of somebody else and a configuration."""
    folder = tmp_path / "configs" / "maze_fo"
    folder.mkdir(parents=True)
    (folder / "return_weighted_bc.yaml").write_text(CONFIG)
    (tmp_path / "of_somebody_else.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("LMRL_MODULES", "of_somebody_else")
    monkeypatch.setenv("LMRL_DATA", str(tmp_path / "data"))
    return tmp_path


@pytest.mark.slow
def test_fit_and_evaluate_know_it(place: Path) -> None:
    words = ["--trainer.max_steps=2", "--data.init_args.size=20", "--trainer.default_root_dir=mine"]
    assert main(["fit", "--config", "configs/maze_fo/return_weighted_bc.yaml", *words]) == 0
    assert main(["evaluate", "maze_fo", "--policy", "mine", "--episodes", "2", "--out", "played"]) == 0
    assert json.loads((place / "played" / "scores.json").read_text())["episodes"] == 2


@pytest.mark.nightly
def test_reproduce_knows_it(place: Path) -> None:
    words = ["maze_fo", "--algorithms", "return_weighted_bc", "--smoke", "--episodes", "2", "--report", "report"]
    assert main(["reproduce", *words]) == 0
    scores = place / "runs" / "smoke" / "maze_fo" / "return_weighted_bc" / "evaluation" / "scores.json"
    assert json.loads(scores.read_text())["policy"] == "runs/smoke/maze_fo/return_weighted_bc"
    told = (place / "report" / "report.md").read_text().replace("\\", "")  # it escapes Markdown
    assert "return_weighted_bc" in told


LOSS = '''"""Label smoothing: cross-entropy with a target that keeps some probability for all tokens."""

from torch import Tensor

from lmrl.losses.bc import BCLoss

__all__ = ["smoothed_loss"]


def smoothed_loss(logprobs: Tensor, token: Tensor, smoothing: float) -> BCLoss:
    """Cross-entropy of (N,) tokens under (N, vocabulary) log-probabilities, smoothed over the vocabulary."""
    nll = -logprobs.gather(1, token[:, None])[:, 0]
    loss = (1 - smoothing) * nll - smoothing * logprobs.mean(dim=1)
    return BCLoss(loss.mean(), nll.mean())
'''

SMOOTHED = '''"""BC with label smoothing."""

from typing import Any

from lmrl.errors import check_range
from lmrl.losses.bc import BCLoss
from lmrl.losses.smoothed_bc import smoothed_loss
from lmrl.models.lm import logit_table, trunk_of
from lmrl.modules.bc import BC
from lmrl.tokens.collate import TokenBatch

__all__ = ["SmoothedBC"]


class SmoothedBC(BC):
    """Imitate the actions of the data, with label smoothing."""

    name = "smoothed_bc"

    def __init__(self, smoothing: float = 0.1, **shared: Any) -> None:
        """Build the language model.

        Args:
            smoothing: probability that the target spreads over the vocabulary.
            **shared: arguments of `LanguageModule`.
        """
        check_range("[0, 1]", smoothing=smoothing)
        super().__init__(**shared)
        self.smoothing = smoothing

    def losses(self, batch: TokenBatch) -> BCLoss:
        """Smoothed cross-entropy of the action tokens."""
        logits = logit_table(self.model, self.hidden_states(trunk_of(self.model), batch))
        logprobs = logits.float().log_softmax(dim=-1)[batch.state]
        return smoothed_loss(logprobs, batch.token, self.smoothing)
'''

SMOOTHED_TEST = """import torch

from lmrl.losses.smoothed_bc import smoothed_loss


def test_half_of_the_weight_is_spread() -> None:
    logprobs = torch.tensor([[0.25, 0.75]]).log()
    expected = -0.75 * torch.tensor(0.75).log() - 0.25 * torch.tensor(0.25).log()
    assert smoothed_loss(logprobs, torch.tensor([1]), 0.5).loss == expected
"""

FIVE_FILES = {
    "lmrl/losses/smoothed_bc.py": LOSS,
    "lmrl/modules/smoothed_bc.py": SMOOTHED,
    "configs/maze_fo/smoothed_bc.yaml": CONFIG.replace("of_somebody_else.ReturnWeightedBC", "lmrl.modules.SmoothedBC")
    .replace("temperature: 10.0", "smoothing: 0.2")
    .replace("return_weighted_bc", "smoothed_bc"),
    "tests/modules/test_smoothed_bc.py": SMOOTHED_TEST,
    "docs/reference/algorithms/smoothed_bc.md": "# BC with label smoothing\n\nIt spreads `smoothing` over all ids.\n",
}


@pytest.mark.nightly
def test_five_files_make_an_algorithm_of_the_repository(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    repository = tmp_path / "repository"
    for name in ("lmrl", "configs", "docs", "tests", "benchmarks", "tools", "requirements", "notebooks"):
        shutil.copytree(root / name, repository / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("zoo", "results", "data"):
        (repository / name).symlink_to(root / name)
    for path in root.iterdir():
        if path.is_file():
            shutil.copy(path, repository)
    for name, text in FIVE_FILES.items():
        (repository / name).write_text(text)

    def run(*words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(repository), "LMRL_DATA": str(tmp_path / "data")}
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    few = ["--trainer.max_steps=2", "--data.init_args.size=20"]
    run("lmrl", "fit", "--config", "configs/maze_fo/smoothed_bc.yaml", *few)
    out = run("lmrl", "evaluate", "--policy", "runs/maze_fo/smoothed_bc", "--episodes", "2")
    assert "maze_fo, policy runs/maze_fo/smoothed_bc: 2 episodes" in out
    run("lmrl", "report", "--tasks", "maze_fo", "--algorithms", "smoothed_bc", "--out", "report")
    tests = [
        "tests/modules/test_smoothed_bc.py",
        "tests/test_layers.py",
        "tests/test_names.py",
        "tests/test_configs.py",
    ]
    tests += ["tests/test_repo.py", "tests/test_ranges.py", "tests/utils/test_lazy.py"]
    run("pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not nightly", *tests)


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
