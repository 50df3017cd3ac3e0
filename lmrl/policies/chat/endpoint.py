"""One request to an OpenAI-compatible endpoint: retries, deadline, and what comes back."""

import asyncio
import json
import math
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from importlib import import_module
from threading import Event, Lock, Thread
from typing import Any, Generic, Protocol, TypeVar
from weakref import finalize

from lmrl.errors import UserError, valid_unicode
from lmrl.policies.chat.limits import ChatLimits
from lmrl.utils.files import parse_json

__all__ = [
    "THOUGHT",
    "Answer",
    "AskAgain",
    "ChatRetries",
    "Connection",
    "Endpoint",
    "Stop",
    "Stopped",
    "mended",
    "tokens_used",
    "without_thoughts",
]


THOUGHT = "<think>"
"""Opens what a reasoning model says aloud before its answer."""
_END_OF_THOUGHT = "</think>"
_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f]")  # all but white space


def mended(text: str) -> str:
    """Valid Unicode without control characters: U+FFFD stands for each of them and for half a surrogate pair."""
    return _CONTROL.sub("\ufffd", valid_unicode(text))


def without_thoughts(answer: str) -> str:
    """The answer without what a reasoning model says aloud first; nothing if it never stopped thinking."""
    # Some chat templates open the thought in the prompt, so that the answer holds its end alone.
    return _THOUGHTS.sub("", answer).rpartition(_END_OF_THOUGHT)[2]


_SHOWN = 200  # characters of what came that an error shows
_LEAST_SECRET = 12  # characters of a key; shorter ones are words such as EMPTY, which an answer may well have
_MOST_BYTES = 4 << 20  # bytes of an answer with all that belongs to it
_MOST_TOKENS = 10**9  # tokens that one request can have used: a larger number is not believed
_AGAIN = frozenset({408, 409, 429})  # and all from 500
_SPENT = "insufficient_quota"  # a 429 that no patience helps against
_CUT = frozenset({"length", "content_filter"})  # reasons for which a server ends an answer before the model does


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a chat model."""

    text: str
    """Valid Unicode; empty if the model said nothing."""
    tokens: int | None
    """Tokens of the prompt and the answer, at least 1; None if the endpoint gave no number that can be believed."""
    cut: bool = False
    """It ends before the model ended it: at the longest answer, or at a filter."""


class AskAgain(Exception):
    """No answer this time, but perhaps the next.

    Args:
        what: came instead.
        after: seconds after which the endpoint wants to be asked again; None: it did not say.
        tokens: that it cost nevertheless, as far as the endpoint told.
    """

    def __init__(self, what: str, after: float | None = None, tokens: int | None = None) -> None:
        super().__init__(what)
        self.after = after
        self.tokens = tokens


class Connection:
    """To a server that speaks OpenAI's protocol; threads may share it. A subclass says what is asked, and reads it.

    Args:
        url: base URL, ``https://api.openai.com/v1``.
        key: API key; empty where none is needed.
        timeout: seconds after which a request is given up, from the first attempt to connect to the last byte.

    Raises:
        UserError: the package `openai` is missing.
    """

    def __init__(self, url: str, key: str, timeout: float) -> None:
        try:
            # An optional package that takes a second to load: only those who ask a chat model need it.
            self._package: Any = import_module("openai")
        except ImportError as error:
            raise UserError(f"models at servers need the package openai ({error}): pip install 'lmrl[chat]'") from error
        self._key = key
        self._timeout = timeout
        # The timeouts of an HTTP client begin anew with each byte. Only a coroutine can be cancelled at any point.
        transport = self._package.DefaultAsyncHttpxClient(
            timeout=timeout,
            # An answer names no other host: prompts are for this one, and so is the trust in what comes back.
            follow_redirects=False,
            headers={"Accept-Encoding": "identity"},
            event_hooks={"response": [_check_response]},
        )
        self._client = self._package.AsyncOpenAI(
            base_url=url, api_key=key or "none", timeout=timeout, max_retries=0, http_client=transport
        )
        finalize(self, _close, self._client)

    def _fetch(self, method: Callable[..., Any], stop: "Stop | None" = None, **arguments: Any) -> bytes:
        """Call a method of the client (one of ``with_streaming_response``) and return the whole response in time.

        Raises:
            AskAgain: no connection, no whole answer in time, or a crowded or broken server.
            UserError: the endpoint refuses the request.
            Stopped: the request was cancelled.
        """
        try:
            asked = asyncio.wait_for(self._send(method, arguments), self._timeout)
            future = asyncio.run_coroutine_threadsafe(asked, _event_loop())
            came = future.result() if stop is None else stop.result(future)
        except (asyncio.TimeoutError, self._package.APITimeoutError) as error:
            raise AskAgain(f"no whole answer within {self._timeout:g} s") from error
        except (_Refused, AskAgain, self._package.APIConnectionError) as error:
            # Some versions of the package wrap whatever a hook raises.
            cause = error.__cause__ if isinstance(error, self._package.APIConnectionError) else error
            if isinstance(cause, _Refused):
                raise self._refusal(cause) from error
            if isinstance(cause, AskAgain):
                raise cause from error
            raise AskAgain(self._shown(f"no connection: {cause or error}")) from error
        return came

    async def _send(self, method: Callable[..., Any], arguments: Mapping[str, Any]) -> bytes:
        came = bytearray()
        try:
            async with method(**arguments) as response:
                async for part in response.iter_bytes():
                    came += part
                    if len(came) > _MOST_BYTES:
                        raise AskAgain(f"an answer of more than {_MOST_BYTES >> 20} MiB")
        except (self._package.OpenAIError, AskAgain, _Refused):
            raise
        except Exception as error:  # any error of the HTTP library: those after the headers are not wrapped
            raise AskAgain(self._shown(f"the answer broke off: {error or type(error).__name__}")) from error
        return bytes(came)

    def _decoded(self, content: bytes) -> Any:
        """The JSON of an answer; raises AskAgain where it is none."""
        try:
            return parse_json(content, "the answer", mend=True)
        except UserError as error:
            raise AskAgain(self._malformed(content)) from error

    def _malformed(self, content: bytes) -> str:
        # All of it is decoded: a part could end within the key, which would then not be recognised.
        return self._shown(f"a malformed answer: {content.decode('utf-8', 'replace')}")

    def _refusal(self, refused: "_Refused") -> Exception:
        """The error to raise for a status that is no success."""
        body = refused.body.decode("utf-8", "replace").strip()
        if 300 <= refused.status < 400:
            body = f"it redirects to {refused.headers.get('location')}, which is not followed"
        what = self._shown(f"status {refused.status}: {body or 'nothing else'}")
        final = refused.headers.get("x-should-retry") == "false" or _error_code(refused.body) == _SPENT
        if final or not (refused.status in _AGAIN or refused.status >= 500):
            return UserError(what)
        return AskAgain(what, _seconds(refused.headers.get("retry-after")))

    def _shown(self, text: str) -> str:
        """Return the beginning of an error's text on one line, without the key, which some servers repeat."""
        safe = text.replace(self._key, "(key)") if self._key else text
        return " ".join(mended(safe).split())[:_SHOWN]

    def _without_key(self, text: str) -> str:
        """An answer without the key, which must not get into files of episodes and caches."""
        return text.replace(self._key, "(key)") if len(self._key) >= _LEAST_SECRET else text


class _Refused(Exception):
    """A response whose status is no success, with at most 4 MiB of its body."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = headers
        self.body = body


async def _check_response(response: Any) -> None:
    """Refuse a response by its status and encoding, before the package reads its whole body into memory.

    Args:
        response: response of the HTTP library; only its headers have been read.

    Raises:
        AskAgain: the body is compressed, although that was not asked for: a few kB may become GiB.
        _Refused: the status is no success.
    """
    encoding = response.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise AskAgain(f"an answer in the encoding {encoding[:20]!r}, which was not asked for")
    if response.is_success:
        return
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) > _MOST_BYTES:
            break
    raise _Refused(response.status_code, response.headers, bytes(body))


def _error_code(body: bytes) -> Any:
    """Return the code of an error as OpenAI's protocol has it, ``{"error": {"code": ...}}``; None without one."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error = content.get("error", content) if isinstance(content, dict) else None
    return error.get("code") if isinstance(error, dict) else None


class Endpoint(Connection):
    """A chat model at a server."""

    def ask(self, body: Mapping[str, Any], stop: "Stop | None" = None) -> Answer:
        """Send one request.

        Args:
            body: content of the request, as the protocol has it.
            stop: can cancel it.

        Raises:
            AskAgain: no connection, no whole answer in time, a crowded or broken server, or an answer that is none.
            UserError: the endpoint refuses the request.
            Stopped: it was cancelled.
        """
        known = {name: body[name] for name in ("model", "messages")}
        rest = {name: value for name, value in body.items() if name not in known}
        create = self._client.chat.completions.with_streaming_response.create
        return self._read(self._fetch(create, stop, **known, extra_body=rest))

    def _read(self, content: bytes) -> Answer:
        """The answer in a completion. Anything may come from a server, whatever the protocol says."""
        came = self._decoded(content)
        tokens = tokens_used(came)
        match came:
            case {"choices": [{"message": dict() as message} as choice, *_]}:
                text = message.get("content")
            case _:
                raise AskAgain(self._malformed(content), tokens=tokens)
        if not isinstance(text, str | None):
            raise AskAgain(f"a malformed answer: content must be a text, got {type(text).__name__}", tokens=tokens)
        reason = choice.get("finish_reason")
        if not isinstance(reason, str | None):
            kind = type(reason).__name__
            raise AskAgain(f"a malformed answer: finish_reason must be a text, got {kind}", tokens=tokens)
        return Answer(self._without_key(mended(text or "")), tokens, reason in _CUT)


_loops: dict[int, asyncio.AbstractEventLoop] = {}
_guard = Lock()


def _event_loop() -> asyncio.AbstractEventLoop:
    """The loop in which all requests of this process run, in a thread of its own; a fork has to have another."""
    with _guard:
        if os.getpid() not in _loops:
            _loops[os.getpid()] = loop = asyncio.new_event_loop()
            Thread(target=loop.run_forever, name="lmrl-chat", daemon=True).start()
        return _loops[os.getpid()]


def _close(client: Any) -> None:
    """Hang up, in the thread to which the connections belong."""
    asyncio.run_coroutine_threadsafe(client.close(), _event_loop())


def tokens_used(came: Any) -> int | None:
    """Return the number of tokens that a request used, or None if the server reports an impossible one."""
    match came:
        case {"usage": {"total_tokens": int() as total}} if not isinstance(total, bool) and 0 < total <= _MOST_TOKENS:
            return total
    return None


def _seconds(header: str | None) -> float | None:
    """Return the pause that ``Retry-After`` asks for, a number of seconds or a date.

    None if it says neither, or more than a month, which no server means.
    """
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            date = parsedate_tz(header)
            seconds = math.nan if date is None else mktime_tz(date) - time.time()
        except (ValueError, OverflowError, IndexError, TypeError):  # the year 99999999999, the month 0
            return None
    return max(seconds, 0.0) if seconds <= _MONTH else None


# seconds between two tries
_FIRST_WAIT = 0.5
_LONGEST_WAIT = 30.0
_LONGEST_PAUSE = 120.0  # seconds that an endpoint may ask us to wait
_MONTH = 31 * 86_400.0  # seconds


class Stopped(Exception):
    """The answer is not wanted any more."""


class Stop:
    """Ends a batch of requests: after `set` none begins, and `cancel` also gives up those that are under way."""

    def __init__(self) -> None:
        self._event = Event()
        self._lock = Lock()
        self._running = set[Future[bytes]]()
        self._is_cancelled = False

    def set(self) -> None:
        """Let no further request begin."""
        self._event.set()

    def cancel(self) -> None:
        """Let no further request begin, and give up those that are under way."""
        self._event.set()
        with self._lock:
            self._is_cancelled = True
            for future in self._running:
                future.cancel()

    def wait(self, seconds: float) -> None:
        """Wait; raises `Stopped` as soon as no request may begin."""
        if self._event.wait(seconds):
            raise Stopped

    def result(self, future: Future[bytes]) -> bytes:
        """Return the result of a request; raises `Stopped` if it is given up."""
        with self._lock:
            self._running.add(future)
            if self._is_cancelled:
                future.cancel()
        try:
            return future.result()
        except CancelledError as error:
            raise Stopped from error
        finally:
            with self._lock:
                self._running.discard(future)


class _Counted(Protocol):
    @property
    def tokens(self) -> int | None: ...


A = TypeVar("A", bound=_Counted, covariant=True)


class _Asked(Protocol[A]):
    def ask(self, body: Mapping[str, Any], stop: Stop) -> A: ...


class ChatRetries(Generic[A]):
    """Asks an endpoint within its limits, again and again if need be; threads may share it.

    Between two tries pass 0.5, 1, 2, ... seconds, at most 30, up to half of it taken off by chance so that threads do
    not come back together; or more if the endpoint says so (``Retry-After``), and then all other threads wait too.

    Args:
        endpoint: who is asked.
        limits: pace and budget.
        retries: how often a request is tried again.
    """

    def __init__(self, endpoint: _Asked[A], limits: ChatLimits, retries: int) -> None:
        self._endpoint = endpoint
        self._limits = limits
        self._retries = retries
        self._chance = random.Random()

    def ask(self, body: Mapping[str, Any], stop: Stop) -> A:
        """The answer to one request.

        Args:
            body: see `Endpoint.ask`.
            stop: when set, nothing more is asked. It is set when there is an error.

        Raises:
            UserError: the endpoint refuses, or there is no answer after the last try.
            BudgetError: the budget is used up.
            Stopped: `stop` was set before the request began, or cancelled it.
        """
        try:
            answer = self._insist(body, stop)
        except Exception:
            stop.set()  # here, before this thread takes up the next request
            raise
        self._limits.spend(answer.tokens)
        return answer

    def _insist(self, body: Mapping[str, Any], stop: Stop) -> A:
        tried = 0
        while True:
            stop.wait(self._limits.turn())
            self._limits.begin()
            try:
                return self._endpoint.ask(body, stop)
            except AskAgain as error:
                if error.tokens is not None:
                    self._limits.spend(error.tokens)
                tried += 1
                after = error.after or 0.0
                if tried > self._retries or after > _LONGEST_PAUSE:
                    wish = f", asks for a pause of {after:.0f} s" if after else ""
                    raise UserError(f"{error}{wish} (tries: {tried})") from error
            self._limits.pause(after)
            stop.wait(max(after, self._backoff(tried)))

    def _backoff(self, tried: int) -> float:
        return min(_FIRST_WAIT * 2.0 ** (tried - 1), _LONGEST_WAIT) * self._chance.uniform(0.5, 1.0)
