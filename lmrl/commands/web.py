"""``lmrl web``: play, watch and compare in the browser."""

import secrets
import socket
import webbrowser
from contextlib import suppress

from lmrl.errors import UserError

try:
    import uvicorn

    from lmrl.commands.web_app import make_app
except ImportError as error:
    raise UserError(f"lmrl web needs starlette and uvicorn ({error}): pip install 'lmrl[web]'") from error

from lmrl.commands.web_game import Game, Order

__all__ = ["web_command"]

_LOCAL = ("127.0.0.1", "localhost", "::1")


def web_command(
    task: str,
    *,
    policy: list[str] | None = None,
    seed: int = 0,
    advisor: str | None = None,
    env: list[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    no_browser: bool = False,
) -> None:
    """Play in the browser, watch a policy play, or two side by side at the same episode.

    The page also changes the task, the players and the seed. Its address holds a key without which nobody is answered.

    Args:
        task: name of the task, e.g. wordle.
        policy: one player to watch or two to compare, each as ``lmrl evaluate --policy`` takes them; human is you
            (default: human).
        seed: decides what is random about the episode.
        advisor: a run folder, a checkpoint or another player whose move is shown to you each turn, and V if it has
            values.
        env: arguments of the environment, e.g. opponent=random or partner=lm:PATH.
        host: address to listen at; others than your own machine can reach it only if you change this.
        port: to listen at; 0 is any free one.
        no_browser: only print the address.
    """
    first = Order(task, policy or ["human"], seed, advisor or "", env or [])
    Game(first).close()  # what cannot be played is said here, not on the page
    key = secrets.token_urlsafe(16)
    with _listening(host, port) as listener:
        address = _address(host, listener.getsockname()[1], key)
        print(f"{task} at {address}\nCtrl-C ends it.", flush=True)
        if host not in _LOCAL:
            print("note: whoever has this address can load models on this machine, and ask chat models", flush=True)
        if not no_browser:
            webbrowser.open(address)
        settings = uvicorn.Config(
            make_app(first, key), lifespan="off", log_level="warning", access_log=False, timeout_graceful_shutdown=1
        )
        with suppress(KeyboardInterrupt):
            uvicorn.Server(settings).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"cannot listen at host {host!r}, port {port} ({error}); --port 0 takes any free one"
        ) from error


def _address(host: str, port: int, key: str) -> str:
    """As a browser takes it: a machine that listens everywhere is called by its name."""
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/?key={key}"
