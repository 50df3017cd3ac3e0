import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import sleep, time
from typing import Any

import pytest
import torch

from lmrl.errors import UserError
from lmrl.evaluation.records import DATA
from lmrl.reproduce import Order
from lmrl.reproduce.plan import Step, dataset_of, plan
from lmrl.reproduce.processes import CommandFailed, Processes
from lmrl.reproduce.schedule import finish
from lmrl.utils.files import locked

Run = Callable[..., dict[str, str]]
Trained = Callable[[], list[str]]
Make = Callable[..., Order]


def read(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def test_a_finished_cell_is_not_run_again(run: Run, order: Make, trained: Trained) -> None:
    run(order("mc"))
    run(order("mc"))
    assert trained() == ["bc", "mc"]


def test_more_episodes_play_again_without_training(place: Path, run: Run, order: Make, trained: Trained) -> None:
    run(order("bc"))
    run(order("bc", episodes=6))
    assert trained() == ["bc"]
    assert read(place / "runs/maze_fo/bc/evaluation/scores.json")["episodes"] == 6


def test_a_changed_configuration_trains_it_and_its_heirs_again_and_keeps_the_old(
    place: Path, run: Run, order: Make, trained: Trained
) -> None:
    run(order("mc"))
    config = place / "configs/maze_fo/bc.yaml"
    config.write_text(config.read_text().replace("70", "71"))
    run(order("mc"))
    assert trained() == ["bc", "mc", "bc", "mc"]
    assert (place / "runs/maze_fo/.earlier/bc-1/last.ckpt").is_file()
    assert (place / "runs/maze_fo/.earlier/mc-1/evaluation/scores.json").is_file()
    told = " ".join((place / "log.txt").read_text().split())
    for name in ("bc", "mc"):
        words = f"runs/maze_fo/{name} was made with other settings: moved to runs/maze_fo/.earlier/{name}-1"
        assert told.count(words) == 1


def test_a_training_without_a_checkpoint_begins_anew_and_that_is_told(place: Path, run: Run, order: Make) -> None:
    run(order("bc"))
    for name in ("last.ckpt", "cell.json"):
        (place / "runs/maze_fo/bc" / name).unlink()
    timing = place / "runs/maze_fo/bc/timing.json"
    timing.write_text(json.dumps({"fit": {**read(timing)["fit"], "seconds": None}}).replace(', "seconds": null', ""))
    run(order("bc"))
    told = "runs/maze_fo/bc was broken off before its first checkpoint: moved to runs/maze_fo/.earlier/bc-1"
    assert told in (place / "log.txt").read_text()


def test_an_interrupted_evaluation_is_finished_without_training(
    place: Path, run: Run, order: Make, trained: Trained
) -> None:
    run(order("bc"))
    (place / "runs/maze_fo/bc/evaluation/scores.json").unlink()
    run(order("bc"))
    assert trained() == ["bc"]
    assert (place / "runs/maze_fo/bc/evaluation/scores.json").is_file()


def test_what_starts_from_a_failure_is_not_started(place: Path, run: Run, order: Make, trained: Trained) -> None:
    (place / "break-bc").touch()
    failed = run(order("mc", "ilql"), jobs=2)
    assert trained() == []
    assert set(failed) == {"maze_fo/bc", "maze_fo/mc", "maze_fo/ilql"}
    assert failed["maze_fo/mc"] == "not started, because it comes after maze_fo/bc"
    (place / "break-bc").unlink()
    assert run(order("mc", "ilql")) == {}


def test_side_by_side_only_after_what_they_start_from(place: Path, run: Run, order: Make, trained: Trained) -> None:
    for name in ("filtered_bc", "mc", "ilql"):
        (place / f"need-{name}").write_text("bc")
    assert run(order("ilql", "mc", "filtered_bc"), jobs=3) == {}
    assert trained()[0] == "bc" and sorted(trained()[1:]) == ["filtered_bc", "ilql", "mc"]


def test_two_checkpoints_are_both_played_and_one_only_once(place: Path, run: Run, order: Make) -> None:
    run(order("bc"))
    assert not (place / "runs/maze_fo/bc/evaluation_last").exists()
    (place / "runs/maze_fo/bc/best.ckpt").write_bytes((place / "prepared/half.ckpt").read_bytes())
    (place / "runs/maze_fo/bc/cell.json").unlink()
    run(order("bc"))
    last = read(place / "runs/maze_fo/bc/evaluation_last/scores.json")
    assert last["policy"] == "runs/maze_fo/bc/last.ckpt"
    record = read(place / "runs/maze_fo/bc/cell.json")
    assert record["steps"] == {"best": 40, "last": 70}
    assert (record["scores"]["policy"], record["last"]["policy"]) == ("runs/maze_fo/bc", "runs/maze_fo/bc/last.ckpt")


def test_a_run_of_fit_is_moved_out_of_the_way(place: Path, run: Run, order: Make, trained: Trained) -> None:
    folder = place / "runs/maze_fo/bc"
    folder.mkdir(parents=True)
    (folder / "last.ckpt").write_bytes((place / "prepared/whole.ckpt").read_bytes())
    (folder / "config.yaml").touch()
    assert run(order("bc")) == {}
    assert trained() == ["bc"] and (place / "runs/maze_fo/.earlier/bc-1/config.yaml").is_file()


def test_a_run_that_was_killed_after_its_last_step_is_finished(
    place: Path, run: Run, order: Make, trained: Trained, words_of: Callable[[str], list[str]]
) -> None:
    run(order("bc"))
    timing = place / "runs/maze_fo/bc/timing.json"
    record = read(timing)
    del record["fit"]["seconds"]
    timing.write_text(json.dumps(record))
    (place / "runs/maze_fo/bc/cell.json").unlink()
    run(order("bc"))
    assert trained() == ["bc", "bc-again"] and words_of("runs/maze_fo/bc")[-1] == "runs/maze_fo/bc/last.ckpt"


def marked(file: Path, weights: str, step: int = 70) -> None:
    """A checkpoint that says of which weights it is."""
    torch.save({"global_step": step, "lmrl": {"action_tokens": 1, "made_with": {"weights": weights}}}, file)


def scores_of(folder: Path, weights: str) -> None:
    path = folder / "evaluation" / "scores.json"
    path.write_text(json.dumps({**read(path), "provenance": {"weights": weights}}))


def test_scores_of_other_weights_do_not_finish_a_cell(place: Path, run: Run, order: Make, trained: Trained) -> None:
    run(order("bc"))
    cell = place / "runs/maze_fo/bc"
    scores_of(cell, "one")
    marked(cell / "last.ckpt", "one")
    before = (cell / "evaluation/scores.json").stat().st_mtime_ns
    run(order("bc"))
    assert (cell / "evaluation/scores.json").stat().st_mtime_ns == before
    marked(cell / "last.ckpt", "two")
    run(order("bc"))
    assert trained() == ["bc"] and (cell / "evaluation/scores.json").stat().st_mtime_ns > before


def test_a_cell_that_somebody_works_on_is_not_begun(place: Path, run: Run, order: Make, trained: Trained) -> None:
    with (
        locked(place / "runs/maze_fo/bc", kind="cell"),
        pytest.raises(UserError, match="cell runs/maze_fo/bc is in use"),
    ):
        run(order("mc"))
    assert trained() == []
    with locked(place / "runs/maze_fo/bc"):  # by lmrl fit
        (place / "runs/maze_fo/bc").mkdir()
        (place / "runs/maze_fo/bc/metrics.csv").touch()
        assert "run folder runs/maze_fo/bc is in use by process" in run(order("bc"))["maze_fo/bc"]


def test_a_dataset_that_another_process_records_is_waited_for(
    place: Path, order: Make, run_all: Run, trained: Trained
) -> None:
    done: list[dict[str, str]] = []
    other = Thread(target=lambda: done.append(run_all(order("bc"))))
    with locked(place / "runs/maze_fo/data", kind="cell"):
        other.start()
        said = place / "log.txt"
        while other.is_alive() and not (said.is_file() and "maze_fo/data: waiting: the cell" in said.read_text()):
            sleep(0.01)
        sleep(0.2)
        assert trained() == []
    other.join()
    assert done == [{}] and trained() == ["bc"]


def test_a_cell_is_free_when_it_has_ended_and_not_when_the_table_has(
    place: Path, order: Make, run_all: Run, trained: Trained
) -> None:
    (place / "hold-bc").touch()
    other = Thread(target=run_all, args=(order("bc"),))
    other.start()
    while other.is_alive() and not (place / "runs/maze_fo/bc/held").exists():
        sleep(0.01)
    with locked(place / "runs/maze_fo/data", kind="cell"), pytest.raises(UserError, match="maze_fo/bc is in use"):
        run_all(order("bc"))
    (place / "hold-bc").unlink()
    other.join()
    assert trained() == ["bc"]


def test_a_dataset_that_was_finished_before_it_was_noted_counts(place: Path, order: Make) -> None:
    """As after a kill between the two."""
    given = order("bc")
    (cell,) = (cell for cell in plan(given) if cell.algorithm == DATA)
    dataset_of(given, "maze_fo").parent.mkdir()
    shutil.copy(place / "prepared/data.parquet", dataset_of(given, "maze_fo"))
    begun = {"command": "lmrl data generate", "recipe": cell.steps[0].recipe, "before": 0.0, "began": 0.0}
    cell.folder.mkdir(parents=True)
    (cell.folder / "timing.json").write_text(json.dumps({"generate": begun}))
    assert finish(cell, given)["commands"] == ["lmrl data generate"]


def test_cpu_time_is_that_of_the_command_without_its_waiting(tmp_path: Path) -> None:
    work = "import time\nwhile time.process_time() < 0.4: pass\ntime.sleep(0.6)"
    with Processes(1, (sys.executable, "-c", work)) as processes:
        processes.run(Step("fit", ("fit",), "recipe"), tmp_path)
    noted = read(tmp_path / "timing.json")["fit"]
    assert 0.3 <= noted["cpu_seconds"] <= noted["seconds"] - 0.4


def test_times_of_attempts_add_up_and_cpu_time_is_left_out_where_it_is_not_known(tmp_path: Path) -> None:
    fails = "import sys, time\nwhile time.process_time() < 0.4: pass\ntime.sleep(0.6)\nsys.exit(1)"
    step = Step("fit", ("fit",), "recipe")
    with Processes(1, (sys.executable, "-c", fails)) as processes, pytest.raises(CommandFailed):
        processes.run(step, tmp_path)
    after_failure = read(tmp_path / "timing.json")
    with Processes(1, (sys.executable, "-c", "pass")) as processes:
        processes.run(step, tmp_path)
    noted = read(tmp_path / "timing.json")["fit"]
    assert noted["seconds"] >= 1.0
    assert 0.3 <= noted["cpu_seconds"] <= noted["seconds"] - 0.4

    # As after a kill of both processes: nobody has measured the CPU time of the first attempt.
    killed = {"fit": {**after_failure["fit"], "began": time() - 5}}
    (tmp_path / "timing.json").write_text(json.dumps(killed))
    with Processes(1, (sys.executable, "-c", "pass")) as processes:
        processes.run(step, tmp_path)
    noted = read(tmp_path / "timing.json")["fit"]
    assert noted["seconds"] >= 1.0
    assert "cpu_seconds" not in noted
