"""Algorithms with tables in place of their networks; the text that has been read so far is the state."""

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from lmrl.modules import ArCHer
from lmrl.modules.actor_critic import ActorCritic
from lmrl.tokens.collate import TokenBatch
from tests.helpers.doubles import VOCABULARY, prefixes

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}

M = TypeVar("M", bound=ActorCritic)


class States:
    """The distinct texts of a batch's states, as one-hot vectors."""

    def __init__(self, batch: TokenBatch) -> None:
        self.names = sorted(set(prefixes(batch)))

    def __call__(self, trunk: nn.Module, batch: TokenBatch) -> Tensor:
        """Return the vectors, in place of `LanguageModule.hidden_states`."""
        places = torch.tensor([self.names.index(name) for name in prefixes(batch)])
        return nn.functional.one_hot(places, len(self.names)).float()


def expectile(values: Sequence[float], share: float) -> float:
    """Find where ``share`` times the excess above equals ``1 - share`` times the lack below, by bisection."""
    low = min(values)
    high = max(values)
    for _ in range(100):
        middle = (low + high) / 2
        pull = sum((share if value > middle else 1 - share) * (value - middle) for value in values)
        low, high = (middle, high) if pull > 0 else (low, middle)
    return low


def tabular(module: M, batch: TokenBatch, start: float = 0.0) -> M:
    """Put a table in place of each network; `entry` looks values up."""
    states = States(batch)

    def table(out: int, value: float) -> nn.Linear:
        made = nn.Linear(len(states.names), out, bias=False)
        nn.init.constant_(made.weight, value)
        return made

    module.hidden_states = states  # type: ignore[method-assign, assignment]
    module.model.set_output_embeddings(table(VOCABULARY, 0.0))
    for critic in (module.critic, module.target_critic) if isinstance(module, ArCHer) else (module.critic,):
        critic.q_heads = nn.ModuleList([table(1, start) for _ in critic.q_heads])
        critic.v_head = table(1, start)  # type: ignore[assignment]
    return module


def entry(module: ActorCritic, head: nn.Module, name: str) -> float:
    """Return the value in a table for the text that has been read."""
    return float(head.weight.detach()[0, module.hidden_states.names.index(name)])  # type: ignore[attr-defined, operator]


def fit_critic(module: ActorCritic, batch: TokenBatch, steps: int = 200) -> None:
    """Run gradient descent with a step that suits a mean over N tokens, of which each entry sees its share."""
    heads = [*module.critic.q_heads, module.critic.v_head]
    for _ in range(steps):
        gradients = torch.autograd.grad(module.losses(batch).loss, [head.weight for head in heads])  # type: ignore[attr-defined]
        with torch.no_grad():
            for head, gradient in zip(heads, gradients, strict=True):
                head.weight -= gradient * batch.n_tokens / _visits(module, batch, head)  # type: ignore[operator]
        if isinstance(module, ArCHer):
            module.update_target_networks()


def _visits(module: ActorCritic, batch: TokenBatch, head: nn.Module) -> Tensor:
    """Count how often a table's entries are used: V of ArCHer where turns begin, Q where they end, V of AWR always."""
    assert batch.turn_end is not None
    begins = torch.cat([torch.tensor([True]), batch.turn_end[:-1]])
    if head is not module.critic.v_head:
        assert batch.after is not None
        asked = batch.after[batch.turn_end]
    else:
        asked = batch.state[begins] if isinstance(module, ArCHer) else batch.state
    names = prefixes(batch)
    counts = Counter(names[index] for index in asked.tolist())
    return torch.tensor([max(1, counts[name]) for name in module.hidden_states.names])  # type: ignore[attr-defined]


def fit_actor(module: ActorCritic, batch: TokenBatch, steps: int = 300) -> None:
    """Train the table of logits alone."""
    weight = module.model.get_output_embeddings().weight  # type: ignore[no-untyped-call]
    optimizer = torch.optim.LBFGS([weight], lr=1.0, max_iter=steps, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        found: Tensor = module.losses(batch).loss  # type: ignore[attr-defined]
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimizer.step(loss)  # type: ignore[no-untyped-call]


def probability(module: ActorCritic, before: str, action: str) -> float:
    """Return the probability of a whole action under the table of logits."""
    found = 1.0
    weight = module.model.get_output_embeddings().weight  # type: ignore[no-untyped-call]
    for index, letter in enumerate(action):
        column = module.hidden_states.names.index(before + action[:index])  # type: ignore[attr-defined]
        found *= float(weight.detach()[:, column].softmax(0)[ord(letter)])
    return found
