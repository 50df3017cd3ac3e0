"""Imports of official files of Twenty Questions: our games in the format of the original."""

import json
from pathlib import Path
from typing import Any

import pytest

import lmrl
from lmrl.data import import_official, read_dataset, verify
from lmrl.envs.registry import make_policy
from lmrl.envs.twenty_questions.objects import place_of, things
from lmrl.errors import UserError
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Start
from tests.helpers.cases import cases

TASK = "twenty_questions"


def record(episode: Episode) -> dict[str, Any]:
    said = zip(episode.actions, episode.observations[1:], strict=True)
    word = things()[place_of()[episode.info["start"]["word"]]].variants
    lines = [f"{action.strip()} {text.strip()}" for action, text in said]
    return {"lines": lines, "correct": episode.success, "word": list(word)}


def imported(folder: Path, records: list[Any], as_list: bool = True) -> tuple[Path, list[Episode]]:
    path = folder / "train.json"
    out = folder / "out.parquet"
    path.write_text(json.dumps(records) if as_list else "".join(json.dumps(one) + "\n" for one in records))
    assert import_official(TASK, path, out) == len(records)
    return out, list(read_dataset(out, TASK))


@pytest.mark.parametrize("as_list", [True, False])
def test_our_games_come_back(tmp_path: Path, as_list: bool) -> None:
    policy = make_policy(TASK, "behaviour")
    games = in_order(rollout(policy, lambda: lmrl.make(TASK), map(Start, range(40)), task=TASK))
    out, found = imported(tmp_path, [record(game) for game in games], as_list)
    names = ("observations", "actions", "rewards", "terminated", "truncated", "success", "illegal")
    for ours, theirs in zip(found, games, strict=True):
        assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
    assert {episode.success for episode in found} == {True, False}
    assert verify(out).ok


def test_rewards_and_endings(tmp_path: Path) -> None:
    lines = ["Is it alive? No.", "Is it a ball? Or is it round? Yes."]
    _, found = imported(
        tmp_path,
        [
            {"lines": lines, "correct": True, "word": ["Basketball"]},
            {"lines": lines, "correct": False, "word": ["Basketball"]},
            {"lines": lines[:1] * 20, "correct": False, "word": ["Unicorn"]},
            {"lines": lines[:1] * 20, "correct": True, "word": "Pants"},
        ],
    )
    assert found[0].observations == ("Questions:\n", "No.\n", "Yes.\n")
    assert found[0].actions == ("Is it alive?\n", "Is it a ball? Or is it round?\n")
    assert [(e.total_reward, e.terminated, e.truncated) for e in found] == [
        (-1, True, False), (-2, False, True), (-20, True, False), (-19, True, False)
    ]  # fmt: skip
    assert [e.info.get("start") for e in found] == [{"word": "Basketball"}] * 2 + [None, {"word": "Pants"}]


@cases(
    ("broken", "complaint"),
    [
        ({"lines": []}, "record 1: a record must be an object with lines, correct and word"),
        ({"lines": [], "correct": True, "word": ["Cat"]}, "lines must be a list of texts with at least one"),
        ({"lines": ["Is it? No."], "correct": 1, "word": ["Cat"]}, "correct true or false"),
        ({"lines": ["Is it?"], "correct": True, "word": ["Cat"]}, r"lines\[0\] must be a question, a space and its"),
        ({"lines": ["Is it? No."] * 21, "correct": False, "word": ["Cat"]}, "lines must be at most 20, got 21"),
        ({"lines": ["Is it? No."], "correct": True, "word": []}, "word must be a list of names"),
    ],
)
def test_broken_records(tmp_path: Path, broken: dict[str, Any], complaint: str) -> None:
    path = tmp_path / "train.json"
    path.write_text(json.dumps([broken]))
    with pytest.raises(UserError, match=complaint):
        import_official(TASK, path, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()
