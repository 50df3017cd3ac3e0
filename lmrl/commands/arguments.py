"""From a typed function to the arguments of a command: the signature is the parser, the docstring is the help."""

import difflib
import inspect
import os
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, get_type_hints

from docstring_parser import Docstring
from docstring_parser import parse as parse_docstring
from jsonargparse import ArgumentError, ArgumentParser

from lmrl.errors import UserError
from lmrl.utils.configuration import named_values

__all__ = ["PUBLIC", "call", "command_reference", "explain", "parser_of", "partner_argument", "public_classes"]

#: Where the classes are that a key may name in short.
PUBLIC = {
    "model": "lmrl.modules",
    "data": "lmrl.datamodules",
    "trainer.callbacks": "lmrl.callbacks",
    "trainer.logger": "lightning.pytorch.loggers",
}

_KEY = re.compile(r"Parser key \"([\w.]+)\":")
# An alternative that names a class, and what is indented below it.
_CLASS = re.compile(r"^( *)- Problem with given class_path '([\w.]+)':\n((?:\1 +.*\n?)+)", re.MULTILINE)
_STRANGE = re.compile(r"(?:Option '|unrecognized arguments: --)([\w.]+)(?:' is not accepted|=| |$)", re.MULTILINE)
_WORD = re.compile(r"unrecognized arguments: ([^-].*)")
_GROUP = re.compile(r"Group '([\w.]+)' does not accept option '([\w.]+)'")
_NO_SUCH_NAME = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")
_NO_SUCH_CLASS = re.compile(
    r"Expected a dot import path string: (.*)|Import path ([\w.]*) ?does not correspond|No module named '([\w.]+)'"
)
_NOT_IMPORTED = re.compile(r"No module named '([\w.]+)'|cannot import name .+|attempted relative import .+")
_EXPECTED = re.compile(r"Expected an? (?:<class '(?:[\w.]*\.)?(\w+)'>|typing\.Literal\[(.*?)\](?=\.|$))", re.MULTILINE)
_GIVEN = re.compile(r"(?:Got value|Given value): (.*)")
_NO_VALUE = re.compile(r"argument (?:-\w/)?(--[\w.]+).*: expected one argument")
# What the parser says around the point: the alternatives of a union, and the value once more.
_NOISE = re.compile(r"^\s*(Does not validate|Subtypes:|Errors:|Given value|- Expected a <class 'NoneType'>)")

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "dict": "a mapping",
    "list": "a list",
}


def explain(message: str, parser: ArgumentParser) -> str:
    """One line for what went wrong in ``parser``: an unknown option, key or class, or a value of the wrong kind."""
    message, path, owner = _innermost(message)
    found = _NO_SUCH_NAME.search(message)
    if found:
        return _unknown("name", found[2], _names(import_module(found[1]), found[2]), f" of {found[1]}")
    found = _NOT_IMPORTED.search(message)
    if found and owner is not None:
        return _not_imported(path or "class_path", owner, found[0], found[1])
    found = _NO_SUCH_CLASS.search(message)
    if found:
        given = [*filter(None, found.groups()), *_GIVEN.findall(message), ""]
        return _no_such_class(path or "class_path", given[0])
    found = _GROUP.search(message)
    if found:
        key = f"{found[1]}.{found[2]}"
        return _unknown("key", key, _siblings(key, parser))
    found = _STRANGE.search(message)
    if found:
        if owner is not None:
            return _unknown("key", found[1], _arguments(owner), f" of {owner}")
        return _unknown("key", found[1], _siblings(found[1], parser))
    found = _WORD.search(message)
    if found:
        return f"unexpected {found[1]!r}: settings are given as --name=value"
    found = _NO_VALUE.search(message)
    if found:
        return f"{found[1]} must be followed by a value"
    rule = _rule(message)
    values = _GIVEN.findall(message)
    if path and rule and values:
        return f"{path} must be {rule}, got {values[-1]!r}"
    lines = [line.strip(" -") for line in message.splitlines() if line.strip() and not _NOISE.match(line)]
    return _KEY.sub(lambda found: f"{found[1]}:", " ".join(lines))


def _innermost(message: str) -> tuple[str, str, str | None]:
    """What is wrong, the path of its key, and the class that the key is an argument of."""
    path = ""
    owner = None
    while found := _CLASS.search(message):
        key = _KEY.search(message[: found.start()])
        if key:
            path = f"{path}.{key[1]}" if path else key[1]
        message = found[3]
        owner = found[2]
        path = f"{path}.init_args"
    key = _KEY.search(message)
    if key:
        path = f"{path}.{key[1]}" if path else key[1]
    return message, path.removesuffix(".init_args"), owner


def _rule(message: str) -> str:
    """``a number``, ``one of a, b``: what the alternatives of a type are."""
    found = _EXPECTED.findall(message)
    choices = [choice.strip("'\" ") for _, literal in found for choice in literal.split(",") if literal]
    if choices:
        return f"one of {', '.join(dict.fromkeys(choices))}"
    kinds = [kind for kind, _ in found if kind != "NoneType"]
    if "float" in kinds and "int" in kinds:
        kinds.remove("int")
    return " or ".join(dict.fromkeys(_KINDS.get(kind, kind) for kind in kinds))


def _not_imported(key: str, class_path: str, why: str, missing: str | None) -> str:
    """For a class path whose module, or what that imports, is not there."""
    home = class_path.rpartition(".")[0]
    told = f"{key}: {class_path!r} is in the module {home!r}, which cannot be imported: {why}"
    own = missing is not None and (home == missing or home.startswith(f"{missing}."))
    return told + ("; run the command as PYTHONPATH=FOLDER lmrl ..., of the folder that holds it" if own else "")


def _no_such_class(key: str, name: str) -> str:
    package = PUBLIC.get(key.partition(".init_args")[0])
    if package is None:
        return f"{key} must be the path of a class, package.Class, got {name!r}"
    return f"{_unknown(key, name, public_classes(package))}, or the path of a class of your own"


def public_classes(package: str) -> list[str]:
    """Names of the classes that a package hands out."""
    module = import_module(package)
    return [name for name in module.__all__ if inspect.isclass(getattr(module, name))]


def _names(module: ModuleType, wanted: str) -> list[str]:
    """Return the names that can complete a path at ``wanted``: the classes of a module, or its modules."""
    if wanted[0].islower():
        return [found.name for found in pkgutil.iter_modules(getattr(module, "__path__", ()))]
    return [name for name in getattr(module, "__all__", dir(module)) if name[0].isupper()]


def _unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1) or [n for n in names if n.lower().startswith(name.lower())][:1]
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {kind} {name!r}{where}; {hint}" + (f"known: {', '.join(names)}" if names else "there is none")


def _siblings(key: str, parser: ArgumentParser) -> set[str]:
    """The keys with the same first part (``trainer.…``), or else all first parts."""
    flags = (name[2:] for action in parser._actions for name in action.option_strings if name.startswith("--"))
    keys = {flag for flag in flags if not flag.endswith(("+", "help", "print_config", "print_shtab"))}
    same = {other for other in keys if "." in other and other.split(".")[0] == key.split(".")[0]}
    return same or {other.split(".")[0] for other in keys}


def _arguments(class_path: str) -> list[str]:
    """Return the arguments of a class and of the classes to which it passes its other arguments."""
    module, _, name = class_path.rpartition(".")
    names: list[str] = []
    for base in getattr(import_module(module), name).__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(base.__init__).parameters.values()
            names += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return [name for name in dict.fromkeys(names) if name != "self"]


Function = Callable[..., "int | None"]


def parser_of(function: Function, prog: str) -> ArgumentParser:
    """A parser for the parameters of a function.

    Parameters before the ``*`` are positional arguments, which may be left out if they have a default; those after it
    are options (required without a default); ``list[str]`` takes one or more words or a comma-separated list; a
    ``bool`` is a switch.
    """
    words = parse_docstring(function.__doc__ or "")
    parser = ArgumentParser(prog=prog, description=_description(words), exit_on_error=False, allow_abbrev=False)
    hints = get_type_hints(function)
    about = {p.arg_name: p.description for p in words.params}
    for parameter in inspect.signature(function).parameters.values():
        _add(parser, parameter, hints[parameter.name], about.get(parameter.name) or "")
    return parser


def call(function: Function, argv: Sequence[str], prog: str) -> int:
    """Call a function with the arguments of a command line and hand back its exit code.

    Raises:
        UserError: an unknown, missing or malformed argument; the message names the known ones.
    """
    parser = parser_of(function, prog)
    try:
        known = vars(parser.parse_args(list(argv)))
    except ArgumentError as error:
        raise UserError(f"{explain(str(error), parser)} (see: {prog} --help)") from error
    parameters = inspect.signature(function).parameters.values()
    for name, value in known.items():
        if isinstance(value, list) and value and not _words(value):  # a variable of the shell that is not set
            raise UserError(f"{name} must name something, got {value[0]!r} (see: {prog} --help)")
    positional = [_words(known[p.name]) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    options = {p.name: _words(known[p.name]) for p in parameters if p.kind is p.KEYWORD_ONLY}
    return function(*positional, **options) or 0


def partner_argument(partner: str, chat: Sequence[str] | None) -> str | dict[str, Any]:
    """A partner as environments take it: its name, or a mapping of the name and settings of a chat model.

    Raises:
        UserError: settings for a partner that is no chat model, or a word that is not ``name=value``.
    """
    settings = named_values(chat, "chat")
    if settings and not partner.startswith("chat:"):
        raise UserError(f"chat can be set for a chat model only (chat:MODEL), not for {partner!r:.80}")
    return {"name": partner, **settings} if settings else partner


def _description(words: Docstring) -> str:
    return "\n\n".join(part for part in (words.short_description, words.long_description) if part)


def _add(parser: ArgumentParser, parameter: inspect.Parameter, hint: Any, about: str) -> None:
    settings: dict[str, Any] = {"help": about}
    if hint is bool:
        settings |= {"action": "store_true"}
    elif hint in (list[str], list[str] | None, list[float] | None):
        settings |= {"nargs": "+", "type": float if hint == list[float] | None else str}
    else:
        settings |= {"type": hint}
    # An option of two words may be spelled with a dash or an underscore.
    spellings = dict.fromkeys((f"--{parameter.name}", f"--{parameter.name.replace('_', '-')}"))
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
        if parameter.default is not parameter.empty:
            settings |= {"nargs": "*"} if "nargs" in settings else {"nargs": "?", "default": parameter.default}
        parser.add_argument(parameter.name, **settings)
    elif parameter.default is parameter.empty:
        parser.add_argument(*spellings, required=True, **settings)
    else:
        parser.add_argument(*spellings, default=parameter.default, **settings)


def _words(value: Any) -> Any:
    """``["bc,mc", "ilql"]`` is the list of three names that was meant; settings (``key=value``) stay whole."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return value
    words: list[str] = []
    for item in value:
        is_whole = "=" in item or os.path.exists(item)  # a setting, or a file whose name has a comma
        parts = [item] if is_whole else item.split(",")
        words += filter(None, parts)
    return words


class _Verb(Protocol):
    """See `lmrl.commands.verb.Verb`."""

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
        verbs: see `lmrl.cli.verbs`.
    """
    parts = ["# Command line", "`lmrl COMMAND --help` says the same. `LMRL_DEBUG=1` shows tracebacks."]
    for name, verb in verbs.items():
        parts += [f"## lmrl {name}", f"{verb.help[0].upper()}{verb.help[1:]}."]
        parts += [f"```text\n{verb.page}\n```"] if verb.raw else _argument_table(name, verb)
    return "\n\n".join(parts) + "\n"


def _argument_table(name: str, verb: _Verb) -> list[str]:
    called = verb.load()
    words = parse_docstring(called.__doc__ or "")
    about = {p.arg_name: " ".join((p.description or "").split()) for p in words.params}
    hints = get_type_hints(called)
    rows = []
    usage = [f"lmrl {name}"]
    for parameter in inspect.signature(called).parameters.values():
        positional = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        shown = parameter.name.upper() if positional else f"--{parameter.name}"
        required = parameter.default is parameter.empty
        if positional:
            usage.append(shown if required else f"[{shown}]")
        elif required:
            usage.append(f"{shown} ...")
        has_default = parameter.default is not None and parameter.default is not False and not required
        default = f"`{_plain(parameter.default)}`" if has_default else ""
        rows.append(f"| `{shown}` | {_kind(hints[parameter.name])} | {default} | {_cell(about[parameter.name])} |")
    long = words.long_description or ""
    head = "| argument | what | default | |\n|---|---|---|---|\n"
    table = head + "\n".join(rows)
    return [part for part in (f"    {' '.join(usage)}", words.short_description, long, table) if part]


def _kind(hint: Any) -> str:
    """Return the name of a type as a user types it."""
    if hint is bool:
        return "switch"
    names = (("list", "words"), ("Path", "path"), ("int", "whole number"), ("float", "number"))
    return next((shown for part, shown in names if part in str(hint)), "text")


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _cell(text: str) -> str:
    """In a table, and whatever is in angle brackets is no markup."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("``", "`")
