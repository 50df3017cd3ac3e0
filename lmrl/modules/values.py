"""Parts that MC and ILQL share: a frozen policy, a separate value model, and the policy that combines them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from lmrl.checkpoints.export import exported_values
from lmrl.checkpoints.reading import resolve_pretrained
from lmrl.errors import UserError, check_range
from lmrl.losses import TokenScores
from lmrl.models.heads import ValueHead, copy_sharing_frozen, polyak_update
from lmrl.models.lm import trunk_of, vocabulary_of
from lmrl.models.lora import adapter_weights, add_lora
from lmrl.modules.base import LanguageModule
from lmrl.policies import RerankPolicy, ValueGuidedPolicy
from lmrl.tokens.collate import TokenBatch
from lmrl.training.flops import StepCost, matmul_flops, total_cost, trunk_cost

__all__ = [
    "ValueModel",
    "ValueModule",
    "build_q_heads",
    "freeze_and_copy",
    "load_pretrained_values",
    "update_target",
]


class ValueModel(NamedTuple):
    """A trunk and the heads on it."""

    trunk: PreTrainedModel
    q_heads: nn.ModuleList
    v_head: nn.Module | None

    def policy(self, module: LanguageModule, beta: float, **settings: Any) -> ValueGuidedPolicy:
        """Sample from ``log pi_beta + beta * min Q``; pi_beta is the language model of the module."""
        window = module.context_window()
        return ValueGuidedPolicy(module.model, module.tokenizer, window, **self._parts(), beta=beta, **settings)

    def reranker(self, module: LanguageModule, proposals: Sequence[str], **settings: Any) -> RerankPolicy:
        """Score actions by ``sum (min Q - V)`` over their tokens."""
        scored: dict[str, Any] = {"proposals": proposals, "score": "value", **self._parts(), **settings}
        return RerankPolicy(module.model, module.tokenizer, module.context_window(), **scored)

    def state_dict(self, lora: bool) -> dict[str, Tensor]:
        """Trunk (with `lora` its adapters alone) and heads: ``trunk.*``, ``q_heads.*``, ``v_head.*``."""
        trunk = adapter_weights(self.trunk) if lora else self.trunk.state_dict()
        weights = {f"trunk.{name}": tensor for name, tensor in trunk.items()}
        weights |= self.q_heads.state_dict(prefix="q_heads.")
        if self.v_head is not None:
            weights |= self.v_head.state_dict(prefix="v_head.")
        return weights

    def _parts(self) -> dict[str, Any]:
        return {"value_model": self.trunk, "q_heads": list(self.q_heads), "v_head": self.v_head}


def freeze_and_copy(model: PreTrainedModel, part: PreTrainedModel, lora: Mapping[str, Any] | None) -> PreTrainedModel:
    """Freeze `model` and put it into eval mode. Return a trainable copy of `part`.

    Args:
        model: the policy.
        part: the model itself, or its trunk.
        lora: settings of `lmrl.models.lora.add_lora`: the copy shares the frozen weights and gets adapters; None: the
            weights are copied and learn.
    """
    # Parameters that are frozen before the copy are shared with it, the others are copied.
    if lora is not None:
        model.requires_grad_(False)
    copy: PreTrainedModel = copy_sharing_frozen(part)
    model.requires_grad_(False).train(False)
    if lora is not None:
        add_lora(copy, lora)
    return copy


def build_q_heads(model: PreTrainedModel, count: int, bias: float, rank: int | None) -> nn.ModuleList:
    """Q heads over the vocabulary of a model, on hidden vectors as wide as its own."""
    width = int(model.config.hidden_size)
    vocabulary = vocabulary_of(model)
    return nn.ModuleList([ValueHead(width, vocabulary, bias, rank) for _ in range(count)])


def load_pretrained_values(module: LanguageModule, own: Mapping[str, Tensor], required: bool = False) -> None:
    """If the run that a module starts from has learned values, start from them (offline to online).

    Args:
        module: its `pretrained` may be such a run.
        own: its value weights, as its `value_state_dict` names them.
        required: whether the run must have values.

    Raises:
        UserError: if these are values of another kind, or there are none where they are required.
    """
    pretrained = module.hparams["pretrained"]
    if pretrained is None or next(iter(own.values())).is_meta:  # the first process loads them for all
        return
    saved = exported_values(resolve_pretrained(pretrained))
    if not saved and not required:
        return
    is_same_kind = own.keys() == saved.keys() and all(own[key].shape == saved[key].shape for key in own)
    if not is_same_kind:
        parts = ", ".join(sorted({key.split(".")[0] for key in saved}))
        reason = f"has others ({parts})" if saved else "has none"
        same = ", with the same lora" if module.hparams["lora"] is not None else ""
        raise UserError(f"{type(module).__name__} goes on from values of its own kind{same}; {pretrained!r} {reason}")
    module.load_state_dict(saved, strict=False)


def update_target(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Move a target network towards an online one of the same structure; see `lmrl.models.heads.polyak_update`."""
    targets = []
    learning = []
    for target_parameter, parameter in zip(target.parameters(), online.parameters(), strict=True):
        # Frozen parameters are the same in both.
        if parameter.requires_grad:
            targets.append(target_parameter)
            learning.append(parameter)
    polyak_update(targets, learning, rate)


class ValueModule(LanguageModule):
    """The model of the BC run stays frozen as pi_beta; a copy of its trunk carries the Q heads.

    With `lora` that copy is of the modules only: it holds the very parameters of pi_beta, and adapters of its own.
    If it starts from a run with values of the same kind, it resumes from those instead (offline to online).
    """

    starts_from_bc = True
    always_eval: tuple[str, ...] = ("model",)
    #: Number of Q heads.
    heads = 1

    def __init__(self, beta: float = 8.0, head_bias: float = 0.0, q_rank: int | None = None, **shared: Any) -> None:
        """Build the value model next to the frozen policy.

        Args:
            beta: how strongly Q moves the policy when it acts.
            head_bias: output of the heads everywhere at the start; near the data's typical return.
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
        self.trunk = freeze_and_copy(self.model, trunk_of(self.model), self.hparams["lora"])
        self.q_heads = build_q_heads(self.model, self.heads, head_bias, q_rank)
        self.v_head: nn.Module | None = None

    def add_adapters(self, lora: Mapping[str, Any] | None) -> None:
        """Put none on the policy, which does not learn; the trunk of the values has its own."""

    @property
    def trainable_model(self) -> PreTrainedModel:
        """The trunk under the heads."""
        return self.trunk

    @property
    def value_model(self) -> ValueModel:
        """Return the model that learns."""
        return ValueModel(self.trunk, self.q_heads, self.v_head)

    @property
    def played_values(self) -> ValueModel:
        """Return the values that guide pi_beta, and that are exported. `ILQL` may use its target networks."""
        return self.value_model

    def policy(self, beta: float | None = None, **settings: Any) -> ValueGuidedPolicy:
        """Sample from ``log pi_beta + beta * min Q``; for `settings` see `lmrl.policies.ValueGuidedPolicy`."""
        return self.played_values.policy(self, self.beta if beta is None else beta, **settings)

    def reranker(self, proposals: Sequence[str], **settings: Any) -> RerankPolicy:
        """Rank actions by the sum of ``min Q - V`` over tokens; for `settings` see `lmrl.policies.RerankPolicy`."""
        return self.played_values.reranker(self, proposals, **settings)

    def gather_q(self, hidden: Tensor, batch: TokenBatch) -> list[TokenScores]:
        """Return each Q head's values for the action tokens of a batch, given (S, width) hidden vectors."""
        heads = cast(Iterable[ValueHead], self.q_heads)
        return [head.gather_token_scores(hidden, batch.state, batch.token) for head in heads]

    def step_cost(self) -> StepCost:
        """The trunk of the values and the heads on it; the frozen policy is not run in training."""
        heads = matmul_flops(self.q_heads, learns=True)
        if self.v_head is not None:
            heads += matmul_flops(self.v_head, learns=True)
        return total_cost(trunk_cost(self.trunk), StepCost(per_state=heads))

    def round_cost(self) -> StepCost:
        """The frozen policy, the trunk of the values and the heads on it."""
        heads = matmul_flops(self.q_heads, learns=False)
        if self.v_head is not None:
            heads += matmul_flops(self.v_head, learns=False)
        values = trunk_cost(self.trunk, learns=False)
        return total_cost(super().round_cost(), values, StepCost(per_state=heads))

    def value_state_dict(self) -> dict[str, Tensor]:
        """Trunk (its adapters, where it has some) and heads that play: ``trunk.*``, ``q_heads.*``, ``v_head.*``."""
        return self.played_values.state_dict(self.hparams["lora"] is not None)
