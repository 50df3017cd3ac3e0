"""A language model as the partner; the task's prompts turn a dialogue into its input."""

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from lmrl.checkpoints.reading import resolve_pretrained
from lmrl.errors import UserError, check_range
from lmrl.models.folders import check_folder, held_by_folder, limited_weights, model_config
from lmrl.models.gguf import is_gguf
from lmrl.models.lora import adapter_chain
from lmrl.models.tokenizer import load_tokenizer
from lmrl.partners.environment import first_line, partner_dialogue
from lmrl.policies import LMPolicy, load_lm_policy
from lmrl.types import PartnerRequest, Request

__all__ = ["LMPartner"]

_ROOM = 64  # tokens of a reply
_READ = 512  # tokens that an encoder reads


class LMPartner:
    """A partner that replies with a `transformers` model: a causal one in the decoding engine, or a seq2seq one.

    Args:
        path: run folder (``runs/TASK/partner``), model folder, GGUF file or hub id.
        temperature: sampling temperature; 0 is greedy. Samples of a causal model depend only on the episode's seed,
            those of a seq2seq model also on the other requests in the batch.
        max_new_tokens: length limit of a reply.
        slots: number of parallel dialogues to reserve memory for; more are possible.

    Raises:
        UserError: if there is no such model, or a setting is out of range.
    """

    def __init__(self, path: str, temperature: float = 0.0, max_new_tokens: int = _ROOM, slots: int = 64) -> None:
        check_range("[0, inf)", temperature=temperature)
        check_range("[1, inf)", max_new_tokens=max_new_tokens)
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
        # The engine keeps one cache per slot, so slots must differ; requests by hand may all have slot 0.
        distinct = len({request.slot for request in requests}) == len(requests)
        dialogues = []
        for index, request in enumerate(requests):
            slot = request.slot if distinct else index
            dialogues.append(Request(slot, request.seed, *partner_dialogue(request)))
        return [first_line(reply.text) for reply in self._policy.act(dialogues)]

    def reset(self) -> None:
        """Clear the cache of the model; see `lmrl.types.Resettable`."""
        if self._policy is not None:
            self._policy.reset()

    def describe(self) -> dict[str, Any]:
        """See `lmrl.types.Partner`; ``hash`` identifies the weights."""
        return {"name": "lm", "model": self.path, "hash": self._hash, "temperature": self.temperature}

    def _translate(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """Return replies of an encoder-decoder, which encodes each dialogue from the beginning."""
        texts = []
        for request in requests:
            heard, said = partner_dialogue(request)
            turns = zip(heard, (*said, ""), strict=True)
            texts.append("".join(chain.from_iterable(turns)))
        batch = self._tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=_READ)
        settings = {"do_sample": True, "temperature": self.temperature} if self.temperature else {"do_sample": False}
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            # One generator samples the whole batch; a hash of integers is the same in every process.
            torch.manual_seed(hash(tuple((request.seed, len(request.heard)) for request in requests)))
            ids = self.model.generate(  # type: ignore[operator]
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                max_new_tokens=self.max_new_tokens,
                **settings,
            )
        return list(map(first_line, self._tokenizer.batch_decode(ids, skip_special_tokens=True)))


def _is_seq2seq(folder: str) -> bool:
    if is_gguf(folder):
        return False
    check_folder(folder)
    try:
        return bool(model_config(adapter_chain(folder)[-1]).is_encoder_decoder)
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"lm partner: no language model in {folder!r}: {error}") from error


def _weights_hash(model: PreTrainedModel) -> str:
    """Return a digest of sixteen characters."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        # As bytes, because numpy has no bfloat16.
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
