"""What a parser found wrong, in one line that names the key, the nearest key and the known ones."""

import difflib
import inspect
import re
from collections.abc import Iterable
from importlib import import_module

from jsonargparse import ArgumentParser

__all__ = ["explain"]

# What the parser says around the point: the alternatives of a union, and the value once more.
_NOISE = re.compile(r"^\s*(Does not validate|Subtypes:|Errors:|Given value|- Expected a <class 'NoneType'>)")
_FRAMES = re.compile(r"Parser key \"([\w.]+)\":|Problem with given class_path '([\w.]+)':|<class '(\w+)'>")
_CLASS = re.compile(r"Problem with given class_path '([\w.]+)'")
_STRANGE = re.compile(r"(?:Option '|unrecognized arguments: --)([\w.]+)(?:' is not accepted|=| |$)", re.MULTILINE)
_GROUP = re.compile(r"Group '([\w.]+)' does not accept option '([\w.]+)'")
_NO_SUCH_CLASS = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")


def explain(message: str, parser: ArgumentParser) -> str:
    """One line for what went wrong in ``parser``: an unknown option, key or class, or a value of the wrong kind."""
    if found := _NO_SUCH_CLASS.search(message):
        known = [name for name in dir(import_module(found[1])) if name[0].isupper()]
        return _unknown("class", found[2], known, f" of {found[1]}")
    if found := _GROUP.search(message):
        key = f"{found[1]}.{found[2]}"
        return _unknown("key", key, _siblings(key, parser))
    if found := _STRANGE.search(message):
        owners = [match[1] for match in _CLASS.finditer(message[: found.start()])]
        if owners:
            return _unknown("key", found[1], _arguments(owners[-1]), f" of {owners[-1]}")
        return _unknown("key", found[1], _siblings(found[1], parser))
    lines = [line.strip(" -") for line in message.splitlines() if line.strip() and not _NOISE.match(line)]
    return _FRAMES.sub(lambda frame: frame[3] or f"{frame[1] or frame[2]}:", " ".join(lines))


def _unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {kind} {name!r}{where}; {hint}known: {', '.join(names)}"


def _siblings(key: str, parser: ArgumentParser) -> set[str]:
    """The keys with the same first part (``trainer.…``), or else all first parts."""
    flags = (name[2:] for action in parser._actions for name in action.option_strings if name.startswith("--"))
    keys = {flag for flag in flags if not flag.endswith(("+", "help", "print_config", "print_shtab"))}
    same = {other for other in keys if "." in other and other.split(".")[0] == key.split(".")[0]}
    return same or {other.split(".")[0] for other in keys}


def _arguments(class_path: str) -> list[str]:
    module, _, name = class_path.rpartition(".")
    parameters = inspect.signature(getattr(import_module(module), name).__init__).parameters.values()
    return [p.name for p in parameters if p.name != "self" and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
