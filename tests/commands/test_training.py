"""``lmrl.fit`` trains as the command does and says what it says."""

from pathlib import Path

import pytest

import lmrl
from lmrl.errors import UserError

SMALL = {
    "model.init_args.architecture": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 512},
    "trainer.max_steps": 2,
    "trainer.accelerator": "cpu",
    "trainer.enable_progress_bar": False,
    "evaluation.episodes": 1,
}


def test_it_is_the_command(data_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {**SMALL, "data.init_args.path": data_path, "trainer.default_root_dir": tmp_path / "run"}
    run = lmrl.fit("configs/maze_fo/bc.yaml", "configs/scale/cpu.yaml", **options)
    assert run == tmp_path / "run" and (run / "last.ckpt").is_file()
    assert "lmrl evaluate" in capsys.readouterr().out
    assert lmrl.evaluate(run, episodes=1).task == "maze_fo"
    with pytest.raises(UserError, match="holds a run"):
        lmrl.fit("configs/maze_fo/bc.yaml", **options)
    lmrl.fit("configs/maze_fo/bc.yaml", **options, overwrite=True)
    assert (tmp_path / ".earlier" / "run-1").is_dir()


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        ("configs/maze_fo/bd.yaml", {}, "known: configs/maze_fo/"),
        ("configs/maze_fo/bc.yaml", {"trainer.max_stepz": 3}, "max_steps"),
        ("configs/maze_fo/bc.yaml", {"model.init_args.lr": -1.0}, "lr must be"),
    ],
)
def test_a_mistake_is_told_in_a_line(
    config: str, options: dict[str, object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        lmrl.fit(config, **options)


def test_it_needs_something_to_train() -> None:
    with pytest.raises(UserError, match="nothing to train"):
        lmrl.fit()
