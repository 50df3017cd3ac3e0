import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lmrl
from lmrl.cli import main
from lmrl.data.storage import read_episodes, read_metadata
from lmrl.envs.registry import make_policy
from lmrl.errors import BudgetError, UserError
from lmrl.partners import environment
from lmrl.partners.chat import ChatPartner, conversation
from lmrl.policies.chat.client import ChatClient, ChatError
from lmrl.rollout import rollout, step_together
from lmrl.types import Partner, PartnerRequest, Start
from tests.helpers.cases import cases
from tests.helpers.endpoints import Unruly, completion, reply
from tests.helpers.serving import MISSING, transformers_serve

pytest.importorskip("openai", reason="needs openai: pip install 'lmrl[chat]'")

OBJECT = {"word": "Pants", "variants": ("Pants", "Pant", "Pair of pants")}
CITY = {"city": "Mumbai", "aliases": ("Bombay",), "country": "India", "facts": {"coast": ["on the coast"]}}
BUYER = {
    "personality": "sarcastic",
    "brand": "BMW",
    "type": "sedan",
    "features": ["sunroof", "heated seats"],
    "budget": 30_000,
    "strategy": "discounts",
    "profile": "Personality: sarcastic.\n",
}
FACTS = {"twenty_questions": OBJECT, "guess_city": CITY, "car_dealer": BUYER}


def request(
    task: str, *texts: str, facts: dict[str, Any] | None = None, begin: str = "", seed: int = 7
) -> PartnerRequest:
    """Return a request whose texts alternate, the player's first."""
    return PartnerRequest(task, facts or FACTS[task], texts[::2], texts[1::2], seed, begin)


@pytest.fixture
def unruly() -> Iterator[Unruly]:
    with Unruly() as server:
        yield server


@pytest.fixture
def partner(unruly: Unruly) -> Partner:
    return ChatPartner("tiny", base_url=unruly.url, cache=False, max_parallel=1, retries=0)


def test_the_dialogue_is_told_as_messages() -> None:
    told = conversation(request("twenty_questions", "Is it alive?\n", "No.\n", " Is it worn?\n"))
    assert told[0]["role"] == "system"
    assert "Pants or Pant or Pair of pants." in told[0]["content"]
    assert told[1:] == [
        {"role": "user", "content": "Is it alive?"},
        {"role": "assistant", "content": "No."},
        {"role": "user", "content": "Is it worn?"},
    ]


def test_what_each_second_speaker_is_told() -> None:
    wanted = {
        "twenty_questions": ("Pants", '"Yes." or "No."'),
        "guess_city": ("You live in Mumbai, India.", "(Mumbai, Bombay)", "Never\nwrite the name of your city"),
        "car_dealer": (
            *("sarcastic", 'brand BMW and the type\n"sedan" with sunroof, heated seats.', "is $30,000.", "discounts"),
            *("Output: Decision=Accept MSRP=$31,000 Buy Price=$29,500\n", "Output: Decision=Reject MSRP=$31,000\n"),
        ),
    }
    for task, parts in wanted.items():
        system = conversation(request(task, "Hello?\n"))[0]["content"]
        assert [part for part in parts if part not in system] == [], task
        assert "{" not in system
        assert system.isascii()


def test_the_fewest_facts_are_enough() -> None:
    conversation(request("twenty_questions", "Is it alive?\n", facts={"word": "Pants"}))
    conversation(request("guess_city", "Is it warm?\n", facts={"city": "Mumbai", "country": "India"}))
    known = {name: BUYER[name] for name in ("personality", "brand", "type", "features", "budget")}
    conversation(request("car_dealer", "Hello!\n", facts=known))
    with pytest.raises(UserError, match=r"a partner of guess_city needs the fact 'country', got \['city'\]"):
        conversation(request("guess_city", "Is it warm?\n", facts={"city": "Mumbai"}))
    with pytest.raises(UserError, match="unknown dialogue task 'chess'; known: car_dealer, guess_city, twenty_q"):
        conversation(PartnerRequest("chess", {}, ("e4\n",), (), 0))


def test_a_buyer_is_asked_to_conclude(unruly: Unruly, partner: Partner) -> None:
    begin = "Output: Decision="
    unruly.faults = [completion(f"I am done.\n{begin}Reject MSRP=$20,000\nBye!"), completion("Reject MSRP=$20,000")]
    asked = [request("car_dealer", "Hello!\n", "Hi.\n", begin=begin)] * 2
    # The reply is whole, or lacks its beginning: the environment understands both.
    assert partner.reply(asked[:1]) == ["Output: Decision=Reject MSRP=$20,000\n"]
    assert partner.reply(asked[1:]) == ["Reject MSRP=$20,000\n"]
    roles = [message["role"] for message in unruly.bodies[0]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert unruly.bodies[0]["messages"][-1]["content"].endswith("begins with: Output: Decision=")


@cases(
    ("answer", "line"),
    [
        ("Yes.", "Yes.\n"),
        ("\n\n  Yes, it is.  \n\nBecause people wear it.", "Yes, it is.\n"),
        ("**Yes**", "Yes\n"),
        ('"No."', "No.\n"),
        ("Oracle: No.", "No.\n"),
        ("<think>Pants?\nWorn.</think>\nYes.", "Yes.\n"),
        ("<think>I never stop", "\n"),
        (None, "\n"),
        ("Player: Is it a cat?\nOracle: No.", "\n"),
        ("Deal!\nOutput: Decision=Accept MSRP=$2 Buy Price=$1", "Deal! Output: Decision=Accept MSRP=$2 Buy Price=$1\n"),
        ("Output: Decision=Reject MSRP=$2\nOutput: Decision=Reject MSRP=$2", "Output: Decision=Reject MSRP=$2\n"),
        ("Too much.\nSeller: $9?\nBuyer: Deal!\nOutput: Decision=Accept MSRP=$9 Buy Price=$9", "Too much.\n"),
        ("You: Hm, a car.\u2028Fine", "Hm, a car.\n"),
    ],
)
def test_a_reply_is_one_line_of_the_second_speaker(
    unruly: Unruly, partner: Partner, answer: str | None, line: str
) -> None:
    unruly.faults = [completion(answer)]
    assert partner.reply([request("car_dealer", "Hello!\n")]) == [line]


def test_a_car_is_sold_to_a_chat_model(unruly: Unruly, partner: Partner) -> None:
    sold = "Fine.\nOutput: Decision=Accept MSRP=$31,000 Buy Price=$29,500"
    unruly.faults = [completion("Buyer: How much?"), completion(sold)]
    env = lmrl.make("car_dealer", partner=partner)
    _, info = env.reset(seed=3)
    assert info["partner"]["name"] == "chat"
    assert env.step("A BMW sedan. The MSRP is $31,000.\n")[0] == "How much?\n"
    text, reward, terminated, _, info = env.step("$29,500.\n")
    assert (text, reward, terminated, info["success"]) == ("Fine.\n", 29.5, True, True)
    assert [body["messages"][-1]["content"] for body in unruly.bodies][1] == "$29,500."


def test_a_failing_endpoint_loses_no_answer(tmp_path: Path) -> None:
    asked = [request("twenty_questions", f"Is it number {number}?\n") for number in range(5)]
    settings: dict[str, Any] = {"cache": tmp_path / "answers", "max_parallel": 1, "retries": 0}
    with Unruly(*[completion("Yes.")] * 3, reply(500, "broken")) as server:
        told = r"'tiny' at .*: status 500: broken \(tries: 1\); 3 of 5 answers came, they"
        with pytest.raises(ChatError, match=told):
            ChatPartner("tiny", base_url=server.url, **settings).reply(asked)
        server.faults = [completion("No.")] * 2
        assert ChatPartner("tiny", base_url=server.url, **settings).reply(asked) == ["Yes.\n"] * 3 + ["No.\n"] * 2
        assert len(server.bodies) == 6


def test_descriptions(unruly: Unruly) -> None:
    sampling = ChatPartner("tiny", 0.7, base_url=unruly.url, api_key="sk-secret", cache=False)
    told = sampling.describe()
    settings = {"temperature": 0.7, "max_tokens": 128}
    assert json.loads(json.dumps(told)) == told
    assert told == {"name": "chat", "prompts": 1, "model": "tiny", "endpoint": unruly.url, **settings}
    sampling.reply([request("car_dealer", "Hello!\n", seed=seed) for seed in (4, 5)])
    assert sorted(body["seed"] for body in unruly.bodies) == [4, 5]


def test_a_partner_of_a_name_and_settings_has_a_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """When the budget is used up, the finished episodes are kept, and one line says where."""
    words = ["car_dealer", "--size", "40", "--out", str(tmp_path / "e.parquet"), "--env", "max_texts=2"]
    words += ["--partner", "chat:tiny", "--chat", "cache=false", "budget_requests=66"]
    with Unruly() as server:
        assert main(["data", "generate", *words, f"base_url={server.url}"]) == 2
        assert len(server.bodies) == 66
    partial = tmp_path / "e.partial.parquet"
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert re.search(rf"budget of 66 requests .* used up; .*; the \d+ episodes that were .* in {partial}", error)
    assert 0 < len([*read_episodes(partial)]) < 40
    assert read_metadata(partial)["env"]["partner"]["budget_requests"] == 66
    assert main(["data", "generate", *words, "--workers", "2"]) == 2
    assert "workers must be 1 where the partner has a budget (budget_requests), got 2" in capsys.readouterr().err
    assert main(["data", "generate", "car_dealer", "--partner", "scripted", "--chat", "timeout=3"]) == 2
    assert "chat can be set for a chat model only (chat:MODEL), not for 'scripted'" in capsys.readouterr().err


def test_a_budget_that_is_used_up_ends_a_rollout_that_forgives(unruly: Unruly) -> None:
    partner = ChatPartner("tiny", base_url=unruly.url, cache=False, budget_requests=5)
    policy = make_policy("twenty_questions", "random")
    starts = [Start(seed) for seed in range(2)]
    playing = rollout(
        policy, lambda: lmrl.make("twenty_questions", partner=partner), starts, task="twenty_questions", forgiving=True
    )
    with pytest.raises(BudgetError, match="budget of 5 requests"):
        list(playing)
    assert len(unruly.bodies) == 5


@cases(
    ("partner", "message"),
    [
        ({"name": "chat:x", "budget_token": 5}, r"unknown setting of chat partners 'budget_token'; known: base_url, b"),
        ({"name": "chat:x", "base_url": "http://x", "budget_tokens": -5}, r"budget_tokens must be above 0, got -5"),
        ({"name": "chat:x", "api_key": "sk-secret"}, r"api_key is no setting .*: set \$OPENAI_API_KEY$"),
        ({"name": "chat:x", "base_url": "http://me:pw@x"}, r"base_url of a partner must hold no password"),
        ({"name": "chat:x", "base_url": "http://[::1:8000/v1"}, "base_url must be an address"),
        ({"name": "lm:x", "max_new_tokens": "abc"}, "max_new_tokens must be a whole number, got 'abc'"),
        ({"name": "vllm:http://x#y", "max_parallel": 1.5}, r"max_parallel must be a whole number, got 1\.5"),
        ({"name": "lm:x", "max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"name": "lm:x", "temperature": "warm"}, "temperature must be a finite number, at least 0, got 'warm'"),
        (
            {"name": "lm:x", "api_key": 5},
            "unknown setting of lm partners 'api_key'; known: max_new_t",
        ),
        ({"name": "scripted", "budget_tokens": 5}, "the scripted partner has no settings, got budget_tokens"),
        ({"budget_tokens": 5}, "partner must be scripted, lm:PATH .*, got ''"),
    ],
)
def test_partners_that_cannot_be(partner: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        environment("twenty_questions", {"partner": partner})
    assert "sk-secret" not in str(error.value) and "pw" not in str(error.value)


@pytest.mark.nightly
def test_a_real_server(tmp_path: Path) -> None:
    """This is one test, since each process that runs a part of it would start a server of its own."""
    if MISSING:
        pytest.skip(f"transformers serve needs {', '.join(MISSING)}: pip install 'transformers[serving]'")
    with transformers_serve(tmp_path / "model") as (url, model):

        def served(**settings: Any) -> dict[str, Any]:
            return {"model": model, "base_url": url, "max_tokens": 8, **settings}

        answers_many(served, tmp_path)
        samples_by_temperature_and_seed(served)
        refuses_another_model(served)
        for task in FACTS:
            plays_with_many_environments(served, tmp_path, task)


def answers_many(served: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    batch = [[{"role": "user", "content": f"Is it number {number}?"}] for number in range(64)]
    client = ChatClient(**served(cache=tmp_path / "answers"))
    answers = client.complete(batch)
    assert len(answers) == 64 < 2 * len({*answers})
    assert client.spent()["requests"] == 64
    assert 64 * 16 < client.spent()["tokens"]
    again = ChatClient(**served(cache=tmp_path / "answers"))
    assert again.complete(batch[::-1]) == answers[::-1]
    # This model never ends an answer: all are cut off, and none of them is kept.
    assert again.spent()["requests"] == 64
    # With greedy decoding, the answers depend on the model alone.
    assert ChatClient(**served(cache=False)).complete(batch[:4]) == answers[:4]


def samples_by_temperature_and_seed(served: Callable[..., dict[str, Any]]) -> None:
    batch = [[{"role": "user", "content": "Hello!"}]] * 6
    assert len({*ChatClient(**served(cache=False)).complete(batch, seeds=range(6))}) == 1
    sampling = ChatClient(**served(cache=False, temperature=1.0, max_parallel=1))
    answers = sampling.complete(batch, seeds=range(6))
    assert len({*answers}) > 1
    assert sampling.complete(batch, seeds=range(6)) == answers


def refuses_another_model(served: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(ChatError, match=r"chat model 'other' at http.*: status 400: .*other.*; 0 of 1 answers came"):
        ChatClient(**served(model="other", cache=False)).complete([[{"role": "user", "content": "Hello!"}]])


def plays_with_many_environments(served: Callable[..., dict[str, Any]], tmp_path: Path, task: str) -> None:
    first = ChatPartner(**served(temperature=1.0, cache=tmp_path / task))
    said = _played(task, first)
    assert len(said) == 16
    assert all(text.endswith("\n") and text.count("\n") == 1 for text in said)
    assert first.client.spent()["requests"] == 16


def _played(task: str, partner: ChatPartner) -> list[str]:
    """Return the replies of a partner in two turns of eight environments that share it."""
    envs = [lmrl.make(task, partner=partner) for _ in range(8)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    said: list[str] = []
    for text in ("Hello, is it warm?\n", "I offer a BMW.\n"):
        said += [turn[0] for turn in step_together([(slot, env, text) for slot, env in enumerate(envs)])]
    return said
