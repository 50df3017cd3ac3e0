"""Sweeps of a stand-in for the command line, whose score is a known function of what was tried."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from rich.console import Console

from lmrl.cli import main
from lmrl.errors import UserError
from lmrl.integrations.optuna.outcome import write_outcome
from lmrl.integrations.optuna.search import run_sweep
from lmrl.integrations.optuna.space import Choices, Range
from lmrl.integrations.optuna.trials import Sweep, Trial
from lmrl.utils.files import locked

pytest.importorskip("optuna", reason="sweeps need Optuna: pip install 'lmrl[sweep]'")

ROOT = Path(__file__).parents[3]
SPACE = {"model.init_args.lr": Range(0.0, 1.0), "data.init_args.batch_size": Choices((32, 64))}

# "Training" notes what it was given; "evaluation" scores it: the best learning rate is 0.7. The file `break` holds a
# batch size that fails, and while there is a file `wait` the training of a trial does not end.
LAUNCHER = """
import json, sys, time
from pathlib import Path

verb, words = sys.argv[1], sys.argv[2:]
options = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
if "--print_config" in words:
    if "model.init_args.nope" in options:
        print("some\\nerror: unknown key 'model.init_args.nope'")
        sys.exit(2)
elif verb == "fit":
    folder = Path(options["trainer.default_root_dir"])
    tried = {key: float(options[key]) for key in ("model.init_args.lr", "data.init_args.batch_size")}
    with open("trained.txt", "a") as log:
        print(json.dumps([folder.name, tried]), file=log)
    while Path("wait").exists():
        time.sleep(0.01)
    if Path("break").exists() and tried["data.init_args.batch_size"] == float(Path("break").read_text()):
        print("error: out of luck")
        sys.exit(2)
    (folder / "tried.json").write_text(json.dumps([tried, words]))
else:
    at = lambda name: words[words.index(name) + 1]
    tried, _ = json.loads((Path(at("--policy")) / "tried.json").read_text())
    mean = -abs(tried["model.init_args.lr"] - 0.7)
    out = Path(at("--out"))
    out.mkdir(exist_ok=True)
    scores = {"return_mean": mean, "return_ci": [mean - 0.1, mean + 0.1], "normalized": 1.0, "success_rate": 0.5}
    scores |= {"success_ci": [0, 1], "length_mean": 1, "illegal_rate": 0, "normalized_ci": [0, 1]}
    scores |= {"task": "maze_fo", "policy": "x", "episodes": int(at("--episodes")), "seed": int(at("--seed"))}
    (out / "scores.json").write_text(json.dumps(scores))
"""

Run = Callable[..., list[Trial]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run.yaml").write_text("data:\n  init_args: {task: maze_fo, env: {max_steps: 4}}\n")
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(place: Path) -> Run:
    def make(out: str = "sweep", trials: int = 4, jobs: int = 1, **settings: Any) -> list[Trial]:
        sweep = Sweep(**{"configs": ("run.yaml",), "space": SPACE, "out": Path(out), "episodes": 5, **settings})
        with open("shown.txt", "a") as shown:
            given: dict[str, Any] = {"launcher": (sys.executable, "launcher.py"), "console": Console(file=shown)}
            found = run_sweep(sweep, trials=trials, jobs=jobs, **given)
        write_outcome(sweep, found)
        return found

    return make


def trained(place: Path) -> list[str]:
    log = place / "trained.txt"
    return [json.loads(line)[0] for line in log.read_text().splitlines()] if log.is_file() else []


def tried(found: list[Trial]) -> list[dict[str, Any]]:
    return [dict(trial.settings) for trial in found]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
@pytest.mark.nightly
def test_going_on_tries_what_an_uninterrupted_sweep_tries(sampler: str, place: Path, run: Run) -> None:
    whole = run("whole", trials=13, sampler=sampler)  # beyond the ten that TPE draws at random
    assert len({trial.settings["model.init_args.lr"] for trial in whole}) == 13
    run("parts", trials=5, sampler=sampler)
    parts = run("parts", trials=13, sampler=sampler)
    assert tried(parts) == tried(whole)
    assert trained(place) == [f"{n:04d}" for n in range(13)] * 2
    assert tried(run("other", trials=2, sampler=sampler, seed=1)) != tried(whole)[:2]


def test_a_grid_tries_all_combinations_in_their_order(place: Path, run: Run) -> None:
    space = {"model.init_args.lr": Choices((0.1, 0.7)), "data.init_args.batch_size": Choices((32, 64))}
    found = run(space=space, sampler="grid", trials=2)
    assert [trial.number for trial in found] == [0, 1]
    found = run(space=space, sampler="grid", trials=4)  # goes on
    tried = [tuple(trial.settings.values()) for trial in found]
    assert tried == [(0.1, 32), (0.1, 64), (0.7, 32), (0.7, 64)]
    with pytest.raises(UserError, match="4 combinations"):
        run(space=space, sampler="grid", trials=5)
    with pytest.raises(UserError, match="has a range"):
        run(out="other", sampler="grid")


def test_trials_are_scored_by_games_of_their_own_and_the_best_is_an_overlay(place: Path, run: Run) -> None:
    found = run(trials=4, seed=3, overrides=("--trainer.max_steps=7",))
    scores = json.loads((place / "sweep/trials/0000/selection/scores.json").read_text())
    assert (scores["seed"], scores["episodes"]) == (20_003, 5)
    (timing,) = (json.loads((place / f"sweep/trials/0000/{name}.json").read_text()) for name in ("timing",))
    words = timing["evaluate_selection"]["command"].split()
    assert "--selection" in words and words[words.index("--env") + 1 :] == ["max_steps=4"]
    assert "--seed_everything 3 --trainer.max_steps=7" in timing["fit"]["command"]
    best = max(found, key=lambda trial: trial.scores["return_mean"])
    lines = (place / "sweep/best.yaml").read_text().splitlines()
    assert lines[0].startswith(f"# Trial {best.number} of a sweep over run.yaml")
    assert f"lr: {best.settings['model.init_args.lr']}" in lines[3]
    table = json.loads((place / "sweep/table.json").read_text())
    assert table["command"] == "lmrl fit --config run.yaml --seed_everything 3 --trainer.max_steps=7"
    assert [line["return_mean"] for line in table["trials"]] == [trial.scores["return_mean"] for trial in found]
    assert len((place / "sweep/table.csv").read_text().splitlines()) == 5
    assert (place / "sweep/sweep.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_trial_that_fails_is_told_and_the_others_go_on(place: Path, run: Run) -> None:
    (place / "break").write_text("64")
    found = run(trials=6, sampler="random")
    assert {trial.state for trial in found} == {"done", "failed"}
    assert all((trial.state == "failed") == (trial.settings["data.init_args.batch_size"] == 64) for trial in found)
    assert "FAILED: out of luck" in (place / "shown.txt").read_text()
    assert len(run(trials=6, sampler="random")) == len(trained(place)) == 6  # not again


@pytest.mark.nightly
def test_where_the_first_trials_all_fail_it_ends(place: Path, run: Run) -> None:
    (place / "break").write_text("32")
    with pytest.raises(UserError, match=r"the first 3 trials failed, the last one with: out of luck; put that right"):
        run(space={"model.init_args.lr": Range(0.0, 1.0), "data.init_args.batch_size": Choices((32,))}, trials=9)
    assert len(trained(place)) == 3


@pytest.mark.nightly
def test_trials_side_by_side_are_all_there(place: Path, run: Run) -> None:
    found = run("side", trials=6, jobs=3, sampler="random")
    assert [trial.number for trial in found] == list(range(6)) and all(trial.scores for trial in found)
    assert tried(found) == tried(run("single", trials=6, sampler="random"))


def test_what_cannot_be_searched_is_refused_before_there_is_a_study(place: Path, run: Run) -> None:
    with pytest.raises(UserError, match=r"^unknown key 'model\.init_args\.nope'$"):
        run(space={"model.init_args.nope": Choices((1, 2))})
    assert not (place / "sweep/study.db").exists()
    for wrong, told in (
        ({"trials": 0}, "trials"),
        ({"jobs": 0}, "jobs"),
        ({"sampler": "cmaes"}, "known: grid, random, tpe"),
    ):
        with pytest.raises(UserError, match=told):
            run(**wrong)


def test_a_folder_holds_one_sweep_and_one_command_at_a_time(place: Path, run: Run) -> None:
    run(trials=1)
    for other in ({"seed": 1}, {"episodes": 6}, {"space": {"model.init_args.lr": Range(0.0, 2.0)}}):
        with pytest.raises(UserError, match="holds a sweep of another configuration"):
            run(**other)
    (place / "run.yaml").write_text("data:\n  init_args: {task: maze_fo}\n")
    with pytest.raises(UserError, match="holds a sweep of another configuration"):
        run()
    with locked("sweep", "sweep folder", "sweep"), pytest.raises(UserError, match="sweep folder sweep is in use by"):
        run()


def test_a_trial_that_was_waiting_when_a_command_was_killed_is_taken_up(place: Path, run: Run) -> None:
    space = {"model.init_args.lr": Choices((0.1, 0.2)), "data.init_args.batch_size": Choices((32,))}
    run(trials=1, sampler="grid", space=space)
    study = optuna.load_study(study_name=None, storage=f"sqlite:///{place / 'sweep' / 'study.db'}")
    study.enqueue_trial({"model.init_args.lr": 0.2, "data.init_args.batch_size": 32})
    found = run(trials=2, sampler="grid", space=space)
    assert [trial.settings["model.init_args.lr"] for trial in found] == [0.1, 0.2]
    assert [trial.state for trial in found] == ["done", "done"]


@pytest.mark.nightly
def test_a_killed_trial_is_run_again_with_its_settings(place: Path, run: Run) -> None:
    (place / "wait").touch()
    code = "import sys; from pathlib import Path; from lmrl.integrations.optuna.space import *; "
    code += "from lmrl.integrations.optuna.trials import Sweep; "
    code += "from lmrl.integrations.optuna.search import run_sweep; space = {'model.init_args.lr': Range(0.0, 1.0), "
    code += "'data.init_args.batch_size': Choices((32, 64))}; "
    code += "run_sweep(Sweep(('run.yaml',), space, Path('sweep'), episodes=5), trials=2, "
    code += "launcher=(sys.executable, 'launcher.py'))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not trained(place):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    (place / "wait").unlink()
    assert trained(place) == ["0000"]
    first = json.loads((place / "trained.txt").read_text())[1]
    found = run(trials=2)
    assert found[0].settings == first and [trial.state for trial in found] == ["done", "done"]
    assert trained(place) == ["0000", "0000", "0001"]
    assert tried(found) == tried(run("whole", trials=2))


@pytest.mark.nightly
def test_a_real_sweep_ends_with_a_config_that_fit_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("LMRL_DATA", raising=False)
    (tmp_path / "space.yaml").write_text("model.lr: {low: 1e-4, high: 1e-2, log: true}\n")
    tiny = 'model.init_args.architecture={"model_type":"gpt2","n_layer":1,"n_head":1,"n_embd":16}'
    short = ["trainer.max_steps=2", "evaluation.episodes=2", "data.init_args.size=20", tiny]
    words = ["sweep", "configs/maze_fo/bc.yaml", "--space", "space.yaml", "--out", "sweep", "--trials", "1"]
    assert main([*words, "--episodes", "2", "--overrides", *short]) == 0
    assert "the best: lmrl fit --config configs/maze_fo/bc.yaml --config sweep/best.yaml" in capsys.readouterr().out
    scores = json.loads((tmp_path / "sweep/trials/0000/selection/scores.json").read_text())
    assert scores["provenance"]["selection"] is True and scores["seed"] == 20_000
    assert main(["fit", "--config", "configs/maze_fo/bc.yaml", "--config", "sweep/best.yaml", "--print_config"]) == 0
    settings = json.loads((tmp_path / "sweep/table.json").read_text())["trials"][0]["settings"]
    assert f"lr: {settings['model.init_args.lr']}" in capsys.readouterr().out
