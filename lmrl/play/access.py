"""Access control of the web page: which requests are answered, and the socket that the server listens at.

Two things protect the page. A secret token in the printed address keeps out other users of the machine. The check of
the headers ``Host`` and ``Origin`` keeps out other pages that are open in the user's browser.
"""

import ipaddress
import secrets
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from lmrl.errors import UserError

__all__ = ["OwnRequests", "is_token", "listen"]


def is_token(given: str, token: str) -> bool:
    """Compare two tokens in a time that does not depend on how many characters are right."""
    return secrets.compare_digest(given.encode("utf-8", "replace"), token.encode())


class OwnRequests:
    """Middleware that refuses requests that do not come from the page itself.

    Args:
        app: the application behind it.
        names: names of this machine besides ``localhost``.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = {"localhost", *map(str.lower, names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host = headers.get("host", "")
            # Browsers name the page that sends a POST request. Another port of this machine is another origin.
            origin = headers.get("origin")
            if not self._is_own(host):
                app = PlainTextResponse("This is not a name of this machine. Open the address that was printed.\n", 403)
            elif origin is not None and origin.partition("://")[2].lower() != host.lower():
                app = PlainTextResponse("Only the page itself may send requests.\n", 403)
        await app(scope, receive, send)

    def _is_own(self, host: str) -> bool:
        # DNS rebinding: an attacker lets a name of their own lead to this machine, so that the browser takes their page
        # for ours. It still sends that name as the host. Nobody can register a numerical address.
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name in self._names:
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a port, 0 for any free one.

    Raises:
        UserError: the port is taken, or the host is no name or address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"cannot listen at host {host!r}, port {port} ({error}); --port 0 takes any free one"
        ) from error
