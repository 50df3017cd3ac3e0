"""Records of finished cells: written from run folders, read back the same, and added to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lmrl.errors import UserError
from lmrl.evaluation.records import read_data, read_record_curves, read_records, write_records
from lmrl.evaluation.result_json import write_json
from lmrl.report.report import write_report
from tests.helpers.cases import cases

pytestmark = pytest.mark.usefixtures("few_resamples")

METRICS = "step,train/loss,val/loss,val/bc/excess,perf/tokens_per_s\n5,1.5,,,90\n9,,1.75,0.5,\n19,1.25,1.625,0.25,91\n"


@pytest.fixture
def runs(tmp_path: Path, run_of: Callable[..., Path], seer: Any, player: Any) -> Path:
    """BC with two training seeds, a policy that knows the maze, the dataset, and MC, which is still being trained."""
    runs = tmp_path / "runs"
    down = player(lambda request: "move down\n")
    for name, folder, policy in (("bc", runs, down), ("mc", runs, down), ("bc", runs / "seed_1", down)):
        run = run_of(folder, name, policy, metrics=METRICS)
        write_json({"task": "maze_fo", "tokens": {"trained": 70}, "commands": ["lmrl fit"]}, run / "cell.json")
        (run / "best.ckpt").write_bytes(b"weights")
        (run / "config.yaml").write_text("model: {init_args: {lr: 1.0e-05, pretrained: '${oc.env:HOME}'}}\n")
    knowing = run_of(runs, "optimal", seer)
    write_json({"task": "maze_fo"}, knowing / "cell.json")
    (runs / "maze_fo" / "mc" / "cell.json").unlink()
    scores = json.loads((runs / "maze_fo" / "bc" / "evaluation" / "scores.json").read_text())
    data = {"task": "maze_fo", "algorithm": "data", "seed": 0, "scores": scores, "returns": [-9.0, -5.0]}
    (runs / "maze_fo" / "data").mkdir()
    write_json(data, runs / "maze_fo" / "data" / "cell.json")
    write_json({"commands": ["lmrl reproduce maze_fo"], "algorithms": ["bc"]}, runs / "reproduce.json")
    return runs


@pytest.fixture
def records(runs: Path, tmp_path: Path) -> Path:
    names = write_records(runs, tmp_path / "records")
    assert names == ["maze_fo/bc", "maze_fo/data", "maze_fo/optimal", "maze_fo/bc seed 1"]
    return tmp_path / "records"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_records_are_few_files(records: Path) -> None:
    assert {*contents(records)} == {"maze_fo.jsonl", "curves/maze_fo.parquet", "episodes.parquet", "reproduce.json"}


def test_runs_that_have_gone_on_since_they_were_evaluated_are_left_out(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = runs / "maze_fo" / "bc" / "evaluation"
    monkeypatch.setattr("lmrl.evaluation.run_folder.is_outdated", lambda evaluation: evaluation == gone)
    assert write_records(runs, tmp_path / "current") == ["maze_fo/data", "maze_fo/optimal", "maze_fo/bc seed 1"]


def test_what_is_written_is_read_back(runs: Path, records: Path) -> None:
    (runs / "maze_fo" / "mc" / "evaluation" / "scores.json").unlink()
    before = read_records(runs, "maze_fo")
    after = read_records(records, "maze_fo")
    assert {name: [*seeds] for name, seeds in after.items()} == {"bc": [0, 1], "optimal": [0]}
    for name, seeds in before.items():
        for seed, one in seeds.items():
            other = after[name][seed]
            for field in ("scores", "timing", "cell", "config", "curve_values", "probe", "transcript", "tuned"):
                assert getattr(other, field) == getattr(one, field), field
            assert [column.tolist() for column in other.episodes] == [column.tolist() for column in one.episodes]
    bc = after["bc"][0]
    assert bc.config["model"]["init_args"] == {"lr": 1e-05, "pretrained": "${oc.env:HOME}"}
    assert bc.curve_values["val/bc/excess"] == ([9, 19], [0.5, 0.25])
    assert bc.curve_values["train/loss"] == ([19], [1.25])
    assert after["optimal"][0].probe.right == 25
    assert read_data(records, "maze_fo") == read_data(runs, "maze_fo") != {}


def test_curves_are_kept_without_throughput(runs: Path, records: Path) -> None:
    kept = read_record_curves(records, "maze_fo")
    logged = read_record_curves(runs, "maze_fo")
    assert {*kept} == {"bc"} and [*kept["bc"]] == [0, 1]
    assert "perf/tokens_per_s" in logged["bc"][0] and "perf/tokens_per_s" not in kept["bc"][0]
    for name, curve in kept["bc"][0].items():
        assert curve == logged["bc"][0][name]


def test_tuned_scores_are_kept_with_their_episodes(
    runs: Path, tmp_path: Path, run_of: Callable[..., Path], seer: Any
) -> None:
    tuned = run_of(tmp_path / "other", "bc", seer) / "evaluation"
    tuned.rename(runs / "maze_fo" / "bc" / "evaluation_tuned")
    write_records(runs, tmp_path / "records")
    one = read_records(tmp_path / "records", "maze_fo")["bc"][0].tuned
    assert one is not None and one.scores["success_rate"] == 1.0 and one.episodes.successes.sum() == 25


def test_the_report_of_records_is_that_of_the_runs(runs: Path, records: Path, tmp_path: Path) -> None:
    (runs / "maze_fo" / "mc" / "evaluation" / "scores.json").unlink()
    for place in (runs, records):
        write_report(place, tmp_path / f"report of {place.name}")
    first, second = (contents(tmp_path / f"report of {name}") for name in ("runs", "records"))
    assert first.keys() == second.keys() and len(first) > 8
    for name in first:
        if name.endswith((".md", ".html")):  # which name the folder that was played from
            assert first[name].replace(bytes(runs), b"runs") == second[name], name
        else:
            assert first[name] == second[name], name


def test_cells_of_several_machines_come_together(runs: Path, records: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "maze_fo").mkdir(parents=True)
    (runs / "maze_fo" / "bc").rename(other / "maze_fo" / "filtered_bc")
    write_json({"commands": ["lmrl reproduce"], "algorithms": ["bc", "filtered_bc"]}, other / "reproduce.json")
    assert write_records(other, records) == ["maze_fo/filtered_bc"]
    assert {name: [*of] for name, of in read_records(records, "maze_fo").items()} == {
        "bc": [0, 1],
        "filtered_bc": [0],
        "optimal": [0],
    }
    assert json.loads((records / "reproduce.json").read_text()) == {
        "commands": ["lmrl reproduce maze_fo", "lmrl reproduce"],
        "algorithms": ["bc", "filtered_bc"],
    }


def test_writing_again_changes_only_the_files_of_what_changed(
    runs: Path, records: Path, run_of: Callable[..., Path], seer: Any
) -> None:
    write_json({"task": "maze_po"}, run_of(runs, "optimal", seer, task="maze_po", episodes=2) / "cell.json")
    write_records(runs, records)
    before = contents(records)
    times = {path: path.stat().st_mtime_ns for path in records.rglob("*") if path.is_file()}
    write_records(runs, records)
    assert contents(records) == before
    assert all(path.stat().st_mtime_ns == time for path, time in times.items() if path.name != "reproduce.json")
    run_of(runs, "optimal", seer, task="maze_po", episodes=3)
    write_records(runs, records)
    changed = {name for name, content in contents(records).items() if content != before[name]}
    assert changed == {"maze_po.jsonl", "episodes.parquet"}
    assert len(read_records(records, "maze_fo")["bc"][0].episodes.returns) == 25


def test_a_folder_without_finished_cells_adds_nothing(runs: Path, tmp_path: Path) -> None:
    assert write_records(tmp_path / "nothing", tmp_path / "records") == []
    assert not (tmp_path / "records").exists()


@cases(
    ("damage", "words"),
    [
        (lambda line: line.pop("scores"), r"maze_fo\.jsonl, line 1: lacks scores"),
        (lambda line: line.update(seed="0"), r"maze_fo\.jsonl, line 1: 'seed' must be a whole number from 0, got '0'"),
        (lambda line: line.update(task="wordle"), "a record of task 'wordle' lies in the file of 'maze_fo'"),
        (lambda line: line["scores"].update(return_mean="high"), "return_mean must be a finite number, got 'high'"),
        (lambda line: line["scores"].update(episodes=26), "does not hold the 26 episodes of maze_fo/bc, seed 0"),
        (lambda line: line.update(curve_values={"train/loss": [5]}), "curve_values"),
    ],
)
def test_a_broken_line_is_named(records: Path, damage: Callable[[dict[str, Any]], Any], words: str) -> None:
    path = records / "maze_fo.jsonl"
    good = path.read_text()
    first, *others = good.splitlines()
    line = json.loads(first)
    damage(line)
    path.write_text("\n".join([json.dumps(line), *others]))
    with pytest.raises(UserError, match=words):
        read_records(records, "maze_fo")
    path.write_text(good)


def test_a_broken_parquet_file_is_named(records: Path) -> None:
    table = pq.read_table(records / "episodes.parquet")
    pq.write_table(table.drop_columns(["return"]), records / "episodes.parquet")
    with pytest.raises(UserError, match=r"episodes\.parquet: not a file of records"):
        read_records(records, "maze_fo")
    (records / "curves" / "maze_fo.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"maze_fo\.parquet: not a file of records"):
        read_record_curves(records, "maze_fo")


@pytest.mark.usefixtures("no_pictures")
def test_runs_that_are_older_than_a_fix_are_labelled(tmp_path: Path, run_of: Callable[..., Path], seer: Any) -> None:
    """Muon on GPT-2 is concerned, and all that starts from there: by the version, not by what anybody wrote down."""
    gpt2 = {"architecture": {"model_type": "gpt2"}}
    made = (
        # name, seed, version, class, arguments, fixes
        ("bc", 0, "0.1.0", "BC", {"optimizer": "muon", **gpt2}, ("muon-scale",)),
        ("bc", 1, "0.2.0", "BC", {"optimizer": "muon", **gpt2}, ()),
        ("awr", 0, "0.1.0", "AWR", {"optimizer": "adamw", **gpt2}, ()),
        ("mc", 0, "0.1.0", "MC", {"optimizer": "muon", "architecture": {"model_type": "llama"}}, ()),
        ("ppo", 0, "0.2.0", "PPO", {"optimizer": "adamw", "pretrained": "runs/maze_fo/bc"}, ("muon-scale",)),
        ("ppo", 1, "0.1.0", "PPO", {"optimizer": "adamw", "pretrained": "runs/seed_1/maze_fo/bc"}, ()),
        ("archer", 0, "0.1.0", "ArCHer", {"optimizer": "muon", "pretrained": "runs/maze_fo/awr"}, ("muon-scale",)),
        ("ilql", 0, "0.1.0", "ILQL", {"optimizer": "muon", "pretrained": "gpt2"}, ()),
        ("return_conditioned", 0, "0.1.0", "ReturnConditionedBC", {"optimizer": "adamw"}, ("return-bins",)),
    )
    expected: dict[str, dict[int, tuple[str, ...]]] = {}
    for name, seed, version, algorithm, arguments, fixes in made:
        run = run_of(tmp_path / "runs" / (f"seed_{seed}" if seed else ""), name, seer)
        (run / "config.yaml").write_text(
            json.dumps({"model": {"class_path": f"lmrl.modules.{algorithm}", "init_args": arguments}})
        )
        write_json({"task": "maze_fo", "versions": {"lmrl": version}}, run / "cell.json")
        expected.setdefault(name, {})[seed] = fixes
    write_records(tmp_path / "runs", tmp_path / "records")
    for place in ("runs", "records"):
        found = read_records(tmp_path / place, "maze_fo")
        missing = {name: {seed: one.missing_fixes for seed, one in seeds.items()} for name, seeds in found.items()}
        assert missing == expected
    page = write_report(tmp_path / "records", tmp_path / "report").with_suffix(".md")
    text = page.read_text()
    assert "| BC ‡ | as trained |" in text and "| AWR | as trained |" in text
    assert "older than a fix: Muon scaled GPT-2's matrices by inputs over outputs (before 0.2.0); " in text
    table = json.loads((page.parent / "table.json").read_text())
    assert {cell["name"]: cell["before"] for cell in table["cells"]}["archer"] == ["muon-scale"]
    assert [fix["name"] for fix in table["fixes"]] == ["muon-scale", "return-bins"]
