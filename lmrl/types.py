"""The records that pass between environments, policies, partners and files.

`Episode`, `Request`, `Reply`, `Policy`, `Partner`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, TypeVar, runtime_checkable

from lmrl.errors import UserError, counted, in_one_line

__all__ = [
    "LARGEST_REWARD", "Described", "Episode", "Partner", "PartnerRequest", "Policy", "Reply", "Request", "Resettable",
    "Start", "Valued",
]  # fmt: skip

LARGEST_REWARD = 3.4e38
"""The largest size of a reward: models are trained in float32, which holds no larger number."""


def _short(text: str) -> str:
    """A text in quotes, cut if it is long."""
    return in_one_line(repr(text), 80)


@dataclass(frozen=True, slots=True)
class Episode:
    r"""The texts and rewards of an episode, and how it ended.

    Example: two turns, the second reaches the goal::

        Episode(
            task="maze_fo",
            observations=("... position 6, 6 ...\n", "... position 7, 6 ...\n", "Success\n"),
            actions=("move down\n", "move down\n"),
            rewards=(-1.0, 0.0),
            terminated=True,
            truncated=False,
            seed=0,
            info={"success": True},
        )
    """

    task: str
    observations: tuple[str, ...]
    """``T + 1`` texts of the environment; the last one follows the last action."""
    actions: tuple[str, ...]
    """``T`` texts of the policy."""
    rewards: tuple[float, ...]
    """``T`` rewards, one per action."""
    terminated: bool
    """The rules ended it: the value beyond is zero."""
    truncated: bool
    """It was cut short: the state after the last observation still has a value, from which learning bootstraps."""
    seed: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)
    """JSON-like extras; ``success`` (bool) and ``illegal`` (number of illegal actions) where known."""
    action_ids: tuple[tuple[int, ...], ...] = ()
    """Token ids of each action as sampled (``T`` tuples), or empty where nothing was sampled."""
    action_logprobs: tuple[tuple[float, ...], ...] = ()
    """Log-probabilities that belong to `action_ids`; of dialogues of your own, the sum of each action alone."""
    action_values: tuple[tuple[float, ...], ...] = ()
    """V of the states in which those ids were sampled, where the policy had a value head."""
    final_value: float | None = None
    """V of the state after the last observation (or after ``info["final_observation"]``, if given), where the episode
    was cut short and the policy had a value head."""

    def __post_init__(self) -> None:
        turns = len(self.actions)
        if len(self.observations) != turns + 1 or len(self.rewards) != turns:
            raise UserError(
                f"an episode of {turns} actions needs {turns + 1} observations and {turns} rewards, "
                f"got {len(self.observations)} and {len(self.rewards)}"
            )
        for name in ("action_ids", "action_logprobs", "action_values"):
            if len(getattr(self, name)) not in (0, turns):
                raise UserError(
                    f"{name} must be empty or have one entry per action ({turns}), got {len(getattr(self, name))}"
                )

    def __repr__(self) -> str:
        """One line, without the texts."""
        ending = "not ended"
        if self.terminated:
            ending = "terminated"
        elif self.truncated:
            ending = "truncated"
        summary = f"{counted(len(self), 'turn')}, return {self.total_reward:g}, {ending}"
        if self.success:
            summary += ", success"
        return f"<Episode of {in_one_line(self.task, 60)}: {summary}, seed {self.seed}>"

    def __len__(self) -> int:
        """Number of turns."""
        return len(self.actions)

    @property
    def total_reward(self) -> float:
        """The undiscounted return."""
        return float(sum(self.rewards))

    @property
    def success(self) -> bool:
        """Whether the task was solved."""
        # A metric of its own, and not reward > 0: some games reward every turn.
        return bool(self.info.get("success", False))

    @property
    def final_observation(self) -> str:
        """The text that the policy would have read next: ``info["final_observation"]``, or the last observation."""
        text = self.info.get("final_observation")
        return text if isinstance(text, str) else self.observations[-1]

    @property
    def aborted(self) -> bool:
        """Whether an error of the environment or partner ended it (`lmrl.rollout.rollout`): its return is partial."""
        return self.truncated and not self.terminated and "error" in self.info

    @property
    def illegal(self) -> int:
        """The number of illegal actions."""
        return int(self.info.get("illegal", 0))


@dataclass(frozen=True, slots=True)
class Request:
    r"""One environment asks the policy for the next action.

    A request holds the whole episode so far, so that a policy needs no memory of its own; a policy
    that keeps a cache per slot may compare and feed only what is new. Making one whose numbers of texts do not fit
    together raises a `UserError`.

    Example: the second turn of an episode in slot 3::

        Request(slot=3, seed=7, observations=("at 1, 1\n", "at 1, 2\n"), actions=("move right\n",))
    """

    slot: int
    """Which of the parallel environments asks, from 0; it stays the same for a whole episode."""
    seed: int
    """Seed of the episode. All randomness of a reply follows from the seed and the turn."""
    observations: Sequence[str]
    """The observations, ``t + 1`` texts at turn ``t``."""
    actions: Sequence[str] = ()
    """The actions of the policy, ``t`` texts."""
    action_ids: Sequence[tuple[int, ...]] = ()
    """The token ids of those actions as they were sampled (empty tuples if the policy has no tokens)."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """The environment's ``info`` with the newest observation (scripted players may look at it)."""
    chance: Random | None = None
    """Generator that a scripted player draws from; None: the one that follows from seed and turn, see
    `lmrl.envs.task.turn_chance`."""

    def __post_init__(self) -> None:
        turns = len(self.actions)
        if len(self.observations) != turns + 1:
            raise UserError(
                f"a request after {counted(turns, 'action')} needs {counted(turns + 1, 'observation')}, "
                f"got {len(self.observations)}"
            )
        if len(self.action_ids) not in (0, turns):
            raise UserError(
                f"action_ids of a request must be empty or have one entry per action ({turns}), "
                f"got {len(self.action_ids)}"
            )

    def __repr__(self) -> str:
        """One line: slot, seed and turn, and the newest text."""
        return f"<Request of slot {self.slot}, seed {self.seed}, turn {self.turn}: {_short(self.observations[-1])}>"

    @property
    def turn(self) -> int:
        """Number of actions taken so far."""
        return len(self.actions)


@dataclass(frozen=True, slots=True)
class Reply:
    """A policy's answer to one `Request`."""

    text: str
    """The action, as the environment receives it."""
    ids: tuple[int, ...] = ()
    """Token ids of the action exactly as sampled; empty for policies without tokens."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each id under the very distribution it was sampled from."""
    values: tuple[float, ...] = ()
    """V of the state in which each id was sampled, for policies with a value head."""

    def __repr__(self) -> str:
        """One line: the text, and how many tokens it has."""
        return f"<Reply {_short(self.text)}{f', {len(self.ids)} tokens' if self.ids else ''}>"


@runtime_checkable
class Policy(Protocol):
    """Anything that acts. `act` gets one request per waiting environment and answers in that order."""

    def act(self, requests: Sequence[Request]) -> list[Reply]: ...


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy with what it was made from. `lmrl.load_policy` returns one; `lmrl.evaluate` and rollouts take it."""

    policy: Policy
    module: Any = None
    """The `lmrl.modules.LanguageModule` that the policy plays with; None of policies that lmrl did not train."""
    weights: str | None = None
    """Hash of the weights of its run, for the provenance of scores; None if they have none."""


T = TypeVar("T")


def unwrapped(policy: "T | LoadedPolicy") -> "T | Policy":
    """Return the policy in the result of `lmrl.load_policy`, and anything else as it is."""
    return policy.policy if isinstance(policy, LoadedPolicy) else policy


@runtime_checkable
class Valued(Protocol):
    """A policy that estimates the value of states."""

    def state_values(self, requests: Sequence[Request]) -> Sequence[float]:
        """V of the state in which each request asks: the return that is expected from there on."""
        ...


@runtime_checkable
class Resettable(Protocol):
    """A policy or partner that keeps a cache from one call to the next, such as keys and values of what it has read.

    The cache changes nothing but the last bits of numbers: a prefix that was read before is not read again, so other
    tokens are added up together. `lmrl.rollout.rollout` begins with a reset, so that its episodes are the same bit by
    bit, whatever was played before.
    """

    def reset(self) -> None:
        """Empty the cache."""
        ...


@runtime_checkable
class Described(Protocol):
    """A policy that describes its settings and state: an evaluation calls `describe` after its last episode."""

    def describe(self) -> dict[str, Any]:
        """JSON-like: part of every score."""
        ...


@dataclass(frozen=True, slots=True)
class PartnerRequest:
    r"""An environment asks its partner (an oracle, a buyer) for its next text.

    Like a `Request` it holds the whole dialogue, so that a partner needs no memory of its own.

    Example: the second question of an episode about a hidden apple::

        PartnerRequest(
            task="guess_object",
            facts={"word": "Apple"},
            heard=("Is it alive?\n", "Is it a fruit?\n"),
            said=("No.\n",),
            seed=7,
        )
    """

    task: str
    """Which game is played: it decides what `facts` are."""
    facts: Mapping[str, Any]
    """What the partner knows and the policy does not: the hidden word, the buyer's profile."""
    heard: Sequence[str]
    """The policy's texts, oldest first; never empty, the partner answers the newest."""
    said: Sequence[str]
    """The partner's answers to all but the newest (and, with `begin`, to that one too)."""
    seed: int
    """Seed of the episode. All randomness of an answer follows from the seed and the number of texts."""
    begin: str = ""
    """The beginning of the reply, where the game needs an answer of a certain form."""
    slot: int = 0
    """Which of the parallel environments asks; it stays the same for a whole episode."""

    def __repr__(self) -> str:
        """One line: the task and the newest text, but not what the partner knows."""
        newest = _short(self.heard[-1] if self.heard else "")
        return f"<PartnerRequest of {in_one_line(self.task, 60)}, seed {self.seed}, text {len(self.heard)}: {newest}>"


@runtime_checkable
class Partner(Protocol):
    """The partner of a game. `reply` gets one request per waiting environment and answers in that order."""

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """One text for each request; any text is one that the environment can deal with."""
        ...

    def describe(self) -> dict[str, Any]:
        """Name, version and settings, JSON-like: part of every episode and score."""
        ...


def ask(partner: Partner, requests: Sequence[PartnerRequest]) -> list[str]:
    """Return the partner's reply to each request.

    Raises:
        UserError: the partner returns another number of replies.
    """
    replies = list(partner.reply(requests))
    if len(replies) != len(requests):
        raise UserError(
            f"the partner {type(partner).__name__} must return one reply for each request: for "
            f"{counted(len(requests), 'request')} it returned {len(replies)}"
        )
    return replies


@dataclass(frozen=True, slots=True)
class Start:
    """How an episode begins: its seed and the options of ``reset``."""

    seed: int
    options: Mapping[str, Any] | None = None
