import json
from pathlib import Path
from typing import Any

import pytest

from lmrl.data import import_official, read_dataset
from lmrl.errors import UserError
from lmrl.types import Episode


def imported(folder: Path, records: list[Any], as_list: bool = True) -> list[Episode]:
    path = folder / "train.json"
    out = folder / "out.parquet"
    path.write_text(json.dumps(records) if as_list else "".join(json.dumps(record) + "\n" for record in records))
    import_official("guess_city", path, out)
    return list(read_dataset(out, "guess_city"))


@pytest.mark.parametrize("as_list", [True, False])
def test_sentences_are_kept_as_they_are(tmp_path: Path, as_list: bool) -> None:
    lines = [
        "What is your city known for? It is known for its spicy street food, like pani puri.",
        "Is it Mumbai? Yes.",
    ]
    (episode,) = imported(tmp_path, [{"lines": lines, "correct": True, "word": ["bombay,india"]}], as_list)
    assert episode.observations == (
        "Questions:\n", "It is known for its spicy street food, like pani puri.\n", "Yes.\n",
    )  # fmt: skip
    assert episode.actions == ("What is your city known for?\n", "Is it Mumbai?\n")
    assert episode.rewards == (-1.0, 0.0) and episode.terminated and episode.success
    assert episode.info["start"] == {"city": "Mumbai"}


def test_how_records_end(tmp_path: Path) -> None:
    lines = ["Is it big? Yes, it is."]
    short, full, unknown = imported(
        tmp_path,
        [
            {"lines": lines, "correct": False, "word": "sao paulo,brazil"},
            {"lines": lines * 20, "correct": False, "word": ["Taega"]},
            {"lines": lines * 20, "correct": True, "word": ["Atlantis"]},
        ],
    )
    assert (short.terminated, short.truncated, short.total_reward) == (False, True, -1.0)
    assert (full.terminated, full.truncated, full.total_reward) == (True, False, -20.0)
    assert unknown.total_reward == -19.0 and "start" not in unknown.info
    assert [short.info["start"]["city"], full.info["start"]["city"]] == ["Sao Paulo", "Daegu"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"lines": [], "correct": True, "word": "x"}, "record 1: lines"),
        ({"lines": ["no question"], "correct": True, "word": "x"}, r"record 1: lines\[0\] must be a question"),
        ({"lines": ["Is it? No."], "correct": 1, "word": "x"}, "record 1: "),
        ([], "record 1: "),
    ],
)
def test_broken_records_are_named(tmp_path: Path, record: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        imported(tmp_path, [record])
