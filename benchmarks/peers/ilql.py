"""A step of ILQL compared with AgileRL's, on the same networks, weights and batch; and both losses, term by term.

AgileRL's `ILQL` gets our heads, the weights of our trunk, and GPT-2's own layers inside of the blocks: its
`EvolvableGPT` has a ReLU there, and a GELU behind the second layer, which GPT-2 does not have. Its trunk then gives our
hidden vectors, so that the losses can be compared. A step is a forward pass, a backward pass, AdamW and the update of
the target networks. AgileRL could train its policy too, but here it does not (``awac_weight=0``), as ours is frozen.

The cross-entropy on Q is the same number. AgileRL's TD loss and its loss of V are twice ours: it leaves out the 1/2 of
the squares that the published code of Abdulhai et al. 2025 has. So weights of 1, 1 and 2 c there are 1, 1 and c here.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from agilerl.algorithms.ilql import ILQL as TheirILQL
from torch import Tensor, nn

import lmrl
from benchmarks.peers.beside import OURS, REPEATS, alternating, beside
from benchmarks.row import Row
from benchmarks.training_step import learner
from lmrl.envs.registry import make_policy
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import ILQL
from lmrl.rollout import in_order, rollout
from lmrl.tokens.collate import collate
from lmrl.tokens.encoding import Encoder, Window
from lmrl.tokens.segments import Segment, segments
from lmrl.types import Start

__all__ = ["losses", "run"]

PACKAGES = ("agilerl", "transformers")
AGILERL = "AgileRL"
ROWS = 32
LENGTH = 128
STEPS = 3
CQL = 0.01
LR = 1e-4
ARCHITECTURE = {"n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": 256}


def random_rows(vocabulary: int, rows: int = ROWS, length: int = LENGTH) -> list[Segment]:
    """Return random rows of one length in which 12 tokens of the environment and 4 of the player alternate."""
    draw = np.random.default_rng(0)
    said = np.arange(length) % 16 >= 12
    col = np.flatnonzero(said[1:]).astype(np.int32)
    found = []
    for _ in range(rows):
        ids = draw.integers(vocabulary, size=length).astype(np.int32)
        reward = draw.normal(size=len(col))
        key = ids.astype(">u4").tobytes()
        found.append(Segment(ids, col, ids[col + 1], reward, np.ones(len(col), dtype=bool), None, key, b""))
    return found


def games(rows: int = ROWS) -> list[Segment]:
    """Return games of Wordle that its scripted player played and the rules ended."""
    played = rollout(
        make_policy("wordle", "behaviour"),
        lambda: lmrl.make("wordle"),
        (Start(seed) for seed in range(2 * rows)),
        task="wordle",
    )
    ended = [episode for episode in in_order(played) if episode.terminated][:rows]
    encoder = Encoder(load_tokenizer())
    window = Window(None, 256)
    return [part for episode in ended for part in segments(episode, encoder, window)]


def as_theirs(parts: Sequence[Segment]) -> dict[str, Tensor]:
    """Return a batch as AgileRL has it: padded rows, the states of all actions and the end, a terminal mark there."""
    longest = max(len(part.ids) for part in parts)
    most = max(len(part.col) for part in parts)
    batch = {
        "tokens": torch.zeros(len(parts), longest, dtype=torch.long),
        "attn_mask": torch.zeros(len(parts), longest),
        "state_idxs": torch.zeros(len(parts), most + 1, dtype=torch.long),
        "action_idxs": torch.zeros(len(parts), most, dtype=torch.long),
        "rewards": torch.zeros(len(parts), most),
        "terminals": torch.ones(len(parts), most + 1),
    }
    for row, part in enumerate(parts):
        n = len(part.col)
        batch["tokens"][row, : len(part.ids)] = torch.from_numpy(part.ids)
        batch["attn_mask"][row, : len(part.ids)] = 1
        batch["state_idxs"][row, : n + 1] = torch.from_numpy(np.append(part.col, len(part.ids) - 1))
        batch["action_idxs"][row, :n] = torch.from_numpy(part.col)
        batch["rewards"][row, :n] = torch.from_numpy(part.reward)
        batch["terminals"][row, :n] = 0
    return batch


def our_module(vocabulary: int) -> ILQL:
    """Return our module with random weights; its heads and target networks give different values."""
    torch.manual_seed(0)
    module = ILQL(architecture={**ARCHITECTURE, "vocab_size": vocabulary}, cql_weight=CQL, lr=LR)
    for head in (*module.q_heads, *module.target_q_heads, module.v_head):
        nn.init.normal_(head.outer.weight, std=0.05)
    return module.train()


def their_module(module: ILQL, plain: bool = False) -> TheirILQL:
    """Return AgileRL's module with the weights of ours.

    Args:
        module: our module.
        plain: keep its own heads and blocks, twice as wide and three layers deep, and random weights.
    """
    config = module.model.config
    made = TheirILQL(
        SimpleNamespace(tokenizer=SimpleNamespace(num_tokens=lambda: config.vocab_size)),
        net_config={
            **{"arch": "gpt", "vocab_size": config.vocab_size, "n_layer": config.n_layer, "n_embd": config.n_embd},
            **{"n_head": config.n_head, "dim_feedfwd": 4 * config.n_embd, "block_size": config.n_positions},
            **{"activation": "GELU", "dropout": 0.0, "layer_norm_eps": 1e-5, "min_layers": 1, "max_layers": 16},
            "bias": True,
        },
        lr=LR,
        alpha=module.polyak,
        gamma=module.loss_arguments["gamma"],
        tau=module.loss_arguments["expectile"],
    )
    if not plain:
        _copy_trunk(module.trunk, made.model)
        _copy_trunk(module.target_trunk, made.actor_target)
        made.q, made.q2, made.v = (deepcopy(head) for head in (*module.q_heads, module.v_head))
        made.target_q, made.target_q2 = (deepcopy(head) for head in module.target_q_heads)
        made.optimizer = torch.optim.AdamW([p for p in made.parameters() if p.requires_grad], lr=LR, weight_decay=0.0)
    return made.train()


def _copy_trunk(trunk: Any, into: Any) -> None:
    """Copy the weights of a GPT-2 of `transformers`, whose matrices are transposed."""
    with torch.no_grad():
        for name in ("wte", "wpe", "ln_f"):
            into.transformer[name].load_state_dict(getattr(trunk, name).state_dict())
        for ours, theirs in zip(trunk.h, into.transformer["h"], strict=True):
            width = ours.mlp.c_proj.nf
            up = nn.Linear(width, 4 * width)
            down = nn.Linear(4 * width, width)
            theirs.mlp.model = nn.Sequential(up, nn.GELU(approximate="tanh"), down)
            theirs.ln_1.load_state_dict(ours.ln_1.state_dict())
            theirs.ln_2.load_state_dict(ours.ln_2.state_dict())
            pairs = [(ours.attn.c_attn, theirs.attn.c_attn), (ours.attn.c_proj, theirs.attn.c_proj)]
            for one, other in (*pairs, (ours.mlp.c_fc, up), (ours.mlp.c_proj, down)):
                other.weight.copy_(one.weight.T)
                other.bias.copy_(one.bias)


def their_loss(made: TheirILQL, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
    loss, terms, _ = made.get_loss(batch, v_loss_weight=1.0, q_loss_weight=1.0, cql_loss_weight=2 * CQL)
    return loss, terms


def losses(parts: Sequence[Segment], vocabulary: int) -> dict[str, tuple[float, float]]:
    """Return each term of our loss and of AgileRL's, in our units."""
    module = our_module(vocabulary)
    ours = module.losses(collate(parts))
    loss, terms = their_loss(their_module(module), as_theirs(parts))
    found = {"q_loss": terms["q_loss"][0] / 2, "v_loss": terms["v_loss"][0] / 2, "cql_loss": terms["cql_loss"][0]}
    found["loss"] = loss.item() / 2
    return {name: (getattr(ours, name).item(), value) for name, value in found.items()}


def stepping(step: Callable[[], None], tokens: int, steps: int = STEPS) -> Callable[[], float]:
    """Return a way that measures the tokens per second of the median of `steps` steps."""

    def way() -> float:
        seconds = []
        for _ in range(steps):
            began = perf_counter()
            step()
            seconds.append(perf_counter() - began)
        return tokens / median(seconds)

    return way


def their_step(made: TheirILQL, batch: dict[str, Tensor]) -> Callable[[], None]:
    """Return a training step as in AgileRL's own training loop."""

    def step() -> None:
        loss, _ = their_loss(made, batch)
        made.optimizer.zero_grad()
        loss.backward()
        made.optimizer.step()
        made.soft_update()

    return step


def run(repeats: int = REPEATS) -> Iterator[Row]:
    """Rows for `python -m benchmarks.peers ilql`."""
    vocabulary = len(load_tokenizer())
    batches = {f"{ROWS} rows of {LENGTH} tokens": random_rows(vocabulary), f"{ROWS} games of Wordle": games()}
    for name, parts in batches.items():
        for term, (ours, theirs) in losses(parts, vocabulary).items():
            gap = abs(ours - theirs) / max(1.0, abs(ours))
            shown = f"{ours:.6f} and {theirs:.6f}"
            yield Row(f"ILQL, {name}, {term} of both", gap, "", "lower", "equal to 1e-4", shown=shown)
        tokens = sum(len(part.ids) for part in parts)
        module = our_module(vocabulary)
        ways = {
            OURS: stepping(learner(module, collate(parts)), tokens),
            AGILERL: stepping(their_step(their_module(module), as_theirs(parts)), tokens),
            f"{AGILERL} with its own heads": stepping(their_step(their_module(module, True), as_theirs(parts)), tokens),
        }
        yield from beside(f"ILQL step, {name}", "tokens/s", alternating(ways, repeats), {AGILERL: ">= 1x"})
