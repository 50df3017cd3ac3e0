import json
import resource
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch.cli import LightningArgumentParser

from lmrl.checkpoints.reading import weights_of
from lmrl.cli import main
from lmrl.commands.run_folder import MetricsFile, unfinished
from lmrl.data import generate
from lmrl.errors import UserError, system_error
from lmrl.modules import BC
from lmrl.utils.files import locked
from tests.helpers.online import TINY

ROWS = """\
epoch,step,train/loss,val/loss,eval/return,rollout/return
,0,,,,-9
0,0,0.5,,,
,2,,,-8,
0,1,0.4,,,
0,1,,0.3,,
,2,,,,-7
0,2,0.2,,,
,3,,,-6,
0,3,0.1,,,
0,3,0.1"""


def rows(folder: Path) -> list[str]:
    return (folder / "metrics.csv").read_text().splitlines()


@pytest.mark.parametrize(("step", "kept"), [(2, 5), (3, 8), (4, 9)])
def test_rows_after_the_checkpoint_are_dropped(tmp_path: Path, step: int, kept: int) -> None:
    """After two steps: the batches of steps 0 and 1, the evaluation after them, not the next round; no half row."""
    (tmp_path / "metrics.csv").write_text(ROWS)
    MetricsFile(str(tmp_path), step)
    header, *found = rows(tmp_path)
    assert header == "epoch,eval/return,rollout/return,step,train/loss,val/loss"  # as Lightning orders them
    ours = [sorted(filter(None, row.split(","))) for row in ROWS.splitlines()[1 : kept + 1]]
    assert [sorted(filter(None, row.split(","))) for row in found] == ours


def test_a_new_run_begins_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(ROWS)
    MetricsFile(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_later_rows_join_those_of_before(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,train/loss\n1,0.5\n2,0.4\n")
    file = MetricsFile(str(tmp_path), 2)
    file.log_metrics({"val/loss": 0.3}, 3)
    file.save()
    file.log_metrics({"train/loss": 0.2}, 4)
    file.save()
    assert rows(tmp_path) == ["step,train/loss,val/loss", "1,0.5,", "2,0.4,", "3,,0.3", "4,0.2,"]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


@pytest.fixture
def fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """``lmrl fit`` of a tiny BC run in ``runs/maze_fo/bc``."""
    monkeypatch.chdir(tmp_path)
    generate("maze_fo", 20, 0, Path("maze.parquet"), progress=False)
    config = {
        "model": {"class_path": "lmrl.modules.BC", "init_args": {"architecture": TINY}},
        "data": {
            "class_path": "lmrl.datamodules.MazeDataModule",
            "init_args": {"task": "maze_fo", "path": "maze.parquet", "batch_size": 40},
        },
        "trainer": {
            "default_root_dir": "runs/maze_fo/bc",
            "max_steps": 2,
            "accelerator": "cpu",
            "log_every_n_steps": 1,
            "limit_val_batches": 0,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "logger": {
                "class_path": "lightning.pytorch.loggers.CSVLogger",
                "init_args": {"save_dir": "runs/maze_fo/bc", "name": "", "version": ""},
            },
            "callbacks": [{"class_path": "lmrl.callbacks.KeepLast", "init_args": {"every_n_steps": 2}}],
        },
    }
    Path("bc.yaml").write_text(yaml.safe_dump(config))
    return lambda *words: main(["fit", "--config", "bc.yaml", *words])


def test_a_run_is_not_written_over(fit: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    run = Path("runs/maze_fo/bc")
    assert fit() == 0
    (run / "evaluation").mkdir()
    first = weights_of(run)
    assert fit("--seed_everything=1") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"error: {run} holds a run of 2 steps: resume it with --resume, or start a new run")
    assert fit("--overwrite", f"--ckpt_path={run}/last.ckpt") == 2
    assert "leave out one" in capsys.readouterr().err
    assert weights_of(run) == first and not Path("runs/maze_fo/.earlier").exists()

    assert fit("--seed_everything=1", "--overwrite") == 0
    assert "is now in runs/maze_fo/.earlier/bc-1" in capsys.readouterr().out
    kept = Path("runs/maze_fo/.earlier/bc-1")
    assert weights_of(kept) == first and (kept / "evaluation").is_dir() and not (run / "evaluation").exists()
    assert weights_of(run) != first
    assert "overwrite: false" in (run / "config.yaml").read_text()

    # Going on: in its own folder, and from a run of another folder only where there is none.
    assert fit("--seed_everything=1", f"--ckpt_path={run}/last.ckpt", "--trainer.max_steps=4") == 0
    assert [row["step"] for row in _table(run) if row["train/loss"]] == ["0", "1", "2", "3"]
    assert fit(f"--ckpt_path={kept}/last.ckpt") == 2
    assert "holds a run of 4 steps" in capsys.readouterr().err


def _table(run: Path) -> list[dict[str, str]]:
    header, *found = (row.split(",") for row in rows(run))
    return [dict(zip(header, row, strict=True)) for row in found]


def test_a_run_that_fails_before_its_first_step_leaves_no_folder(fit: Callable[..., int]) -> None:
    words = ("--data.init_args.path=missing.parquet", "--trainer.logger=lightning.pytorch.loggers.TensorBoardLogger")
    logged = "--trainer.logger.init_args.save_dir=runs/maze_fo/bc"
    assert fit(*words, logged) == 2
    assert not Path("runs/maze_fo/bc").exists()
    Path("runs/maze_fo/bc").mkdir()  # one that was there is the user's
    assert fit(*words, logged) == 2
    assert Path("runs/maze_fo/bc").exists()


def test_a_second_training_in_the_folder_is_refused(
    fit: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    with locked("runs/maze_fo/bc"):
        assert fit() == 2
    assert "error: the run folder runs/maze_fo/bc is in use by process " in capsys.readouterr().err
    assert not Path("runs/maze_fo/bc/config.yaml").exists()


def test_a_run_that_ends_while_its_configuration_is_written_can_be_started_again(fit: Callable[..., int]) -> None:
    dump = LightningArgumentParser.dump

    def fail(*arguments: Any, **settings: Any) -> str:
        if Path("runs").exists():  # parsing, which dumps too, is over
            raise UserError("no more")
        return str(dump(*arguments, **settings))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LightningArgumentParser, "dump", fail)
        assert fit() == 2
    assert not Path("runs/maze_fo/bc/config.yaml").exists()
    assert fit() == 0


def test_a_start_from_an_unfinished_run_is_told(fit: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    """A run that was killed before its last step leaves a model, from which the next training can start."""
    run = Path("runs/maze_fo/bc")
    assert fit() == 0
    assert unfinished(str(run)) == "" and unfinished("gpt2") == ""
    manifest = run / "last" / "lmrl.json"
    found = json.loads(manifest.read_text())
    found["made_with"]["steps"] = 1
    manifest.write_text(json.dumps(found))
    assert unfinished(str(run)) == unfinished(str(run / "best")) == "1 of 2 steps"
    capsys.readouterr()
    place = "runs/maze_fo/more"
    words = (
        f"--trainer.default_root_dir={place}",
        f"--trainer.logger.init_args.save_dir={place}",
        f"--model.init_args.pretrained={run}",
    )
    assert fit(*words, "--model.init_args.architecture=null", "--model.init_args.tokenizer=null") == 0
    told = f"warning: model.init_args.pretrained, {run}, is an unfinished run: 1 of 2 steps\n"
    assert told in capsys.readouterr().err


def test_what_a_killed_save_has_left_is_made_good(fit: Callable[..., int]) -> None:
    """The checkpoint of the last step is there, and its folder is of other weights: going on writes it."""
    run = Path("runs/maze_fo/bc")
    assert fit() == 0
    manifest = run / "last" / "lmrl.json"
    weights = json.loads(manifest.read_text())["made_with"]["weights"]
    assert weights == weights_of(run / "last.ckpt")
    manifest.write_text(manifest.read_text().replace(weights, "0" * 32))
    before = (run / "last.ckpt").read_bytes()
    assert fit(f"--ckpt_path={run}/last.ckpt") == 0
    assert weights_of(run / "last") == weights and (run / "last.ckpt").read_bytes() == before


def test_an_odd_checkpoint_is_refused_in_one_line(fit: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert fit() == 0
    file = Path("runs/maze_fo/bc/last.ckpt")
    good = file.read_bytes()
    for entry in (
        "pytorch-lightning_version",
        "state_dict",
        "optimizer_states",
        "lr_schedulers",
        "lmrl",
        "epochs",
        "counter",
    ):
        content = torch.load(BytesIO(good), weights_only=True)
        if entry == "epochs":
            content["loops"]["fit_loop"]["epoch_progress"] = "x"
        elif entry == "counter":
            content["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["completed"] = "x"
        else:
            del content[entry]
        torch.save(content, file)
        capsys.readouterr()
        assert fit(f"--ckpt_path={file}", "--trainer.max_steps=4") == 2, entry
        lines = capsys.readouterr().err.splitlines()
        assert lines[-1].startswith("error: ") and "damaged" in lines[-1], entry
        assert "Traceback" not in "".join(lines), entry


def test_a_full_disk_leaves_no_half_checkpoint(fit: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        assert fit() == 2
        told = capsys.readouterr().err.splitlines()[-1]
        with pytest.raises(Exception, match=r"\(os error 27\)") as error:
            BC(architecture=TINY).export(Path("model"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert told.startswith("error: ") and "free some space" in told
    assert "free some space" in str(system_error(error.value))
    assert not list(Path().rglob(".*.new"))
