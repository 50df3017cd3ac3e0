"""Forward passes over a slot cache: of the model itself, and of those that stand in for it."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lmrl.decoding.cache import SlotCache, causal_mask, tree_mask
from lmrl.decoding.forward import ForwardChoice

__all__ = ["noticed", "played"]

ROWS = 5
LIMIT = 40
VOCABULARY = 48


def noticed(model: PreTrainedModel) -> list[int]:
    """A list that grows whenever the model itself is asked."""
    calls: list[int] = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    return calls


@torch.inference_mode()
def played(model: PreTrainedModel) -> list[Tensor]:
    """Hidden vectors of a prompt, of three ragged steps behind it and of continuations side by side."""
    forward = ForwardChoice(model).choose()
    cache = SlotCache(ROWS, LIMIT)
    draw = torch.Generator().manual_seed(0)
    start = torch.tensor([0, 0, 0])[:, None]
    found = []
    for new, advance in ((9, [9, 4, 7]), (1, [1, 1, 1]), (1, [1, 1, 1]), (2, [2, 1, 2])):
        ids = torch.randint(VOCABULARY, (3, new), generator=draw)
        columns = start + torch.arange(new)
        used = int(columns.max()) + 1
        cache.place(1, columns, used, used)
        found.append(forward(cache, ids, columns, causal_mask(columns, used, model.dtype)))
        start = start + torch.tensor(advance)[:, None]
    owner = torch.tensor([0, 0, 1])
    depth = torch.tensor([0, 1, 0])
    columns = start + torch.arange(3)
    used = int(start.max()) + 3
    cache.place(1, columns, used, used)
    ids = torch.randint(VOCABULARY, (3, 3), generator=draw)
    mask = tree_mask(owner, depth, start[:, 0], used, model.dtype)
    return [*found, forward(cache, ids, start + depth, mask)]
