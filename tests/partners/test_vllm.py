"""A partner at a vLLM server."""

import pytest

from lmrl.cli import main
from lmrl.data.storage import read_dataset
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.models.tokenizer import load_tokenizer
from lmrl.partners import make_partner, partner_dialogue
from lmrl.tokens.encoding import Encoder
from lmrl.types import PartnerRequest
from tests.helpers.tokens import TokenServer, saying

ENCODER = Encoder(load_tokenizer("lmrl"))
YES = ENCODER.encode("Yes.\n")
NO = ENCODER.encode(" No. \n")
ASKED = PartnerRequest("twenty_questions", {"word": "Pants", "variants": ("Pants",)}, ("Is it red?\n",), (), 3)


def test_the_model_reads_the_dialogue_and_answers_in_a_line() -> None:
    with TokenServer(saying(NO)) as server:
        name = {"name": f"vllm:{server.url}#tiny", "tokenizer": "lmrl"}
        partner = make_partner(name, "twenty_questions")
        assert partner is not None and partner.reply([ASKED, ASKED]) == ["No.\n", "No.\n"]
        (body, _) = server.played
        (heard,), _ = partner_dialogue(ASKED)
        assert body["prompt"] == [*ENCODER.encode(heard)]
        told = partner.describe()
        assert (told["name"], told["model"], told["endpoint"]) == ("vllm", "tiny", f"{server.url}/v1")
        with pytest.raises(UserError, match="unknown setting of vllm partners 'tokeniser'; known: max_new_tokens"):
            make_partner({"name": f"vllm:{server.url}#tiny", "tokeniser": "lmrl"}, "twenty_questions")


def test_dialogues_are_held_with_it(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    with TokenServer(saying(YES), seconds=0.1) as server:
        partner = {"name": f"vllm:{server.url}#tiny", "tokenizer": "lmrl"}
        played = evaluate("random", "twenty_questions", 4, env={"partner": partner}, slots=4).episodes
        assert server.most == 4, "all dialogues are under way at once"
        assert {text.strip() for episode in played for text in episode.observations[1:-1]} == {"Yes."}
        server.seconds = 0.0
        words = ["--size", "2", "--partner", partner["name"], "--vllm", "tokenizer=lmrl", "--out", "a.parquet"]
        assert main(["data", "generate", "twenty_questions", *words]) == 0
    assert len([*read_dataset("a.parquet", "twenty_questions")]) == 2
