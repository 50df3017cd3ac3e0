"""Recorded episodes as batches of action tokens: the core of every task's datamodule."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import lightning as L
import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler, SequentialSampler
from transformers import PreTrainedTokenizerBase

from lmrl.batch import TokenBatch, collate
from lmrl.data import dataset_path, generate, read_dataset
from lmrl.datamodules.by_length import LengthBatches
from lmrl.datamodules.filters import Filter
from lmrl.datamodules.resumable import ResumableLoader
from lmrl.envs.registration import Task, task
from lmrl.episode import Episode
from lmrl.errors import UserError, unknown
from lmrl.losses import returns_to_go
from lmrl.models.tokenizer import load_tokenizer
from lmrl.rendering import encoder_for
from lmrl.tokens import Encoder, Segment, Window, segments

__all__ = ["OfflineDataModule"]

Run: TypeAlias = tuple[Segment, ...]
"""Consecutive segments of one episode, which are read together."""


class OfflineDataModule(L.LightningDataModule):
    """The episodes of one task, split by episode into training and validation.

    A module may set `filter` (which episodes to keep), `gamma` (to get returns), `bootstrap` (to get the states that
    follow) and `read` (to get the tokens that are only read) in its own ``setup``.
    """

    def __init__(
        self,
        task: str,
        path: str | None = None,
        size: int | None = None,
        data_seed: int = 0,
        batch_size: int = 128,
        consecutive: int = 1,
        val_fraction: float = 0.05,
        max_tokens: int | None = None,
        num_workers: int = 0,
        pool: int | None = None,
        env: dict[str, Any] | None = None,
        behaviour: str | None = None,
        rendering: str = "text",
    ) -> None:
        """Choose the data.

        Args:
            task: name of a task.
            path: a Parquet or JSON Lines file of its episodes; None: the task's own dataset, generated if need be.
            size: episodes in the generated dataset; None: as many as the task's default.
            data_seed: seed of the generated dataset, the split and the order.
            batch_size: segments in a batch (one per turn where the policy reads a window, else one per episode).
            consecutive: segments of an episode that stay together; worth it where neighbours overlap.
            val_fraction: share of the episodes held out for the validation loss; 0 holds out none.
            max_tokens: longest context in tokens; None: what the model can read, less the longest action.
            num_workers: processes that prepare batches; 0 does it in this one.
            pool: batches among which segments are sorted by length (see `LengthBatches`), against padding; 1: not at
                all. None: 16, but 1 where the policy reads a single text.
            env: arguments of the environment with which a generated dataset is recorded.
            behaviour: who plays in it, as for `lmrl.data.generate`; None: the task's own player.
            rendering: ``text``: what was said, one text after the other; ``chat``: as a dialogue in the form of the
                tokenizer's chat template, whose end of turn ends an action. Players read what is trained here.

        Raises:
            UserError: for an unknown task or rendering, or a number outside of its range.
        """
        super().__init__()
        self.save_hyperparameters()
        self.task: Task = _task(task)
        for name, value, low in (
            ("batch_size", batch_size, 1),
            ("consecutive", consecutive, 1),
            ("pool", 16 if pool is None else pool, 1),
            ("data_seed", data_seed, 0),
        ):
            if value < low:
                raise UserError(f"{name} must be at least {low}, got {value}")
        if not 0.0 <= val_fraction < 1.0:
            raise UserError(f"val_fraction must be in [0, 1), got {val_fraction}")
        if rendering not in ("text", "chat"):
            raise unknown("rendering", rendering, ("text", "chat"))
        own = dataset_path(task, size or self.task.dataset_size, data_seed, env, behaviour)
        self.path = Path(path) if path else own
        self.filter = Filter()
        self.pool = pool or (1 if self.task.last_texts == 1 else 16)
        self.gamma: float | None = None
        self.bootstrap = False
        self.read = False
        self.episodes: list[Episode] = []

    def prepare_data(self) -> None:
        """Generate the task's own dataset if it is not there yet."""
        if self.hparams["path"] is None and not self.path.exists():
            settings = {"env": self.hparams["env"], "behaviour": self.hparams["behaviour"]}
            generate(self.task.name, self.hparams["size"], self.hparams["data_seed"], **settings)

    def setup(self, stage: str) -> None:
        """Read the episodes.

        Raises:
            UserError: if the file is missing or broken, belongs to another task, or holds no episode.
        """
        self.episodes = self.episodes or [e for e in read_dataset(self.path, self.task.name) if len(e)]
        if not self.episodes:
            raise UserError(f"{self.path} holds no episode with an action: there is nothing to train on")

    def split(self) -> tuple[list[Episode], list[Episode]]:
        """Training and validation episodes: the same for the same file and seed, whatever is filtered later."""
        order = np.random.default_rng(self.hparams["data_seed"]).permutation(len(self.episodes))
        held = int(self.hparams["val_fraction"] * len(self.episodes))
        chosen = set(order[:held].tolist())
        train = [e for index, e in enumerate(self.episodes) if index not in chosen]
        return train, [e for index, e in enumerate(self.episodes) if index in chosen]

    def train_dataloader(self) -> DataLoader[TokenBatch]:
        """Shuffled batches of the kept training episodes.

        Raises:
            UserError: if the filter leaves nothing.
        """
        generator = torch.Generator().manual_seed(self.hparams["data_seed"])
        return self._loader(self.filter.keep(self.split()[0]), shuffle=True, generator=generator)

    def val_dataloader(self) -> DataLoader[TokenBatch] | list[DataLoader[TokenBatch]]:
        """The held-out episodes, unfiltered, in the same batches each time."""
        held = self.split()[1]
        return self._loader(held, shuffle=False, generator=None) if held else []

    def window(self) -> Window:
        """What the policy reads: of the texts as many as the task says, of the tokens as many as fit the model."""
        limit = self.hparams["max_tokens"]
        if limit is None:
            model = getattr(self._module(), "model", None)
            positions = getattr(getattr(model, "config", None), "max_position_embeddings", None) or 1024
            limit = positions - self.task.max_action_tokens
        return Window(self.task.last_texts, limit, self.hparams["rendering"])

    def _module(self) -> L.LightningModule | None:
        return None if self.trainer is None else self.trainer.lightning_module

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        """Of the module that is being trained; the bundled one where there is none."""
        return getattr(self._module(), "tokenizer", None) or load_tokenizer()

    def _encoder(self) -> Encoder:
        return encoder_for(self._tokenizer(), self.window())

    def _loader(
        self, episodes: Sequence[Episode], shuffle: bool, generator: torch.Generator | None
    ) -> DataLoader[TokenBatch]:
        encoder, window = self._encoder(), self.window()
        size = self.hparams["consecutive"]
        runs: list[Run] = []
        for episode in episodes:
            parts = _with_returns(list(segments(episode, encoder, window)), self.gamma)
            runs += [tuple(parts[first : first + size]) for first in range(0, len(parts), size)]
        together = max(1, self.hparams["batch_size"] // size)
        order: Sampler[int] = RandomSampler(runs, generator=generator) if shuffle else SequentialSampler(runs)
        lengths = [max(len(segment.ids) for segment in run) for run in runs]
        workers = self.hparams["num_workers"]
        return (ResumableLoader if shuffle else DataLoader)(
            runs,  # type: ignore[arg-type]
            batch_sampler=LengthBatches(order, together, False, lengths, self.pool),
            generator=None if workers else generator,  # workers that are kept would not draw from it in each epoch
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=partial(
                _collate, pad=encoder.tokenizer.pad_token_id or 0, read=self.read, bootstrap=self.bootstrap
            ),
        )


def _task(name: str) -> Task:
    return task(name)


def _with_returns(parts: list[Segment], gamma: float | None) -> list[Segment]:
    """Fill in the discounted returns of one episode's segments."""
    if gamma is None:
        return parts
    returns = returns_to_go(np.concatenate([part.reward for part in parts]), gamma)
    ends = np.cumsum([len(part.reward) for part in parts])[:-1]
    return [replace(part, return_to_go=g) for part, g in zip(parts, np.split(returns, ends), strict=True)]


def _collate(runs: Sequence[Run], **settings: Any) -> TokenBatch:
    return collate([segment for run in runs for segment in run], **settings)
