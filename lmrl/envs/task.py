"""`Task`: what is to be said about a row of the benchmark beside its game."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmrl.envs.scores import Scores

__all__ = ["Task"]


@dataclass(frozen=True)
class Task:
    """A row of the benchmark."""

    name: str
    description: str
    env_id: str
    """Id for ``gymnasium.make``."""
    entry_point: str
    """Where the environment is, ``module:class``; imported when it is made."""
    max_action_tokens: int
    """Longest action that a policy may say."""
    dataset_size: int
    """Episodes in the default dataset."""
    paper_filter: str
    """Which episodes the paper's filtered BC keeps."""
    scores: Scores
    last_texts: int | None = None
    """How many of the newest texts (observations and actions) a policy reads; None: all."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment that make it this task."""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Texts that a data file may choose for an argument of the environment: never a path, nor what runs a program. See
    `lmrl.envs.registration.recorded_arguments`."""
    actions: tuple[str, ...] = ()
    """All legal actions where they can be listed."""
    behaviour: str = "behaviour"
    """Name of the player that recorded the dataset."""
    dataset_version: int = 1
    """Goes up whenever the same size and seed give other episodes."""
    starts: tuple[Mapping[str, Any], ...] = ()
    """Reset options that evaluation cycles through; empty: seeds decide."""
    selection: tuple[Mapping[str, Any], ...] = ()
    """Likewise where checkpoints are chosen in training; empty: `starts`, which then are all that there is."""
