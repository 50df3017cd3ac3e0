from collections import Counter
from random import Random
from statistics import mean, pstdev

import pytest

import lmrl
from lmrl.envs.guess_city.cities import cities, topics
from lmrl.envs.guess_city.oracle import ScriptedResident
from lmrl.envs.guess_city.players import EVERYWHERE, SKILLS, Skill, agreeing, members, of_skill
from lmrl.envs.registry import make_policy, policy_names, recording
from lmrl.models.tokenizer import load_tokenizer
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, PartnerRequest, Policy, Request, Start
from tests.helpers.cases import cases


def play(policy: Policy, starts: list[Start], **env: object) -> list[Episode]:
    return in_order(rollout(policy, lambda: lmrl.make("guess_city", **env), starts, task="guess_city"))


def recorded(count: int, seed: int = 0) -> list[Episode]:
    recipe = recording("guess_city")
    return play(recipe.policy, [recipe.start(seed, index) for index in range(count)])


@pytest.mark.parametrize("env", [{}, {"candor": 0.0}, {"candor": 1.0}, {"noise": 0.2}], ids=str)
def test_the_informed_guesser_finds_every_city(env: dict[str, float]) -> None:
    starts = [Start(seed, {"city": city.name}) for seed in range(2) for city in cities()]
    episodes = play(make_policy("guess_city", "optimal", env), starts, **env)
    assert mean(episode.success for episode in episodes) >= 0.99
    assert mean(map(len, episodes)) <= 5


@pytest.mark.parametrize("candor", [0.0, 1.0])
def test_an_answer_never_rules_out_the_city_that_gave_it(candor: float) -> None:
    resident = ScriptedResident(candor=candor)
    hunches = (
        "Is it in Asia?",
        "Is it by the sea?",
        "Is it a big city?",
        "Do people speak Spanish?",
        "Is it in China?",
    )
    asked = [*hunches, *(question for topic in topics() for question in topic.questions)]
    told = 0
    for place, city in enumerate(cities()):
        requests = [
            PartnerRequest("", {"city": city.name}, (f"{text}\n",), (), seed) for seed, text in enumerate(asked)
        ]
        for question, answer in zip(asked, resident.reply(requests), strict=True):
            left = agreeing(f"{question}\n", answer)
            assert left >> place & 1, (city.name, question, answer)
            told += left != EVERYWHERE
    assert told > 0.9 * len(asked) * len(cities())


@cases(
    ("question", "answer", "left"),
    [
        ("Is it Rome?", "No, I live elsewhere.", 99),
        ("Is it in Japan?", "Yes.", 4),
        ("What money do you use?", "We pay with the yen.", 4),
        ("Which continent is it on?", "It is in Africa.", 7),
        ("What does your country border?", "My country borders North Korea.", 20),
        ("Is it in Africa?", "No, it is not so.", 93),
        ("What can I see there?", "I must not tell you that.", 100),
        ("Is it a capital?", "I am not sure.", 100),
        ("Who are you?", "Yes.", 100),
    ],
)
def test_what_answers_leave(question: str, answer: str, left: int) -> None:
    assert len(members(agreeing(question, answer))) == left


@pytest.mark.nightly
def test_the_dataset_is_like_the_published_one() -> None:
    episodes = recorded(1_000)
    assert mean(episode.success for episode in episodes) == pytest.approx(0.53, abs=0.04)
    assert mean(map(len, episodes)) == pytest.approx(18.8, abs=0.9)
    assert mean(episode.total_reward for episode in episodes) == pytest.approx(-18.8, abs=1.4)
    assert 2.5 < pstdev(map(len, episodes)) < 4.57
    assert sum(episode.illegal for episode in episodes) == 0
    started = Counter(episode.info["start"]["city"] for episode in episodes)
    solved = {episode.info["start"]["city"] for episode in episodes if episode.success}
    assert {*started.values()} == {10} and len(solved) == 100


def test_twenty_questions_fit_into_a_short_context() -> None:
    tokenizer = load_tokenizer()
    episodes = [episode for episode in recorded(200, seed=1) if len(episode) == 20]
    texts = ["".join([*episode.observations, *episode.actions]) for episode in episodes]
    assert mean(len(ids) for ids in tokenizer(texts)["input_ids"]) < 450
    actions = [action for episode in episodes for action in episode.actions]
    assert max(len(ids) for ids in tokenizer(actions)["input_ids"]) <= lmrl.task("guess_city").max_action_tokens


def test_skills_are_graded() -> None:
    assert sum(share for share, _ in SKILLS) == 100
    assert len({skill.memory for _, skill in SKILLS}) >= 4


SAID = {
    "Which continent is it on?\n": "It is in Africa.\n",
    "Is it by the sea?\n": "Yes.\n",
    "Do people speak Arabic?\n": "Yes.\n",
    "Is it Cairo?\n": "No, it is another city.\n",
}


@pytest.mark.parametrize(
    ("memory", "agreeing_with"), [(0, ["Is it Cairo?\n"]), (1, [*SAID][2:]), (2, [*SAID][1:]), (9, [*SAID])]
)
def test_it_guesses_what_agrees_with_the_last_answers(memory: int, agreeing_with: list[str]) -> None:
    """And with the answers to its guesses, however long ago."""
    ask = of_skill(Skill(memory=memory, patience=0, sure=0, hunches=0.0))
    left = EVERYWHERE
    for question in agreeing_with:
        left &= agreeing(question, SAID[question])
    request = Request(0, 1, ("Questions:\n", *SAID.values()), tuple(SAID))
    guesses = {ask(request, Random(draw)) for draw in range(2_000)}
    named = {city.name for city in cities() if any(city.name in guess for guess in guesses)}
    assert named == {city.name for city in members(left)}


@pytest.mark.parametrize("name", policy_names("guess_city"))
def test_a_question_follows_from_seed_and_history(name: str) -> None:
    policy = make_policy("guess_city", name)
    said = ("Questions:\n", "It is in Asia.\n", "Perhaps.\n"), ("Which continent is it on?\n", "Is it old?\n")
    some = [Request(0, seed, *said) for seed in range(20)]
    assert [policy.act([request]) for request in some] == [[reply] for reply in policy.act(some)]
    assert all(reply.text.endswith("?\n") for reply in policy.act(some))


@pytest.mark.parametrize("name", policy_names("guess_city"))
def test_contradictions_are_survived(name: str) -> None:
    said = ("Questions:\n", "It is in Asia.\n", "No.\n"), ("Which continent is it on?\n", "Is it in Asia?\n")
    (reply,) = make_policy("guess_city", name).act([Request(0, 1, *said)])
    assert reply.text.endswith("?\n")
