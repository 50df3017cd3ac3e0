"""Pace and budget of those who ask an endpoint."""

import time
from threading import Lock

from lmrl.errors import BudgetError, UserError, check_range

__all__ = ["ChatLimits", "shared_limits"]


class ChatLimits:
    """Keeps the pace and the budget of all threads that ask one endpoint.

    Args:
        requests_per_minute: they are spread evenly; None: no limit.
        budget_requests: most requests, repeated ones included. None: no limit.
        budget_tokens: most tokens of prompts and answers; then no request begins. Those that are under way then still
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
        self._budget_requests = budget_requests
        self._budget_tokens = budget_tokens
        self._lock = Lock()
        self._next = 0.0
        self._untold = False

    def turn(self) -> float:
        """Take the next place in the queue; returns the seconds until it is there."""
        with self._lock:
            now = time.monotonic()
            at = max(now, self._next)
            self._next = at + self._gap
            return at - now

    def pause(self, seconds: float) -> None:
        """Let no request begin for this number of seconds, as the endpoint has asked."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)

    def begin(self) -> None:
        """Count a request.

        Raises:
            BudgetError: the budget is used up, or the use of it is unknown.
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
        url: address of the endpoint.
        requests_per_minute: see `ChatLimits`, as all of these; all who share say the same.
        budget_requests: most requests of all clients together.
        budget_tokens: most tokens of all clients together.

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
