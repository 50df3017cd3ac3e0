"""Additive 4-D attention masks for rows with lengths of their own: 0 is seen, -inf is not."""

import torch
from torch import Tensor

__all__ = ["causal_mask", "tree_mask"]


def causal_mask(positions: Tensor, used: int, dtype: torch.dtype) -> Tensor:
    """Every token sees the columns up to its own position.

    Args:
        positions: ``(rows, new)``.
        used: columns in all.
        dtype: of the model's hidden vectors.

    Returns:
        ``(rows, 1, new, used)``.
    """
    columns = torch.arange(used, device=positions.device)
    return _additive(columns <= positions[:, :, None], dtype)


def tree_mask(owner: Tensor, depth: Tensor, start: Tensor, used: int, dtype: torch.dtype) -> Tensor:
    """Continuations side by side behind each row's context: a token sees the context and what is before it in its own.

    Args:
        owner: ``(new,)``, which continuation a token belongs to.
        depth: ``(new,)``, its place in there.
        start: ``(rows,)``, lengths of the contexts; the tokens lie in the columns from there on.
        used: columns in all.
        dtype: of the model's hidden vectors.

    Returns:
        ``(rows, 1, new, used)``.
    """
    new = owner.shape[0]
    family = (owner[:, None] == owner) & (depth[:, None] >= depth)
    # (rows, used): columns counted from the end of the context.
    behind = torch.arange(used, device=owner.device) - start[:, None]
    inside = (behind >= 0) & (behind < new)
    related = family[:, behind.clamp(0, new - 1)].transpose(0, 1)  # (rows, new, used)
    return _additive((behind < 0)[:, None] | (inside[:, None] & related), dtype)


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    zero = torch.zeros((), dtype=dtype, device=visible.device)
    return torch.where(visible, zero, -torch.inf)[:, None]
