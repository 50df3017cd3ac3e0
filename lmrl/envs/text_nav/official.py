"""Reconstruction of the end of an episode and the line ends, which the official Text-Nav files leave out.

A record is ``{"text_history", "rewards", "dones"}``, whose lists go by text or by command. Won or lost is what the last
text says; else the episode is truncated, whatever ``dones`` claims.
"""

from lmrl.envs.base import TextEnv
from lmrl.envs.official import FileFormat, Game, game_of_commands
from lmrl.envs.task import Task
from lmrl.types import Episode

__all__ = ["FORMAT", "text_nav_episode"]

_WON = "*** The End ***"
_LOST = "*** You lost! ***"


def text_nav_episode(game: Game, row: Task, env: TextEnv) -> Episode | None:
    """The episode of a record, or None if no action of it can be kept; the module states the rules."""
    known = min(len(game.actions), len(game.observations) - 1)
    if known == 0:
        return None
    rewards = game.rewards[:known]
    last = game.observations[known]
    won = rewards[-1] > 0 or _WON in last
    over = won or _LOST in last
    return Episode(
        task=row.name,
        observations=tuple(_line(text) for text in game.observations[: known + 1]),
        actions=tuple(_line(text) for text in game.actions[:known]),
        rewards=rewards,
        terminated=over,
        truncated=not over,
        info={"source": "official", "success": won, "illegal": 0},
    )


def _line(text: str) -> str:
    """The recorded texts are stripped; ours end their line, so that what follows begins on a new one."""
    return text.strip() + "\n"


FORMAT = FileFormat(game_of_commands, text_nav_episode, "[")
