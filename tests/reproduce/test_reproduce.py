import io
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lmrl.data import dataset_path
from lmrl.errors import UserError
from lmrl.reproduce import reproduce
from lmrl.reproduce.plan import default_episodes, is_done, plan
from lmrl.reproduce.processes import CommandFailed, Processes
from lmrl.reproduce.schedule import run_cells

# Stands in for `python -m lmrl`: "training" writes its arguments into the run folder, "evaluation" is the real one with
# a scripted player, or, where only the schedule matters, its bare minimum. `break-mc` makes MC fail; `need-mc` holds
# the name of what must have been trained before MC.
LAUNCHER = """
import json, os, sys, time
from pathlib import Path

verb, words = sys.argv[1], sys.argv[2:]
if verb == "fit":
    _, task, name = Path(words[1]).with_suffix("").parts
    folder = Path("runs", task, name)
    print("training", name, flush=True)
    if Path(f"break-{name}").exists():
        print("progress 1 %\\rprogress 2 %\\rout of luck", flush=True)
        sys.exit(3)
    if Path(f"need-{name}").exists():
        assert Path("runs", task, Path(f"need-{name}").read_text(), "best.ckpt").is_file()
    (folder / "metrics.csv").write_text("epoch,step,train/loss\\n0,5,1.5\\n")
    (folder / "best.ckpt").write_text(json.dumps([words, os.environ["OMP_NUM_THREADS"]]))
    with open("trained.txt", "a") as log:
        print(name, file=log)
else:
    task, options = words[0], dict(zip(words[1::2], words[2::2]))
    assert Path(options["--policy"], "best.ckpt").is_file()
    count, seed, out = int(options["--episodes"]), int(options["--seed"]), Path(options["--out"])
    if Path("bare").exists():
        out.mkdir(exist_ok=True)
        scores = {"normalized": 1, "normalized_ci": [0, 2], "episodes": count}
        (out / "scores.json").write_text(json.dumps(scores))
        sys.exit()

    from lmrl.behaviours import make_policy
    from lmrl.evaluation.record import record_evaluation

    record_evaluation(make_policy(task, "optimal"), task, out, episodes=count, seed=seed, name=options["--policy"])
"""

CONFIG = "model:\n  init_args:\n    pretrained: {}\ntrainer:\n  max_steps: 70\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with configurations of four algorithms, of which three start from BC."""
    folder = tmp_path / "configs" / "maze_fo"
    folder.mkdir(parents=True)
    for name in ("bc", "filtered_bc", "mc", "ilql"):
        (folder / f"{name}.yaml").write_text(CONFIG.format("null" if name == "bc" else "runs/maze_fo/bc"))
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMRL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return tmp_path


def reproduced(place: Path, *algorithms: str, **settings: Any) -> tuple[Path, str]:
    """The real thing: the report and what was shown, with the final error as its last line."""
    shown = io.StringIO()
    launcher = (sys.executable, str(place / "launcher.py"))
    console = Console(file=shown, width=200)
    try:
        reproduce(["maze_fo"], algorithms, episodes=5, launcher=launcher, console=console, **settings)
    except UserError as error:
        shown.write(f"error: {error}")
    return place / "report" / "report.html", shown.getvalue()


def run(place: Path, *algorithms: str, episodes: int = 5, jobs: int = 1) -> dict[str, str]:
    """Only the trainings and their evaluations: what failed and why."""
    (place / "bare").touch()
    cells = plan(["maze_fo"], algorithms, Path("runs"), episodes, 0, [])
    with Processes(jobs, (sys.executable, str(place / "launcher.py"))) as processes:
        return run_cells(cells, processes, jobs, Console(file=io.StringIO()))


def trained(place: Path) -> list[str]:
    log = place / "trained.txt"
    return log.read_text().split() if log.is_file() else []


def test_everything_from_data_to_report(place: Path) -> None:
    page, shown = reproduced(place, "mc", "bc", seed=3, overrides=["--trainer.max_steps=9"])
    assert trained(place) == ["bc", "mc"]
    words, _ = json.loads((place / "runs/maze_fo/mc/best.ckpt").read_text())
    assert words == ["--config", "configs/maze_fo/mc.yaml", "--seed_everything", "3", "--trainer.max_steps=9"]
    scores = json.loads((place / "runs/maze_fo/mc/evaluation/scores.json").read_text())
    assert (scores["seed"], scores["episodes"], scores["policy"]) == (3, 5, "runs/maze_fo/mc")
    assert {path.name for path in (place / "runs/maze_fo").iterdir()} == {"bc", "mc", "random", "behaviour", "optimal"}
    timing = json.loads((place / "runs/maze_fo/mc/timing.json").read_text())
    assert set(timing) == {"fit", "evaluate"} and timing["evaluate"]["seconds"] > 0
    assert timing["fit"]["command"].startswith("lmrl fit --config configs/maze_fo/mc.yaml --seed_everything 3")
    assert "training mc" in (place / "runs/maze_fo/mc/log.txt").read_text()
    assert len(list((place / "data").iterdir())) == 1
    assert page.is_file() and timing["fit"]["command"] in page.read_text()
    assert "done maze_fo/mc" in shown and "report: report/report.html" in shown


def test_a_finished_cell_is_not_run_again(place: Path) -> None:
    run(place, "mc")
    run(place, "mc")
    assert trained(place) == ["bc", "mc"]


def test_more_episodes_play_again_without_training(place: Path) -> None:
    run(place, "bc")
    run(place, "bc", episodes=6)
    assert trained(place) == ["bc"]
    assert json.loads((place / "runs/maze_fo/bc/evaluation/scores.json").read_text())["episodes"] == 6


def test_a_changed_configuration_trains_it_and_its_heirs_again_and_keeps_the_old(place: Path) -> None:
    run(place, "mc")
    config = place / "configs/maze_fo/bc.yaml"
    config.write_text(config.read_text().replace("70", "71"))
    run(place, "mc")
    assert trained(place) == ["bc", "mc", "bc", "mc"]
    assert (place / "runs/maze_fo/.earlier/bc-1/best.ckpt").is_file()
    assert (place / "runs/maze_fo/.earlier/mc-1/evaluation/scores.json").is_file()


def test_an_interrupted_evaluation_is_finished_without_training(place: Path) -> None:
    run(place, "bc")
    (place / "runs/maze_fo/bc/evaluation/scores.json").unlink()
    run(place, "bc")
    assert trained(place) == ["bc"]
    assert (place / "runs/maze_fo/bc/evaluation/scores.json").is_file()


def test_a_failure_is_told_and_the_rest_goes_on(place: Path) -> None:
    (place / "break-mc").touch()
    page, shown = reproduced(place, "bc", "mc", "ilql")
    assert trained(place) == ["bc", "ilql"]
    assert "exit code 3" in shown and "out of luck" in shown and "progress 1 %" not in shown
    assert "error: 1 of 3 runs failed: maze_fo/mc" in shown
    assert "no evaluation of MC was found" in page.read_text()


def test_what_starts_from_a_failure_is_not_started(place: Path) -> None:
    (place / "break-bc").touch()
    failed = run(place, "mc", "ilql", jobs=2)
    assert trained(place) == []
    assert set(failed) == {"maze_fo/bc", "maze_fo/mc", "maze_fo/ilql"}
    assert failed["maze_fo/mc"] == "not started, because it starts from maze_fo/bc"
    (place / "break-bc").unlink()
    assert run(place, "mc", "ilql") == {}


def test_side_by_side_only_after_what_they_start_from(place: Path) -> None:
    for name in ("filtered_bc", "mc", "ilql"):
        (place / f"need-{name}").write_text("bc")
    assert run(place, "ilql", "mc", "filtered_bc", jobs=3) == {}
    assert trained(place)[0] == "bc" and sorted(trained(place)[1:]) == ["filtered_bc", "ilql", "mc"]


def test_threads_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmrl.reproduce.processes._cores", lambda: 8)
    assert [Processes(jobs).threads for jobs in (1, 3, 8, 20)] == [8, 2, 1, 1]


def test_leaving_the_block_ends_what_runs(tmp_path: Path, place: Path) -> None:
    cell = plan(["maze_fo"], ["bc"], Path("runs"), 5, 0, [])[0]
    script = "import time; print('up', flush=True); time.sleep(60)"
    with Processes(1, (sys.executable, "-c", script)) as processes:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                processes.run(cell.fit, cell.folder)
            except CommandFailed as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        while not (cell.folder / "log.txt").is_file() or "up" not in (cell.folder / "log.txt").read_text():
            thread.join(0.01)
    thread.join(10)
    assert not thread.is_alive() and len(failures) == 1
    assert not is_done(cell, cell.fit)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for the process in /proc")
def test_a_terminated_reproduction_leaves_no_training_behind(place: Path) -> None:
    (place / "sleeper.py").write_text("import os, time; print('pid', os.getpid(), flush=True); time.sleep(60)")
    code = "import sys; from lmrl.reproduce import reproduce; "
    code += "reproduce(['maze_fo'], ['bc'], episodes=1, launcher=[sys.executable, 'sleeper.py'])"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as parent:
        log = place / "runs/maze_fo/bc/log.txt"
        while parent.poll() is None and not (log.is_file() and re.search(r"pid (\d+)\n", log.read_text())):
            time.sleep(0.02)
        parent.terminate()
        assert parent.wait(20) != 0
    child = int(re.findall(r"pid (\d+)", log.read_text())[0])
    for _ in range(200):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.02)
    pytest.fail("the training outlived its reproduction")


def test_runs_kept_elsewhere(place: Path) -> None:
    bc, mc = plan(["maze_fo"], ["mc"], Path("other"), None, 0, [])
    assert "--trainer.default_root_dir=other/maze_fo/bc" in bc.fit.words
    assert "--model.init_args.pretrained=other/maze_fo/bc" in mc.fit.words
    assert mc.evaluate.words[-1] == "other/maze_fo/mc/evaluation"


def test_the_plan(place: Path) -> None:
    cells = plan(["maze_fo"], ["mc", "bc"], Path("runs"), None, 0, [])
    assert [(cell.name, cell.after, cell.max_steps) for cell in cells] == [
        ("maze_fo/bc", None, 70),
        ("maze_fo/mc", "bc", 70),
    ]
    assert default_episodes("maze_fo") == 200
    assert cells[0].evaluate.words[3:7] == ("runs/maze_fo/bc", "--episodes", "200", "--seed")
    longer = plan(["maze_fo"], ["mc"], Path("runs"), None, 0, ["--trainer.max_steps=9"])
    assert longer[1].max_steps == 9 and longer[1].fit.recipe != cells[1].fit.recipe
    elsewhere = plan(["maze_fo"], ["mc"], Path("runs"), None, 0, ["--model.init_args.pretrained=gpt2"])
    assert [cell.algorithm for cell in elsewhere] == ["mc"]


def test_another_environment_reaches_data_training_and_evaluation(place: Path) -> None:
    (cell,) = plan(["maze_fo"], ["bc"], Path("runs"), 5, 0, [], {"max_steps": 3})
    assert cell.fit.words[-1] == '--data.init_args.env={"max_steps": 3}'
    assert cell.evaluate.words[-4:-2] == ("--env", "max_steps=3")
    (plain,) = plan(["maze_fo"], ["bc"], Path("runs"), 5, 0, [])
    assert cell.fit.recipe != plain.fit.recipe and cell.evaluate.recipe != plain.evaluate.recipe
    reproduced(place, "bc", env={"max_steps": 3})
    assert dataset_path("maze_fo", 1240, 0, {"max_steps": 3}).is_file()
    scores = json.loads(Path("runs/maze_fo/random/evaluation/scores.json").read_text())
    assert scores["provenance"]["env"] == {"max_steps": 3} and scores["length_mean"] <= 4


@pytest.mark.parametrize(("tasks", "algorithms"), [(["maze_f"], ["bc"]), (["maze_fo"], ["dqn"])])
def test_unknown_names_are_told_before_anything_runs(place: Path, tasks: list[str], algorithms: list[str]) -> None:
    with pytest.raises(UserError, match="known"):
        reproduce(tasks, algorithms)
    assert not (place / "runs").exists() and not (place / "data").exists()


def test_wrong_counts(place: Path) -> None:
    with pytest.raises(UserError, match="jobs must be at least 1, got 0"):
        reproduce(["maze_fo"], jobs=0)


def test_online_cells_start_where_their_configurations_say(place: Path) -> None:
    cells = plan(["maze_fo"], ["ilql_to_ppo", "online_ilql"], Path("runs"), 5, 0, [], few_games=3)
    assert [(cell.algorithm, cell.after) for cell in cells] == [
        ("bc", None),
        ("ilql", "bc"),
        ("ilql_to_ppo", "ilql"),
        ("online_ilql", "bc"),
    ]
    rounds = {"class_path": "lmrl.callbacks.RolloutCollection", "init_args": {"episodes": 3}}
    for cell in cells:
        (word,) = [word for word in cell.fit.words if word.startswith("--trainer.callbacks=")]
        played = json.loads(word.partition("=")[2])[1:]
        assert played == ([rounds] if cell.algorithm in ("ilql_to_ppo", "online_ilql") else [])
