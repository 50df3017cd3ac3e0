"""What a game may bring beside its environment: the types of the hooks of a `lmrl.envs.task.Task`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import gymnasium

from lmrl.envs.task import Recording
from lmrl.types import Episode, PartnerRequest, Policy, Request

if TYPE_CHECKING:  # slow to import, and `import lmrl` comes here
    from matplotlib.axes import Axes
    from rich.text import Text

__all__ = [
    "ChatPrompt",
    "MakeRecording",
    "PartnerDialogue",
    "PartnerPrompts",
    "Picture",
    "Players",
    "Probe",
    "ProbePlot",
]

Players: TypeAlias = Mapping[str, Callable[[Mapping[str, Any]], Policy]]
"""Scripted players by name, each from the arguments of the environment to a policy; ``random``, ``behaviour`` and
``optimal`` get a column of the results table."""

MakeRecording: TypeAlias = Callable[[str, Mapping[str, Any]], Recording]
"""From the name of the task and the arguments of the environment to the recipe of the dataset."""


def _nothing(env: Mapping[str, Any]) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """How a task is put to a chat model that plays it.

    Where the paper's code says how its GPT-4 baselines were asked (Abdulhai et al. 2025, appendix; scripts
    ``*/gpt4/*``), the temperature, how much of the past is shown, the examples and the form of the reply are theirs.
    Else the temperature is the endpoint's usual one, 1, and one example is shown.
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


PartnerDialogue: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""What a second speaker has read, ``t + 1`` texts, and what they said in between, ``t`` texts."""


@dataclass(frozen=True, slots=True)
class PartnerPrompts:
    """What models are told that are the second speaker of a dialogue."""

    dialogue: Callable[[PartnerRequest], PartnerDialogue]
    """What a trained language model reads; its reply comes next."""
    instructions: Callable[[Mapping[str, Any]], str]
    """The system message of a chat model, from the facts that the second speaker knows; a `KeyError` if one is
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

    What a page knows of an environment (`facts`) and of each state (`states`) goes as JSON to ``PICTURES.get(kind)`` of
    `script`; see ``report/templates/pictures.js`` for what that must be.

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
        """What a page must know of the environment."""
        return {}

    def states(self, episode: Episode) -> Sequence[Any] | None:
        """What must be known beyond the texts of the state before each action and at the end, ``T + 1`` entries.

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
class Probe:
    """What a policy does, and what it expects to earn, in states of interest."""

    run: Callable[[Policy, str, Mapping[str, Any]], Any]
    """From a greedy policy, the name of the task and the arguments of the environment to what was found."""
    write: Callable[[Any, Path], None]
    """Write what was found as JSON."""
    read: Callable[[Path], Any]
    """Read it; a `UserError` that names the file, if it holds something else."""


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
        """Of a task's picture in the report."""
        return f"{self.subject}_values_{task}.png"
