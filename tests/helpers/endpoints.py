"""A chat endpoint on this machine that misbehaves as the test demands."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, islice, repeat
from threading import Event, Lock, Thread
from typing import Any


class Unruly(ThreadingHTTPServer):
    """A server that makes a list of faults, one per request, and then answers with the last message reversed."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *faults: Callable[[BaseHTTPRequestHandler], None], seconds: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.faults = list(faults)
        self.seconds = seconds
        self.bodies: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.now = self.most = 0
        self.usage: dict[str, int] | None = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        self.lock = Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def __enter__(self) -> "Unruly":
        Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Unruly
    body: dict[str, Any]

    def do_POST(self) -> None:
        body = self.body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            sent = {"_path": self.path, "_key": self.headers["authorization"]}
            sent["_encoding"] = self.headers["accept-encoding"]
            self.server.bodies.append({**body, **sent})
            self.server.times.append(time.monotonic())
            fault = self.server.faults.pop(0) if self.server.faults else None
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        time.sleep(self.server.seconds)
        with self.server.lock:
            self.server.now -= 1
        fault(self) if fault else completion(body["messages"][-1]["content"][::-1])(self)

    def do_GET(self) -> None:
        with self.server.lock:
            fault = self.server.faults.pop(0) if self.server.faults else reply(404, "")
        fault(self)

    def log_message(self, *arguments: Any) -> None:
        pass


def reply(status: int, body: str, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return a function that sends a fault or an answer: anything that HTTP can say."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        data = body.encode()
        handler.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return send


def completion(content: Any, finish_reason: Any = "stop") -> Callable[[BaseHTTPRequestHandler], None]:
    """Return a function that sends the answer of a well-behaved endpoint."""

    def send(handler: Any) -> None:
        message = {"role": "assistant", "content": content}
        body = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "tiny",
            "choices": [{"index": 0, "finish_reason": finish_reason, "message": message}],
            "usage": handler.server.usage,
        }
        reply(200, json.dumps(body))(handler)

    return send


def hang(seconds: float) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return a function that sends nothing for a while, and then hangs up."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(seconds)
        handler.close_connection = True

    return send


def late(seconds: float, content: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return a function that sends a good answer, but slowly."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(seconds)
        completion(content)(handler)

    return send


def trickle(data: bytes, every: float, stop: Event) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return a function that sends bytes one by one, at short intervals: 500, or until the client hangs up."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        with suppress(OSError):
            for byte in islice(chain(data, repeat(ord(" "))), 500):
                if stop.wait(every):
                    return
                handler.wfile.write(bytes([byte]))

    return send
