"""`transformers serve` on this machine with a tiny model that knows nothing: a real chat endpoint."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch

from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer

NEEDED = ("openai", "fastapi", "uvicorn", "accelerate")
MISSING = [name for name in NEEDED if find_spec(name) is None]
"""Packages without which `transformers serve` does not start."""

_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
_LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,
}


@contextmanager
def transformers_serve(folder: Path) -> Iterator[tuple[str, str]]:
    """Run `transformers serve` with a tiny model without knowledge; gives the base URL and the model's name."""
    _save_tiny(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = (
        *(str(Path(sys.executable).parent / "transformers"), "serve", str(folder)),
        *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu"),
    )
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, env=settings, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", server, folder / "log")
        yield f"http://127.0.0.1:{port}/v1", str(folder)
    finally:
        server.kill()
        server.wait()


def _save_tiny(folder: Path) -> None:
    tokenizer = load_tokenizer()
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_lm(None, _LLAMA, len(tokenizer))
    assert model.generation_config is not None
    model.generation_config.do_sample = True  # or the server leaves the temperature out
    model.save_pretrained(folder)


def _wait_for(url: str, server: "subprocess.Popen[bytes]", log: Path, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"transformers serve did not start: {log.read_text(errors='replace')[-2000:]}")
