"""The bundled tokenizers, or any other of `transformers`, and their fingerprints.

The bundled ones are byte-level BPEs, each trained by `train` on its corpus. They cover every byte and never merge a
line break with anything, so that the end of an action is always one token. Each is a folder in ``tokenizers/`` with its
corpus, its recipe (which describes its purpose) and the trained tokenizer.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch.utilities import rank_zero_warn
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lmrl.envs.registry import task_tokens
from lmrl.errors import UserError, in_one_line
from lmrl.models.folders import check_folder
from lmrl.models.gguf import gguf_tokenizer, is_gguf
from lmrl.models.lora import ADAPTER_CONFIG, adapter_chain

__all__ = [
    "BUNDLED", "bundled_name", "fingerprint", "load_tokenizer", "template_hash", "tokenizer_for", "train",
    "warn_of_other_template",
]  # fmt: skip

_FOLDER = Path(__file__).parent / "tokenizers"
_SPECIAL_TOKENS = ("<|endoftext|>", "<|pad|>")
_RECIPE = "recipe.json"
# Files by which a folder with a tokenizer is known.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


class _Recipe(NamedTuple):
    """Settings by which a tokenizer is trained."""

    about: str
    vocabulary: int
    pieces: str
    """A regular expression: what is kept together before pairs are merged."""
    words: bool
    """Whether the rest is split into words as GPT-2 does."""


BUNDLED = tuple(sorted(path.parent.name for path in _FOLDER.glob(f"*/{_RECIPE}")))
"""Names of the bundled tokenizers; the first is the default."""


def train(name: str = BUNDLED[0]) -> Tokenizer:
    """Train a bundled tokenizer again: the same corpus gives the same tokenizer."""
    recipe = _Recipe(**json.loads((_FOLDER / name / _RECIPE).read_text(encoding="utf-8")))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(recipe.pieces), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=recipe.words),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary,
        min_frequency=2,
        special_tokens=[AddedToken(text, normalized=False, special=True) for text in _SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(_FOLDER / name / "corpus.txt")], trainer)
    return tokenizer


def load_tokenizer(name: str = BUNDLED[0], trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """A bundled tokenizer (one of `BUNDLED`), or that of a folder, GGUF file or hub id.

    A folder of adapters without a tokenizer has that of the model to which they belong.

    Args:
        name: name of the tokenizer.
        trust_remote_code: run code that it brings with it; else one that needs that is refused.

    Raises:
        UserError: if there is no tokenizer under that name, or a file of it is damaged.
    """
    if name in BUNDLED:
        end, pad = _SPECIAL_TOKENS
        tokenizer = Tokenizer.from_str((_FOLDER / name / "tokenizer.json").read_text(encoding="utf-8"))
        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call, unused-ignore]
            tokenizer_object=tokenizer, eos_token=end, bos_token=end, pad_token=pad
        )
    check_folder(name)
    if (Path(name) / ADAPTER_CONFIG).is_file() and not _has_tokenizer(name):
        chain = adapter_chain(name)
        name = next(filter(_has_tokenizer, chain), chain[-1])
    try:
        if is_gguf(name):
            return gguf_tokenizer(name)
        loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
    except Exception as error:  # a damaged file can end in any exception of the libraries
        if isinstance(error, (UserError, MemoryError)) or getattr(error, "errno", None) is not None:
            raise
        file = Path(name) / "tokenizer.json"
        raise UserError(
            f"tokenizer must be {', '.join(map(repr, BUNDLED))}, a folder, GGUF file or hub id that has a tokenizer; "
            f"got {str(file) if file.is_file() else name!r}: {in_one_line(error, 1000)}"
        ) from error
    return loaded


def _has_tokenizer(folder: str) -> bool:
    return any((Path(folder) / file).is_file() for file in _TOKENIZER_FILES)


def tokenizer_for(folder: str | None, name: str | None, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a model: the one that is named, or that of its folder, or else the first of `BUNDLED`.

    Args:
        folder: folder of the model, or its hub id; None: a model from scratch.
        name: see `load_tokenizer`; the tokenizer must have the vocabulary of the folder's.
        trust_remote_code: run code that it brings with it.

    Raises:
        UserError: if it has another vocabulary, and as `load_tokenizer`.
    """
    tokenizer = load_tokenizer(name or folder or BUNDLED[0], trust_remote_code)
    if folder is not None and name is not None:
        theirs = fingerprint(load_tokenizer(folder, trust_remote_code))
        if fingerprint(tokenizer) != theirs:
            raise UserError(f"tokenizer {name!r} is another one than that of {folder!r} ({theirs})")
    return tokenizer


def add_tokens(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], spelling: Sequence[tuple[str, str]] = ()
) -> None:
    """Make each of some texts one token wherever it occurs, the longest first; existing tokens stay.

    Args:
        tokenizer: changed in place, a fast one.
        texts: the texts, with their line breaks.
        spelling: regular expressions and what takes their place before a text is cut into tokens.

    Raises:
        UserError: the tokenizer is not a fast one.
    """
    if not tokenizer.is_fast:
        raise UserError(f"tokens can be added to fast tokenizers alone, {type(tokenizer).__name__} is none")
    if spelling and tokenizer.backend_tokenizer.normalizer is None:
        rules: list[normalizers.Normalizer] = [normalizers.Replace(Regex(old), new) for old, new in spelling]
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(rules)
    # Normalised tokens are matched in the text after its spelling was changed.
    tokenizer.add_tokens([AddedToken(text, normalized=bool(spelling), special=False) for text in texts])


def add_task_tokens(
    tokenizer: PreTrainedTokenizerBase, given: str | Mapping[str, Any] | None
) -> dict[int, tuple[str, ...]]:
    """Add the texts that a task has as tokens; returns the parts of each by its id.

    Args:
        tokenizer: changed in place.
        given: the name of a task, or a mapping with its ``name`` and arguments of its environment; None: nothing.

    Raises:
        UserError: as `add_tokens`, and for an unknown task.
    """
    if given is None:
        return {}
    settings = {"name": given} if isinstance(given, str) else dict(given)
    tokens = task_tokens(settings.pop("name"), settings)
    add_tokens(tokenizer, list(tokens.parts), tokens.spelling)
    vocabulary = tokenizer.get_vocab()
    return {vocabulary[text]: parts for text, parts in tokens.parts.items()}


def bundled_name(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the name of a bundled tokenizer, or None for any other."""
    wanted = fingerprint(tokenizer)
    for name in BUNDLED:
        if _bundled_fingerprint(name) == wanted:
            return name
    return None


@cache
def _bundled_fingerprint(name: str) -> str:
    return fingerprint(load_tokenizer(name))


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A short hash of the vocabulary: two tokenizers that give a word other ids differ here."""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))  # not the merges: they do not change ids
    return hashlib.sha256(vocabulary.encode()).hexdigest()[:16]


def template_hash(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """A short hash of the text of the chat template; None if the tokenizer has none."""
    try:
        template = tokenizer.get_chat_template()
    except ValueError:
        return None
    return hashlib.sha256(str(template).encode(errors="surrogatepass")).hexdigest()[:16]


def warn_of_other_template(tokenizer: PreTrainedTokenizerBase, recorded: str | None) -> None:
    """Warn if a policy would read dialogues by another chat template than the one that it was trained with.

    Args:
        tokenizer: the tokenizer with which it plays.
        recorded: `template_hash` in training; None: it reads plain text, or its files do not say.
    """
    if recorded is None:
        return
    template = template_hash(tokenizer)
    if template != recorded:
        rank_zero_warn(
            f"the policy was trained with another chat template ({recorded!r:.40}) than that of its tokenizer now "
            f"({template!r}): it may play worse"
        )
