"""The only loop in which a policy meets environments: many at once, each slot refilled as soon as it is free."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, SupportsFloat, TypeAlias

import gymnasium
import numpy as np

from lmrl.envs.base import DialogueEnv, Turn
from lmrl.errors import BudgetError, UserError, counted, valid_unicode
from lmrl.types import (
    LARGEST_REWARD,
    Episode,
    LoadedPolicy,
    PartnerRequest,
    Policy,
    Reply,
    Request,
    Resettable,
    Start,
    Valued,
    ask,
    unwrapped,
)

__all__ = [
    "Failure",
    "GymEnv",
    "MakeEnv",
    "Move",
    "Piece",
    "Slot",
    "Start",
    "StepResult",
    "episode_seed",
    "evaluation_seed",
    "in_order",
    "pieces_of",
    "play_piece",
    "rollout",
    "round_seed",
    "step_together",
]

GymEnv: TypeAlias = "gymnasium.Env[str, str]"
MakeEnv: TypeAlias = Callable[[], GymEnv]

Move: TypeAlias = tuple[int, GymEnv, str]
"""Number of the slot, environment and action."""

StepResult: TypeAlias = tuple[str, SupportsFloat, bool, bool, dict[str, Any]]
"""What `gymnasium.Env.step` returns: observation, reward, terminated, truncated, info."""

_RESERVED = ("error", "group")  # keys of `Episode.info` that rollouts write; those of an environment are left out


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure in place of a step's result."""

    error: Exception
    by_partner: bool
    """True: the partner failed, also when asked again. False: the environment failed and has not been retried."""


def step_together(moves: Sequence[Move], failures: dict[int, Failure] | None = None) -> list[StepResult | None]:
    """One step of each environment; environments with the same partner ask it together.

    Args:
        moves: the actions.
        failures: if given, an environment that raises is noted here under its place, its result is None, and the
            others continue. A partner that raises is asked again, question by question.

    Returns:
        The results in the order of the moves.

    Raises:
        BudgetError: a partner's budget is used up, whatever ``failures`` is.
    """
    return _JointStep(moves, failures).results()


class _Question(NamedTuple):
    env: DialogueEnv
    request: PartnerRequest


class _JointStep:
    """Steps several environments together.

    ``env.say(action)`` returns the result or a question to the partner. ``env.hear(reply)`` returns the result or the
    next question.
    """

    def __init__(self, moves: Sequence[Move], failures: dict[int, Failure] | None) -> None:
        self._moves = moves
        self._failures = failures
        self._results: list[StepResult | None] = [None] * len(moves)
        self._open_questions: dict[int, _Question] = {}  # by place in the moves

    def results(self) -> list[StepResult | None]:
        for place, (_, env, action) in enumerate(self._moves):
            if isinstance(env, DialogueEnv):
                self._continue_step(place, env, env.say, action)
            else:
                self._results[place] = self._call_or_note_failure(place, partial(_step, env, action))
        while self._open_questions:
            # One batch: all open questions to the partner of the first one.
            partner = next(iter(self._open_questions.values())).env.partner
            batch: dict[int, _Question] = {}
            for place in list(self._open_questions):
                if self._open_questions[place].env.partner is partner:
                    batch[place] = self._open_questions.pop(place)
            replies = self._replies(batch)
            for place, question in batch.items():
                reply = replies[place]
                if reply is not None:
                    # The environment ends its step, or asks again.
                    self._continue_step(place, question.env, question.env.hear, reply)
        return self._results

    def _continue_step(
        self, place: int, env: DialogueEnv, say_or_hear: Callable[[str], Turn | PartnerRequest], text: str
    ) -> None:
        """Give a text to the environment, and note the result of its step or its next question."""
        outcome = self._call_or_note_failure(place, lambda: _checked(say_or_hear(text)))
        if isinstance(outcome, PartnerRequest):
            slot, _, _ = self._moves[place]
            self._open_questions[place] = _Question(env, replace(outcome, slot=slot))
        elif outcome is not None:
            self._results[place] = outcome

    def _replies(self, batch: dict[int, _Question]) -> dict[int, str | None]:
        """Return the common partner's reply to each question; None where it fails twice."""
        partner = next(iter(batch.values())).env.partner
        try:
            replies = ask(partner, [question.request for question in batch.values()])
        except BudgetError:
            raise
        except Exception:
            if self._failures is None:
                raise
        else:
            return dict(zip(batch, replies, strict=True))
        # One question may be at fault, so ask each question alone.
        alone: dict[int, str | None] = {}
        for place, question in batch.items():
            reply = self._call_or_note_failure(place, partial(ask, partner, [question.request]), by_partner=True)
            alone[place] = None if reply is None else reply[0]
        return alone

    def _call_or_note_failure(self, place: int, call: Callable[[], Any], by_partner: bool = False) -> Any:
        """Call a function. If it fails, note the error and return None; without `failures`, raise the error."""
        try:
            return call()
        except BudgetError:
            raise
        except Exception as error:
            if self._failures is None:
                raise
            self._failures[place] = Failure(error, by_partner)
            return None


def _step(env: GymEnv, action: str) -> StepResult:
    result = _checked(env.step(action))
    assert not isinstance(result, PartnerRequest)
    return result


def _checked(outcome: StepResult | PartnerRequest) -> StepResult | PartnerRequest:
    """Return the environment's answer with a text that every file can hold.

    Raises:
        UserError: the reward is no finite number of float32.
    """
    if isinstance(outcome, PartnerRequest):
        return outcome
    text, given, terminated, truncated, info = outcome
    try:
        reward = float(given)
    except OverflowError:  # a whole number of hundreds of digits
        reward = math.inf
    # It is refused at its turn, since no file of episodes can hold it. NaN fails the comparison too.
    if not abs(reward) <= LARGEST_REWARD:
        raise UserError(f"the reward of a step must be a finite number (of float32), got {reward!r}")
    return valid_unicode(text), reward, terminated, truncated, info


@dataclass(slots=True)
class Slot:
    """One environment and the episode that it is playing."""

    env: GymEnv
    index: int
    order: int = 0
    start: Start = field(default_factory=lambda: Start(0))
    observations: list[str] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    illegal: int = 0

    def begin(self, order: int, start: Start) -> None:
        self.order = order
        self.start = start
        self.illegal = 0
        self.observations = [""]  # stays if the environment fails, since an episode has one observation at least
        self.replies = []
        self.rewards = []
        self.info = {}
        self.observations[0], self.info = self._reset()

    def _reset(self) -> tuple[str, dict[str, Any]]:
        options = self.start.options
        seed = self.start.seed
        text, info = self.env.reset(seed=seed, options=None if options is None else dict(options))
        if not text:
            raise UserError(
                f"{type(self.env).__name__} begins the episode with seed {seed} with an empty text: an environment has "
                "to say something before the first action (lmrl check-env tests it)"
            )
        return valid_unicode(text), info

    def request(self) -> Request:
        return Request(
            slot=self.index,
            seed=self.start.seed,
            observations=self.observations,
            actions=[reply.text for reply in self.replies],
            action_ids=[reply.ids for reply in self.replies],
            info=self.info,
        )

    def renew(self, make_env: MakeEnv) -> None:
        """Make a new environment and repeat the actions of the episode in it.

        Raises:
            UserError: its observations differ from those of the old one.
        """
        with suppress(Exception):  # it has failed already
            self.env.close()
        self.env = make_env()
        has_begun = self.observations[0] != ""
        text, self.info = self._reset()
        for turn, observation in enumerate(self.observations):
            if has_begun and text != observation:
                raise UserError(f"the environment does not repeat itself: turn {turn} of seed {self.start.seed}")
            if turn < len(self.replies):
                text, _, _, _, self.info = _step(self.env, self.replies[turn].text)
        self.observations[-1] = text  # differs only if the old environment failed to begin

    def record_step(self, reply: Reply, result: StepResult) -> tuple[bool, bool]:
        text, reward, terminated, truncated, self.info = result
        self.observations.append(text)
        self.replies.append(reply)
        self.rewards.append(float(reward))
        self.illegal += bool(self.info.get("illegal", False))
        return terminated, truncated

    def episode(self, task: str, terminated: bool, truncated: bool) -> Episode:
        actions = []
        ids = []
        logprobs = []
        values = []
        for reply in self.replies:
            actions.append(reply.text)
            ids.append(reply.ids)
            logprobs.append(reply.logprobs)
            values.append(reply.values)
        # Empty where the policy has no tokens or no value head.
        sampled = any(ids)
        valued = any(values)
        info = {name: value for name, value in self.info.items() if name not in _RESERVED}
        return Episode(
            task=task,
            observations=tuple(self.observations),
            actions=tuple(actions),
            rewards=tuple(self.rewards),
            terminated=terminated,
            truncated=truncated,
            seed=self.start.seed,
            info={**info, "illegal": self.illegal, "success": bool(self.info.get("success", False))},
            action_ids=tuple(ids) if sampled else (),
            action_logprobs=tuple(logprobs) if sampled else (),
            action_values=tuple(values) if valued else (),
        )


def episode_seed(*key: int) -> int:
    """31 bits that differ between neighbouring keys: seed 1 is not seed 0 shifted by one episode."""
    return int(np.random.SeedSequence(key).generate_state(1)[0] >> 1)


# The fourth number of a key keeps rounds and evaluations for selection apart from reported evaluations, which have the
# shortest keys. It is never 0: SeedSequence ignores trailing zeros.
_SEEDS_OF_ROUNDS = 1
_SEEDS_OF_SELECTION = 2


def evaluation_seed(seed: int, index: int, selection: bool) -> int:
    """Return the seed of an episode of an evaluation.

    Args:
        seed: seed of the evaluation.
        index: number of the episode.
        selection: whether the evaluation chooses a checkpoint or settings. It shares no episode with others.
    """
    if not selection:
        return episode_seed(seed, index)
    # The 0 fills the third place, so that the purpose is the fourth number, as in `round_seed`. Keys of three numbers
    # belong to `lmrl.integrations`.
    return episode_seed(seed, index, 0, _SEEDS_OF_SELECTION)


def round_seed(seed: int, round_number: int, index: int, member: int | None = None) -> int:
    """Return the seed of an episode of a round.

    Args:
        seed: seed of the rounds.
        round_number: number of the round.
        index: number of the episode, or of its group.
        member: number of the episode within its group; None: the seed by which the group itself begins.
    """
    key = (seed, round_number, index, _SEEDS_OF_ROUNDS)
    # Members count from 1: a key that ends in 0 would be that of the group.
    return episode_seed(*key) if member is None else episode_seed(*key, 1 + member)


def rollout(
    policy: Policy | LoadedPolicy,
    make_env: MakeEnv,
    starts: Iterable[Start],
    *,
    task: str,
    slots: int = 32,
    stop: Callable[[Request], bool] | None = None,
    forgiving: bool = False,
    on_turns: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Episode]]:
    """Play one episode per start and yield ``(index of the start, episode)`` as episodes finish.

    What the policy and a partner have kept from before is forgotten first (`lmrl.types.Resettable`).

    Args:
        policy: acts once per round for all waiting environments.
        make_env: makes one environment; called at most ``slots`` times, and once more for each that fails.
        starts: seeds and reset options, consumed lazily, so it may be endless.
        task: name written into the episodes.
        slots: how many environments run in parallel.
        stop: a recorder's own rule: an episode for which it is true ends there as truncated.
        forgiving: errors of an environment or partner are not raised. It is tried once more (a new environment,
            brought to the same point), and if it fails again, the episode ends after its last observation as
            truncated, with the message as ``info["error"]``. An episode that could not begin has no turn.
        on_turns: called after each round with the number of turns that were played in it.
    """
    pool = _SlotPool(make_env, enumerate(starts), slots, task, forgiving)
    policy = unwrapped(policy)
    if isinstance(policy, Resettable):
        policy.reset()
    try:
        while True:
            yield from pool.fill()
            if not pool.busy:
                return
            num_turns = len(pool.busy)
            ended = pool.play(policy, stop)
            if on_turns is not None:
                on_turns(num_turns)
            yield from ended
    finally:
        pool.close()


class _SlotPool:
    """The slots of a rollout: those with an episode in it, and those that are free."""

    def __init__(
        self, make_env: MakeEnv, waiting: Iterator[tuple[int, Start]], slots: int, task: str, forgiving: bool
    ) -> None:
        self._make_env = make_env
        self._waiting = waiting
        self._slots = slots
        self._task = task
        self._failures: dict[int, Failure] | None = {} if forgiving else None
        self._all: list[Slot] = []
        self._free: list[Slot] = []
        self.busy: list[Slot] = []

    def fill(self) -> Iterator[tuple[int, Episode]]:
        """Begin episodes until all slots are busy; those that cannot begin have ended."""
        while len(self.busy) < self._slots:
            item = next(self._waiting, None)
            if item is None:
                return
            order, start = item
            slot = self._free.pop() if self._free else self._new()
            error = _begin(slot, order, start, self._make_env, self._failures is not None)
            if error is None:
                self.busy.append(slot)
            else:
                self._free.append(slot)
                yield slot.order, _aborted(slot, self._task, error)

    def _new(self) -> Slot:
        env = self._make_env()
        # All that are made share one partner.
        if not self._all and isinstance(env, DialogueEnv) and isinstance(env.partner, Resettable):
            env.partner.reset()
        self._all.append(Slot(env, len(self._all)))
        return self._all[-1]

    def play(self, policy: Policy, stop: Callable[[Request], bool] | None) -> list[tuple[int, Episode]]:
        """One turn in every busy slot; return the episodes that it has ended."""
        requests = [slot.request() for slot in self.busy]
        replies = [_with_valid_text(reply) for reply in policy.act(requests)]
        if len(replies) != len(self.busy):
            raise UserError(
                f"the policy {type(policy).__name__} must return one reply for each request: for "
                f"{counted(len(self.busy), 'request')} it returned {len(replies)}"
            )
        moves = []
        for slot, reply in zip(self.busy, replies, strict=True):
            moves.append((slot.index, slot.env, reply.text))
        results = step_together(moves, self._failures)

        ended: list[tuple[Slot, Episode]] = []
        still_busy = []
        for place, slot in enumerate(self.busy):
            result: StepResult | Exception | None = results[place]
            if result is None:
                assert self._failures is not None
                result = _retried(slot, replies[place], self._failures.pop(place), self._make_env)
            episode = self._record_step(slot, replies[place], result, stop)
            if episode is None:
                still_busy.append(slot)
            else:
                self._free.append(slot)
                ended.append((slot, episode))
        self.busy = still_busy

        values = _final_values(policy, ended)
        return [(slot.order, replace(episode, final_value=values.get(slot.index))) for slot, episode in ended]

    def _record_step(
        self, slot: Slot, reply: Reply, result: StepResult | Exception, stop: Callable[[Request], bool] | None
    ) -> Episode | None:
        """Add a step to the episode in a slot; return the episode if this step was its last, else None."""
        if isinstance(result, Exception):
            return _aborted(slot, self._task, result)
        terminated, truncated = slot.record_step(reply, result)
        if not (terminated or truncated) and stop is not None and stop(slot.request()):
            truncated = True
        return slot.episode(self._task, terminated, truncated) if terminated or truncated else None

    def close(self) -> None:
        """Close every environment."""
        for slot in self._all:
            slot.env.close()


def _with_valid_text(reply: Reply) -> Reply:
    """A reply with a text that every file can hold."""
    text = valid_unicode(reply.text)
    return reply if text == reply.text else replace(reply, text=text)


def _final_values(policy: Policy, ended: Sequence[tuple[Slot, Episode]]) -> dict[int, float]:
    """V after the last observation, by slot, of the episodes that were cut short."""
    # Read now, while the policy still holds what it has read of these episodes.
    requests = []
    for slot, episode in ended:
        if episode.terminated or not episode.truncated or not episode.action_values:
            continue
        # The observation that the game would have given if it had not ended.
        request = slot.request()
        last = episode.final_observation
        if last:  # an empty text may leave nothing to read
            requests.append(replace(request, observations=[*request.observations[:-1], last]))
    if not requests or not isinstance(policy, Valued):
        return {}
    values = policy.state_values(requests)
    return {request.slot: float(value) for request, value in zip(requests, values, strict=True)}


def _begin(slot: Slot, order: int, start: Start, make_env: MakeEnv, forgiving: bool) -> Exception | None:
    """Begin an episode, in a new environment if the old one fails; return the error of both."""
    try:
        slot.begin(order, start)
    except Exception:
        if not forgiving:
            raise
        try:
            slot.renew(make_env)
        except Exception as error:
            return error
    return None


def _retried(slot: Slot, reply: Reply, failure: Failure, make_env: MakeEnv) -> StepResult | Exception:
    """Repeat a failed step in a new environment; return its result, or the error if it fails again."""
    if failure.by_partner:  # it has been asked twice
        return failure.error
    try:
        slot.renew(make_env)
        return _step(slot.env, reply.text)
    except Exception as error:
        return error


def _aborted(slot: Slot, task: str, error: Exception) -> Episode:
    """Return the episode up to the step that failed twice."""
    episode = slot.episode(task, terminated=False, truncated=True)
    return replace(episode, info={**episode.info, "error": f"{type(error).__name__}: {error}"})


def in_order(results: Iterable[tuple[int, Episode]]) -> list[Episode]:
    """All episodes of a rollout, in the order of their starts."""
    return [episode for _, episode in sorted(results, key=lambda item: item[0])]


class Piece(NamedTuple):
    """Episodes that were played together, as a part of a round."""

    episodes: list[Episode]
    """In the order of their starts."""
    calls: int
    """How often the policy was asked."""
    turns: int
    tokens: int
    """Number of tokens that the policy sampled."""


class _CountedPolicy:
    """Wraps a policy and counts its calls; it has state values if the policy has them."""

    state_values: Callable[[Sequence[Request]], Sequence[float]]

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        if isinstance(policy, Valued):
            self.state_values = policy.state_values
        self.calls = 0
        self.turns = 0
        self.tokens = 0

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        replies = self._policy.act(requests)
        self.calls += 1
        self.turns += len(requests)
        for reply in replies:
            self.tokens += len(reply.ids)
        return replies

    def reset(self) -> None:
        if isinstance(self._policy, Resettable):
            self._policy.reset()


def pieces_of(starts: Sequence[Start], size: int) -> list[Sequence[Start]]:
    """Split the starts into pieces of the given size; the last one may be smaller."""
    return [starts[first : first + size] for first in range(0, len(starts), size)]


def play_piece(policy: Policy, make_env: MakeEnv, starts: Sequence[Start], task: str, slots: int) -> Piece:
    """Play the episodes of some starts; an episode whose game or partner fails twice ends there."""
    counting_policy = _CountedPolicy(policy)
    episodes = in_order(rollout(counting_policy, make_env, starts, task=task, slots=slots, forgiving=True))
    return Piece(episodes, counting_policy.calls, counting_policy.turns, counting_policy.tokens)
