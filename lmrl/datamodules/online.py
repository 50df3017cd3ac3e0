"""Rounds of what the policy has just played, refilled whenever an epoch begins."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import lightning as L
import numpy as np
from lightning.pytorch.utilities import CombinedLoader, rank_zero_warn
from torch.utils.data import DataLoader, IterableDataset

from lmrl.datamodules.offline import OfflineDataModule
from lmrl.datamodules.replay_buffer import Outcome, ReplayBuffer
from lmrl.datamodules.spec import BatchSpec, RolloutSource
from lmrl.errors import UserError, check_range
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.segments import segments
from lmrl.types import Episode
from lmrl.utils.distributed import rank_and_world_size

__all__ = ["OnlineDataModule", "online_datamodule"]

Run: TypeAlias = tuple[ReplayBuffer, range]

_MOST_EMPTY = 20  # rounds in a row that may leave nothing to learn from


class OnlineDataModule(OfflineDataModule):
    """Data that the policy collects itself. Each epoch is a round, and begins with new episodes of the current policy.

    The callback `RolloutCollection` says how they are played (`set_rollout_source`), the algorithm which episodes of
    those at hand it learns from, and what is computed once per round (`configure_batches`). Episodes that a failure
    aborted (`Episode.aborted`) are left out: no buffer, filter, baseline or loss sees them.

    Everything about a round follows from its number and `seed`, and the checkpoint holds the rest: a resumed run
    gives the numbers of one that was never interrupted, wherever in a round the checkpoint was saved.

    Processes that train together hold the same rounds and plan the same minibatches, of `batch_size` segments for each
    of them; each is handed its share. A run resumes from a checkpoint with as many processes as it had.
    """

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
            batches: number of minibatches per round instead, however many passes or parts of one that are.
            keep_replay: keep all earlier rounds (a replay buffer) instead of this one alone.
            offline: read the task's recorded episodes too: with `keep_replay` as the beginning of the buffer, else for
                losses of their own (PPO's `bc_weight`).
            memory_mb: what each vector of the buffer may take in memory before it goes to a file.
            **shared: arguments of `OfflineDataModule`; what is recorded matters with `offline` alone.

        Raises:
            UserError: as `OfflineDataModule`.
        """
        super().__init__(task, **shared)
        check_range("[1, inf)", epochs=epochs, batches=batches, memory_mb=memory_mb)
        self._play: RolloutSource | None = None
        self.round = 0
        self.consumed = 0
        self._plan: list[list[Run]] | None = []
        self._expected = (0.0, 0.0)
        self.recorded = ReplayBuffer()
        self.played = ReplayBuffer()

    def configure_batches(self, spec: BatchSpec) -> None:
        """Take what the algorithm wants; see `OfflineDataModule.configure_batches`.

        Raises:
            UserError: if it prepares recorded episodes, which this datamodule does not have.
        """
        if spec.prepare is not None:
            raise UserError("an algorithm that prepares recorded episodes needs an offline datamodule")
        self.spec = spec

    def set_rollout_source(self, play: RolloutSource) -> None:
        """Say who plays rounds."""
        self._play = play

    def prepare_data(self) -> None:
        """Generate the task's own dataset if it is needed and not there yet."""
        if self.hparams["offline"]:
            super().prepare_data()

    def setup(self, stage: str) -> None:
        """Read the recorded episodes, if they are needed."""
        if self.hparams["offline"]:
            super().setup(stage)
        rank, _ = rank_and_world_size()
        folder = None if self.trainer is None else Path(self.trainer.default_root_dir) / f"replay{rank or ''}"
        limit = self.hparams["memory_mb"] * 2**20
        self.recorded, self.played = (
            ReplayBuffer(None if folder is None else folder / name, limit) for name in ("recorded", "played")
        )

    def train_dataloader(self) -> Any:
        """Minibatches of rounds; with recorded episodes that are no part of a buffer, a second loader next to it.

        Raises:
            UserError: if no callback collects rollouts.
        """
        if self._play is None:
            raise UserError(
                "OnlineDataModule needs somebody who plays: add the callback lmrl.callbacks.RolloutCollection"
            )
        encoder = self._encoder()
        window = self.window()
        for episode in self.split()[0] if self.hparams["offline"] and not len(self.recorded) else ():
            self.recorded.append(self._segments(episode, encoder, window), _outcome(episode))
        rounds: DataLoader[TokenBatch] = DataLoader(_Stream(self.minibatches), batch_size=None)
        if self.hparams["keep_replay"] or not self.hparams["offline"]:
            return rounds
        beside: DataLoader[TokenBatch] = DataLoader(_Stream(self.recorded_batches), batch_size=None)
        return CombinedLoader({"round": rounds, "bc": beside}, mode="min_size")

    def val_dataloader(self) -> Any:
        """None: what is learned from is never the same twice, and play is what counts."""
        return []

    def minibatches(self) -> Iterator[TokenBatch]:
        """The rest of this round, or all of the next one if nothing is left. None if the training has ended already."""
        if self.trainer is not None and self.trainer.fit_loop.done:
            return
        if self.consumed >= len(self._planned()):
            self._next_round()
        planned = self._planned()
        for runs in planned[self.consumed :]:
            yield self._batch(runs, self._expected)

    def recorded_batches(self) -> Iterator[TokenBatch]:
        """Recorded segments without end; which ones follows from the place in the round."""
        runs = self._runs(self.recorded, self.recorded.spans())
        expected = self._expect(runs, len(runs) / self._runs_per_batch())
        for number in count(self.consumed):
            chosen = self._draw(1, self.round, number).integers(len(runs), size=self._runs_per_batch())
            yield self._batch([runs[index] for index in chosen], expected)

    def _next_round(self) -> None:
        assert self._play is not None
        encoder = self._encoder()
        window = self.window()
        for number in range(self.round + 1, self.round + 1 + _MOST_EMPTY):
            # The return of an aborted episode is partial: where turns cost, it would look better than the others.
            episodes = [episode for episode in self._play(number) if len(episode) and not episode.aborted]
            parts = [list(segments(episode, encoder, window)) for episode in episodes]
            if self.spec.post_rollout is not None:
                parts = self.spec.post_rollout(episodes, parts)
            if not self.hparams["keep_replay"]:
                self.played.clear()
            for episode, its in zip(episodes, parts, strict=True):
                self.played.append(its, _outcome(episode))
            self.round = number
            self.consumed = 0
            self._plan = None
            if self._planned():
                return
            why = (
                f"{self.spec.filter} keeps none of {len(episodes)} episodes" if episodes else "no episode has an action"
            )
            rank_zero_warn(f"round {number} is skipped: {why}")
        raise UserError(f"{_MOST_EMPTY} rounds in a row left nothing to learn from; of the last, {why}")

    def _planned(self) -> list[list[Run]]:
        """The minibatches of this round, nearly equal in size; a function of the buffers and the round's number."""
        if self._plan is None:
            runs = self._chosen()
            size = self._runs_per_batch()
            draw = self._draw(0, self.round)
            wanted = self.hparams["batches"]
            self._plan = []
            pieces = -(-len(runs) // size)
            passes = self.hparams["epochs"] if wanted is None else -(-wanted // max(1, pieces))
            self._expected = self._expect(runs, max(1, pieces))
            for _ in range(passes if runs else 0):
                parts = np.array_split(draw.permutation(len(runs)), pieces)
                self._plan += [[runs[index] for index in part] for part in parts]
            self._plan = self._plan[:wanted]
        return self._plan

    def _chosen(self) -> list[Run]:
        """The runs of the episodes at hand that the filter keeps."""
        buffers = [self.recorded, self.played] if self.hparams["keep_replay"] else [self.played]
        spans = [(buffer, span) for buffer in buffers for span in buffer.spans()]
        outcomes = [outcome for buffer in buffers for outcome in buffer.outcomes()]
        kept = [spans[index] for index in self.spec.filter.choose(outcomes)]
        return [run for buffer, span in kept for run in self._runs(buffer, [span])]

    def _runs(self, buffer: ReplayBuffer, spans: Sequence[range]) -> list[Run]:
        size = self.hparams["consecutive"]
        return [(buffer, span[first : first + size]) for span in spans for first in range(0, len(span), size)]

    def _expect(self, runs: Sequence[Run], batches: float) -> tuple[float, float]:
        """Action and observation tokens per batch, if these runs make this number of batches (over all processes)."""
        counts = [
            buffer.token_counts([run for its, run in runs if its is buffer]) for buffer in (self.recorded, self.played)
        ]
        n_actions, n_observation_tokens = (sum(column) for column in zip(*counts, strict=True))
        return n_actions / batches, n_observation_tokens / batches

    def _runs_per_batch(self) -> int:
        """Return the number of runs per batch over all processes together."""
        _, world = rank_and_world_size()
        return world * max(1, int(self.hparams["batch_size"]) // int(self.hparams["consecutive"]))

    def _draw(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *key])

    def _batch(self, runs: Sequence[Run], expected: tuple[float, float]) -> TokenBatch:
        """This process's share of a minibatch; if there are fewer runs than processes, rows with nothing to learn."""
        rank, world = rank_and_world_size()
        mine = runs[rank::world]
        pad = self._tokenizer().pad_token_id or 0
        parts = [buffer[index] for buffer, run in mine or runs[:1] for index in run]
        spec = self.spec
        share = (expected[0] / world, expected[1] / world)
        batch = collate(parts, pad, spec.observations, spec.bootstrap, share, spec.after)
        return batch if mine else batch.without_targets()

    def state_dict(self) -> dict[str, Any]:
        """Return the current round and the progress within it."""
        own = {"round": self.round, "consumed": self.consumed, "played": self.played.state_dict()}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a run was saved."""
        super().load_state_dict(state_dict)
        self.round = int(state_dict["round"])
        self.consumed = int(state_dict["consumed"])
        self.played.load_state_dict(state_dict["played"])
        self._plan = None


def online_datamodule(trainer: L.Trainer, name: str) -> OnlineDataModule:
    """The datamodule of an algorithm that learns from what it plays.

    Args:
        trainer: of the run.
        name: of the algorithm, for the error.

    Raises:
        UserError: if it is another kind of datamodule.
    """
    data = getattr(trainer, "datamodule", None)
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
    return Outcome(episode.total_reward, episode.success, int(episode.info.get("group", -1)))
