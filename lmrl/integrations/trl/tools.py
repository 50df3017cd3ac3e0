"""Moves as calls of a tool in TRL's `GRPOTrainer`: environments whose only tool is the next move; their return."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from lmrl import partners
from lmrl.envs.base import TextEnv
from lmrl.envs.outside import named_task
from lmrl.envs.registry import chat_prompt, task
from lmrl.envs.task import ChatPrompt
from lmrl.errors import UserError
from lmrl.policies.chat.policy import transcript
from lmrl.rollout import Slot, StepResult, step_together
from lmrl.types import Episode, Reply, Start

__all__ = [
    "GAME_OVER",
    "TaskEnvironment",
    "answer",
    "environment_factory",
    "episode_return",
    "finish",
    "opening",
    "take_turns",
]

_MOST_EMPTY_TURNS = 1_000  # more than any task of the benchmark has turns

GAME_OVER = "The game is over."
"""The last line of the last answer: texts of games do not say so themselves."""


class TaskEnvironment:
    """A game in the form that `trl.GRPOTrainer` wants; see `environment_factory`.

    All public methods but `reset` become tools of the model, so there is `act` alone.

    Args:
        name: name of the task.
        make_env: makes the environment (`lmrl.partners.environment`).
    """

    def __init__(self, name: str, make_env: Callable[[], TextEnv]) -> None:
        self._name = name
        self._make_env = make_env
        self._slot = Slot(make_env(), 0)
        self._end = (False, False)

    def reset(self, seed: int | None = None, **columns: Any) -> str:
        """Begin the episode of a row of the dataset.

        Args:
            seed: seed of the episode; the same seed is the same start.
            columns: the rest of the row, not used.

        Returns:
            The first text, which TRL puts behind the last message of the prompt.

        Raises:
            UserError: the row has no seed, or one that is no natural number.
        """
        if seed is None:
            raise UserError(
                "a row needs a column 'seed', so that all generations of a prompt begin alike; "
                f"got the columns {', '.join(columns) or 'none'}"
            )
        self._slot.begin(0, Start(seed))
        self._end = (False, False)
        return opening(self._name, self._slot.observations[0])

    def act(self, action: str) -> str:
        """Make the next move of the game.

        Args:
            action: What you do or say now, on one line and in the form that the rules ask for.

        Returns:
            What the game answers.
        """
        # TRL shows the error to the model and counts it as a failed call. The game does not take a turn.
        if not isinstance(action, str):
            raise UserError(f"action must be a text, got {action!r}")
        self._play(f"{' '.join(action.split())}\n")
        return answer(self._name, self._slot.observations[-1], self.done)

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return any(self._end)

    @property
    def reward(self) -> float:
        """The undiscounted return so far."""
        return float(sum(self._slot.rewards))

    @property
    def episode(self) -> Episode:
        """Return the episode since `reset`, truncated if it has not ended."""
        terminated, truncated = self._end
        return self._slot.episode(self._name, terminated, truncated or not terminated)

    # Private, because TRL makes a tool of every public method.
    def _play(self, action: str) -> None:
        try:
            result = self._slot.env.step(action)
        except Exception:
            if self._slot.observations and not self.done:
                self._take_back()
            raise
        self._record(Reply(action), result)

    def _take_back(self) -> None:
        """Replay the episode in a new environment: if a partner failed, the old one may be half a turn further."""
        try:
            self._slot.renew(self._make_env)
        except Exception:
            self._end = (False, True)  # the game cannot be brought back to where it was

    def _record(self, reply: Reply, result: StepResult) -> None:
        self._end = self._slot.record_step(reply, result)

    def _finish(self) -> None:
        """Say nothing until the episode is over, or a game that ends by no clock has heard enough."""
        for _ in range(_MOST_EMPTY_TURNS):
            if self.done:
                return
            self._play("\n")


def environment_factory(name: str, **env: Any) -> Callable[[], TaskEnvironment]:
    """Return a factory for ``GRPOTrainer(environment_factory=...)``, alone or as a value of its dictionary.

    Args:
        name: name of a task, of the benchmark or registered, ``openenv:URL`` or ``textarena:NAME``.
        env: arguments of the environment that replace those of the task. All games share one ``partner``, which may be
            a name.

    Raises:
        UserError: for an unknown task or partner.
    """
    named_task(name)
    return partial(TaskEnvironment, name, partners.environment(name, env))


def episode_return(
    environments: Sequence[TaskEnvironment],
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,
) -> list[float]:
    """A reward function of `GRPOTrainer`: the undiscounted return of each episode.

    A model that stopped calling its tool, or had no tokens left, plays empty lines until the episode is over, as a
    `lmrl.policies.chat.policy.ChatPolicy` does that cannot be understood. Where each turn costs something, the best
    that a model can do would otherwise be not to play.

    Args:
        environments: environments of the rollouts.
        log_metric: receives ``success`` and ``unfinished`` (the share of episodes that empty lines ended).
        columns: everything else that TRL hands to reward functions, not used.
    """
    # Before the empty lines, which end every episode.
    unfinished = [not environment.done for environment in environments]
    for environment in environments:
        finish(environment)
    if log_metric is not None:
        log_metric("success", fmean(environment.episode.success for environment in environments))
        log_metric("unfinished", fmean(unfinished))
    return [environment.reward for environment in environments]


def finish(environment: TaskEnvironment) -> None:
    """Play empty lines until the episode is over; no method, since TRL makes tools of those."""
    environment._finish()


def take_turns(environments: Sequence[TaskEnvironment], replies: Sequence[Reply]) -> None:
    """Make the next move of several games: the replies as they are, and their partners answer together.

    Args:
        environments: environments of episodes that are not over.
        replies: one for each.
    """
    # Together, so that the partner's model answers all games in one batch.
    moves = []
    for index, environment in enumerate(environments):
        moves.append((index, environment._slot.env, replies[index].text))
    for environment, reply, turn in zip(environments, replies, step_together(moves), strict=True):
        assert turn is not None, "errors are raised"
        environment._record(reply, turn)


def opening(name: str, observation: str) -> str:
    """The first text of an episode as a model reads it."""
    return "\n".join(transcript(_prompt(name), [observation], 0, "plain"))


def answer(name: str, observation: str, over: bool) -> str:
    """A later text as a model reads it."""
    text = _prompt(name).spelling(observation)
    if not over:
        return text
    return f"{text}\n{GAME_OVER}" if text else GAME_OVER


def _prompt(name: str) -> ChatPrompt:
    """Return the spelling of a task's texts; tasks of users without one keep theirs."""
    return chat_prompt(name) if task(name).chat else ChatPrompt(role="a player", rules="")
