"""`Task`: everything that the rest of the package has to know of a row of the benchmark beside its environment.

The published numbers, and the scale that makes tasks comparable: 0 worst, 50 the published average, 100 best.

Source: Abdulhai et al., "LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with Language Models", ICML 2025.
Constants of the scale are its Table 5, raw scores Table 4, normalised scores Table 2, dataset statistics Table 1. Raw
car dealer scores of online filtered BC and GPT-4 are missing there and are taken from Table 2, where every other car
dealer number equals the raw one. FO and PO share one line of Table 1.

The printed normalised scores do not all follow from the printed raw scores and constants; `Scores.note` says where.

What a chat model is told about each task, and how it is asked.

Temperature, how much of the past is shown, examples and the form of the reply are those of the paper's GPT-4 baselines
where their code says so (Abdulhai et al. 2025, appendix; scripts ``*/gpt4/*``): maze, Wordle, chess and endgames. For
the other tasks the temperature is the endpoint's usual one, 1. The paper gives no example for Twenty Questions and has
no scripts for Text-Nav, Guess My City and Car Dealer; here each task has an example. Errata kept out: of the maze's
actions "move down" was missing and "move up" came twice; the chess examples were spelt otherwise than the positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from lmrl.types import Policy, Request, Start

__all__ = [
    "ALGORITHMS",
    "ChatTask",
    "PublishedData",
    "Recording",
    "Scores",
    "Task",
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
    """What was published about one task."""

    minimum: float
    average: float | None
    """None, like `maximum`, where no constants were published: the raw score is the normalised one."""
    maximum: float | None
    raw: Mapping[str, float]
    """Mean return by algorithm."""
    normalized: Mapping[str, float]
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


def _by_algorithm(*values: float) -> Mapping[str, float]:
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


def _nothing(env: Mapping[str, Any]) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class ChatTask:
    """How one task is put to a chat model."""

    role: str
    """Who the model is, after "You are"."""
    rules: str
    """The game, its actions and what is rewarded."""
    other: str = "Game"
    """Name of the other speaker in transcripts."""
    own: str = "You"
    key: str = "action"
    """Key of the action in a JSON reply."""
    temperature: float = 1.0
    last_texts: int | None = None
    """How many of the newest texts are shown; None: all."""
    examples: int = 1
    """Episodes of the dataset that are shown."""
    example_turns: int | None = None
    """Turns of each; None: whole episodes."""
    games: int = 100
    """Episodes of an evaluation."""
    header: str = ""
    """A first text that says nothing."""
    appendix: Callable[[Mapping[str, Any]], str] = _nothing
    """More rules, from the arguments of the environment that is played."""
    spelling: Callable[[str], str] = str.strip
    """An observation as it is shown."""
    own_spelling: Callable[[str], str] = str.strip
    """An action as it is shown."""


def turn_chance(request: Request) -> Random:
    """A generator that follows from the episode's seed and the turn, and from nothing else.

    So a player's moves do not depend on which other episodes it plays at the same time.
    """
    return Random(f"turn {request.seed} {request.turn}")


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
