"""The viewer: one HTML page on which thousands of episodes can be filtered, sorted and read."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from lmrl.atomic import replacing
from lmrl.errors import UserError
from lmrl.evaluation.rendering import embedded, render_page, script
from lmrl.evaluation.token_values import token_values
from lmrl.evaluation.view_data import view_data
from lmrl.modules import LanguageModule, load_module
from lmrl.storage import read_episodes, read_metadata

__all__ = ["write_view"]

_RANGES = (("return", "return"), ("turns", "turns"), ("illegal", "illegal"))
_SCRIPTS = ("pictures.js", "view_episode.js", "view_list.js")


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
        source: file of episodes, see `lmrl.storage.read_episodes`.
        out: the page, an ``.html`` file.
        run: run folder or checkpoint whose values colour the words.
        episodes: only so many, from the first on; None: all.
        valued: so many episodes, from the first on, get values.
        env: arguments of the environment that was played, over those that the file names.
        allow_other_task: also take a run that was trained on another task than that of the episodes.

    Raises:
        UserError: for another suffix, a number below 1, a broken file, or a run that has no checkpoint or another task.
    """
    if out.suffix != ".html":
        raise UserError(f"out must be an .html file, got {str(out)!r}")
    for name, value in (("episodes", 1 if episodes is None else episodes), ("valued", valued)):
        if value < 1:
            raise UserError(f"{name} must be at least 1, got {value}")
    recorded = read_metadata(source).get("env")
    shown = 0 if run is None else valued if episodes is None else min(valued, episodes)
    values = []
    if run is not None:
        values = list(token_values(_module(run, source, allow_other_task), islice(read_episodes(source), shown)))
    name = "" if run is None else str(run)
    data = view_data(islice(read_episodes(source), episodes), values, name, env, recorded)
    words = {
        "title": source.name if run is None else f"{source.name}, {run}",
        "ranges": _RANGES,
        "data": embedded(data),
        **script(*_SCRIPTS),
    }
    with replacing(out) as file:
        file.write(render_page("view.html.j2", words).encode())
    return len(data["episodes"]["return"])


def _module(run: Path, source: Path, allow_other_task: bool) -> LanguageModule:
    """The module of a run, if it was trained on what the episodes are of."""
    module = load_module(run)
    own, played = module.made_with.get("task"), next((episode.task for episode in read_episodes(source)), None)
    if None not in (own, played) and own != played and not allow_other_task:
        told = f"{run} was trained on {own}, the episodes of {source} are of {played}"
        raise UserError(f"{told}; if that is meant: --allow_other_task")
    return module
