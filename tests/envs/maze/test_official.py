import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

import lmrl
from lmrl.data import import_official, read_dataset, verify
from lmrl.errors import UserError
from lmrl.types import Episode
from tests.helpers.cases import cases

LEFT = "move left\n"
RIGHT = "move right\n"
UP = "move up\n"
DOWN = "move down\n"


def fo(start: tuple[int, int], *actions: str, done: bool = True) -> list[dict[str, Any]]:
    """A record of the FO layout: what the environment said, as the official recorder would have kept it."""
    env = lmrl.make("maze_fo")
    text, _ = env.reset(seed=0, options={"init_position": start})
    record = []
    for action in actions:
        state = text
        text, reward, *_ = env.step(action)
        record.append({"state": state, "action": action, "reward": reward, "done": False})
    record[-1]["done"] = done
    return record


def po(
    start: tuple[int, int], *actions: str, done: bool = True, last: bool = False, layout: str = "double_t_maze"
) -> dict[str, Any]:
    """A record of the PO layout, with the last observation or without."""
    env = lmrl.make("maze_po", layout=layout)
    text, _ = env.reset(seed=0, options={"init_position": start})
    texts = [text]
    rewards = [0.0]
    for action in actions:
        text, reward, *_ = env.step(action)
        texts += [action, text]
        rewards += [reward, 0.0]
    end = len(texts) if last else len(texts) - 1
    dones = [False] * end
    dones[-1] = done
    return {"text_history": texts[:end], "rewards": rewards[:end], "dones": dones}


FO = [fo((6, 6), DOWN, "nonsense\n", DOWN), fo((1, 1), LEFT, RIGHT, done=False)]
PO = [po((6, 6), DOWN, DOWN), po((1, 1), RIGHT, done=False, last=True)]


def write(folder: Path, text: str) -> Path:
    path = folder / "official.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def lines(records: list[Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def imported(folder: Path, task: str, records: list[Any]) -> list[Episode]:
    out = folder / "out.parquet"
    count = import_official(task, write(folder, lines(records)), out)
    episodes = list(read_dataset(out, task))
    assert len(episodes) == count
    assert verify(out).ok
    return episodes


@pytest.mark.parametrize(("task", "records"), [("maze_fo", FO), ("maze_po", PO)])
@pytest.mark.parametrize("form", ["lines", "list", "pretty list", "blank lines"])
def test_all_containers_give_the_same_episodes(tmp_path: Path, task: str, records: list[Any], form: str) -> None:
    text = {
        "lines": lines(records),
        "list": json.dumps(records),
        "pretty list": "\n " + json.dumps(records, indent=2),
        "blank lines": "\n" + "\n\n".join(lines(records).split("\n")),
    }[form]
    expected = imported(tmp_path, task, records)
    assert import_official(task, write(tmp_path, text), tmp_path / "other.jsonl") == 2
    assert list(read_dataset(tmp_path / "other.jsonl")) == expected


def test_fo_success(tmp_path: Path) -> None:
    episode = imported(tmp_path, "maze_fo", FO)[0]
    assert episode.actions == (DOWN, "nonsense\n", DOWN)
    assert episode.rewards == (-1.0, -4.0, 0.0)
    assert episode.observations[0].startswith(
        "The goal is at position 8, 6. Your current position is at position 6, 6."
    )
    assert episode.observations[-1] == "Success\n"
    assert (episode.terminated, episode.truncated, episode.success, episode.illegal) == (True, False, True, 1)
    assert episode.info["start"] == {"init_position": [6, 6]}


@pytest.mark.parametrize("done", [False, True])
def test_fo_cut_short_gets_the_answer_of_the_environment(tmp_path: Path, done: bool) -> None:
    episode = imported(tmp_path, "maze_fo", [fo((1, 1), LEFT, RIGHT, done=done)])[0]
    assert episode.actions == (LEFT, RIGHT)
    assert "Your current position is at position 1, 2." in episode.observations[-1]
    assert (episode.terminated, episode.truncated, episode.success) == (False, True, False)


def test_fo_out_of_time(tmp_path: Path) -> None:
    episode = imported(tmp_path, "maze_fo", [fo((1, 1), *[LEFT] * 100, RIGHT)])[0]
    assert len(episode) == 101
    assert episode.observations[-1] == "Failure\n"
    assert (episode.terminated, episode.truncated) == (False, True)
    assert "Your current position is at position 1, 2." in episode.info["final_observation"]


def test_fo_of_another_maze_keeps_what_it_says(tmp_path: Path) -> None:
    record = [
        {"state": "here\n", "action": LEFT, "reward": -1, "done": False},
        {"state": "there\n", "action": UP, "reward": -1, "done": False},
    ]
    assert import_official("maze_fo", write(tmp_path, lines([record])), tmp_path / "o.jsonl") == 1
    (episode,) = read_dataset(tmp_path / "o.jsonl")
    assert (episode.observations, episode.actions, episode.truncated) == (("here\n", "there\n"), (LEFT,), True)
    assert not verify(tmp_path / "o.jsonl").ok


def test_po_success_and_given_last_observation(tmp_path: Path) -> None:
    won, cut = imported(tmp_path, "maze_po", PO)
    assert won.observations == (*["There are walls to your right, to your left.\n"] * 2, "Success\n")
    assert (won.terminated, won.rewards) == (True, (-1.0, 0.0))
    assert cut.observations == (
        "There are walls to your left, above you, below you.\n",
        "There are walls above you, below you.\n",
    )
    assert (cut.terminated, cut.truncated) == (False, True)


def test_po_cut_short_without_a_last_observation(tmp_path: Path) -> None:
    # Only one corner looks like this: the environment knows what followed.
    (known,) = imported(tmp_path, "maze_po", [po((5, 9), DOWN, LEFT, done=False)])
    assert known.observations[-1] == "There are walls above you, below you.\n"
    assert known.info["start"] == {"init_position": [5, 9]}
    # Two dead ends look alike, and go on alike: where it began stays open, what followed does not.
    (alike,) = imported(tmp_path, "maze_po", [po((1, 1), UP, RIGHT, done=False)])
    assert alike.observations[-1] == "There are walls above you, below you.\n"
    assert "start" not in alike.info
    # Between two walls many fit, and they answer differently: the last action is dropped.
    (unknown,) = imported(tmp_path, "maze_po", [po((1, 4), UP, LEFT, done=False)])
    assert (unknown.actions, unknown.truncated) == ((UP,), True)
    assert unknown.observations == ("There are walls above you, below you.\n",) * 2
    assert "start" not in unknown.info


def test_a_file_of_another_layout(tmp_path: Path) -> None:
    record = po((3, 1), UP, done=False, layout="umaze")
    out = tmp_path / "out.parquet"
    assert import_official("maze_po", write(tmp_path, lines([record])), out, {"layout": "umaze"}) == 1
    (episode,) = read_dataset(out)
    assert episode.info["start"] == {"init_position": [3, 1]}
    assert episode.observations[-1] == "There are walls to your right, to your left.\n"
    assert verify(out).ok


def test_a_record_without_a_known_turn_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(imported(tmp_path, "maze_po", [po((1, 4), LEFT, done=False), PO[0]])) == 1
    assert "1 records left out, because they have no action with a known answer" in caplog.text


def broken_fo(**change: Any) -> list[Any]:
    return [{**FO[0][0], **change}, *FO[0][1:]]


@cases(
    ("task", "record", "message"),
    [
        ("maze_fo", {"state": "a"}, "a record must be a list of transitions with at least one, got"),
        ("maze_fo", [], "a record must be a list of transitions with at least one"),
        ("maze_fo", [3], "transition 0 must be an object with state, action, reward and done, got 3"),
        (
            "maze_fo",
            [{"state": "a", "action": "b", "done": True}],
            "transition 0 lacks 'reward'; it has: state,",
        ),
        ("maze_fo", broken_fo(action=7), "action of transition 0 must be a text, got 7"),
        ("maze_fo", broken_fo(reward="-1"), "reward of transition 0 must be a finite number, got '-1'"),
        ("maze_fo", broken_fo(done=0), "done of transition 0 must be true or false, got 0"),
        ("maze_fo", broken_fo(done=True), "transition 0 of 3 is done, but the record goes on"),
        ("maze_fo", PO[0], "a record must be a list of transitions"),
        ("maze_po", 4, "a record must be an object with text_history, rewards and dones, got 4"),
        ("maze_po", {"rewards": [], "dones": []}, "the record lacks 'text_history'; it has: rewards, dones"),
        ("maze_po", {**PO[0], "rewards": [0]}, "4 texts, 1 rewards and 4 dones; they must be as many"),
        ("maze_po", {**PO[0], "text_history": []}, "text_history must be a list of values with at least one"),
        ("maze_po", {**PO[0], "text_history": [1, 2, 3, 4]}, r"text_history\[0\] must be a text, got 1"),
        ("maze_po", {**PO[0], "rewards": [0, -1, 0, float("nan")]}, r"rewards\[3\] must be a finite number"),
        ("maze_po", {**PO[0], "rewards": [-1, -1, 0, 0]}, "rewards must be 0 for observations"),
        ("maze_po", {**PO[0], "dones": [False, True, False, True]}, r"dones\[1\] is true, but the record goes on"),
        ("maze_po", {"text_history": ["a"], "rewards": [0], "dones": [True]}, "must hold an observation and an action"),
    ],
)
def test_a_broken_record_is_named_and_nothing_is_imported(tmp_path: Path, task: str, record: Any, message: str) -> None:
    good = (FO if task == "maze_fo" else PO)[0]
    path = write(tmp_path, lines([good, good, record, good]))
    with pytest.raises(UserError, match=message) as caught:
        import_official(task, path, tmp_path / "out.parquet")
    assert str(caught.value).startswith(f"{path}, line 3: ")
    path.write_text(json.dumps([good, record]))
    with pytest.raises(UserError, match=message) as caught:
        import_official(task, path, tmp_path / "out.parquet")
    assert str(caught.value).startswith(f"{path}, record 2: ")
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lines(FO) + lines(FO)[:50] + "\n", "line 3: not valid JSON"),
        ("[" + lines(FO)[:-1].replace("\n", ",\n") + ",\n[oops]]", r"not valid JSON \(.*line 3"),
        ("", "holds no records"),
        ("\n\n", "holds no records"),
        ("[]", "a record must be a list of transitions with at least one"),
    ],
)
def test_broken_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        import_official("maze_fo", write(tmp_path, text), tmp_path / "out.parquet")
    assert len(os.listdir(tmp_path)) == 1


def test_files_and_tasks_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.jsonl: no such file"):
        import_official("maze_fo", tmp_path / "none.jsonl", tmp_path / "out.parquet")
    with pytest.raises(UserError, match="unknown task 'maze'"):
        import_official("maze", tmp_path / "none.jsonl", tmp_path / "out.parquet")
    (tmp_path / "latin.jsonl").write_bytes(b"[[\xff")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        import_official("maze_fo", tmp_path / "latin.jsonl", tmp_path / "out.parquet")
    with pytest.raises(UserError, match="suffix"):
        import_official("maze_fo", write(tmp_path, lines(FO)), tmp_path / "out.csv")
