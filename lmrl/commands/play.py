"""``lmrl play``, an episode at the terminal, and ``lmrl view``, episodes as a page for the browser."""

from pathlib import Path

from lmrl.configuration import env_arguments
from lmrl.errors import UserError
from lmrl.play.terminal import play_episode
from lmrl.play.viewer import write_view
from lmrl.players import named_adviser, played_task

__all__ = ["play_command", "view_command"]


def play_command(
    task: str | None = None, *, seed: int = 0, advisor: str | None = None, env: list[str] | None = None
) -> None:
    """Play one episode yourself: read the text, type an action, press enter.

    Args:
        task: name of the task, e.g. maze_fo (default: that of the advisor, if it is a run).
        seed: decides what is random about the episode.
        advisor: a run folder, a checkpoint or another player whose move is shown each turn, and V if it has values.
        env: arguments of the environment, e.g. opponent=random or partner=lm:PATH.
    """
    row, arguments = played_task(task, *([] if advisor is None else [advisor])), env_arguments(env)
    adviser = None if advisor is None else named_adviser(advisor, row, arguments)
    play_episode(row, arguments, seed, adviser, advisor or "")


_PLAYED = Path("evaluation") / "episodes.parquet"


def view_command(
    source: Path,
    *,
    out: Path | None = None,
    run: Path | None = None,
    episodes: int | None = None,
    valued: int = 100,
    allow_other_task: bool = False,
    env: list[str] | None = None,
) -> None:
    """Write an HTML page of episodes: filter, sort, read, with boards, tiles and maps, and values over the words.

    Args:
        source: a .parquet or .jsonl file of episodes, or a run folder that was evaluated.
        out: the page (default: beside the file, with the suffix .html).
        run: a run folder or checkpoint whose V, Q, advantage and probability colour the words (default: the run folder
            that is shown).
        episodes: only so many, from the first on.
        valued: so many episodes, from the first on, get values.
        allow_other_task: show what a run thinks of episodes of another task than the one that it was trained on.
        env: arguments of the environment that was played, e.g. max_steps=20 (default: as the file says; a
            path is never taken from it).
    """
    file, trained = source, run
    if source.is_dir():
        file = source / _PLAYED
        trained = run or (source if any(source.glob("*.ckpt")) else None)
        if not file.is_file():
            raise UserError(f"{source} has no {_PLAYED}; make it with: lmrl evaluate --policy {source}")
    page = file.with_suffix(".html") if out is None else out
    count = write_view(file, page, trained, episodes, valued, env_arguments(env) if env else None, allow_other_task)
    print(f"{count} episodes written to {page}; open it in a browser")
