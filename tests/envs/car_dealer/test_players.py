from statistics import mean, pstdev
from typing import Any

import pytest

import lmrl
from lmrl.envs.car_dealer.lines import CHOICES, HINTS
from lmrl.envs.car_dealer.players import take_notes
from lmrl.envs.registry import make_policy, policy_names, recording
from lmrl.models.tokenizer import load_tokenizer
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Policy, Request, Start
from tests.helpers.cases import cases


def play(policy: Policy, starts: list[Start], **env: Any) -> list[Episode]:
    return in_order(rollout(policy, lambda: lmrl.make("car_dealer", **env), starts, task="car_dealer"))


def games(name: str, count: int = 100, **options: Any) -> list[Episode]:
    return play(make_policy("car_dealer", name), [Start(seed, options or None) for seed in range(count)])


def success(episodes: list[Episode]) -> float:
    return mean(episode.success for episode in episodes)


@pytest.fixture(scope="module")
def dataset() -> list[Episode]:
    recipe = recording("car_dealer")
    return play(recipe.policy, [recipe.start(0, index) for index in range(800)])


@pytest.mark.nightly
def test_the_dataset_is_like_the_published_one(dataset: list[Episode]) -> None:
    lines = [2 * len(e) for e in dataset]
    fancy = [e.info["fancy"] for e in dataset]
    assert mean(lines) == pytest.approx(16.5, rel=0.07) and pstdev(lines) < 6
    assert success(dataset) == pytest.approx(0.53, abs=0.05)
    assert mean(fancy) == pytest.approx(0.562, abs=0.05) and pstdev(fancy) == pytest.approx(0.422, abs=0.1)
    assert sum(episode.illegal for episode in dataset) == 0
    assert all(episode.terminated for episode in dataset)


def test_every_profile_is_met_about_equally_often(dataset: list[Episode]) -> None:
    for name in ("strategy", "budget", "personality", "brand", "type"):
        drawn = [episode.info["start"][name] for episode in dataset]
        assert max(map(drawn.count, CHOICES[name])) < 2 * min(map(drawn.count, CHOICES[name]))


def test_the_best_response_earns_more_in_both_units(dataset: list[Episode]) -> None:
    best = games("optimal", 300)
    for unit in ("revenue", "fancy"):
        assert mean(e.info[unit] for e in best) > 1.5 * mean(e.info[unit] for e in dataset)
    assert success(best) > 0.95


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("style", "strategy"), zip(("discounts", "features", "concise"), CHOICES["strategy"], strict=True)
)
def test_a_style_pays_with_its_buyers(style: str, strategy: str) -> None:
    matched = success(games(style, strategy=strategy))
    for other in CHOICES["strategy"]:
        if other != strategy:
            assert matched > success(games(style, strategy=other)) + 0.15
    for other in ("discounts", "features", "concise"):
        if other != style:
            assert matched > success(games(other, strategy=strategy)) + 0.02
    assert success(games("matched", strategy=strategy)) > success(games("behaviour", strategy=strategy))


@cases("name", policy_names("car_dealer"))
def test_a_line_follows_from_seed_and_history(name: str) -> None:
    policy = make_policy("car_dealer", name)
    texts = ("Start\n", "I want an Audi truck.\n", "My budget is $30,000. Make it quick.\n")
    said = ("Hello! What car are you looking for?\n", "What is your budget?\n")
    some = [Request(0, seed, texts, said) for seed in range(20)]
    assert [policy.act([request]) for request in some] == [[reply] for reply in policy.act(some)]
    assert games(name, 5) == games(name, 5)


@cases("name", policy_names("car_dealer"))
def test_sellers_know_no_profile(name: str) -> None:
    policy = make_policy("car_dealer", name)
    for episode in games(name, 20):
        for turn, action in enumerate(episode.actions):
            request = Request(0, episode.seed, episode.observations[: turn + 1], episode.actions[:turn])
            assert policy.act([request])[0].text == action


def test_notes() -> None:
    texts = (
        "Start\n", "I want an Audi truck. Do you have any discounts?\n", "My budget is $30,000.\n",
        "Not a Ford. I want an Audi.\n", "Is there a sunroof?\n",
    )  # fmt: skip
    said = (
        "Hello! What car are you looking for?\n", "What is your budget?\n",
        "A Ford truck with leather seats for $33,000.\n",
        "I have an Audi truck. MSRP $35,000, my price $32,000.\n",
    )  # fmt: skip
    notes = take_notes(Request(0, 1, texts, said))
    assert (notes.brand, notes.type, notes.budget, notes.strategy) == ("Audi", "truck", 30_000, "discounts")
    assert (notes.features, notes.told, notes.offered) == (("sunroof",), frozenset(), {"Ford", "Audi"})
    assert (notes.msrp, notes.price, notes.offers, notes.asked) == (35_000, 32_000, 1, {"car", "budget"})


def test_every_hint_shows_its_strategy() -> None:
    for strategy, hints in HINTS.items():
        for hint in hints:
            assert take_notes(Request(0, 1, ("Start\n", f"{hint}\n"), ("Hello.\n",))).strategy == strategy


@pytest.mark.slow
def test_episodes_fit_a_short_context(dataset: list[Episode]) -> None:
    tokenizer = load_tokenizer()
    texts = [
        "".join([e.observations[0], *map("".join, zip(e.actions, e.observations[1:], strict=True))]) for e in dataset
    ]
    lengths = [len(tokenizer(text)["input_ids"]) for text in texts]
    assert mean(lengths) < 300 and max(lengths) < 500
    most = max(len(tokenizer(action)["input_ids"]) for episode in dataset for action in episode.actions)
    assert most <= lmrl.task("car_dealer").max_action_tokens
    assert all(action.isascii() and len(action.split()) <= 20 for episode in dataset for action in episode.actions)
