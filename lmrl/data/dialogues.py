"""Dialogues of your own: messages and rewards, without a game that could answer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from lmrl.envs.registry import DIALOGUES
from lmrl.errors import UserError, counted
from lmrl.types import LARGEST_REWARD, Episode

__all__ = ["episode_from_messages", "has_reply_of_several_lines", "is_dialogue", "with_system_in_front"]

_ENTRIES = ("messages", "rewards", "reward", "logprobs", "terminated")


def is_dialogue(record: Any) -> bool:
    """Return True for a row with messages, even if they are misspelt; the rows of `write_episodes` have none."""
    if not isinstance(record, Mapping):
        return False
    if "messages" in record:
        return True
    # The search for a misspelling would take longer than reading a row of `write_episodes`.
    return "observations" not in record and bool(get_close_matches("messages", map(str, record), n=1, cutoff=0.8))


def episode_from_messages(record: Mapping[str, Any], place: str) -> Episode:
    """Make an episode of a dialogue: what the user writes is observed, what the assistant writes are the actions.

    Example::

        {"messages": [{"role": "system", "content": "You sell bikes."},
                      {"role": "user", "content": "I need one for the way to work."},
                      {"role": "assistant", "content": "What is your budget?"},
                      {"role": "user", "content": "500."},
                      {"role": "assistant", "content": "Then take this one."}],
         "rewards": [0, 1]}

    Args:
        record: ``messages``, and ``rewards`` (one for each message of the assistant) or ``reward`` (for the last one).
            ``logprobs`` may say how probable each message of the assistant was to who wrote it.
            ``terminated: false`` says that the dialogue was cut: it then ends with a message of the user. Other
            entries are left out.
        place: name of the file and the row, for errors.

    Returns:
        The episode. Its ``info["system"]`` holds the system message, if there is one, and ``action_logprobs`` has one
        number per action.

    Raises:
        UserError: roles are missing, unknown or in another order, a text is missing, or rewards are missing; there are
            too few rewards or log-probabilities, or other values than finite numbers.
    """
    present = set(record)
    if present & {"reward", "rewards"}:
        present |= {"reward", "rewards"}  # one of them is enough
    for entry in record:
        # Logs have entries of their own; one that is nearly ours is a mistake.
        meant = get_close_matches(str(entry), _ENTRIES, n=1, cutoff=0.8)
        if entry not in _ENTRIES and meant and meant[0] not in present:
            raise UserError(f"{place}: unknown entry {entry!r:.40}, did you mean {meant[0]!r}?")
    messages = record["messages"]
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise UserError(f"{place}: messages must be a list of roles and contents, got {messages!r:.60}")
    texts: list[str] = []
    system = ""
    for number, message in enumerate(messages, start=1):
        role, content = _message(message, f"{place}, message {number}")
        if role == "system" and number == 1:
            system = content if content.strip() else ""
            continue
        expected = "assistant" if len(texts) % 2 else "user"
        if role != expected:
            raise UserError(
                f"{place}, message {number}: expected a message of the {expected}, got one of {role!r:.40}: after an "
                "optional system message, user and assistant take turns, and the user begins"
            )
        # One line break, as in the texts of games; other white space around a text would be lost in chat templates.
        texts.append(f"{content.strip()}\n")
    observations = texts[::2]
    actions = texts[1::2]
    if not actions:
        raise UserError(f"{place}: there is no message of the assistant, and so nothing to learn")
    terminated = record.get("terminated")
    if terminated is None:  # a Parquet file has the column for all rows or for none
        terminated = True
    if not isinstance(terminated, bool):
        raise UserError(f"{place}: terminated must be true or false, got {terminated!r:.40}")
    if len(observations) == len(actions):
        if not terminated:
            raise UserError(
                f"{place}: a dialogue that was cut (terminated: false) ends with a message of the user, from which its "
                "value goes on"
            )
        observations.append("\n")  # nothing was said after the last message
    logprobs = record.get("logprobs")
    action_logprobs: tuple[tuple[float, ...], ...] = ()
    if logprobs is not None:
        numbers = _numbers(logprobs, "logprobs", len(actions), place)
        if max(numbers) > 0:
            raise UserError(f"{place}: logprobs must be logarithms of probabilities, at most 0, got {max(numbers)!r}")
        action_logprobs = tuple((number,) for number in numbers)
    return Episode(
        task=DIALOGUES.name,
        observations=tuple(observations),
        actions=tuple(actions),
        rewards=_rewards(record, len(actions), place),
        terminated=terminated,
        truncated=not terminated,
        info={"system": system} if system else {},
        action_logprobs=action_logprobs,
    )


def has_reply_of_several_lines(episode: Episode) -> bool:
    """Return whether a reply goes on after its first line, which the rendering ``text`` cannot read."""
    return any("\n" in action.rstrip("\n") for action in episode.actions)


def with_system_in_front(episode: Episode) -> Episode:
    """Return a dialogue with its system message, if it has one, in front of the first observation and nowhere else."""
    system = episode.info.get("system", "")
    if not system:
        return episode
    first, *later = episode.observations
    info = {key: value for key, value in episode.info.items() if key != "system"}
    return replace(episode, observations=(f"{system}\n\n{first}", *later), info=info)


def _message(message: Any, place: str) -> tuple[str, str]:
    if not isinstance(message, Mapping):
        raise UserError(f"{place}: must have a role and a content, got {message!r:.60}")
    role = message.get("role")
    content = message.get("content")
    if not isinstance(role, str):
        raise UserError(f"{place}: role must be system, user or assistant, got {role!r:.40}")
    if not isinstance(content, str) or (not content.strip() and role != "system"):
        raise UserError(f"{place}: content must be a text, got {content!r:.40}")
    return role, content


def _rewards(record: Mapping[str, Any], actions: int, place: str) -> tuple[float, ...]:
    rewards = record.get("rewards")
    last_reward = record.get("reward")
    if rewards is not None and last_reward is not None:
        raise UserError(f"{place}: give either rewards or reward, not both")
    if rewards is None:
        if last_reward is None:
            raise UserError(
                f"{place}: there are no rewards: give rewards, one for each of {counted(actions, 'message')} of the "
                "assistant, or reward for the whole dialogue (for BC, which does not read it, 0)"
            )
        return (0.0,) * (actions - 1) + (_number(last_reward, "reward", place),)
    return _numbers(rewards, "rewards", actions, place)


def _numbers(values: Any, name: str, actions: int, place: str) -> tuple[float, ...]:
    """Return a list of numbers, one for each action."""
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != actions:
        count = len(values) if isinstance(values, Sequence) else repr(values)[:40]
        raise UserError(
            f"{place}: {name} must have one number for each of {counted(actions, 'message')} of the assistant, "
            f"got {count}"
        )
    return tuple(_number(value, f"{name}[{index}]", place) for index, value in enumerate(values))


def _number(value: Any, name: str, place: str) -> float:
    # NaN fails the comparison too.
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_REWARD
    if not is_number:
        raise UserError(f"{place}: {name} must be a finite number (of float32), got {value!r:.40}")
    return float(value)
