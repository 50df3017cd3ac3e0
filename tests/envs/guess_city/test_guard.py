import re
from collections.abc import Iterator

import pytest

from lmrl.envs.guess_city.cities import City, Topic, cities, city_named, country_names, plain_words, topics
from lmrl.envs.guess_city.oracle import REFUSALS, ScriptedResident, guarded, guessed, leaks
from lmrl.envs.guess_city.reading import read_question, values_in
from lmrl.types import PartnerRequest
from tests.helpers.cases import cases

WORDS = {
    "continent": "continent",
    "region": "region; part of the world",
    "hemisphere": "hemisphere; side of the equator",
    "neighbors": "neighbors; neighboring country; bordering country; border",
    "language": "language; mother tongue; spoken language",
    "script": "alphabet; script; writing; letters",
    "currency": "currency; money; coins; cash",
    "religion": "religion; faith",
    "driving": "side of the road; driving side",
    "size": "population; size; number of inhabitants",
    "capital": "capital; seat of government",
    "timezone": "time zone; clock time",
    "sea": "sea; coast; ocean; shore",
    "river": "river; stream",
    "sport": "sport; team; athletes",
    "drink": "drink; beverage",
    "festival": "festival; holiday; celebration",
    "food": "food; dish; cuisine; meal; snack",
    "landmark": "landmark; sight; attraction; monument",
    "climate": "climate; weather; temperature; season",
    "history": "history; past; origin",
    "industry": "industry; economy; business; job",
    "transport": "transport; commute; way to get around",
    "terrain": "terrain; landscape; geography; nature",
    "culture": "culture; art; music; entertainment; tradition",
}
"""By topic, other words for it."""
FRAMES = (
    "What {} is there?", "What {} do you have?", "Which {} is yours?", "Tell me about the {}.", "What about the {}?",
    "How is the {}?", "What is the {} like?", "Can you describe the {}?", "Describe your {}, please!", "what {}",
    "And the {}, what is it?", "Which {} do people know?", "What {} is typical?", "What is special about your {}?",
    "What would you say about the {}?", "What {} does your city have?", "Which {} would I find?", "So what is the {}?",
    "What can you tell me about the {}?", "Please tell me which {} you have.", "WHAT IS YOUR {}?", "what's the {}?",
    "I wonder: what is your {}?", "What do you think of the {}?", "Which {} is the main one?", "How about your {}?",
    "Could you tell me what {} your city has?", "Where I live we have one; which {} do you have?",
    "What kind of {} is it?", "What sort of {} do you know?", "Say something about the {}.", "Which {}?", "What {}?",
    "Your {} is what?", "Now explain the {}.", "What {}, if any?", "Do tell me about your {}.", "Which {}, please?",
    "Hello! What is the {}?", "What is it with the {}?", "What {} are you proud of?", "Which {} do you mean?",
    "Tell me, what is your {}?", "Which is your {}?", "What {} could a guest find?", "What then is the {}?",
    "What about its {}?", "Which {} do you like?", "How would you describe the {}?", "What {} do you know best?",
)  # fmt: skip


def phrasings(topic: Topic) -> list[str]:
    """Fifty ways to ask for it, the first ones in its own words."""
    words = WORDS[topic.name].split("; ")
    asked = [frame.format(words[place % len(words)]) for place, frame in enumerate(FRAMES)]
    return [*dict.fromkeys((*topic.questions, *asked))][:50]


def named_by_eye(text: str, city: City, country: bool = True) -> bool:
    """Whether a name stands in the text, found without any of the package's own means."""
    names = [*city.names, *(country_names()[city.country] if country else ())]
    bare = text.replace("North America", "").replace("South America", "").replace("Latin America", "")
    return any(re.search(rf"\b{re.escape(name)}\b", bare, re.IGNORECASE) for name in names)


def requests(question: str, number: int) -> Iterator[PartnerRequest]:
    for seed, city in enumerate(cities(), 100 * number):
        yield PartnerRequest("guess_city", {"city": city.name}, (f"{question}\n",), (), seed)


@pytest.mark.nightly
@pytest.mark.parametrize("candor", [0.0, 1.0])
def test_no_leak_for_any_fact_and_city_in_fifty_phrasings(candor: float) -> None:
    resident = ScriptedResident(candor=candor)
    for topic in topics():
        asked = phrasings(topic)
        assert len({*asked}) == 50
        for number, question in enumerate(asked):
            read = read_question(question).topic
            assert read is not None and read.name == topic.name, question
            answers = resident.reply([*requests(question, number)])
            for city, answer in zip(cities(), answers, strict=True):
                assert not named_by_eye(answer, city) and not leaks(answer, city), (question, city.name, answer)
                told = values_in(answer, topic)
                if topic.name == "capital":
                    continue  # "Is it a capital?" and the like
                if answer.strip() in topic.without:
                    assert not city.facts[topic.name], (question, city.name, answer)
                elif not read_question(question).yes_no:
                    assert not told.isdisjoint(city.every(topic.name)), (question, city.name, answer)


def test_no_sentence_about_any_fact_leaks() -> None:
    for city in cities():
        for topic in topics():
            for value in city.every(topic.name):
                for sentence in topic.sentences:
                    text = sentence.format(value)
                    assert not named_by_eye(text, city) and not leaks(text, city), (city.name, text)


def test_every_name_is_caught_however_it_is_written() -> None:
    for city in cities():
        for name in (*city.names, *country_names()[city.country]):
            texts = (f"I live in {name}.", f"{name.upper()}!", f"{name}'s food", f"x-{name}-y", f"({name.lower()})")
            for text in texts:
                assert leaks(text, city), text
                assert guarded(text, city, ["Where are you?\n"]) in REFUSALS
        for name in city.names:
            if len("".join(plain_words(name))) > 4:
                assert leaks(" ".join(name), city)
                assert " " in name or leaks(f"a {name}er", city)


@cases(
    ("city", "text", "leak"),
    [
        ("Paris", "Parisian cafes", True),
        ("Sao Paulo", "S\u00e3o Paulo", True),
        ("New York", "It is in North America.", False),
        ("New York", "It is in America.", True),
        ("Salvador", "El Salvador is far away.", True),  # no guess, but too close to the name
        ("Beijing", "We eat Peking duck.", True),
        ("Seoul", "We speak Korean.", False),
        ("Seoul", "Korea is small.", True),
        ("Mexico City", "You find it in Mexico.", True),
        ("Rome", "It comes from everywhere.", False),
        ("Lima", "The climate is mild.", False),
        ("Guangzhou", "We speak Cantonese.", False),
        ("Guangzhou", "This was Canton.", True),
    ],
)
def test_what_leaks_by_hand(city: str, text: str, leak: bool) -> None:
    assert leaks(text, city_named(city)) is leak


def test_the_country_may_be_said_once_it_was_named() -> None:
    city = city_named("Osaka")
    reply = "Yes, it is in Japan."
    assert guarded(reply, city, ["Is it in Japan?\n"]) == reply
    assert guarded(reply, city, ["Is it in Asia?\n"]) in REFUSALS
    assert guarded(reply, city, ["Is it in Japan or in China?\n"]) in REFUSALS
    assert guarded("It is Osaka in Japan.", city, ["Is it in Japan?\n"]) in REFUSALS


@cases(
    ("city", "question", "guess"),
    [
        ("Mumbai", "Is it Mumbai?", True),
        ("Mumbai", "is it bombay", True),
        ("Mumbai", "Is it Mumbai, India?", True),
        ("Mumbai", "Do you live in MUMBAI?", True),
        ("Mumbai", "Mumbai", True),
        ("Mumbai", "Is it Mumbai or Delhi?", False),
        ("Mumbai", "Is it Mumbai, Delhi, Kolkata?", False),
        ("Mumbai", "Is it near Mumbai?", False),
        ("Mumbai", "Is it bigger than Mumbai?", False),
        ("Mumbai", "Is it not Mumbai?", False),
        ("Mumbai", "Is it Mumbaikar?", False),
        ("Mumbai", "Is it Kolkata?", False),
        ("Pyongyang", "Is it Pyongyang, North Korea?", True),
        ("Sao Paulo", "Is it S\u00e3o Paulo?", True),
        ("Mexico City", "Is it in Mexico?", False),
        ("Singapore", "Is it in Singapore?", True),
        ("Salvador", "Is it in El Salvador?", False),
        ("Santiago", "Is it Santiago de Cali?", False),
        ("Cali", "Is it Santiago de Cali?", True),
        ("Rio de Janeiro", "Is it on the Rio de la Plata?", False),
        ("Los Angeles", "Is it on the Rio de la Plata?", False),
        ("Beijing", "Do you eat Peking duck?", False),
        ("Ho Chi Minh City", "Is it Saigon?", True),
        ("Rome", "Rome" * 2, False),
    ],
)
def test_what_is_a_guess(city: str, question: str, guess: bool) -> None:
    assert (guessed(question) == city) is guess
