"""Hostile replies of chat, vLLM and OpenEnv servers on this machine, a new one for each seed.

Each evaluation plays two episodes with a server that behaves, and a third one with replies that are damaged, absurd,
endless or missing. It must end in time, in one line and with little memory, show no key, and keep what was played.
"""

import asyncio
import copy
import gzip
import io
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from lmrl.cli import main
from lmrl.data.storage import read_episodes
from lmrl.errors import UserError
from lmrl.models.tokenizer import load_tokenizer
from lmrl.policies.chat import endpoint
from lmrl.policies.chat.reloading import WeightReloader
from lmrl.tokens.encoding import Encoder
from tests.helpers.endpoints import Unruly

pytest.importorskip("openai", reason="needs openai: pip install 'lmrl[chat]'")
pytest.importorskip("websockets", reason="needs websockets: pip install 'lmrl[serve]'")
from tests.envs.test_outside import answering

AT_EACH_SIZE = pytest.mark.parametrize(
    "evaluations",
    [
        pytest.param(10, marks=pytest.mark.slow),
        pytest.param(100, marks=[pytest.mark.nightly, pytest.mark.timeout(1_200)]),
    ],
)
KEY = "sk-hostile-0123456789"
TIMEOUT = 0.5
"""Seconds that a server has for an answer."""
DEADLINE = 10.0
"""Seconds for an evaluation, in which two or three answers can each be waited for twice."""
MEMORY = 1 << 30
"""Bytes by which the process may grow."""

Send = Callable[[Any], None]
"""A reply: a function that a server calls with the handler of a request."""

# JSON texts that may stand in place of a value. Python could not write all of them.
NUMBERS = (
    *("true", "-1", "0", "3", "1.5", "-0.0", "1e300", "-1e300", "1e999", "-1e999", "NaN", "Infinity"),
    *("9" * 400, "-" + "9" * 400, "9" * 5_000, '"1"'),
)
ODD = (
    *NUMBERS,
    *("null", "false", '""', '"x"', '"stop"', '"length"', '"5"', '"\\u0000"', '"\\ud83d"'),
    *('"\\u001b]0;pwn\\u0007\\u202e"', '"\\ude00\\ud83d \\n\\r\\u2028"', f'"{KEY}"', f'{{"{KEY}": ["{KEY}"]}}'),
    *("[]", "{}", "[[]]", '[{"a": null}]', '{"a": {"a": []}}', '{"\\ud83d": 1, "a": 1, "a": 2}', '["x", "y"]'),
    *("[" * 90 + "]" * 90, "[" * 900 + "]" * 900, "[" * 50_000 + "]" * 50_000, '{"a":' * 900 + "1" + "}" * 900),
    *("[" + ",".join(["0"] * 50_000) + "]", '"' + "x" * (5 << 20) + '"', '"' + "<think>{" * 10_000 + '"'),
)
WISHES = (
    *("0", "0.1", "-5", "nan", "inf", "1e400", "3600", "9" * 400, "soon", "", "\xff", "1, 2", KEY),
    *("Wed, 21 Oct 99999999999 07:28:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "Wed, 0 0 0 0:0:0 +99999999999"),
)


def changed(whole: Any, rng: Random) -> str:
    """Return the JSON of a value in which one or two entries are odd or missing."""
    value = copy.deepcopy(whole)
    odd = []
    for _ in range(rng.choice((1, 1, 2))):
        numeric = rng.random() < 0.3
        places = [(inside, keys) for inside in _containers(value) if (keys := _keys(inside, numeric))]
        if not places:
            continue
        inside, keys = rng.choice(places)
        at = rng.choice(keys)
        if rng.random() < 0.1:
            del inside[at]
        else:
            inside[at] = f"@{len(odd)}@"
            odd.append(rng.choice(NUMBERS if numeric else ODD))
    text = json.dumps(value)
    for number, instead in enumerate(odd):
        text = text.replace(f'"@{number}@"', instead)
    return text


def _containers(value: Any) -> Iterator[Any]:
    """Yield all objects and lists of a value, itself included, so that long ones are changed as often as short ones."""
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _containers(inner)


def _keys(inside: Any, numeric: bool) -> list[Any]:
    """Return the keys or indices of an object or a list; if `numeric`, those of numbers alone."""
    keys = [*inside] if isinstance(inside, dict) else [*range(len(inside))]
    return [key for key in keys if not numeric or isinstance(inside[key], int | float)]


def hostile_bytes(whole: Any, rng: Random) -> bytes:
    """Return the bytes that a hostile server sends in place of the JSON of a value."""
    text = changed(whole, rng) if rng.random() < 0.9 else rng.choice(ODD)
    way = rng.randrange(12)
    if way == 0:
        return text.encode()[: rng.randrange(200)]
    if way == 1:
        return rng.randbytes(rng.randrange(300))
    if way == 2:
        return text.encode(rng.choice(("utf-16", "utf-8-sig", "utf-32-le")))
    if way == 3:
        data = bytearray(text.encode())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data)
    return text.encode()


def hostile_reply(whole: Any, rng: Random) -> Send:
    """Return the hostile reply of a server that should send the JSON of a value."""
    way = rng.randrange(20)
    if way < 11:
        kind = rng.choice(("application/json", "application/json", "text/html", "text/event-stream", "\xff"))
        return sending(200, hostile_bytes(whole, rng), {"content-type": kind})
    if way < 15:
        status = rng.choice((100, 201, 204, 302, 304, 307, 400, 401, 404, 408, 429, 429, 500, 503, 599, 999))
        body = rng.choice(
            (b"", KEY.encode(), rng.randbytes(50), changed({"error": {"code": 1, "message": KEY}}, rng).encode())
        )
        headers = {"retry-after": rng.choice(WISHES), "location": f"http://127.0.0.1:9/{KEY}"}
        return sending(status, body, headers)
    return rng.choice((hang, hang_up, trickle, endless, bomb, half, headers_without_end, no_http, broken_chunks))


# A server that closes a connection says so. Otherwise the next request may be sent on it while it closes.
WELL_BEHAVED = {"content-type": "application/json", "connection": "close"}


def sending(status: int, body: bytes, headers: dict[str, str]) -> Send:
    def send(handler: Any) -> None:
        handler.close_connection = True
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return send


def raw(*parts: bytes, pause: float = 0.0) -> Send:
    """Return a reply of bytes as they are, one part after the other, until the client hangs up."""

    def send(handler: Any) -> None:
        handler.close_connection = True
        for part in parts:
            handler.wfile.write(part)
            time.sleep(pause)

    return send


OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
hang_up = raw()
hang = raw(b"", b"", b"", pause=TIMEOUT)
trickle = raw(OK + b"\r\n{", *[b" "] * 60, pause=TIMEOUT / 20)
headers_without_end = raw(OK, *[b"x: " + b"y" * 60_000 + b"\r\n"] * 200)
half = raw(OK + b"content-length: 1000\r\n\r\n{")
no_http = raw(b"\x00\xff" * 50_000)
broken_chunks = raw(OK + b"transfer-encoding: chunked\r\n\r\nffffffffff\r\n{}\r\n-5\r\n")
endless = raw(OK + b"\r\n", *[b" " * (1 << 20)] * 64)


def bomb(handler: Any) -> None:
    """Send 64 MiB of spaces, compressed to about 300 kB."""
    data = gzip.compress(b" " * (64 << 20), 1)
    sending(200, data, {"content-type": "application/json", "content-encoding": "gzip"})(handler)


class Unheard(Unruly):
    """A server that prints nothing when clients hang up."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class Found(NamedTuple):
    """The outcome of one evaluation."""

    code: int
    printed: str
    error: str
    seconds: float
    kept: int
    """Episodes that are on disk."""


def evaluated(words: list[str], out: Path, capsys: pytest.CaptureFixture[str]) -> Found:
    capsys.readouterr()
    began = time.monotonic()
    try:
        code = main(["evaluate", *words, "--episodes", "3", "--slots", "1", "--out", str(out)])
    except Exception as error:  # the command would print a traceback
        return Found(-1, "", f"{type(error).__name__}: {error}", 0.0, 0)
    seconds = time.monotonic() - began
    said = capsys.readouterr()
    file = out / ("episodes.partial.parquet" if code else "episodes.parquet")
    episodes = [*read_episodes(file)] if file.is_file() else []
    written = "".join(path.read_text() for path in out.glob("*.*") if path.suffix != ".parquet")
    return Found(code, said.out + repr(episodes) + written, said.err, seconds, len(episodes))


def faults(found: Found, least: int) -> list[str]:
    """Return what is wrong with the outcome of an evaluation.

    Args:
        found: the outcome.
        least: the number of episodes that were finished before the server was hostile.
    """
    errors = [line for line in found.error.splitlines() if line.strip()]
    wrong = []
    if found.code not in (0, 2) or "Traceback" in found.error:
        wrong.append("a traceback")
    elif found.code == 2 and not (len(errors) == 1 and errors[0].startswith("error: ")):
        wrong.append("not one line")
    if found.kept < least or (found.code == 0 and found.kept != 3):
        wrong.append(f"{found.kept} episodes kept")
    if KEY in found.printed + found.error:
        wrong.append("the key is told")
    if re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\ud800-\udfff]", found.printed + found.error):
        wrong.append("control characters")
    if found.seconds > DEADLINE:
        wrong.append(f"{found.seconds:.0f} s")
    return [f"{what}: {found.error[-300:]}" for what in wrong]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Set the key and an empty folder, and check that the process stays within its memory."""
    for name in ("OPENAI_API_KEY", "VLLM_API_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(endpoint, "_FIRST_WAIT", 0.05)
    before = _peak(reset=True)
    yield
    assert _peak() - before < MEMORY


def _peak(reset: bool = False) -> int:
    """Return the peak memory of this process in bytes since the last reset."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs the figures of Linux on memory")
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) << 10


COMPLETION = {
    "id": "1",
    "object": "chat.completion",
    "model": "tiny",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": '{"action": "move up"}'}}
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
}
MAZE = ["maze_fo", "--env", "max_steps=1"]
REQUESTS = 4
"""The requests of two episodes of the maze."""


@AT_EACH_SIZE
def test_chat(tmp_path: Path, capsys: pytest.CaptureFixture[str], evaluations: int) -> None:
    well = sending(200, json.dumps(COMPLETION).encode(), WELL_BEHAVED)
    wrong = []
    with Unheard() as server:
        words = [*MAZE, "--policy", "chat:tiny", "--chat", f"base_url={server.url}", "cache=false", "retries=1"]
        for number in range(evaluations):
            rng = Random(f"chat {number}")
            bad = [hostile_reply(COMPLETION, rng) for _ in range(2)]
            server.faults = [well] * REQUESTS + bad * 10
            found = evaluated([*words, f"timeout={TIMEOUT}"], tmp_path / str(number), capsys)
            wrong += [f"chat {number}: {fault}" for fault in faults(found, 2)]
    assert not wrong


ENCODER = Encoder(load_tokenizer("lmrl"))
MODELS = {"object": "list", "data": [{"id": "tiny", "max_model_len": 512}]}
UP = [*ENCODER.encode("move up\n")]


def tokens(body: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a vLLM server to a request for ids."""
    ids = [*body["allowed_token_ids"]] if "allowed_token_ids" in body else UP
    choice = {
        "index": 0,
        "text": "",
        "token_ids": ids,
        "prompt_token_ids": body["prompt"],
        "logprobs": {"token_logprobs": [0.0] * len(ids), "tokens": ["?"] * len(ids)},
        "finish_reason": "stop",
    }
    return {"id": "1", "object": "text_completion", "choices": [choice], "usage": {"total_tokens": 9}}


def asked(handler: Any) -> dict[str, Any]:
    """Return the answer of a vLLM server that behaves."""
    if handler.path.endswith("/models"):
        return MODELS
    return {"results": [None], "success": True} if "prompt" not in handler.body else tokens(handler.body)


def well_behaved(handler: Any) -> None:
    sending(200, json.dumps(asked(handler)).encode(), WELL_BEHAVED)(handler)


def hostile_tokens(seed: str) -> Send:
    """Return a hostile reply to any request."""
    return lambda handler: hostile_reply(asked(handler), Random(seed))(handler)


@AT_EACH_SIZE
def test_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str], evaluations: int) -> None:
    """One of five servers is hostile from its first or second request on, another to a request to read new weights."""
    wrong = []
    with Unheard() as server:
        policy = f"vllm:{server.url}#tiny"
        words = [*MAZE, "--policy", policy, "--vllm", "tokenizer=lmrl", "retries=1", f"timeout={TIMEOUT}"]
        for number in range(evaluations):
            bad = [hostile_tokens(f"vllm {number} {part}") for part in range(2)] * 20
            if number % 5 == 0:
                server.faults = bad
                wrong += [f"vllm {number}: {fault}" for fault in reloaded(server.url)]
                continue
            before = Random(f"vllm {number}").choice((0, 1)) if number % 5 == 1 else 2 + REQUESTS
            server.faults = [well_behaved] * before + bad
            found = evaluated(words, tmp_path / str(number), capsys)
            wrong += [f"vllm {number}: {fault}" for fault in faults(found, 2 if before > 1 else 0)]
    assert not wrong


def reloaded(url: str) -> list[str]:
    """Return what is wrong with the outcome of new weights at a hostile server."""
    began = time.monotonic()
    reloader = WeightReloader(url, TIMEOUT)
    try:
        reloader.answers()
        reloader.reload("folder")
        error = ""
    except UserError as refused:
        error = f"error: {refused}"
    except Exception as failed:
        return [f"{type(failed).__name__}: {failed}"]
    return faults(Found(2 if error else 0, "", error, time.monotonic() - began, 3), 0)


def seen(text: str, done: bool) -> dict[str, Any]:
    info = {"success": False, "illegal": False, "task_id": "x", "start": {"a": 1}, "replies": ["yes\n"]}
    observation = {"text": text, "terminated": done, "truncated": False, "info": info, "final_observation": "x\n"}
    return {"type": "observation", "data": {"observation": observation, "reward": 1.0, "done": done}}


class Session:
    """A game of two turns, whose third episode is hostile."""

    def __init__(self, number: int) -> None:
        self.rng = Random(f"openenv {number}")
        self.resets = self.steps = 0
        self.hostile_reset = self.rng.random() < 0.3

    def __call__(self, message: dict[str, Any]) -> Any:
        begins = message["type"] == "reset"
        self.resets += begins
        self.steps = 0 if begins else self.steps + 1
        well = seen("say x\n", self.steps == 2)
        if self.resets < 3 or (begins and not self.hostile_reset):
            return well
        way = self.rng.randrange(12)
        if way == 0:
            return lambda connection: asyncio.sleep(0)  # no answer
        if way < 4:
            return self.rng.choice((cut, garbage, farewell, unwanted, inflated, fragments))
        if way == 4:
            well = {"type": "error", "data": {"message": "no \n\x1b[2J", "code": "x"}}
        said = hostile_bytes(well, self.rng).replace(KEY.encode(), b"the key, which it does not know")
        return said if self.rng.random() < 0.2 else said.decode("utf-8", "replace")


async def cut(connection: Any) -> None:
    connection.transport.abort()


async def garbage(connection: Any) -> None:
    connection.transport.write(b"\xf3\xff\x00\x81\x05\xff\xfe\xfd" * 100)


async def farewell(connection: Any) -> None:
    await connection.close(4000, "\x1b[2J half \u202e")


async def unwanted(connection: Any) -> None:
    """Send more messages than were asked for."""
    with suppress(Exception):
        for _ in range(50):
            await connection.send("[]")


async def inflated(connection: Any) -> None:
    """Send a long message in a short frame."""
    with suppress(Exception):
        await connection.send(" " * (16 << 20))


async def fragments(connection: Any) -> None:
    """Send parts of a message that has no end."""

    async def parts() -> Any:
        while True:
            yield " "
            await asyncio.sleep(TIMEOUT / 20)

    with suppress(Exception):
        await asyncio.wait_for(connection.send(parts()), 3 * TIMEOUT)


@AT_EACH_SIZE
def test_openenv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, evaluations: int
) -> None:
    """One of five servers is hostile before it speaks WebSocket."""
    sessions: list[Session] = []
    wrong = []
    with answering(lambda message: sessions[-1](message)) as url, Unheard() as other:
        for number in range(evaluations):
            sessions.append(Session(number))
            other.faults = [hostile_reply({"a": 1}, Random(f"openenv {number}"))] * 20
            address = other.url if number % 5 == 0 else url
            monkeypatch.setattr("sys.stdin", io.StringIO("x\n" * 12))
            words = [f"openenv:{address}", "--policy", "human", "--env", f"timeout={TIMEOUT}"]
            found = evaluated(words, tmp_path / str(number), capsys)
            wrong += [f"openenv {number}: {fault}" for fault in faults(found, 2 if number % 5 else 0)]
    assert not wrong
