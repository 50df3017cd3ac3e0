"""Asking a chat endpoint until it answers, and giving up at the right time."""

import random
from collections.abc import Mapping
from threading import Event
from typing import Any

from lmrl.errors import UserError
from lmrl.models.chat_endpoint import Answer, AskAgain, Endpoint
from lmrl.models.chat_limits import ChatLimits

__all__ = ["ChatRetries", "Stopped"]

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
