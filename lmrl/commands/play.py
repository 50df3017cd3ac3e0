"""``lmrl play``: a person at the terminal plays one episode."""

from lmrl.configuration import env_arguments
from lmrl.play.terminal import play_episode
from lmrl.players import named_adviser, played_task

__all__ = ["play_command"]


def play_command(
    task: str | None = None, *, seed: int = 0, advisor: str | None = None, env: list[str] | None = None
) -> None:
    """Play one episode yourself: read the text, type an action, press enter.

    Args:
        task: name of the task, e.g. maze_fo, openenv:URL or textarena:NAME (default: that of the advisor, if it is a
            run).
        seed: decides what is random about the episode.
        advisor: a run folder, a checkpoint or another player whose move is shown each turn, and V if it has values.
        env: arguments of the environment, e.g. opponent=random or partner=lm:PATH.
    """
    row, arguments = played_task(task, *([] if advisor is None else [advisor])), env_arguments(env)
    adviser = None if advisor is None else named_adviser(advisor, row, arguments)
    play_episode(row, arguments, seed, adviser, advisor or "")
