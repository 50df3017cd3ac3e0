"""One request to an OpenAI-compatible endpoint, and whether it may be tried again."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from importlib import import_module
from typing import Any

from lmrl.errors import UserError

__all__ = ["Answer", "AskAgain", "Endpoint"]

_SHOWN = 200  # characters of what came that an error shows
_AGAIN = frozenset({408, 409, 429})  # and all from 500
_SPENT = "insufficient_quota"  # a 429 that no patience helps against


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said."""

    text: str
    tokens: int | None
    """Of the prompt and the answer; None if the endpoint did not tell."""


class AskAgain(Exception):
    """No answer this time, but perhaps the next.

    Args:
        what: came instead.
        after: seconds after which the endpoint wants to be asked again; None: it did not say.
    """

    def __init__(self, what: str, after: float | None = None) -> None:
        super().__init__(what)
        self.after = after


class Endpoint:
    """A connection to a server that speaks OpenAI's chat protocol; threads may share it.

    Args:
        url: base URL, ``https://api.openai.com/v1``.
        key: API key; empty where none is needed.
        timeout: seconds without a sign of life after which a request is given up.

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
        self._client = self._package.OpenAI(base_url=url, api_key=key or "none", timeout=timeout, max_retries=0)

    def ask(self, body: Mapping[str, Any]) -> Answer:
        """Send one request.

        Args:
            body: of the request, as the protocol has it.

        Raises:
            AskAgain: no connection, no answer in time, a crowded or broken server, or an answer that is none.
            UserError: the endpoint refuses the request.
        """
        known = {name: body[name] for name in ("model", "messages")}
        rest = {name: value for name, value in body.items() if name not in known}
        try:
            return _read(self._client.chat.completions.create(**known, extra_body=rest))
        except self._package.APITimeoutError as error:
            raise AskAgain(f"no answer within {self._timeout:g} s") from error
        except self._package.APIConnectionError as error:
            raise AskAgain(self._shown(f"no connection: {error.__cause__ or error}")) from error
        except self._package.APIStatusError as error:
            raise self._refusal(error) from error
        except (ValueError, self._package.APIResponseValidationError) as error:
            raise AskAgain(self._shown(f"a malformed answer: {error}")) from error

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
        return " ".join(safe.split())[:_SHOWN]


def _read(came: Any) -> Answer:
    """The answer in a completion. Anything may come from a server, whatever the types say."""
    try:
        text, usage = came.choices[0].message.content, came.usage
    except (AttributeError, IndexError, TypeError) as error:
        raise ValueError(str(came)) from error
    if not isinstance(text, str | None):
        raise ValueError(f"content {text!r}")
    tokens = getattr(usage, "total_tokens", None)
    # Half a character cannot be stored. No content is an answer too: the model chose to be silent.
    whole = (text or "").encode("utf-8", "replace").decode("utf-8")
    return Answer(whole, tokens if isinstance(tokens, int) else None)


def _seconds(header: str | None) -> float | None:
    """What ``Retry-After`` says: a number of seconds or a date."""
    if header is None:
        return None
    try:
        return max(float(header), 0.0)
    except ValueError:
        date = parsedate_tz(header)
        return None if date is None else max(mktime_tz(date) - time.time(), 0.0)
