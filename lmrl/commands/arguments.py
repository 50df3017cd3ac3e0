"""From a typed function to the arguments of a command: the signature is the parser, the docstring is the help."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

from docstring_parser import Docstring
from docstring_parser import parse as parse_docstring
from jsonargparse import ArgumentError, ArgumentParser
from omegaconf import OmegaConf

from lmrl.commands.parser_errors import explain
from lmrl.errors import UserError

__all__ = ["call", "env_arguments", "named_values", "parser_of", "partner_argument"]

Function = Callable[..., "int | None"]


def parser_of(function: Function, prog: str) -> ArgumentParser:
    """A parser for the parameters of a function.

    Parameters before the ``*`` are positional arguments, which may be left out if they have a default; those after it
    are options (required without a default); ``list[str]`` takes one or more words or a comma-separated list; a
    ``bool`` is a switch.
    """
    words = parse_docstring(function.__doc__ or "")
    parser = ArgumentParser(prog=prog, description=_description(words), exit_on_error=False)
    hints, about = get_type_hints(function), {p.arg_name: p.description for p in words.params}
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
    positional = [_words(known[p.name]) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    options = {p.name: _words(known[p.name]) for p in parameters if p.kind is p.KEYWORD_ONLY}
    return function(*positional, **options) or 0


def named_values(words: Sequence[str] | None, option: str) -> dict[str, Any]:
    """``["opponent=random", "max_moves=10"]`` as a mapping; values are read as YAML.

    Raises:
        UserError: a word that is not ``name=value``; it names the option.
    """
    for word in words or ():
        name, equals, _ = word.partition("=")
        if not equals or not all(part.isidentifier() for part in name.split(".")):
            raise UserError(f"{option} takes arguments as name=value, got {word!r}")
    found = OmegaConf.to_container(OmegaConf.from_dotlist(list(words or ())))
    assert isinstance(found, dict)
    return {str(name): value for name, value in found.items()}


def env_arguments(words: Sequence[str] | None) -> dict[str, Any]:
    """Arguments of an environment, see `named_values`."""
    return named_values(words, "env")


def partner_argument(partner: str, chat: Sequence[str] | None) -> str | dict[str, Any]:
    """A second speaker as environments take it: its name, or a mapping of the name and settings of a chat model.

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
    elif hint in (list[str], list[str] | None):
        settings |= {"nargs": "+", "type": str}
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
    if isinstance(value, list):
        return [word for item in value for word in ([item] if "=" in item else item.split(",")) if word]
    return value
