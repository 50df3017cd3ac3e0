"""No command deletes or replaces a file that it did not make: one table of all commands that write."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmrl.cli import main
from lmrl.data import generate
from lmrl.evaluation.result_json import write_json
from tests.helpers.cases import cases

THESIS = "three years of work\n"
CONFIG = "configs/maze_fo/bc.yaml"

# Each line is a command and the file that is in its way; both refer to folders and files that `place` has made:
# runs/maze_fo/bc is a trained run with an evaluation, table/ a folder of finished cells, data.parquet a dataset.
FOREIGN = [
    ("evaluate maze_fo --policy random --episodes 2 --out out", "out/notes.txt"),
    ("evaluate maze_fo --policy random --episodes 2 --out out", "out/episodes.parquet"),
    ("export runs/maze_fo/bc --to out", "out/notes.txt"),
    ("export runs/maze_fo/bc --to out", "out/model.safetensors"),
    ("zoo add runs/maze_fo/bc --to zoo --episodes 2", "zoo/maze_fo/bc/notes.txt"),
    ("report --runs table --out out", "out/samples.png out/report.md"),
    ("report --runs table --out out", "out/scores.png"),
    ("report --runs table --out out", "out/table.json"),
    ("report --runs table --records out --out page", "out/maze_fo.jsonl"),
    ("report --runs table --records out --out page", "out/curves/maze_fo.parquet"),
    ("report --runs table --records out --out page", "out/episodes.parquet"),
    ("report --runs table --records out --out page", "out/reproduce.json"),
    ("view data.parquet --out out/page.html", "out/page.html"),
    ("study make a=data.parquet b=data.parquet --samples 2 --out out/page.html", "out/page.html"),
    ("study make a=data.parquet b=data.parquet --samples 2 --out out/page.html", "out/page.key.json"),
    ("data generate maze_fo --size 3 --out out/data.parquet", "out/data.parquet"),
    ("data generate maze_fo --size 3 --out out/data.jsonl", "out/data.jsonl"),
    ("data join part.parquet --out out/data.parquet", "out/data.parquet"),
    ("data export data.parquet --minari lmrl/maze/beh-v0", "minari/lmrl/maze/beh-v0/notes.txt"),
    (f"sweep {CONFIG} --space space.yaml --out out --trials 1", "out/best.yaml"),
    (f"sweep {CONFIG} --space space.yaml --out out --trials 1", "out/trials/notes.txt"),
    ("symbolic --algorithms q --episodes 25 --data data.parquet", "runs/maze_fo/symbolic_q/notes.txt"),
    ("symbolic --algorithms q --episodes 25 --data data.parquet", "runs/maze_fo/symbolic_q/last.ckpt"),
    ("tune runs/maze_fo/bc --episodes 2 --temperatures 1", "runs/maze_fo/bc/tuned.json"),
    (f"fit --config {CONFIG} --trainer.default_root_dir=out --trainer.max_steps=1", "out/metrics.csv"),
    (f"fit --config {CONFIG} --trainer.default_root_dir=out --trainer.max_steps=1", "out/config.yaml"),
    ("reproduce maze_fo --algorithms bc --smoke --runs out", "out/reproduce.json"),
]

# Commands whose target is what they read, or a folder above it.
INPUTS = [
    "evaluate --policy runs/maze_fo/bc --episodes 2 --out runs/maze_fo/bc",
    "evaluate --policy runs/maze_fo/bc --episodes 2 --out runs/maze_fo",
    "export runs/maze_fo/bc --to runs/maze_fo/bc",
    "export runs/maze_fo/bc --to runs",
    "export exported --to exported",
    "zoo add runs/maze_fo/bc --to runs --episodes 2",
    "zoo add exported/maze_fo/bc --to exported --episodes 2",
    "report --runs table --records table --out page",
    "report --runs table --records table/maze_fo --out page",
    "report --runs table/maze_fo/../ --records . --out page",
    "view data.parquet --out data.parquet",
    "study make a=data.parquet b=data.parquet --samples 2 --out data.parquet",
    "data join part.parquet --out part.parquet",
    "data join part.parquet --out part.parquet --overwrite",
    "data import maze_fo official.jsonl --out official.jsonl",
    "data import maze_fo official.jsonl --out official.jsonl --overwrite",
]


@pytest.fixture(scope="module")
def inputs(
    tmp_path_factory: pytest.TempPathFactory, bc_run: str, run_of: Callable[..., Path], player: Any, data_path: Path
) -> Path:
    """All that the commands read."""
    place = tmp_path_factory.mktemp("inputs")
    shutil.copytree(bc_run, place / "runs/maze_fo/bc")
    run_of(place / "table", "bc", player(lambda request: "move down\n"), episodes=3)
    cell = {"task": "maze_fo", "tokens": {"trained": 7}, "commands": ["lmrl fit"]}
    write_json(cell, place / "table/maze_fo/bc/cell.json")
    write_json({"commands": ["lmrl reproduce maze_fo"], "algorithms": ["bc"]}, place / "table/reproduce.json")
    (place / "table/maze_fo/bc/best.ckpt").write_text(THESIS)
    shutil.copy(data_path, place / "data.parquet")
    generate("maze_fo", 4, 0, place / "part.parquet", progress=False, shard=(0, 1))
    (place / "official.jsonl").write_text(json.dumps({"state": "a"}) + "\n")
    (place / "space.yaml").write_text("model.init_args.lr: [1.0e-3, 1.0e-4]\n")
    assert main(["export", str(place / "runs/maze_fo/bc"), "--to", str(place / "exported/maze_fo/bc")]) == 0
    shutil.copytree(place / "exported/maze_fo/bc", place / "exported", dirs_exist_ok=True)
    return place


@pytest.fixture
def place(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    shutil.copytree(inputs, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    monkeypatch.setenv("MINARI_DATASETS_PATH", "minari")
    yield tmp_path / "place"


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder; locks, which are taken before a command looks at its target, are none."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def check_refused(command: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(place)
    capsys.readouterr()
    assert main(command.split()) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if line.startswith("error: ")] == told[-1:], told
    assert contents(place) == before


@cases(("command", "foreign"), FOREIGN)
def test_foreign_files_stay(command: str, foreign: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "sweep" in command:
        pytest.importorskip("optuna")
    if "minari" in command:
        pytest.importorskip("minari")
    for name in foreign.split():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text('{"thesis": 3}' if name.endswith("json") else THESIS)
    try:
        check_refused(command, place, capsys)
    finally:
        for name in foreign.split():
            (place / name).unlink()


@cases("command", INPUTS)
def test_inputs_stay(command: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(command, place, capsys)


@pytest.mark.nightly
def test_what_a_command_has_made_may_be_replaced(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command twice into the same target, beside files that are not its own where it leaves those alone."""
    (place / "page").mkdir()
    (place / "page/notes.txt").write_text(THESIS)
    commands = [
        "evaluate maze_fo --policy random --episodes 2 --out out",
        "export runs/maze_fo/bc --to new",
        "zoo add runs/maze_fo/bc --to zoo --episodes 2",
        "report --runs table --out page",
        "report --runs table --records records --out page",
        "view data.parquet --out view.html",
        "study make a=data.parquet b=data.parquet --samples 2 --out study.html",
        "data generate maze_fo --size 3 --out three.parquet",
        "symbolic --algorithms q --episodes 25 --data data.parquet",
        "tune runs/maze_fo/bc --episodes 2 --temperatures 1",
    ]
    for command in commands:
        for _ in range(2):
            assert main(command.split()) == 0, (command, capsys.readouterr().err)
    assert (place / "page/notes.txt").read_text() == THESIS


def test_a_report_deletes_the_pictures_of_the_one_before(place: Path) -> None:
    assert main(["report", "--runs", "table", "--out", "page"]) == 0
    files = json.loads((place / "page/table.json").read_text())["files"]
    assert sorted(os.listdir("page")) == files
    (place / "page/samples.png").write_text(THESIS)
    (place / "page/improvement.png").write_text("of an earlier report")
    table = json.loads((place / "page/table.json").read_text())
    write_json({**table, "files": [*files, "improvement.png", "../data.parquet"]}, place / "page/table.json")
    assert main(["report", "--runs", "table", "--out", "page"]) == 0
    assert sorted(os.listdir("page")) == sorted([*files, "samples.png"])
    assert (place / "data.parquet").is_file()
