"""The records of the fair table: all methods of a row started, spent and chose alike (docs/reference/protocol.md)."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lmrl.reproduce import protocol
from lmrl.utils.configuration import configs_folder

RECORDS = Path(__file__).parents[2] / "results" / "protocol"
ROWS = sorted(path.stem for path in RECORDS.glob("*.jsonl"))
TRIALS = sorted(RECORDS.glob("trials/*/*.json"))
SCRIPTED = ("data", "random", "behaviour", "optimal")
TRIALS_SEED = 4


def cells(task: str) -> list[dict[str, Any]]:
    """The trained cells of a row."""
    lines = (RECORDS / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return [line for line in found if line["algorithm"] not in SCRIPTED]


def row_settings(task: str) -> dict[str, Any]:
    config = OmegaConf.load(configs_folder() / protocol.FOLDER / f"{task}.yaml")
    settings: Any = OmegaConf.to_container(config)
    return dict(settings)


def shared_options(config: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    """The part of a run's configuration that the row's file sets, without the start, which has a test of its own."""
    part: dict[str, Any] = {}
    for name, value in shared.items():
        if isinstance(value, dict):
            part[name] = shared_options(config[name], value)
        else:
            part[name] = value if name == "pretrained" else config[name]
    return part


@pytest.mark.parametrize("task", ROWS)
def test_every_method_has_the_seeds_of_the_row(task: str) -> None:
    seeds: dict[str, set[int]] = {}
    for cell in cells(task):
        seeds.setdefault(cell["algorithm"], set()).add(cell["seed"])
    assert set(protocol.methods(task)) >= set(seeds)
    assert {frozenset(of_method) for of_method in seeds.values()} == {frozenset(seeds["bc"])}
    assert TRIALS_SEED not in seeds["bc"]


@pytest.mark.parametrize("task", ROWS)
def test_every_method_starts_at_the_start_of_its_seed_and_spends_the_compute(task: str) -> None:
    shared = row_settings(task)
    for cell in cells(task):
        if cell["algorithm"] == protocol.START:
            continue
        seed = cell["seed"]
        name = f"{task}/{cell['algorithm']} seed {seed}"
        start = cell["algorithm"].partition("_from_")[2] or protocol.START
        folder = "runs/protocol" if seed == 0 else f"runs/protocol/seed_{seed}"
        assert cell["config"]["model"]["init_args"]["pretrained"] == f"{folder}/{task}/{start}", name
        assert cell["config"]["seed_everything"] == seed, name
        assert cell["cell"]["tflop"] == pytest.approx(shared["compute"]["tflop"], rel=0.02), name
        assert shared_options(cell["config"], shared) == shared, name
        assert set(cell["cell"]["earlier"]) == set(protocol.EARLIER), name
        assert cell["cell"]["chosen"] == protocol.chosen_policy(cell["cell"]["selection"]), name


@pytest.mark.parametrize("task", ROWS)
def test_every_method_tries_as_many_decoding_settings_and_plays_the_same_games(task: str) -> None:
    games = {cell["scores_tuned"]["episodes"] for cell in cells(task)}
    assert len(games) == 1
    for cell in cells(task):
        name = f"{task}/{cell['algorithm']} seed {cell['seed']}"
        assert len(cell["tuning"]["tried"]) == 12, name
        assert cell["tuning"]["episodes"] == protocol.GAMES, name
        assert cell["scores_tuned"]["seed"] == cell["seed"], name
        for earlier in cell["cell"].get("earlier", {}).values():
            assert earlier["episodes"] == cell["scores_tuned"]["episodes"], name


@pytest.mark.parametrize("task", ROWS)
def test_every_method_has_trials(task: str) -> None:
    methods = {protocol.method_of(cell["algorithm"]) for cell in cells(task)} - {protocol.START}
    assert methods <= {path.stem for path in TRIALS if path.parent.name == task}


@pytest.mark.parametrize("path", TRIALS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_chosen_setting_is_the_best_of_four_trials_with_a_quarter_of_the_compute(path: Path) -> None:
    task = path.parent.name
    table = json.loads(path.read_text(encoding="utf-8"))
    words = shlex.split(table["command"])
    assert words[words.index("--seed_everything") + 1] == str(TRIALS_SEED)
    quarter = row_settings(task)["compute"]["tflop"] / 4
    assert f"--compute.tflop={quarter:g}" in words
    assert f"--model.pretrained=runs/protocol/seed_{TRIALS_SEED}/{task}/{protocol.START}" in words
    assert [trial["state"] for trial in table["trials"]] == ["done"] * 4
    for trial in table["trials"]:
        assert trial["episodes"] == protocol.GAMES
    best = max(table["trials"], key=lambda trial: trial["return_mean"])
    chosen = OmegaConf.load(configs_folder() / protocol.FOLDER / task / path.name.replace(".json", ".yaml"))
    for option, value in best["settings"].items():
        assert OmegaConf.select(chosen, option) == value, option
