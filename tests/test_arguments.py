from pathlib import Path

import pytest

from lmrl.commands.arguments import call
from lmrl.errors import UserError
from lmrl.utils.configuration import env_arguments


def record(
    names: list[str], *, out: Path, settings: list[str] | None = None, count: int | None = None, loud: bool = False
) -> int:
    """Record what came.

    Args:
        names: some names.
        out: where to.
        settings: key=value.
        count: how many.
        loud: say so.
    """
    calls.append((names, out, settings, count, loud))
    return 7


calls: list[tuple[list[str], Path, list[str] | None, int | None, bool]] = []


def test_the_signature_is_the_parser() -> None:
    calls.clear()
    words = ["a,b", "c", "--out", "x", "--settings", "k=[1,2]", "l=3", "--count=4", "--loud"]
    assert call(record, words, "try") == 7
    assert call(record, ["a", "--out", "x"], "try") == 7
    assert calls == [
        (["a", "b", "c"], Path("x"), ["k=[1,2]", "l=3"], 4, True),
        (["a"], Path("x"), None, None, False),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a", "out"),
        ("--out x", "names"),
        ("a --out x --cuont 3", "unknown key 'cuont'; did you mean 'count'? known: count, loud, out, settings"),
        ("a --out x --count many", "count must be a whole number, got 'many'"),
    ],
)
def test_what_does_not_fit_is_named(words: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        call(record, words.split(), "try")
    assert message in str(error.value)
    assert "(see: try --help)" in str(error.value)


def test_arguments_of_an_environment() -> None:
    words = ["opponent=random", "max_moves=10", "show=false", "share=.5", "path=a/b=c.txt"]
    assert env_arguments(words) == {
        "opponent": "random", "max_moves": 10, "show": False, "share": 0.5, "path": "a/b=c.txt"
    }  # fmt: skip
    assert env_arguments(None) == env_arguments([]) == {}


@pytest.mark.parametrize("word", ["opponent", "=3", "a b=3", ""])
def test_no_argument_of_an_environment(word: str) -> None:
    with pytest.raises(UserError, match="as name=value, got"):
        env_arguments(["max_moves=10", word])
