"""What MC and ILQL share: a frozen policy, a value model beside it, and the policy that plays both."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from lmrl.errors import UserError, check_range
from lmrl.losses import Taken
from lmrl.models.checkpoints import resolve_pretrained
from lmrl.models.export import exported_values
from lmrl.models.heads import ValueHead, sharing_copy
from lmrl.models.lm import trunk_of, vocabulary_of
from lmrl.models.lora import adapter_weights, add_lora
from lmrl.modules.base import LanguageModule
from lmrl.policies import RerankPolicy, ValueGuidedPolicy
from lmrl.tokens.collate import TokenBatch

__all__ = ["Played", "ValueModule"]


class Played(NamedTuple):
    """The value model that plays."""

    trunk: PreTrainedModel
    q_heads: nn.ModuleList
    v_head: nn.Module | None


class ValueModule(LanguageModule):
    """The model of the BC run stays frozen as pi_beta; a copy of its trunk carries the Q heads.

    With `lora` that copy is of the modules only: it holds the very parameters of pi_beta, and adapters of its own.
    Started from a run with values of the same kind, it goes on from those instead (offline to online).
    """

    starts_from_bc = True
    policy_learns = False
    #: Whether it has to start from a run that has learned values already.
    needs_values = False
    #: Number of Q heads.
    heads = 1

    def __init__(self, beta: float = 8.0, head_bias: float = 0.0, q_rank: int | None = None, **shared: Any) -> None:
        """Build the value model beside the frozen policy.

        Args:
            beta: how strongly Q moves the policy when it plays.
            head_bias: what the heads say everywhere at the start; near the data's typical return.
            q_rank: width of the layer inside of the Q heads; None: that of the trunk. A small one makes heads over a
                large vocabulary light: the Q of all words in all states is then a matrix of this rank.
            **shared: arguments of `LanguageModule`.

        Raises:
            UserError: for a number outside of its range, and as `LanguageModule`.
        """
        check_range("[0, inf)", beta=beta)
        check_range("(-inf, inf)", head_bias=head_bias)
        check_range("[1, inf)", q_rank=q_rank)
        super().__init__(**shared)
        self.beta = beta
        self.trunk: PreTrainedModel = sharing_copy(trunk_of(self.model))
        self.model.requires_grad_(False).train(False)
        if self.hparams["lora"] is not None:
            add_lora(self.trunk, self.hparams["lora"])
        width, vocabulary = int(self.model.config.hidden_size), vocabulary_of(self.model)
        self.q_heads = nn.ModuleList([ValueHead(width, vocabulary, head_bias, q_rank) for _ in range(self.heads)])
        self.v_head: nn.Module | None = None

    @property
    def learner(self) -> PreTrainedModel:
        """The trunk under the heads."""
        return self.trunk

    @property
    def played(self) -> Played:
        """What plays beside pi_beta, and what is exported: `ILQL` may play its slow copies."""
        return Played(self.trunk, self.q_heads, self.v_head)

    def take_over_values(self) -> None:
        """If the run that it starts from has learned values, go on from them. Call it when all heads are there.

        Raises:
            UserError: if these are values of another kind, or there are none where they are needed.
        """
        name = self.hparams["pretrained"]
        if name is None or next(self.trunk.parameters()).is_meta:  # the first process takes them over for all
            return
        learned = exported_values(resolve_pretrained(name))
        if not learned and not self.needs_values:
            return
        own = self._weights(Played(self.trunk, self.q_heads, self.v_head))
        ours = {key: tensor.shape for key, tensor in own.items()}
        if ours != {key: tensor.shape for key, tensor in learned.items()}:
            parts = ", ".join(sorted({key.split(".")[0] for key in learned}))
            said = f"has others ({parts})" if learned else "has none"
            same = "" if self.hparams["lora"] is None else ", with the same lora"
            raise UserError(f"{type(self).__name__} goes on from values of its own kind{same}; {name!r} {said}")
        self.load_state_dict(learned, strict=False)

    def train(self, mode: bool = True) -> "ValueModule":
        """Training mode for what learns; the frozen policy stays in eval mode."""
        super().train(mode)
        self.model.train(False)
        return self

    def policy(self, beta: float | None = None, **settings: Any) -> ValueGuidedPolicy:
        """Sample from ``log pi_beta + beta * min Q``; `settings` as of `lmrl.policies.ValueGuidedPolicy`."""
        trunk, q_heads, v_head = self.played
        return ValueGuidedPolicy(
            self.model,
            self.tokenizer,
            self.reading(),
            value_model=trunk,
            q_heads=list(q_heads),
            v_head=v_head,
            beta=self.beta if beta is None else beta,
            **settings,
        )

    def reranker(self, proposals: Sequence[str], **settings: Any) -> RerankPolicy:
        """By ``sum (min Q - V)`` over an action's tokens; `settings` as of `lmrl.policies.RerankPolicy`."""
        trunk, q_heads, v_head = self.played
        return RerankPolicy(
            self.model,
            self.tokenizer,
            self.reading(),
            proposals=proposals,
            score="value",
            value_model=trunk,
            q_heads=list(q_heads),
            v_head=v_head,
            **settings,
        )

    def q_taken(self, hidden: Tensor, batch: TokenBatch) -> list[Taken]:
        """What each Q head says, on (S, width) hidden vectors, about the action tokens of a batch."""
        return [head.taken(hidden, batch.state, batch.token) for head in cast(Iterable[ValueHead], self.q_heads)]

    def values(self) -> dict[str, Tensor]:
        """Trunk (its adapters, where it has some) and heads that play: ``trunk.*``, ``q_heads.*``, ``v_head.*``."""
        return self._weights(self.played)

    def _weights(self, played: Played) -> dict[str, Tensor]:
        trunk, q_heads, v_head = played
        parts = {"trunk": trunk.state_dict() if self.hparams["lora"] is None else adapter_weights(trunk)}
        heads = {"q_heads": q_heads, "v_head": v_head}
        parts |= {name: part.state_dict() for name, part in heads.items() if part is not None}
        return {f"{name}.{key}": tensor for name, part in parts.items() for key, tensor in part.items()}
