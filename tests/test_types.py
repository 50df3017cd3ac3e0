"""The records that pass between the parts, as they are shown."""

import copy
import pickle
from dataclasses import fields

import pytest

from lmrl.evaluation import Evaluation
from lmrl.types import Episode, PartnerRequest, Reply, Request

LONG = "a long text with\na second line " * 1_000
EPISODE = Episode("maze_fo", (LONG, LONG, LONG), ("x\n", LONG), (-1.0, 0.0), True, False, 7, {"success": True})
RECORDS = {
    "<Episode of maze_fo: 2 turns, return -1, terminated, success, seed 7>": EPISODE,
    "<Request of slot 3, seed 7, turn 1: 'a long text with": Request(3, 7, (LONG, LONG), (LONG,)),
    "<Reply 'a long text with": Reply(LONG, tuple(range(1_000))),
    "<PartnerRequest of guess_object, seed 7, text 1: 'a long text": PartnerRequest("guess_object", {}, (LONG,), (), 7),
    "<Evaluation of me on maze_fo: 90 episodes, seed 0, mean return -1.00>": Evaluation(
        "maze_fo", "me", (EPISODE,) * 90, 0
    ),
}


@pytest.mark.parametrize(("beginning", "record"), RECORDS.items(), ids=[type(one).__name__ for one in RECORDS.values()])
def test_a_record_is_shown_in_one_short_line_and_is_otherwise_as_before(beginning: str, record: object) -> None:
    shown = repr(record)
    assert shown.startswith(beginning) and len(shown) < 160 and "\n" not in shown
    again = pickle.loads(pickle.dumps(record))
    assert again == record == copy.deepcopy(record)
    assert all(getattr(again, field.name) == getattr(record, field.name) for field in fields(record))  # type: ignore[arg-type]
