"""Connections that must not stay: those that never send a whole request, or never take their answer."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["BoundedConnection"]


class BoundedConnection(H11Protocol):
    """HTTP as uvicorn has it, with limits of time and number.

    A connection that has not sent a whole request after so many seconds is cut, however little came of it and however
    steadily, and so is one that has not taken its answer and asked again. A new one beyond the number takes the place
    of the one that has waited longest. How long a player thinks about a whole request is not limited.
    """

    seconds = 10.0
    """For taking an answer and sending the next whole request."""
    most = 64
    """Connections at the same time."""

    waiting_since: float
    """Since when a request is awaited; on the clock of the loop."""
    _timer: asyncio.TimerHandle

    def connection_made(self, transport: Any) -> None:
        """Begin to wait, and make room."""
        super().connection_made(transport)
        self.waiting_since = self.loop.time()
        self._timer = self.loop.call_later(self.seconds, self._look)
        # What was cut is still among them until the loop comes to it.
        living = [
            one for one in self.connections if isinstance(one, BoundedConnection) and not one.transport.is_closing()
        ]
        if len(living) > self.most:
            idle = [one for one in living if one is not self and not one.answering]
            min(idle, key=lambda one: one.waiting_since, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.waiting_since = self.loop.time()
        super().on_response_complete()

    @property
    def answering(self) -> bool:
        """Whether a whole request came whose answer is not complete."""
        whole = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        return whole and self.cycle is not None and not self.cycle.response_complete

    def _look(self) -> None:
        """Cut the connection if its time is over, else look again."""
        left = self.waiting_since + self.seconds - self.loop.time()
        if left <= 0 and not self.answering:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(left if left > 0 else self.seconds, self._look)
