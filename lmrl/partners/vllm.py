"""A language model at a vLLM server as the partner; it reads what `lmrl.partners.lm.LMPartner` reads."""

from collections.abc import Sequence
from typing import Any

from lmrl.partners.environment import partner_dialogue
from lmrl.policies import load_vllm_policy
from lmrl.types import PartnerRequest, Request

__all__ = ["VLLMPartner"]

_ROOM = 64  # tokens of a reply


class VLLMPartner:
    """Answers with what a model at a vLLM server samples; all dialogues that wait are under way at once.

    Args:
        address: ``URL#MODEL``.
        temperature: of sampling; 0 is greedy.
        max_new_tokens: longest reply.
        tokenizer: as of `lmrl.policies.load_vllm_policy`, as all below.
        timeout: seconds.
        retries: how often a request is tried again.
        max_parallel: requests at the same time.

    Raises:
        UserError: there is no such server, model or tokenizer, or a setting is out of range.
    """

    def __init__(
        self,
        address: str,
        temperature: float = 0.0,
        max_new_tokens: int = _ROOM,
        tokenizer: str | None = None,
        timeout: float = 300.0,
        retries: int = 30,
        max_parallel: int = 256,
    ) -> None:
        self._policy = load_vllm_policy(
            address,
            None,
            max_new_tokens,
            temperature=temperature,
            tokenizer=tokenizer,
            timeout=timeout,
            retries=retries,
            max_parallel=max_parallel,
        )

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """One line for each request."""
        asked = [Request(r.slot, r.seed, *partner_dialogue(r)) for r in requests]
        return [f"{reply.text.strip().partition(chr(10))[0].strip()}\n" for reply in self._policy.act(asked)]

    def describe(self) -> dict[str, Any]:
        """See `lmrl.types.Partner`: nothing that differs between two runs of the same dialogues."""
        told = self._policy.describe()
        return {"name": "vllm", **{name: told[name] for name in ("model", "endpoint", "tokenizer", "temperature")}}
