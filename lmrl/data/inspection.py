"""The statistics of a dataset compared with the published ones, and its replay in the environment."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from lmrl.data.storage import read_dataset, read_metadata
from lmrl.envs.base import DialogueEnv, TextEnv
from lmrl.envs.registry import make, recorded_arguments, task
from lmrl.envs.scores import PublishedData
from lmrl.envs.task import Task
from lmrl.errors import UserError
from lmrl.types import Episode, PartnerRequest

__all__ = [
    "DatasetStats",
    "Mismatch",
    "RecordedPartner",
    "Report",
    "dataset_stats",
    "partner_pairs",
    "stats_table",
    "verify",
]


class RecordedPartner:
    """Says again what a partner said in an episode.

    Args:
        episode: ``info["replies"]`` is what they said before the rules had their say. Without it (an official file)
            what the player saw is taken.
    """

    def __init__(self, episode: Episode) -> None:
        self._seed = episode.seed
        self._replies: Iterator[str] = iter(episode.info.get("replies") or episode.observations[1:])

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """The next replies.

        Raises:
            UserError: if there are fewer than are asked for.
        """
        replies = [reply for _, reply in zip(requests, self._replies, strict=False)]
        if len(replies) < len(requests):
            raise UserError(f"the episode of seed {self._seed} holds fewer replies than its environment asks for")
        return replies

    def describe(self) -> dict[str, Any]:
        """See `lmrl.types.Partner`."""
        return {"name": "recorded"}


def partner_pairs(env: DialogueEnv, episode: Episode) -> list[tuple[PartnerRequest, str]]:
    """Play an episode again with the recorded replies, and note them beside what was asked.

    Args:
        env: of the episode's task; its own partner is not asked.
        episode: ``info["start"]`` says how it began; for its replies see `RecordedPartner`.

    Raises:
        UserError: if the start is not known, or there are too few replies.
    """
    if "start" not in episode.info:
        raise UserError(
            f"the episode of seed {episode.seed} does not say how it began: what its partner knew is unknown"
        )
    recorded = RecordedPartner(episode)
    env.reset(seed=episode.seed, options=episode.info["start"])
    pairs: list[tuple[PartnerRequest, str]] = []
    for action in episode.actions:
        outcome = env.say(action)
        while isinstance(outcome, PartnerRequest):
            (reply,) = recorded.reply([outcome])
            pairs.append((outcome, reply))
            outcome = env.hear(reply)
        if outcome.terminated or outcome.truncated:
            break
    return pairs


_TOP = 10


@dataclass(frozen=True)
class DatasetStats:
    """Statistics of a dataset; spreads are those of the population."""

    task: str
    episodes: int
    length_mean: float
    length_std: float
    success: float
    """Share of the episodes that solve the task."""
    return_mean: float
    return_std: float
    terminated: float
    """Share of the episodes that the rules ended; the others were cut short."""
    illegal_rate: float
    """Share of the actions that the rules did not know."""
    actions: dict[str, float]
    """The ten most frequent actions and their shares."""
    published: PublishedData | None
    """None where nothing was published."""

    def compared(self) -> dict[str, tuple[float, float | None, float | None]]:
        """By column of the paper's Table 1: ours, the published one, and ours / published - 1.

        The published one is None where there is none, and the last also where the published one is 0.
        """
        ours = {"size": self.episodes, **{name: getattr(self, name) for name in _COLUMNS}}
        compared = {}
        for name, value in ours.items():
            other = None if self.published is None else getattr(self.published, name)
            compared[name] = (value, other, value / other - 1 if other else None)
        return compared

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-like values, with ``relative_difference`` to the published figures."""
        difference = {name: row[2] for name, row in self.compared().items()}
        return {**asdict(self), "relative_difference": difference}


_COLUMNS = ("length_mean", "length_std", "success", "return_mean", "return_std")


class _Moments:
    """Mean and spread of a stream (Welford)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        before = value - self.mean
        self.mean += before / self.count
        self._squares += before * (value - self.mean)

    @property
    def std(self) -> float:
        return math.sqrt(self._squares / self.count)


def dataset_stats(path: str | os.PathLike[str], task_name: str | None = None) -> DatasetStats:
    """Read a dataset once, whatever its size, and describe it.

    Raises:
        UserError: see `read_dataset`.
    """
    lengths = _Moments()
    returns = _Moments()
    ends: Counter[str] = Counter()
    actions: Counter[str] = Counter()
    name = ""
    illegal = 0
    for episode in read_dataset(path, task_name):
        name = episode.task
        lengths.add(len(episode))
        returns.add(episode.total_reward)
        ends.update(success=episode.success, terminated=episode.terminated)
        illegal += episode.illegal
        actions.update(episode.actions)
    said = max(1, actions.total())
    return DatasetStats(
        task=name,
        episodes=lengths.count,
        length_mean=lengths.mean,
        length_std=lengths.std,
        success=ends["success"] / lengths.count,
        return_mean=returns.mean,
        return_std=returns.std,
        terminated=ends["terminated"] / lengths.count,
        illegal_rate=illegal / said,
        actions={action: count / said for action, count in actions.most_common(_TOP)},
        published=task(name).scores.data,
    )


def stats_table(stats: DatasetStats) -> Table:
    """The figures, next to the published ones if there are any, for a terminal."""
    heads = ["", "here", *([] if stats.published is None else ["published", "difference"])]
    table = Table(*heads, title=f"{stats.task}: {stats.episodes} episodes")
    for name, (ours, published, difference) in stats.compared().items():
        shown = [] if published is None else [f"{published:.4g}", "" if difference is None else f"{difference:+.1%}"]
        table.add_row(name.replace("_", " "), f"{ours:.4g}", *shown)
    table.add_section()
    table.add_row("terminated", f"{stats.terminated:.4g}")
    table.add_row("illegal actions", f"{stats.illegal_rate:.4g}")
    for action, share in stats.actions.items():
        table.add_row(repr(action)[:40], f"{share:.4g}")
    return table


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
    recorder cut (truncated, while the environment would go on) is right. A partner with a model behind it says
    again what was recorded; a scripted one is asked again.

    Args:
        path: a file of episodes.
        task_name: the task that it must be of; None: any.
        env_arguments: of the environment, over those that the file was recorded with.

    Raises:
        UserError: see `read_dataset`; and if the file was recorded with a path or a program, which its metadata names
            and only ``env_arguments`` can choose: see `lmrl.envs.registry.recorded_arguments`.
    """
    name = ""
    episodes = 0
    turns = 0
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
        episodes += 1
        turns += len(episode)
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
