"""Chat models behind an OpenAI-compatible endpoint: concurrent requests, rate limits, a budget, a cache of replies."""

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from lmrl.errors import BudgetError, UserError, check_range, without_secrets
from lmrl.policies.chat.endpoint import Answer, ChatRetries, Endpoint, Stop, Stopped, mended
from lmrl.policies.chat.limits import ChatLimits, shared_limits

__all__ = ["ChatCache", "ChatClient", "ChatError", "Messages"]

_TABLE = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model TEXT NOT NULL, answer TEXT NOT NULL)"
_KEEP = """\
INSERT INTO answers VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET answer = excluded.answer WHERE typeof(answer) <> 'text' OR trim(answer) = ''"""
_FIND = "SELECT key, answer FROM answers WHERE key = ? AND typeof(answer) = 'text' AND trim(answer) <> ''"
_PATIENCE = 60.0  # seconds to wait for another process that writes


class ChatCache:
    """Answers by key. Any number of threads and processes may read and write one file.

    Args:
        path: path of the SQLite file; missing folders are made.

    Raises:
        UserError: here and later, if the file cannot be written or is something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cache must be a file that can be written, got {path}: {error}") from error
        with self._opened() as file:
            file.execute(_TABLE)

    def find(self, keys: Iterable[str]) -> dict[str, str]:
        """The answers that are there. What is no text, or an empty one, is none: it will be asked for again."""
        with self._opened() as file:
            rows = [file.execute(_FIND, (key,)).fetchone() for key in keys]
        return {key: mended(answer) for key, answer in filter(None, rows)}

    def keep(self, answers: Mapping[str, str], model: str) -> None:
        """Write answers by key, all at once; one that is there already stays."""
        rows = [(key, model, answer) for key, answer in answers.items()]
        with self._opened() as file:
            # Told at once that it will write, nobody waits for another while holding a lock.
            file.execute("BEGIN IMMEDIATE")
            file.executemany(_KEEP, rows)
            file.execute("COMMIT")

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        # A connection for each use: they must not pass from one thread or process to another.
        try:
            with closing(sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)) as file:
                yield file
        except sqlite3.Error as error:
            raise UserError(f"cache must be an SQLite file that can be written, got {self.path}: {error}") from error


Messages: TypeAlias = Sequence[Mapping[str, str]]
"""A conversation: ``[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it alive?"}]``."""

_OPENAI = "https://api.openai.com/v1"
_CACHE = "chat.sqlite"
_SEEDS = 2**31  # servers differ in what seeds they take, but these all do


class ChatError(UserError):
    """Some answers could not be had. Those that came are in the cache, if there is one: trying again gets the rest."""


class ChatBudgetError(ChatError, BudgetError):
    """Some answers could not be had because the budget is used up."""


class ChatClient:
    """Asks a chat model, many conversations at the same time, and pays for none twice.

    What may pass (no connection, no whole answer in time, status 408, 409, 429 and 5xx, a malformed answer) is tried
    again, see `ChatRetries`. An answer that is empty, or cut off at ``max_tokens`` or by a filter, is handed on as it
    came but not kept in the cache: a repeated run asks for it again.

    Args:
        model: name at the endpoint.
        base_url: address of the endpoint; None: ``$OPENAI_BASE_URL``, or OpenAI's own.
        api_key: None: ``$OPENAI_API_KEY``. Most local servers need none. It is never written anywhere.
        temperature: sampling temperature; None leaves it to the endpoint (some models refuse to be told).
        max_tokens: longest answer; None leaves it to the endpoint.
        timeout: seconds after which a request is given up, from the first attempt to connect to the last byte.
        retries: how often one is tried again.
        max_parallel: requests at the same time.
        requests_per_minute: they are spread evenly; None: no limit. This client alone is counted, here and below.
        budget_requests: most requests, repeated ones included. Cached answers cost nothing.
        budget_tokens: most tokens of prompts and answers. At the limit no request begins; running ones are finished.
        shared_budget: pace and budgets are those of all clients of this process that say so for the same endpoint (a
            player and a partner); each gives the same three numbers.
        cache: file with all answers so far; True: ``chat.sqlite`` in ``$LMRL_DATA`` or ``data``; False: none.
        extra: more of the request, as the protocol has it: ``{"reasoning_effort": "low"}``.

    Raises:
        UserError: for a setting out of range, a missing key, a cache that is none, or if the package `openai` is
            missing.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        temperature: float | None = 0.0,
        max_tokens: int | None = 128,
        timeout: float = 60.0,
        retries: int = 5,
        max_parallel: int = 64,
        requests_per_minute: float | None = None,
        budget_requests: int | None = None,
        budget_tokens: int | None = None,
        shared_budget: bool = False,
        cache: str | os.PathLike[str] | bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        _check(model, timeout, extra, retries=retries, max_parallel=max_parallel, max_tokens=max_tokens)
        check_range("[0, inf)", temperature=temperature, retries=retries)
        check_range("[1, inf)", max_parallel=max_parallel, max_tokens=max_tokens)
        self.model = model
        self.max_parallel = max_parallel
        self.base_url = _url(base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI)
        given = {"temperature": temperature, "max_tokens": max_tokens, **(extra or {})}
        self.settings = {name: value for name, value in given.items() if value is not None}
        endpoint = Endpoint(self.base_url, _key(self.base_url, api_key), timeout)
        limits = (requests_per_minute, budget_requests, budget_tokens)
        self._limits = shared_limits(self.base_url, *limits) if shared_budget else ChatLimits(*limits)
        self._asking = ChatRetries(endpoint, self._limits, retries)
        self._cache = ChatCache(_cache_path(cache)) if cache is not False else None

    def complete(self, batch: Sequence[Messages], seeds: Sequence[int] | None = None) -> list[str]:
        """One answer for each conversation; an empty one if the model chose to say nothing.

        Args:
            batch: conversations.
            seeds: sampling seeds, one for each: conversations that are the same get other answers only with other
                seeds. At temperature 0 they are not used. Whether the endpoint follows them is its own business; it is
                the cache that makes a run repeatable.

        Raises:
            ChatError: an answer could not be had after the last try. It says how many came.
            BudgetError: the same because the budget is used up.
        """
        sampled = seeds is not None and self.settings.get("temperature") != 0
        given = seeds if seeds is not None and sampled else [None] * len(batch)
        bodies = [self._body(messages, seed) for messages, seed in zip(batch, given, strict=True)]
        keys = [self._hash(body) for body in bodies]
        answers = self._cache.find(dict.fromkeys(keys)) if self._cache else {}
        missing = {key: body for key, body in zip(keys, bodies, strict=True) if key not in answers}
        if missing:
            self._ask_all(missing, answers)
        return [answers[key] for key in keys]

    def describe(self) -> dict[str, Any]:
        """Model, endpoint and settings: what answers depend on. No key, no password."""
        return {"model": self.model, "endpoint": _public(self.base_url), **self.settings}

    def spent(self) -> dict[str, int]:
        """``requests`` (repeated ones too) and ``tokens`` so far; of a shared budget, those of all who share it."""
        return {"requests": self._limits.requests, "tokens": self._limits.tokens}

    def _body(self, messages: Messages, seed: int | None) -> dict[str, Any]:
        told = {} if seed is None else {"seed": seed % _SEEDS}
        texts = [{name: mended(text) for name, text in message.items()} for message in messages]
        return {"model": self.model, "messages": texts, **self.settings, **told}

    def _hash(self, body: Mapping[str, Any]) -> str:
        return hashlib.sha256(json.dumps([self.base_url, body], sort_keys=True).encode()).hexdigest()

    def _ask_all(self, missing: Mapping[str, Mapping[str, Any]], answers: dict[str, str]) -> None:
        """Add the missing answers.

        After a failure nothing more is asked, but what is under way is waited for. After Ctrl-C or SIGTERM it is given
        up.
        """
        wanted = len(answers) + len(missing)
        stop = Stop()
        running: dict[Future[Answer], str] = {}
        with ThreadPoolExecutor(min(self.max_parallel, len(missing))) as pool:
            try:
                for key, body in missing.items():
                    running[pool.submit(self._asking.ask, body, stop)] = key
                failed = self._gather(running, answers)
            except BaseException as error:
                stop.cancel()
                if not isinstance(error, Exception):  # some answers may have come since the last ones were kept
                    self._gather(running, answers)
                raise
        if failed and isinstance(failed[0], UserError):
            kind = ChatBudgetError if isinstance(failed[0], BudgetError) else ChatError
            raise kind(self._told(failed[0], len(answers), wanted)) from failed[0]
        if failed:
            raise failed[0]

    def _gather(self, running: dict[Future[Answer], str], answers: dict[str, str]) -> list[BaseException]:
        """Keep answers as they come; returns what came instead, the first failure first."""
        failed: list[BaseException] = []
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            errors = {running[one]: one.exception() for one in done}
            came = {running[one]: one.result() for one in done if errors[running[one]] is None}
            answers |= {key: answer.text for key, answer in came.items()}
            if self._cache:  # all that came while the last ones were written: writing is slower than asking
                self._cache.keep({key: a.text for key, a in came.items() if a.text.strip() and not a.cut}, self.model)
            failed += [error for error in errors.values() if error and not isinstance(error, Stopped)]
            for one in done:
                del running[one]
        return failed

    def _told(self, error: UserError, came: int, wanted: int) -> str:
        kept = f", they are kept in {self._cache.path}" if self._cache and came else ""
        return f"chat model {self.model!r} at {_public(self.base_url)}: {error}; {came} of {wanted} answers came{kept}"


def _check(model: object, timeout: float | None, extra: object, **whole: int | None) -> None:
    if not isinstance(model, str) or not model:
        raise UserError(f"model must be the name of a chat model at the endpoint, got {model!r:.60}")
    if timeout is None:
        raise UserError("timeout must be a number of seconds, got None")
    check_range("(0, inf)", timeout=timeout)
    if not isinstance(extra, Mapping | None):
        raise UserError(f"extra must be names and values, such as extra.top_p=0.5, got {extra!r:.60}")
    for name, value in whole.items():
        if value is None and name == "max_tokens":
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise UserError(f"{name} must be a whole number, got {value!r:.60}")


def _url(given: str) -> str:
    url = str(given).strip().rstrip("/")
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and bool(parts.hostname)
        right = right and (parts.port is None or parts.port > 0)
    except ValueError:
        right = False
    if not right:
        shown = without_secrets([url])[0]
        raise UserError(f"base_url must be an address such as http://localhost:8000/v1, got {shown!r:.200}")
    return url


def _key(url: str, given: str | None) -> str:
    key = (os.environ.get("OPENAI_API_KEY", "") if given is None else given).strip()
    if not key and url == _OPENAI:
        raise UserError(
            f"{url} needs a key in $OPENAI_API_KEY; for a server of your own set $OPENAI_BASE_URL or base_url"
        )
    return key


def _cache_path(cache: str | os.PathLike[str] | bool) -> Path:
    return Path(os.environ.get("LMRL_DATA") or "data") / _CACHE if isinstance(cache, bool) else Path(cache)


def _public(url: str) -> str:
    """The URL without user, password and query."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
