"""Floating-point operations that a training step requires, for its model FLOPs utilisation (MFU).

The formula is that of Chowdhery et al. 2022 ("PaLM", appendix B). A forward pass costs 2 per weight of a matrix and
token, a backward pass twice as much: ``6 N`` per token, and for attention ``12 L H T`` (L layers of width H, T tokens
in a row; scores and weighted sums of all T x T pairs, nothing is deducted for causality). N is counted by parts, since
not all weights meet all tokens:

- blocks: ``12 L H^2`` weights of a GPT-2 (`benchmarks.size.Size.block_weights`), for every token that is read;
- vocabulary head, ``H V`` weights: for the S states before action tokens (the plain loop: for all tokens).

ILQL adds to the trunk that learns:

- the target trunk, forward only: ``2 N + 4 L H T`` per token;
- two Q heads, ``H^2 + H V`` weights each, forward and backward, for the S states;
- their target networks, forward only: ``2 H^2`` per state, and of the outer layer one row per action token, ``2 H``;
- the V head, ``H^2 + H`` weights, forward and backward, for the S states.

ILQL's frozen policy is not run in training, so it does not count; neither do embeddings, norms, biases, losses, the
optimizer, the move of the target networks, and what is computed a second time in the backward pass (tables in pieces).
"""

from benchmarks.size import Size
from lmrl.tokens.collate import TokenBatch

__all__ = ["bc", "ilql", "plain"]

_FORWARD, _BOTH = 1, 3  # a backward pass is as dear as two forward passes


def _trunk(size: Size, data: TokenBatch, passes: int) -> int:
    weights = size.layers * size.block_weights
    attention = 4 * size.layers * size.width
    return passes * sum(rows * columns * (2 * weights + attention * columns) for rows, columns in data.groups)


def plain(size: Size, data: TokenBatch) -> int:
    """A step of a language model whose loss is on all tokens."""
    whole = data._replace(groups=((data.input_ids.shape[0], data.input_ids.shape[1]),))
    return _trunk(size, whole, _BOTH) + 6 * size.width * size.vocabulary * data.input_ids.numel()


def bc(size: Size, data: TokenBatch) -> int:
    """A step of BC."""
    return _trunk(size, data, _BOTH) + 6 * size.width * size.vocabulary * len(data.row)


def ilql(size: Size, data: TokenBatch) -> int:
    """A step of ILQL."""
    width, states = size.width, len(data.row)
    q_heads = 2 * 6 * (width**2 + width * size.vocabulary) * states
    target_q_heads = 2 * 2 * (width**2 * states + width * data.n_tokens)
    v_head = 6 * (width**2 + width) * states
    return _trunk(size, data, _BOTH) + _trunk(size, data, _FORWARD) + q_heads + target_q_heads + v_head
