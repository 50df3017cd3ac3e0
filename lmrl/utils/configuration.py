"""Configuration files: where shipped ones are, how they are read, and what the words of a ``lmrl fit`` come to.

`configuration` is light: it merges as the parser of ``lmrl fit`` does, without importing what is configured.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lmrl.errors import UserError, in_one_line
from lmrl.utils.plugins import plugin_configs

__all__ = [
    "base_of",
    "check_config",
    "check_environment",
    "config_file",
    "configs_folder",
    "configuration",
    "defaults_file",
    "env_arguments",
    "full_key",
    "max_steps_of",
    "named_values",
    "value_at",
    "with_config_files",
]

_MAX_VALUES = 100_000
_FROM_ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:\s*([^\s,}]*)")
_MAY_BE_SAVED = re.compile(r"(LMRL|SLURM)_\w+|HOME|USER|TMPDIR|SCRATCH")


def configs_folder() -> Path:
    """The folder of ``defaults.yaml``, ``<task>/<algorithm>.yaml``, ``paper/``, ``scale/`` and ``logger/``."""
    package = Path(__file__).parent.parent
    inside = package / "_configs"
    # A wheel carries the files inside the package, a checkout next to it.
    return inside if inside.is_dir() else package.parent / "configs"


def defaults_file() -> Path:
    """Return the path of every run's defaults: loggers, callbacks and trainer settings. Other files override it."""
    return configs_folder() / "defaults.yaml"


def config_file(name: str | Path) -> Path:
    """The file of that name: as given, or among the shipped ones (``configs/maze_fo/ilql.yaml`` works anywhere).

    Packages that add tasks (`lmrl.utils.plugins`) ship files, too.

    Raises:
        UserError: there is no such file; the message lists the shipped ones nearest to it.
    """
    given = Path(name)
    if given.is_file():
        return given
    shipped = (configs_folder(), *plugin_configs())
    parts = given.parts[1:] if given.parts[:1] == ("configs",) else given.parts
    for folder in () if given.is_absolute() else shipped:
        if folder.joinpath(*parts).is_file():
            return folder.joinpath(*parts)
    # Name the shipped files of the same task and algorithm, or else those with a similar name, or else the folders.
    known = []
    for folder in shipped:
        for path in sorted(folder.rglob("*/*.yaml")):
            known.append(f"configs/{path.relative_to(folder).as_posix()}")
    near = [path for path in known if set(path.split("/")[1:-1]) <= set(parts)]
    if near:
        # Files of paper/<task> come last, and are meant if there are any; otherwise those of <task>.
        depth = near[-1].count("/")
        near = [path for path in near if path.count("/") == depth]
    else:
        near = difflib.get_close_matches(f"configs/{'/'.join(parts)}", known, n=4, cutoff=0.85)
        near += sorted({f"configs/{path.split('/')[1]}/" for path in known})
    what = f"no config file {str(name)!r}"
    if str(name) and given.is_dir():
        what = f"{str(name)!r} is a folder, not a config file"
    raise UserError(f"{what}; known: {', '.join(near)}")


def check_config(path: Path) -> None:
    """Make sure that a file is a configuration: YAML with names and values.

    Raises:
        UserError: it is not, or cannot be read (the message names the line); its aliases stand for too much, or it
            names a variable of the environment that may be a secret, see `check_environment`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text file with YAML: {error}") from error
    _check_text(path, text)


# A whole table is planned from some eighty files that a thousand trainings share: each text is read once.
@lru_cache(maxsize=256)
def _check_text(path: Path, text: str) -> None:
    try:
        size = _size(yaml.compose(text, yaml.SafeLoader), {})
        content = yaml.safe_load(text) if size <= _MAX_VALUES else {}
    except RecursionError as error:
        raise UserError(f"{path} is nested too deep, or holds itself") from error
    except ValueError as error:  # a number of more digits than Python reads
        raise UserError(f"{path} is no configuration: {in_one_line(error)}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{path}, line {line}: no YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is no text file with YAML: {error}") from error
    if not isinstance(content, dict):
        got = "nothing" if content is None else type(content).__name__
        raise UserError(f"{path} must hold names and values (model: ..., data: ..., trainer: ...), it holds {got}")
    if size > _MAX_VALUES:
        raise UserError(
            f"{path}: its aliases (*name) stand for more than {_MAX_VALUES:,} values; write out what is meant"
        )
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
    """Count the values that a part of a file stands for, aliases written out."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    # Nodes that aliases repeat are counted once and added often: the number may be exponential in the size of the file.
    if id(node) not in sizes:
        children = node.value
        if isinstance(node, yaml.MappingNode):
            children = chain.from_iterable(node.value)  # keys and values
        size = 1
        for child in children:
            size += _size(child, sizes)
        sizes[id(node)] = size
    return sizes[id(node)]


_PRETRAINED = "model.init_args.pretrained"


def with_config_files(words: Sequence[str]) -> list[str]:
    """The same words of a ``lmrl fit`` with the files that ``--config`` names found and checked.

    Raises:
        UserError: a file is missing or no configuration, or a word names a variable of the environment that may be a
            secret.
    """
    completed = list(words)
    for index, word in enumerate(completed):
        check_environment(word, "a word of the command line")
        # --config=FILE, or FILE after --config
        if word.startswith("--config=") or (index and completed[index - 1] in ("--config", "-c")):
            path = config_file(word.removeprefix("--config="))
            check_config(path)
            completed[index] = f"--config={path}" if word.startswith("--config=") else str(path)
    return completed


def configuration(words: Sequence[str]) -> DictConfig:
    """The merged configuration of ``fit --config FILE ... --key=value ...`` over that of `defaults_file`.

    ``KEY+`` adds to the list that is there. Interpolations stay as they are until a value is asked for (`value_at`),
    and arguments that a class has by itself are not filled in.

    Raises:
        UserError: a file that is not there, or no configuration; a value that cannot be read.
    """
    merged = _content(defaults_file())
    for key, value in _settings(with_config_files(words)):
        is_file = key == "config"
        if is_file:
            part = _content(Path(value))
        else:
            try:
                part = _plain(OmegaConf.from_dotlist([f"{key}={value}"]))
            except (ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
                raise UserError(f"--{key}={value:.60} cannot be read: {in_one_line(error)}") from error
        merged = _merged(merged, part, is_file)
    return OmegaConf.create(merged)


def _content(file: Path) -> dict[str, Any]:
    try:
        return _content_of(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{file} cannot be read as a configuration: {in_one_line(error)}") from error


@lru_cache(maxsize=256)
def _content_of(text: str) -> dict[str, Any]:
    return _plain(OmegaConf.create(text))


def _plain(config: Any) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=False)
    assert isinstance(plain, dict)
    return dict(zip(map(str, plain), plain.values(), strict=True))


def _settings(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Keys and values of ``--key=value`` and ``--key value``, in full: ``--data.size=9`` is ``data.init_args.size``."""
    for word, after in zip(words, [*words[1:], "-"], strict=True):
        if not word.startswith("-"):
            continue
        key, equals, value = ("--config" if word == "-c" else word).removeprefix("--").partition("=")
        if not equals and after.startswith("-"):
            continue  # a switch
        yield full_key(key), value if equals else after


def full_key(key: str) -> str:
    """``data.init_args.size`` for ``data.size``, ``model.class_path`` for ``model``; other keys as they are."""
    group, _, name = key.partition(".")
    if group in ("model", "data") and name.split(".")[0] not in ("class_path", "init_args", "dict_kwargs"):
        return f"{group}.init_args.{name}" if name else f"{group}.class_path"
    return key


def _merged(whole: dict[str, Any], part: dict[str, Any], is_file: bool, are_arguments: bool = False) -> dict[str, Any]:
    """Return the whole with the part over it.

    Args:
        whole: what is there.
        part: settings of a file or an option.
        is_file: whether it is a file's. A file replaces a mapping that is an argument, such as ``architecture``; an
            option changes one of its keys.
        are_arguments: whether the keys are the arguments of a class.
    """
    # Contents of files are cached, so neither mapping is changed.
    merged = dict(whole)
    for key, value in part.items():
        name = key.removesuffix("+")
        earlier = merged.get(name)
        if name != key:  # KEY+ appends
            if earlier is None:
                earlier = []
            merged[name] = [*(earlier if isinstance(earlier, list) else [earlier]), *value]
        elif not (isinstance(value, dict) and isinstance(earlier, dict)):
            merged[key] = value
        elif not (is_file and are_arguments) or "class_path" in value or "init_args" in value:
            merged[key] = _merged(earlier, value, is_file, key == "init_args")
        else:
            merged[key] = value
    return merged


def base_of(config: Any, task: str) -> str | None:
    """``bc`` for a configuration whose ``pretrained`` is ``runs/<task>/bc``."""
    parts = Path(str(value_at(config, _PRETRAINED) or "")).parts
    return parts[2] if len(parts) == 3 and parts[:2] == ("runs", task) else None


def max_steps_of(config: Any) -> int | None:
    """Length of the training, if it has one."""
    steps = value_at(config, "trainer.max_steps")
    return int(steps) if str(steps).isdigit() else None


def value_at(config: Any, key: str) -> Any:
    """Return the value of a dotted key; None if there is none, or if it depends on another file."""
    try:
        return OmegaConf.select(config, key)
    except OmegaConfBaseException:  # it refers to a value that another file of the run holds
        return None


def named_values(words: Sequence[str] | None, option: str) -> dict[str, Any]:
    """``["opponent=random", "max_moves=10"]`` as a mapping; values are read as YAML.

    Raises:
        UserError: a word that is not ``name=value``, or whose value is not YAML; it names the option.
    """
    for word in words or ():
        name, equals, _ = word.partition("=")
        if not equals or not all(part.isidentifier() for part in name.split(".")):
            raise UserError(f"{option} takes arguments as name=value, got {word!r}")
        try:
            OmegaConf.to_container(OmegaConf.from_dotlist([word]), resolve=True)
        except (ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
            raise UserError(f"{option}: {word:.60} cannot be read: {in_one_line(error)}") from error
    return _plain(OmegaConf.from_dotlist(list(words or ())))


def env_arguments(words: Sequence[str] | None) -> dict[str, Any]:
    """Arguments of an environment, see `named_values`."""
    return named_values(words, "env")
