"""`Task`: all that the package knows about a game besides its environment, and the records that its hooks return."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import gymnasium

from lmrl.envs.scores import OwnScale, Scores
from lmrl.types import Episode, PartnerRequest, Policy, Request, Start

__all__ = [
    "BranchingRandom", "ChatPrompt", "Guide", "MakeRecording", "PartnerDialogue", "PartnerPrompts", "PartnerQuestion",
    "Picture", "Players", "Probe", "ProbePlot", "Recording", "StartsOf", "Task", "TaskTokens", "TokensOf", "Tuning",
    "least_of", "recording_seed", "turn_chance", "words_as_tokens",
]  # fmt: skip

if TYPE_CHECKING:  # slow to import, and `import lmrl` comes here
    from matplotlib.axes import Axes
    from rich.text import Text


T = TypeVar("T")

Players: TypeAlias = Mapping[str, Callable[[Mapping[str, Any]], Policy]]
"""Scripted players by name: each is a function from the arguments of the environment to a policy. ``random``,
``behaviour`` and ``optimal`` get a column of the results table."""


@dataclass(frozen=True)
class Recording:
    """The recipe of a dataset."""

    policy: Policy
    start: Callable[[int, int], Start]
    """Start of an episode, from the seed of the dataset and the index of the episode."""
    stop: Callable[[Request], bool] | None = None
    """Asked after each turn whether to cut the episode here; it is then truncated."""


MakeRecording: TypeAlias = Callable[[str, Mapping[str, Any]], Recording]
"""A function from the name of the task and the arguments of the environment to the recipe of the dataset."""


StartsOf: TypeAlias = Callable[[Mapping[str, Any]], tuple[Mapping[str, Any], ...] | None]
"""A function from the arguments of the environment that replace those of the task to the starts of evaluation. None:
they leave `Task.starts` as it is."""


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
    """The role of the model, after "You are"."""
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
    """Number of newest texts that are shown; None: all."""
    examples: int = 1
    """Number of episodes of the dataset that are shown."""
    example_turns: int | None = None
    """Turns of each example; None: whole episodes."""
    games: int = 100
    """Episodes of an evaluation."""
    header: str = ""
    """A first observation without information, which is left out."""
    appendix: Callable[[Mapping[str, Any]], str] = _nothing
    """More rules, from the arguments of the environment."""
    spelling: Callable[[str], str] = str.strip
    """Turns an observation into the text that is shown."""
    own_spelling: Callable[[str], str] = str.strip
    """Turns an action into the text that is shown."""


def _no_note(request: Request, env: Mapping[str, Any]) -> str:
    return ""


def _no_slip(action: str, env: Mapping[str, Any]) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Guide:
    """The instructions for people who play. Policies, datasets and transcripts contain none of it."""

    rules: str
    """The game and what is rewarded, shown before the first move."""
    action: str
    """The text to type."""
    example: tuple[str, str]
    """An action, and a possible answer of the environment to it."""
    spelling: Callable[[str], str] = str
    """Turns an observation or an action into the text that people read."""
    note: Callable[[Request, Mapping[str, Any]], str] = _no_note
    """Explains the newest texts, from the request and the arguments of the environment. It must not reveal more than
    the texts do, may have several lines, and mentions an illegal action. If empty, a general sentence is shown."""
    solution: Callable[[Mapping[str, Any]], str] = _nothing
    """Names the hidden solution in one sentence, from the ``info`` of the last turn; shown only at the end."""
    slip: Callable[[str, Mapping[str, Any]], str] = _no_slip
    """Says in one sentence why an action would be wasted, from its text and the arguments of the environment. People
    are told before it is played, and play it by typing it again. Empty: play it."""
    page: str = ""
    """Other input that the page of `lmrl web` accepts, one sentence after `action`; a terminal does not show it."""


PartnerDialogue: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""The ``t + 1`` texts that a partner has read, and its ``t`` replies between them."""


@dataclass(frozen=True, slots=True)
class PartnerQuestion:
    """A question to a partner that is answered by yes or no, and the right answer."""

    group: str
    """Name of the group of questions to which it belongs."""
    request: PartnerRequest
    is_yes: bool


@dataclass(frozen=True, slots=True)
class PartnerPrompts:
    """The prompts for models that act as the partner in a dialogue."""

    dialogue: Callable[[PartnerRequest], PartnerDialogue]
    """The dialogue that a trained language model reads before its reply."""
    instructions: Callable[[Mapping[str, Any]], str]
    """The system message of a chat model, from the facts that the partner knows; a `KeyError` if one is
    missing."""
    temperature: float = 0.0
    """Default temperature of sampling; 0 is greedy."""
    speakers: tuple[str, ...] = ()
    """Names that a chat model may write before its own line."""
    others: tuple[str, ...] = ()
    """Names of the other speaker. If a chat model writes one, its answer ends there."""
    questions: Callable[[int], Iterator[PartnerQuestion]] | None = None
    """Generates, from a seed, an endless series of questions that test a partner. None if the partner's answers are not
    yes or no."""
    lessons: Callable[[int], Iterator[PartnerQuestion]] | None = None
    """Generates, from a seed, an endless series of questions from which a model learns to be the partner. None if it
    learns from dialogues alone."""


class Picture:
    """Drawings of a task's episodes, in the terminal and on pages. One object belongs to one environment.

    The facts of an environment (`facts`) and of each state (`states`) are passed as JSON to ``PICTURES.get(kind)`` of
    `script`; ``play/templates/pictures.js`` describes its interface.

    Args:
        make: makes the environment with the arguments of the episode; called only if the picture needs it. A file may
            have chosen the arguments, so the caller handles what it raises.
    """

    kind: ClassVar[str]
    """Key of the drawing function in the page's table; tasks with the same script share it."""
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
        """Return what the texts do not show of the states, ``T + 1`` entries, or None if that is nothing or unknown."""
        return None

    def live(self, episode: Episode, hidden: bool) -> tuple[Mapping[str, Any], Sequence[Any] | None]:
        """Return `facts` and `states` of an episode that is being played.

        Args:
            episode: the episode so far; its ``info`` is that of the last step.
            hidden: a person is playing and not at the end, so the picture must not show more than the texts tell. A
                game whose pictures show more extends this method.
        """
        return self.facts(), self.states(episode)

    def terminal(self, request: Request) -> "Text | None":
        """Draw what stands above the newest text, no more than the texts tell; None if there is no drawing."""
        return None


@dataclass(frozen=True, slots=True)
class TaskTokens:
    """Texts of a game that become one token each, in tokenizers to which they are added (`lmrl.models.tokenizer`)."""

    parts: Mapping[str, tuple[str, ...]]
    """Each text, and the names of its parts, e.g. a letter at a position. Its embedding is initialised as the sum of
    the embeddings of its parts (`lmrl.models.lm.compose_embeddings`), so that related texts share what is learned."""
    spelling: tuple[tuple[str, str], ...] = ()
    """Regular expressions and their replacements, applied to observations (not actions) before tokenization."""


def words_as_tokens(texts: Iterable[str], lines: Iterable[str] = ()) -> TaskTokens:
    r"""Make a token of every word of some texts (with the space before it), of ``?\n``, and of each line.

    Args:
        texts: e.g. all questions that players know.
        lines: frequent whole texts, with their line breaks.
    """
    words: dict[str, None] = {}  # a set that keeps the order
    for text in texts:
        words |= dict.fromkeys(re.findall(r" ?[\w'-]+", text))
    return TaskTokens({text: (text,) for text in (*words, "?\n", *lines)})


TokensOf: TypeAlias = Callable[[Mapping[str, Any]], TaskTokens]
"""A function from the arguments of the environment to the texts that are one token each."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A measurement of a policy's actions and expected returns in states of interest."""

    run: Callable[[Policy, str, Mapping[str, Any]], Any]
    """Measures a greedy policy, given the name of the task and the arguments of the environment."""
    to_json: Callable[[Any], dict[str, Any]]
    """Turns the result into a JSON object."""
    from_json: Callable[[Mapping[str, Any], str], Any]
    """Turns it back. The text names the file for the `UserError` that is raised if the object is something else."""


@dataclass(frozen=True, slots=True)
class ProbePlot:
    """A drawing of the results of a `Probe` in a report, one panel for each policy."""

    subject: str
    """The subject of the drawing, part of the picture's name ``<subject>_values_<task>.png``."""
    caption: str
    size: Callable[[Any], tuple[float, float]]
    """Width and height of a panel in inches."""
    draw: Callable[["Axes", str, Any], None]
    """Draws the result of the policy with the given name on an axis."""

    def file_name(self, task: str) -> str:
        """Return the name of a task's picture in the report."""
        return f"{self.subject}_values_{task}.png"


def recording_seed(seed: int, index: int) -> int:
    """Return the seed of an episode of a dataset."""
    # 53 bits, so that datasets and evaluations, which use small seeds, have no episode in common.
    return Random(f"episode {seed} {index}").getrandbits(53)


def turn_chance(request: Request) -> Random:
    """Return the generator for one decision of a scripted player.

    It is ``request.chance`` if the caller has set it. Otherwise it follows from the episode's seed and the turn alone,
    so a player's moves do not depend on which other episodes it plays at the same time.
    """
    if request.chance is not None:
        return request.chance
    return Random(f"turn {request.seed} {request.turn}")


class BranchingRandom(Random):
    """A generator that follows every outcome of a decision, instead of drawing one (`lmrl.data.floor`)."""

    def least_of(self, population: Sequence[T], cum_weights: Sequence[float], k: int, key: Callable[[T], float]) -> T:
        """Decide like the function `least_of`, but in one step instead of ``k`` draws."""
        raise NotImplementedError


def least_of(
    chance: Random, population: Sequence[T], cum_weights: Sequence[float], k: int, key: Callable[[T], float]
) -> T:
    """Draw `k` members with replacement and return the one with the least key; among equals, the first drawn."""
    # Following all k draws would give (size of the population) ** k branches.
    if isinstance(chance, BranchingRandom):
        return chance.least_of(population, cum_weights, k, key)
    return min(chance.choices(population, cum_weights=cum_weights, k=k), key=key)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Search for the best sampling settings of a trained policy (`lmrl.evaluation.tuning.tune`)."""

    top_ps: tuple[float, ...] = ()
    """Values of nucleus sampling that are tried at temperature 1, in addition to lower temperatures. Low temperatures
    repeat an illegal action for ever if it does not change the observation."""
    episodes: int = 128
    """Games for each setting in `lmrl reproduce`; enough to compare settings. More where few games decide the mean."""


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
    """The class of the environment, ``module:class``; imported when it is made."""
    max_action_tokens: int
    """Longest action of a policy, in tokens."""
    dataset_size: int = 1_000
    """Episodes in the default dataset."""
    table_row: int = 0
    """Position in the results table, for tasks of the benchmark; others follow them."""
    scores: Scores = field(default_factory=Scores)
    own_scale: OwnScale | None = None
    """The scale of our own results."""
    last_texts: int | None = None
    """Number of newest texts (observations and actions) that a policy reads; None: all."""
    tuning: Tuning = Tuning()
    """Search for the best sampling settings."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment that make it this task."""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Texts that a data file may choose for an argument of the environment: never a path, never a program. See
    `lmrl.envs.registry.recorded_arguments`."""
    actions: tuple[str, ...] = ()
    """All legal actions where they can be listed."""
    behaviour: str = "behaviour"
    """Name of the player that recorded the dataset."""
    entropy: float | None = None
    """Mean entropy of an action of that player in nats (`lmrl data floor`): a lower bound of the loss of any clone. If
    the player draws a temper for each episode, the entropy is conditional on it. None: unknown."""
    dataset_version: int = 1
    """Goes up whenever the same size and seed give other episodes."""
    starts: tuple[Mapping[str, Any], ...] = ()
    """Reset options that evaluation cycles through; empty: seeds decide."""
    selection: tuple[Mapping[str, Any], ...] = ()
    """Reset options for choosing checkpoints in training; empty: `starts`."""
    starts_of: str = ""
    """Hook: the starts of an environment with other arguments than the task's (`lmrl.envs.task.StartsOf`)."""
    players: str = ""
    """Hook: scripted players by name (`lmrl.envs.task.Players`)."""
    recording: str = ""
    """Hook: the recipe of the dataset (`lmrl.envs.task.MakeRecording`)."""
    official: str = ""
    """Hook: the format of official files (`lmrl.envs.official.FileFormat`)."""
    chat: str = ""
    """Hook: the prompt for chat models that play (`lmrl.envs.task.ChatPrompt`)."""
    guide: str = ""
    """Hook: the instructions for people who play (`lmrl.envs.task.Guide`)."""
    partner: str = ""
    """Hook: the prompts for models that act as the partner (`lmrl.envs.task.PartnerPrompts`)."""
    picture: str = ""
    """Hook: the drawing of episodes (a subclass of `lmrl.envs.task.Picture`)."""
    tokens: str = ""
    """Hook: the texts that are one token each (`lmrl.envs.task.TokensOf`)."""
    probe: str = ""
    """Hook: the measurement of policies in states of interest (`lmrl.envs.task.Probe`)."""
    probe_plot: str = ""
    """Hook: the drawing of that measurement in a report (`lmrl.envs.task.ProbePlot`)."""
