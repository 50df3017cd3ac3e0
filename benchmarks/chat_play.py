"""A real chat model, SmolLM2-135M (``make smollm2``), that plays Twenty Questions: seconds of a turn.

Dialogues side by side, greedy, in float32 on one core, in the model's chat template with the rules as its system
message: by the slot engine, by ``generate`` on whole histories, and by a vLLM server on the same core with its prefix
cache, where ``LMRL_VLLM`` names a Python that has vLLM (`make vllm`). Each side is a process of its own.
"""

import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForCausalLM

import lmrl
from benchmarks.chat_model import FOLDER, TASK, in_turns, measured, tell
from benchmarks.engine import Afresh
from benchmarks.peers.vllm import serving
from benchmarks.row import Row
from lmrl.decoding.sampling import SamplingSettings
from lmrl.models.tokenizer import load_tokenizer
from lmrl.policies import LMPolicy
from lmrl.policies.chat.tokens import TokenClient
from lmrl.policies.lm import ContextBuilder
from lmrl.policies.vllm import VLLMPolicy
from lmrl.rollout import rollout
from lmrl.tokens.encoding import Window
from lmrl.types import Policy, Start

__all__ = ["run"]

MODULE = "benchmarks.chat_play"
DIALOGUES = 16
NEW_TOKENS = 16


def _played(side: str) -> dict[str, float]:
    """Seconds of a turn of one dialogue."""
    # Processes that this one starts, such as a server, have to share the core.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tokenizer = load_tokenizer(FOLDER)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    window = Window(tokens=1000, rendering="chat")
    if side == "generate":
        return _timed(Afresh(model, tokenizer, window, NEW_TOKENS, greedy=True))
    if side == "slots":
        return _timed(LMPolicy(model, tokenizer, window, max_new_tokens=NEW_TOKENS, temperature=0.0, slots=DIALOGUES))
    with TemporaryDirectory() as folder, serving(Path(FOLDER).resolve(), Path(folder) / "server.log") as address:
        builder = ContextBuilder(tokenizer, window, window.tokens + NEW_TOKENS, NEW_TOKENS)
        settings = SamplingSettings(0.0, 0, 1.0, NEW_TOKENS, builder.stop_ids())
        policy = VLLMPolicy(TokenClient(*address.split("#")), builder, settings, [])
        _timed(policy, dialogues=1)
        return _timed(policy)


def _timed(policy: Policy, dialogues: int = DIALOGUES) -> dict[str, float]:
    starts = [Start(seed) for seed in range(dialogues)]
    began = time.perf_counter()
    played = list(rollout(policy, lambda: lmrl.make(TASK), starts, task=TASK, slots=dialogues))
    seconds = time.perf_counter() - began
    turns = sum(len(episode) for _, episode in played)
    tokens = sum(len(ids) for _, episode in played for ids in episode.action_ids)
    return {"seconds": seconds / turns, "turns": turns, "tokens_per_s": tokens / seconds}


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks chat_play`."""
    if not Path(FOLDER).is_dir():
        yield Row("SmolLM2", None, shown="not measured: make smollm2 has not been run")
        return
    afresh = measured(MODULE, "generate")  # once, since it takes many times as long
    sides = [("slots",)]
    if "LMRL_VLLM" in os.environ:
        sides.append(("vllm",))
    slots, *others = in_turns(MODULE, *sides)
    yield Row(f"SmolLM2, {DIALOGUES} dialogues, generate: a turn", afresh["seconds"], "s", "lower", digits=2)
    yield Row(f"SmolLM2, {DIALOGUES} dialogues, slot engine: a turn", slots["seconds"], "s", "lower", digits=2)
    yield Row(
        "turns per second, slot engine / generate", afresh["seconds"] / slots["seconds"], "x", "higher", ">= 3x", 1
    )
    for vllm in others:
        yield Row(f"SmolLM2, {DIALOGUES} dialogues, vLLM: a turn", vllm["seconds"], "s", "lower", digits=2)
        yield Row("turns per second, slot engine / vLLM", vllm["seconds"] / slots["seconds"], "x", "higher", ">= 1x", 2)


def _main(side: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tell(_played(side))


if __name__ == "__main__":
    _main(sys.argv[1])
