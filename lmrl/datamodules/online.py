"""Rounds of episodes of the current policy: collected, prepared by the algorithm, and cut into minibatches."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import lightning as L
import numpy as np
from lightning.pytorch.utilities import CombinedLoader, rank_zero_warn
from torch.utils.data import DataLoader, IterableDataset

from lmrl.datamodules.offline import OfflineDataModule
from lmrl.datamodules.replay_buffer import Outcome, ReplayBuffer
from lmrl.datamodules.spec import BatchSpec, Collector
from lmrl.envs import registry
from lmrl.errors import UserError, check_range
from lmrl.tokens.amounts import Amounts, amounts_of_segments
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.segments import segments
from lmrl.types import Episode
from lmrl.utils.distributed import rank_and_world_size

__all__ = ["OnlineDataModule", "online_datamodule"]

_MAX_EMPTY_ROUNDS = 20  # rounds in a row that may leave nothing to learn from
# The purposes of random draws, the first number after the seed in their keys.
_ORDER_OF_CHUNKS = 0
_CHOICE_OF_RECORDED = 1


class BufferChunk(NamedTuple):
    """Consecutive segments of one episode in a buffer, which are read together."""

    buffer: ReplayBuffer
    indices: range


class RoundPlan(NamedTuple):
    """How a round is learned from."""

    minibatches: list[list[BufferChunk]]
    """The chunks of each minibatch, of all passes over the round."""
    per_pass: int
    """Minibatches in one pass over the round."""
    segments_per_pass: int
    expected: tuple[float, float]
    """Action and observation tokens per minibatch, on average."""


_NO_ROUND = RoundPlan([], 0, 0, (0.0, 0.0))


class OnlineDataModule(OfflineDataModule):
    """Data that the policy collects itself: each epoch is a round, and begins with new episodes of the current policy.

    `collect_round` asks the collector for episodes (`register_collector`), has the algorithm prepare them
    (`BatchSpec.learner`) and keeps them in a buffer. `minibatches` cuts the kept episodes into minibatches. Episodes
    that a failure aborted (`Episode.aborted`) are left out: no buffer, filter, baseline or loss sees them.

    Everything about a round follows from its number and `seed`, and the checkpoint holds the rest: a resumed run
    gives the numbers of one that was never interrupted, wherever in a round the checkpoint was saved.

    Processes that train together hold the same rounds and plan the same minibatches, of `batch_size` segments for each
    of them; each gets its share. A run resumes from a checkpoint with as many processes as it had.
    """

    #: Number of the current round, from 1; 0 before the first.
    round = 0
    #: Minibatches of the current round that were learned from, the one under way included.
    consumed = 0
    #: Whether a critic, a baseline or the health check is learning from the newest round. A checkpoint saved now would
    #: contain only part of that update.
    is_preparing = False
    #: Seconds in which rounds were collected and prepared.
    collecting_seconds = 0.0
    #: What was read and said in all rounds that this process has collected.
    collected = Amounts()
    #: Number of these rounds.
    collected_rounds = 0

    def __init__(
        self,
        task: str,
        epochs: int = 1,
        batches: int | None = None,
        keep_replay: bool = False,
        offline: bool = False,
        memory_mb: int = 256,
        **shared: Any,
    ) -> None:
        """Choose what a round is learned from, and how often.

        Args:
            task: name of a task.
            epochs: passes over the data at hand per round.
            batches: number of minibatches per round, in place of `epochs`; they may end in the middle of a pass.
            keep_replay: keep all earlier rounds (a replay buffer) instead of this one alone.
            offline: read the task's recorded episodes too: with `keep_replay` as the beginning of the buffer, else for
                losses of their own (PPO's `bc_weight`).
            memory_mb: what each vector of the buffer may take in memory before it goes to a file.
            **shared: arguments of `OfflineDataModule`; those about recorded episodes are used only with `offline`.

        Raises:
            UserError: as `OfflineDataModule`.
        """
        super().__init__(task, **shared)
        check_range("[1, inf)", epochs=epochs, batches=batches, memory_mb=memory_mb)
        self.keep_replay = keep_replay
        self.offline = offline
        self.recorded = ReplayBuffer()
        self.played = ReplayBuffer()
        self._collector: Collector | None = None
        self._plan: RoundPlan | None = _NO_ROUND  # None: the buffers have changed since it was made

    def configure_batches(self, spec: BatchSpec) -> None:
        """Take the requirements of the algorithm; see `OfflineDataModule.configure_batches`.

        Raises:
            UserError: if it prepares recorded episodes, or reads their returns, which this datamodule does not have.
        """
        if spec.returns_gamma is not None:
            raise UserError("an algorithm that learns from returns to go needs an offline datamodule")
        if spec.prepare is not None:
            raise UserError("an algorithm that prepares recorded episodes needs an offline datamodule")
        self.spec = spec

    @property
    def minibatch_size(self) -> int:
        """Segments in a minibatch of one process."""
        return int(self.hparams["batch_size"])

    @property
    def segments_per_batch(self) -> float:
        """Segments in a minibatch of all processes together, on average over the present round."""
        plan = self._planned()
        return plan.segments_per_pass / max(1, plan.per_pass)

    def register_collector(self, collector: Collector) -> None:
        """Set the object that collects rounds; the callback `RolloutCollection` registers itself."""
        self._collector = collector

    def start_minibatch(self) -> None:
        """Count the next minibatch of the round as learned from; `RolloutCollection` calls it before each one."""
        self.consumed += 1

    @property
    def round_is_used_up(self) -> bool:
        """Whether the current minibatch is the last one of its round."""
        return self.consumed >= len(self._planned().minibatches)

    @property
    def is_repetition(self) -> bool:
        """Whether the current minibatch belongs to a second or later pass over the round."""
        return self.consumed > self._planned().per_pass

    def prepare_data(self) -> None:
        """Generate the task's own dataset if it is needed and not there yet."""
        if self.offline:
            super().prepare_data()

    def setup(self, stage: str) -> None:
        """Read the recorded episodes, if they are needed."""
        if self.offline:
            super().setup(stage)
        recorded_folder = None
        played_folder = None
        if stage == "fit" and self.trainer is not None and self.trainer.global_step == 0:
            # The same object may have been used for another run.
            self.round = 0
            self.consumed = 0
            self.collecting_seconds = 0.0
            self.collected = Amounts()
            self.collected_rounds = 0
            self._plan = _NO_ROUND
        if self.trainer is not None:
            # Each process keeps files of its own.
            rank, _ = rank_and_world_size()
            folder = Path(self.trainer.default_root_dir) / f"replay{rank or ''}"
            recorded_folder = folder / "recorded"
            played_folder = folder / "played"
        limit = self.hparams["memory_mb"] * 2**20
        self.recorded = ReplayBuffer(recorded_folder, limit)
        self.played = ReplayBuffer(played_folder, limit)

    def train_dataloader(self) -> Any:
        """Minibatches of rounds; with recorded episodes that are no part of a buffer, a second loader next to it.

        Raises:
            UserError: if no callback collects rollouts.
        """
        if self._collector is None:
            raise UserError(
                "OnlineDataModule needs a callback that collects rounds: add the callback "
                "lmrl.callbacks.RolloutCollection"
            )
        encoder = self._encoder()
        window = self.window()
        if self.offline and not len(self.recorded):
            train_episodes, _ = self.split()
            for episode in train_episodes:
                self.recorded.append(self._segments(episode, encoder, window), _outcome(episode))
        rounds: DataLoader[TokenBatch] = DataLoader(_Stream(self.minibatches), batch_size=None)
        if self.keep_replay or not self.offline:
            return rounds
        recorded: DataLoader[TokenBatch] = DataLoader(_Stream(self.recorded_batches), batch_size=None)
        return CombinedLoader({"round": rounds, "bc": recorded}, mode="min_size")

    def val_dataloader(self) -> Any:
        """Return no loader: there are no held-out episodes, and `lmrl.callbacks.InteractiveEvaluation` evaluates."""
        return []

    def minibatches(self) -> Iterator[TokenBatch]:
        """The rest of this round, or all of the next one if nothing is left; nothing if the training has ended."""
        if self.trainer is not None and self.trainer.fit_loop.done:
            return  # no step is left that could learn from another round
        if self.round_is_used_up:
            began = perf_counter()
            try:
                self.collect_round()
            finally:
                self.is_preparing = False
            self.collecting_seconds += perf_counter() - began
        plan = self._planned()
        for chunks in plan.minibatches[self.consumed :]:
            yield self._batch(chunks, plan.expected)

    def collect_round(self) -> None:
        """Collect the next round, have the algorithm prepare it, and plan its minibatches.

        A round that leaves nothing to learn from is skipped with a warning.

        Raises:
            UserError: if many rounds in a row leave nothing.
        """
        assert self._collector is not None
        encoder = self._encoder()
        window = self.window()
        learner = self.spec.learner
        warmup = 0 if learner is None else learner.warmup_rounds
        first = self.round + 1
        last = max(self.round, warmup) + _MAX_EMPTY_ROUNDS
        for number in range(first, last + 1):
            # 1. Collect episodes. The return of an aborted episode is partial: where turns cost, it would look better
            #    than others.
            collected = self._collector.collect(number)
            episodes = [episode for episode in collected if len(episode) and not episode.aborted]
            segments_by_episode = [list(segments(episode, encoder, window)) for episode in episodes]
            amounts = amounts_of_segments(chain.from_iterable(segments_by_episode))
            self.collected = self.collected.plus(amounts)
            self.collected_rounds += 1
            # 2. Let the algorithm prepare the round: it scores the tokens and attaches advantages to them.
            if learner is not None:
                segments_by_episode = learner.prepare_rollout(episodes, segments_by_episode)
            self.round = number
            self.consumed = 0
            self._plan = None
            if number <= warmup:
                continue
            # 3. Store the round. It replaces the previous one, or is added to the buffer with `keep_replay`.
            if not self.keep_replay:
                self.played.clear()
            for episode, episode_segments in zip(episodes, segments_by_episode, strict=True):
                self.played.append(episode_segments, _outcome(episode))
            # 4. Plan minibatches; an empty round is skipped.
            if self._planned().minibatches:
                return
            if episodes:
                reason = f"{self.spec.filter} keeps none of {len(episodes)} episodes"
            else:
                reason = "no episode has an action"
            rank_zero_warn(f"round {number} is skipped: {reason}")
        raise UserError(f"{_MAX_EMPTY_ROUNDS} rounds in a row left nothing to learn from; of the last, {reason}")

    def recorded_batches(self) -> Iterator[TokenBatch]:
        """Recorded segments without end; which ones follows from the place in the round."""
        chunks = self._chunks(self.recorded, self.recorded.spans())
        size = self._chunks_per_batch()
        expected = self._expect(chunks, len(chunks) / size)
        for number in count(self.consumed):
            chosen = self._draw(_CHOICE_OF_RECORDED, self.round, number).integers(len(chunks), size=size)
            yield self._batch([chunks[index] for index in chosen], expected)

    def _planned(self) -> RoundPlan:
        """Return the plan of this round, which is a function of the buffers and the round's number."""
        if self._plan is None:
            self._plan = self._make_plan()
        return self._plan

    def _make_plan(self) -> RoundPlan:
        """Cut the kept episodes into minibatches of nearly equal size."""
        chunks = self._kept_chunks()
        per_pass = math.ceil(len(chunks) / self._chunks_per_batch())
        batches = self.hparams["batches"]
        passes = self.hparams["epochs"]
        if batches is not None:
            passes = math.ceil(batches / max(1, per_pass))
        minibatches = []
        draw = self._draw(_ORDER_OF_CHUNKS, self.round)
        for _ in range(passes if chunks else 0):
            # Each pass takes all chunks, in another order.
            order = draw.permutation(len(chunks))
            for part in np.array_split(order, per_pass):
                minibatches.append([chunks[index] for index in part])
        return RoundPlan(
            minibatches=minibatches[:batches],
            per_pass=per_pass,
            segments_per_pass=sum(len(chunk.indices) for chunk in chunks),
            expected=self._expect(chunks, max(1, per_pass)),
        )

    def _kept_chunks(self) -> list[BufferChunk]:
        """The chunks of the episodes at hand that the filter keeps."""
        outcomes: list[Outcome] = []
        episodes: list[BufferChunk] = []
        for buffer in [self.recorded, self.played] if self.keep_replay else [self.played]:
            outcomes += buffer.outcomes()
            for span in buffer.spans():
                episodes.append(BufferChunk(buffer, span))
        chunks = []
        for index in self.spec.filter.choose(outcomes):
            chunks += self._chunks(episodes[index].buffer, [episodes[index].indices])
        return chunks

    def _chunks(self, buffer: ReplayBuffer, spans: Sequence[range]) -> list[BufferChunk]:
        """Cut each episode into chunks of `consecutive` segments; its last one may be shorter."""
        size = self.hparams["consecutive"]
        chunks = []
        for span in spans:
            for first in range(0, len(span), size):
                chunks.append(BufferChunk(buffer, span[first : first + size]))
        return chunks

    def _expect(self, chunks: Sequence[BufferChunk], batches: float) -> tuple[float, float]:
        """Action and observation tokens per batch, if these chunks make this number of batches (over all processes)."""
        n_actions = 0
        n_observation_tokens = 0
        for buffer in (self.recorded, self.played):
            counts = buffer.token_counts([chunk.indices for chunk in chunks if chunk.buffer is buffer])
            n_actions += counts[0]
            n_observation_tokens += counts[1]
        return n_actions / batches, n_observation_tokens / batches

    def _chunks_per_batch(self) -> int:
        """Return the number of chunks per batch over all processes together."""
        _, world = rank_and_world_size()
        return world * max(1, self.minibatch_size // int(self.hparams["consecutive"]))

    def _draw(self, *key: int) -> np.random.Generator:
        # A generator for each purpose and round: nothing about earlier draws has to be saved.
        return np.random.default_rng([self.seed, *key])

    def _batch(self, chunks: Sequence[BufferChunk], expected: tuple[float, float]) -> TokenBatch:
        """This process's share of a minibatch; if there are fewer chunks than processes, rows with nothing to learn."""
        rank, world = rank_and_world_size()
        mine = chunks[rank::world]
        batch_segments = []
        for chunk in mine or chunks[:1]:
            for index in chunk.indices:
                batch_segments.append(chunk.buffer[index])
        # Lightning averages over processes, so each divides by its share of the expected tokens.
        share = (expected[0] / world, expected[1] / world)
        pad = self._tokenizer().pad_token_id or 0
        batch = collate(batch_segments, pad, self.spec.observations, self.spec.bootstrap, share, self.spec.after)
        return batch if mine else batch.without_targets()

    def state_dict(self) -> dict[str, Any]:
        """Return the current round and the progress within it."""
        state = super().state_dict()
        return {**state, "round": self.round, "consumed": self.consumed, "played": self.played.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume where a run was saved."""
        super().load_state_dict(state_dict)
        self.round = int(state_dict["round"])
        self.consumed = int(state_dict["consumed"])
        self.played.load_state_dict(state_dict["played"])
        self._plan = None


def online_datamodule(trainer: L.Trainer, name: str) -> OnlineDataModule:
    """The datamodule of an algorithm that learns from what it plays.

    Args:
        trainer: trainer of the run.
        name: name of the algorithm, for the error.

    Raises:
        UserError: if it is another kind of datamodule.
    """
    data = getattr(trainer, "datamodule", None)
    if isinstance(data, OfflineDataModule) and data.task is registry.DIALOGUES:
        raise UserError(f"{name} learns from what it plays, and dialogues without a simulator cannot be played")
    if not isinstance(data, OnlineDataModule):
        raise UserError(f"{name} learns from what it plays: use lmrl.datamodules.OnlineDataModule")
    return data


class _Stream(IterableDataset[TokenBatch]):
    """A function as a dataset: every epoch calls it again."""

    def __init__(self, batches: Callable[[], Iterator[TokenBatch]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[TokenBatch]:
        return self._batches()


def _outcome(episode: Episode) -> Outcome:
    group = episode.info.get("group")  # of recorded episodes, anything
    return Outcome(episode.total_reward, episode.success, group if isinstance(group, int) else -1)
