"""Floating-point operations that a training step requires, and peaks of GPUs, for model FLOPs utilisation (MFU).

The formula is that of Chowdhery et al. 2022 ("PaLM", appendix B). A forward pass costs 2 per weight of a matrix and
token, a backward pass twice as much: ``6 N`` per token, and for attention ``12 L H T`` (L layers whose heads are H wide
together, T tokens in a row; scores and weighted sums of all T x T pairs, nothing is deducted for causality). N is
counted by parts, since not all weights meet all tokens:

- the matrices inside of a trunk, for every id that is read, padding left out. Of a mixture of experts, a token meets
  `num_experts_per_tok` experts;
- the vocabulary head and heads of values, for the states before action tokens alone.

A part that does not learn costs ``2 N``, as target networks do. Below adapters (LoRA) a frozen matrix costs ``4 N``:
its own gradient is not needed, that of its input is.

Embeddings, norms, biases, losses, the optimizer, the move of target networks and what is computed a second time to save
memory do not count; nor do steps between the batches of a round, such as the fit of a detached critic. Playing costs
``2 N`` per id of what the policy reads and says in an episode, each id once, as if the states of all of it were kept.
"""

from typing import NamedTuple

from torch import nn
from transformers import PreTrainedModel

from lmrl.models.lm import head_of, trunk_of
from lmrl.tokens.amounts import Amounts
from lmrl.tokens.collate import TokenBatch

__all__ = [
    "StepCost", "data_sheet_peak", "has_learning", "lm_cost",
    "matmul_flops", "playing_cost", "total_cost", "trunk_cost",
]  # fmt: skip

# The cost of a layer, in forward passes through it.
_FORWARD_PASSES = 1
_FROZEN_PASSES = 2  # forward, and back to the input
_LEARNING_PASSES = 3  # forward, back to the input, and the gradient of the weight

#: Dense bfloat16 FLOP/s (no sparsity) from NVIDIA's data sheets, by what the name of a device contains. The first that
#: fits counts, so the variants of a model come before it.
_DATA_SHEETS = {
    "B200": 2.25e15,
    "GH200": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
}


class StepCost(NamedTuple):
    """Floating-point operations of a training step, per unit of what its batch holds."""

    per_id: int = 0
    """Per id that is read."""
    per_pair: int = 0
    """Per pair of ids in a row."""
    per_state: int = 0
    per_token: int = 0
    """Per action token."""

    def of_batch(self, batch: TokenBatch) -> int:
        """Return the FLOPs of a training step on a batch. Nothing is read from the device."""
        ids = sum(batch.lengths)
        pairs = sum(length**2 for length in batch.lengths)
        return self.of_amounts(Amounts(ids=ids, pairs=pairs, states=len(batch.row), tokens=batch.n_tokens))

    def of_amounts(self, amounts: Amounts) -> int:
        """Return the FLOPs of reading this much."""
        return (
            self.per_id * amounts.ids
            + self.per_pair * amounts.pairs
            + self.per_state * amounts.states
            + self.per_token * amounts.tokens
        )


def total_cost(*costs: StepCost) -> StepCost:
    """Return the sum of the costs of parts."""
    return StepCost(
        per_id=sum(cost.per_id for cost in costs),
        per_pair=sum(cost.per_pair for cost in costs),
        per_state=sum(cost.per_state for cost in costs),
        per_token=sum(cost.per_token for cost in costs),
    )


def trunk_cost(trunk: PreTrainedModel, learns: bool | None = None) -> StepCost:
    """Return the cost of reading the rows of a batch, and of learning for as much of the trunk as learns.

    Args:
        trunk: trunk of a language model.
        learns: whether there is a gradient; None: where a weight learns.
    """
    config = trunk.config
    if learns is None:
        learns = has_learning(trunk)
    # All query heads count, also where they share keys and values. A model without attention has none.
    heads = getattr(config, "num_attention_heads", None) or 0
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // max(1, heads))
    passes = _LEARNING_PASSES if learns else _FORWARD_PASSES
    return StepCost(per_id=matmul_flops(trunk, learns), per_pair=4 * passes * config.num_hidden_layers * width)


def lm_cost(model: PreTrainedModel) -> StepCost:
    """Return the cost of a language model with its vocabulary head at all states."""
    head = StepCost(per_state=matmul_flops(head_of(model), has_learning(model)))
    return total_cost(trunk_cost(trunk_of(model)), head)


def playing_cost(model: PreTrainedModel) -> StepCost:
    """Return the cost of a language model that only reads, with its vocabulary head at the states of action tokens."""
    head = StepCost(per_state=matmul_flops(head_of(model), learns=False))
    return total_cost(trunk_cost(trunk_of(model), learns=False), head)


def matmul_flops(module: nn.Module, learns: bool) -> int:
    """Return the cost per vector of the matrices of a trunk or head.

    Args:
        module: any; embeddings in it do not count.
        learns: whether a gradient goes through it.
    """
    config = getattr(module, "config", None)
    share = 1.0  # share of its experts that a token meets
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        experts = getattr(config, name, None)
        if experts:
            share = getattr(config, "num_experts_per_tok", experts) / experts
    flops = 0.0
    for prefix, part in module.named_modules():
        if isinstance(part, nn.Embedding):
            continue
        for name, parameter in part.named_parameters(recurse=False):
            if parameter.ndim < 2:
                continue
            passes = _FORWARD_PASSES
            if learns:
                passes = _LEARNING_PASSES if parameter.requires_grad else _FROZEN_PASSES
            met = share if ".experts." in f"{prefix}.{name}" else 1.0
            flops += 2 * passes * met * parameter.numel()
    return round(flops)


def has_learning(module: nn.Module) -> bool:
    """Whether any parameter of a module learns."""
    return any(parameter.requires_grad for parameter in module.parameters())


def data_sheet_peak(name: str) -> float | None:
    """Return FLOP/s in dense bfloat16 by the data sheet, for a GPU by its name; None if it is unknown."""
    # A slice of a GPU (MIG) has the name of the whole and a share of its peak.
    for part, peak in _DATA_SHEETS.items():
        if part in name and "MIG" not in name:
            return peak
    return None
