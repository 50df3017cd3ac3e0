"""`Task`: everything that the rest of the package knows of a row of the benchmark next to its environment."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, cast

import gymnasium

from lmrl.envs.scores import OwnScale, Scores
from lmrl.types import Episode, PartnerRequest, Policy, Request, Start

__all__ = [
    "ChatPrompt",
    "Guide",
    "MakeRecording",
    "PartnerDialogue",
    "PartnerPrompts",
    "Picture",
    "Players",
    "Probe",
    "ProbePlot",
    "Recording",
    "Task",
    "TaskTokens",
    "TokensOf",
    "Tuning",
    "decided_by",
    "least_of",
    "recording_seed",
    "turn_chance",
    "words_as_tokens",
]

if TYPE_CHECKING:  # slow to import, and `import lmrl` comes here
    from matplotlib.axes import Axes
    from rich.text import Text


T = TypeVar("T")

Players: TypeAlias = Mapping[str, Callable[[Mapping[str, Any]], Policy]]
"""Scripted players by name, each from the arguments of the environment to a policy; ``random``, ``behaviour`` and
``optimal`` get a column of the results table."""


@dataclass(frozen=True)
class Recording:
    """The recipe of a dataset."""

    policy: Policy
    start: Callable[[int, int], Start]
    """From the seed of the dataset and the index of the episode to how that episode begins."""
    stop: Callable[[Request], bool] | None = None
    """After each turn: whether the recorder cuts the episode here (it is then truncated)."""


MakeRecording: TypeAlias = Callable[[str, Mapping[str, Any]], Recording]
"""From the name of the task and the arguments of the environment to the recipe of the dataset."""


def _nothing(env: Mapping[str, Any]) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The prompt of a task for a chat model that plays it.

    Temperature, length of the history, examples and form of the reply are those of the paper's GPT-4 baselines where
    its code has them (Abdulhai et al. 2025, appendix; scripts ``*/gpt4/*``). Otherwise the temperature is the
    endpoint's usual one, 1, and one example is shown.
    """

    role: str
    """Who the model is, after "You are"."""
    rules: str
    """The game, its actions and what is rewarded."""
    other: str = "Game"
    """Name of the other speaker in transcripts."""
    own: str = "You"
    key: str = "action"
    """Key of the action in a JSON reply."""
    thought: bool = False
    """Whether a JSON reply holds a thought before the action."""
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


def _as_it_is(text: str) -> str:
    return text


def _no_note(request: Request, env: Mapping[str, Any]) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Guide:
    """The instructions for people who play. Policies, datasets and transcripts contain none of it."""

    rules: str
    """The game and what is rewarded, shown before the first move."""
    action: str
    """What to type."""
    example: tuple[str, str]
    """An action, and what the environment answers to it somewhere."""
    spelling: Callable[[str], str] = _as_it_is
    """A text of the game, or an action, as people read it."""
    note: Callable[[Request, Mapping[str, Any]], str] = _no_note
    """What the newest texts say, in words that the texts themselves leave out, from what is asked of the player and the
    arguments of the environment; no more than the texts tell. It may have several lines. After an illegal action it
    says so; where it is empty, general words do."""
    solution: Callable[[Mapping[str, Any]], str] = _nothing
    """From the ``info`` of the last turn to what was hidden, one sentence; shown at the end and not before."""
    page: str = ""
    """What the page of `lmrl web` takes beside typing, one sentence after `action`; a terminal does not show it."""


PartnerDialogue: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""What a partner has read, ``t + 1`` texts, and what they said in between, ``t`` texts."""


@dataclass(frozen=True, slots=True)
class PartnerPrompts:
    """The prompts for models that act as the partner in a dialogue."""

    dialogue: Callable[[PartnerRequest], PartnerDialogue]
    """What a trained language model reads; its reply comes next."""
    instructions: Callable[[Mapping[str, Any]], str]
    """The system message of a chat model, from the facts that the partner knows; a `KeyError` if one is
    missing."""
    temperature: float = 0.0
    """Of sampling, where the user does not say; 0 is greedy."""
    speakers: tuple[str, ...] = ()
    """Names that a chat model writes before a line of its own."""
    others: tuple[str, ...] = ()
    """Names before lines of the other speaker, from which on an answer does not count."""
    questions: Callable[[int], Iterator[tuple[str, PartnerRequest]]] | None = None
    """From a seed to endlessly many questions that are answered by yes or no, each with the name of its group; None
    where answers are otherwise."""


class Picture:
    """How episodes of a task are drawn, in the terminal and on pages. One object is for one environment.

    The facts of an environment (`facts`) and of each state (`states`) are passed as JSON to ``PICTURES.get(kind)`` of
    `script`; ``play/templates/pictures.js`` describes its interface.

    Args:
        make: makes the environment, with the arguments that it is played with; called only by who needs it. A file may
            have chosen them: what it raises is for the caller.
    """

    kind: ClassVar[str]
    """Which entry of the page's table of pictures draws it; tasks with the same script share it."""
    script: ClassVar[str]
    """``package:file`` of the JavaScript that makes the entry."""
    style: ClassVar[str] = ""
    """``package:file`` of its style sheet."""

    def __init__(self, make: Callable[[], gymnasium.Env[str, str]]) -> None:
        self._make = make

    def facts(self) -> Mapping[str, Any]:
        """Return the facts about the environment for a docs page."""
        return {}

    def states(self, episode: Episode) -> Sequence[Any] | None:
        """Return the state before each action and at the end, beyond its texts, as ``T + 1`` entries.

        None: nothing, or it cannot be told.
        """
        return None

    def live(self, episode: Episode, hidden: bool) -> tuple[Mapping[str, Any], Sequence[Any] | None]:
        """`facts` and `states` of an episode that is being played.

        Args:
            episode: as far as it went; its ``info`` is that of the last step.
            hidden: a person plays and is not at the end: no more may be shown than the texts tell. A game whose
                pictures show more than that extends this method.
        """
        return self.facts(), self.states(episode)

    def terminal(self, request: Request) -> "Text | None":
        """A drawing above the newest text, no more than the texts tell; None: there is none."""
        return None


@dataclass(frozen=True, slots=True)
class TaskTokens:
    """Texts of a game that are one token each, for tokenizers to which they are added (`lmrl.models.tokenizer`)."""

    parts: Mapping[str, tuple[str, ...]]
    """Each text, and the names of what it is made of, e.g. a letter at its place. Its embedding begins as the sum of
    those of its parts (`lmrl.models.lm.compose_embeddings`), so that what is learned of one text holds for its kin."""
    spelling: tuple[tuple[str, str], ...] = ()
    """Regular expressions and what takes their place before a text is cut into tokens, of observations alone."""


def words_as_tokens(texts: Iterable[str], lines: Iterable[str] = ()) -> TaskTokens:
    r"""Every word of some texts is a token, with the space before it, and so are ``?`` with a line break, and lines.

    Args:
        texts: e.g. all questions that players know.
        lines: whole texts, with their line breaks, that occur again and again.
    """
    words = dict.fromkeys(word for text in texts for word in re.findall(r" ?[\w'-]+", text))
    return TaskTokens({text: (text,) for text in (*words, "?\n", *lines)})


TokensOf: TypeAlias = Callable[[Mapping[str, Any]], TaskTokens]
"""From the arguments of the environment to the texts that are one token."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The policy's actions and expected returns in states of interest."""

    run: Callable[[Policy, str, Mapping[str, Any]], Any]
    """From a greedy policy, the name of the task and the arguments of the environment to what was found."""
    to_json: Callable[[Any], dict[str, Any]]
    """Turn what was found into a JSON object."""
    from_json: Callable[[Mapping[str, Any], str], Any]
    """Turn it back; the text names the file for the `UserError` that is raised if the object is something else."""


@dataclass(frozen=True, slots=True)
class ProbePlot:
    """How what a `Probe` found is drawn in a report, one panel for each policy."""

    subject: str
    """What is drawn; part of the picture's name, ``<subject>_values_<task>.png``."""
    caption: str
    size: Callable[[Any], tuple[float, float]]
    """Width and height of a panel in inches."""
    draw: Callable[["Axes", str, Any], None]
    """Draw on the axis: the policy's name, and what was found."""

    def file_name(self, task: str) -> str:
        """Return the name of a task's picture in the report."""
        return f"{self.subject}_values_{task}.png"


def recording_seed(seed: int, index: int) -> int:
    """The seed of an episode of a dataset; far from the small numbers that evaluations use."""
    return Random(f"episode {seed} {index}").getrandbits(53)


_decided_by: ContextVar[Random | None] = ContextVar("decided_by", default=None)


def turn_chance(request: Request) -> Random:
    """A generator that follows from the episode's seed and the turn, and from nothing else.

    So a player's moves do not depend on which other episodes it plays at the same time.
    """
    return _decided_by.get() or Random(f"turn {request.seed} {request.turn}")


@contextmanager
def decided_by(chance: Random) -> Iterator[None]:
    """Inside, `turn_chance` is this generator, for calculations over all possible moves (`lmrl.data.floor`)."""
    token = _decided_by.set(chance)
    try:
        yield
    finally:
        _decided_by.reset(token)


def least_of(
    chance: Random, population: Sequence[T], cum_weights: Sequence[float], k: int, key: Callable[[T], float]
) -> T:
    """Draw `k` members with replacement and return the one with the least key; among equals, the first drawn.

    A generator that calculates over all possible moves has a method of this name, which need not try all draws.
    """
    reckoned = getattr(chance, "least_of", None)
    if reckoned is not None:
        return cast(T, reckoned(population, cum_weights, k, key))
    return min(chance.choices(population, cum_weights=cum_weights, k=k), key=key)


@dataclass(frozen=True, slots=True)
class Tuning:
    """How it is chosen how a trained policy plays a task best (`lmrl.evaluation.tuning.tune`)."""

    top_ps: tuple[float, ...] = ()
    """Nucleus sampling that is tried at temperature 1, beside the lower temperatures, which say an illegal action that
    changes nothing again and again."""
    episodes: int = 128
    """Games for each setting in `lmrl reproduce`: settings need to be told apart, not known. More where a few games
    decide the mean."""


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
    own_scale: OwnScale | None = None
    """The scale by which what is trained here is compared."""
    last_texts: int | None = None
    """How many of the newest texts (observations and actions) a policy reads; None: all."""
    tuning: Tuning = Tuning()
    """How it is chosen how it is played best."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment that make it this task."""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Texts that a data file may choose for an argument of the environment: never a path, nor what runs a program. See
    `lmrl.envs.registry.recorded_arguments`."""
    actions: tuple[str, ...] = ()
    """All legal actions where they can be listed."""
    behaviour: str = "behaviour"
    """Name of the player that recorded the dataset."""
    entropy: float | None = None
    """Mean entropy of an action of that player in nats (`lmrl data floor`), below which the loss of no clone falls; of
    a player with a temper of its own in each episode, that temper being known. None where nobody reckoned it."""
    dataset_version: int = 1
    """Goes up whenever the same size and seed give other episodes."""
    starts: tuple[Mapping[str, Any], ...] = ()
    """Reset options that evaluation cycles through; empty: seeds decide."""
    selection: tuple[Mapping[str, Any], ...] = ()
    """Likewise where checkpoints are chosen in training; empty: `starts`, which then are all that there is."""
    players: str = ""
    """Hook: scripted players by name, each made from the arguments of the environment (`lmrl.envs.task.Players`)."""
    recording: str = ""
    """Hook: the recipe of the dataset, from name and arguments to a `Recording` (`lmrl.envs.task.MakeRecording`)."""
    official: str = ""
    """Hook: how an official file is read (`lmrl.envs.official.FileFormat`)."""
    chat: str = ""
    """Hook: how the task is put to a chat model that plays (`lmrl.envs.task.ChatPrompt`)."""
    guide: str = ""
    """Hook: what a person is told who plays (`lmrl.envs.task.Guide`)."""
    partner: str = ""
    """Hook: what models are told that are the partner (`lmrl.envs.task.PartnerPrompts`)."""
    picture: str = ""
    """Hook: how an episode is drawn (a subclass of `lmrl.envs.task.Picture`)."""
    tokens: str = ""
    """Hook: which texts are one token each (`lmrl.envs.task.TokensOf`)."""
    probe: str = ""
    """Hook: what a policy does and expects in states of interest (`lmrl.envs.task.Probe`)."""
    probe_plot: str = ""
    """Hook: how that is drawn in a report (`lmrl.envs.task.ProbePlot`)."""
