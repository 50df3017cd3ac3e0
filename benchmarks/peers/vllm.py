"""Dialogues beside vLLM on the CPU: its server samples for our client, with the prefixes of earlier turns cached.

vLLM lives in an environment of its own, and ``LMRL_VLLM`` names its Python; `make bench-peers` sees to it. Server and
client share the core that they are given, and the server has one thread. The model is a Llama of 4 layers of 128 with
random weights, since vLLM's attention on a CPU takes no heads as narrow as those of the GPT-2 of the other comparison.
It hardly ever ends a line, so almost all actions are as long as they may be, on both sides.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import lmrl
from benchmarks.peers.beside import OURS, REPEATS, alternating, beside
from benchmarks.peers.playing import EPISODES, SLOTS, TOKENS, play, window_of
from benchmarks.row import Row
from lmrl.models.tokenizer import load_tokenizer
from lmrl.policies import LMPolicy, load_vllm_policy
from lmrl.rollout import in_order, rollout
from lmrl.types import Policy, Start

__all__ = ["run"]

PACKAGES = ("transformers",)
VLLM = "vLLM"
_PATIENCE = 300.0
_TOKENIZER = load_tokenizer()


def random_llama() -> PreTrainedModel:
    """Heads of 64; so large weights that no two words tie."""
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 2}
    ids = {"bos_token_id": _TOKENIZER.bos_token_id, "eos_token_id": _TOKENIZER.eos_token_id}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(
            LlamaConfig(vocab_size=len(_TOKENIZER), max_position_embeddings=1024, initializer_range=0.1, **sizes, **ids)
        ).eval()


@contextmanager
def serving(folder: Path, log: Path) -> Iterator[str]:
    """A server of the model in the folder, which writes to a log file: ``URL#NAME``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [os.environ["LMRL_VLLM"], "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    words += ["--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    # On a CPU, vLLM 0.32 dies of a request with a seed whose prompt is read in two parts.
    words += ["--max-num-seqs", "64", "--no-enable-chunked-prefill", "--logprobs-mode", "processed_logprobs"]
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    own["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # it stays on the cores that this process may use
    given = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, env={**given, **own}, start_new_session=True)
    try:
        _wait(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}#model"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the engine is a process beside the one that listens
        process.wait()


def _wait(url: str, process: "subprocess.Popen[bytes]", file: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        with suppress(OSError), urlopen(url, timeout=5):
            return
        if process.poll() is not None:
            break
        time.sleep(0.5)
    raise RuntimeError(f"no server: {file.read_text(errors='replace')[-1500:]}")


def greedy(make: Callable[[], Policy], task: str, episodes: int = 8, turns: int = 3) -> list[tuple[str, ...]]:
    starts = [Start(seed) for seed in range(episodes)]
    played = rollout(
        make(), partial(lmrl.make, task), starts, task=task, slots=episodes, stop=lambda its: its.turn >= turns
    )
    return [episode.actions for episode in in_order(played)]


def run(repeats: int = REPEATS, episodes: int = EPISODES) -> Iterator[Row]:
    """Rows for `python -m benchmarks.peers vllm`."""
    model = random_llama()
    with TemporaryDirectory() as place:
        folder = Path(place)
        model.save_pretrained(folder)
        _TOKENIZER.save_pretrained(folder)
        with serving(folder, folder / "server.log") as address:
            for task, tokens in TOKENS.items():
                yield from _compared(model, address, folder, task, tokens, repeats, episodes)


def _compared(
    model: PreTrainedModel, address: str, folder: Path, task: str, tokens: int, repeats: int, episodes: int
) -> Iterator[Row]:
    window = window_of(model, tokens)
    ours = partial(LMPolicy, model, _TOKENIZER, window, max_new_tokens=tokens, slots=SLOTS)
    theirs = partial(load_vllm_policy, address, None, tokens, tokenizer=str(folder))
    said = [greedy(partial(make, temperature=0.0), task) for make in (ours, theirs)]
    same = sum(one == other for one, other in zip(*said, strict=True))
    yield Row(f"{task}, dialogues with the same greedy actions", same, "", "higher", shown=f"{same} of {len(said[0])}")
    ways: dict[str, Callable[[], Policy]] = {OURS: ours, VLLM: theirs}
    speeds = alternating({name: partial(play, make, task, episodes) for name, make in ways.items()}, repeats)
    yield from beside(f"{task}, {SLOTS} slots, Llama", "turns/s", speeds, {VLLM: ">= 1x"})
