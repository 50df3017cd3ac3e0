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
from lmrl.modules import load_module
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
) -> int:
    """Write the page and return how many episodes it holds.

    It needs no other file, loads nothing, and runs no script but its own, whatever the texts are.

    Args:
        source: file of episodes, see `lmrl.storage.read_episodes`.
        out: the page, an ``.html`` file.
        run: run folder or checkpoint whose values colour the words.
        episodes: only so many, from the first on; None: all.
        valued: so many episodes, from the first on, get values.
        env: arguments of the environment that was played; None: those that the file names.

    Raises:
        UserError: for another suffix, a number below 1, a broken file, or a run without a checkpoint.
    """
    if out.suffix != ".html":
        raise UserError(f"out must be an .html file, got {str(out)!r}")
    for name, value in (("episodes", 1 if episodes is None else episodes), ("valued", valued)):
        if value < 1:
            raise UserError(f"{name} must be at least 1, got {value}")
    given = read_metadata(source).get("env", {}) if env is None else env
    shown = 0 if run is None else valued if episodes is None else min(valued, episodes)
    values = [] if run is None else list(token_values(load_module(run), islice(read_episodes(source), shown)))
    data = view_data(islice(read_episodes(source), episodes), values, run="" if run is None else str(run), env=given)
    words = {
        "title": source.name if run is None else f"{source.name}, {run}",
        "ranges": _RANGES,
        "data": embedded(data),
        **script(*_SCRIPTS),
    }
    with replacing(out) as file:
        file.write(render_page("view.html.j2", words).encode())
    return len(data["episodes"]["return"])
