"""ArCHer against dynamic programming over turns, and as a module: what learns, when, and from what."""

import csv
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lmrl.callbacks import KeepLast, RolloutCollection
from lmrl.checkpoints.export import exported_values
from lmrl.datamodules import MazeDataModule
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.losses import archer_loss, awr_actor_loss, clipped_actor_loss, turns_of
from lmrl.losses.archer import TurnValues
from lmrl.modules import ILQL, ArCHer, LanguageModule, load_module
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.encoding import Window
from lmrl.types import Episode
from tests.helpers.doubles import MARKOV, cut, episode
from tests.helpers.online import ENV, fit, rounds, trainer
from tests.helpers.tabular import TINY, entry, expectile, fit_actor, fit_critic, probability, tabular

pytestmark = [
    pytest.mark.filterwarnings("ignore:round [0-9]+. "),
    pytest.mark.filterwarnings("ignore:Experiment logs directory"),
]

#: Actions of one to three tokens, some of which differ in their last token alone; the answer to the first is drawn.
DATA = [
    episode("s", "x", "t", "c", rewards=[1, 5], terminated=True),
    episode("s", "x", "t", "cd", rewards=[1, -2], terminated=True),
    episode("s", "x", "u", "cde", rewards=[0, 3], terminated=True),
    episode("s", "yx", "u", "cdf", rewards=[-1, 0], terminated=True),
    episode("s", "yz", "t", "c", "s", rewards=[2, 4], terminated=False),
    episode("s", "yz", "u", "c", "t", rewards=[2, 1], terminated=False),
    episode("s", "yyz", rewards=[-3], terminated=True),
    episode("s", "yyz", "u", rewards=[-1], terminated=False),
]
GAMMA = 0.8


def batch_of(data: Sequence[Episode], window: Window = MARKOV) -> TokenBatch:
    return collate(cut(data, window), after=True)


def solve(data: Sequence[Episode], share: float, gamma: float) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
    """Q of each observation and whole action, and V of each observation, by dynamic programming over turns."""
    outcomes: dict[tuple[str, str], list[tuple[float, str | None]]] = defaultdict(list)
    for e in data:
        for turn, action in enumerate(e.actions):
            ends = e.terminated and turn == len(e) - 1
            outcomes[e.observations[turn], action].append((e.rewards[turn], None if ends else e.observations[turn + 1]))
    values: dict[str, float] = dict.fromkeys((name for name, _ in outcomes), 0.0)
    for _ in range(500):
        q = {
            pair: float(np.mean([reward + (0.0 if to is None else gamma * values[to]) for reward, to in found]))
            for pair, found in outcomes.items()
        }
        taken = {name: [q[pair] for pair in outcomes if pair[0] == name for _ in outcomes[pair]] for name in values}
        values = {name: expectile(worth, share) for name, worth in taken.items()}
    return q, values


def critic(share: float, data: Sequence[Episode] = DATA, gamma: float = GAMMA, **arguments: Any) -> ArCHer:
    torch.manual_seed(0)
    batch = batch_of(data)
    module = tabular(
        ArCHer(architecture=TINY, gamma=gamma, expectile=share, polyak=1.0, **arguments), batch, start=-10.0
    )
    fit_critic(module, batch)
    return module


@pytest.mark.parametrize("share", [0.7, *(pytest.param(share, marks=pytest.mark.nightly) for share in (0.5, 0.9))])
def test_the_fixed_point_is_that_of_dynamic_programming_over_turns(share: float) -> None:
    module = critic(share)
    q, values = solve(DATA, share, GAMMA)
    assert len(q) == 9 and len(set(map(len, {action for _, action in q}))) == 3
    for (name, action), worth in q.items():
        for head in module.critic.q_heads:
            assert entry(module, head, name + action) == pytest.approx(worth, abs=0.01), (name, action)
    for name, worth in values.items():
        assert entry(module, module.critic.v_head, name) == pytest.approx(worth, abs=0.01), name


def test_an_expectile_of_a_half_is_sarsa_of_utterances() -> None:
    """The linear equations ``V = R + gamma P V`` of the data's own player, solved at once."""
    names = ("s", "t", "u")
    reward = np.zeros(3)
    step = np.zeros((3, 3))
    count = np.zeros(3)
    for e in DATA:
        for turn in range(len(e)):
            here = names.index(e.observations[turn])
            reward[here] += e.rewards[turn]
            count[here] += 1
            if turn < len(e) - 1 or not e.terminated:
                step[here, names.index(e.observations[turn + 1])] += 1
    solved = np.linalg.solve(np.eye(3) - GAMMA * step / count[:, None], reward / count)
    module = critic(0.5)
    assert [entry(module, module.critic.v_head, name) for name in names] == pytest.approx(solved.tolist(), abs=0.01)


def test_discounts_are_of_turns_whatever_actions_are_made_of() -> None:
    """Two turns of three tokens each: 8 at the end is worth 0.8 * 8."""
    module = critic(0.5, [episode("s", "abc", "t", "def", rewards=[0, 8], terminated=True)])
    assert entry(module, module.critic.v_head, "s") == pytest.approx(6.4, abs=1e-3)
    assert entry(module, module.critic.q_heads[0], "sabc") == pytest.approx(6.4, abs=1e-3)


def test_a_truncated_episode_has_a_value_beyond_its_end_and_a_terminated_one_has_none() -> None:
    data = [episode("s", "ab", "s", rewards=[1], terminated=False)]
    module = critic(0.7, data)
    assert entry(module, module.critic.q_heads[1], "sab") == pytest.approx(5.0, abs=1e-3)
    ended = critic(0.7, [episode("s", "ab", "s", rewards=[1], terminated=True)])
    assert entry(ended, ended.critic.q_heads[1], "sab") == pytest.approx(1.0, abs=1e-3)


def test_only_values_of_whole_actions_are_read() -> None:
    """Numbers within actions, and Q of what is no action, may be anything."""
    batch = batch_of(DATA)
    module = critic(0.7)
    before = module.losses(batch).loss
    read = {e.observations[turn] + e.actions[turn] for e in DATA for turn in range(len(e))}
    begun = {name for e in DATA for name in e.observations}
    names: list[str] = module.hidden_states.names  # type: ignore[attr-defined]
    with torch.no_grad():
        for part in (module.critic, module.target_critic):
            for head in part.q_heads:
                head.weight[0, [name not in read for name in names]] = 1e6  # type: ignore[operator, index]
            part.v_head.weight[0, [name not in begun for name in names]] = 1e6  # type: ignore[operator, index]
    assert torch.equal(module.losses(batch).loss, before)


@pytest.mark.nightly
def test_a_real_model_has_the_same_fixed_point() -> None:
    torch.manual_seed(0)
    batch = batch_of(DATA)
    module = ArCHer(
        architecture={**TINY, "n_embd": 32, "initializer_range": 0.3, "vocab_size": 128},
        gamma=GAMMA,
        expectile=0.7,
        polyak=0.1,
    )
    module.model.requires_grad_(False)
    optimizer = torch.optim.Adam(module.critic.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    for _ in range(600):
        optimizer.zero_grad()
        module.losses(batch).loss.backward()
        optimizer.step()
        schedule.step()
        module.update_target_networks()
    q, values = solve(DATA, 0.7, GAMMA)
    turns = turns_of(batch.turn_end)  # type: ignore[arg-type]
    with torch.no_grad():
        found = module.turn_values(batch, turns)
    pairs = [(e.observations[turn], e.actions[turn]) for e in DATA for turn in range(len(e))]
    for head in found.q:
        assert head.tolist() == pytest.approx([q[pair] for pair in pairs], abs=0.01)
    assert found.value.tolist() == pytest.approx([values[name] for name, _ in pairs], abs=0.01)


# -- the actor ---------------------------------------------------------------------------------------------------

BANDIT = {"x": (3, 0.5), "yx": (2, 1.0), "yz": (4, -0.3), "yyz": (1, 1.2)}


def test_the_minimiser_of_the_regression_is_the_weighted_policy_of_the_data() -> None:
    data = [
        episode("s", action, rewards=[worth], terminated=True)
        for action, (count, worth) in BANDIT.items()
        for _ in range(count)
    ]
    module = critic(0.5, data, temperature=0.6, max_weight=1e6)
    batch = batch_of(data)
    fit_actor(module, batch)
    mean = sum(count * worth for count, worth in BANDIT.values()) / 10
    share = {action: count * math.exp((worth - mean) / 0.6) for action, (count, worth) in BANDIT.items()}
    for action, weight in share.items():
        assert probability(module, "s", action) == pytest.approx(weight / sum(share.values()), abs=0.01)


def test_weights_are_clipped_and_have_no_gradient() -> None:
    turns = turns_of(torch.tensor([True, False, True]))
    advantage = torch.tensor([300.0, -1.0], requires_grad=True)
    logprob = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    loss, weight = awr_actor_loss(logprob, turns, advantage, temperature=0.5, max_weight=7.0)
    assert weight.tolist() == pytest.approx([7.0, math.exp(-2.0)])
    assert loss.item() == pytest.approx((7.0 * 1.0 + math.exp(-2.0) * 5.0) / 3)
    loss.backward()
    assert advantage.grad is None
    assert logprob.grad is not None
    assert logprob.grad.tolist() == pytest.approx([-7 / 3, -math.exp(-2) / 3, -math.exp(-2) / 3])


def actions_of(logits: Tensor) -> list[tuple[tuple[int, ...], Tensor]]:
    """All actions of one or two tokens (0 ends, 1 goes on) or three, with the log-probabilities of their tokens."""
    logprobs = logits.log_softmax(-1)  # (depth, 2)
    found = []
    for length in (1, 2, 3):
        for last in (0, 1) if length == 3 else (0,):
            tokens = (*[1] * (length - 1), last)
            found.append((tokens, torch.stack([logprobs[depth, token] for depth, token in enumerate(tokens)])))
    return found


def test_the_policy_gradient_is_exact() -> None:
    """In expectation over all actions, at a ratio of 1: the gradient of the expected advantage."""
    torch.manual_seed(0)
    logits = torch.randn(3, 2, requires_grad=True)
    worth = torch.tensor([1.0, -2.0, 0.5, 3.0])
    probabilities = torch.stack([logprob.sum().exp() for _, logprob in actions_of(logits)])
    assert probabilities.sum().item() == pytest.approx(1.0)
    (exact,) = torch.autograd.grad((probabilities * worth).sum(), logits)
    estimate = torch.zeros_like(logits)
    for index, (tokens, logprob) in enumerate(actions_of(logits)):
        turns = turns_of(torch.tensor([*[False] * (len(tokens) - 1), True]))
        loss, ratio = clipped_actor_loss(logprob, logprob.detach(), turns, worth[index : index + 1], clip=0.2)
        assert ratio.item() == 1.0
        (gradient,) = torch.autograd.grad(loss * len(tokens), logits, retain_graph=True)  # a sum, not a mean
        estimate -= probabilities[index].detach() * gradient
    torch.testing.assert_close(estimate, exact)


@pytest.mark.parametrize(("advantage", "ratio"), product((2.0, -2.0), (0.5, 1.0, 1.5)))
def test_an_action_gains_nothing_by_a_ratio_beyond_the_clip(advantage: float, ratio: float) -> None:
    """The ratio is that of the whole action: neither token alone is beyond."""
    logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    old = logprob.detach() - math.log(ratio) / 2
    turns = turns_of(torch.tensor([False, True]))
    loss, found = clipped_actor_loss(logprob, old, turns, torch.tensor([advantage]), clip=0.3)
    assert found.item() == pytest.approx(ratio)
    loss.backward()
    assert logprob.grad is not None
    free = (advantage > 0 and ratio < 1.3) or (advantage < 0 and ratio > 0.7)
    expected = -advantage * ratio / 2 if free else 0.0
    assert logprob.grad.tolist() == pytest.approx([expected, expected])


def test_the_loss_of_a_round_by_hand() -> None:
    """An action of two tokens that is now twice as likely; of its two target Qs the lower one counts."""
    values = TurnValues(
        q=[torch.tensor([1.0]), torch.tensor([3.0])],
        target_q=[torch.tensor([4.0]), torch.tensor([6.0])],
        value=torch.tensor([2.0]),
        next_value=torch.tensor([10.0]),
    )
    reward = torch.tensor([0.25, 0.75])
    logprob = torch.tensor([-1.0, -2.0])
    turns = turns_of(torch.tensor([False, True]))
    terms = archer_loss(
        values, reward, torch.tensor([False, False]), turns, logprob, logprob - math.log(2) / 2,
        gamma=0.5, expectile=0.75, temperature=1.0, max_weight=5.0, clip=0.3,
    )  # fmt: skip
    target = 1.0 + 0.5 * 10.0
    q_loss = 0.5 * (target - 1.0) ** 2 + 0.5 * (target - 3.0) ** 2
    v_loss = 0.75 * 0.5 * (4.0 - 2.0) ** 2
    actor_loss = -1.3 * (4.0 - 2.0)  # the ratio of 2 is clipped
    found = [terms.q_loss.item(), terms.v_loss.item(), terms.actor_loss.item(), terms.loss.item()]
    by_hand = [q_loss, v_loss, actor_loss, q_loss + v_loss + actor_loss]
    assert found == pytest.approx([term / 2 for term in by_hand])


def test_nothing_but_its_own_part_is_moved_by_a_term() -> None:
    one = torch.ones(1)
    leaves = {name: torch.ones(1, requires_grad=True) for name in ("q", "target_q", "value", "next_value", "logprob")}
    values = TurnValues([leaves["q"]], [leaves["target_q"]], leaves["value"], leaves["next_value"])
    terms = archer_loss(
        values, 3 * one, torch.tensor([False]), turns_of(torch.tensor([True])), leaves["logprob"],
        gamma=0.9, expectile=0.6, temperature=1.0, max_weight=5.0, clip=0.2,
    )  # fmt: skip
    reached = {}
    for name in ("q_loss", "v_loss", "actor_loss"):
        found = torch.autograd.grad(getattr(terms, name), [*leaves.values()], retain_graph=True, allow_unused=True)
        reached[name] = [key for key, gradient in zip(leaves, found, strict=True) if gradient is not None]
    assert reached == {"q_loss": ["q"], "v_loss": ["value"], "actor_loss": ["logprob"]}


def test_a_batch_without_action_tokens_is_harmless() -> None:
    module = ArCHer(architecture=TINY)
    found = module.losses(batch_of(DATA).without_targets())
    assert [term.item() for term in found] == [0.0] * len(found)


# -- the module --------------------------------------------------------------------------------------------------


def make(bc_run: str, **arguments: Any) -> ArCHer:
    return ArCHer(**{"pretrained": bc_run, "lr": 1e-2, "lr_schedule": "constant", "warmup_steps": 0, **arguments})


def offline(path: Path, **arguments: Any) -> MazeDataModule:
    return MazeDataModule("maze_fo", path=str(path), **{"batch_size": 16, "val_fraction": 0.1, **arguments})


def changed(module: LanguageModule, before: dict[str, Tensor]) -> set[str]:
    return {name.split(".")[0] for name, p in module.named_parameters() if not torch.equal(p, before[name])}


def weights(module: LanguageModule) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def test_actor_and_critic_share_no_parameter(bc_run: str) -> None:
    module = make(bc_run)
    parts = [{p.data_ptr() for p in part.parameters()} for part in (module.model, module.critic, module.target_critic)]
    assert all(not one & other for one, other in ((parts[0], parts[1]), (parts[0], parts[2]), (parts[1], parts[2])))
    trained = {id(p) for group in _optimizer(module).param_groups for p in group["params"]}
    assert trained == {id(p) for part in (module.model, module.critic) for p in part.parameters()}
    for ours, theirs in zip(module.critic.trunk.parameters(), module.model.base_model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def _optimizer(module: LanguageModule) -> torch.optim.Optimizer:
    module._trainer = type("T", (), {"estimated_stepping_batches": 10})()  # type: ignore[assignment]
    return module.configure_optimizers()["optimizer"]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_actor_waits_for_exactly_so_many_optimizer_steps(
    accumulate: int, bc_run: str, data_path: Path, tmp_path: Path
) -> None:
    for steps, learned in ((2, {"critic", "target_critic"}), (3, {"critic", "target_critic", "model"})):
        module = make(bc_run, critic_only_steps=2, weight_decay=0.1)
        before = weights(module)
        trainer(tmp_path, steps, accumulate_grad_batches=accumulate).fit(module, offline(data_path))
        assert changed(module, before) == learned


def test_the_wait_and_all_else_goes_on_where_a_run_was_saved(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    def go(root: Path, steps: int, **more: Any) -> ArCHer:
        torch.manual_seed(len(more))
        module = make(bc_run, critic_only_steps=4)
        trainer(root, steps, [KeepLast()]).fit(module, offline(data_path), **more)
        return module

    whole = go(tmp_path / "whole", 6)
    go(tmp_path / "halves", 2)
    start = {f"model.{name}": p for name, p in load_module(tmp_path / "halves").model.named_parameters()}
    resume = {"ckpt_path": tmp_path / "halves" / "last.ckpt", "weights_only": True}
    waiting = go(tmp_path / "halves", 4, **resume)
    assert all(torch.equal(p, start[name]) for name, p in waiting.named_parameters() if name in start)
    resume["ckpt_path"] = tmp_path / "halves" / "last.ckpt"
    halves = go(tmp_path / "halves", 6, **resume)
    for (name, ours), theirs in zip(whole.state_dict().items(), halves.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("accumulate", [1, 2])
def test_target_networks_move_once_per_optimizer_step(
    accumulate: int, bc_run: str, data_path: Path, tmp_path: Path
) -> None:
    module = make(bc_run, lr=0.0, polyak=0.3)
    with torch.no_grad():
        for p in module.target_critic.parameters():
            p.add_(1.0)
    trainer(tmp_path, 2, accumulate_grad_batches=accumulate).fit(module, offline(data_path))
    for target, online in zip(module.target_critic.parameters(), module.critic.parameters(), strict=True):
        torch.testing.assert_close(target, online + 0.7**2, atol=1e-5, rtol=1e-5)
    assert module.train().training and not module.target_critic.training


def test_a_run_logs_its_terms_and_plays_again(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    module = make(bc_run)
    trainer(tmp_path, 4, [KeepLast()], limit_val_batches=2).fit(module, offline(data_path))
    with (tmp_path / "metrics.csv").open() as file:
        keys = {key for row in csv.DictReader(file) for key, value in row.items() if value}
    terms = ("q_loss", "v_loss", "actor_loss", "q_mean", "v_mean", "advantage", "weight_mean", "weight_max")
    assert {f"archer/{term}" for term in terms} <= keys
    again = load_module(tmp_path / "last.ckpt")
    folder = load_module(tmp_path / "last")
    for (name, ours), theirs in zip(module.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in folder.value_state_dict().items())
    played = [
        evaluate(m.eval().policy(max_new_tokens=4), "maze_fo", 2, env=ENV).episodes for m in (module, again, folder)
    ]
    assert [e.actions for e in played[0]] == [e.actions for e in played[1]] == [e.actions for e in played[2]]
    assert "**not** the one" not in (tmp_path / "last" / "README.md").read_text()
    assert {name.split(".")[1] for name in exported_values(str(tmp_path / "last"))} == {"trunk", "q_heads", "v_head"}


def test_it_goes_on_online_with_the_critic_of_an_offline_run(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    trainer(tmp_path / "archer", 3, [KeepLast()]).fit(make(bc_run), offline(data_path))
    ended = load_module(tmp_path / "archer")
    module = make(str(tmp_path / "archer"))
    for name, tensor in ended.value_state_dict().items():
        assert torch.equal(tensor, module.state_dict()[name]), name
        assert torch.equal(tensor, module.state_dict()[f"target_{name}"]), name
    with pytest.raises(UserError, match=r"ILQL goes on from values of its own kind; .* has others"):
        ILQL(pretrained=str(tmp_path / "archer"))
    before = weights(module)
    fit(module, rounds(keep_replay=True, offline=True, path=str(data_path), batches=3), tmp_path / "online", 6)
    assert changed(module, before) == {"model", "critic", "target_critic"}


def test_the_ratios_of_a_fresh_round_are_one(bc_run: str, tmp_path: Path) -> None:
    """The log-probabilities are those that were sampled from; then the policy moves away."""
    module = make(bc_run, actor_loss="pg", head_bias=-5.0)
    fit(module, rounds(keep_replay=True, epochs=2), tmp_path, 8)
    with (tmp_path / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["archer/weight_max"]]
    assert [float(rows[0][f"archer/weight_{name}"]) for name in ("mean", "max")] == pytest.approx([1.0, 1.0], abs=1e-5)
    assert abs(float(rows[-1]["archer/weight_max"]) - 1.0) > 1e-4


def test_what_was_not_sampled_has_no_ratio(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    module = make(bc_run, actor_loss="pg")
    with pytest.raises(UserError, match="actor_loss pg learns from what it plays"):
        trainer(tmp_path, 1).fit(module, offline(data_path))
    with pytest.raises(UserError, match="offline must be False"):
        fit(module, rounds(keep_replay=True, offline=True, path=str(data_path)), tmp_path, 1)


def test_settings_that_do_not_go_together_are_refused(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown actor_loss 'sac'; known: awr, pg"):
        make(bc_run, actor_loss="sac")
    with pytest.raises(UserError, match="leave out lora"):
        make(bc_run, lora={"r": 2})
    with pytest.raises(UserError, match="actor_loss pg cannot train in mixed precision"):
        fit(make(bc_run, actor_loss="pg"), rounds(), tmp_path, 1, settings={"precision": "bf16-mixed"})
    stale = RolloutCollection(episodes=4, max_staleness=1)
    with pytest.raises(UserError, match=r"ArCHer compares with the policy that played .* max_staleness must be 0"):
        fit(make(bc_run, actor_loss="pg"), rounds(), tmp_path, 1, playing=stale)
    with pytest.raises(UserError, match="ArCHer's target networks to nothing; use bf16-mixed"):
        trainer(tmp_path, 1, precision="bf16-true").fit(make(bc_run), offline(data_path))
