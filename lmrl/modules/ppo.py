"""Proximal policy optimisation of a language model over whole episodes."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from lmrl.distributed import gathered, place
from lmrl.errors import UserError, check_range
from lmrl.losses import Experience, KLController, PPOLoss, bc_loss, ppo_loss, spoken
from lmrl.models.heads import ValueHead, frozen_copy
from lmrl.models.lm import head_of, trunk_of, vocabulary_of
from lmrl.modules.base import LanguageModule
from lmrl.policies import LMPolicy, RerankPolicy
from lmrl.policies.context import invalid_ids
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.encoding import encoder_for
from lmrl.tokens.segments import Segment
from lmrl.training.rounds import judge, log_now
from lmrl.types import Episode, Policy

__all__ = ["PPO"]

T = TypeVar("T")


class PPO(LanguageModule):
    """Learns from rounds that it plays itself: clipped ratios, advantages over the action tokens of all turns.

    Schulman et al. 2017, with the price of leaving the start policy in the rewards (Ziegler et al. 2019), in the form
    of Abdulhai et al. 2025 with its episode ends corrected. The value head sits on the policy's trunk.
    """

    name = "ppo"
    starts_from_bc = True
    on_policy = True
    in_steps = False
    silent = ("start",)
    invalid: Tensor

    def __init__(
        self,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip: float = 0.2,
        value_clip: float | None = 0.2,
        value_weight: float = 0.5,
        entropy_weight: float = 0.0,
        kl_weight: float = 0.001,
        kl_target: float | None = None,
        kl_horizon: float | None = None,
        bc_weight: float = 0.0,
        head_bias: float = 0.0,
        **shared: Any,
    ) -> None:
        """Build the policy, its value head, and the frozen copy that it starts from.

        Args:
            gamma: discount per action token.
            gae_lambda: of the advantages: 0 trusts V after one token, 1 trusts the rewards alone.
            clip: how far the ratio of new to old probability may pay to move from 1.
            value_clip: likewise for V and its old value; None does not clip.
            value_weight: weight of the value loss.
            entropy_weight: weight of an entropy bonus; 0 as published.
            kl_weight: price of a nat between policy and start policy, per action token.
            kl_target: KL per action token towards which the price is moved after each round; None keeps the price.
            kl_horizon: episodes that it takes to change the price by a factor of about e; goes with `kl_target`.
            bc_weight: weight of the BC loss on recorded episodes; needs ``data.init_args.offline``.
            head_bias: V everywhere at the start; near the data's typical return.
            **shared: arguments of `LanguageModule`.

        Raises:
            UserError: only one of `kl_target` and `kl_horizon`, a number outside of its range, and as `LanguageModule`.
        """
        check_range("[0, 1]", gamma=gamma, gae_lambda=gae_lambda)
        check_range("[0, inf)", clip=clip, value_clip=value_clip)
        weights = {"value_weight": value_weight, "entropy_weight": entropy_weight, "bc_weight": bc_weight}
        check_range("[0, inf)", kl_weight=kl_weight, **weights)
        check_range("(-inf, inf)", head_bias=head_bias)
        super().__init__(**shared)
        self.clip, self.value_clip = clip, value_clip
        self.value_weight, self.entropy_weight = value_weight, entropy_weight
        self.gamma, self.gae_lambda, self.bc_weight = gamma, gae_lambda, bc_weight
        self.kl_weight, self.controller = kl_weight, KLController(kl_target, kl_horizon)
        self.v_head = ValueHead(int(self.model.config.hidden_size), 1, head_bias)
        self.start: nn.Module = frozen_copy(self.model)
        invalid = invalid_ids(self.tokenizer, vocabulary_of(self.model), torch.device("cpu"))
        self.register_buffer("invalid", invalid, persistent=False)

    def setup(self, stage: str) -> None:
        """Have rounds prepared.

        Raises:
            UserError: if the datamodule does not play rounds, keeps old ones, or lacks what `bc_weight` needs.
        """
        super().setup(stage)
        end = encoder_for(self.tokenizer, self.window).end
        self.invalid = invalid_ids(self.tokenizer, vocabulary_of(self.model), self.invalid.device, end)
        data: Any = getattr(self.trainer, "datamodule", None)
        if data is None or not hasattr(data, "digest"):
            raise UserError(f"{type(self).__name__} learns from what it plays: use lmrl.datamodules.OnlineDataModule")
        for name, wanted in (("history", False), ("offline", self.bc_weight > 0.0)):
            if data.hparams[name] != wanted:
                raise UserError(f"with bc_weight {self.bc_weight}, data.init_args.{name} must be {wanted}")
        self.ask(digest=lambda *played: self.experience(*played))  # looked up late: sharding wraps it

    # -- a round ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def experience(self, episodes: Sequence[Episode], parts: Sequence[list[Segment]]) -> list[list[Segment]]:
        """Attach to each action token what `lmrl.losses.Experience` holds, and set the price of the next round.

        Args:
            episodes: of the round, with what was sampled.
            parts: segments of each.

        Raises:
            UserError: if they do not hold what was noted about exactly the tokens in the segments.
        """
        found = judge(
            episodes,
            parts,
            self._start_logprobs(parts),
            self._end_values(parts),
            kl_weight=self.kl_weight,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )
        metrics = {"kl": found.kl, "kl_weight": self.kl_weight, "explained_variance": found.explained_variance}
        log_now(self.trainer, {f"{self.name}/{name}": number for name, number in metrics.items()})
        self.kl_weight = self.controller.after(self.kl_weight, found.kl, len(episodes))
        return found.parts

    def _start_logprobs(self, parts: Sequence[list[Segment]]) -> list[NDArray[np.float64]]:
        """(T,) per episode: what the frozen start policy thinks of each token."""

        def logprobs(batch: TokenBatch, sizes: Tensor) -> NDArray[np.float64]:
            now = spoken(self.start_logits(batch), batch.state, batch.token, self.invalid)
            return now.logprob.double().cpu().numpy()

        found = self._read([segment for its in parts for segment in its], logprobs, bootstrap=False)
        ends = np.cumsum([sum(len(segment.col) for segment in its) for its in parts])
        return np.split(np.concatenate([np.zeros(0), *found]), ends)[:-1]

    def _end_values(self, parts: Sequence[list[Segment]]) -> list[float]:
        """V of the state after the last observation of each episode; 0 where the rules ended it."""

        def ends(batch: TokenBatch, sizes: Tensor) -> list[float]:
            assert batch.next is not None
            found: list[float] = self.scores(batch)[1][batch.next[torch.cumsum(sizes, 0) - 1]].tolist()
            return found

        values = [0.0] * len(parts)
        cut = [index for index, its in enumerate(parts) if its[-1].next_ids is not None]
        found = self._read([parts[index][-1] for index in cut], ends, bootstrap=True)
        for index, value in zip(cut, [value for group in found for value in group], strict=True):
            values[index] = value
        return values

    def _read(self, parts: Sequence[Segment], use: Callable[[TokenBatch, Tensor], T], bootstrap: bool) -> list[T]:
        """What a function makes of batches of segments and of how many action tokens each of their segments has.

        Ranks share the batches. Where there is none left for a rank, it reads the last one too: if the weights are in
        shards, forward passes are made by all together.
        """
        rank, world = place()
        size = int(self.trainer.datamodule.hparams["batch_size"])  # type: ignore[attr-defined]
        groups = [parts[first : first + size] for first in range(0, len(parts), size)]
        mine = []
        for first in range(0, len(groups), world):
            group = groups[min(first + rank, len(groups) - 1)]
            sizes = torch.tensor([len(segment.col) for segment in group])
            mine.append(use(*move_data_to_device((collate(group, bootstrap=bootstrap), sizes), self.device)))
        found = gathered(mine)
        return [found[index % world][index // world] for index in range(len(groups))]

    # -- learning -----------------------------------------------------------------------------------------------

    def scores(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """(S, vocabulary) logits of the policy, and (S,) V in float32."""
        hidden = self.hidden_states(trunk_of(self.model), batch)
        return head_of(self.model)(hidden), self.v_head(hidden).squeeze(-1)

    def start_logits(self, batch: TokenBatch) -> Tensor:
        """(S, vocabulary) logits of the frozen start policy."""
        assert isinstance(self.start, PreTrainedModel)
        logits: Tensor = head_of(self.start)(self.hidden_states(trunk_of(self.start), batch))
        return logits

    def losses(self, batch: TokenBatch) -> PPOLoss:
        """Clipped policy and value loss of a minibatch of a round.

        Raises:
            UserError: for a batch that was never prepared by `experience`.
        """
        if batch.extra is None:
            raise UserError("PPO learns from rounds that it has played and prepared, not from recorded batches")
        logits, value = self.scores(batch)
        now = spoken(logits, batch.state, batch.token, self.invalid)
        return ppo_loss(
            now,
            value[batch.state],
            Experience(*batch.extra),
            clip=self.clip,
            value_clip=self.value_clip,
            value_weight=self.value_weight,
            entropy_weight=self.entropy_weight,
        )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """See `LanguageModule.training_step`; a BC batch beside it adds its loss, divided by its own expectation."""
        if isinstance(batch, TokenBatch):
            return super().training_step(batch, batch_idx)
        played, recorded = batch["round"], batch["bc"]
        imitation = bc_loss(self.scores(recorded)[0], recorded.state, recorded.token).loss
        shown = {"on_step": False, "on_epoch": True, "batch_size": max(1, recorded.n_tokens), "sync_dist": True}
        self.log(f"{self.name}/bc_loss", imitation.detach(), **shown)
        loss: Tensor = super().training_step(played, batch_idx) + self.bc_weight * imitation * recorded.scale
        return loss

    def _over_ranks(self, terms: dict[str, Tensor], count: int) -> tuple[dict[str, Tensor], int]:
        """Means, but of the ratios the one that is farthest from 1."""
        name = f"{self.name}/ratio"
        low, high = (torch.maximum(sign * terms[name].log(), terms[name].new_zeros(())) for sign in (-1.0, 1.0))
        low, high = self.trainer.strategy.reduce(torch.stack([low, high]), reduce_op="max")
        means, tokens = super()._over_ranks(terms, count)
        return {**means, name: torch.where(high >= low, high, -low).exp()}, tokens

    def _log_terms(self, terms: dict[str, Tensor], count: int, stage: str) -> None:
        """Means over a round; and how far the first ratios are from 1, which they must be."""
        ratio = terms[f"{self.name}/ratio"]
        if self.trainer.datamodule.consumed == 1:  # type: ignore[attr-defined]
            log_now(self.trainer, {f"{self.name}/first_ratio": ratio.item()})
            if abs(ratio.item() - 1.0) > 0.05:
                said = f"a ratio of the first minibatch is {ratio.item():.3f}, not 1"
                rank_zero_warn(f"{said}: what is trained is not the distribution that was sampled from")
        self.log_dict(terms, batch_size=max(1, count), on_step=False, on_epoch=True)

    def train(self, mode: bool = True) -> "PPO":
        """Training mode for what learns; the start policy stays in eval mode."""
        super().train(mode)
        self.start.train(False)
        return self

    # -- playing ------------------------------------------------------------------------------------------------

    def policy(self, **settings: Any) -> Policy:
        """Sample from the model; replies hold V. `settings` as of `lmrl.policies.LMPolicy`."""
        return LMPolicy(self.model, self.tokenizer, self.reading(), v_head=self.v_head, **settings)

    def reranker(self, proposals: Sequence[str], **settings: Any) -> RerankPolicy:
        """By likelihood; `settings` as of `lmrl.policies.RerankPolicy`."""
        return RerankPolicy(self.model, self.tokenizer, self.reading(), proposals=proposals, **settings)

    # -- checkpoints --------------------------------------------------------------------------------------------

    def values(self) -> dict[str, Tensor]:
        """The value head (``v_head.*``), which reads the language model's own hidden vectors."""
        return {f"v_head.{name}": tensor for name, tensor in self.v_head.state_dict().items()}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the price of a nat too."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["lmrl"]["kl_weight"] = self.kl_weight

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """See `LanguageModule.on_load_checkpoint`."""
        super().on_load_checkpoint(checkpoint)
        self.kl_weight = float(checkpoint["lmrl"]["kl_weight"])
