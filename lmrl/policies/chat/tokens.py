"""Token ids in, token ids and log-probabilities out: a language model at a vLLM server, asked many times at once."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from lmrl.errors import UserError, check_range, without_secrets
from lmrl.policies.chat.endpoint import AskAgain, ChatRetries, Connection, Stop, Stopped, tokens_used
from lmrl.policies.chat.limits import ChatLimits

__all__ = ["Completion", "TokenClient", "TokenEndpoint", "server_address"]

_MOST_POSITIONS = 2**27  # what a server can mean; more is no number of positions
_ROUNDING = 1e-3  # a log-probability above 0 by less is 0
_LOWEST_LOGPROB = -3.4e38  # near the lowest float32, in which log-probabilities are kept


@dataclass(frozen=True, slots=True)
class Completion:
    """The completion of a prompt by a model."""

    ids: tuple[int, ...]
    """As sampled, the stop id included."""
    logprobs: tuple[float, ...]
    """One per id, as the server reckons them."""
    tokens: int | None
    """Read and said; None if the server did not tell."""


class TokenEndpoint(Connection):
    """A language model at a server that takes and gives token ids (vLLM from 0.10.2 on)."""

    def ask(self, body: Mapping[str, Any], stop: Stop | None = None) -> Completion:
        """Send one request.

        Args:
            body: content of the request: ``prompt`` as ids, ``max_tokens``, ``stop_token_ids`` and what else the
                protocol has.
            stop: can cancel it.

        Raises:
            AskAgain: no connection, no whole answer in time, a crowded or broken server, one that is being shut down.
            UserError: the server refuses the request, or does not answer in token ids.
            Stopped: it was cancelled.
        """
        known = {name: body[name] for name in ("model", "prompt")}
        rest = {name: value for name, value in body.items() if name not in known}
        create = self._client.completions.with_streaming_response.create
        return self._read(self._fetch(create, stop, **known, extra_body=rest), body)

    def positions(self, model: str) -> int | None:
        """How many tokens a served model can read and say together; None if the server does not tell.

        Raises:
            AskAgain: as `ask`.
            UserError: another model is served.
        """
        came = self._decoded(self._fetch(self._client.models.with_streaming_response.list))
        match came:
            case {"data": list() as served}:
                found = {str(one.get("id")): one.get("max_model_len") for one in served if isinstance(one, dict)}
            case _:
                raise UserError("the list of its models is none of vLLM's")
        if model not in found:
            raise UserError(self._shown(f"it serves {', '.join(found) or 'nothing'}, not {model}"))
        length = found[model]
        whole = isinstance(length, int) and not isinstance(length, bool) and 0 < length < _MOST_POSITIONS
        return length if whole else None

    def _read(self, content: bytes, body: Mapping[str, Any]) -> Completion:
        """The ids in a completion. Anything may come from a server, whatever the protocol says."""
        came = self._decoded(content)
        tokens = tokens_used(came)
        match came:
            case {"choices": [dict() as choice, *_]}:
                ids = choice.get("token_ids")
                told = choice.get("logprobs")
            case _:
                raise AskAgain(self._malformed(content), tokens=tokens)
        if not isinstance(ids, list):
            raise UserError("it answers without token ids: it must be vLLM 0.10.2 or newer")
        if choice.get("prompt_token_ids") not in (None, [*body["prompt"]]):
            raise UserError("it did not read the token ids that it was sent")
        logprobs = told.get("token_logprobs") if isinstance(told, dict) else None
        self._check_end(ids, choice.get("finish_reason"), body)
        if not (isinstance(logprobs, list) and len(logprobs) == len(ids) and all(map(_is_logprob, logprobs))):
            raise UserError("it answers without a log-probability for each token id")
        return Completion(tuple(ids), tuple(min(float(one), 0.0) for one in logprobs), tokens)

    def _check_end(self, ids: Sequence[Any], reason: object, body: Mapping[str, Any]) -> None:
        """Make sure that an answer ends at the requested stop, and nowhere before."""
        stops = body["stop_token_ids"]
        most = body["max_tokens"]
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in ids) or len(ids) > most:
            raise UserError(f"it must answer in at most {most} token ids, got {self._shown(str(ids))}")
        ends = [place for place, one in enumerate(ids) if one in stops]
        if ends[:1] == [len(ids) - 1] or (not ends and len(ids) == most):
            return
        if reason == "stop":
            raise UserError("it ends answers at token ids of its own: start it with --generation-config vllm")
        # A server that is being shut down aborts what it is at.
        raise AskAgain(self._shown(f"an answer that is not whole (finish_reason: {reason})"))


def _is_logprob(number: object) -> bool:
    if isinstance(number, bool) or not isinstance(number, int | float):
        return False
    return _LOWEST_LOGPROB <= number <= _ROUNDING  # which NaN is not


def server_address(url: str) -> str:
    """The base URL of a server, ``http://host:8000/v1`` of ``http://host:8000``.

    Raises:
        UserError: it is no address, or holds a password: names of players are written into files.
    """
    bare = url.strip().rstrip("/")
    try:
        parts = urlsplit(bare)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right or parts.query or parts.fragment:
        shown = without_secrets([bare])[0]
        raise UserError(f"a vLLM server must be an address such as http://localhost:8000, got {shown!r:.200}")
    if "@" in parts.netloc:
        raise UserError("the address of a vLLM server is written into files: set $VLLM_API_KEY instead of a password")
    return bare if parts.path.endswith("/v1") else f"{bare}/v1"


class TokenClient:
    """Asks a vLLM server, with all prompts of a turn under way at the same time.

    What may pass (no connection, no whole answer in time, status 408, 409, 429 and 5xx) is asked again, see
    `ChatRetries`: a server that dies may be started again within minutes, and every answer comes once.

    Args:
        url: address of the server, as `server_address` takes it. The key, if it needs one, is ``$VLLM_API_KEY``.
        model: name under which it serves the model.
        timeout: seconds after which a request is given up, from the first attempt to connect to the last byte.
        retries: how often one is tried again; 30 are about ten minutes.
        max_parallel: requests at the same time.

    Raises:
        UserError: a setting is out of range, or the package `openai` is missing.
    """

    def __init__(
        self, url: str, model: str, timeout: float = 300.0, retries: int = 30, max_parallel: int = 256
    ) -> None:
        check_range("(0, inf)", timeout=timeout)
        check_range("[0, inf)", retries=retries)
        check_range("[1, inf)", max_parallel=max_parallel)
        self.url = server_address(url)
        self.model = model
        self.max_parallel = max_parallel
        self._endpoint = TokenEndpoint(self.url, os.environ.get("VLLM_API_KEY", "").strip(), timeout)
        self._limits = ChatLimits()
        self._retries = ChatRetries(self._endpoint, self._limits, retries)

    def positions(self) -> int | None:
        """Return `TokenEndpoint.positions`, asked only once, so that a mistyped address fails without a wait.

        Raises:
            UserError: there is no such server, or no such model at it.
        """
        try:
            return self._endpoint.positions(self.model)
        except (AskAgain, UserError) as error:
            raise self._told(error) from error

    def probe(self, body: Mapping[str, Any]) -> Completion:
        """The completion of one request, asked once; raises as `positions`."""
        try:
            return self._endpoint.ask({"model": self.model, **body})
        except (AskAgain, UserError) as error:
            raise self._told(error) from error

    def complete(self, bodies: Sequence[Mapping[str, Any]]) -> list[Completion]:
        """One completion for each request, in their order.

        Args:
            bodies: contents of the requests, without ``model``.

        Raises:
            UserError: an answer could not be had after the last try.
        """
        if not bodies:
            return []
        stop = Stop()
        with ThreadPoolExecutor(min(self.max_parallel, len(bodies))) as pool:
            try:
                asked = [pool.submit(self._retries.ask, {"model": self.model, **body}, stop) for body in bodies]
                wait(asked)
            except BaseException:  # Ctrl-C and SIGTERM: the pool waits for its threads
                stop.cancel()
                raise
        errors = [one.exception() for one in asked]
        failed = [error for error in errors if error and not isinstance(error, Stopped)]
        if failed:
            raise self._told(failed[0]) if isinstance(failed[0], UserError) else failed[0]
        return [one.result() for one in asked]

    def spent(self) -> dict[str, int]:
        """``requests`` (repeated ones too) and ``tokens`` so far."""
        return {"requests": self._limits.requests, "tokens": self._limits.tokens}

    def _told(self, error: BaseException) -> UserError:
        return UserError(f"vLLM server at {self.url}, model {self.model!r:.200}: {error}")
