from lmrl.envs.car_dealer.lines import CHOICES, amounts, read
from tests.helpers.cases import cases


@cases(
    ("line", "msrp", "price"),
    [
        ("The price is $31,000.", None, 31_000),
        ("I can do 31k.", None, 31_000),
        ("31 thousand and it is yours", None, 31_000),
        ("$29.5k!", None, 29_500),
        ("The MSRP is $33,000, for you $31,000.", 33_000, 31_000),
        ("MSRP=$33,000", 33_000, None),
        ("List price $33,000. My price: 30000 dollars.", 33_000, 30_000),
        ("$28,000 instead of $30,000", None, 28_000),
        ("from $30,000 down to $28,000", None, 28_000),
        ("That is below your budget of $30,000.", None, None),
        ("It is a 2023 model with 300 horses.", None, None),
        ("Price $1,000,000", None, 1_000_000),
        ("Only $500!", None, None),
        ("No price here.", None, None),
    ],
)
def test_sums(line: str, msrp: int | None, price: int | None) -> None:
    assert (read(line).msrp, read(line).price) == (msrp, price)


@cases(
    ("line", "off", "percent"),
    [
        ("$500 off!", 500, 0),
        ("I give you a discount of $1,500.", 1_500, 0),
        ("You save $2,000.", 2_000, 0),
        ("10% off", 0, 10),
        ("another 5 percent discount", 0, 5),
        ("$500", 0, 0),
    ],
)
def test_discounts(line: str, off: int, percent: int) -> None:
    assert (read(line).off, read(line).percent) == (off, percent)


def test_every_name_is_found_alone_and_in_any_case() -> None:
    for name in (*CHOICES["brand"], *CHOICES["type"], *CHOICES["features"]):
        for text in (f"It is {name}.", name.upper(), f"({name.lower()})"):
            line = read(text)
            assert (*line.brands, *line.types, *line.features) == (name,)
            assert read(f"x{name}x").brands == ()


@cases(
    ("line", "found"),
    [
        ("A VW pickup with gps and moonroof", ("Volkswagen", "truck", "navigation system", "sunroof")),
        ("Mercedes with third row seats", ("Mercedes-Benz", "third-row seating")),
        ("blind-spot monitor, rear view camera, CarPlay", ("blind spot monitoring", "backup camera", "Apple CarPlay")),
        ("It has no sunroof, but leather seats", ("leather seats",)),
        ("It comes without heated seats.", ()),
        ("It is not a BMW. It is a Ford.", ("Ford",)),
    ],
)
def test_other_names_and_what_is_denied(line: str, found: tuple[str, ...]) -> None:
    seen = read(line)
    assert (*seen.brands, *seen.types, *seen.features) == found


@cases(
    ("line", "asks"),
    [
        ("What car are you looking for?", ("car",)),
        ("Which brand do you like, and what is your budget?", ("budget", "brand")),
        ("What type of car do you need?", ("type",)),
        ("How much can you spend?", ("budget",)),
        ("Which features do you want?", ("features",)),
        ("I know your budget.", ()),
        ("Deal?", ()),
        ("What about a BMW?", ()),
    ],
)
def test_questions(line: str, asks: tuple[str, ...]) -> None:
    assert read(line).asks == asks


def test_rude_words_and_words() -> None:
    assert read("You idiot!").rude and not read("A foolproof car.").rude
    assert [read(text).words for text in ("", " ?! \n", "A BMW for $31,000.")] == [0, 0, 4]
    assert read("A BMW!\n").key == read("a  bmw").key != read("a bm w").key


def test_amounts() -> None:
    assert amounts("My budget is $30,000, not 20k or 900.") == (30_000, 20_000)
