"""Models in GGUF files, the format of llama.cpp, which often holds weights of four bits.

`transformers` makes plain weights of them. The header is read here first: a file that is damaged is refused before a
library makes room for what it claims to hold. The tokenizer is built here, because versions of `transformers` differ in
how they split digits and in which token ends a turn.
"""

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import quantization_config

from lmrl.errors import UserError, in_one_line
from lmrl.models.folders import Held, check_architecture, limited_weights

__all__ = ["gguf_config", "gguf_held", "gguf_model", "gguf_tokenizer", "is_gguf", "require_packages"]

_PACKAGES = ("gguf", "accelerate")
_MAGIC = b"GGUF"
_KNOWN_VERSIONS = (2, 3)
#: The number types of a header, as `struct` names them.
_NUMBER_TYPES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT_TYPE = 8
_ARRAY_TYPE = 9
_CONTROL_TOKEN = 3
_USER_TOKEN = 4


def is_gguf(name: str) -> bool:
    """Whether a name is one of a GGUF file, by its ending. The file need not exist."""
    path = Path(name)
    return path.suffix.lower() == ".gguf" and not path.is_dir()


def require_packages() -> None:
    """Make sure that the packages are installed with which GGUF files are read.

    Raises:
        UserError: naming those that are missing.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(f"GGUF files need the packages {' and '.join(missing)}: pip install 'lmrl[gguf]'")


class _Header(NamedTuple):
    fields: dict[str, Any]
    """The metadata by its keys: ``general.architecture``, ``tokenizer.ggml.tokens``, ..."""
    held: Held


class _Cursor:
    """Reads values one after another. What would lie beyond the end of the file is a `struct.error`."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.place = len(_MAGIC)

    def numbers(self, kind: str, count: int = 1) -> tuple[Any, ...]:
        layout = struct.Struct(f"<{count}{kind}")
        values = layout.unpack_from(self.data, self.place)
        self.place += layout.size
        return values

    def number(self, kind: str) -> Any:
        return self.numbers(kind)[0]

    def text(self) -> str:
        length = self.number("Q")
        encoded: bytes = self.numbers("s", length)[0]
        return encoded.decode("utf-8")

    def value(self) -> Any:
        kind = self.number("I")
        if kind == _TEXT_TYPE:
            return self.text()
        if kind != _ARRAY_TYPE:
            return self.number(_NUMBER_TYPES[kind])
        entry_kind = self.number("I")
        count = self.number("Q")
        if entry_kind == _TEXT_TYPE:
            return [self.text() for _ in range(count)]
        return list(self.numbers(_NUMBER_TYPES[entry_kind], count))


def _read_header(file: str) -> _Header:
    """Read the metadata of a file, and make sure that the file is as long as its tensors are.

    Raises:
        UserError: a package is missing; or the file is no GGUF file, damaged, or one of several parts.
    """
    require_packages()
    with open(file, "rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            raise UserError(f"{file} is not a GGUF file, whatever its name says: download it again")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                header = _parse_header(_Cursor(data))
            except (struct.error, ValueError, LookupError, TypeError, ArithmeticError) as error:
                reason = f"{type(error).__name__}: {in_one_line(error)}"
                raise UserError(f"{file} is damaged or cut short, download it again ({reason})") from error
    if header.fields.get("split.count", 0) > 1:
        raise UserError(f"{file} is one of several parts: join them with llama-gguf-split --merge")
    check_architecture(header.fields, header.held, Path(file))
    return header


def _parse_header(cursor: _Cursor) -> _Header:
    version = cursor.number("I")
    if version not in _KNOWN_VERSIONS:
        raise ValueError(f"version {version} of the format, known: {_KNOWN_VERSIONS}")
    num_tensors = cursor.number("Q")
    num_fields = cursor.number("Q")
    fields = {}
    for _ in range(num_fields):
        name = cursor.text()
        fields[name] = cursor.value()

    sizes = import_module("gguf").GGML_QUANT_SIZES  # numbers and bytes of a block, by the type of a tensor
    numbers = 0
    num_bytes = 0
    last_byte = 0
    for _ in range(num_tensors):
        cursor.text()
        shape = cursor.numbers("Q", cursor.number("I"))
        per_block, block_bytes = sizes[cursor.number("I")]
        tensor_bytes = prod(shape) // per_block * block_bytes
        numbers += prod(shape)
        num_bytes += tensor_bytes
        last_byte = max(last_byte, cursor.number("Q") + tensor_bytes)
    alignment = fields.get("general.alignment", 32)
    start = -(-cursor.place // alignment) * alignment
    # Tensors could also claim the same bytes again and again.
    if start + max(num_bytes, last_byte) > len(cursor.data):
        raise ValueError(f"{num_tensors} tensors of {num_bytes:,} bytes in a file of {len(cursor.data):,}")
    return _Header(fields, Held(num_tensors, numbers))


@contextmanager
def _single_file(file: str) -> Iterator[dict[str, str]]:
    """Arguments with which `from_pretrained` reads a file, and no other file of its folder."""
    with TemporaryDirectory() as empty:
        yield {"pretrained_model_name_or_path": empty, "gguf_file": str(Path(file).absolute())}


def gguf_held(file: str) -> Held:
    """Return how many tensors and numbers a file holds.

    Raises:
        UserError: the file is damaged or of another kind, or a package is missing.
    """
    return _read_header(file).held


def gguf_config(file: str) -> PreTrainedConfig:
    """Return the configuration of the model in a file.

    Raises:
        UserError: the file is damaged or of another kind, or a package is missing.
        ValueError: `transformers` does not read this kind of model from GGUF.
    """
    _read_header(file)
    with _single_file(file) as arguments:
        config: PreTrainedConfig = AutoConfig.from_pretrained(**arguments)
    vars(config).pop("_model_name_or_path", None)  # a title
    return config


def gguf_model(file: str, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Return a plain model, one that can be trained and saved, with the weights of a file.

    Args:
        file: file with a causal language model.
        config: configuration from `gguf_config`.
        dtype: data type of the weights.

    Raises:
        UserError: the file is damaged or of another kind, lacks weights, or holds some that `transformers` leaves out;
            or a package is missing.
    """
    header = _read_header(file)
    settings: dict[str, Any] = {"config": config, "dtype": dtype, "output_loading_info": True}
    # Versions of transformers without this class always unpack. Packed weights could be neither trained nor saved.
    if hasattr(quantization_config, "GgufConfig"):
        settings["quantization_config"] = quantization_config.GgufConfig(dequantize=True)
    with limited_weights(header.held, file), _single_file(file) as arguments:
        loaded: Any = AutoModelForCausalLM.from_pretrained(**arguments, **settings)
    model: PreTrainedModel = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        raise UserError(f"{file} lacks the weights {', '.join(missing[:3])}: it is damaged or of another model")
    # transformers leaves tensors out that it does not know, such as the factors by which Llama 3.1 stretches positions.
    sizes = {tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}
    read = sum(sizes.values())
    if read != header.held.numbers:
        raise UserError(
            f"{file} holds {header.held.numbers:,} weights, and transformers reads {read:,} of them: take the folder "
            "or hub id of the model that the file was made from"
        )
    end_of_turn = header.fields.get("tokenizer.ggml.eot_token_id")
    if end_of_turn is not None and model.generation_config is not None:
        ends = {model.generation_config.eos_token_id, end_of_turn} - {None}
        model.generation_config.eos_token_id = sorted(ends)
    return model


class _Split(NamedTuple):
    """Rules by which a byte-level tokenizer treats a text before it merges pairs."""

    pieces: tuple[pre_tokenizers.PreTokenizer, ...]
    normalizer: normalizers.Normalizer | None = None
    whole_words: bool = False
    """Whether a piece that is itself a token is never merged from smaller ones."""


_WORDS_OF_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _words_of_gpt4(digits: str) -> pre_tokenizers.PreTokenizer:
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return pre_tokenizers.Split(Regex(pattern.replace("DIGITS", digits)), "isolated")


_ONE_DIGIT = _Split((pre_tokenizers.Digits(individual_digits=True), _WORDS_OF_GPT2))
_LLAMA3 = _Split((_words_of_gpt4("{1,3}"), _BYTES), whole_words=True)
_QWEN2 = _Split((_words_of_gpt4(""), _BYTES), normalizer=normalizers.NFC())
#: By ``tokenizer.ggml.pre``; llama.cpp defines the names in src/llama-vocab.cpp.
_SPLITS = {
    "gpt-2": _Split((_WORDS_OF_GPT2,)),
    "smollm": _ONE_DIGIT,
    "starcoder": _ONE_DIGIT,
    "refact": _ONE_DIGIT,
    "llama-bpe": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


def gguf_tokenizer(file: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a file, with its chat template.

    Raises:
        UserError: the file is damaged or of another kind, or splits texts by an unknown rule; or a package is missing.
        Exception: its vocabulary is damaged.
    """
    fields = _read_header(file).fields
    tokens = fields["tokenizer.ggml.tokens"]
    special = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = fields.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            special[f"{name}_token"] = tokens[token_id]
    # "gpt2" stands for any byte-level BPE. The other kinds are those of SentencePiece.
    is_byte_level = fields["tokenizer.ggml.model"] == "gpt2"
    backend = _byte_level(file, fields) if is_byte_level else _by_transformers(file)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call, unused-ignore]
        tokenizer_object=backend,
        name_or_path=file,
        **special,
        chat_template=fields.get("tokenizer.chat_template"),
        model_max_length=fields[f"{fields['general.architecture']}.context_length"],
        padding_side="left",  # generated tokens follow the prompt, so padding goes before it
        clean_up_tokenization_spaces=False,
    )


def _byte_level(file: str, fields: dict[str, Any]) -> Tokenizer:
    name = str(fields.get("tokenizer.ggml.pre"))
    split = _SPLITS.get(name)
    if split is None:
        raise UserError(
            f"{file}: texts are split by the rule {name!r}, known are {', '.join(_SPLITS)}: take the folder or hub id "
            "of the model that the file was made from"
        )
    tokens = fields["tokenizer.ggml.tokens"]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split.whole_words))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(split.pieces))
    tokenizer.decoder = decoders.ByteLevel()
    if split.normalizer is not None:
        tokenizer.normalizer = split.normalizer
    for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True):
        if kind == _CONTROL_TOKEN:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _USER_TOKEN:
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=False)])
    bos = fields.get("tokenizer.ggml.bos_token_id")
    # A Llama 3 begins with it where the file does not say so.
    if bos is not None and fields.get("tokenizer.ggml.add_bos_token", name == "llama-bpe"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[tokens[bos], "$A"], special_tokens=[(tokens[bos], bos)]
        )
    return tokenizer


def _by_transformers(file: str) -> Tokenizer:
    with _single_file(file) as arguments:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(**arguments).backend_tokenizer
    return tokenizer
