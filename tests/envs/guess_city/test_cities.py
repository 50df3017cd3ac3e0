from lmrl.envs.guess_city.cities import cities, city_named, country_names, places_in, plain_words, topics
from tests.helpers.cases import cases

OLD_NAMES = {
    "Bombay": "Mumbai", "Calcutta": "Kolkata", "Madras": "Chennai", "Bangalore": "Bengaluru", "Pusan": "Busan",
    "Haerbin": "Harbin", "Pyong Yang": "Pyongyang", "Kinshaha": "Kinshasa", "Kiev": "Kyiv", "Taega": "Daegu",
    "Inchon": "Incheon", "Havanna": "Havana", "Bucuresti": "Bucharest", "St Petersburg": "Saint Petersburg",
    "St. Petersburg": "Saint Petersburg", "Saigon": "Ho Chi Minh City", "Peking": "Beijing", "Xi'an": "Xian",
    "Rangoon": "Yangon", "Bogot\u00e1": "Bogota", "sao paulo": "Sao Paulo", "NYC": "New York",
}  # fmt: skip


def test_a_hundred_cities_with_at_least_twenty_facts_each() -> None:
    assert len(cities()) == 100 == len({city.name for city in cities()})
    assert [cities()[place].name for place in (0, 2, 99)] == ["Seoul", "Mumbai", "Caracas"]
    for city in cities():
        told = [topic.name for topic in topics() if city.facts[topic.name]]
        assert len(told) >= 20 and {*[topic.name for topic in topics()]} - {*told} <= {"sea", "river"}, city.name
        assert city.country in country_names()
        for value in (value for topic in topics() for value in city.every(topic.name)):
            assert value.isascii() and len(value.split()) <= 11, value


@cases(("old", "name"), OLD_NAMES.items())
def test_old_names_and_spellings(old: str, name: str) -> None:
    assert places_in(f"Is it {old}?").cities == {name}


def test_no_two_cities_share_a_name() -> None:
    names = [plain_words(name) for city in cities() for name in city.names]
    assert len(names) == len({*names}) > 200


def test_general_terms_fit_several_cities() -> None:
    for topic in topics():
        if topic.name in ("landmark", "food", "history", "culture", "language", "currency", "river"):
            terms = {term: sum(term in city.general[topic.name] for city in cities()) for city in cities()
                     for term in city.general[topic.name]}  # fmt: skip
            assert min(terms.values()) >= 2, (topic.name, terms)


@cases(
    ("city", "topic", "values"),
    [
        ("Istanbul", "continent", ("Europe", "Asia")),
        ("Hong Kong", "currency", ("dollar",)),
        ("Hong Kong", "driving", ("the left",)),
        ("Chicago", "timezone", ("UTC-6",)),
        ("New York", "timezone", ("UTC-5",)),
        ("Cairo", "river", ("the Nile",)),
        ("Madrid", "sea", ()),
        ("Kinshasa", "hemisphere", ("southern",)),
    ],
)
def test_facts_by_hand(city: str, topic: str, values: tuple[str, ...]) -> None:
    assert city_named(city).facts[topic] == values
