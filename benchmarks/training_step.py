"""One training step of BC and ILQL against the bare step of the same Hugging Face model, interleaved in one run.

32 rows of 128 tokens, 4 layers of width 128, vocabulary 512, float32, one thread. In a row the environment and the
player take turns of 12 and 4 tokens. A second set of rows consists of action tokens alone, the costliest for heads.
"""

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

from benchmarks.row import Row
from lmrl.modules import BC, ILQL, LanguageModule
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.segments import Segment

ROWS = 32
LENGTH = 128
VOCABULARY = 512
ARCHITECTURE = {"n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": LENGTH, "vocab_size": VOCABULARY}


def batch(
    environment: int, action: int, *, rows: int = ROWS, length: int = LENGTH, vocabulary: int = VOCABULARY
) -> TokenBatch:
    """Return random rows in which `environment` and `action` tokens alternate; each row ends its episode."""
    draw = np.random.default_rng(0)
    said = np.arange(length) % (environment + action) >= environment
    col = (np.flatnonzero(said[1:])).astype(np.int32)
    turn_end = ~np.append(said[1:], False)[col + 1]
    parts = []
    for _ in range(rows):
        ids = draw.integers(vocabulary, size=length).astype(np.int32)
        key = ids.astype(">u4").tobytes()
        parts.append(Segment(ids, col, ids[col + 1], np.full(len(col), -1.0), turn_end, None, key, b""))
    return collate(parts)


def learner(module: LanguageModule, data: TokenBatch) -> Callable[[], None]:
    """Return a step that does what Lightning does in one step of the module, without its loop."""
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-4, fused=True)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def step() -> None:
        (module.losses(data).loss * data.n_tokens).backward()
        torch._foreach_mul_([p.grad for p in parameters], 1 / data.n_tokens)
        optimizer.step()
        optimizer.zero_grad()
        if isinstance(module, ILQL):
            module.update_target_networks()

    return step


def bare(model: nn.Module, data: TokenBatch) -> Callable[[], None]:
    """Return a step of the plain model of `transformers` with its own loss: forward, backward and AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        model(input_ids=data.input_ids, labels=data.input_ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def compare(data: TokenBatch, rounds: int) -> tuple[float, float, float]:
    """Return the median seconds of a bare step, and the medians of BC / bare and ILQL / BC, round by round."""
    torch.manual_seed(0)
    steps = [
        bare(BC(architecture=ARCHITECTURE).model, data),
        learner(BC(architecture=ARCHITECTURE), data),
        learner(ILQL(architecture=ARCHITECTURE), data),
    ]
    for step in steps:
        step()
    times = [[seconds(step) for step in steps] for _ in range(rounds)]
    middle = statistics.median
    return middle(t[0] for t in times), middle(t[1] / t[0] for t in times), middle(t[2] / t[1] for t in times)


def run(rounds: int = 15) -> Iterator[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, turns in (("a quarter action tokens", (12, 4)), ("action tokens only", (0, 128))):
        plain, bc, ilql = compare(batch(*turns), rounds)
        yield Row(f"step, {name}: bare", plain, "s", "lower", digits=3)
        yield Row(f"step, {name}: BC / bare", bc, "", "lower", "<= 1.15", 2)
        yield Row(f"step, {name}: ILQL / BC", ilql, "", "lower", "<= 1.80", 2)
    torch.set_num_threads(threads)
