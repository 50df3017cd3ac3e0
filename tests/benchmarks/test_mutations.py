"""Tests of the breaks: those of the table can be made, and a break that no test notices is reported as a survivor."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.mutations import MUTATIONS, ROOT, Mutation, applied, run
from tests.helpers.cases import cases

RULE = "def rule(x: int) -> int:\n    return x + 1\n"
TESTS = """import pytest
from lmrl.rules import rule

def test_of_two():
    assert rule(2) == 3

@pytest.mark.parametrize("x", [-1, 5])
def test_the_size(x):
    assert abs(rule(x)) in (0, 6)

def test_nothing():
    assert rule
"""
TWO, SIZE, NOTHING = (f"tests/test_rules.py::test_{name}" for name in ("of_two", "the_size", "nothing"))
SIGN = Mutation("Rules", "sign", "one is taken off", "rules.py", "x + 1", "x - 1", (TWO,))


@pytest.mark.nightly
@cases("mutation", MUTATIONS)
def test_what_is_broken_and_what_must_notice_are_there(mutation: Mutation) -> None:
    text = (ROOT / "lmrl" / mutation.file).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(applied(mutation, text))) != ast.dump(ast.parse(text))
    assert mutation.tests
    for test in mutation.tests:
        file, _, name = test.partition("[")[0].partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        "lmrl/__init__.py": "",
        "lmrl/rules.py": RULE,
        "tests/test_rules.py": TESTS,
        "pyproject.toml": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.nightly
def test_breaks_are_caught_or_survive(project: Path) -> None:
    half = replace(SIGN, new="abs(x) + 1", what="x has no sign", tests=(f"{SIZE}[-1]", SIZE, NOTHING))
    *rows, count, survivors = run((SIGN, half), project)
    assert [row.measured for row in rows] == ["caught, 1 of 1 tests fail", "SURVIVED, 2 of 3 tests fail"]
    assert rows[0].name == "Rules, sign: one is taken off"
    assert (count.value, survivors.value) == (2, 1)
    assert (project / "lmrl" / "rules.py").read_text() == RULE


@pytest.mark.nightly
def test_what_proves_nothing_is_an_error(project: Path) -> None:
    def wrong(**changes: object) -> Iterator[object]:
        yield from run((replace(SIGN, **changes),), project)  # type: ignore[arg-type]

    for times in ("x + 2", "x"):
        with pytest.raises(ValueError, match="must be there once"):
            applied(replace(SIGN, old=times), RULE)
    with pytest.raises(RuntimeError, match="pytest ended with 4"):
        list(wrong(tests=("tests/test_rules.py::test_gone",)))
    (project / "lmrl" / "rules.py").write_text(RULE.replace("+", "-"))
    with pytest.raises(RuntimeError, match=f"without a break these fail: {TWO}"):
        list(wrong(old="x - 1", new="x + 1"))
