"""A language model as the partner, which reads what the task's prompts make of a dialogue."""

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from lmrl.errors import UserError
from lmrl.models.checkpoints import resolve_pretrained
from lmrl.models.folders import check_folder, held_by_folder, limited_weights, model_config
from lmrl.models.tokenizer import load_tokenizer
from lmrl.partners.environment import partner_dialogue
from lmrl.policies import LMPolicy, load_lm_policy
from lmrl.types import PartnerRequest, Request

__all__ = ["LMPartner"]


_ROOM = 64  # tokens of a reply
_READ = 512  # tokens that an encoder reads


class LMPartner:
    """Answers with a language model of `transformers`: a causal one through the decoding engine, or a seq2seq one.

    Args:
        path: run folder (``runs/TASK/partner``), model folder or hub id.
        temperature: of sampling; 0 is greedy. Samples of a causal model follow from the episode's seed alone, those of
            a seq2seq model also from who else asks at the same time.
        max_new_tokens: longest reply.
        slots: parallel dialogues to make room for; more are possible.

    Raises:
        UserError: there is no such model, or its settings are out of range.
    """

    def __init__(self, path: str, temperature: float = 0.0, max_new_tokens: int = _ROOM, slots: int = 64) -> None:
        self.path = path
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens
        folder = resolve_pretrained(path)
        self.model: PreTrainedModel
        self._policy: LMPolicy | None = None
        if _is_seq2seq(folder):
            self._tokenizer = load_tokenizer(folder)
            limits = limited_weights(held_by_folder(folder), folder) if Path(folder).is_dir() else nullcontext()
            with limits:
                self.model = AutoModelForSeq2SeqLM.from_pretrained(
                    folder, config=model_config(folder), trust_remote_code=False
                ).eval()
        else:
            self._policy = load_lm_policy(path, None, max_new_tokens, temperature=temperature, slots=slots)
            self.model = self._policy.model
        self._hash = _weights_hash(self.model)

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """One line for each request, all in one batch."""
        if self._policy is None:
            return self._translate(requests)
        slots = [request.slot for request in requests]
        if len(set(slots)) < len(slots):  # not from parallel environments
            slots = [*range(len(slots))]
        asked = [Request(slot, r.seed, *partner_dialogue(r)) for slot, r in zip(slots, requests, strict=True)]
        return [_line(reply.text) for reply in self._policy.act(asked)]

    def reset(self) -> None:
        """Forget what was read; see `lmrl.types.Resettable`."""
        if self._policy is not None:
            self._policy.reset()

    def describe(self) -> dict[str, Any]:
        """See `lmrl.types.Partner`; ``hash`` tells weights apart."""
        return {"name": "lm", "model": self.path, "hash": self._hash, "temperature": self.temperature}

    def _translate(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """Replies of an encoder-decoder, which reads each dialogue again."""
        texts = []
        for request in requests:
            heard, said = partner_dialogue(request)
            texts.append("".join(text for pair in zip(heard, (*said, ""), strict=True) for text in pair))
        batch = self._tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=_READ)
        settings = {"do_sample": True, "temperature": self.temperature} if self.temperature else {"do_sample": False}
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(hash(tuple((r.seed, len(r.heard)) for r in requests)))
            ids = self.model.generate(  # type: ignore[operator]
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                max_new_tokens=self.max_new_tokens,
                **settings,
            )
        return [_line(text) for text in self._tokenizer.batch_decode(ids, skip_special_tokens=True)]


def _is_seq2seq(folder: str) -> bool:
    check_folder(folder)
    try:
        return bool(model_config(folder).is_encoder_decoder)
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"lm partner: no language model in {folder!r}: {error}") from error


def _line(text: str) -> str:
    """The first line that says something."""
    return f"{text.strip().partition(chr(10))[0].strip()}\n"


def _weights_hash(model: PreTrainedModel) -> str:
    """Sixteen characters that differ where the weights differ."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]
