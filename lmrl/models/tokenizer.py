"""The bundled tokenizer, or any other of `transformers`, and how to tell them apart.

The bundled one is a byte-level BPE in GPT-2's style, trained by `train` on `assets/corpus.txt` (lines of every kind of
text that the tasks speak). It covers every byte and never merges a line break with anything, so that the end of
an action is always one token.
"""

import hashlib
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lmrl.errors import UserError

__all__ = ["BUNDLED", "fingerprint", "load_tokenizer", "train"]

BUNDLED = "lmrl"
_ASSETS = Path(__file__).parent.parent / "assets"
_SPECIAL = ("<|endoftext|>", "<|pad|>")


def train(corpus: Path, vocabulary: int = 1024) -> Tokenizer:
    """A byte-level BPE of at most ``vocabulary`` tokens, the same for the same corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[AddedToken(text, normalized=False, special=True) for text in _SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(corpus)], trainer)
    return tokenizer


def load_tokenizer(name: str = BUNDLED) -> PreTrainedTokenizerBase:
    """The bundled tokenizer (``"lmrl"``), or that of a folder or hub id.

    Raises:
        UserError: if there is no tokenizer under that name.
    """
    if name == BUNDLED:
        path = _ASSETS / "tokenizer.json"
        end, pad = _SPECIAL
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call, unused-ignore]
            tokenizer_object=tokenizer, eos_token=end, bos_token=end, pad_token=pad
        )
    try:
        loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UserError(
            f"tokenizer must be {BUNDLED!r}, a folder or a hub id that has a tokenizer; got {name!r}"
        ) from error
    return loaded


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A short hash of the vocabulary: two tokenizers that give a word other ids differ here."""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(vocabulary.encode()).hexdigest()[:16]
