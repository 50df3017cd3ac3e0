"""Replay a dataset through its environment: does it say the same?"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmrl.data.reading import read_dataset
from lmrl.data.replies import RecordedPartner
from lmrl.envs.base import TextEnv
from lmrl.envs.dialogue import DialogueEnv
from lmrl.envs.registration import Task, make, recorded_arguments, task
from lmrl.episode import Episode
from lmrl.storage import read_metadata

__all__ = ["Mismatch", "Report", "verify"]

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first place where an episode and its replay differ."""

    episode: int
    """Index in the file, from 0."""
    turn: int
    """Index of the action, from 0; -1 is the reset."""
    what: str
    """``observation``, ``reward``, ``ending`` or ``reset``."""
    recorded: str
    replayed: str

    def __str__(self) -> str:
        where = f"episode {self.episode}, turn {self.turn}"
        return f"{where}: {self.what} {self.recorded} in the file, {self.replayed} in the environment"


@dataclass(frozen=True, slots=True)
class Report:
    """Outcome of a replay."""

    task: str
    episodes: int
    turns: int
    mismatched: int
    """Number of episodes that differ from their replay."""
    mismatches: tuple[Mismatch, ...]
    """The first 20 of them."""

    @property
    def ok(self) -> bool:
        """Whether all episodes replay."""
        return self.mismatched == 0


def verify(
    path: str | os.PathLike[str], task_name: str | None = None, env_arguments: Mapping[str, Any] | None = None
) -> Report:
    """Play every action of a dataset again and compare observations, rewards and endings.

    An episode begins from its seed and ``info["start"]``. Without a recorded start (an official file) the task's
    starts are tried in turn, and the episode counts as right if it replays from one of them. An episode that its
    recorder cut (truncated, while the environment would go on) is right. A second speaker with a model behind it says
    again what was recorded; a scripted one is asked anew.

    Args:
        path: a file of episodes.
        task_name: the task that it must be of; None: any.
        env_arguments: of the environment, over those that the file was recorded with.

    Raises:
        UserError: see `read_dataset`; and if the file was recorded with a path or a program, which its metadata names
            and only ``env_arguments`` can choose: see `lmrl.envs.registration.recorded_arguments`.
    """
    name, episodes, turns = "", 0, 0
    wrong: list[Mismatch] = []
    mismatched = 0
    env: TextEnv | None = None
    recorded = read_metadata(path).get("env", {})
    for index, episode in enumerate(read_dataset(path, task_name)):
        name = episode.task
        env = _environment(name, recorded, env_arguments, str(path)) if env is None else env
        if isinstance(env, DialogueEnv) and "partner" in {**recorded, **(env_arguments or {})}:
            env.partner = RecordedPartner(episode)
        found = _mismatch(env, task(name), index, episode)
        episodes, turns = episodes + 1, turns + len(episode)
        if found is not None:
            mismatched += 1
            wrong = [*wrong, found][:_SHOWN]
    if env is not None:
        env.close()
    return Report(name, episodes, turns, mismatched, tuple(wrong))


def _environment(name: str, recorded: Any, given: Mapping[str, Any] | None, where: str) -> TextEnv:
    arguments = recorded_arguments(name, recorded, given, where)
    return make(name, **{key: value for key, value in arguments.items() if key != "partner"})


def _mismatch(env: TextEnv, row: Task, index: int, episode: Episode) -> Mismatch | None:
    starts: Sequence[Mapping[str, Any]] = [episode.info["start"]] if "start" in episode.info else row.starts or ({},)
    furthest: Mismatch | None = None
    for start in starts:
        found = _replay(env, start, index, episode)
        if found is None:
            return None
        if furthest is None or found.turn > furthest.turn:
            furthest = found
    return furthest


def _replay(env: TextEnv, start: Mapping[str, Any], index: int, episode: Episode) -> Mismatch | None:
    def differs(turn: int, what: str, recorded: object, replayed: object) -> Mismatch:
        return Mismatch(index, turn, what, repr(recorded), repr(replayed))

    try:
        text, _ = env.reset(seed=episode.seed, options=start)
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # a start from a file may be anything
        return Mismatch(index, -1, "reset", f"{start!r:.200}", str(error))
    if text != episode.observations[0]:
        return differs(-1, "observation", episode.observations[0], text)
    last = len(episode) - 1
    for turn, action in enumerate(episode.actions):
        text, reward, terminated, truncated, _ = env.step(action)
        if text != episode.observations[turn + 1]:
            return differs(turn, "observation", episode.observations[turn + 1], text)
        if reward != episode.rewards[turn]:
            return differs(turn, "reward", episode.rewards[turn], reward)
        recorded = _ending(episode.terminated, episode.truncated) if turn == last else "none"
        replayed = _ending(terminated, truncated)
        cut = turn == last and (recorded, replayed) == ("truncated", "none")
        if recorded != replayed and not cut:
            return differs(turn, "ending", recorded, replayed)
    return None


def _ending(terminated: bool, truncated: bool) -> str:
    flags = {"terminated": terminated, "truncated": truncated}
    return " and ".join(name for name, value in flags.items() if value) or "none"
