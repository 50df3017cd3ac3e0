"""A person at a terminal as a policy."""

from collections.abc import Callable, Sequence

from lmrl.errors import UserError, printable
from lmrl.policies.chat.endpoint import mended
from lmrl.types import Reply, Request

__all__ = ["HumanPolicy"]


def _print_newest(request: Request) -> None:
    print(printable(request.observations[-1].rstrip("\n")))


class HumanPolicy:
    """Shows where each episode stands and asks for the next action; the newline that ends an action is added here.

    Args:
        ask: puts a question and returns the line that is typed.
        show: tells of a request; without one the newest text is printed.
    """

    def __init__(self, ask: Callable[[str], str] = input, show: Callable[[Request], object] = _print_newest) -> None:
        self._ask = ask
        self._show = show

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """Ask once per request, in order.

        Raises:
            UserError: the input ended before the episode did.
        """
        return [self._reply(request) for request in requests]

    def _reply(self, request: Request) -> Reply:
        self._show(request)
        try:
            # Bytes of a terminal that are no UTF-8 come as lone surrogates, which no file of episodes can hold.
            return Reply(f"{mended(self._ask('> '))}\n")
        except EOFError as error:
            raise UserError(f"the input ended on turn {request.turn}, before the episode did") from error
