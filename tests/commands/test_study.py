"""``lmrl study`` from files of episodes to a table."""

import json
from pathlib import Path

import pytest

from lmrl.cli import main
from lmrl.data.storage import read_episodes, write_episodes
from lmrl.types import Episode


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two files of four dialogues, all of which differ."""
    monkeypatch.chdir(tmp_path)
    for name in ("good", "bad"):
        episodes = [Episode("quiz", ("Go", f"{name} {n}"), ("Well?",), (0.0,), True, False) for n in range(4)]
        write_episodes(f"{name}.jsonl", episodes)
    return tmp_path


def rate(key: Path, rater: str, scores: dict[str, int], leave_out: int = 0) -> str:
    """Save the ratings of a rater who always gives a condition the same score, and return their path."""
    record = json.loads(key.read_text())
    ids = list(record["samples"])[leave_out:]
    ratings = {id: scores[record["samples"][id]["condition"]] for id in ids}
    path = key.with_name(f"ratings-{rater}.json")
    path.write_text(json.dumps({"study": record["study"], "rater": rater, "ratings": ratings}))
    return str(path)


def failed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["study", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_a_run_folder_stands_for_the_episodes_of_its_evaluation(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / "run"
    (run / "evaluation").mkdir(parents=True)
    assert failed(capsys, "make", "run", "bad.jsonl", "--out", "page.html", "--samples", "2").endswith(
        "run: no episodes there (neither episodes.parquet nor evaluation/episodes.parquet)\n"
    )
    write_episodes(run / "evaluation" / "episodes.parquet", read_episodes("good.jsonl"))
    assert main(["study", "make", "good=run", "bad.jsonl", "--out", "page.html", "--samples", "2"]) == 0
    conditions = json.loads((folder / "page.key.json").read_text())["conditions"]
    assert conditions["good"]["file"] == "run/evaluation/episodes.parquet"


def test_the_folder_of_an_evaluation_with_settings_is_found(folder: Path) -> None:
    names = ["evaluation_temperature=0.5", "evaluation_temperature=0.7"]
    for name, file in zip(names, ("good.jsonl", "bad.jsonl"), strict=True):
        (folder / name).mkdir()
        write_episodes(folder / name / "episodes.parquet", read_episodes(file))
    assert main(["study", "make", *names, "--out", "page.html", "--samples", "2"]) == 0
    assert set(json.loads((folder / "page.key.json").read_text())["conditions"]) == set(names)


def test_from_episodes_to_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("study make good.jsonl worse=bad.jsonl --out s/page.html --samples 4 --seed 2".split()) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("8 dialogues written to s/page.html")
    key = folder / "s" / "page.key.json"
    files = [rate(key, "AB", {"good": 5, "worse": 2}), rate(key, "CD", {"good": 4, "worse": 3}, leave_out=2)]
    assert main(["study", "table", str(key), *files]) == 0
    said = capsys.readouterr()
    assert "GPT 55.56 %, MC model 58.52 %" in said.out and "worse" in said.out
    assert said.err == "CD did not rate 2 of 8: dialogue 1, 2\n"
    assert main(["study", "table", str(key), files[0], "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["mean"], row["good"]) for row in table["conditions"]] == [("good", 5, 1), ("worse", 2, 0)]
    assert table["pairs"][0]["p"] == pytest.approx(2 / 70)
    assert table["raters"] == ["AB"] and table["missing"] == {}


def test_wrong_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make = ["make", "--out", "page.html", "--samples", "2"]
    assert "each file needs a condition of its own, got 'good'" in failed(capsys, *make, "good.jsonl", "good=bad.jsonl")
    assert "got '' for '=bad.jsonl'" in failed(capsys, *make, "=bad.jsonl")
    assert "gone.jsonl: no such file" in failed(capsys, *make, "gone.jsonl")
    assert "samples must be at most" in failed(capsys, "make", "good.jsonl", "--out", "page.html")
    assert "page.csv" in failed(capsys, "make", "good.jsonl", "--out", "page.csv", "--samples", "2")
    assert "key.json: no such file" in failed(capsys, "table", "key.json", "r.json")
    assert "known: study make, study table" in failed(capsys, "mend")
    assert sorted(path.name for path in folder.iterdir()) == ["bad.jsonl", "good.jsonl"]
