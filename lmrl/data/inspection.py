"""Compare the statistics of a dataset with the published ones, and replay a dataset in its environment."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from lmrl.data.dialogues import has_reply_of_several_lines
from lmrl.data.storage import played_file, read_dataset, read_metadata
from lmrl.envs.base import DialogueEnv, TextEnv
from lmrl.envs.registry import DIALOGUES, make, recorded_arguments, starts, task
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


class _TooFewReplies(UserError):
    """An episode holds fewer replies of its partner than the environment asks for."""


class RecordedPartner:
    """A partner that repeats the replies of an episode.

    Args:
        episode: ``info["replies"]`` holds the partner's replies before the environment processed them. If it is missing
            (an official file), the observations stand in.
    """

    def __init__(self, episode: Episode) -> None:
        self._seed = episode.seed
        self._replies: Iterator[str] = iter(episode.info.get("replies") or episode.observations[1:])

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """Return the next replies.

        Raises:
            UserError: if there are fewer replies than requests.
        """
        replies = [reply for _, reply in zip(requests, self._replies, strict=False)]
        if len(replies) < len(requests):
            raise _TooFewReplies(f"the episode of seed {self._seed} holds fewer replies than its environment asks for")
        return replies

    def describe(self) -> dict[str, Any]:
        """See `lmrl.types.Partner`."""
        return {"name": "recorded"}


def partner_pairs(env: DialogueEnv, episode: Episode) -> list[tuple[PartnerRequest, str]]:
    """Replay an episode with the recorded replies, and return each request to the partner with its reply.

    Args:
        env: an environment of the episode's task; its own partner is not used.
        episode: an episode with ``info["start"]``; see `RecordedPartner` for its replies.

    Raises:
        UserError: if the start is unknown, or there are too few replies.
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
        # An environment may send several requests per action, or none.
        while isinstance(outcome, PartnerRequest):
            (reply,) = recorded.reply([outcome])
            pairs.append((outcome, reply))
            outcome = env.hear(reply)
        if outcome.terminated or outcome.truncated:
            break
    return pairs


_TOP = 10  # actions in the statistics


@dataclass(frozen=True)
class DatasetStats:
    """Statistics of a dataset; standard deviations are those of the population."""

    task: str
    episodes: int
    length_mean: float
    length_std: float
    success: float | None
    """Share of the episodes that solve the task; None for dialogues, which do not say."""
    return_mean: float
    return_std: float
    terminated: float
    """Share of the episodes that the environment ended; the others were truncated."""
    illegal_rate: float | None
    """Share of illegal actions; None for dialogues, which have no rules."""
    actions: dict[str, float]
    """The ten most frequent actions and their shares."""
    published: PublishedData | None
    """None if nothing was published. Without returns if those of the file are of another reward."""

    def compared(self) -> dict[str, tuple[float, float | None, float | None]]:
        """Return (ours, published, ours / published - 1) for each column of the paper's Table 1 that the file has.

        The second value is None if nothing comparable was published, and the third also if the published value is 0.
        """
        compared = {}
        for name in _COLUMNS:
            ours = self.episodes if name == "size" else getattr(self, name)
            if ours is None:
                continue
            published = None if self.published is None else getattr(self.published, name)
            compared[name] = (ours, published, ours / published - 1 if published else None)
        return compared

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-like values, with ``relative_difference`` to the published figures."""
        difference = {name: relative for name, (_, _, relative) in self.compared().items()}
        return {**asdict(self), "relative_difference": difference}


_COLUMNS = ("size", "length_mean", "length_std", "success", "return_mean", "return_std")


class _Moments:
    """Mean and standard deviation of a stream (Welford's algorithm)."""

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
    """Compute the statistics of a dataset in one pass.

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
    num_actions = max(1, actions.total())
    has_rules = name != DIALOGUES.name
    return DatasetStats(
        task=name,
        episodes=lengths.count,
        length_mean=lengths.mean,
        length_std=lengths.std,
        success=ends["success"] / lengths.count if has_rules else None,
        return_mean=returns.mean,
        return_std=returns.std,
        terminated=ends["terminated"] / lengths.count,
        illegal_rate=illegal / num_actions if has_rules else None,
        actions={action: count / num_actions for action, count in actions.most_common(_TOP)},
        published=_comparable(task(name), Path(path)),
    )


def _comparable(task: Task, path: Path) -> PublishedData | None:
    """Return the published statistics, without the returns if the file was recorded with another reward."""
    published = task.scores.data
    if published is None or not published.env:
        return published
    recorded = read_metadata(played_file(path)).get("env")
    settings = {**task.kwargs, **recorded} if isinstance(recorded, Mapping) else task.kwargs
    if all(settings.get(argument) == value for argument, value in published.env.items()):
        return published
    return replace(published, return_mean=None, return_std=None)


def stats_table(stats: DatasetStats) -> Table:
    """Return the statistics as a table for a terminal, with the published ones in a column if there are any."""
    heads = ["", "this file", *([] if stats.published is None else ["published", "difference"])]
    table = Table(*heads, title=f"{stats.task}: {stats.episodes} episodes")
    for name, (ours, published, difference) in stats.compared().items():
        cells = [name.replace("_", " "), f"{ours:.4g}"]
        if published is not None:
            cells += [f"{published:.4g}", "" if difference is None else f"{difference:+.1%}"]
        table.add_row(*cells)
    table.add_section()
    table.add_row("share of episodes that terminated", f"{stats.terminated:.4g}")
    if stats.illegal_rate is not None:
        table.add_row("share of actions that are illegal", f"{stats.illegal_rate:.4g}")
    if stats.actions:
        table.add_section()
        table.add_row("frequent actions", "share")
    for action, share in stats.actions.items():
        shown = repr(action)
        # A plain text: signs of rich's markup may be part of an action.
        table.add_row(Text(shown if len(shown) <= 40 else f"{shown[:39]}…"), f"{share:.4g}")
    return table


_SHOWN = 20  # mismatches that a report keeps


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first difference between an episode and its replay."""

    episode: int
    """Index in the file, from 0."""
    turn: int
    """Index of the action, from 0; -1 is the reset."""
    what: str
    """``observation``, ``reward``, ``ending``, ``reset`` or ``replies`` (the partner's)."""
    recorded: str
    replayed: str

    def __str__(self) -> str:
        where = f"episode {self.episode}, turn {self.turn}"
        return f"{where}: {self.what} {self.recorded} in the file, {self.replayed} in the environment"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a replay."""

    task: str
    episodes: int
    turns: int
    mismatched: int
    """Number of episodes that differ from their replay."""
    mismatches: tuple[Mismatch, ...]
    """The first 20 of them."""
    several_lines: int = 0
    """Dialogues without a simulator in which a reply has several lines; only the rendering ``chat`` reads those."""

    @property
    def ok(self) -> bool:
        """Whether all episodes replay."""
        return self.mismatched == 0


def verify(
    path: str | os.PathLike[str], task_name: str | None = None, env_arguments: Mapping[str, Any] | None = None
) -> Report:
    """Replay every action of a dataset and compare observations, rewards and endings.

    An episode starts from its seed and ``info["start"]``. Without a recorded start (an official file) `verify` tries
    the starts of evaluation in turn, and the episode is correct if it replays from one of them. An episode may be
    truncated where the environment would continue. Replies of a partner with a model are taken from the file; a
    scripted partner replies again. Dialogues without a simulator are only read.

    Args:
        path: a file of episodes.
        task_name: the expected task; None: any.
        env_arguments: arguments of the environment; they override those in the file.

    Raises:
        UserError: see `read_dataset`; and if the file was recorded with a path or a program, which only
            ``env_arguments`` may choose: see `lmrl.envs.registry.recorded_arguments`.
    """
    name = ""
    episodes = 0
    turns = 0
    wrong: list[Mismatch] = []
    mismatched = 0
    several_lines = 0
    env: TextEnv | None = None
    possible_starts: Sequence[Mapping[str, Any]] = ()
    recorded = read_metadata(path).get("env", {})
    for index, episode in enumerate(read_dataset(path, task_name)):
        name = episode.task
        if name == DIALOGUES.name:  # reading has checked all that can be checked
            episodes += 1
            turns += len(episode)
            several_lines += has_reply_of_several_lines(episode)
            continue
        if env is None:
            arguments = dict(recorded_arguments(name, recorded, env_arguments, str(path)))
            # No model is loaded: the file has the replies.
            arguments.pop("partner", None)
            env = make(name, **arguments)
            possible_starts = starts(name, arguments) or ({},)
        if isinstance(env, DialogueEnv) and "partner" in {**(recorded or {}), **(env_arguments or {})}:
            env.partner = RecordedPartner(episode)
        mismatch = _mismatch(env, possible_starts, index, episode)
        episodes += 1
        turns += len(episode)
        if mismatch is not None:
            mismatched += 1
            wrong = [*wrong, mismatch][:_SHOWN]
    if env is not None:
        env.close()
    return Report(name, episodes, turns, mismatched, tuple(wrong), several_lines)


def _mismatch(
    env: TextEnv, possible_starts: Sequence[Mapping[str, Any]], index: int, episode: Episode
) -> Mismatch | None:
    # Of several possible starts, report the one that agrees with the episode for the longest time.
    furthest: Mismatch | None = None
    for start in [episode.info["start"]] if "start" in episode.info else possible_starts:
        mismatch = _replay(env, start, index, episode)
        if mismatch is None:
            return None
        if furthest is None or mismatch.turn > furthest.turn:
            furthest = mismatch
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
        try:
            text, reward, terminated, truncated, _ = env.step(action)
        except _TooFewReplies:
            return Mismatch(index, turn, "replies", "too few", "more")
        if text != episode.observations[turn + 1]:
            return differs(turn, "observation", episode.observations[turn + 1], text)
        if reward != episode.rewards[turn]:
            return differs(turn, "reward", episode.rewards[turn], reward)
        recorded = _ending(episode.terminated, episode.truncated) if turn == last else "none"
        replayed = _ending(terminated, truncated)
        # A recorder may truncate an episode, for example at a number of turns.
        cut = turn == last and (recorded, replayed) == ("truncated", "none")
        if recorded != replayed and not cut:
            return differs(turn, "ending", recorded, replayed)
    return None


def _ending(terminated: bool, truncated: bool) -> str:
    if terminated and truncated:
        return "terminated and truncated"
    if terminated:
        return "terminated"
    return "truncated" if truncated else "none"
