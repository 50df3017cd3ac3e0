"""Reconstruction of what the official Text-Nav files leave out: the end of an episode and the line ends.

A record is ``{"text_history", "rewards", "dones"}``, whose lists go by text or by command. The last text tells whether
the game is won or lost. Otherwise the episode is truncated, regardless of ``dones``.
"""

from lmrl.envs.base import TextEnv
from lmrl.envs.official import FileFormat, Game, game_of_commands
from lmrl.envs.task import Task
from lmrl.types import Episode

__all__ = ["FORMAT", "text_nav_episode"]

_WON = "*** The End ***"
_LOST = "*** You lost! ***"


def text_nav_episode(game: Game, task: Task, env: TextEnv) -> Episode | None:
    """Return the episode of a record, or None if no action of it can be kept; the module states the rules."""
    # A last command without an answer cannot be kept.
    known = min(len(game.actions), len(game.observations) - 1)
    if known == 0:
        return None
    rewards = game.rewards[:known]
    last = game.observations[known]
    won = rewards[-1] > 0 or _WON in last
    over = won or _LOST in last
    return Episode(
        task=task.name,
        observations=tuple(map(_line, game.observations[: known + 1])),
        actions=tuple(map(_line, game.actions[:known])),
        rewards=rewards,
        terminated=over,
        truncated=not over,
        info={"source": "official", "success": won, "illegal": 0},
    )


def _line(text: str) -> str:
    # The recorded texts are stripped; ours end with a line break, so that the next text begins on a new line.
    return text.strip() + "\n"


FORMAT = FileFormat(game_of_commands, text_nav_episode, "[")
