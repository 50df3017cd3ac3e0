"""What players and second speakers look like to everyone above: plain records and two Protocols."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

__all__ = ["Described", "Partner", "PartnerRequest", "Policy", "Reply", "Request"]


@dataclass(frozen=True, slots=True)
class Request:
    r"""One environment asks its player for the next action.

    A request holds the whole episode so far, so that a policy needs no memory of its own; a policy
    that keeps a cache per slot may compare and feed only what is new.

    Example: the second turn of an episode in slot 3::

        Request(slot=3, seed=7, observations=("at 1, 1\n", "at 1, 2\n"), actions=("move right\n",))
    """

    slot: int
    """Which of the parallel environments asks, from 0; it stays the same for a whole episode."""
    seed: int
    """Seed of the episode. All randomness of a reply follows from the seed and the turn."""
    observations: Sequence[str]
    """What the environment said, ``t + 1`` texts at turn ``t``."""
    actions: Sequence[str] = ()
    """What the policy said, ``t`` texts."""
    action_ids: Sequence[tuple[int, ...]] = ()
    """The token ids of those actions as they were sampled (empty tuples if the policy has no tokens)."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """The environment's ``info`` with the newest observation (scripted players may look at it)."""

    @property
    def turn(self) -> int:
        """Number of actions taken so far."""
        return len(self.actions)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a policy says in answer to one `Request`."""

    text: str
    """The action, as the environment receives it."""
    ids: tuple[int, ...] = ()
    """Token ids of the action exactly as sampled; empty for players without tokens."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each id under the very distribution it was sampled from."""
    values: tuple[float, ...] = ()
    """V of the state in which each id was sampled, for policies with a value head."""


@runtime_checkable
class Policy(Protocol):
    """Anything that plays. `act` gets one request per waiting environment and answers in that order."""

    def act(self, requests: Sequence[Request]) -> list[Reply]: ...


@runtime_checkable
class Described(Protocol):
    """A policy that says what it was made with, and what became of it: evaluations ask when all is played."""

    def describe(self) -> dict[str, Any]:
        """JSON-like: part of every score."""
        ...


@dataclass(frozen=True, slots=True)
class PartnerRequest:
    r"""An environment asks its second speaker (an oracle, a buyer) for what it says next.

    Like a `Request` it holds the whole dialogue, so that a partner needs no memory of its own.

    Example: the second question of an episode about a hidden apple::

        PartnerRequest(
            task="twenty_questions",
            facts={"word": "Apple"},
            heard=("Is it alive?\n", "Is it a fruit?\n"),
            said=("No.\n",),
            seed=7,
        )
    """

    task: str
    """Which game is played: it decides what `facts` are."""
    facts: Mapping[str, Any]
    """What the second speaker knows and the player does not: the hidden word, the buyer's profile."""
    heard: Sequence[str]
    """What the player said, oldest first; never empty, the newest is to be answered."""
    said: Sequence[str]
    """What the second speaker said to all but the newest (and, with `begin`, to that one too)."""
    seed: int
    """Seed of the episode. All randomness of an answer follows from the seed and the number of texts."""
    begin: str = ""
    """What the reply is to begin with, where the game needs an answer of a certain form."""
    slot: int = 0
    """Which of the parallel environments asks; it stays the same for a whole episode."""


@runtime_checkable
class Partner(Protocol):
    """The second speaker of a game. `reply` gets one request per waiting environment and answers in that order."""

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """One text for each request; any text is one that the environment can deal with."""
        ...

    def describe(self) -> dict[str, Any]:
        """Name, version and settings, JSON-like: part of every episode and score."""
        ...
