"""Episodes as a `minari.MinariDataset`, with texts as observations and actions, and back."""

import json
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from itertools import count
from pathlib import Path
from string import printable
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.spaces import Text

from lmrl.data.records import episode_from_record, record_from_episode
from lmrl.data.storage import read_dataset, read_metadata
from lmrl.envs import registry
from lmrl.envs.registry import recorded_arguments
from lmrl.errors import UserError
from lmrl.types import Episode
from lmrl.utils.configuration import env_arguments
from lmrl.utils.files import locked, parse_json, remove, replacing_folder

__all__ = ["episodes_from_minari", "export_command", "export_minari"]

if TYPE_CHECKING:
    import minari

_PLACE = "MINARI_DATASETS_PATH"
_REST = "episode"
"""Key of ``infos``: at the first step the rest of an `Episode` as JSON, and empty texts after it."""
_STEPS = ("observations", "actions", "rewards", "terminated", "truncated")


def export_minari(
    file: str | os.PathLike[str], dataset_id: str, env: dict[str, Any] | None = None
) -> "minari.MinariDataset":
    """Write the episodes of a file as a Minari dataset, in HDF5, where Minari keeps datasets.

    That is ``$MINARI_DATASETS_PATH``, or ``~/.minari/datasets``. ``recover_environment`` makes the task that was
    played; reference scores are the returns of the player that acts at random and of the best scripted one.

    Args:
        file: see `lmrl.data.read_dataset`; it is read twice.
        dataset_id: ``namespace/name-v0``, as Minari wants it; one that is not there yet.
        env: arguments of the environment, over those that the file was recorded with.

    Raises:
        UserError: Minari does not take the id, or has that dataset; as `read_dataset`, and then nothing is left; the
            file was recorded with a path or a program (see `lmrl.envs.registry.recorded_arguments`).
        ModuleNotFoundError: Minari is missing.
    """
    package = import_module("minari")
    metadata = read_metadata(file)
    path = _free_path(dataset_id)
    first = next(read_dataset(file))
    spaces = _spaces(file)
    task = registry.task(first.task)
    arguments = recorded_arguments(task.name, metadata.get("env", {}), env, os.fspath(file))
    spec = deepcopy(gymnasium.spec(task.env_id))
    spec.kwargs.update(arguments)
    facts: dict[str, Any] = {
        "algorithm_name": metadata.get("behaviour"),
        "description": f"{task.name}: {task.description}",
    }
    # The reference scores hold for the task without arguments.
    if task.own_scale is not None and not arguments:
        facts |= {"ref_min_score": task.own_scale.random, "ref_max_score": task.own_scale.best}
    buffers = map(_buffer, count(), read_dataset(file))  # one at a time: the file may be larger than memory
    # A half-written dataset loads as an empty one. Minari lists no hidden folders, so it is made in one.
    with locked(path, "Minari dataset"), replacing_folder(path) as new, _datasets_in(new):
        if path.exists():  # another process has written it since the check
            raise _taken(dataset_id, path)
        with warnings.catch_warnings():  # what else a dataset for the public would have
            warnings.filterwarnings("ignore", category=UserWarning, module="minari")
            package.create_dataset_from_buffers(dataset_id, buffers, env=spec, data_format="hdf5", **spaces, **facts)
        made = new / dataset_id / "data"
        made.rename(new / "data")
        remove(new / Path(dataset_id).parts[0])
    written: minari.MinariDataset = package.load_dataset(dataset_id)
    return written


@contextmanager
def _datasets_in(folder: Path) -> Iterator[None]:
    """Have Minari keep datasets in another folder inside the block."""
    before = os.environ.get(_PLACE)
    os.environ[_PLACE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PLACE]
        else:
            os.environ[_PLACE] = before


def episodes_from_minari(dataset: "Iterable[minari.EpisodeData]") -> Iterator[Episode]:
    """The episodes of a dataset that `export_minari` wrote, in order, equal to those that were exported.

    Raises:
        UserError: it was written by something else.
    """
    for number, data in enumerate(dataset):
        where = f"episode {number} of the Minari dataset"
        rest = data.infos.get(_REST)
        if rest is None or not len(rest):
            raise UserError(f"{where}: infos has no {_REST!r}; only what lmrl exported can be read back")
        text = rest[0].decode() if isinstance(rest[0], bytes) else str(rest[0])
        record = parse_json(text, where)
        if not isinstance(record, dict) or not set(map(type, data.observations)) <= {str}:
            raise UserError(f"{where}: holds no texts; only what lmrl exported can be read back")
        record |= {
            "observations": [*data.observations],
            "actions": [*data.actions],
            "rewards": data.rewards.tolist(),
            "terminated": bool(data.terminations[-1]),
            "truncated": bool(data.truncations[-1]),
        }
        yield episode_from_record(record, where)


def _free_path(dataset_id: str) -> Any:
    try:
        import_module("minari.dataset.minari_dataset").parse_dataset_id(dataset_id)
    except (ValueError, TypeError) as error:  # TypeError: it has no version
        raise UserError(f"minari takes namespace/name-v0 as the id of a dataset, got {dataset_id!r:.80}") from error
    # Minari takes every folder with a folder `data` for a dataset, and then fails to list any.
    if "data" in Path(dataset_id).parts[:-1]:
        raise UserError(f"a namespace of Minari cannot be called data, got {dataset_id!r:.80}")
    path = import_module("minari.storage").get_dataset_path(dataset_id)
    if path.exists():
        raise _taken(dataset_id, path)
    return path


def _taken(dataset_id: str, path: Path) -> UserError:
    return UserError(f"Minari has a dataset {dataset_id} in {path}; choose another version, or remove it")


def _spaces(file: str | os.PathLike[str]) -> dict[str, Text]:
    """Spaces that hold every text of the file; a text may be empty."""
    longest = {"observation_space": 1, "action_space": 1}
    characters = {"observation_space": set(printable), "action_space": set(printable)}
    for episode in read_dataset(file):
        for name, texts in (("observation_space", episode.observations), ("action_space", episode.actions)):
            longest[name] = max(longest[name], *map(len, texts), 1)
            characters[name].update(*texts)
    spaces = {}
    for name, length in longest.items():
        spaces[name] = Text(max_length=length, min_length=0, charset="".join(sorted(characters[name])))
    return spaces


def _buffer(number: int, episode: Episode) -> Any:
    """An episode as Minari takes it."""
    turns = len(episode)
    if not turns:
        raise UserError(f"episode {number} has no turn: a Minari dataset cannot say how it ended")
    if "\0" in "".join((*episode.observations, *episode.actions)):
        raise UserError(f"episode {number} has a text with the character NUL, which HDF5 does not hold")
    record = record_from_episode(episode)
    # What Minari has no field for is kept as JSON at the first step.
    rest = {name: value for name, value in record.items() if name not in _STEPS}
    buffer: Any = import_module("minari.data_collector").EpisodeBuffer
    return buffer(
        id=number,
        seed=episode.seed,
        observations=record["observations"],
        actions=record["actions"],
        rewards=record["rewards"],
        terminations=[False] * (turns - 1) + [episode.terminated],
        truncations=[False] * (turns - 1) + [episode.truncated],
        infos={_REST: [json.dumps(rest), *[""] * turns]},
    )


def export_command(file: Path, *, minari: str, env: list[str] | None = None) -> None:
    """Write a dataset as a Minari dataset, where Minari keeps them: $MINARI_DATASETS_PATH or ~/.minari/datasets.

    Args:
        file: a .parquet or .jsonl file of episodes.
        minari: id of the new dataset, namespace/name-v0, e.g. lmrl/maze_fo/behaviour-v0.
        env: arguments of the environment, over those that the file was recorded with; a path or a program, such as
            engine_path, is never taken from the file.
    """
    written = export_minari(file, minari, env_arguments(env))
    print(f"{written.total_episodes} episodes written to Minari's dataset {minari}")
