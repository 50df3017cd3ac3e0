"""An exported folder plays like the checkpoint that it was made of, and scores know their weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lmrl.callbacks import KeepLast, save_run
from lmrl.checkpoints.export import MANIFEST, read_manifest
from lmrl.checkpoints.reading import weights_of
from lmrl.cli import main
from lmrl.datamodules import MazeDataModule
from lmrl.envs.registry import task
from lmrl.evaluation import evaluate
from lmrl.evaluation.loading import load_policy
from lmrl.modules import BC, ILQL, PPO, LanguageModule, load_module
from tests.helpers.online import ENV, rounds, trainer
from tests.helpers.online import fit as fit_online

pytestmark = pytest.mark.filterwarnings("ignore:Experiment logs directory", "ignore:round ")
FEW = ["--env", "max_steps=4"]


@pytest.fixture(autouse=True)
def no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking in every cell of the maze takes longer than all the rest."""
    monkeypatch.setattr("lmrl.envs.registry.probe", lambda task: None)


def learn(kind: type[LanguageModule], bc_run: str, data_path: Path, root: Path, **settings: Any) -> None:
    torch.manual_seed(0)
    module = kind(pretrained=bc_run, lr=1e-2, **settings)
    if kind is PPO:
        run = fit_online(module, rounds(), root, 2, [KeepLast()])
    else:
        run = trainer(root, 2, [KeepLast()])
        run.fit(module, MazeDataModule("maze_fo", path=str(data_path), batch_size=30))
    save_run(run, module, "best")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (BC, {}),
        (BC, {"lora": {"r": 2, "lora_alpha": 8}}),
        (ILQL, {"lora": {"r": 2, "lora_alpha": 8}}),
        (ILQL, {"play_target": True, "polyak": 0.5}),
        (PPO, {}),
    ],
    ids=["bc", "bc adapters", "ilql adapters", "ilql target", "ppo"],
)
def test_an_exported_folder_plays_like_the_run(
    kind: type[LanguageModule], settings: dict[str, Any], bc_run: str, data_path: Path, tmp_path: Path
) -> None:
    learn(kind, bc_run, data_path, tmp_path / "run", **settings)
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "model")]) == 0
    loaded = load_module(tmp_path / "model")
    assert type(loaded) is kind and loaded.window == load_module(tmp_path / "run").window
    played = [
        evaluate(load_policy(tmp_path / name, task("maze_fo"), max_new_tokens=2), "maze_fo", 2, env=ENV)
        for name in ("run", "model")
    ]
    one, other = ([episode.actions for episode in found.episodes] for found in played)  # merging rounds log-probs
    assert one == other
    tags = {weights_of(tmp_path / name) for name in ("run", "run/best", "run/last", "run/last.ckpt", "model")}
    assert tags == {found.provenance["weights"] for found in played} and len(tags) == 1


def test_the_command_takes_a_folder_and_notes_its_weights(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    learn(ILQL, bc_run, data_path, tmp_path / "run")
    out = tmp_path / "evaluation"
    arguments = ["--policy", str(tmp_path / "run/best"), "--episodes", "2", "--out", str(out), *FEW]
    assert main(["evaluate", "maze_fo", *arguments]) == 0
    scores = json.loads((out / "scores.json").read_text())
    assert scores["provenance"]["weights"] == weights_of(tmp_path / "run/best.ckpt")
    manifest = read_manifest(tmp_path / "run/best")
    assert manifest["class"] == "lmrl.modules.ILQL" and MANIFEST in manifest["files"]


def test_scores_of_other_weights_are_not_on_a_card(
    bc_run: str, data_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    to = tmp_path / "model"
    learn(BC, bc_run, data_path, run)
    arguments = ["--policy", str(run), "--episodes", "2", "--out", str(run / "evaluation"), *FEW]
    assert main(["evaluate", "maze_fo", *arguments]) == 0
    assert main(["export", str(run), "--to", str(to)]) == 0
    assert "with the scores of" in capsys.readouterr().out
    assert "2 episodes of `maze_fo`" in (to / "README.md").read_text()
    assert "flatter the chosen one" not in (to / "README.md").read_text()
    assert main(["evaluate", "maze_fo", *arguments, "--selection"]) == 0
    assert main(["export", str(run), "--to", str(tmp_path / "chosen")]) == 0
    assert "flatter the chosen one" in (tmp_path / "chosen" / "README.md").read_text()
    learn(BC, bc_run, data_path, run, weight_decay=1.0)
    assert main(["export", str(run), "--to", str(to)]) == 0
    assert "are not of these weights; evaluate" in capsys.readouterr().out
    assert "Not evaluated yet." in (to / "README.md").read_text()
