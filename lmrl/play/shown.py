"""What pages show of an episode: its numbers and its texts."""

from math import isfinite
from typing import Any

from lmrl.report.pages import printable
from lmrl.types import Episode

__all__ = ["cut", "episode_facts", "rounded", "said", "shown_text"]

_LONGEST = 20_000
"""Characters of a text that are shown."""


def episode_facts(episode: Episode) -> dict[str, Any]:
    """The numbers of an episode; ``ending`` is 0 for solved, 1 for ended by the rules, 2 for cut short."""
    return {
        "return": rounded(episode.total_reward, 4),
        "turns": len(episode),
        "illegal": episode.illegal,
        "ending": 0 if episode.success else 1 if episode.terminated else 2,
        "seed": str(episode.seed),  # beyond what a number of JavaScript holds
        "rewards": [rounded(reward, 4) for reward in episode.rewards],
    }


def said(episode: Episode) -> list[str]:
    """All texts in the order in which they were said, an observation first and last."""
    found = [episode.observations[0]]
    for action, observation in zip(episode.actions, episode.observations[1:], strict=True):
        found += (action, observation)
    return found


def shown_text(text: str) -> str:
    """A text as pages show it: cut if it is very long, with a mark for what cannot be seen."""
    return printable(cut(text))


def cut(text: str) -> str:
    """The text; of a very long one its beginning, and how long it is."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text)} characters)"


def rounded(value: float | None, digits: int) -> float | None:
    """As JSON has it: no number where there is none."""
    return round(value, digits) if value is not None and isfinite(value) else None
