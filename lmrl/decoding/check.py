"""Compare the logits of training and of decoding with a model's own forward pass, on a few tokens.

Models differ in what they do with positions, masks, caches and logits. A model that would silently train or sample
with other logits than its own is refused when it is built or loaded.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import GPT2LMHeadModel, GPT2Model, LlamaForCausalLM, LlamaModel, PreTrainedModel

from lmrl.decoding.reader import Reader
from lmrl.errors import UserError, in_one_line
from lmrl.models.lm import (
    READ_WITHOUT_MASKS,
    LogitTransform,
    logit_table,
    logit_transform,
    positions_of,
    read_rows,
    trunk_of,
    vocabulary_of,
    without_masks,
)

__all__ = ["check_attention", "check_model"]

Pairs: TypeAlias = list[tuple[Tensor, Tensor]]
"""What was computed, and what it should be."""

#: Kinds that tests have shown to be exact; the check would only cost time.
_EXACT = (GPT2LMHeadModel, GPT2Model, LlamaForCausalLM, LlamaModel)
_LAYERS = {"full_attention", "sliding_attention"}
_LENGTH = 6
# As shares of the largest logit. Exact kinds are off by about 1e-6 in float32 on a CPU.
_FLOAT32_ON_CPU = 1e-4
_ELSEWHERE = 5e-2

_checked: WeakSet[PreTrainedModel] = WeakSet()


def check_attention(model: PreTrainedModel) -> None:
    """Refuse attention that cannot be driven by explicit masks.

    Raises:
        UserError: naming the setting of the configuration.
    """
    config = model.config
    implementation = config._attn_implementation
    if implementation not in ("eager", "sdpa"):
        raise UserError(
            f"attn_implementation must be 'eager' or 'sdpa' (others take no 4-D mask), got {implementation!r}"
        )
    kinds = set(getattr(config, "layer_types", None) or ())
    if not kinds <= _LAYERS:
        raise _refused(model, f"every layer must use full or sliding attention, got {sorted(kinds)}")


def check_model(model: PreTrainedModel) -> None:
    """Refuse a model whose logits in training or decoding differ from those of its own forward pass.

    Two short rows of different length are read as training and decoding read them: padded, with branches, and
    continued from a cache. That takes a few milliseconds and neither touches random states nor changes the model. Each
    model is checked once; GPT-2 and Llama not at all. A model without weights (on the meta device, until it is
    sharded) or with weights in shards cannot be run here and is not checked: the first process, which holds the
    weights when the model is built, has checked it.

    Args:
        model: with or without a vocabulary head; without one its hidden vectors are compared.

    Raises:
        UserError: in one line, naming the type of model and what differs or fails.
    """
    if model in _checked:
        return
    check_attention(model)
    positions_of(model.config)
    plain = type(model) in _EXACT and logit_transform(model.config) == LogitTransform()
    if not plain and not any(p.is_meta or isinstance(p, DTensor) for p in model.parameters()):
        with _quietly(model):
            _compare(model)
    _checked.add(model)


@contextmanager
def _quietly(model: PreTrainedModel) -> Iterator[None]:
    """Eval mode, no gradients, no autocast; random states and modes are afterwards what they were."""
    training = [module for module in model.modules() if module.training]
    device = model.device
    cuda = [device] if device.type == "cuda" else []
    for module in training:
        module.training = False
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=cuda), torch.autocast(device.type, enabled=False):
            yield
    finally:
        for module in training:
            module.training = True


class _OwnLogits(NamedTuple):
    """Logits of the model's own forward pass for the texts of the check."""

    first: Tensor
    second: Tensor
    branch: Tensor
    prefix: Tensor
    """For the three tokens with which `first` and `branch` begin, read alone."""


def _compare(model: PreTrainedModel) -> None:
    for name in ("vocab_size", "hidden_size"):
        if not isinstance(getattr(model.config, name, None), int):
            raise _refused(model, f"its configuration has no {name}")
    # Two texts of 6 and 4 tokens, and a third that shares the first half of the first one. Any ids will do.
    words = vocabulary_of(model)
    first = ((7 * np.arange(_LENGTH) + 3) % words).tolist()
    second = ((5 * np.arange(4) + 4) % words).tolist()
    branch = first[:3] + second[:2]

    own = _OwnLogits(_own(model, first), _own(model, second), _own(model, branch), _own(model, first[:3]))
    width = model.config.hidden_size if model is trunk_of(model) else words
    if own.first.shape[-1] != width:
        raise _refused(model, f"its logits have {own.first.shape[-1]} entries, its vocabulary {words}")

    exact = model.device.type == "cpu" and model.dtype == torch.float32
    tolerance = _FLOAT32_ON_CPU if exact else _ELSEWHERE
    scale = max(float(logits.abs().max()) for logits in own)
    # Each key is the subject of "<key> cannot be computed" and "<key> differ from its own forward pass".
    checks: dict[str, Callable[[], Pairs]] = {
        "its logits depend on later tokens: without them they": lambda: [(own.prefix[-1], own.first[2])],
        "logits in training": lambda: _trained(model, [first, second], [own.first, own.second]),
        "logits in training with branches": lambda: _branched(model, first, second, branch, own),
        "logits in decoding": lambda: _decoded(model, first, second, branch, own),
    }
    for name, compare in checks.items():
        try:
            difference = max(float((computed - expected).abs().max()) for computed, expected in compare())
        except (UserError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a model may take other arguments, or another cache, in any exception
            raise _refused(model, f"{name} cannot be computed: {in_one_line(error, 300)}") from error
        if not difference <= tolerance * scale:  # which NaN is not
            raise _refused(
                model, f"{name} differ from its own forward pass by {difference:.2g} (logits reach {scale:.2g})"
            )
    if _reads_without_masks(model, [first, second], [own.first, own.second], tolerance * scale):
        READ_WITHOUT_MASKS.add(type(trunk_of(model)))
    else:
        READ_WITHOUT_MASKS.discard(type(trunk_of(model)))


def _reads_without_masks(model: PreTrainedModel, rows: list[list[int]], own: list[Tensor], tolerance: float) -> bool:
    """Whether `lmrl.models.lm.without_masks` leaves the logits as they are: a model may not know the name."""
    if model.config._attn_implementation != "sdpa":
        return False
    try:
        with without_masks(model.config):
            pairs = _trained(model, rows, own)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # in any exception of the model
        return False
    return all(float((computed - expected).abs().max()) <= tolerance for computed, expected in pairs)


def _own(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """The logits of one text by the model's own forward pass; of a model without a head its hidden vectors."""
    try:
        output = model(input_ids=_ids(model, [ids]))
        batch: Tensor = output.last_hidden_state if model is trunk_of(model) else output.logits
        return batch[0].float()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise _refused(model, f"its own forward pass fails: {in_one_line(error, 300)}") from error


def _ours(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    if hidden.shape[-1] != model.config.hidden_size:
        raise _refused(model, f"hidden vectors have {hidden.shape[-1]} entries, hidden_size is not that")
    return (hidden if model is trunk_of(model) else logit_table(model, hidden)).float()


def _trained(model: PreTrainedModel, rows: list[list[int]], own: list[Tensor]) -> Pairs:
    """Rows that are padded on the right."""
    hidden = read_rows(trunk_of(model), _ids(model, rows), None, None)
    return [(_ours(model, hidden[row])[: len(ids)], own[row]) for row, ids in enumerate(rows)]


def _branched(model: PreTrainedModel, first: list[int], second: list[int], branch: list[int], own: _OwnLogits) -> Pairs:
    """A context of three tokens with two continuations side by side, and a shorter row."""
    ids = _ids(model, [first + branch[3:], second])
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 3, 4], [0, 1, 2, 3, 0, 0, 0, 0]], device=model.device)
    mask = torch.ones(8, 8, dtype=torch.bool, device=model.device).tril().repeat(2, 1, 1, 1)
    # The second continuation (columns 6, 7) does not see the first (columns 3 to 5).
    mask[0, :, 6:, 3:6] = False
    logits = _ours(model, read_rows(trunk_of(model), ids, positions, mask))
    return [(logits[0, :6], own.first), (logits[0, 6:], own.branch[3:]), (logits[1, :4], own.second)]


def _decoded(model: PreTrainedModel, first: list[int], second: list[int], branch: list[int], own: _OwnLogits) -> Pairs:
    """Two rows, one more token in each, and another continuation of a part of the first."""
    reader = Reader(model, rows=2, limit=_LENGTH, recorded=False)
    reader.refresh_forward()
    pairs: Pairs = []
    for left, right in ((5, 3), (6, 4)):
        new = [reader.slots.rewind(0, first[:left]), reader.slots.rewind(1, second[:right])]
        logits = _ours(model, reader.read([0, 1], new))
        pairs += [(logits[0], own.first[left - 1]), (logits[1], own.second[right - 1])]
    # The slot keeps the three tokens that both texts share.
    again = _ours(model, reader.read([0], [reader.slots.rewind(0, branch)]))
    return [*pairs, (again[0], own.branch[-1])]


def _ids(model: PreTrainedModel, rows: list[list[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([ids + [0] * (width - len(ids)) for ids in rows], device=model.device)


def _refused(model: PreTrainedModel, why: str) -> UserError:
    return UserError(f"a model of type {model.config.model_type!r} cannot be used: {why}")
