import pytest

from lmrl.envs.guess_city.cities import cities, topics
from lmrl.envs.guess_city.oracle import REFUSALS, ScriptedResident
from lmrl.errors import UserError
from lmrl.types import Partner, PartnerRequest
from tests.helpers.cases import cases

YES = "Yes"
NO = "No"
HARDLY = "Not"
UNSURE = "unsure"
FULL = "full"


def answer(city: str, question: str, seed: int = 0, resident: Partner | None = None) -> str:
    request = PartnerRequest("guess_city", {"city": city}, (f"{question}\n",), (), seed)
    (text,) = (resident or ScriptedResident()).reply([request])
    assert text.endswith("\n") and text.count("\n") == 1
    return text.strip()


def kind(text: str) -> str:
    if text in ("I am not sure.", "That is hard to say.", "I do not know that."):
        return UNSURE
    first = text.replace(",", " ").replace(".", " ").split()[0]
    return first if first in (YES, NO, HARDLY) else FULL


@cases(
    ("question", "cairo", "tokyo", "toronto"),
    [
        ("Is your city in Asia?", NO, YES, NO),
        ("Is it in Africa?", YES, NO, NO),
        ("Are you in East Asia?", NO, YES, NO),
        ("Is it located in North America?", NO, NO, YES),
        ("Is it in Antarctica?", HARDLY, HARDLY, HARDLY),
        ("Is it a capital?", YES, YES, NO),
        ("Is your city the capital of the country?", YES, YES, NO),
        ("Is it a provincial capital?", NO, NO, YES),
        ("Do people speak Arabic there?", YES, HARDLY, HARDLY),
        ("Is English the language?", HARDLY, HARDLY, YES),
        ("Is it in Egypt?", YES, NO, NO),
        ("Is it a city in Japan?", NO, YES, NO),
        ("Is it in Nepal?", NO, NO, NO),
        ("Is it the capital of Japan?", NO, YES, NO),
        ("Is it Canada's capital?", NO, NO, NO),
        ("Does your country border Libya?", YES, NO, NO),
        ("Is it near the border with the United States?", NO, NO, YES),
        ("Is it on the Nile?", YES, NO, NO),
        ("Is it on the Danube river?", NO, NO, NO),
        ("Is it on the Po river?", FULL, FULL, FULL),
        ("Is it on the Red River?", FULL, FULL, FULL),
        ("Is it on the Black Sea?", NO, FULL, FULL),
        ("Is it on a lake?", FULL, FULL, YES),
        ("Is it on Lake Michigan?", FULL, FULL, FULL),
        ("Does a river flow through it?", YES, YES, YES),
        ("Is it by the sea?", NO, YES, NO),
        ("Is it on the Pacific Ocean?", NO, YES, NO),
        ("Is it landlocked?", YES, NO, YES),
        ("Is it far from the coast?", YES, NO, YES),
        ("Do you drive on the left?", NO, YES, NO),
        ("Do you pay with the yen?", NO, YES, NO),
        ("Is it in the southern hemisphere?", NO, NO, NO),
        ("Is it north of the equator?", YES, YES, YES),
        ("Are there more than 10 million people?", YES, YES, NO),
        ("Does it have less than five million inhabitants?", NO, NO, NO),
        ("Does it have more than 15 million people?", FULL, FULL, NO),
        ("Is it a big city?", YES, YES, YES),
        ("Is it small?", NO, NO, NO),
        ("Are there pyramids?", HARDLY, HARDLY, HARDLY),
        ("Do people eat sushi?", HARDLY, YES, HARDLY),
        ("Do you have a subway?", YES, HARDLY, YES),
        ("Do you play baseball?", HARDLY, YES, HARDLY),
        ("Is it a Muslim city?", YES, HARDLY, HARDLY),
        ("Is it very hot?", YES, YES, YES),
        ("Did it host the Olympics in 1964?", HARDLY, YES, HARDLY),
        ("Is your time zone UTC+9?", NO, YES, NO),
        ("Is your time zone UTC-9?", FULL, FULL, FULL),
        ("Isn't it in Asia?", FULL, FULL, FULL),
        ("Is it in Asia or in Africa?", FULL, FULL, FULL),
        ("Is it hot or cold?", FULL, FULL, FULL),
        ("Do you have a mayor?", UNSURE, UNSURE, UNSURE),
        ("Who wrote that?", UNSURE, UNSURE, UNSURE),
        ("asdf qwer", UNSURE, UNSURE, UNSURE),
    ],
)
def test_questions_by_hand(question: str, cairo: str, tokyo: str, toronto: str) -> None:
    asked = [("Cairo", cairo), ("Tokyo", tokyo), ("Toronto", toronto)]
    assert [kind(answer(city, question)) for city, _ in asked] == [said for _, said in asked]


@cases(
    "question",
    [
        "What is the name of your city?", "Which city is it?", "Which country is it in?", "What is your city called?",
        "Does its name start with a T?", "What letter does it begin with?", "How do you spell it?",
    ],
)  # fmt: skip
def test_names_are_not_told(question: str) -> None:
    assert {answer("Tokyo", question, seed) for seed in range(30)} == {*REFUSALS}


def test_guesses_and_lists_of_places() -> None:
    assert kind(answer("Tokyo", "Is it Osaka?")) == NO
    assert kind(answer("Tokyo", "Is it Pyongyang, North Korea?")) == NO
    near = [answer(city, "Is it near Tokyo?", 5) for city in ("Tokyo", "Yokohama", "Lima")]
    assert len({*near}) == 1 and kind(near[0]) == UNSURE
    for question in ("Is it Osaka or Kyiv?", "Is it Tokyo, Osaka or Kyiv?", "Is it in Japan or in China?"):
        assert answer("Tokyo", question) == "One place at a time, please."
    assert answer("Taipei", "Is it in China?") == "That is disputed."
    assert kind(answer("Taipei", "Is it in Taiwan?")) == YES
    assert kind(answer("Osaka", "Is it the capital of Japan?")) == NO
    assert kind(answer("Yokohama", "Is it Japan's capital?")) == NO


@cases("question", ["What do people in Japan eat?", "Isn't it in Japan?", "Do you live in Japan or not?"])
def test_a_question_that_names_one_country_is_answered_by_its_topic(question: str) -> None:
    """Nothing in the answer singles out Taipei, whose country is disputed."""
    for city in ("Tokyo", "Cairo", "Taipei"):
        said = {answer(city, question, seed) for seed in range(20)}
        assert said.isdisjoint({"One place at a time, please.", "That is disputed."})
    food = [text for text in ("We eat", "People love", "Try our") if answer("Cairo", question).startswith(text)]
    assert bool(food) == ("eat" in question)


@cases(
    ("question", "city"),
    [
        ("Is it in northern China?", "Guangzhou"), ("Is it in southern China?", "Beijing"),
        ("Was it a colony of Spain?", "Lima"), ("Is it on the coast of Brazil?", "Sao Paulo"),
        ("Is it near Japan?", "Busan"), ("Is it the biggest city in Japan?", "Osaka"),
        ("Was it once the capital of Myanmar?", "Yangon"), ("Is it north of North Korea?", "Pyongyang"),
    ],
)  # fmt: skip
def test_a_country_with_other_words_is_more_than_the_table_knows(question: str, city: str) -> None:
    assert {kind(answer(city, question, seed)) for seed in range(20)} <= {FULL, UNSURE}


def test_the_only_neighbor_of_south_korea_is_confirmed_but_not_named() -> None:
    for city in ("Seoul", "Busan", "Incheon", "Daegu", "Beijing", "Moscow"):
        assert kind(answer(city, "Does your country border North Korea?")) == YES
    assert kind(answer("Tokyo", "Does your country border North Korea?")) == NO


def test_a_sea_by_another_name_is_not_denied() -> None:
    assert answer("Shanghai", "Is it on the East China Sea?").endswith(" the ocean.")
    assert kind(answer("Lima", "Is it on the North Sea?")) == FULL
    assert kind(answer("Madrid", "Is it on the Red Sea?")) == NO
    assert kind(answer("Mumbai", "Is It By The Sea?")) == YES


def test_a_fact_is_told_in_several_sentences_and_details_by_candor() -> None:
    plain = ScriptedResident(candor=0)
    candid = ScriptedResident(candor=1)
    said = {answer("Cairo", "What do people eat?", seed, plain) for seed in range(200)}
    assert len(said) >= 6 and not any("koshari" in text for text in said)
    details = {answer("Cairo", "What do people eat?", seed, candid) for seed in range(200)}
    assert details == {
        f"{lead} {dish}." for lead in ("We eat", "People love", "Try our") for dish in ("koshari", "falafel")
    }
    mixed = [answer("Cairo", "What do people eat?", seed) in details for seed in range(2000)]
    assert 0.07 < sum(mixed) / 2000 < 0.13
    # Asking again in the same episode does not make it more candid.
    for seed in range(50):
        asked = ("What do people eat?\n",)
        again = [PartnerRequest("", {"city": "Cairo"}, asked * n, (), seed) for n in range(1, 20)]
        assert len({text.strip() in details for text in ScriptedResident().reply(again)}) == 1


def test_every_answer_is_short_ascii_and_follows_from_the_request() -> None:
    requests = [
        PartnerRequest("guess_city", {"city": city.name}, (f"{question}\n",), (), 3)
        for city in cities()
        for topic in topics()
        for question in topic.questions
    ]
    for candor in (0.0, 0.1, 1.0):
        answers = ScriptedResident(candor=candor).reply(requests)
        assert answers == [ScriptedResident(candor=candor).reply([request])[0] for request in requests]
        assert all(text.isascii() and len(text.split()) <= 15 for text in answers), max(answers, key=len)


def test_noise_evades_and_never_lies() -> None:
    noisy = ScriptedResident(noise=0.4)
    said = [kind(answer("Cairo", "Is it in Africa?", seed, noisy)) for seed in range(1000)]
    assert {*said} == {YES, UNSURE} and 340 < said.count(UNSURE) < 460
    assert noisy.describe() == {"name": "scripted resident", "version": 2, "noise": 0.4, "candor": 0.1}


@pytest.mark.parametrize("name", ["noise", "candor"])
def test_no_probability(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} must be from 0 to 1, got 1.5"):
        ScriptedResident(**{name: 1.5})
