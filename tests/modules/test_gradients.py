"""A step does not depend on how its batch is cut, and copies do not learn."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lmrl.losses import token_scores
from lmrl.models.lm import logits_of
from lmrl.modules import BC, ILQL, MC, LanguageModule
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.encoding import Window
from lmrl.tokens.segments import Segment
from tests.helpers.doubles import cut, episode

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}


class Plain(BC):
    """BC with plain gradient descent, so that the size of the gradient shows in the weights."""

    def configure_optimizers(self) -> torch.optim.Optimizer:  # type: ignore[override]
        return torch.optim.SGD(self.parameters(), lr=1.0)


def examples() -> list[Segment]:
    """Return 32 segments with one to nine action tokens each."""
    return cut(
        [episode("s", "abcdefghi"[: 1 + i % 9], rewards=[i], terminated=i % 2 == 0) for i in range(32)], Window()
    )


def loader(size: int, batches: int = 1) -> DataLoader[TokenBatch]:
    """Return micro-batches, of which `batches` are expected to make a step."""
    expected = (sum(len(part.col) for part in examples()) / batches, 1.0)
    together = partial(collate, pad=0, expected=expected)
    return DataLoader(examples(), batch_size=size, collate_fn=together)  # type: ignore[arg-type]


def fit(module: L.LightningModule, size: int, root: Path, **trainer: Any) -> None:
    defaults = {"max_steps": 1, "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False}
    shown = {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": root}
    batches = trainer.get("accumulate_grad_batches", 1) * trainer.get("devices", 1)
    L.Trainer(**{**defaults, **shown, **trainer}).fit(module, loader(size, batches))


def stepped(root: Path, size: int, **trainer: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    module = Plain(architecture=TINY)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    fit(module, size, root, **trainer)
    return {name: p.detach() - before[name] for name, p in module.named_parameters()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert any(bool(step.abs().max() > 1e-3) for step in expected.values())
    for name, step in expected.items():
        torch.testing.assert_close(found[name], step, atol=1e-6, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


def test_one_step_follows_the_mean_over_tokens(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Plain(architecture=TINY)
    module.losses(collate(examples())).loss.backward()
    expected = {name: -p.grad for name, p in module.named_parameters() if p.grad is not None}
    assert_same(stepped(tmp_path, 32), expected)


def test_no_step_counts_the_tokens_of_another(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Plain(architecture=TINY)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    for _ in range(2):
        module.zero_grad()
        module.losses(collate(examples())).loss.backward()
        with torch.no_grad():
            for p in module.parameters():
                p -= p.grad if p.grad is not None else 0.0
    expected = {name: p.detach() - before[name] for name, p in module.named_parameters()}
    assert_same(stepped(tmp_path, 32, max_steps=2), expected)


@pytest.mark.parametrize("size", [8, 12])
def test_micro_batches_add_up_to_the_whole_batch(tmp_path: Path, size: int) -> None:
    """4 x 8, and 12 + 12 + 8, where the epoch ends early: the divisor is the same however a step is cut."""
    cutting = {"accumulate_grad_batches": 4, "max_steps": -1, "max_epochs": 1}
    assert_same(stepped(tmp_path, size, **cutting), stepped(tmp_path, 32))


def test_two_ranks_add_up_to_the_whole_batch(tmp_path: Path) -> None:
    ranks = {"strategy": "ddp_fork", "devices": 2, "max_steps": -1, "max_epochs": 1}
    assert_same(stepped(tmp_path, 16, **ranks), stepped(tmp_path, 32))


def make_ilql(**arguments: Any) -> ILQL:
    torch.manual_seed(0)
    module = ILQL(architecture=TINY, **arguments)
    module.window = Window()
    with torch.no_grad():  # heads start as constants: make them depend on what is read
        for head in (*module.q_heads, module.v_head, *module.target_q_heads):
            head.outer.weight.normal_(0, 0.5)
    return module


def target_parts(module: ILQL) -> list[torch.nn.Parameter]:
    return [*module.target_trunk.parameters(), *module.target_q_heads.parameters()]


class FromScratch(ILQL):
    starts_from_bc = False


@pytest.mark.parametrize("accumulate", [1, 2])
def test_target_networks_move_once_per_optimizer_step(tmp_path: Path, accumulate: int) -> None:
    """theta_n = theta + (1 - rate)**n (theta_0 - theta) while theta stays where it is."""
    torch.manual_seed(0)
    module = FromScratch(architecture=TINY, lr=0.0, polyak=0.3)
    with torch.no_grad():
        for p in target_parts(module):
            p.add_(1.0)
    pairs = [*zip(target_parts(module), [*module.trunk.parameters(), *module.q_heads.parameters()], strict=True)]
    start = [target.detach().clone() for target, _ in pairs]
    fit(module, 8, tmp_path, max_steps=4 // accumulate, accumulate_grad_batches=accumulate)
    for (target, online), first in zip(pairs, start, strict=True):
        expected = online + (1 - 0.3) ** (4 // accumulate) * (first - online)
        torch.testing.assert_close(target, expected, atol=1e-6, rtol=1e-6)


def test_frozen_parts_do_not_learn(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = FromScratch(architecture=TINY, lr=1e-2)
    module.polyak = 0.0
    torch.nn.init.normal_(module.v_head.outer.weight)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    fit(module, 8, tmp_path, max_steps=3)
    for name, parameter in module.named_parameters():
        frozen = name.startswith(("model.", "target_"))
        assert torch.equal(parameter, before[name]) == frozen, name
        assert parameter.requires_grad != frozen
    assert module.train().training
    assert not module.model.training
    assert not module.target_trunk.training
    assert not module.target_q_heads.training


def test_gradients_of_ilql_reach_trunk_and_heads_only() -> None:
    module = make_ilql()
    module.losses(collate(examples())).loss.backward()
    reached = {name.split(".")[0] for name, p in module.named_parameters() if p.grad is not None and p.grad.abs().any()}
    assert reached == {"trunk", "q_heads", "v_head"}


def test_value_targets_do_not_come_from_what_is_trained(tmp_path: Path) -> None:
    """V follows the target networks: moving the online heads alone leaves its loss where it was."""
    module = make_ilql()
    batch = collate(examples())
    before = module.losses(batch)
    with torch.no_grad():
        module.q_heads[0].outer.bias.add_(5.0)
    after = module.losses(batch)
    torch.testing.assert_close(after.v_loss, before.v_loss)
    assert abs((after.q_loss - before.q_loss).item()) > 1.0


def test_value_targets_come_from_the_target_trunk() -> None:
    module = make_ilql()
    batch = collate(examples())
    before = module.losses(batch)
    with torch.no_grad():
        module.target_trunk.wte.weight.add_(torch.randn_like(module.target_trunk.wte.weight))  # type: ignore[operator, union-attr]
    after = module.losses(batch)
    torch.testing.assert_close(after.q_loss, before.q_loss)
    assert abs((after.v_loss - before.v_loss).item()) > 1e-3


def test_the_module_reads_each_value_where_it_belongs() -> None:
    """The TD error of Q is that of segments that are read one by one."""
    module = make_ilql(gamma=0.9)
    parts = cut(
        [
            episode("s", "ab", "t", "c", "u", rewards=[1, -2], terminated=False),
            episode("s", "ac", "t", "d", rewards=[3, 4], terminated=True),
        ],
        Window(texts=1),
    )

    def states(ids: np.ndarray[Any, Any]) -> Tensor:
        hidden: Tensor = module.trunk(input_ids=torch.from_numpy(ids)[None].long()).last_hidden_state[0]
        return hidden

    total = 0.0
    count = 0
    for part in parts:
        hidden = states(part.ids)
        worth = module.v_head(hidden).squeeze(-1)[part.col].tolist()
        worth.append(0.0 if part.next_ids is None else module.v_head(states(part.next_ids))[-1].item())
        for k, (col, token) in enumerate(zip(part.col, part.token, strict=True)):
            target = part.reward[k] + 0.9 * worth[k + 1]
            total += sum(0.5 * (head(hidden)[col, token].item() - target) ** 2 for head in module.q_heads)
            count += 1
    assert module.losses(collate(parts)).q_loss.item() == pytest.approx(total / count, rel=1e-4)


@pytest.mark.parametrize("kind", [BC, MC, ILQL])
def test_a_large_vocabulary_gives_the_same_loss_and_gradients(
    kind: type[LanguageModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large vocabulary is scored in pieces instead of as a table."""
    torch.manual_seed(0)
    module = make_ilql() if kind is ILQL else kind(architecture=TINY)
    batch = collate(examples(), observations=kind is BC)
    batch = batch._replace(return_to_go=torch.randn(batch.n_tokens))
    found = []
    for size in (token_scores._MAX_TABLE_SCORES, 0):
        monkeypatch.setattr(token_scores, "_MAX_TABLE_SCORES", size)
        module.zero_grad()
        loss = module.losses(batch).loss  # type: ignore[attr-defined]
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in module.parameters() if p.grad is not None)])
    for whole, pieces in zip(*found, strict=True):
        torch.testing.assert_close(whole, pieces, atol=1e-6, rtol=1e-4)


def test_environment_tokens_get_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of words that the environment says may be anything."""
    module = Plain(architecture=TINY)
    batch = collate(cut([episode("hello", "a", "world", "b", rewards=[0, 0], terminated=True)], Window()))
    scored: list[Tensor] = []
    monkeypatch.setattr("lmrl.modules.bc.logits_of", lambda m, hidden: scored.append(hidden) or logits_of(m, hidden))
    module.losses(batch)
    assert scored[0].shape[0] == len(batch.row) == 2  # only the two states before a and b are ever scored


def test_a_batch_without_action_tokens_is_harmless(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module: LanguageModule = Plain(architecture=TINY)
    before = [p.detach().clone() for p in module.parameters()]
    empty = collate(cut([episode("s", "a", rewards=[0], terminated=True)], Window()))
    empty = empty._replace(**{name: getattr(empty, name)[:0] for name in ("state", "token", "reward", "next")})
    trainer = L.Trainer(
        max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        accelerator="cpu", default_root_dir=tmp_path,
    )  # fmt: skip

    class One:
        def __iter__(self) -> Iterator[TokenBatch]:
            yield empty

    trainer.fit(module, One())
    for p, old in zip(module.parameters(), before, strict=True):
        assert torch.equal(p, old)
