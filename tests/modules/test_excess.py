from pathlib import Path

import lightning as L
import pytest

from lmrl.datamodules import MazeDataModule
from lmrl.envs.registry import task
from lmrl.modules import BC
from tests.helpers.online import TINY


def test_the_excess_is_the_loss_of_an_action_less_the_entropy_of_the_recorder(data_path: Path, tmp_path: Path) -> None:
    data = MazeDataModule("maze_fo", path=str(data_path), val_fraction=0.2)
    run = L.Trainer(logger=False, enable_progress_bar=False, accelerator="cpu", default_root_dir=tmp_path)
    run.validate(BC(architecture=TINY), data)
    held, tokenizer, entropy = data.split()[1], data.spec.tokenizer, task("maze_fo").entropy
    assert tokenizer is not None and entropy is not None
    tokens = sum(len(tokenizer.encode(action)) for e in held for action in e.actions)
    loss = float(run.callback_metrics["val/loss"]) * tokens / sum(map(len, held))
    assert float(run.callback_metrics["val/bc/excess"]) == pytest.approx(loss - entropy, rel=1e-4)


def test_data_of_another_player_have_no_excess(data_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = MazeDataModule("maze_fo", path=str(data_path))
    assert data.entropy() == task("maze_fo").entropy
    recorded = {"generator_version": 1, "behaviour": "optimal", "env": {}}
    monkeypatch.setattr("lmrl.datamodules.offline.read_metadata", lambda path: recorded)
    assert data.entropy() is None
