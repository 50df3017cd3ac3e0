"""`Task`: everything that the rest of the package knows of a row of the benchmark beside its environment.

The published numbers, and the scale that makes tasks comparable: 0 worst, 50 the published average, 100 best.

Source: Abdulhai et al., "LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with Language Models", ICML 2025.
Constants of the scale are its Table 5, raw scores Table 4, normalised scores Table 2, dataset statistics Table 1. The
printed normalised scores do not all follow from the printed raw scores and constants; `Scores.note` says where.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from lmrl.types import Policy, Request, Start

__all__ = [
    "ALGORITHMS",
    "PublishedData",
    "Recording",
    "Scores",
    "Task",
    "by_algorithm",
    "normalize",
    "recording_seed",
    "turn_chance",
]

ALGORITHMS = ("bc", "filtered_bc", "mc", "ilql", "ppo", "online_filtered_bc", "gpt4")
"""Keys of `Scores.raw` and `Scores.normalized`, in the order of the paper's columns (more in `Scores.normalized`)."""


@dataclass(frozen=True, slots=True)
class PublishedData:
    """Statistics of the published dataset: lengths in actions, undiscounted returns."""

    size: int
    length_mean: float
    length_std: float
    success: float
    return_mean: float
    return_std: float


@dataclass(frozen=True, slots=True)
class Scores:
    """What was published about one task; without arguments: nothing."""

    minimum: float = 0.0
    average: float | None = None
    """None, like `maximum`, where no constants were published: the raw score is the normalised one."""
    maximum: float | None = None
    raw: Mapping[str, float] = field(default_factory=dict)
    """Mean return by algorithm."""
    normalized: Mapping[str, float] = field(default_factory=dict)
    """The printed normalised score by algorithm."""
    data: PublishedData | None = None
    """None where no dataset was published."""
    note: str = ""
    """What is wrong with the numbers above."""


def normalize(raw: float, scores: Scores) -> float:
    """Linear from ``minimum`` (0) to ``average`` (50) and from there to ``maximum`` (100); not clipped.

    The formula of the paper's appendix E. A task without constants keeps its raw score.
    """
    if scores.average is None or scores.maximum is None:
        return raw
    if raw < scores.average:
        return 50 * (raw - scores.minimum) / (scores.average - scores.minimum)
    return 50 + 50 * (raw - scores.average) / (scores.maximum - scores.average)


def by_algorithm(*values: float) -> Mapping[str, float]:
    """A number for each of `ALGORITHMS`, in their order."""
    return dict(zip(ALGORITHMS, values, strict=True))


@dataclass(frozen=True)
class Recording:
    """The recipe of a dataset."""

    policy: Policy
    start: Callable[[int, int], Start]
    """From the seed of the dataset and the index of the episode to how that episode begins."""
    stop: Callable[[Request], bool] | None = None
    """After each turn: whether the recorder cuts the episode here (it is then truncated)."""


def recording_seed(seed: int, index: int) -> int:
    """The seed of an episode of a dataset; far from the small numbers that evaluations use."""
    return Random(f"episode {seed} {index}").getrandbits(53)


def turn_chance(request: Request) -> Random:
    """A generator that follows from the episode's seed and the turn, and from nothing else.

    So a player's moves do not depend on which other episodes it plays at the same time.
    """
    return Random(f"turn {request.seed} {request.turn}")


@dataclass(frozen=True)
class Task:
    """A row of the benchmark, or a task of another package.

    All fields are plain values. A hook is ``module:attribute``, imported when it is first used (`lmrl.envs.registry`);
    an empty one means that the task has none.
    """

    name: str
    description: str
    """One line."""
    env_id: str
    """Id for ``gymnasium.make``."""
    entry_point: str
    """Where the environment is, ``module:class``; imported when it is made."""
    max_action_tokens: int
    """Longest action that a policy may say."""
    dataset_size: int = 1_000
    """Episodes in the default dataset."""
    table_row: int = 0
    """Place in the results table, for tasks of the benchmark; others come behind them."""
    paper_filter: str = ""
    """Which episodes the paper's filtered BC keeps."""
    scores: Scores = field(default_factory=Scores)
    last_texts: int | None = None
    """How many of the newest texts (observations and actions) a policy reads; None: all."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment that make it this task."""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Texts that a data file may choose for an argument of the environment: never a path, nor what runs a program. See
    `lmrl.envs.registry.recorded_arguments`."""
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
    players: str = ""
    """Hook: scripted players by name, each made from the arguments of the environment (`lmrl.envs.hooks.Players`)."""
    recording: str = ""
    """Hook: the recipe of the dataset, from name and arguments to a `Recording` (`lmrl.envs.hooks.MakeRecording`)."""
    official: str = ""
    """Hook: how an official file is read (`lmrl.envs.official.FileFormat`)."""
    chat: str = ""
    """Hook: how the task is put to a chat model that plays (`lmrl.envs.hooks.ChatPrompt`)."""
    partner: str = ""
    """Hook: what models are told that are the second speaker (`lmrl.envs.hooks.PartnerPrompts`)."""
    picture: str = ""
    """Hook: how an episode is drawn (a subclass of `lmrl.envs.hooks.Picture`)."""
    probe: str = ""
    """Hook: what a policy does and expects in states of interest (`lmrl.envs.hooks.Probe`)."""
    probe_plot: str = ""
    """Hook: how that is drawn in a report (`lmrl.envs.hooks.ProbePlot`)."""
