"""The viewer: one HTML page on which thousands of episodes can be filtered, sorted and read."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from lmrl.data.storage import read_episodes, read_metadata
from lmrl.envs import registry
from lmrl.envs.base import TextEnv
from lmrl.envs.task import Picture
from lmrl.errors import UserError
from lmrl.evaluation.token_values import TokenValue, token_values
from lmrl.modules import LanguageModule, load_module
from lmrl.report.pages import (
    check_page,
    cut,
    embedded,
    episode_facts,
    page_parts,
    printable,
    render_page,
    rounded,
    said,
)
from lmrl.types import Episode
from lmrl.utils.files import replacing

__all__ = ["view_data", "write_view"]


def view_data(
    episodes: Iterable[Episode],
    values: Sequence[Sequence[Sequence[TokenValue]]] = (),
    run: str = "",
    env: Mapping[str, Any] | None = None,
    recorded: Any = None,
) -> dict[str, Any]:
    """Return the data of the page, JSON-like.

    Args:
        episodes: episodes of any tasks, in order.
        values: values of the first episodes, see `lmrl.evaluation.token_values`.
        run: the run whose values they are.
        env: arguments of the environment that was played, for pictures that depend on them.
        recorded: arguments that the file names; where it may not choose them (see
            `lmrl.envs.registry.recorded_arguments`), there is no such picture.
    """
    # Texts repeat a lot, so the page holds each once, and everything else refers to it by number.
    numbers = dict[str, int]()

    def number(text: str) -> int:
        return numbers.setdefault(cut(text), len(numbers))

    tasks = dict[str, dict[str, Any]]()
    pictures = dict[str, Picture | None]()
    # One list per column is much shorter than one object per episode.
    columns: dict[str, list[Any]] = defaultdict(list)
    for episode in episodes:
        task = printable(episode.task)
        if task not in tasks:
            pictures[task], tasks[task] = _picture(task, recorded or {}, env)
        picture = pictures[task]
        columns["task"].append(task)
        for name, fact in episode_facts(episode).items():
            columns[name].append(fact)
        columns["said"].append(list(map(number, said(episode))))
        columns["states"].append(None if picture is None else picture.states(episode))
    # Episode to turns to tokens; a token is its text, its probability, V before it, and its Q.
    tokens = dict[int, list[list[list[Any]]]]()
    for index, turns in enumerate(values):
        tokens[index] = []
        for turn in turns:
            shown = [[number(t.text), rounded(t.probability, 4), rounded(t.v, 3), rounded(t.q, 3)] for t in turn]
            tokens[index].append(shown)
    return {
        "tasks": tasks,
        "episodes": columns or {"return": []},
        "values": tokens,
        "run": run,
        "texts": list(map(printable, numbers)),
    }


def _picture(name: str, recorded: Any, env: Mapping[str, Any] | None) -> tuple[Picture | None, dict[str, Any]]:
    """Return the picture of a task's episodes and its facts; None for unknown tasks."""

    def make() -> TextEnv:
        return registry.make(name, **registry.recorded_arguments(name, recorded, env, "the file"))

    try:
        picture = registry.make_picture(name, make) if name in registry.tasks() else None
        facts = {} if picture is None else {"kind": picture.kind, **picture.facts()}
    except (ValueError, TypeError):  # arguments from a file may be anything
        return None, {"kind": ""}
    return picture, facts or {"kind": ""}


_RANGES = (("return", "return"), ("turns", "turns"), ("illegal", "illegal"))
_SCRIPTS = ("words.js", "view_episode.js", "view_list.js")


def write_view(
    source: Path,
    out: Path,
    run: Path | None = None,
    episodes: int | None = None,
    valued: int = 100,
    env: Mapping[str, Any] | None = None,
    allow_other_task: bool = False,
) -> int:
    """Write the page and return how many episodes it holds.

    It needs no other file, loads nothing, and runs no script but its own, whatever the texts are.

    Args:
        source: file of episodes, see `lmrl.data.storage.read_episodes`.
        out: the page, an ``.html`` file.
        run: run folder or checkpoint whose values colour the words.
        episodes: number of episodes, from the first on; None: all.
        valued: number of episodes, from the first on, that get values.
        env: arguments of the environment that was played, over those that the file names.
        allow_other_task: also take a run that was trained on another task than that of the episodes.

    Raises:
        UserError: for another suffix, a number below 1, a broken or empty file, or a run without a checkpoint or of
            another task.
    """
    if out.suffix != ".html":
        raise UserError(f"out must be an .html file, got {str(out)!r}")
    check_page(out, "lmrl view")
    for name, value in (("episodes", 1 if episodes is None else episodes), ("valued", valued)):
        if value < 1:
            raise UserError(f"{name} must be at least 1, got {value}")
    recorded = read_metadata(source).get("env")
    values = []
    if run is not None:
        # The values of an episode cost a forward pass, so only the first ones get them.
        count = valued if episodes is None else min(valued, episodes)
        values = list(token_values(_module(run, source, allow_other_task), islice(read_episodes(source), count)))
    name = "" if run is None else str(run)
    # The file is read once more here instead of holding all its episodes in memory.
    data = view_data(islice(read_episodes(source), episodes), values, name, env, recorded)
    if not data["tasks"]:
        raise UserError(f"{source} holds no episodes")
    words = {
        "title": source.name if run is None else f"{source.name}, {run}",
        "ranges": _RANGES,
        "data": embedded(data),
        **page_parts("lmrl.play", registry.pictures(data["tasks"]), *_SCRIPTS),
    }
    with replacing(out) as file:
        file.write(render_page("lmrl.play", "view.html.j2", words).encode())
    return len(data["episodes"]["return"])


def _module(run: Path, source: Path, allow_other_task: bool) -> LanguageModule:
    """Load the module of a run, and check that it was trained on the task of the episodes."""
    module = load_module(run)
    trained_on = module.made_with.get("task")
    first = next(read_episodes(source), None)
    # A file without episodes and a run without a task fit everything.
    if first is None or trained_on is None or trained_on == first.task or allow_other_task:
        return module
    mismatch = f"{run} was trained on {trained_on}, the episodes of {source} are of {first.task}"
    raise UserError(f"{mismatch}; if that is meant: --allow_other_task")
