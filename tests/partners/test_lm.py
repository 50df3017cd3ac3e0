"""A language model as the partner: distilled from recorded dialogues, then it answers in the game."""

import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from lmrl.cli import main
from lmrl.data import generate, read_dataset, verify
from lmrl.data.inspection import partner_pairs
from lmrl.data.storage import read_metadata
from lmrl.datamodules import PartnerDataModule
from lmrl.envs import registry
from lmrl.envs.base import DialogueEnv
from lmrl.envs.car_dealer.env import BEGIN
from lmrl.envs.registry import make
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import BC
from lmrl.partners import environment, make_partner, partner_dialogue, partner_episodes
from lmrl.partners.lm import LMPartner
from lmrl.types import PartnerRequest, Reply

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
    "limit_val_batches": 0,
}
ASKED = PartnerRequest(
    "twenty_questions",
    {"word": "Pants", "variants": ("Pants", "Pant")},
    ("Is it red?\n", "Is it worn?\n"),
    ("No.\n",),
    3,
)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An oracle that has learned for a few steps how answers look."""
    folder = tmp_path_factory.mktemp("oracle")
    data = generate("twenty_questions", 30, out=folder / "data.parquet", progress=False)
    torch.manual_seed(0)
    module = BC(architecture={"n_embd": 32}, lr=1e-2, warmup_steps=5)
    source = PartnerDataModule("twenty_questions", path=str(data), batch_size=32, val_fraction=0.0)
    L.Trainer(max_steps=60, **QUIET).fit(module, source)
    module.export(folder / "model")
    return str(folder / "model")


def test_the_prompts_of_the_benchmark() -> None:
    assert partner_dialogue(ASKED) == (
        (
            "Answer the question about the object truthfully.\nobject: (Pants, Pant)\n"
            "question: Is it worn?\nanswer (yes or no): ",
        ),
        (),
    )
    buyer = PartnerRequest("car_dealer", {"profile": "Personality: rude.\n"}, ("Hi\n", "Yes?\n"), ("What\n",), 0)
    assert partner_dialogue(buyer) == (("Start\nPersonality: rude.\nHi\n", "Yes?\n"), ("What\n",))
    with pytest.raises(UserError, match="unknown dialogue task 'wordle'"):
        partner_dialogue(PartnerRequest("wordle", {}, ("a",), (), 0))


@pytest.mark.parametrize("task", ["twenty_questions", "guess_city", "car_dealer"])
def test_dialogues_turned_round_hold_every_reply_once(task: str, tmp_path: Path) -> None:
    path = generate(task, 20, out=tmp_path / "data.parquet", progress=False)
    env = make(task)
    assert isinstance(env, DialogueEnv)
    for episode in read_dataset(path):
        pairs = partner_pairs(env, episode)
        assert [reply for _, reply in pairs] == list(episode.info.get("replies", episode.observations[1:]))[
            : len(pairs)
        ]
        turned = partner_episodes(pairs)
        said = [action for one in turned for action in one.actions]
        assert [text.strip() for text in said] == [reply.strip() for _, reply in pairs]
        assert len(turned) == (1 if task == "car_dealer" else len(pairs))


def test_a_buyer_who_is_asked_to_decide_reads_how_to_begin() -> None:
    request = PartnerRequest("car_dealer", {"profile": "P\n"}, ("a\n", "b\n"), ("c\n", "d\n"), 0, begin=BEGIN)
    heard, said = partner_dialogue(request)
    assert (heard[-1], said) == (BEGIN, ("c\n", "d\n"))
    (turned,) = partner_episodes(
        [(PartnerRequest("car_dealer", {"profile": "P\n"}, ("a\n",), (), 0), "x\n"), (request, "Reject\n")]
    )[-1:]
    assert turned.actions[-1] == "Reject\n"


def test_an_oracle_learns_from_lessons_without_a_file() -> None:
    source = PartnerDataModule("twenty_questions", lessons=40, val_fraction=0.1)
    source.prepare_data()
    source.setup("fit")
    train, held_out = source.split()
    assert (len(train), len(held_out)) == (36, 4)
    lessons = registry.partner_prompts("twenty_questions").lessons
    assert lessons is not None
    for episode, lesson in zip(source.episodes, lessons(0), strict=False):
        assert episode.observations[:1] == partner_dialogue(lesson.request)[0]
        assert episode.actions == ("Yes.\n" if lesson.is_yes else "No.\n",)
    assert source.facts()["data"] == "40 questions of the task"
    with pytest.raises(UserError, match="guess_city has no lessons"):
        PartnerDataModule("guess_city", lessons=40)


def test_a_distilled_oracle_answers_in_the_game(oracle: str, tmp_path: Path) -> None:
    partner = make_partner(f"lm:{oracle}", "twenty_questions")
    assert isinstance(partner, LMPartner)
    replies = partner.reply([ASKED])
    assert replies[0] in ("Yes.\n", "No.\n")
    assert partner.reply([ASKED, ASKED]) == replies * 2
    out = tmp_path / "talk.parquet"
    words = ["--size", "3", "--partner", f"lm:{oracle}", "--out", str(out)]
    assert main(["data", "generate", "twenty_questions", *words]) == 0
    first = next(iter(read_dataset(out)))
    assert first.info["partner"]["name"] == "lm"
    assert len(first.info["partner"]["hash"]) == 16
    assert read_metadata(out)["env"] == {"partner": f"lm:{oracle}"}
    assert verify(out).ok


def test_two_models_talk(oracle: str, tmp_path: Path) -> None:
    out = tmp_path / "talk.parquet"
    words = ["--size", "2", "--partner", f"lm:{oracle}", "--behaviour", f"lm:{oracle}", "--out", str(out)]
    assert main(["data", "generate", "twenty_questions", *words]) == 0
    assert read_metadata(out)["behaviour"] == f"lm:{oracle}"
    assert all(len(episode) == 20 or episode.success for episode in read_dataset(out))


def test_all_environments_share_one_partner(oracle: str) -> None:
    make_env = environment("twenty_questions", {"partner": f"lm:{oracle}"})
    one = make_env()
    other = make_env()
    assert isinstance(one, DialogueEnv)
    assert isinstance(other, DialogueEnv)
    assert one.partner is other.partner


def test_buyers_are_sampled_and_oracles_greedy(oracle: str) -> None:
    games = ("car_dealer", "twenty_questions", "guess_city")
    partners = [make_partner(f"lm:{oracle}", game) for game in games]
    assert [partner.describe()["temperature"] for partner in partners if partner] == [1.0, 0.0, 0.0]


def test_what_it_was_played_with_is_part_of_the_score(oracle: str) -> None:
    class Silly:
        def act(self, requests: Any) -> Any:
            return [Reply("Is it a cat?\n") for _ in requests]

    scores = evaluate(Silly(), "twenty_questions", 2, env={"partner": f"lm:{oracle}"}).scores()
    assert scores["provenance"]["partner"]["model"] == oracle


def test_a_seq2seq_model_answers_too(tmp_path: Path) -> None:
    tokenizer = load_tokenizer()
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
        decoder_start_token_id=1, pad_token_id=1, eos_token_id=0,
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    partner = LMPartner(str(tmp_path), max_new_tokens=4)
    replies = partner.reply([ASKED, ASKED])
    assert replies[0] == replies[1]
    assert all(reply.endswith("\n") and reply.count("\n") == 1 for reply in replies)
    sampled = LMPartner(str(tmp_path), temperature=1.0, max_new_tokens=4)
    assert sampled.reply([ASKED]) == sampled.reply([ASKED])


@pytest.mark.parametrize("name", ["gpt", "lm:", "tv:x"])
def test_partners_that_are_none(name: str) -> None:
    with pytest.raises(UserError, match="partner must be scripted, lm:PATH"):
        make_partner(name, "guess_city")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(UserError, match=str(tmp_path)):
        make_partner(f"lm:{tmp_path}", "guess_city")
