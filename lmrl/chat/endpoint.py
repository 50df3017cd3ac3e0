"""One request to an OpenAI-compatible endpoint: pace and budget, retries, deadline, and the text of the reply."""

import asyncio
import json
import os
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from importlib import import_module
from threading import Event, Lock, Thread
from typing import Any
from weakref import finalize

from lmrl.errors import BudgetError, UserError, check_range

__all__ = [
    "Answer",
    "AskAgain",
    "ChatLimits",
    "ChatRetries",
    "Endpoint",
    "Stopped",
    "mended",
    "shared_limits",
    "without_thoughts",
]


class ChatLimits:
    """Keeps the pace and the budget of all threads that ask one endpoint.

    Args:
        requests_per_minute: they are spread evenly; None: no limit.
        budget_requests: after so many requests none is begun; repeated ones count too. None: no limit.
        budget_tokens: after so many tokens, of prompts and answers, none is begun. Those that are under way then still
            come to their end. None: no limit.

    Raises:
        UserError: for a limit that is not positive.
    """

    def __init__(
        self,
        requests_per_minute: float | None = None,
        budget_requests: int | None = None,
        budget_tokens: int | None = None,
    ) -> None:
        given = {
            "requests_per_minute": requests_per_minute,
            "budget_requests": budget_requests,
            "budget_tokens": budget_tokens,
        }
        check_range("(0, inf)", **given)
        self.given = given
        self.requests = self.tokens = 0
        self._gap = 60 / requests_per_minute if requests_per_minute else 0.0
        self._budget_requests, self._budget_tokens = budget_requests, budget_tokens
        self._lock, self._next, self._untold = Lock(), 0.0, False

    def turn(self) -> float:
        """Take the next place in the queue; returns the seconds until it is there."""
        with self._lock:
            now = time.monotonic()
            at = max(now, self._next)
            self._next = at + self._gap
            return at - now

    def pause(self, seconds: float) -> None:
        """Give out no place before so many seconds have passed: the endpoint asked for it."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)

    def begin(self) -> None:
        """Count a request.

        Raises:
            BudgetError: the budget is used up, or nobody can tell how much of it.
        """
        with self._lock:
            if self._budget_tokens is not None and self._untold:
                raise BudgetError(
                    "budget_tokens needs an endpoint that tells how many tokens it used; this one does not"
                )
            if self._budget_requests is not None and self.requests >= self._budget_requests:
                raise BudgetError(f"the budget of {self._budget_requests} requests (budget_requests) is used up")
            if self._budget_tokens is not None and self.tokens >= self._budget_tokens:
                raise BudgetError(
                    f"the budget of {self._budget_tokens} tokens (budget_tokens) is used up: {self.tokens} were used"
                )
            self.requests += 1

    def spend(self, tokens: int | None) -> None:
        """Count the tokens of a request and its answer, at least 1; None: the endpoint did not tell."""
        with self._lock:
            self._untold |= tokens is None
            self.tokens += tokens or 0


_shared: dict[str, ChatLimits] = {}
_shared_lock = Lock()


def shared_limits(
    url: str, requests_per_minute: float | None, budget_requests: int | None, budget_tokens: int | None
) -> ChatLimits:
    """The limits of an endpoint that all clients of this process have together: made by the first who asks.

    Args:
        url: of the endpoint.
        requests_per_minute: see `ChatLimits`, as all of these; all who share say the same.
        budget_requests: of all together.
        budget_tokens: of all together.

    Raises:
        UserError: for other limits than those of the first.
    """
    asked = ChatLimits(requests_per_minute, budget_requests, budget_tokens)
    with _shared_lock:
        limits = _shared.setdefault(url, asked)
    if limits.given != asked.given:
        first, now = (", ".join(f"{name}={value}" for name, value in one.given.items()) for one in (limits, asked))
        raise UserError(f"who shares a budget gives the same limits: one client has {first}, another one {now}")
    return limits


_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f]")  # all but white space


def mended(text: str) -> str:
    r"""Valid Unicode without control characters: U+FFFD stands for each of them and for half a surrogate pair.

    Neither Parquet nor UTF-8 can hold a lone surrogate, and JSON may have one (``"\ud83d"``).
    """
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _CONTROL.sub("\ufffd", whole)


def without_thoughts(answer: str) -> str:
    """The answer without what a reasoning model says aloud first; nothing if it never stopped thinking."""
    return _THOUGHTS.sub("", answer)


_SHOWN = 200  # characters of what came that an error shows
_MOST_BYTES = 4 << 20  # of an answer with all that belongs to it
_MOST_TOKENS = 10**9  # that one request can have used: who says more is not believed
_AGAIN = frozenset({408, 409, 429})  # and all from 500
_SPENT = "insufficient_quota"  # a 429 that no patience helps against
_CUT = frozenset({"length", "content_filter"})  # reasons for which a server ends an answer before the model does


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said."""

    text: str
    """Valid Unicode; empty if the model said nothing."""
    tokens: int | None
    """Of the prompt and the answer, at least 1; None if the endpoint did not tell, or nothing that can be believed."""
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
        self.after, self.tokens = after, tokens


class Endpoint:
    """A connection to a server that speaks OpenAI's chat protocol; threads may share it.

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
            raise UserError(f"chat models need the package openai ({error}): pip install 'lmrl[chat]'") from error
        self._key, self._timeout = key, timeout
        # The timeouts of an HTTP client begin anew with each byte. Only a coroutine can be cancelled at any point.
        self._client = self._package.AsyncOpenAI(base_url=url, api_key=key or "none", timeout=timeout, max_retries=0)
        finalize(self, _close, self._client)

    def ask(self, body: Mapping[str, Any]) -> Answer:
        """Send one request.

        Args:
            body: of the request, as the protocol has it.

        Raises:
            AskAgain: no connection, no whole answer in time, a crowded or broken server, or an answer that is none.
            UserError: the endpoint refuses the request.
        """
        try:
            asked = asyncio.wait_for(self._send(body), self._timeout)
            came = asyncio.run_coroutine_threadsafe(asked, _event_loop()).result()
        except (asyncio.TimeoutError, self._package.APITimeoutError) as error:
            raise AskAgain(f"no whole answer within {self._timeout:g} s") from error
        except self._package.APIConnectionError as error:
            raise AskAgain(self._shown(f"no connection: {error.__cause__ or error}")) from error
        except self._package.APIStatusError as error:
            raise self._refusal(error) from error
        return self._read(came)

    async def _send(self, body: Mapping[str, Any]) -> bytes:
        known = {name: body[name] for name in ("model", "messages")}
        rest = {name: value for name, value in body.items() if name not in known}
        came = bytearray()
        completions = self._client.chat.completions.with_streaming_response
        try:
            async with completions.create(**known, extra_body=rest) as response:
                async for part in response.iter_bytes():
                    came += part
                    if len(came) > _MOST_BYTES:
                        raise AskAgain(f"an answer of more than {_MOST_BYTES >> 20} MiB")
        except (self._package.OpenAIError, AskAgain):
            raise
        except Exception as error:  # of the HTTP library, whichever it is: what comes after the headers is not wrapped
            raise AskAgain(self._shown(f"the answer broke off: {error or type(error).__name__}")) from error
        return bytes(came)

    def _read(self, content: bytes) -> Answer:
        """The answer in a completion. Anything may come from a server, whatever the protocol says."""
        try:
            came = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise AskAgain(self._malformed(content)) from error
        tokens = _tokens(came)
        match came:
            case {"choices": [{"message": dict() as message} as choice, *_]}:
                text = message.get("content")
            case _:
                raise AskAgain(self._malformed(content), tokens=tokens)
        if not isinstance(text, str | None):
            raise AskAgain(f"a malformed answer: content must be a text, got {type(text).__name__}", tokens=tokens)
        return Answer(mended(text or ""), tokens, choice.get("finish_reason") in _CUT)

    def _malformed(self, content: bytes) -> str:
        return self._shown(f"a malformed answer: {content[: 4 * _SHOWN].decode('utf-8', 'replace')}")

    def _refusal(self, error: Any) -> Exception:
        """What to make of a status that is no success."""
        status, headers = error.status_code, error.response.headers
        what = self._shown(f"status {status}: {error.response.text.strip() or 'nothing else'}")
        final = headers.get("x-should-retry") == "false" or error.code == _SPENT
        if final or not (status in _AGAIN or status >= 500):
            return UserError(what)
        return AskAgain(what, _seconds(headers.get("retry-after")))

    def _shown(self, text: str) -> str:
        """What an error says of it: the beginning, on one line, without the key, which some servers repeat."""
        safe = text.replace(self._key, "(key)") if self._key else text
        return " ".join(mended(safe).split())[:_SHOWN]


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


def _tokens(came: Any) -> int | None:
    """What a request cost, if that is a number that it can have cost."""
    match came:
        case {"usage": {"total_tokens": int() as total}} if not isinstance(total, bool) and 0 < total <= _MOST_TOKENS:
            return total
    return None


def _seconds(header: str | None) -> float | None:
    """What ``Retry-After`` says: a number of seconds or a date."""
    if header is None:
        return None
    try:
        return max(float(header), 0.0)
    except ValueError:
        date = parsedate_tz(header)
        return None if date is None else max(mktime_tz(date) - time.time(), 0.0)


_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0  # seconds between two tries
_LONGEST_PAUSE = 120.0  # seconds that an endpoint may ask us to wait


class Stopped(Exception):
    """The answer is not wanted any more."""


class ChatRetries:
    """Asks an endpoint within its limits, again and again if need be; threads may share it.

    Between two tries pass 0.5, 1, 2, ... seconds, at most 30, up to half of it taken off by chance so that threads do
    not come back together; or more if the endpoint says so (``Retry-After``), in which case nobody else asks either.

    Args:
        endpoint: who is asked.
        limits: pace and budget.
        retries: how often a request is tried again.
    """

    def __init__(self, endpoint: Endpoint, limits: ChatLimits, retries: int) -> None:
        self._endpoint, self._limits, self._retries = endpoint, limits, retries
        self._chance = random.Random()

    def ask(self, body: Mapping[str, Any], stop: Event) -> Answer:
        """The answer to one request.

        Args:
            body: see `Endpoint.ask`.
            stop: when set, nothing more is asked. It is set when there is an error.

        Raises:
            UserError: the endpoint refuses, or there is no answer after the last try.
            BudgetError: the budget is used up.
            Stopped: the event was set.
        """
        try:
            answer = self._insist(body, stop)
        except Exception:
            stop.set()  # here, before this thread takes up the next request
            raise
        self._limits.spend(answer.tokens)
        return answer

    def _insist(self, body: Mapping[str, Any], stop: Event) -> Answer:
        tried = 0
        while True:
            self._wait(self._limits.turn(), stop)
            self._limits.begin()
            try:
                return self._endpoint.ask(body)
            except AskAgain as error:
                if error.tokens is not None:
                    self._limits.spend(error.tokens)
                tried += 1
                after = error.after or 0.0
                if tried > self._retries or after > _LONGEST_PAUSE:
                    wish = f", asks for a pause of {after:.0f} s" if after else ""
                    raise UserError(f"{error}{wish} (tries: {tried})") from error
            self._limits.pause(after)
            self._wait(max(after, self._backoff(tried)), stop)

    def _backoff(self, tried: int) -> float:
        return min(_FIRST_WAIT * 2.0 ** (tried - 1), _LONGEST_WAIT) * self._chance.uniform(0.5, 1.0)

    def _wait(self, seconds: float, stop: Event) -> None:
        if stop.wait(seconds):
            raise Stopped
