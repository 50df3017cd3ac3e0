from collections.abc import Sequence
from typing import Any

import pytest

from lmrl.envs.twenty_questions.env import ScriptedOracle
from lmrl.envs.twenty_questions.objects import properties
from lmrl.envs.twenty_questions.players import GROUPS, probe
from lmrl.errors import UserError
from lmrl.evaluation.agreement import partner_agreement
from lmrl.types import PartnerRequest


class Always:
    def __init__(self, text: str) -> None:
        self.text = text

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        return [self.text for _ in requests]

    def describe(self) -> dict[str, Any]:
        return {"name": "always"}


def test_the_scripted_speaker_agrees_with_itself() -> None:
    found = partner_agreement(ScriptedOracle(), "twenty_questions", 400)
    assert [line.group for line in found] == list(GROUPS)
    assert [line.share for line in found] == [1.0, 1.0]


def test_yes_and_no_are_counted_apart() -> None:
    for line in partner_agreement(Always("yes, it is\n"), "twenty_questions", 400):
        assert line.yes[0] == line.yes[1] > 0
        assert line.no[0] == 0 < line.no[1]
        assert line.share == line.yes[1] / 200
        assert line.to_dict()["agreement_on_yes"] == 1.0


def test_held_out_questions_are_no_questions_of_the_data() -> None:
    last = {item.phrasings[-1] for item in properties()}
    asked = probe(0)
    for _ in range(200):
        group, request = next(asked)
        assert (request.heard[0].strip() in last) == (group == GROUPS[1])


def test_games_without_yes_and_no_are_refused() -> None:
    with pytest.raises(UserError, match="where answers are yes or no"):
        partner_agreement(ScriptedOracle(), "car_dealer")
