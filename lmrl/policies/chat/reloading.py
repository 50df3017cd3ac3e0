"""New weights for a vLLM server that runs: it reads them from a folder, and forgets what the old ones made of texts."""

import json
import os
import time
from concurrent import futures
from http.client import HTTPException
from threading import Thread
from typing import Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from lmrl.errors import UserError, check_range, in_one_line
from lmrl.policies.chat.tokens import server_address
from lmrl.utils.files import parse_json

__all__ = ["WeightReloader"]

_MOST_BYTES = 1 << 20  # bytes of an answer
_PAUSE = 0.5  # seconds between two questions whether a server is there, or has forgotten
_FOR_WEIGHTS = "VLLM_SERVER_DEV_MODE=1 in its environment"
_FOR_ADAPTERS = "--enable-lora, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment"
_TRIES = 20  # for the prefix cache, while aborted requests come to their end


class _NoRedirects(HTTPRedirectHandler):
    """An address that an answer names is not asked."""

    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        return None


class WeightReloader:
    """Has a vLLM server (0.32) read weights again, by the development endpoints of ``VLLM_SERVER_DEV_MODE=1``.

    Or adapters, by those of ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=True``. The first need no key, and the second none but
    that of all requests: anyone who reaches such a server can have it do anything. It belongs on this machine, or into
    a network that is trusted.

    Args:
        url: address of the server, as `lmrl.policies.chat.tokens.server_address` takes it.
        timeout: seconds for reading the weights.

    Raises:
        UserError: the address is none, or the timeout not above 0.
    """

    def __init__(self, url: str, timeout: float = 300.0) -> None:
        check_range("(0, inf)", timeout=timeout)
        self.url = server_address(url).removesuffix("/v1")
        self._timeout = timeout
        # vLLM asks for it under /v1 alone, but may repeat it anywhere.
        self._key = os.environ.get("VLLM_API_KEY", "").strip()
        self._opener: OpenerDirector = build_opener(_NoRedirects)

    def answers(self) -> bool:
        """Whether there is a server that is ready."""
        try:
            status, _ = self._ask("/health", None, min(self._timeout, 10.0))
        except (OSError, HTTPException, ValueError):
            return False
        return 200 <= status < 300

    def wait(self, seconds: float) -> bool:
        """Return whether the server is ready within the given seconds."""
        end = time.monotonic() + seconds
        while not (ready := self.answers()) and time.monotonic() < end:
            time.sleep(_PAUSE)
        return ready

    def reload(self, folder: str) -> None:
        """Read the weights in a folder, and forget the prefix cache.

        Args:
            folder: as the server finds it.

        Raises:
            UserError: the server is not there, was not started for it, or could not read them.
        """
        body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        came = self._post("/collective_rpc", body)
        if not isinstance(came, dict) or not isinstance(came.get("results"), list):
            self._fail(f"an unknown answer to reload_weights: {came}")
        for _ in range(_TRIES):
            came = self._post("/reset_prefix_cache", {})
            if isinstance(came, dict) and came.get("success") is True:
                return
            time.sleep(_PAUSE)
        self._fail("it does not forget its prefix cache, which is of the weights before: does it serve others too?")

    def load_adapters(self, name: str, folder: str) -> None:
        """Serve the adapters in a folder under a name. Both have to be new, or the prefix cache mixes them with others.

        Raises:
            UserError: the server is not there, was not started for it, or could not read them.
        """
        self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder}, _FOR_ADAPTERS)

    def unload_adapters(self, name: str) -> None:
        """Serve adapters no longer; raises as `load_adapters`."""
        self._post("/v1/unload_lora_adapter", {"lora_name": name}, _FOR_ADAPTERS)

    def serves(self, name: str) -> bool:
        """Whether the server has a model or adapters of that name; raises as `load_adapters`."""
        came = self._post("/v1/models", None)
        served = came.get("data") if isinstance(came, dict) else None
        if not isinstance(served, list):
            self._fail("the list of its models is none of vLLM's")
        return any(isinstance(one, dict) and one.get("id") == name for one in served)

    def _post(self, path: str, body: dict[str, Any] | None, start: str = _FOR_WEIGHTS) -> Any:
        """Return what the server answers; without a body it is only asked. `start` says how a server is to be started.

        The answers about adapters are plain text.
        """
        data = None if body is None else json.dumps(body).encode()
        try:
            status, content = self._ask(path, data, self._timeout)
            if 200 <= status < 300:
                return content if path.endswith("lora_adapter") else parse_json(content, "the answer")
        except (OSError, HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            self._fail(f"no answer to {path}: {reason or type(error).__name__}")
        if status == 404:
            self._fail(f"it has no {path}: start it with {start} (vLLM 0.32)")
        self._fail(f"status {status} of {path}: {content.decode('utf-8', 'replace')}")

    def _ask(self, path: str, data: bytes | None, timeout: float) -> tuple[int, bytes]:
        """Return the status and the first MiB of what a server answers.

        Raises:
            TimeoutError: no whole answer in time. The timeouts of urllib start again with each byte, so another thread
                waits for the bytes; it ends with the process at the latest.
        """
        headers = {"content-type": "application/json"}
        if self._key and path.startswith("/v1/"):
            headers["authorization"] = f"Bearer {self._key}"
        request = Request(f"{self.url}{path}", data, headers)
        came: futures.Future[tuple[int, bytes]] = futures.Future()
        Thread(target=self._fetch, args=(request, timeout, came), daemon=True).start()
        try:
            return came.result(timeout)
        except futures.TimeoutError as error:
            raise TimeoutError(f"no whole answer within {timeout:g} s") from error

    def _fetch(self, request: Request, timeout: float, came: "futures.Future[tuple[int, bytes]]") -> None:
        try:
            try:
                answer = self._opener.open(request, timeout=timeout)
            except HTTPError as error:  # which is an answer, too
                answer = error
            with answer:
                came.set_result((answer.status, answer.read(_MOST_BYTES)))
        except Exception as error:
            came.set_exception(error)

    def _fail(self, what: str) -> NoReturn:
        safe = what.replace(self._key, "(key)") if self._key else what
        raise UserError(f"vLLM server at {self.url}: {in_one_line(safe)}")
