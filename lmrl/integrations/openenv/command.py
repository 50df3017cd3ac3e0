"""``lmrl serve``: hand out a task as an OpenEnv environment."""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from lmrl.envs import task as task_of
from lmrl.envs.outside import named_task
from lmrl.errors import UserError
from lmrl.partners import environment
from lmrl.utils.configuration import env_arguments

__all__ = ["make_server", "serve_command", "serving"]

_MOST_CONNECTIONS = 256
"""Connections besides those of sessions, after which requests of HTTP are answered with 503."""

try:
    import uvicorn
    import websockets  # noqa: F401 (what uvicorn speaks)
    from starlette.types import ASGIApp

    from lmrl.integrations.openenv.server import make_app
    from lmrl.integrations.openenv.sessions import Limits
    from lmrl.play.access import listen
except ImportError as error:
    raise UserError(
        f"lmrl serve needs starlette, uvicorn and websockets ({error}): pip install 'lmrl[serve]'"
    ) from error


def serve_command(
    task: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    sessions: int = 64,
    idle: float = 600.0,
    message_bytes: int = 1_048_576,
    env: list[str] | None = None,
) -> None:
    """Hand out a task as an OpenEnv environment: reset with seed and options, step and state over WebSocket or HTTP.

    Every connection has an environment of its own, and the same seed and actions give the transcript that lmrl.make
    gives. Requests choose seeds, starts and actions, and nothing else.

    Args:
        task: name of the task, e.g. maze_fo.
        host: address to listen at; others than your own machine can reach it only if you change this.
        port: port to listen at; 0 is any free one.
        sessions: how many are open at the same time; further ones are refused.
        idle: seconds without a request after which a session is closed.
        message_bytes: bytes of the longest request.
        env: arguments of the environment, e.g. opponent=random.
    """
    name = named_task(task).name
    arguments = env_arguments(env)
    limits = Limits(sessions, idle, message_bytes)
    app = _app(name, limits, arguments)
    with listen(host, port) as listener, suppress(KeyboardInterrupt):
        shown = f"[{host}]" if ":" in host else host
        print(f"{name} at http://{shown}:{listener.getsockname()[1]}\nCtrl-C ends it.", flush=True)
        if host not in ("127.0.0.1", "localhost", "::1"):
            print("note: whoever reaches this address can play here", flush=True)
        make_server(app, limits).run(sockets=[listener])


@contextmanager
def serving(task: str, limits: Limits | None = None, app: ASGIApp | None = None, **env: Any) -> Iterator[str]:
    """Hand out a task from this process as long as the context lasts, on this machine alone.

    Args:
        task: name of the task.
        limits: None: the usual ones.
        app: in place of that of the task, see `make_app`.
        env: arguments of the environment.

    Yields:
        The address, ``http://127.0.0.1:PORT``.

    Raises:
        UserError: for an unknown task or argument.
    """
    limits = limits or Limits()
    server = make_server(app or _app(named_task(task).name, limits, env), limits)
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=partial(server.run, sockets=[listener]), daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def _app(name: str, limits: Limits, arguments: Mapping[str, Any]) -> ASGIApp:
    make_env = environment(name, arguments)
    make_env().close()  # report here what cannot be made, and not to the first client
    return make_app(make_env, name, limits, task_of(name).description, shared="partner" in arguments)


def make_server(app: ASGIApp, limits: Limits, **settings: Any) -> uvicorn.Server:
    """Return a server with limits on the size of requests and the number of connections.

    Args:
        app: see `make_app`.
        limits: the same.
        settings: more of ``uvicorn.Config``.
    """
    config = uvicorn.Config(
        app,
        http="h11",
        limit_concurrency=limits.sessions + _MOST_CONNECTIONS,
        ws="websockets-sansio",
        ws_max_size=limits.message,
        ws_max_queue=4,
        ws_per_message_deflate=False,  # else a short message could become a long one
        lifespan="off",
        log_level="error" if os.environ.get("LMRL_DEBUG") == "1" else "critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=16_384,
        timeout_graceful_shutdown=1,
        **settings,
    )
    return uvicorn.Server(config)
