"""Recorded episodes as batches of action tokens: the core of every task's datamodule."""

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, TypeAlias, cast

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Sampler, SequentialSampler
from transformers import PreTrainedTokenizerBase

from lmrl.data import dataset_path, generate, read_dataset
from lmrl.data.dialogues import has_reply_of_several_lines, with_system_in_front
from lmrl.data.recording import first_episodes
from lmrl.data.storage import read_metadata
from lmrl.datamodules.spec import BatchSpec
from lmrl.envs import registry
from lmrl.envs.task import Task
from lmrl.errors import UserError, check_range, counted, unknown
from lmrl.losses import returns_to_go
from lmrl.models.tokenizer import load_tokenizer
from lmrl.policies.chat.policy import best_examples, system_prompt
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.encoding import ChatEncoder, Encoder, Window, adds_bos, encoder_for, special_ids
from lmrl.tokens.segments import Segment, action_ids, segments, split_by_length
from lmrl.types import Episode
from lmrl.utils.distributed import rank_and_world_size
from lmrl.utils.log_lines import LogLines

__all__ = ["OfflineDataModule", "ResumableBatches", "ResumableLoader"]


class ResumableBatches(BatchSampler):
    """Batches of items in the order of a sampler, of which the first may be left out.

    Args:
        sampler: gives the items in the order of this epoch; Lightning replaces it by one for each rank.
        batch_size: items in a batch.
        drop_last: leave out the batch that is not full.
        seed: seed of the order, where Lightning shares it out among processes.
    """

    def __init__(self, sampler: Sampler[int] | Iterable[int], batch_size: int, drop_last: bool, seed: int = 0) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self.seed = seed
        #: Batches that the next epoch leaves out at its beginning: those that a run has learned from already.
        self.skip = 0

    def __iter__(self) -> Iterator[list[int]]:
        skip = self.skip
        self.skip = 0
        yield from islice(super().__iter__(), skip, None)


class ResumableLoader(DataLoader[TokenBatch]):
    """A loader that knows how far an epoch has come; Lightning keeps its state in checkpoints.

    A resumed run reads the rest of its epoch, and draws the epochs after it, as if it had never been interrupted. It
    resumes with as many processes as it had. The `batch_sampler` must be a `ResumableBatches`.
    """

    _epoch = -1
    _seen = 0
    _began: Tensor | None = None
    _restored: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[TokenBatch]:  # type: ignore[override]
        """The batches of an epoch, or those that are left of it."""
        self._restored = None
        self._epoch += 1
        self._seen = self._batches.skip
        self._began = self._generator_state()
        if isinstance(self._batches.sampler, DistributedSampler):
            # Set again here: Lightning numbers epochs otherwise, as it counts a run that ends as an epoch.
            self._batches.sampler.seed = self._batches.seed
            self._batches.sampler.set_epoch(self._epoch)
        for batch in super().__iter__():
            self._seen += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The number of the epoch, how many of its batches were returned, and the generator's state before it."""
        if self._restored is not None:  # no epoch has begun since
            return self._restored
        if self._epoch < 0 or self._seen == len(self):  # the next epoch is about to begin
            return {"epoch": self._epoch + 1, "seen": 0, "chance": self._generator_state()}
        return {"epoch": self._epoch, "seen": self._seen, "chance": self._began}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the next epoch be the one in which a run was saved, and begin there."""
        self._restored = state_dict
        self._epoch = int(state_dict["epoch"]) - 1
        self._batches.skip = int(state_dict["seen"])
        generator = self._generator()
        chance = state_dict["chance"]
        if generator is not None and chance is not None:
            generator.set_state(chance)

    @property
    def _batches(self) -> ResumableBatches:
        return cast(ResumableBatches, self.batch_sampler)

    def _generator(self) -> torch.Generator | None:
        """Return the generator of the order; None if several processes draw it from the number of the epoch."""
        return getattr(self._batches.sampler, "generator", None)

    def _generator_state(self) -> Tensor | None:
        generator = self._generator()
        return None if generator is None else generator.get_state()


def held_out_mask(count: int, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Return which episodes of a file are held out from training, ``(count,)``: the same for the same arguments."""
    order = np.random.default_rng(seed).permutation(count)
    mask = np.zeros(count, dtype=bool)
    mask[order[: int(fraction * count)]] = True
    return mask


def global_seed() -> int | None:
    """The seed of Lightning's ``seed_everything``, which it keeps in the environment; None if it was not called."""
    seed = os.environ.get("PL_GLOBAL_SEED")
    return None if seed is None else int(seed)


def hash_of_file(file: Path) -> str:
    """Return a hash of the content of a file, by which runs know their data."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):  # a dataset may be larger than memory
            digest.update(block)
    return digest.hexdigest()[:32]


SegmentChunk: TypeAlias = tuple[Segment, ...]
"""Consecutive segments of one episode, which are read together."""


_EXAMPLE_POOL = 1_000  # recorded episodes among which the examples of a system message are chosen


class OfflineDataModule(L.LightningDataModule):
    """The episodes of one task, split by episode into training and validation.

    The algorithm declares extra batch fields through `configure_batches`.
    """

    def __init__(
        self,
        task: str | None,
        path: str | None = None,
        size: int | None = None,
        data_seed: int = 0,
        batch_size: int = 128,
        consecutive: int = 1,
        val_fraction: float = 0.05,
        max_tokens: int | None = None,
        num_workers: int = 0,
        env: dict[str, Any] | None = None,
        behaviour: str | None = None,
        rendering: str = "text",
        system: str | None = None,
        examples: int = 0,
        seed: int | None = None,
    ) -> None:
        """Choose the data.

        Args:
            task: name of a task; None: dialogues of your own in `path`, without a simulator.
            path: a Parquet or JSON Lines file of its episodes; None: the task's own dataset, generated if missing.
            size: episodes in the generated dataset; None: as many as the task's default.
            data_seed: seed of the generated dataset and the split: what different trainings share.
            batch_size: segments in a batch (one per turn where the policy reads a window, else one per episode).
            consecutive: segments of an episode that stay together, which saves work where neighbours overlap.
            val_fraction: share of the episodes held out for the validation loss; 0 holds out none.
            max_tokens: longest context in tokens; None: what the model can read, less the longest action.
            num_workers: processes that prepare batches; 0 prepares them in this one. The order of batches differs
                between 0 and more.
            env: arguments of the environment with which a generated dataset is recorded.
            behaviour: the behaviour policy of a generated dataset, see `lmrl.data.recording`; None: the task's own.
            rendering: ``text``: all texts, one after the other; ``chat``: a dialogue in the form of the tokenizer's
                chat template, whose end of turn ends an action. Policies read the same rendering.
            system: with ``chat``: the system message; None: the rules of the task, as prompted chat models read them;
                empty: none.
            examples: with ``chat``: number of recorded episodes that the task's rules show; the best are taken.
            seed: seed of the order of batches and the episodes of rounds; None: that of ``seed_everything``, else 0.

        Raises:
            UserError: for an unknown task or rendering, a number outside of its range, or a system message or examples
                that nothing would read; for arguments of the environment that are objects.
        """
        super().__init__()
        self.save_hyperparameters()
        self.task: Task = registry.DIALOGUES if task is None else registry.task(task)
        if self.task is registry.DIALOGUES and path is None:
            raise UserError(
                "task: null trains on dialogues of your own: data.init_args.path must name their file, for example "
                "--data.init_args.path=logs.jsonl"
            )
        check_range("[1, inf)", size=size, batch_size=batch_size, consecutive=consecutive, max_tokens=max_tokens)
        check_range("[0, inf)", data_seed=data_seed, seed=seed, num_workers=num_workers, examples=examples)
        check_range("[0, 1)", val_fraction=val_fraction)
        if rendering not in ("text", "chat"):
            raise unknown("rendering", rendering, ("text", "chat"))
        if rendering == "text" and (system or examples):
            raise UserError("system and examples need rendering: chat, since plain text has no place for them")
        if system is not None and examples:
            raise UserError("examples are shown with the rules of the task: leave system out")
        for argument, value in (env or {}).items():
            if not isinstance(value, str | int | float | list | tuple | Mapping | None):
                raise UserError(
                    f"env is written into checkpoints and must hold plain values, got {type(value).__name__} for "
                    f"{argument}: a partner of your own gets a name by an entry point (docs/guide/partners.md)"
                )
        size = size or self.task.dataset_size
        self.path = Path(path or dataset_path(self.task.name, size, data_seed, env, behaviour))
        self.env = env
        self.spec = BatchSpec()
        self.episodes: list[Episode] = []
        self.tokens_per_action: float | None = None
        self._examples: list[Episode] = []
        self._common_system = ""  # system message of all dialogues of a file without a simulator
        self._longest_reply = 0  # tokens
        self._system_in_front = False  # whether system messages stand in the first observations
        self._seed = seed

    @property
    def seed(self) -> int:
        """The seed of the training's random choices. Checkpoints keep it, so that a resumed run uses its own seed."""
        if self._seed is None:
            self._seed = global_seed() or 0
        return self._seed

    def configure_batches(self, spec: BatchSpec) -> None:
        """Take the requirements of the algorithm; `LanguageModule.setup` calls it before any dataloader is made.

        Raises:
            UserError: if it prepares rounds of rollouts, which this datamodule does not collect.
        """
        if spec.learner is not None:
            raise UserError("an algorithm that learns from what it plays needs lmrl.datamodules.OnlineDataModule")
        self.spec = spec

    def prepare_data(self) -> None:
        """Generate the task's own dataset if it is not there yet."""
        if self.hparams["path"] is None and not self.path.exists():
            settings = {"env": self.env, "behaviour": self.hparams["behaviour"]}
            generate(self.task.name, self.hparams["size"], self.hparams["data_seed"], **settings)

    def setup(self, stage: str) -> None:
        """Read the episodes, without those that an error aborted.

        Raises:
            UserError: if the file is missing or broken, belongs to another task, or holds no episode.
        """
        if self.episodes:
            return
        recorded = [episode for episode in read_dataset(self.path, self.task.name) if len(episode)]
        # The return of an aborted episode is partial: where turns cost, a filter would take it for a good one.
        self.episodes = [episode for episode in recorded if not episode.aborted]
        aborted = len(recorded) - len(self.episodes)
        if aborted:
            rank_zero_warn(f"{self.path}: {counted(aborted, 'episode')} aborted by an error left out")
        if not self.episodes:
            raise UserError(f"{self.path} holds no episode with an action: there is nothing to train on")
        if self.task is registry.DIALOGUES:
            self._place_system_messages()

    def _place_system_messages(self) -> None:
        """Put system messages that differ from dialogue to dialogue in front of the first observation.

        One that all have in common becomes that of the window, see `window`. The argument ``system`` replaces them all.

        Raises:
            UserError: replies have several lines, and the rendering ends them at the first.
        """
        in_text = self.hparams["rendering"] == "text"
        messages = {episode.info.get("system", "") for episode in self.episodes}
        self._common_system = messages.pop() if len(messages) == 1 and not in_text else ""
        self._system_in_front = not self._common_system and self.hparams["system"] is None
        episodes = []
        for number, episode in enumerate(self.episodes, start=1):
            if in_text and has_reply_of_several_lines(episode):
                raise UserError(
                    f"{self.path}: dialogue {number} has a reply of several lines: set data.init_args.rendering=chat, "
                    "with a model that has a chat template (configs/models/), or write replies on one line"
                )
            if self._system_in_front:
                episode = with_system_in_front(episode)
            episodes.append(episode)
        self.episodes = episodes

    def split(self) -> tuple[list[Episode], list[Episode]]:
        """Training and validation episodes: the same for the same file and seed, whatever is filtered later."""
        held_out = held_out_mask(len(self.episodes), self.hparams["val_fraction"], self.hparams["data_seed"])
        train = list(compress(self.episodes, ~held_out))
        return train, list(compress(self.episodes, held_out))

    def train_dataloader(self) -> DataLoader[TokenBatch]:
        """Shuffled batches of the kept training episodes.

        Raises:
            UserError: if the filter leaves nothing.
        """
        generator = torch.Generator().manual_seed(self.seed)
        return self._loader(self.spec.filter.keep(self.split()[0]), shuffle=True, generator=generator)

    def val_dataloader(self) -> DataLoader[TokenBatch] | list[DataLoader[TokenBatch]]:
        """The held-out episodes, unfiltered, in the same batches each time."""
        held = self.split()[1]
        if not held:
            return []
        loader = self._loader(held, shuffle=False, generator=None)
        # The validation loss is a mean over tokens; `tokens_per_action` turns it into one over actions.
        tokens = 0
        for chunk in cast(Iterable[SegmentChunk], loader.dataset):
            for segment in chunk:
                tokens += len(segment.col)
        self.tokens_per_action = tokens / sum(map(len, held))
        return loader

    @property
    def segments_per_batch(self) -> float:
        """Segments in a batch of all processes together, on average."""
        _, world = rank_and_world_size()
        return float(self.hparams["batch_size"] * world)

    def facts(self) -> dict[str, Any]:
        """Return what a model card says about the data, JSON-like; None where it is not known."""
        return {
            "task": self.task.name,
            "max_new_tokens": self.max_action_tokens,
            "data": self.path.name,
            "data_hash": hash_of_file(self.path) if self.path.is_file() else None,
            "data_episodes": len(self.episodes) or None,
            "data_seed": self.hparams["data_seed"],
            "val_fraction": self.hparams["val_fraction"],
            "system_in_front": self._system_in_front,
            "batch_size": self.hparams["batch_size"],
            "env": self.env,
        }

    def entropy(self) -> float | None:
        """Mean entropy of an action of the behaviour policy, in nats; None where it is not known."""
        if self.path.suffix != ".parquet" or not self.path.exists():
            return None
        # The task notes the entropy of its own player in its own environment.
        recorded = read_metadata(self.path)
        is_own = (
            recorded.get("generator_version") == self.task.dataset_version
            and recorded.get("behaviour") == self.task.behaviour
            and recorded.get("env") == {}
        )
        return self.task.entropy if is_own else None

    def return_range(self) -> tuple[float, float]:
        """Lowest and highest return of an episode, according to the environment of the recorded data.

        Dialogues without an environment have those of the file.

        Raises:
            UserError: the environment does not declare them.
        """
        if self.task is registry.DIALOGUES:
            returns = [episode.total_reward for episode in self.episodes]
            return min(returns), max(returns)
        recorded = read_metadata(self.path).get("env", {})
        settings = registry.recorded_arguments(self.task.name, recorded, self.env, str(self.path))
        with closing(registry.make(self.task.name, **settings)) as env:
            return_range = getattr(env, "return_range", None)
        if return_range is None:
            raise UserError(f"the environment of {self.task.name} does not say its return_range: give one")
        low, high = return_range
        return float(low), float(high)

    @property
    def max_action_tokens(self) -> int:
        """The most tokens that an action may have in play.

        Dialogues without a simulator set no limit: it is their longest reply (or the task's own number, if that is
        larger), but at most half of what the model reads.
        """
        most = self.task.max_action_tokens
        if self.task is not registry.DIALOGUES:
            return most
        if not self._longest_reply:
            encoder = encoder_for(self._tokenizer(), Window(rendering=self.hparams["rendering"]))
            for episode in self.episodes:
                try:
                    lengths = map(len, action_ids(episode, encoder))
                except UserError as error:
                    raise UserError(f"{self.path}: {self._place(episode)}: {error}") from error
                self._longest_reply = max([self._longest_reply, *lengths])
        return min(max(most, self._longest_reply), (self.spec.positions or 1024) // 2)

    def window(self) -> Window:
        """Return the context window: the task's number of observations, and as many tokens as fit the model."""
        limit = self.hparams["max_tokens"]
        if limit is None:
            limit = (self.spec.positions or 1024) - self.max_action_tokens
            if limit < 1:
                raise UserError(
                    f"the model reads {self.spec.positions} tokens, which leaves nothing beside an action of "
                    f"{self.max_action_tokens}: take a model with more positions (n_positions)"
                )
        elif self.task is registry.DIALOGUES and self.spec.positions is not None:
            # Of games, the policy that is evaluated checks it when the training begins.
            most = self.spec.positions - self.max_action_tokens
            if limit > most:
                raise UserError(
                    f"data.init_args.max_tokens must leave room for a reply of {self.max_action_tokens} tokens: "
                    f"at most {most} of the {self.spec.positions} that the model reads, got {limit}"
                )
        rendering = self.hparams["rendering"]
        bos = rendering == "text" and adds_bos(self._tokenizer())
        return Window(self.task.last_texts, limit, rendering, self._system(), bos)

    def _system(self) -> str:
        """Return the system message of each context."""
        if self.hparams["rendering"] == "text":
            return ""
        if self.hparams["system"] is not None:
            return str(self.hparams["system"])
        if not self.task.chat:
            return self._common_system
        prompt = replace(registry.chat_prompt(self.task.name), examples=self.hparams["examples"])
        if prompt.examples and not self._examples:
            recorded = self.episodes[:_EXAMPLE_POOL] or first_episodes(self.task.name)
            self._examples = best_examples(recorded, prompt)
        return system_prompt(prompt, self.env or {}, self._examples)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """See `lmrl.tokens.collate.TokenBatch.to`."""
        if isinstance(batch, TokenBatch):
            return batch.to(device)
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def state_dict(self) -> dict[str, Any]:
        """The seed of the training."""
        return {"seed": self.seed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume where a run was saved."""
        self._seed = int(state_dict["seed"])

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        return self.spec.tokenizer or load_tokenizer()

    def _encoder(self) -> Encoder:
        window = self.window()
        encoder = encoder_for(self._tokenizer(), window)
        if isinstance(encoder, ChatEncoder):
            if not window.system and encoder.own_system:
                rank_zero_warn(
                    f"the chat template writes a system message of its own, {encoder.own_system!r:.200}: "
                    "data.init_args.system replaces it"
                )
            deviations = encoder.deviations
            if deviations:
                rank_zero_warn(f"the chat template is followed but for this: {'; '.join(deviations)}")
        return encoder

    def _segments(
        self, episode: Episode, encoder: Encoder, window: Window, prepared: Episode | None = None
    ) -> list[Segment]:
        """Return the segments of an episode, possibly prepared before. Errors name the recorded episode."""
        try:
            episode_segments = list(segments(episode if prepared is None else prepared, encoder, window))
            positions = self.spec.positions
            longest = max((len(segment.ids) for segment in episode_segments), default=0)
            if positions is not None and longest > positions:
                raise UserError(
                    f"needs {longest} tokens up to the end of an action, and the model reads {positions}: leave it "
                    "out, shorten it, or take a model that reads more"
                )
            return episode_segments
        except UserError as error:
            raise UserError(f"{self.path}: {self._place(episode)}: {error}") from error

    def _place(self, episode: Episode) -> str:
        """Return where an episode is in the file."""
        if self.task is registry.DIALOGUES:
            # All dialogues of the file are in `episodes`, some with a system message in another place.
            numbers = [number for number, known in enumerate(self.episodes, start=1) if known is episode]
            return f"dialogue {numbers[0]}"
        # Some rows of the file are no part of `episodes`, so the row is looked up in the file.
        rows = list(read_dataset(self.path, self.task.name))
        return f"episode {rows.index(episode) if episode in rows else '?'}"

    def _loader(
        self, episodes: Sequence[Episode], shuffle: bool, generator: torch.Generator | None
    ) -> DataLoader[TokenBatch]:
        encoder = self._encoder()
        window = self.window()
        size = self.hparams["consecutive"]
        encoded = self._encode(episodes, encoder, window)
        if shuffle:
            self._warn(encoded, encoder, window, len(episodes))
        chunks_per_batch = max(1, self.hparams["batch_size"] // size)
        order: Sampler[int] = SequentialSampler(encoded.chunks)
        if shuffle:
            order = RandomSampler(encoded.chunks, generator=generator)
        # The loss of a batch is divided by the tokens that batches have on average (`TokenBatch.scale`).
        _, world = rank_and_world_size()
        chunks_per_rank = math.ceil(len(encoded.chunks) / world)
        batches = world * math.ceil(chunks_per_rank / chunks_per_batch)
        workers = self.hparams["num_workers"]
        loader_type = ResumableLoader if shuffle else DataLoader
        return loader_type(
            encoded.chunks,  # type: ignore[arg-type]
            batch_sampler=ResumableBatches(order, chunks_per_batch, False, self.seed),
            generator=None if workers else generator,  # workers that are kept would not draw from it in each epoch
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=partial(
                _collate,
                pad=encoder.tokenizer.pad_token_id or 0,
                observations=self.spec.observations,
                bootstrap=self.spec.bootstrap,
                after=self.spec.after,
                expected=(encoded.n_action_tokens / batches, encoded.n_observation_tokens / batches),
            ),
        )

    def _encode(self, episodes: Sequence[Episode], encoder: Encoder, window: Window) -> "_Encoded":
        """Cut episodes into segments of ids, in chunks of `consecutive` segments."""
        size = self.hparams["consecutive"]
        encoded = _Encoded()
        prepared = episodes if self.spec.prepare is None else self.spec.prepare(episodes)
        rank, _ = rank_and_world_size()
        lines = LogLines(seconds=10.0, quiet=rank != 0)
        for number, (episode, read) in enumerate(zip(episodes, prepared, strict=True)):
            lines.say(f"encoding {self.path.name}: {number:,}/{len(episodes):,} episodes")
            episode_segments = self._segments(episode, encoder, window, read)
            episode_segments = _with_returns(episode_segments, self.spec.returns_gamma)
            fills_window = episode_segments[0].col[0] + 1 == window.tokens
            if len(episode_segments) > 1 or fills_window:
                encoded.n_shortened += 1
            for segment in episode_segments:
                ends = segment.turn_end & (segment.token == encoder.end)
                encoded.action_token_ids.update(segment.token[~ends].tolist())
                encoded.n_action_tokens += len(segment.col)
                encoded.n_observation_tokens += segment.n_observation_tokens
            for first in range(0, len(episode_segments), size):
                encoded.chunks.append(tuple(episode_segments[first : first + size]))
        return encoded

    def _warn(self, encoded: "_Encoded", encoder: Encoder, window: Window, n_episodes: int) -> None:
        """Say what of the training episodes the policy cannot read or cannot say."""
        if encoded.n_shortened and self.task is registry.DIALOGUES:
            rank_zero_warn(
                f"{self.path}: dialogues that are longer than the {window.tokens} tokens that the policy reads: "
                f"{encoded.n_shortened} of {n_episodes}; their beginnings are left out (a model with more positions "
                "reads more)"
            )
        never_sampled = encoded.action_token_ids & {*special_ids(encoder.tokenizer), encoder.end}
        if never_sampled:
            names = encoder.tokenizer.convert_ids_to_tokens(sorted(never_sampled))
            rank_zero_warn(
                f"{self.path}: actions hold special tokens of the tokenizer, which policies never say before the end "
                f"of a turn: {', '.join(map(repr, names))}"
            )


@dataclass
class _Encoded:
    """Episodes as segments, with counts over them."""

    chunks: list[SegmentChunk] = field(default_factory=list)
    action_token_ids: set[int] = field(default_factory=set)
    """Ids of the actions without the end of each turn."""
    n_action_tokens: int = 0
    n_observation_tokens: int = 0
    n_shortened: int = 0
    """Episodes whose beginning the policy does not read before every action."""


def _with_returns(episode_segments: list[Segment], gamma: float | None) -> list[Segment]:
    """Fill in the discounted returns of one episode's segments."""
    if gamma is None:
        return episode_segments
    # Rewards of later segments count too, so returns are computed over the episode and then cut.
    returns = returns_to_go(np.concatenate([segment.reward for segment in episode_segments]), gamma)
    filled = []
    lengths = [len(segment.reward) for segment in episode_segments]
    for segment, segment_returns in zip(episode_segments, split_by_length(returns, lengths), strict=True):
        filled.append(replace(segment, return_to_go=segment_returns))
    return filled


def _collate(chunks: Sequence[SegmentChunk], **settings: Any) -> TokenBatch:
    return collate(list(chain.from_iterable(chunks)), **settings)
