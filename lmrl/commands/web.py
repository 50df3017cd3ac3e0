"""``lmrl web``: play, watch and compare in the browser."""

import html
import os
import secrets
import socket
import webbrowser
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lmrl.errors import UserError, terminated_by_exception
from lmrl.evaluation.loading import PolicySpec, task_of
from lmrl.play.game import Game, Offer, Order
from lmrl.utils.configuration import named_values

__all__ = ["web_command"]

try:
    import uvicorn

    from lmrl.play.access import listen
    from lmrl.play.app import make_app
except ImportError as error:
    raise UserError(f"lmrl web needs starlette and uvicorn ({error}): pip install 'lmrl[web]'") from error


_LEADING = '<!doctype html><meta charset="utf-8"><title>lmrl</title><meta http-equiv="refresh" content="0; url={}">\n'
_LOCAL = ("127.0.0.1", "localhost", "::1")


def web_command(
    task: str | None = None,
    *,
    policy: list[str] | None = None,
    seed: int = 0,
    advisor: str | None = None,
    env: list[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    no_browser: bool = False,
    runs: Path = Path("runs"),
    chat: list[str] | None = None,
) -> None:
    """Play in the browser, watch a policy play, or two side by side at the same episode.

    The page also changes the task, the players and the seed. Players are the scripted ones, the runs of a task, and
    those that are named here; a path, a program or a chat model is named here or nowhere. The address holds a secret
    key: anyone who has it can use the page.

    Args:
        task: name of the task, e.g. maze_fo (default: that of the first policy or advisor that is a run).
        policy: one player to watch or two to compare, each as ``lmrl evaluate --policy`` takes them; human is you
            (default: human).
        seed: decides what is random about the episode.
        advisor: a run folder, a checkpoint or another player whose move is shown to you each turn, and V if it has
            values.
        env: arguments of the environment, e.g. opponent=random or partner=lm:PATH.
        host: address to listen at; others than your own machine can reach it only if you change this.
        port: port to listen at; 0 is any free one.
        no_browser: only print the address.
        runs: folder of the runs that the page offers, runs/TASK/NAME.
        chat: settings of the chat models among the players, e.g. budget_tokens=100000; a budget is for all games.
    """
    named = [*(policy or ()), *([advisor] if advisor else [])]
    task = task_of(named, task).name
    first = Order(task, policy or ["human"], seed, advisor or "", env or [])
    settings = _chat_settings(first, chat)
    Game(first, settings).close()  # what cannot be played is said here, not on the page
    with listen(host, port) as listener:
        place = _place(host, listener.getsockname()[1])
        token = secrets.token_urlsafe()
        # Browsers do not send the part behind the #, so the token is in no log.
        address = f"{place}#{token}"
        print(f"{task} at {address}\nCtrl-C ends it.", flush=True)
        if host not in _LOCAL:
            print(
                "note: whoever has this address can load your runs, and ask the chat models that you named", flush=True
            )
        app = make_app(Offer(first, runs, settings), token, (host, socket.gethostname()))
        server = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            log_level="error" if os.environ.get("LMRL_DEBUG") == "1" else "critical",
            access_log=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
        with suppress(KeyboardInterrupt), terminated_by_exception(), TemporaryDirectory(prefix="lmrl-") as private:
            if not (no_browser or webbrowser.open(_leading_to(address, Path(private)))):
                print(_no_browser(address, first), flush=True)
            uvicorn.Server(server).run(sockets=[listener])


def _chat_settings(first: Order, words: list[str] | None) -> dict[str, Any]:
    """Each game has new players, but the budget is one."""
    settings = named_values(words, "chat")
    names = [*first.policies, *([first.advisor] if first.advisor else [])]
    if settings and not any(PolicySpec.parse(name, first.task).kind == "chat" for name in names):
        raise UserError("chat can be set for a chat model only (chat:MODEL or local:PATH): none is among the players")
    budget = {"shared_budget": True} if any(name.startswith("budget_") for name in settings) else {}
    return {**budget, **settings}


def _no_browser(address: str, order: Order) -> str:
    """Return the message for a machine where no browser can be opened, such as one without a screen."""
    watched = next((f" --policy {name}" for name in order.policies if name != "human"), "")
    advisor = f" --advisor {order.advisor}" if order.advisor and not watched else ""
    played = f"lmrl play {order.task}{watched}{advisor}"
    return f"no browser could be opened here: open {address} in one, or play in the terminal: {played}"


def _leading_to(address: str, private: Path) -> str:
    """The address of a page that leads to another one. Command lines can be read by every user, this file by none."""
    page = private / "lmrl.html"
    page.touch(mode=0o600)
    page.write_text(_LEADING.format(html.escape(address)), encoding="utf-8")
    return page.as_uri()


def _place(host: str, port: int) -> str:
    """As a browser takes it: a machine that listens everywhere is called by its name."""
    name = host
    if host in ("0.0.0.0", "::", ""):
        name = socket.gethostname()
    elif ":" in host:  # IPv6
        name = f"[{host}]"
    return f"http://{name}:{port}/"
