"""A language model at a vLLM server as the partner, with the same input as `lmrl.partners.lm.LMPartner`."""

from collections.abc import Sequence
from typing import Any

from lmrl.partners.environment import first_line, partner_dialogue
from lmrl.policies import load_vllm_policy
from lmrl.types import PartnerRequest, Request

__all__ = ["VLLMPartner"]

_ROOM = 64  # tokens of a reply


class VLLMPartner:
    """A partner that replies with a model at a vLLM server; the requests of a turn are sent in parallel.

    Args:
        address: ``URL#MODEL``.
        temperature: sampling temperature; 0 is greedy.
        max_new_tokens: length limit of a reply.
        tokenizer: see `lmrl.policies.load_vllm_policy`.
        timeout: seconds per request.
        retries: number of retries per request.
        max_parallel: number of requests at the same time.

    Raises:
        UserError: if there is no such server, model or tokenizer, or a setting is out of range.
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
        dialogues = [Request(request.slot, request.seed, *partner_dialogue(request)) for request in requests]
        return [first_line(reply.text) for reply in self._policy.act(dialogues)]

    def describe(self) -> dict[str, Any]:
        """See `lmrl.types.Partner`."""
        described = self._policy.describe()
        # Only what two runs of the same dialogues have in common: no timeouts, no numbers of requests.
        return {"name": "vllm"} | {name: described[name] for name in ("model", "endpoint", "tokenizer", "temperature")}
