"""One test over many cheap cases."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


def cases(names: str | Sequence[str], values: Iterable[Any]) -> Callable[[Test], Test]:
    """Call a test with each case, and fail once with every case that went wrong.

    This takes the same arguments as `pytest.mark.parametrize`, which collects a test per case. Use it for cheap checks.
    All cases share the fixtures of the one test.

    Args:
        names: the arguments of the test that a case sets: one name, or several.
        values: the cases, each a value, or a tuple with a value per name.
    """
    keys = [names] if isinstance(names, str) else list(names)

    def over_all(test: Test) -> Test:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failures: list[str] = []
            first: BaseException | None = None
            for value in values:
                case = dict(zip(keys, [value] if isinstance(names, str) else value, strict=True))
                try:
                    test(**case, **fixtures)
                # What `pytest.fail` and `pytest.raises` raise is no `Exception`.
                except (Exception, pytest.fail.Exception) as error:
                    failures.append(f"{case}: {type(error).__name__}: {error}")
                    first = first or error
            if failures:
                raise AssertionError("\n".join([f"{len(failures)} cases fail", *failures])) from first

        # pytest passes the arguments of the signature as fixtures.
        signature = inspect.signature(test)
        fixtures = [parameter for parameter in signature.parameters.values() if parameter.name not in keys]
        run.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return run

    return over_all
