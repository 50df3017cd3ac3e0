"""An ILQL step at GPT-2's vocabulary: heads at the action tokens and in pieces, against heads at all positions.

32 rows of 128 tokens, 2 layers of width 128, 50,257 words, float32, one thread; the environment and the player take
turns of 12 and 4 tokens. Both sides have the same weights, run in a process of their own, and must give the same loss.
The other side does what is usually done: it runs both heads and both target heads at every position and lets autograd
keep the tables. Time is the processor's, the best of three; memory is the peak above what was held before.

A step of PPO and GRPO follows: 1,024 action tokens, one layer of width 576, 151,936 words, in pieces against a table of
tokens by words. Its memory is the peak above the model and the gradients.
"""

import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.row import Row
from benchmarks.training_step import batch
from lmrl.losses import expectile_loss, token_scores
from lmrl.modules import GRPO, ILQL, PPO
from lmrl.modules.policy_gradient import PolicyGradient
from lmrl.tokens.collate import TokenBatch

VOCABULARY = 50_257
STEPS = 3
POLICY_VOCABULARY = 151_936
POLICY_ARCHITECTURE = {"n_layer": 1, "n_head": 9, "n_embd": 576, "n_positions": 128, "vocab_size": POLICY_VOCABULARY}
POLICIES: dict[str, type[PolicyGradient]] = {"PPO": PPO, "GRPO": GRPO}
ARCHITECTURE = {"n_layer": 2, "n_head": 2, "n_embd": 128, "n_positions": 128, "vocab_size": VOCABULARY}


def everywhere(module: ILQL, data: TokenBatch) -> Tensor:
    """The loss of `ILQL.losses` with tables of all positions; every segment ends its episode."""
    ids = data.input_ids
    here = data.row[data.state]
    said = data.col[data.state]
    hidden = module.trunk(input_ids=ids, use_cache=False).last_hidden_state
    with torch.no_grad():
        target_hidden = module.target_trunk(input_ids=ids, use_cache=False).last_hidden_state
        slow = [head(target_hidden)[here, said, data.token] for head in module.target_q_heads]
    tables = [head(hidden) for head in module.q_heads]
    assert module.v_head is not None
    value = module.v_head(hidden)[..., 0]
    after = torch.where(data.terminated, 0.0, value[data.row[data.next], data.col[data.next]].detach())
    target = data.reward + module.loss_arguments["gamma"] * after
    labels = torch.full_like(ids, -100)
    labels[here, said] = data.token
    loss = expectile_loss(value[here, said], torch.minimum(*slow), module.loss_arguments["expectile"]).mean()
    for table in tables:
        loss = loss + 0.5 * (table[here, said, data.token] - target).square().mean()
        loss = loss + module.loss_arguments["cql_weight"] * cross_entropy(table.flatten(0, 1), labels.flatten())
    return loss


def measure(side: str) -> dict[str, float]:
    """Processor seconds of a forward and backward pass, megabytes above the start, and the first loss."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = ILQL(architecture=ARCHITECTURE)
    data = batch(12, 4, vocabulary=VOCABULARY)
    with torch.no_grad():  # heads start as constants
        for head in (*module.q_heads, *module.target_q_heads, module.v_head):
            head.outer.weight.normal_(0, 0.1)
    before = _peak()
    times = []
    losses = []
    for _ in range(STEPS):
        start = time.process_time()
        loss = everywhere(module, data) if side == "everywhere" else module.losses(data).loss
        loss.backward()
        times.append(time.process_time() - start)
        losses.append(loss.item())
        module.zero_grad()
    return {"seconds": min(times), "megabytes": _peak() - before, "loss": losses[0]}


def policy_batch(kind: type[PolicyGradient], vocabulary: int, rows: int, length: int) -> TokenBatch:
    """A minibatch of a round, as if a policy that knows nothing had sampled it."""
    data = batch(12, 4, rows=rows, length=length, vocabulary=vocabulary)
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(2, len(data.token), generator=draw)
    logprob = torch.full_like(noise[0], -math.log(vocabulary))
    columns = {"logprob": logprob, "advantage": noise[0]}
    if kind is PPO:
        columns |= {"value": torch.zeros_like(logprob), "target": noise[1]}
    else:
        columns |= {"ref_logprob": logprob, "weight": torch.ones_like(logprob)}
    return data._replace(columns=columns)


def measure_policy(kind: str, side: str) -> dict[str, float]:
    """Processor seconds of a forward and backward pass, megabytes above model and gradients, loss and gradient norm."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if side == "table":
        token_scores._MAX_TABLE_SCORES = 2**62
    module = POLICIES[kind](architecture=POLICY_ARCHITECTURE, entropy_weight=0.01)
    module.invalid.zero_()  # the batch has any ids
    data = policy_batch(POLICIES[kind], POLICY_VOCABULARY, 32, 128)
    before = _peak()
    start = time.process_time()
    loss = module.losses(data).loss
    loss.backward()
    seconds = time.process_time() - start
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    held = sum(gradient.nbytes for gradient in gradients) / 2**20
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm().item()
    return {"seconds": seconds, "megabytes": _peak() - before - held, "loss": loss.item(), "norm": norm}


def _peak() -> float:
    status = Path("/proc/self/status")
    if status.is_file():  # what getrusage says of a child begins with what its parent held
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks`."""
    found = {side: _in_process(side) for side in ("everywhere", "pieces")}
    whole = found["everywhere"]
    ours = found["pieces"]
    for side, name in (("everywhere", "heads at all positions"), ("pieces", "action tokens, in pieces")):
        yield Row(f"ILQL, 50,257 words: {name}, time", found[side]["seconds"], "s", "lower", digits=2)
        yield Row(f"ILQL, 50,257 words: {name}, memory", found[side]["megabytes"], "MB", "lower")
    for name, key, asked in (("time", "seconds", "<= 1/8"), ("memory", "megabytes", "<= 1/4")):
        share = ours[key] / whole[key]
        yield Row(f"{name}, pieces / all positions", share, "", "lower", asked, shown=f"1/{1 / share:.1f}")
    difference = abs(whole["loss"] - ours["loss"])
    yield Row("loss, difference", difference, asked="<= 1e-5", shown=f"{difference:.1e}")
    for kind in POLICIES:
        name = f"{kind}, 151,936 words"
        table = _in_process(kind, "table")
        pieces = _in_process(kind, "pieces")
        yield Row(f"{name}: table, time", table["seconds"], "s", "lower", digits=2)
        yield Row(f"{name}: table, memory", table["megabytes"], "MB", "lower")
        yield Row(f"{name}: in pieces, time", pieces["seconds"], "s", "lower", digits=2)
        yield Row(f"{name}: in pieces, memory", pieces["megabytes"], "MB", "lower", "<= 512")
        difference = abs(table["norm"] - pieces["norm"]) / table["norm"]
        yield Row(f"{name}: norm of the gradient, difference", difference, asked="<= 1e-5", shown=f"{difference:.1e}")


def _in_process(*arguments: str) -> dict[str, float]:
    """The numbers of one side, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.vocabulary", *arguments]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(measure_policy(*sys.argv[1:]) if sys.argv[1] in POLICIES else measure(sys.argv[1])))
