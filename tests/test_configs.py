"""Every shipped configuration trains a step, as it stands but for fewer games, and leaves a run that can play."""

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmrl.cli import main
from lmrl.configuration import configs_folder
from lmrl.data import generate
from lmrl.envs.registry import tasks
from tests.helpers.ranks import STRATEGIES, on_ranks

CONFIGS = configs_folder()
# Two games of an untrained model may well be equal, or won by nobody.
pytestmark = pytest.mark.filterwarnings("ignore:round [0-9]+. ")

RUNS = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parts[-2] in tasks())
OVERLAYS = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parts[-2] not in tasks())


#: In which rounds are played.
_SHORT = {
    "chess": {"max_moves": 3, "opponent": "random"},
    "endgames": {"max_moves": 3},
    "maze_fo": {"max_steps": 5},
    "maze_po": {"max_steps": 5},
}


def name_of(path: Path) -> str:
    return path.relative_to(CONFIGS).as_posix()


@cache
def read(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return config


def short(path: Path, folder: Path) -> list[str]:
    """The words after ``fit`` for one step of a configuration with little data and a single evaluation game."""
    task = path.parts[-2]
    data = folder / f"{task}.parquet"
    if not data.exists():
        # Some of them solved; chess is slow, and won quickly against random moves.
        games, env = (20, {"opponent": "random"}) if task == "chess" else (60, {})
        generate(task, games, 0, data, progress=False, env=env)
    config = read(path)
    callbacks = [_with_a_short_game(entry) for entry in config["trainer"]["callbacks"]]
    changed = {**config, "trainer": {**config["trainer"], "callbacks": callbacks}}
    if config["data"]["class_path"].endswith("OnlineDataModule") and task in _SHORT:
        changed["data"] = {**config["data"], "init_args": {**config["data"]["init_args"], "env": _SHORT[task]}}
    copy = folder / f"{task}-{path.name}"
    copy.write_text(yaml.safe_dump(changed))
    words = ["--config", str(copy), f"--data.init_args.path={data}", "--data.init_args.batch_size=8"]
    if path.stem == "online_filtered_bc":  # two games of a model that has learned for a step are never won
        words += ["--model.init_args.success=false"]
    return [*words, "--trainer.max_steps=1", "--trainer.enable_progress_bar=true"]


def _with_a_short_game(callback: dict[str, Any]) -> dict[str, Any]:
    arguments = callback.get("init_args", {})
    if "episodes" not in arguments:
        return callback
    if callback["class_path"].endswith("RolloutCollection"):
        return {**callback, "init_args": {**arguments, "episodes": 2}}
    short = {"env": {"max_moves": 3}} if arguments["task"] in ("chess", "endgames") else {}
    return {**callback, "init_args": {**arguments, "episodes": 1, "decoding": {"max_new_tokens": 1}, **short}}


def fit(path: Path, folder: Path, *words: str) -> Path:
    """Train one step and return the run's folder; what a configuration starts from is trained first."""
    root = folder / "runs" / path.parts[-2] / path.stem
    if (root / "last.ckpt").is_file():
        return root
    settings = [*short(path, folder), *words, f"--trainer.default_root_dir={root}"]
    start = read(path)["model"].get("init_args", {}).get("pretrained")
    if start is not None:
        base = folder / start
        fit(path.with_name(f"{base.name}.yaml"), folder)
        settings.append(f"--model.init_args.pretrained={base}")
    assert main(["fit", *settings]) == 0
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configs")


@pytest.mark.parametrize("path", RUNS, ids=name_of)
def test_a_configuration_trains_a_step(path: Path, folder: Path) -> None:
    run = fit(path, folder)
    kept = ["last.ckpt", "last/config.json", "config.yaml"]
    if path.stem != "partner":  # a second speaker is not a player: nothing is played, so nothing is best
        kept += ["best.ckpt", "best/config.json", "metrics.csv"]
    assert [name for name in kept if not (run / name).is_file()] == []


@pytest.mark.parametrize("path", [path for path in RUNS if "ppo" in path.stem], ids=name_of)
def test_the_first_ratio_of_a_configuration_is_one(path: Path, folder: Path) -> None:
    """What is trained is what was sampled, for every game, tokenizer, window and kind of model."""
    with (fit(path, folder) / "metrics.csv").open(encoding="utf-8") as file:
        ratios = [float(row["ppo/first_ratio"]) for row in csv.DictReader(file) if row["ppo/first_ratio"]]
    assert ratios == pytest.approx([1.0], abs=1e-5)


def test_a_run_plays(folder: Path) -> None:
    run, out = fit(CONFIGS / "maze_fo" / "ilql.yaml", folder), folder / "evaluation"
    words = ["--episodes", "1", "--out", str(out), "--temperature", "0.5", "--beta", "2"]
    assert main(["evaluate", "maze_fo", "--policy", str(run), *words]) == 0
    scores = json.loads((out / "scores.json").read_text())
    assert scores["provenance"]["decoding"] == {"temperature": 0.5, "beta": 2.0}
    assert (out / "probe.json").is_file()


def train(words: list[str]) -> int:
    return main(["fit", *words])


@pytest.mark.parametrize("name", STRATEGIES)
def test_two_processes_train_a_step(name: str, folder: Path, tmp_path: Path) -> None:
    """As the overlay has it, but on the CPU; what they leave is what any run leaves."""
    words = [*short(CONFIGS / "maze_fo" / "bc.yaml", folder), "--config", str(CONFIGS / "scale" / f"{name}.yaml")]
    words += ["--trainer.accelerator=cpu", f"--trainer.default_root_dir={tmp_path / 'run'}"]
    assert on_ranks(train, words) == [0, 0]
    assert (tmp_path / "run" / "best.ckpt").is_dir() == (name == "fsdp")
    assert (tmp_path / "run" / "best" / "model.safetensors").is_file()
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "exported")]) == 0


@pytest.mark.parametrize("path", OVERLAYS, ids=name_of)
def test_an_overlay_fits_over_the_configurations(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = read(path)
    fitting = 0
    # An overlay is named after the task and the algorithm that it is for, or is for all.
    task = path.stem.removeprefix("paper_").replace("dialogue", "twenty_questions").rpartition("_")[0]
    meant = [run for run in RUNS if task and run.parts[-2].startswith(task) and path.stem.endswith(run.stem)]
    for run in meant or [run for run in RUNS if run.parts[-2] == "maze_fo"]:
        assert main(["fit", "--config", str(run), "--config", str(path), "--print_config"]) in (0, 2)
        said = capsys.readouterr()
        merged = yaml.safe_load(said.out) if said.out else None
        fitting += merged is not None and _contains(merged, changed)
    assert fitting, said.err


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(part, dict):
        added = {key[:-1]: value for key, value in part.items() if key.endswith("+")}
        others = {key: value for key, value in part.items() if not key.endswith("+")}
        return (
            isinstance(whole, dict)
            and all(_contains(whole.get(key), value) for key, value in others.items())
            and all(_contains(whole.get(key, [])[-len(value) :], value) for key, value in added.items())
        )
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) >= len(part) and all(map(_contains, whole, part))
    return bool(whole == part) or (isinstance(part, str) and "${" in part)


def test_the_overlay_of_weights_and_biases_keeps_the_other_loggers(capsys: pytest.CaptureFixture[str]) -> None:
    run, overlay = CONFIGS / "maze_fo" / "bc.yaml", CONFIGS / "logger" / "wandb.yaml"
    assert main(["fit", "--config", str(run), "--config", str(overlay), "--print_config"]) == 0
    loggers = yaml.safe_load(capsys.readouterr().out)["trainer"]["logger"]
    names = [logger["class_path"].rpartition(".")[2] for logger in loggers]
    assert names == ["CSVLogger", "TensorBoardLogger", "WandbLogger"]
