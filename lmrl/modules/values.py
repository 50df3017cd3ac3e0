"""What MC and ILQL share: a frozen policy, a value model beside it, and the policy that plays both."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from lmrl.batch import TokenBatch
from lmrl.errors import UserError
from lmrl.losses import Taken
from lmrl.models.export import exported_values
from lmrl.models.heads import ValueHead
from lmrl.models.lm import trunk_of, vocabulary_of
from lmrl.models.runs import resolve_pretrained
from lmrl.modules.base import LanguageModule
from lmrl.policies import RerankPolicy, ValueGuidedPolicy

__all__ = ["ValueModule"]


class ValueModule(LanguageModule):
    """The model of the BC run stays frozen as pi_beta; a copy of its trunk carries the Q heads.

    Started from a run with values of the same kind, it goes on from those instead (offline to online).
    """

    starts_from_bc = True
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
            UserError: for a rank below one, and as `LanguageModule`.
        """
        super().__init__(**shared)
        if q_rank is not None and q_rank < 1:
            raise UserError(f"q_rank must be at least 1, got {q_rank}")
        self.beta = beta
        self.model.requires_grad_(False).train(False)
        self.trunk: PreTrainedModel = deepcopy(trunk_of(self.model)).requires_grad_(True)
        width, vocabulary = int(self.model.config.hidden_size), vocabulary_of(self.model)
        self.q_heads = nn.ModuleList([ValueHead(width, vocabulary, head_bias, q_rank) for _ in range(self.heads)])
        self.v_head: nn.Module | None = None

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
        ours = {key: tensor.shape for key, tensor in self.values().items()}
        if ours != {key: tensor.shape for key, tensor in learned.items()}:
            parts = ", ".join(sorted({key.split(".")[0] for key in learned}))
            said = f"has others ({parts})" if learned else "has none"
            raise UserError(f"{type(self).__name__} goes on from values of its own kind; {name!r} {said}")
        self.load_state_dict(learned, strict=False)

    def train(self, mode: bool = True) -> "ValueModule":
        """Training mode for what learns; the frozen policy stays in eval mode."""
        super().train(mode)
        self.model.train(False)
        return self

    def policy(self, beta: float | None = None, **settings: Any) -> ValueGuidedPolicy:
        """Sample from ``log pi_beta + beta * min Q``; `settings` as of `lmrl.policies.ValueGuidedPolicy`."""
        return ValueGuidedPolicy(
            self.model,
            self.tokenizer,
            self.reading(),
            value_model=self.trunk,
            q_heads=list(self.q_heads),
            v_head=self._value if self.v_head is not None else None,
            beta=self.beta if beta is None else beta,
            **settings,
        )

    def reranker(self, proposals: Sequence[str], **settings: Any) -> RerankPolicy:
        """By ``sum (min Q - V)`` over an action's tokens; `settings` as of `lmrl.policies.RerankPolicy`."""
        return RerankPolicy(
            self.model,
            self.tokenizer,
            self.reading(),
            proposals=proposals,
            score="value",
            value_model=self.trunk,
            q_heads=list(self.q_heads),
            v_head=self._value if self.v_head is not None else None,
            **settings,
        )

    def q_taken(self, hidden: Tensor, batch: TokenBatch) -> list[Taken]:
        """What each Q head says, on (S, width) hidden vectors, about the action tokens of a batch."""
        return [head.taken(hidden, batch.state, batch.token) for head in cast(Iterable[ValueHead], self.q_heads)]

    def _value(self, hidden: Tensor) -> Tensor:
        """(n, width) to (n,)."""
        assert self.v_head is not None
        value: Tensor = self.v_head(hidden).squeeze(-1)
        return value

    def values(self) -> dict[str, Tensor]:
        """The trunk and the heads on it, by name (``trunk.*``, ``q_heads.*``, ``v_head.*``)."""
        parts = {"trunk": self.trunk, "q_heads": self.q_heads, "v_head": self.v_head}
        return {
            f"{name}.{key}": tensor
            for name, part in parts.items()
            if part is not None
            for key, tensor in part.state_dict().items()
        }
