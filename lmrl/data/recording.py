"""Record a task's dataset with its scripted player; the same file whatever the number of workers."""

import hashlib
import json
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lmrl import policies
from lmrl.data.records import json_of_info
from lmrl.data.storage import check_place, differences, read_episodes, read_metadata, write_episodes
from lmrl.envs.base import TextEnv
from lmrl.envs.registry import make_policy, policy_names, recording, task
from lmrl.envs.task import Recording
from lmrl.errors import UserError
from lmrl.partners import environment
from lmrl.partners.environment import check_budget
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Policy
from lmrl.utils.cluster import Workers
from lmrl.utils.files import in_place_of
from lmrl.utils.log_lines import LogLines
from lmrl.utils.worker_processes import WorkerProcesses

__all__ = ["RecordingSetup", "dataset_path", "first_episodes", "generate", "recording_setup"]

Behaviour: TypeAlias = str | Mapping[str, Any] | None
"""Who plays: a name, or a mapping of the name and settings; None: the task's own player."""

RecordingSetup = tuple[Recording, Callable[[], TextEnv]]
"""The recipe, and something that makes the environments."""

_SLOTS = 64  # parallel episodes of a model


def recording_setup(task_name: str, env: Mapping[str, Any], behaviour: Behaviour = None) -> RecordingSetup:
    """The recipe of a task's dataset, its player replaced by another one if wanted.

    Models are loaded once in a process.

    Args:
        task_name: name of the task.
        env: arguments of the environment; ``partner`` may name the partner.
        behaviour: ``lm:PATH`` (a run folder, a model folder or a hub id), ``vllm:URL#MODEL`` (perhaps a mapping of that
            ``name`` and settings, see `lmrl.policies.vllm`), or a scripted player's name; None: the one of the recipe.

    Raises:
        UserError: for an unknown player, or a model that is not there.
    """
    return _setup(task_name, json.dumps([dict(env), behaviour], sort_keys=True))


@lru_cache(maxsize=2)
def _setup(task_name: str, arguments: str) -> RecordingSetup:
    env, behaviour = json.loads(arguments)
    recipe = recording(task_name, env)
    if behaviour is not None:
        recipe = replace(recipe, policy=_player(task_name, behaviour, env), stop=None)
    return recipe, environment(task_name, env)


def _player(task_name: str, behaviour: str | Mapping[str, Any], env: Mapping[str, Any]) -> Policy:
    settings = {"name": behaviour} if isinstance(behaviour, str) else dict(behaviour)
    name = str(settings.pop("name", ""))
    kind, _, path = name.partition(":")
    if kind == "vllm":
        row = task(task_name)
        return policies.vllm_player(name, row.last_texts, row.max_action_tokens, settings, temperature=1.0)
    if settings:
        raise UserError(f"behaviour can have settings as vllm:URL#MODEL only, got {', '.join(settings)} for {name!r}")
    if kind == "lm" and path:
        row = task(task_name)
        return policies.load_lm_policy(path, row.last_texts, row.max_action_tokens, temperature=1.0, slots=_SLOTS)
    players = policy_names(task_name)
    if name not in players:
        raise UserError(
            f"behaviour must be lm:PATH (the language model of a run or folder), vllm:URL#MODEL or one of "
            f"{', '.join(players)}, got {name!r}; games of a trained policy as it plays, values included, are written "
            "by: lmrl evaluate --policy RUN --episodes N --out FOLDER"
        )
    return make_policy(task_name, name, env)


_Played: TypeAlias = tuple[list[Episode], UserError | KeyboardInterrupt | SystemExit | None]
"""What was finished, and what stopped the rest."""

_Chunk: TypeAlias = tuple[str, int, int, int, Mapping[str, Any], Behaviour]
"""Task, seed, first episode, the one after the last, arguments of the environment, player."""

_CHUNK = 128  # episodes that a worker records at a time
_MAX_SEED = 2**53


def dataset_path(
    task_name: str, size: int, seed: int, env: Mapping[str, Any] | None = None, behaviour: Behaviour = None
) -> Path:
    """Where `generate` puts a dataset: under ``$LMRL_DATA``, or ``data`` in the working directory.

    Arguments of the environment, and another player than the task's, go into the name as a digest; the file's metadata
    spells them out.

    Raises:
        UserError: for an unknown task.
    """
    folder = Path(os.environ.get("LMRL_DATA") or "data")
    named = {**(env or {}), **({} if behaviour is None else {"behaviour": behaviour})}
    variant = f"-{hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:8]}" if named else ""
    row = task(task_name)
    return folder / f"{row.name}-v{row.dataset_version}-n{size}-s{seed}{variant}.parquet"


def generate(
    task_name: str,
    size: int | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    progress: bool = True,
    env: Mapping[str, Any] | None = None,
    behaviour: Behaviour = None,
    shard: tuple[int, int] | None = None,
    ray: str | None = None,
    overwrite: bool = False,
    resume: bool = False,
) -> Path:
    """Record episodes and write them with their origin as metadata.

    Args:
        task_name: a name from `lmrl.tasks`.
        size: number of episodes; None: that of the task's default dataset.
        seed: decides every episode; another number of workers, or a longer dataset, does not change them.
        out: a ``.parquet`` or ``.jsonl`` file; None: `dataset_path`.
        workers: processes that play; None: one, or with `ray` as many as the cluster has cores for.
        progress: show on standard error how far it is: with a bar in a terminal, else with a line every half minute.
        env: arguments of the environment, as for `lmrl.make`; plain values, and ``partner`` may be a name.
        behaviour: who plays instead of the task's own player, see `recording_setup`.
        shard: ``(i, n)`` records part ``i``, counted from 0, of ``n`` parts of the same dataset, so that machines can
            share it; `lmrl.data.join_shards` puts the parts together.
        ray: the processes are of a Ray cluster: ``local``, ``auto`` or ``HOST:PORT`` (`lmrl.utils.cluster.Cluster`).
        overwrite: the file may take the place of a dataset with other settings; the same one is always recorded again.
        resume: continue after the episodes that an interrupted recording of the same dataset has kept, if any;
            a finished file stays as it is.

    Returns:
        The path of the file, which takes its name in one step when all is done.

    Raises:
        UserError: for an unknown task or player, or a number out of range; if there is a file with other settings, or
            one to resume; if a partner or an opponent gives up; and if processes that play die over the same episodes
            again and again (what one that dies was at is played again). After any exception, Ctrl-C included, the
            finished episodes are kept in a ``.partial`` file next to it; the message or a line on stderr names it.
    """
    row = task(task_name)
    env = dict(env or {})
    size = row.dataset_size if size is None else size
    alone = 1 if workers is None and ray is None else workers
    for name, value, least in (("size", size, 1), ("workers", 1 if alone is None else alone, 1), ("seed", seed, 0)):
        if not least <= value < _MAX_SEED:
            raise UserError(f"{name} must be a whole number from {least}, got {value}")
    check_budget(env.get("partner"), 2 if alone is None else alone)
    first, last = _part_of(size, shard)
    path = dataset_path(task_name, size, seed, env, behaviour) if out is None else Path(out)
    if shard is not None and out is None:
        path = path.with_name(f"{path.stem}-{shard[0]}of{shard[1]}{path.suffix}")
    metadata = {
        "task": task_name,
        "generator_version": row.dataset_version,
        "size": size,
        "seed": seed,
        "behaviour": _name(behaviour) or row.behaviour,
        "env": env,
        **({} if shard is None else {"shard": list(shard)}),
    }
    check_place(path, metadata, overwrite)
    if resume and not overwrite and path.is_file():
        return path
    before = _kept_before(path, metadata) if resume else 0
    firsts = range(first + before, last, _CHUNK)
    chunks: list[_Chunk] = [(task_name, seed, at, min(at + _CHUNK, last), env, behaviour) for at in firsts]
    played = _episodes(chunks, alone, ray)
    if before:
        played = chain(islice(read_episodes(_partial(path)), before), played)
    _write(path, _shown(played, task_name, last - first, progress), metadata, before)
    if resume:
        _partial(path).unlink(missing_ok=True)
    return path


def _name(behaviour: Behaviour) -> str | None:
    return behaviour if isinstance(behaviour, str | None) else str(behaviour.get("name", ""))


def _part_of(size: int, shard: tuple[int, int] | None) -> tuple[int, int]:
    """The first episode of a part, and the one after its last."""
    part, parts = shard or (0, 1)
    if not 0 <= part < parts <= size:
        raise UserError(f"shard must be one of 0/n to n-1/n, with n not above size ({size}), got {part}/{parts}")
    return size * part // parts, size * (part + 1) // parts


def _partial(path: Path) -> Path:
    """Return the file that keeps the finished episodes of an interrupted recording."""
    return path.with_name(f"{path.stem}.partial{path.suffix}")


def _kept_before(path: Path, metadata: Mapping[str, Any]) -> int:
    """Return how many episodes of an interrupted recording are not played again.

    Only whole chunks count: in the last one, later episodes may have ended before earlier ones.
    """
    partial = _partial(path)
    if not partial.is_file():
        return 0
    way_out = "remove it, or leave out resume"
    try:
        different = differences(read_metadata(partial), metadata)
        count = sum(1 for _ in read_episodes(partial))
    except UserError as error:
        raise UserError(f"{partial} is damaged ({error}): {way_out}") from error
    if different:
        raise UserError(f"{partial} is of another dataset ({different}): {way_out}")
    return count - count % _CHUNK


def _count_same(partial: Path, metadata: Mapping[str, Any]) -> int:
    """Return how many episodes an earlier try of the same recording has kept."""
    try:
        is_same = not differences(read_metadata(partial), metadata)
        return sum(1 for _ in read_episodes(partial)) if is_same else 0
    except (UserError, OSError):  # there is none, or a damaged one
        return 0


def _write(path: Path, played: Iterable[Episode], metadata: Mapping[str, Any], before: int) -> None:
    """Write a file under its name when it is complete, and what there is under another if the play breaks off.

    Until then it has a name of its own: processes that record the same dataset at the same time write the same file.

    Args:
        path: path of the file.
        played: the episodes.
        metadata: metadata of the file.
        before: how many of the episodes come from an interrupted recording.
    """
    kept = _partial(path)
    own = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.tmp{path.suffix}")
    with in_place_of(path, own):
        try:
            with _SignalsBetweenEpisodes() as signals:
                finished = _Finished(played, signals)
                count = write_episodes(own, finished, metadata)
                if finished.error is None:
                    own.replace(path)
                elif count > max(before, _count_same(kept, metadata)):  # else an earlier try has kept more
                    own.replace(kept)
        finally:
            own.unlink(missing_ok=True)
    error = finished.error
    if error is None:
        return
    if max(count, before) == 0:
        raise error
    line = f"the {max(count, before)} episodes that were finished are in {kept}; resume continues after them"
    if isinstance(error, UserError):
        raise UserError(f"{error}; {line}") from error
    print(f"note: {line}", file=sys.stderr)
    raise error


class _SignalsBetweenEpisodes:
    """Holds signals back while an episode is written; the exceptions of their handlers would leave half a file.

    While episodes are played, and at a second signal, the handlers are called at once.
    """

    def __init__(self) -> None:
        self.is_playing = False
        self._waiting: int | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "_SignalsBetweenEpisodes":
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                if not hasattr(signal, name):  # Windows has no SIGHUP
                    continue
                number = getattr(signal, name)
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self.deliver()  # one that came when all was written

    def deliver(self) -> None:
        """Call the handler of the signal that waits."""
        if self._waiting is not None:
            number = self._waiting
            self._waiting = None
            self._handlers[number](number, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_playing or self._waiting is not None:
            self._handlers[number](number, frame)
        else:
            self._waiting = number


class _Finished:
    """Yields episodes until the play breaks off, or one cannot be written, and keeps the reason."""

    def __init__(self, played: Iterable[Episode], signals: _SignalsBetweenEpisodes) -> None:
        self._played = iter(played)
        self._signals = signals
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[Episode]:
        while True:
            try:
                self._signals.deliver()
                self._signals.is_playing = True
                episode = next(self._played, None)
                self._signals.is_playing = False
                if episode is not None:
                    json_of_info(episode.info, f"the episode with seed {episode.seed}")
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                self._signals.is_playing = False
                self.error = error
                return
            if episode is None:
                return
            yield episode


def _episodes(chunks: Sequence[_Chunk], workers: int | None, ray: str | None) -> Iterator[Episode]:
    """The episodes of all chunks, in order."""
    for played in _on_ray(chunks, workers, ray) if ray is not None else _on_this_machine(chunks, workers or 1):
        yield from _finished(played)


def _on_this_machine(chunks: Sequence[_Chunk], workers: int) -> Iterator[_Played]:
    if workers == 1 or len(chunks) == 1:
        yield from map(_play_chunk, chunks)
        return
    with closing(WorkerProcesses[_Chunk, _Played](workers, _recorder)) as processes:
        yield from processes.map(chunks)


def _on_ray(chunks: Sequence[_Chunk], workers: int | None, address: str) -> Iterator[_Played]:
    """Play the chunks in processes of a Ray cluster, and yield their results in order."""
    with Workers[_Chunk, _Played](address, workers, _recorder) as processes:
        yield from processes.map(chunks)


def _recorder() -> Callable[[_Chunk], _Played]:
    """Return the function that plays chunks in another process; it keeps the models that it has loaded."""
    return _play_chunk


def _finished(played: _Played) -> Iterator[Episode]:
    episodes, error = played
    yield from episodes
    if error is not None:
        raise error


def _play_chunk(chunk: _Chunk) -> _Played:
    """Episodes ``first`` to ``last - 1``, or those that were finished when a partner gave up or a signal came."""
    task_name, seed, first, last, env, behaviour = chunk
    recipe, make_env = recording_setup(task_name, env, behaviour)
    starts = (recipe.start(seed, index) for index in range(first, last))
    played: list[tuple[int, Episode]] = []
    try:
        for item in rollout(recipe.policy, make_env, starts, task=task_name, stop=recipe.stop):
            played.append(item)  # one by one: an error must not take the others with it
    except (UserError, KeyboardInterrupt, SystemExit) as error:
        return in_order(played), error
    return in_order(played), None


def _shown(episodes: Iterable[Episode], task_name: str, size: int, progress: bool) -> Iterator[Episode]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    lines = LogLines(console, quiet=not progress)
    has_bar = progress and console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not has_bar) as bar:
        job = bar.add_task(f"recording {task_name}", total=size)
        for count, episode in enumerate(episodes, 1):
            yield episode
            bar.advance(job)
            lines.say(f"recording {task_name}: {count}/{size} episodes")


_EXAMPLES = 32  # episodes among which the examples of a prompt are chosen


def first_episodes(task_name: str) -> list[Episode]:
    """Return the first episodes of a task's default dataset, among which the examples of a prompt are chosen.

    They come from its file if that is there. Otherwise they are recorded and kept: a longer dataset begins with the
    same episodes.

    Raises:
        UserError: for an unknown task.
    """
    path = dataset_path(task_name, task(task_name).dataset_size, 0)
    if not path.is_file():
        path = dataset_path(task_name, _EXAMPLES, 0)
    if not path.is_file():
        path = generate(task_name, _EXAMPLES, progress=False)
    return list(islice(read_episodes(path), _EXAMPLES))
