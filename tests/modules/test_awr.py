"""AWR against what is known of bandits and returns, and as a module."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from lmrl.callbacks import KeepLast
from lmrl.datamodules import MazeDataModule
from lmrl.datamodules.offline import _with_returns
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.losses import advantage_weights, awr_loss
from lmrl.modules import AWR, BC, ArCHer, load_module
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.encoding import Window
from lmrl.training.reporting import WeightReporter
from lmrl.types import Episode
from tests.helpers.doubles import MARKOV, cut, episode
from tests.helpers.online import ENV, fit, rounds, trainer
from tests.helpers.tabular import TINY, entry, expectile, fit_actor, fit_critic, probability, tabular

pytestmark = pytest.mark.filterwarnings("ignore:round [0-9]+. ")


def batch_of(data: list[Episode], gamma: float, window: Window = MARKOV) -> TokenBatch:
    return collate([part for e in data for part in _with_returns(cut([e], window), gamma)])


def tables(batch: TokenBatch, **arguments: Any) -> AWR:
    torch.manual_seed(0)
    return tabular(AWR(architecture=TINY, **arguments), batch)


def test_v_is_the_mean_return_of_each_state() -> None:
    data = [
        episode("s", "ab", "t", "c", rewards=[1, 4], terminated=True),
        episode("s", "ad", "t", "e", rewards=[0, 2], terminated=True),
        episode("s", "b", rewards=[-3], terminated=False),
    ]
    batch = batch_of(data, 0.5)
    module = tables(batch)
    fit_critic(module, batch)
    returns = {"t": [4, 2], "sa": [1 + 2, 0 + 1], "s": [0.5 * 3, 0.5 * 1, -3]}  # gamma is per action token
    for name, found in returns.items():
        assert entry(module, module.critic.v_head, name) == pytest.approx(sum(found) / len(found), abs=1e-4)


#: The two lines of the data that pass through t are of different luck, and one is cut off.
CROSSED = [
    episode("s", "ab", "t", "c", rewards=[1, 4], terminated=True),
    episode("s", "b", "t", "d", "s", rewards=[0, -1], terminated=False),
    episode("s", "ab", "t", "d", rewards=[1, -2], terminated=True),
    episode("s", "b", "t", "c", "t", rewards=[0, 3], terminated=False),
]


def tokenwise(data: Sequence[Episode], share: float, gamma: float) -> dict[str, float]:
    """V of each text before an action token, by dynamic programming over the transitions of the data."""
    steps: list[tuple[str, float, str | None]] = []
    for e in data:
        for turn, (seen, action, reward) in enumerate(zip(e.observations, e.actions, e.rewards, strict=False)):
            for k in range(len(action)):
                last = k == len(action) - 1
                over = last and turn == len(e) - 1 and e.terminated
                following = None if over else e.observations[turn + 1] if last else seen + action[: k + 1]
                steps.append((seen + action[:k], reward if last else 0.0, following))
    values = dict.fromkeys((name for name, _, _ in steps), 0.0)
    for _ in range(300):
        for name in values:
            targets = [r + (gamma * values[to] if to is not None else 0.0) for here, r, to in steps if here == name]
            values[name] = expectile(targets, share)
    return values


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_bootstrapped_v_is_that_of_dynamic_programming(share: float) -> None:
    batch = collate(cut(CROSSED), bootstrap=True)
    module = tables(batch, gamma=0.9, bootstrap=True, expectile=share)
    assert module.batch_spec().bootstrap and module.batch_spec().returns_gamma is None
    fit_critic(module, batch, 600)
    solved = tokenwise(CROSSED, share, 0.9)
    assert solved.keys() == {"s", "sa", "t"}
    for name, worth in solved.items():
        assert entry(module, module.critic.v_head, name) == pytest.approx(worth, abs=0.01), name


def test_bootstrapped_advantages_are_free_of_the_luck_of_others() -> None:
    """In t both actions are as often good for s as bad: returns would blame those of s for it."""
    batch = collate(cut(CROSSED), bootstrap=True)
    module = tables(batch, gamma=0.9, bootstrap=True, temperature=0.5, max_weight=1e6)
    fit_critic(module, batch, 600)
    fit_actor(module, batch)
    value = tokenwise(CROSSED, 0.5, 0.9)
    share = {"a": 2 * math.exp((0.9 * value["sa"] - value["s"]) / 0.5)}
    share["b"] = 2 * math.exp((0.9 * value["t"] - value["s"]) / 0.5)
    for action, weight in share.items():
        assert probability(module, "s", action) == pytest.approx(weight / sum(share.values()), abs=0.01)


ARMS = {"x": (3, 0.5), "y": (2, 1.0), "z": (5, -0.3)}


def arms() -> list[Episode]:
    return [
        episode("s", action, rewards=[worth], terminated=True)
        for action, (count, worth) in ARMS.items()
        for _ in range(count)
    ]


def test_on_a_bandit_the_policy_is_the_weighted_policy_of_the_data() -> None:
    batch = batch_of(arms(), 1.0)
    module = tables(batch, temperature=0.4, max_weight=1e6)
    fit_critic(module, batch)
    fit_actor(module, batch)
    mean = sum(count * worth for count, worth in ARMS.values()) / 10
    share = {action: count * math.exp((worth - mean) / 0.4) for action, (count, worth) in ARMS.items()}
    for action, weight in share.items():
        assert probability(module, "s", action) == pytest.approx(weight / sum(share.values()), abs=0.01)


def test_a_large_temperature_is_bc() -> None:
    torch.manual_seed(0)
    module = AWR(architecture=TINY, temperature=1e12)
    batch = batch_of(arms(), 1.0)
    bc = BC(architecture=TINY)
    bc.model.load_state_dict(module.model.state_dict())
    module.losses(batch).actor_loss.backward()
    bc.losses(batch).loss.backward()
    torch.testing.assert_close(module.losses(batch).actor_loss, bc.losses(batch).loss, atol=1e-6, rtol=0.0)
    for ours, theirs in zip(module.model.parameters(), bc.model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-5)


def test_weights_are_clipped_without_overflow() -> None:
    found = advantage_weights(torch.tensor([-1.0, 0.0, 1.0, 1e6]), 0.5, 20.0)
    assert found.tolist() == pytest.approx([math.exp(-2), 1.0, math.exp(2), 20.0])


def test_the_terms() -> None:
    nll = torch.tensor([1.0, 2.0], requires_grad=True)
    value = torch.tensor([0.0, 3.0], requires_grad=True)
    terms = awr_loss(nll, value, torch.tensor([2.0, 1.0]), temperature=2.0, max_weight=2.0)
    assert terms.actor_loss.item() == pytest.approx((2.0 * 1.0 + math.exp(-1) * 2.0) / 2)
    assert terms.v_loss.item() == pytest.approx((0.5 * 4 + 0.5 * 4) / 2)
    assert [terms.v_mean.item(), terms.advantage.item()] == pytest.approx([1.5, 0.0])
    assert [terms.weight_mean.item(), terms.weight_max.item()] == pytest.approx([1 + math.exp(-1) / 2, 2.0])
    terms.actor_loss.backward(retain_graph=True)
    assert value.grad is None and nll.grad is not None
    assert terms.loss.item() == pytest.approx(terms.actor_loss.item() + terms.v_loss.item())


def test_a_batch_without_action_tokens_is_harmless() -> None:
    found = AWR(architecture=TINY).losses(batch_of(arms(), 1.0).without_targets())
    assert [term.item() for term in found] == [0.0] * len(found)


def test_each_part_learns_from_its_own_term() -> None:
    module = AWR(architecture=TINY)
    batch = batch_of(arms(), 1.0)
    for term, part in (("actor_loss", "model"), ("v_loss", "critic")):
        module.zero_grad()
        getattr(module.losses(batch), term).backward()
        reached = {n.split(".")[0] for n, p in module.named_parameters() if p.grad is not None and p.grad.any()}
        assert reached == {part}


def test_a_run_learns_and_plays_again(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    module = AWR(pretrained=bc_run, lr=1e-2, head_bias=-5.0)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    data = MazeDataModule("maze_fo", path=str(data_path), batch_size=16)
    trainer(tmp_path, 4, [KeepLast()], limit_val_batches=1).fit(module, data)
    moved = {name.split(".")[0] for name, p in module.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"model", "critic"}
    played = []
    for again in (module, load_module(tmp_path / "last.ckpt"), load_module(tmp_path / "last")):
        assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in module.state_dict().items())
        played.append(evaluate(again.eval().policy(max_new_tokens=4), "maze_fo", 2, env=ENV).episodes)
    assert [e.actions for e in played[0]] == [e.actions for e in played[1]] == [e.actions for e in played[2]]


@pytest.mark.parametrize("kind", [AWR, ArCHer])
@pytest.mark.parametrize(
    ("value", "told"),
    [
        (-90.0, "the mean weight is 20 of at most 20: actions count alike"),
        (90.0, "the largest weight is .*: nothing is learned"),
        (None, None),
    ],
)
def test_weights_that_tell_nothing_apart_are_told(
    kind: type[AWR] | type[ArCHer],
    value: float | None,
    told: str | None,
    bc_run: str,
    data_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WeightReporter, "_WINDOW", 3)
    module = kind(pretrained=bc_run, lr=1e-9, temperature=1.0 if value else 1e9)
    assert module.critic.v_head is not None
    with torch.no_grad():
        module.critic.v_head.outer.bias.fill_(value or 0.0)  # and what ArCHer's Q says stays near the returns
    data = MazeDataModule("maze_fo", path=str(data_path), batch_size=16)
    with pytest.warns(UserWarning, match=f"{kind.name}, the 3 batches up to step 2: {told}") if told else nullcontext():
        trainer(tmp_path, 3, [], limit_val_batches=0).fit(module, data)


def test_rounds_are_refused(bc_run: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="AWR learns from recorded episodes"):
        fit(AWR(pretrained=bc_run), rounds(), tmp_path, 1)
