"""How fast a chat endpoint may be asked, and how often at all."""

import time
from threading import Lock

from lmrl.errors import UserError

__all__ = ["ChatLimits"]


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
        for name, value in given.items():
            if value is not None and not value > 0:
                raise UserError(f"{name} must be more than 0, or None for no limit, got {value}")
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
            UserError: the budget is used up, or nobody can tell how much of it.
        """
        with self._lock:
            if self._budget_tokens is not None and self._untold:
                raise UserError("budget_tokens needs an endpoint that tells how many tokens it used; this one does not")
            if self._budget_requests is not None and self.requests >= self._budget_requests:
                raise UserError(f"the budget of {self._budget_requests} requests (budget_requests) is used up")
            if self._budget_tokens is not None and self.tokens >= self._budget_tokens:
                raise UserError(
                    f"the budget of {self._budget_tokens} tokens (budget_tokens) is used up: {self.tokens} were used"
                )
            self.requests += 1

    def spend(self, tokens: int | None) -> None:
        """Count the tokens of a request and its answer; None: the endpoint did not tell."""
        with self._lock:
            self._untold |= tokens is None
            self.tokens += tokens or 0
