"""Causal language models of `transformers`: from a folder, a GGUF file or a hub id, or a small one from scratch."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import pad
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Model
from transformers.models.llama.modeling_llama import LlamaModel
from transformers.utils import logging

from lmrl.errors import UserError, in_one_line
from lmrl.losses import Scores, linear_scores, row_scores, soft_cap
from lmrl.models.base_model import check_adapters
from lmrl.models.folders import check_folder, held_by_folder, is_limited, limited_weights, model_config
from lmrl.models.gguf import gguf_config, gguf_model, is_gguf
from lmrl.models.lora import adapter_base, merge_adapter
from lmrl.tokens.collate import TokenBatch

__all__ = [
    "READ_WITHOUT_MASKS", "LogitTransform", "allow_compiled_variants", "build_lm", "checkpoint_activations",
    "compile_layers", "few_shapes", "head_of", "hidden_states", "logit_table", "logit_transform", "logits_of",
    "positions_of", "read_rows", "trunk_of", "uncompiled", "vocabulary_of", "weights_on_first_process",
    "without_masks",
]  # fmt: skip

# Rows and columns of a pass over a whole batch are multiples of these; fewer rows are a power of two.
_ROW_MULTIPLE = 16
_COLUMN_MULTIPLE = 128
_MAX_LAYER_VARIANTS = 64  # kinds of layers, shapes and modes that may be compiled before torch gives up
_ALIGNMENT_BYTES = 64  # alignment of what torch allocates on a CPU
_ON_FIRST = ContextVar("weights on the first process only", default=False)

#: Ends of the names of settings in configurations of `transformers`.
_DROPOUT_ENDINGS = ("pdrop", "dropout", "dropout_rate", "dropout_prob", "jitter_noise")

#: A model that a laptop trains in minutes. The activation is GPT-2's, in its fused form.
SMALL: Mapping[str, Any] = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 64,
    "n_positions": 1024,
    "activation_function": "gelu_pytorch_tanh",
}


def _without_dropout(config: PreTrainedConfig) -> PreTrainedConfig:
    # Ratios of new to old probabilities are of one function only without dropout.
    for name, value in config.to_dict().items():
        if isinstance(value, float) and name.endswith(_DROPOUT_ENDINGS):
            config.update({name: 0.0})
    return config


@contextmanager
def weights_on_first_process() -> Iterator[None]:
    """Inside, only the first process of a run reads or draws the weights of the models that it builds.

    Those of the others are without content (on the meta device) until the model is sharded, which gives them their
    share: a machine then holds a model in memory once, not once per process.
    """
    token = _ON_FIRST.set(True)
    try:
        yield
    finally:
        _ON_FIRST.reset(token)


def _without_weights(
    config: PreTrainedConfig, vocabulary: int, trust_remote_code: bool, dtype: torch.dtype | Literal["auto"]
) -> PreTrainedModel:
    config.vocab_size = max(config.vocab_size, vocabulary)
    kind = (getattr(config, "dtype", None) or torch.float32) if dtype == "auto" else dtype
    with torch.device("meta"):
        made: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=kind, trust_remote_code=trust_remote_code
        )
    return made


def build_lm(
    pretrained: str | None,
    architecture: Mapping[str, Any],
    vocabulary: int,
    trust_remote_code: bool = False,
    dtype: torch.dtype | Literal["auto"] = "auto",
) -> PreTrainedModel:
    """A causal language model without dropout.

    Inside of `lmrl.models.folders.limited_weights`, a model from scratch is built without weights first: one that is
    too large is refused before there is memory for it.

    Args:
        pretrained: folder, GGUF file or hub id; None starts from random weights. Adapters in a folder of `peft` are
            merged into the model that they belong to.
        architecture: config values for a model from scratch, over a small GPT-2's (``model_type`` picks another kind).
        vocabulary: number of token ids; a pretrained model's embeddings are extended to it if they are fewer.
        trust_remote_code: run code that the model brings with it; else one that needs that is refused.
        dtype: data type of a pretrained model's weights; ``auto``: as they were saved, and float32 for a GGUF file.

    Raises:
        UserError: if there is no such model or kind of model, or a file of it is damaged.
    """
    empty = _ON_FIRST.get() and getattr(rank_zero_only, "rank", 0) != 0
    if pretrained is None:
        return _lm_from_scratch(architecture, vocabulary, empty)
    check_folder(pretrained)
    base = adapter_base(pretrained)
    if base is not None:
        check_adapters(pretrained, base)
        return merge_adapter(build_lm(base, {}, vocabulary, trust_remote_code, dtype), pretrained)
    is_folder = Path(pretrained).is_dir()
    if Path(pretrained).exists():
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # read in a moment; of a download it is of use
    model: PreTrainedModel
    try:
        if is_gguf(pretrained):
            config = _without_dropout(gguf_config(pretrained))
        else:
            config = _without_dropout(model_config(pretrained, trust_remote_code))
        if empty:
            return _without_weights(config, vocabulary, trust_remote_code, dtype)
        if is_gguf(pretrained):
            model = gguf_model(pretrained, config, torch.float32 if dtype == "auto" else dtype)
        else:
            with limited_weights(held_by_folder(pretrained), pretrained) if is_folder else nullcontext():
                loaded: Any = AutoModelForCausalLM.from_pretrained(
                    pretrained,
                    config=config,
                    trust_remote_code=trust_remote_code,
                    dtype=dtype,
                    output_loading_info=True,
                )
            model = loaded[0]
            missing = sorted(loaded[1]["missing_keys"])
            if missing:  # transformers only warns, and begins from random numbers
                file = next(Path(pretrained).glob("*.safetensors"), pretrained)
                raise UserError(f"{file} lacks the weights {', '.join(missing[:3])}: it is damaged or of another model")
    except Exception as error:  # a damaged file can end in any exception of the libraries
        if isinstance(error, (UserError, MemoryError)) or getattr(error, "errno", None) is not None:
            raise
        raise UserError(
            "pretrained must be a folder, GGUF file or hub id with a causal language model, "
            f"got {pretrained!r}: {in_one_line(error, 1000)}"
        ) from error
    # Weights of a file can lie anywhere in memory, and kernels begin their sums where it is aligned: the last bits of
    # numbers would depend on the process that has read the file.
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.data_ptr() % _ALIGNMENT_BYTES:
            tensor.data = tensor.data.clone()
    if vocabulary_of(model) < vocabulary:
        model.resize_token_embeddings(vocabulary)
    return model


def _lm_from_scratch(architecture: Mapping[str, Any], vocabulary: int, empty: bool) -> PreTrainedModel:
    """See `build_lm`; an empty one is on the meta device."""
    settings = {**SMALL, **architecture} if architecture.get("model_type", "gpt2") == "gpt2" else dict(architecture)
    kind = settings.pop("model_type")
    try:
        config = AutoConfig.for_model(
            kind, **{"vocab_size": vocabulary, "bos_token_id": 0, "eos_token_id": 0, **settings}
        )
    except ValueError as error:
        raise UserError(f"architecture.model_type must be one that transformers knows, got {kind!r}") from error
    config = _without_dropout(config)
    try:
        if empty or is_limited():  # without weights it is counted before memory is allocated
            made = _without_weights(config, vocabulary, False, "auto")
        if not empty:
            made = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    except UserError:
        raise
    except Exception as error:  # a model may lack a setting or a package, in any exception of the libraries
        raise UserError(
            f"architecture: no model of type {config.model_type!r} can be made: {in_one_line(error, 300)}"
        ) from error
    return made


@torch.no_grad()
def compose_embeddings(model: PreTrainedModel, parts: Mapping[int, Sequence[str]]) -> None:
    """Let the embeddings of some tokens, and their rows of the vocabulary head, begin as sums of those of their parts.

    Tokens that share parts, as a letter at its place, then begin as kin, and what is learned of one is learned of all.
    A part is a normal vector, drawn here; a row has the model's own standard deviation, whatever its number of parts.

    Args:
        model: a model from scratch.
        parts: for each token, the names of its parts.
    """
    part_names = list(dict.fromkeys(chain.from_iterable(parts.values())))
    mix = torch.zeros(len(parts), len(part_names))  # (tokens, parts)
    for row, of_token in enumerate(parts.values()):
        for name in of_token:
            mix[row, part_names.index(name)] = len(of_token) ** -0.5  # so that a sum has the variance of one part
    ids = torch.tensor(list(parts))
    embedding = cast(nn.Embedding, model.get_input_embeddings()).weight
    head = cast(nn.Linear, head_of(model)).weight
    for weight in [embedding] if head is embedding else [embedding, head]:
        weight[ids] = mix @ torch.randn(len(part_names), weight.shape[1]) * float(model.config.initializer_range)


def vocabulary_of(model: PreTrainedModel) -> int:
    """Number of ids that the model has embeddings for (some models have more than their tokenizer)."""
    return cast(nn.Embedding, model.get_input_embeddings()).num_embeddings


def trunk_of(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its vocabulary head."""
    return cast(PreTrainedModel, model.base_model)


def head_of(model: PreTrainedModel) -> nn.Module:
    """The vocabulary head: hidden vectors to logits."""
    head: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if head is None:
        raise UserError(f"{type(model).__name__} has no vocabulary head; a causal language model is needed")
    return head


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Keep each layer's input only for the backward pass and compute the rest again: less memory, a third more work.

    Raises:
        UserError: if this kind of model cannot do it.
    """
    # transformers has renamed it.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        raise UserError(f"activation_checkpointing: {error}") from error
    model.disable_input_require_grads()  # type: ignore[no-untyped-call]  # only the reentrant kind needs them


class LogitTransform(NamedTuple):
    """The transform behind a model's vocabulary head: a factor, then a cap."""

    scale: float = 1.0
    cap: float | None = None
    """See `lmrl.losses.soft_cap`."""

    def __call__(self, scores: Tensor) -> Tensor:
        """The logits, from what the vocabulary head gives."""
        return soft_cap(scores if self.scale == 1.0 else scores * self.scale, self.cap)


# Names in configurations of `transformers`: Cohere, Falcon H1; Granite, Inkling; Gemma and NanoChat, RecurrentGemma.
_FACTOR_SETTINGS = ("logit_scale", "lm_head_multiplier")
_DIVISOR_SETTINGS = ("logits_scaling", "logits_mup_width_multiplier")
_CAP_SETTINGS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")


def logit_transform(config: PreTrainedConfig) -> LogitTransform:
    """Return the transform behind the head for a configuration; `lmrl.decoding.check.check_model` verifies it."""
    settings = vars(config)  # looked up in every decoding step, and getattr of a configuration is slow
    scale = 1.0
    for name in _FACTOR_SETTINGS:
        factor = settings.get(name)
        scale *= 1.0 if factor is None else factor
    for name in _DIVISOR_SETTINGS:
        divisor = settings.get(name)
        scale /= 1.0 if divisor is None else divisor
    cap: float | None = None
    for name in _CAP_SETTINGS:
        cap = settings.get(name) or cap
    return LogitTransform(scale, cap)


def logit_table(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """(..., vocabulary) logits of (..., width) hidden vectors, as the model's own forward pass gives them."""
    return logit_transform(model.config)(head_of(model)(hidden))


def sampling_logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """(n, vocabulary) logits of (n, width) hidden vectors to sample from.

    On a GPU those of 16 bit are not rounded to 16 bit, as those of `logits_of` are not: the ratios of a loss compare
    the two.
    """
    head = head_of(model)
    # A head with adapters is more than one matrix, and a share of one is less.
    if hidden.device.type != "cuda" or not isinstance(head, nn.Linear) or isinstance(head.weight, DTensor):
        return logit_table(model, hidden)
    if head.weight.dtype not in (torch.bfloat16, torch.float16):
        return logit_table(model, hidden)
    scores = torch.mm(hidden, head.weight.T, out_dtype=torch.float32)
    return logit_transform(model.config)(scores if head.bias is None else scores + head.bias)


def logits_of(model: PreTrainedModel, hidden: Tensor) -> Scores:
    """`logit_table` of (S, width) hidden vectors for a loss; a large table is never made at once."""
    head = head_of(model)
    if isinstance(head, nn.Linear):
        return linear_scores(hidden, head.weight, head.bias, *logit_transform(model.config))
    # A head with adapters is more than one matrix.
    return row_scores(partial(logit_table, model), (hidden,), vocabulary_of(model))


# Attention that sees at most this many tokens is full attention over shorter texts.
_WINDOW_SETTINGS = (
    "sliding_window",
    "sliding_window_size",
    "window_size",
    "attention_chunk_size",
    "local_attention",
    "keep_window_size",
    "index_topk",
)


def positions_of(config: PreTrainedConfig) -> int:
    """The most tokens that a model reads with full attention: its positions, or its narrowest attention window.

    Raises:
        UserError: if the configuration names no number of positions.
    """
    positions: int | None = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int):
        raise UserError(
            f"a model of type {config.model_type!r} cannot be used: its configuration has no max_position_embeddings"
        )
    limits = [positions]
    if getattr(config, "use_sliding_window", True):
        full = set(getattr(config, "layer_types", None) or ()) == {"full_attention"}
        for name in _WINDOW_SETTINGS:
            window = getattr(config, name, None)
            is_used = name != "sliding_window" or not full
            if is_used and isinstance(window, int) and window > 0:
                limits.append(window)
    # Beyond its first positions such a model turns all of its keys by other angles, those in the cache too.
    rope: Any = getattr(config, "rope_parameters", None)
    if isinstance(rope, dict) and rope.get("rope_type") == "longrope":
        limits.append(rope.get("original_max_position_embeddings") or positions)
    return min(limits)


def read_rows(trunk: nn.Module, ids: Tensor, positions: Tensor | None, mask: Tensor | None) -> Tensor:
    """(R, L, width) hidden vectors of some rows, after the last norm."""
    if mask is not None and cast(PreTrainedModel, trunk).config._attn_implementation != "sdpa":
        # Only sdpa takes a mask of what is visible; other implementations add it to the scores.
        scores = torch.zeros((), dtype=cast(PreTrainedModel, trunk).dtype, device=mask.device)
        mask = torch.where(mask, scores, -torch.inf)
    hidden: Tensor = trunk(
        input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False
    ).last_hidden_state
    return hidden


def hidden_states(trunk: nn.Module, batch: TokenBatch, groups: bool = True) -> Tensor:
    """Read the rows of a batch.

    Args:
        trunk: a transformer without its vocabulary head.
        batch: the rows, and the states at which hidden vectors are returned.
        groups: whether rows of similar length are read together: that saves arithmetic. Else all rows are read by one
            forward pass, in one of few shapes: that saves calls, which is what a GPU waits for, and processes with
            shards make the same number.

    Returns:
        (S, width) hidden vectors at its states.
    """
    if not groups:
        ids, positions, mask = few_shapes(batch, positions_of(cast(PreTrainedModel, trunk).config))
        is_plain = mask is None and any(isinstance(trunk, kind) for kind in READ_WITHOUT_MASKS)
        with without_masks(cast(PreTrainedModel, trunk).config) if is_plain else nullcontext():
            hidden = read_rows(trunk, ids, positions, mask)
        return hidden.flatten(0, 1).index_select(0, batch.row * ids.shape[1] + batch.col)
    hidden_parts = []  # per group, (rows * its width, hidden width)
    row_starts = []  # per group, index of each row's first vector among all vectors
    first_row = 0
    num_vectors = 0
    for count, group_width in batch.groups:
        here = slice(first_row, first_row + count)
        positions = None if batch.positions is None else batch.positions[here, :group_width]
        mask = None if batch.mask is None else batch.mask[here, :, :group_width, :group_width]
        hidden = read_rows(trunk, batch.input_ids[here, :group_width], positions, mask)
        hidden_parts.append(hidden.reshape(-1, hidden.shape[-1]))
        row_starts.append(num_vectors + group_width * torch.arange(count, device=hidden.device))
        first_row += count
        num_vectors += count * group_width
    return torch.cat(hidden_parts).index_select(0, torch.cat(row_starts)[batch.row] + batch.col)


#: Attention like that of ``sdpa``. As no masks are registered under this name, `transformers` makes none.
_CAUSAL = "causal_sdpa"
AttentionInterface.register(_CAUSAL, sdpa_attention_forward)


#: Trunks that are known to read plain rows so; `lmrl.decoding.check.check_model` adds what it has verified.
READ_WITHOUT_MASKS: set[type[nn.Module]] = {GPT2Model, LlamaModel}


@contextmanager
def without_masks(config: PreTrainedConfig) -> Iterator[None]:
    """Inside, a model reads plain rows without looking at their positions, which are on the GPU.

    With ``sdpa``, `transformers` asks in each pass whether several texts lie in a row, and the host waits for all that
    the GPU still has to do before it can start the pass.
    """
    before = config._attn_implementation
    if before == "sdpa":
        config._attn_implementation = _CAUSAL
    try:
        yield
    finally:
        config._attn_implementation = before


def few_shapes(batch: TokenBatch, limit: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Pad a batch, so that a run has few shapes: each is compiled, and planned by the kernels, on its own.

    Args:
        batch: its padding is read by nothing, so what it holds does not matter.
        limit: the model's positions, which plain rows do not exceed.

    Returns:
        (R', L') ids, and the position ids and the mask of `TokenBatch` for them.
    """
    rows, columns = batch.input_ids.shape
    # A single long dialogue must not be read sixteen times.
    more_rows = -rows % _ROW_MULTIPLE if rows > _ROW_MULTIPLE else (1 << (rows - 1).bit_length()) - rows
    more_columns = -columns % _COLUMN_MULTIPLE
    if batch.positions is None:
        more_columns = max(0, min(more_columns, limit - columns))
    ids = pad(batch.input_ids, (0, more_columns, 0, more_rows))
    if batch.positions is None or batch.mask is None:
        return ids, None, None
    positions = pad(batch.positions, (0, more_columns, 0, more_rows))
    mask = pad(batch.mask, (0, more_columns, 0, more_columns, 0, 0, 0, more_rows))
    # Padding has to read something, or its numbers are none. The first token of a row is read by all others anyway.
    mask[..., 0] = True
    return ids, positions, mask


def _layers(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if isinstance(part, GradientCheckpointingLayer)]


def uncompiled(trunk: nn.Module) -> AbstractContextManager[None]:
    """Inside, layers that are compiled for training run as they are: decoding has too many shapes."""
    if any(layer._compiled_call_impl is not None for layer in _layers(trunk)):
        stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
        return stance
    return nullcontext()


def allow_compiled_variants(count: int) -> None:
    """Let `torch.compile` compile a function for at least this number of shapes and modes before it gives up."""
    limits = torch._dynamo.config  # torch.compile takes a limit of its own from a later release on
    limits.cache_size_limit = max(limits.cache_size_limit, count)


def compile_layers(module: nn.Module, backend: str) -> int:
    """Have `torch.compile` make the layers of all transformers inside of a module; they share what is compiled.

    One layer takes seconds where a whole trunk takes a minute. The masks stay outside, so that plain rows keep the
    kernels of causal attention.

    Returns:
        The number of layers: 0 for a model whose layers `transformers` does not mark.
    """
    layers = _layers(module)
    allow_compiled_variants(_MAX_LAYER_VARIANTS)
    # PPO asks for two gradients of one pass, which donated buffers do not allow.
    torch._functorch.config.donated_buffer = False
    for layer in layers:
        layer.compile(backend=backend)
    return len(layers)
