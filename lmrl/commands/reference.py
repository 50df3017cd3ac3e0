"""The command-line reference, written by the parsers themselves."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, get_type_hints

from docstring_parser import parse as parse_docstring

__all__ = ["command_reference"]


class _Verb(Protocol):
    """See `lmrl.cli.Verb`."""

    @property
    def help(self) -> str: ...

    @property
    def raw(self) -> bool: ...

    @property
    def page(self) -> str: ...

    def load(self) -> Callable[..., Any]: ...


def command_reference(verbs: Mapping[str, _Verb]) -> str:
    """A Markdown page with every command and its arguments, from the functions that are their parsers.

    Args:
        verbs: as `lmrl.cli.VERBS`.
    """
    parts = ["# Command line", "`lmrl COMMAND --help` says the same. `LMRL_DEBUG=1` shows tracebacks."]
    for name, verb in verbs.items():
        parts += [f"## lmrl {name}", f"{verb.help[0].upper()}{verb.help[1:]}."]
        parts += [f"```text\n{verb.page}\n```"] if verb.raw else _arguments(name, verb)
    return "\n\n".join(parts) + "\n"


def _arguments(name: str, verb: _Verb) -> list[str]:
    called = verb.load()
    words = parse_docstring(called.__doc__ or "")
    about = {p.arg_name: " ".join((p.description or "").split()) for p in words.params}
    hints, rows, usage = get_type_hints(called), [], [f"lmrl {name}"]
    for parameter in inspect.signature(called).parameters.values():
        positional = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        shown = parameter.name.upper() if positional else f"--{parameter.name}"
        optional = positional and parameter.default is not parameter.empty
        default = "" if parameter.default in (parameter.empty, None, False) else f"`{_plain(parameter.default)}`"
        needed = parameter.default is parameter.empty
        usage += [f"[{shown}]"] if optional else [shown] if positional else [f"{shown} ..."] if needed else []
        rows.append(f"| `{shown}` | {_kind(hints[parameter.name])} | {default} | {_cell(about[parameter.name])} |")
    long = words.long_description or ""
    head = "| argument | what | default | |\n|---|---|---|---|\n"
    table = head + "\n".join(rows)
    return [part for part in (f"    {' '.join(usage)}", words.short_description, long, table) if part]


def _kind(hint: Any) -> str:
    """What a reader types."""
    if hint is bool:
        return "switch"
    names = (("list", "words"), ("Path", "path"), ("int", "whole number"), ("float", "number"))
    return next((shown for part, shown in names if part in str(hint)), "text")


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _cell(text: str) -> str:
    """In a table, and whatever is in angle brackets is no markup."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("``", "`")
