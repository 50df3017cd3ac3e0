import json
from pathlib import Path
from typing import Any

import pytest

from lmrl.data import import_official, read_dataset
from lmrl.errors import UserError
from lmrl.types import Episode
from tests.helpers.cases import cases

INFO = {
    "personality": "polite",
    "preferred_brands": "a BMW",
    "preferred_type": "sedan",
    "preferred_features": ["sunroof"],
    "budget": 30_000,
}
LINES = [
    {"role": "Seller", "text": "Hello!"},
    {"role": "Seller", "text": "What do you want?\n"},
    {"role": "Buyer", "text": "A BMW."},
    {"role": "Buyer", "text": "With a sunroof.\n"},
    {"role": "Seller", "text": "For\n$29,500?"},
    {"role": "Buyer", "text": "Okay. Output: Decision=Accept MSRP=$31,000 Buy Price=$29,500"},
]
SOLD = {"car_bought": True, "msrp": 31_000, "buy_price": 29_500}


def record(**parts: Any) -> dict[str, Any]:
    return {"buyer_info": INFO, "lines": LINES, "output": SOLD, **parts}


def imported(folder: Path, content: Any, **env: Any) -> list[Episode]:
    path = folder / "train.json"
    out = folder / "out.jsonl"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    import_official("car_dealer", path, out, env, overwrite=True)
    return list(read_dataset(out, "car_dealer"))


@pytest.mark.parametrize(("env", "reward"), [({}, 29.5), ({"reward": "fancy"}, 29_500 / 30_500)])
def test_a_sale(tmp_path: Path, env: dict[str, Any], reward: float) -> None:
    (episode,) = imported(tmp_path, [record()], **env)
    assert episode.observations == ("Start\n", "A BMW.\nWith a sunroof.\n", "Okay.\n")
    assert episode.actions == ("Hello! What do you want?\n", "For $29,500?\n")
    assert episode.rewards == pytest.approx((0.0, reward))
    assert (episode.terminated, episode.truncated, episode.success) == (True, False, True)
    assert episode.info["buyer"] == INFO and episode.info["output"] == SOLD
    assert (episode.info["revenue"], episode.info["fancy"]) == pytest.approx((29.5, 29_500 / 30_500))


@pytest.mark.parametrize(
    ("output", "revenue", "fancy", "success"),
    [
        ({"car_bought": False, "msrp": 40_000, "buy_price": None}, 0.0, 0.25, False),
        ({"car_bought": False, "msrp": 20_000}, 0.0, -0.5, False),
        ({"car_bought": False, "msrp": 0}, 0.0, 0.0, False),
        ({"car_bought": True, "msrp": 30_000, "buy_price": None}, 0.0, 0.0, True),
        ({"car_bought": True, "msrp": "$30,000", "buy_price": "$15,000"}, 15.0, 0.5, True),
    ],
)
def test_other_endings(tmp_path: Path, output: dict[str, Any], revenue: float, fancy: float, success: bool) -> None:
    for env, reward in (({}, revenue), ({"reward": "fancy"}, fancy)):
        (episode,) = imported(tmp_path, [record(output=output)], **env)
        assert (episode.total_reward, episode.success, episode.terminated) == (reward, success, True)


def test_who_begins_and_who_ends(tmp_path: Path) -> None:
    silent, begun, ended = (record(lines=lines) for lines in (LINES[2:4], LINES[2:], LINES[:-1]))
    first, second = imported(tmp_path, [silent, begun, ended])  # a seller who says nothing is left out
    assert first.observations == ("Start\nA BMW.\nWith a sunroof.\n", "Okay.\n")
    assert second.observations == ("Start\n", "A BMW.\nWith a sunroof.\n", "")


def test_without_output_nothing_was_decided(tmp_path: Path) -> None:
    talk = record()
    del talk["output"]
    (episode,) = imported(tmp_path, [talk])
    assert (episode.truncated, episode.terminated, episode.success, episode.total_reward) == (True, False, False, 0.0)


def test_a_last_line_without_an_answer_is_dropped_unless_the_buyer_decided(tmp_path: Path) -> None:
    begun, silent = (record(lines=lines, output=None) for lines in (LINES[:-1], LINES[:2]))
    (episode,) = imported(tmp_path, [begun, silent])  # no line of the second one was answered
    assert episode.observations == ("Start\n", "A BMW.\nWith a sunroof.\n")
    assert (episode.actions, episode.rewards) == (("Hello! What do you want?\n",), (0.0,))
    assert (episode.truncated, episode.terminated) == (True, False)
    (decided,) = imported(tmp_path, [record(lines=LINES[:-1])])
    assert (len(decided), decided.total_reward) == (2, 29.5)


def test_lines_and_older_files(tmp_path: Path) -> None:
    other = record(output={"car_bought": False, "msrp": 40_000})
    expected = imported(tmp_path, [record(), other])
    assert imported(tmp_path, f"{json.dumps(record())}\n{json.dumps(other)}\n") == expected
    assert imported(tmp_path, {"polite": [record()], "rude": [other]}) == expected


@cases(
    ("broken", "message"),
    [
        ("text", "a record must be an object with buyer_info, lines and output, got 'text'"),
        (record(buyer_info=None), "buyer_info must be an object, got None"),
        (record(buyer_info={**INFO, "budget": "much"}), "budget of buyer_info must be a number of dollars, got 'much'"),
        (record(buyer_info={**INFO, "budget": 0}), "budget of buyer_info must be at least 1, got 0"),
        (record(lines=[]), "lines must be a list with at least one line"),
        (record(lines=[{"role": "Boss", "text": "Hi"}]), r"lines\[0\] must be an object with role"),
        (record(output={"car_bought": "yes"}), "output must be an object with car_bought"),
        (record(output={"car_bought": True, "msrp": -5}), "msrp of output must be a number of dollars, got -5"),
    ],
)
def test_broken_records(tmp_path: Path, broken: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"train.json, record 2: {message}"):
        imported(tmp_path, [record(), broken])
