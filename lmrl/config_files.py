"""Where the shipped run configurations are: in a checkout at its top, in an installed wheel inside the package."""

import difflib
import re
from pathlib import Path
from typing import Any

import yaml

from lmrl.errors import UserError

__all__ = ["check_config", "check_environment", "config_file", "configs_folder"]

_LARGEST = 100_000
_FROM_ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:\s*([^\s,}]*)")
_MAY_BE_SAVED = re.compile(r"(LMRL|SLURM)_\w+|HOME|USER|TMPDIR|SCRATCH")


def configs_folder() -> Path:
    """The folder with ``<task>/<algorithm>.yaml``, ``scale/*.yaml`` and ``logger/*.yaml``."""
    package = Path(__file__).parent
    inside, beside = package / "_configs", package.parent / "configs"
    return inside if inside.is_dir() else beside


def config_file(name: str | Path) -> Path:
    """The file of that name: as given, or among the shipped ones (``configs/maze_fo/ilql.yaml`` works anywhere).

    Raises:
        UserError: there is no such file; the message lists the shipped ones nearest to it.
    """
    given = Path(name)
    if given.is_file():
        return given
    shipped = configs_folder()
    parts = given.parts[1:] if given.parts[:1] == ("configs",) else given.parts
    if not given.is_absolute() and shipped.joinpath(*parts).is_file():
        return shipped.joinpath(*parts)
    known = [f"configs/{path.relative_to(shipped).as_posix()}" for path in sorted(shipped.rglob("*.yaml"))]
    near = [path for path in known if path.split("/")[1] in parts]
    near = near or difflib.get_close_matches(f"configs/{'/'.join(parts)}", known, n=4, cutoff=0.85)
    folders = sorted({f"{Path(path).parent}/" for path in known})
    what = (
        f"{str(name)!r} is a folder, not a config file"
        if str(name) and given.is_dir()
        else f"no config file {str(name)!r}"
    )
    raise UserError(f"{what}; known: {', '.join(near or folders)}")


def check_config(path: Path) -> None:
    """Make sure that a file is a configuration: YAML with names and values.

    Raises:
        UserError: it is not, or cannot be read (the message names the line); its aliases stand for too much, or it
            names a variable of the environment that may be a secret, see `check_environment`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        size = _size(yaml.compose(text, yaml.SafeLoader), {})
        content = yaml.safe_load(text) if size <= _LARGEST else {}
    except RecursionError as error:
        raise UserError(f"{path} is nested too deep, or holds itself") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{path}, line {line}: no YAML: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no text file with YAML: {error}") from error
    if not isinstance(content, dict):
        got = "nothing" if content is None else type(content).__name__
        raise UserError(f"{path} must hold names and values (model: ..., data: ..., trainer: ...), it holds {got}")
    if size > _LARGEST:
        raise UserError(f"{path}: its aliases (*name) stand for more than {_LARGEST:,} values; write out what is meant")
    check_environment(content, str(path))


def check_environment(value: Any, where: str) -> None:
    """Refuse ``${oc.env:NAME}`` for variables that may be secrets: values end up in ``config.yaml`` and checkpoints.

    Args:
        value: what a configuration or an option holds.
        where: its place, for the message.

    Raises:
        UserError: a variable that is none of ``LMRL_*``, ``SLURM_*``, ``HOME``, ``USER``, ``TMPDIR``, ``SCRATCH``.
    """
    if isinstance(value, (dict, list)):
        for inner in [*value, *value.values()] if isinstance(value, dict) else value:
            check_environment(inner, where)
    elif isinstance(value, str):
        for name in _FROM_ENVIRONMENT.findall(value):
            if not _MAY_BE_SAVED.fullmatch(name):
                raise UserError(
                    f"{where}: ${{oc.env:{name}}} would be written out in config.yaml; a configuration may name the "
                    "variables LMRL_*, SLURM_*, HOME, USER, TMPDIR and SCRATCH (keys of services are read from the "
                    "environment by themselves)"
                )


def _size(node: yaml.Node | None, sizes: dict[int, int]) -> int:
    """How many values a part of a file stands for, aliases written out."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in sizes:
        inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        sizes[id(node)] = 1 + sum(_size(part, sizes) for part in inner)
    return sizes[id(node)]
