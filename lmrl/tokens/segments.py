"""Episodes as segments of token ids, and the rule that aligns states with action tokens.

Position ``t`` of a segment is the *state* after reading token ``t``; its *action* is token ``t + 1``. So values and
logits for an action token are read one position before it. Only tokens that the policy samples are actions. A turn's
reward sits on the last token of an action. The state after an action token is the state in which the policy samples
its *next* token, whatever the environment says in between (Abdulhai et al. 2025, section 5).

A *segment* is one context that the model reads. A task whose policy reads everything has one segment per episode; a
task whose policy reads a sliding window has one per turn. Turns whose windows start at the same text share a segment,
because a causal model sees the same prefix either way.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lmrl.errors import UserError
from lmrl.tokens.encoding import Encoder, Ids, Window
from lmrl.types import Episode

__all__ = ["Segment", "action_ids", "as_key", "context", "segments", "split_by_length"]

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class _Texts:
    """The texts of an episode as ids: observation 0, action 0, observation 1, ..."""

    encoder: Encoder
    observations: Sequence[str]
    pieces: list[Ids]
    lengths: list[int]
    name: str
    """Name of the episode in errors."""
    skipped: int
    """Number of turns before the first of these texts."""

    def start(self, window: Window, count: int) -> int:
        """Return the index of the first text that a policy reads when it acts after ``count`` texts."""
        if self.encoder.opening(self.observations[0]) is None:
            return window.start(self.lengths[:count])
        return window.start(self.lengths[:count], lambda start: len(self.first(start)))

    def first(self, start: int) -> Ids:
        """Return the ids of text ``start`` at the beginning of a context."""
        opening = self.encoder.opening(self.observations[start // 2])
        return self.pieces[start] if opening is None else opening

    def ids(self, start: int, count: int, window: Window) -> list[int]:
        """Return the ids of texts ``start`` to ``count - 1``, cut to the window.

        Raises:
            UserError: there are none, so that there would be no state to act in, or the system message leaves too
                little room for the observation.
        """
        first = self.first(start)
        read = list(chain(first, *self.pieces[start + 1 : count]))
        if window.system and len(read) > window.tokens:
            number = self.skipped + count // 2
            raise UserError(
                f"the system message and observation {number} of {self.name} have {len(read)} tokens, and a context "
                f"may have {window.tokens}: shorten data.init_args.system (empty for none), or take a model that reads "
                "more"
            )
        # A single text that is longer than the window loses its first words, but not what comes before them.
        if len(read) > window.tokens:
            begin = self.encoder.prefix(first)
            if 2 * len(begin) > window.tokens:  # a template's own system message would leave no room for words
                begin = ()
            read = [*begin, *read[len(read) - window.tokens + len(begin) :]]
        if not read:
            raise UserError(
                f"observation {self.skipped + count // 2} of {self.name} is an empty text, and a policy reads "
                "nothing else before it acts: an environment has to say something there (lmrl check-env tests it)"
            )
        return read


def _texts(
    encoder: Encoder,
    observations: Sequence[str],
    actions: Sequence[str],
    ids: Sequence[Ids],
    name: str,
    skipped: int = 0,
) -> _Texts:
    pieces = encoder.pieces(observations, actions, ids)
    return _Texts(encoder, observations, pieces, list(map(len, pieces)), name, skipped)


def context(
    encoder: Encoder,
    window: Window,
    observations: Sequence[str],
    actions: Sequence[str],
    action_ids: Sequence[Ids] = (),
    name: str = "the episode",
) -> list[int]:
    """The ids that a policy reads before its next action; training reads exactly these (see `segments`).

    Args:
        encoder: text to ids.
        window: how much of the past is read.
        observations: ``t + 1`` texts.
        actions: ``t`` texts.
        action_ids: ids of the actions as sampled; they win over encoding the text again.
        name: name of the episode in errors.

    Raises:
        UserError: if there are none, since the texts that it reads are empty.
    """
    keep = 2 * len(actions) + 1 if window.texts is None else window.texts
    # Whole turns that the window cannot reach need not be encoded.
    skip = max(0, (2 * len(actions) + 1 - keep) // 2)
    texts = _texts(encoder, observations[skip:], actions[skip:], action_ids[skip:], name, skip)
    count = len(texts.pieces)
    return texts.ids(texts.start(window, count), count, window)


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One context and the action tokens (n of them) that are trained in it.

    Example: texts ``a b`` (two tokens), action ``x y`` with reward -1, then the next context is ``c``::

        ids = (a, b, x, y)    col = (1, 2)    token = (x, y)    reward = (0, -1)    turn_end = (False, True)
        next_ids = (c,)
    """

    ids: NDArray[np.int32]
    """(L,) what the model reads."""
    col: NDArray[np.int32]
    """(n,) the state of every action token: the position just before it."""
    token: NDArray[np.int32]
    """(n,) the action tokens themselves: ``ids[col + 1]``."""
    reward: NDArray[np.float64]
    """(n,) zero but on the last token of each action."""
    turn_end: NDArray[np.bool_]
    """(n,) whether it is the last token of its action."""
    next_ids: NDArray[np.int32] | None
    """What the policy reads when it acts after the last action token; None if the rules ended it (``terminated``)."""
    key: bytes
    """``ids`` as bytes that sort like the ids, to find equal segments and prefixes."""
    next_key: bytes
    """The same for ``next_ids``; empty if there are none."""
    new_col: int = 0
    """Column where the newest observation begins: after what earlier segments hold, and after a system message."""
    return_to_go: NDArray[np.float64] | None = None
    """(n,) discounted sum of the rewards from each token to the end of the episode, where it was asked for."""
    columns: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """(n,) each, by name: what an algorithm attached to each action token of a rollout; only carried along."""

    @property
    def n_observation_tokens(self) -> int:
        """m, the number of observation tokens that are new in this segment and follow another token."""
        return len(self.ids) - 1 - max(0, self.new_col - 1) - len(self.col)

    def observation_col(self) -> NDArray[np.int64]:
        """(m,) the position just before each observation token that is new in this segment."""
        return np.setdiff1d(np.arange(max(0, self.new_col - 1), len(self.ids) - 1), self.col)


def split_by_length(values: NDArray[Scalar], lengths: Iterable[int]) -> list[NDArray[Scalar]]:
    """Cut an array into consecutive parts, for example values of all tokens of a round into one array per episode.

    Args:
        values: (N, ...) entries of all parts, one part after the other.
        lengths: number of entries of each part, N together.
    """
    parts = []
    start = 0
    for length in lengths:
        parts.append(values[start : start + length])
        start += length
    return parts


def as_key(ids: NDArray[np.int32]) -> bytes:
    """Bytes that sort like the ids."""
    return ids.astype(">u4").tobytes()  # big-endian


def _sampled_ids(episode: Episode, encoder: Encoder) -> tuple[Ids, ...]:
    """The sampled ids, unless another tokenizer made them."""
    # strict=False: an episode without sampled ids has none for any action.
    for text, ids in zip(episode.actions, episode.action_ids, strict=False):
        if max(ids, default=0) >= len(encoder.tokenizer) or encoder.decode_action(ids) != text:
            return ()
    return episode.action_ids


def action_ids(episode: Episode, encoder: Encoder) -> list[Ids]:
    """The ids of each action, as `segments` has them: as sampled, unless another tokenizer made them."""
    sampled = _sampled_ids(episode, encoder) or ((),) * len(episode)
    return [tuple(ids) or encoder.action(text) for text, ids in zip(episode.actions, sampled, strict=True)]


def segments(episode: Episode, encoder: Encoder, window: Window) -> Iterator[Segment]:
    """Cut an episode into the contexts in which its actions were (or would be) taken.

    Yields:
        Segments in the order of the turns; together they hold every action token once.

    Raises:
        UserError: if an action has no tokens (nothing could be trained, and its reward would have no place), or nothing
            is read before it (it would have no state).
    """
    # Some games replace the last observation by a text about the end; values need the plain one.
    observations = (*episode.observations[:-1], episode.final_observation)
    name = f"the episode with seed {episode.seed}"
    texts = _texts(encoder, observations, episode.actions, _sampled_ids(episode, encoder), name)
    actions = texts.pieces[1::2]
    if () in actions:
        raise UserError(f"actions need at least one token; turn {actions.index(())} of seed {episode.seed} has none")

    # Before turn t the episode has 2 t + 1 texts: t + 1 observations and t actions.
    starts = [texts.start(window, 2 * turn + 1) for turn in range(len(episode) + 1)]
    # Turns whose contexts start with the same text share a segment.
    for start, group in groupby(range(len(episode)), key=lambda turn: starts[turn]):
        turns = list(group)
        next_turn = turns[-1] + 1
        ended_by_rules = episode.terminated and next_turn == len(episode)
        next_context = None if ended_by_rules else texts.ids(starts[next_turn], 2 * next_turn + 1, window)
        yield _segment(texts, start, turns, episode.rewards, next_context, window)


def _segment(
    texts: _Texts,
    start: int,
    turns: list[int],
    rewards: Sequence[float],
    next_context: list[int] | None,
    window: Window,
) -> Segment:
    # The context of the first turn. The texts of the other turns are appended to it.
    newest = 2 * turns[0]
    ids = texts.ids(start, newest + 1, window)
    # The newest observation comes after earlier texts or the system message, or else it is the whole context.
    new_col = 0
    if start < newest or window.system:
        new_col = max(0, len(ids) - texts.lengths[newest])
    col: list[int] = []
    reward: list[float] = []
    turn_end: list[bool] = []
    for turn in turns:
        if turn > turns[0]:
            ids.extend(texts.pieces[2 * turn])
        action = texts.pieces[2 * turn + 1]
        # The state of an action token is the position before it; the reward of a turn sits on its last token.
        col.extend(range(len(ids) - 1, len(ids) - 1 + len(action)))
        reward.extend([0.0] * (len(action) - 1) + [rewards[turn]])
        turn_end.extend([False] * (len(action) - 1) + [True])
        ids.extend(action)
    array = np.asarray(ids, dtype=np.int32)
    states = np.asarray(col, dtype=np.int32)
    next_ids = None if next_context is None else np.asarray(next_context, dtype=np.int32)
    return Segment(
        ids=array,
        col=states,
        token=array[states + 1],
        reward=np.asarray(reward, dtype=np.float64),
        turn_end=np.asarray(turn_end, dtype=np.bool_),
        next_ids=next_ids,
        key=as_key(array),
        next_key=b"" if next_ids is None else as_key(next_ids),
        new_col=new_col,
    )
