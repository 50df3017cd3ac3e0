"""A real vLLM server on this machine's CPU, in an environment of its own."""

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

_PATIENCE = 300.0  # seconds in which a server has to come up


def python() -> str:
    """Return the interpreter that has vLLM; skip the test if none is named, or the CPU cannot run it."""
    found = os.environ.get("LMRL_VLLM", "")
    if not found:
        pytest.skip("vLLM has an environment of its own: `make vllm` makes it and runs this test")
    flags = Path("/proc/cpuinfo")
    if not flags.is_file() or "avx2" not in flags.read_text():
        pytest.skip("vLLM on a CPU needs Linux and AVX2")
    return found


class VLLMServer:
    """A server of a folder as ``tiny``, which can start again on the same port after a `kill`."""

    def __init__(self, folder: Path, log: Path, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._log = log
        module = [python(), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
        where = ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(self._port)]
        # On a CPU, vLLM 0.32 crashes on a request with a seed whose prompt is read in two parts.
        how = ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", "64", "--no-enable-chunked-prefill"]
        self._command = [*module, *where, *how, "--logprobs-mode", "processed_logprobs", *options]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
        own["VLLM_SERVER_DEV_MODE"] = "1"  # new weights while it runs
        own["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"  # and new adapters
        given = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        with self._log.open("ab") as log:
            # The server has a process group of its own, since its engine is another process than the one that listens.
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env={**given, **own}, start_new_session=True
            )

    def wait(self) -> "VLLMServer":
        """Wait until the server answers."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            with suppress(OSError), urlopen(f"{self.url}/health", timeout=5):
                return self
            assert self._process is not None
            assert self._process.poll() is None, self._log.read_text()[-3000:]
            time.sleep(0.5)
        raise AssertionError(f"no server within {_PATIENCE:g} s: {self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        """Kill the server and its engine, as the kernel would."""
        process = self._process
        self._process = None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def metric(self, name: str) -> float:
        """Return the sum of a counter."""
        with urlopen(f"{self.url}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def __enter__(self) -> "VLLMServer":
        return self

    def __exit__(self, *error: Any) -> None:
        self.kill()
