"""A server on this machine that speaks vLLM's protocol of token ids, makes faults on demand, and can be killed.

It also has the development endpoints by which a server reads new weights.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

Said = tuple[list[int], list[float]]
Say = Callable[[dict[str, Any]], Said]
"""A function from a request to ids and log-probabilities."""


class TokenServer:
    """Serves one model, ``tiny``.

    Args:
        say: gives the answers.
        faults: one per request from the first on: the changes to the answer; None: the server hangs up.
        seconds: the time that each answer takes.
        positions: ``max_model_len``.
        admin: by path, one after the other: the status and answer of a development endpoint in place of its own.
    """

    def __init__(
        self,
        say: Say,
        *faults: dict[str, Any] | None,
        seconds: float = 0.0,
        positions: Any = 512,
        admin: dict[str, list[tuple[int, Any]]] | None = None,
    ) -> None:
        self.admin = admin or {}
        self.asked: list[str] = []
        self.adapters: dict[str, Say] = {}
        self.say, self.faults, self.seconds, self.positions = say, list(faults), seconds, positions
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.keys_of_paths: dict[str, str | None] = {}
        self.now = self.most = 0
        self.lock = Lock()
        self._server: _Server | None = None
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def played(self) -> list[dict[str, Any]]:
        """The requests without the probes."""
        return [body for body in self.bodies if "allowed_token_ids" not in body]

    def administer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Do what a development endpoint does, and return its status and answer."""
        self.asked.append(path)
        if self.admin.get(path):
            return self.admin[path].pop(0)
        if path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            model = AutoModelForCausalLM.from_pretrained(body["kwargs"]["weights_path"]).eval()
            self.say = sampling(model)
            return 200, {"results": [None]}
        if path == "/v1/load_lora_adapter":
            assert body["lora_name"] not in self.adapters
            # A folder of adapters names its base model.
            self.adapters[body["lora_name"]] = sampling(AutoModelForCausalLM.from_pretrained(body["lora_path"]).eval())
        if path == "/v1/unload_lora_adapter":
            del self.adapters[body["lora_name"]]
        return 200, {"success": True}

    def start(self) -> None:
        server = _Server(("127.0.0.1", self._port), _Handler)
        server.owner = self
        self._port = server.server_address[1]
        self._server = server
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def kill(self) -> None:
        """Stop the server; requests that are waiting get no answer either."""
        server = self._server
        self._server = None
        if server is not None:
            server.dead = True
            server.shutdown()
            server.server_close()

    def __enter__(self) -> "TokenServer":
        return self

    def __exit__(self, *error: Any) -> None:
        self.kill()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    owner: TokenServer
    dead = False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        owner = self.server.owner
        owner.keys_of_paths[self.path] = self.headers["authorization"]
        if self.path == "/health":
            self._send(200, {})
            return
        served: list[dict[str, Any]] = [{"id": "tiny", "max_model_len": owner.positions}]
        served += [{"id": name, "max_model_len": None} for name in owner.adapters]
        self._send(200, {"object": "list", "data": served})

    def do_POST(self) -> None:
        owner = self.server.owner
        owner.keys_of_paths[self.path] = self.headers["authorization"]
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/v1/completions":
            self._send(*owner.administer(self.path, body))
            return
        if body["model"] not in ("tiny", *owner.adapters):
            self._send(404, {"error": {"message": "no such model"}})
            return
        with owner.lock:
            owner.bodies.append(body)
            owner.keys.append(self.headers["authorization"])
            fault = owner.faults.pop(0) if owner.faults and "allowed_token_ids" not in body else {}
            owner.now += 1
            owner.most = max(owner.most, owner.now)
        time.sleep(owner.seconds)
        say = owner.adapters.get(body["model"], owner.say)
        ids, logprobs = say(body)
        with owner.lock:
            owner.now -= 1
        if fault is None or self.server.dead:
            self.close_connection = True
            return
        self._send(fault.pop("status", 200), _answer(body, ids, logprobs) if "error" not in fault else fault, fault)

    def _send(self, status: int, answer: Any, fault: dict[str, Any] | None = None) -> None:
        for name, value in (fault or {}).items():
            if name != "error":
                answer["choices"][0][name] = value
        data = json.dumps(answer).encode()
        with suppress(OSError):
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        pass


def _answer(body: dict[str, Any], ids: list[int], logprobs: list[float]) -> dict[str, Any]:
    choice = {
        "index": 0,
        "text": "a text that nobody may read",
        "token_ids": ids,
        "prompt_token_ids": body["prompt"],
        "logprobs": {"token_logprobs": logprobs, "tokens": ["?"] * len(ids), "top_logprobs": None, "text_offset": []},
        "finish_reason": "stop" if ids[-1] in body["stop_token_ids"] else "length",
    }
    usage = {"total_tokens": len(body["prompt"]) + len(ids)}
    return {"id": "1", "object": "text_completion", "model": body["model"], "choices": [choice], "usage": usage}


def saying(*actions: Sequence[int]) -> Say:
    """Return a function that answers with one of the actions, which the seed of a request chooses."""

    def say(body: dict[str, Any]) -> Said:
        if "allowed_token_ids" in body:
            return [*body["allowed_token_ids"]], [0.0]
        ids = list(actions[body["seed"] % len(actions)])
        return ids, [-0.5] * len(ids)

    return say


def sampling(model: PreTrainedModel) -> Say:
    """Return a function that samples from a model without a cache; the distribution is made here by hand."""

    def say(body: dict[str, Any]) -> Said:
        generator = torch.Generator().manual_seed(body["seed"])
        ids = [*body["prompt"]]
        logprobs = []
        while len(logprobs) < body["max_tokens"]:
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
            token, logprob = _sampled(logits.float().clone(), body, generator)
            ids.append(token)
            logprobs.append(logprob)
            if token in body["stop_token_ids"]:
                break
        return ids[len(body["prompt"]) :], logprobs

    return say


def _sampled(logits: torch.Tensor, body: dict[str, Any], generator: torch.Generator) -> tuple[int, float]:
    for token, bias in (body["logit_bias"] or {}).items():
        logits[int(token)] += bias
    if allowed := body.get("allowed_token_ids"):
        kept = logits[allowed].clone()
        logits[:] = -torch.inf
        logits[allowed] = kept
    if body["temperature"] == 0:
        return int(logits.argmax()), float(logits.log_softmax(-1).max())
    logits = logits / body["temperature"]
    order = logits.argsort(descending=True)
    mass = 0.0
    if body["top_k"]:
        logits[order[body["top_k"] :]] = -torch.inf
    probabilities = logits.softmax(-1)
    for token in order.tolist():
        if mass >= body["top_p"]:
            logits[token] = -torch.inf
        mass += float(probabilities[token])
    token = int(torch.multinomial(logits.softmax(-1), 1, generator=generator))
    return token, float(logits.log_softmax(-1)[token])
