from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from lmrl.contrib.study.page import draw_samples
from lmrl.data.storage import write_episodes
from lmrl.errors import UserError
from lmrl.types import Episode

Record = Callable[..., Path]


def dialogue(name: str, turns: int, task: str = "quiz", opening: str = "Go\n") -> Episode:
    said = (f"{name} answer {turn}\n" for turn in range(turns))
    return Episode(
        task=task,
        observations=(opening, *said),
        actions=tuple(f"{name} question {turn}\n" for turn in range(turns)),
        rewards=(0.0,) * turns,
        terminated=True,
        truncated=False,
    )


@pytest.fixture
def record(tmp_path: Path) -> Record:
    def write(name: str, lengths: list[int], **how: str) -> Path:
        path = tmp_path / f"{name}.parquet"
        write_episodes(path, [dialogue(f"{name}{place}", turns, **how) for place, turns in enumerate(lengths)])
        return path

    return write


def test_whole_dialogues_without_the_common_heading(record: Record) -> None:
    samples = draw_samples({"x": record("x", [2, 2]), "y": record("y", [2, 2])}, each=2)
    assert Counter(sample.condition for sample in samples) == {"x": 2, "y": 2}
    for sample in samples:
        name = f"{sample.condition}{sample.episode}"
        said = [("B", "question 0"), ("A", "answer 0"), ("B", "question 1"), ("A", "answer 1")]
        assert sample.lines == tuple((who, f"{name} {words}") for who, words in said)


def test_openings_that_differ_are_shown(record: Record) -> None:
    samples = draw_samples({"x": record("x", [1], opening="Hello.\n"), "y": record("y", [1], opening="Hi.\n")}, each=1)
    assert {sample.lines[0] for sample in samples} == {("A", "Hello."), ("A", "Hi.")}
    (alone,) = draw_samples({"x": record("x", [1])}, each=1)
    assert alone.lines[0] == ("A", "Go")


def test_each_task_has_a_heading_of_its_own(record: Record) -> None:
    files = {"x": record("x", [1, 1], opening="Questions:\n"), "y": record("y", [1, 1], opening="Start\n", task="car")}
    assert all(len(sample.lines) == 2 for sample in draw_samples(files, each=2))


def test_a_window_begins_with_what_was_said_before(record: Record) -> None:
    seen = set()
    for seed in range(60):
        (sample,) = draw_samples({"x": record("x", [5])}, each=1, seed=seed, turns=2)
        seen.add(sample.first)
        before = "Go" if sample.first == 0 else f"x0 answer {sample.first - 1}"
        assert sample.turns == 2 and len(sample.lines) == 5
        assert sample.lines[0] == ("A", before)
        assert sample.lines[-1] == ("A", f"x0 answer {sample.first + 1}")
    assert seen == {0, 1, 2, 3}


def test_a_heading_that_is_said_again_later_is_no_heading(tmp_path: Path) -> None:
    episode = Episode("quiz", ("Go\n",) * 3, ("Hm.\n",) * 2, (0.0,) * 2, terminated=True, truncated=False)
    write_episodes(tmp_path / "x.jsonl", [episode] * 4)
    samples = draw_samples({"x": tmp_path / "x.jsonl"}, each=4, turns=1)
    assert {(sample.first, len(sample.lines)) for sample in samples} == {(0, 2), (1, 3)}


def test_a_short_dialogue_is_shown_whole(record: Record) -> None:
    (sample,) = draw_samples({"x": record("x", [3])}, each=1, turns=9)
    assert (sample.first, sample.turns) == (0, 3)


def test_every_episode_is_equally_likely_and_none_comes_twice(record: Record) -> None:
    path = record("x", [1] * 6)
    counts = Counter[int]()
    for seed in range(600):
        drawn = [sample.episode for sample in draw_samples({"x": path}, each=2, seed=seed)]
        assert len(set(drawn)) == 2
        counts.update(drawn)
    assert set(counts) == set(range(6))
    assert all(abs(count - 200) < 55 for count in counts.values())  # 4.8 standard deviations of 11.5


def test_neither_place_nor_id_tells_the_condition(record: Record) -> None:
    files = {"x": record("x", [1]), "y": record("y", [1])}
    drawn = [draw_samples(files, each=1, seed=seed) for seed in range(400)]
    assert abs(sum(first.condition == "x" for first, _ in drawn) - 200) < 45
    lower = [min(pair, key=lambda sample: sample.id).condition for pair in drawn]
    assert abs(lower.count("x") - 200) < 45


def test_the_same_seed_is_the_same_study_but_the_order_depends_on_the_files(record: Record) -> None:
    files = {"x": record("x", [1] * 8), "y": record("y", [1] * 8)}
    assert draw_samples(files, 8, seed=3) == draw_samples(files, 8, seed=3) != draw_samples(files, 8, seed=4)
    order = [(sample.condition, sample.id) for sample in draw_samples(files, 8, seed=3)]
    record("y", [1] * 7 + [2])
    assert order != [(sample.condition, sample.id) for sample in draw_samples(files, 8, seed=3)]


def test_what_cannot_be_drawn(record: Record, tmp_path: Path) -> None:
    path = record("x", [1, 0, 1])
    with pytest.raises(UserError, match=r"x\.parquet: samples must be at most the .* have a turn, 2, got 3"):
        draw_samples({"x": path}, each=3)
    with pytest.raises(UserError, match="samples must be at least 1, got 0"):
        draw_samples({"x": path}, each=0)
    with pytest.raises(UserError, match="turns must be at least 1, got 0"):
        draw_samples({"x": path}, each=1, turns=0)
    with pytest.raises(UserError, match="no such file"):
        draw_samples({"x": tmp_path / "gone.parquet"}, each=1)


def test_empty_lines_are_left_out(tmp_path: Path) -> None:
    episode = Episode("quiz", ("", " Yes. \n"), ("Is it?\n",), (0.0,), terminated=True, truncated=False)
    write_episodes(tmp_path / "x.jsonl", [episode])
    (sample,) = draw_samples({"x": tmp_path / "x.jsonl"}, each=1)
    assert sample.lines == (("B", "Is it?"), ("A", "Yes."))
