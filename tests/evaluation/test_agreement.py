import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from lmrl.cli import main
from lmrl.envs.twenty_questions.env import ScriptedOracle
from lmrl.envs.twenty_questions.objects import properties
from lmrl.envs.twenty_questions.questions import GROUPS, lessons, paraphrases, probe
from lmrl.errors import UserError
from lmrl.evaluation.agreement import partner_agreement
from lmrl.modules import BC
from lmrl.tokens.encoding import Window
from lmrl.types import PartnerRequest
from tests.helpers.online import TINY


class Always:
    def __init__(self, text: str) -> None:
        self.text = text

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        return [self.text for _ in requests]

    def describe(self) -> dict[str, Any]:
        return {"name": "always"}


def test_the_scripted_speaker_agrees_with_itself() -> None:
    found = partner_agreement(None, "twenty_questions", 600)
    assert [line.group for line in found] == list(GROUPS)
    assert [line.share for line in found[:2]] == [1.0, 1.0]
    assert 0.9 < found[2].share < 1.0  # it does not understand all paraphrases


def test_yes_and_no_are_counted_apart() -> None:
    for line in partner_agreement(Always("yes, it is\n"), "twenty_questions", 600):
        assert line.yes[0] == line.yes[1] > 0
        assert line.no[0] == 0 < line.no[1]
        assert line.share == line.yes[1] / 200
        assert line.to_dict()["agreement_on_yes"] == 1.0


def test_held_out_questions_are_no_questions_of_the_data() -> None:
    last = {item.phrasings[-1] for item in properties()}
    asked = probe(0)
    for _ in range(200):
        question = next(asked)
        assert (question.request.heard[0].strip() in last) == (question.group == GROUPS[1])


def test_games_without_yes_and_no_are_refused() -> None:
    with pytest.raises(UserError, match="where answers are yes or no"):
        partner_agreement(ScriptedOracle(), "car_dealer")


def test_lessons_share_no_words_with_what_is_held_out() -> None:
    tested = {question.request.heard[0] for question in islice(probe(0), 6_000) if question.group != GROUPS[0]}
    said = {lesson.request.heard[0] for lesson in islice(lessons(0), 20_000)}
    assert len(tested) > 1_500
    assert len(said) > 5_000
    assert not tested & said


def test_a_fifth_of_the_paraphrases_is_held_out() -> None:
    taught = set(paraphrases("Is it made of metal?", held_out=False))
    held_out = set(paraphrases("Is it made of metal?", held_out=True))
    assert len(taught) == 80
    assert len(held_out) == 20
    assert not taught & held_out


def test_lessons_have_the_answers_of_the_oracle_where_it_knows_the_words() -> None:
    plain = {phrasing for item in properties() for phrasing in item.phrasings}
    asked = [lesson for lesson in islice(lessons(1), 4_000) if lesson.request.heard[0].strip() in plain]
    answers = ScriptedOracle().reply([lesson.request for lesson in asked])
    assert len(asked) > 1_000
    assert [answer == "Yes.\n" for answer in answers] == [lesson.is_yes for lesson in asked]
    assert 0.28 < sum(lesson.is_yes for lesson in asked) / len(asked) < 0.38


def test_the_command_counts_the_answers_of_the_scripted_partner(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["partner-agreement", "twenty_questions", "--partner", "scripted", "--size", "60", "--seed", "3"]
    assert main([*words, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["task"], shown["partner"]) == ("twenty_questions", {"name": "scripted"})
    expected = [line.to_dict() for line in partner_agreement(None, "twenty_questions", 60, 3)]
    assert shown["agreement"] == expected
    assert main(words) == 0
    table = capsys.readouterr().out
    for line in expected:
        assert f"{line['agreement']:.1%}" in table
    assert "twenty_questions: scripted" in table


def test_the_command_asks_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = BC(architecture=TINY)
    module.window = Window()
    module.export(tmp_path / "partner")
    words = ["twenty_questions", "--partner", f"lm:{tmp_path / 'partner'}", "--size", "6", "--json"]
    assert main(["partner-agreement", *words]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["partner"]["name"] != "scripted"
    assert sum(line["questions"] for line in shown["agreement"]) == 6
