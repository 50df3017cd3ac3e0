"""Each loss against a plain double loop or numbers worked by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lmrl.losses import (
    bc_loss,
    bin_means,
    bin_of,
    expectile_loss,
    gather_token_scores,
    ilql_loss,
    mc_loss,
    quantile_edges,
    returns_to_go,
    td_target,
)
from tests.helpers.cases import cases


def random_problem(states: int = 6, tokens: int = 11, vocabulary: int = 5) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(3)
    return {
        "q1": torch.randn(states, vocabulary, generator=g, requires_grad=True),
        "q2": torch.randn(states, vocabulary, generator=g, requires_grad=True),
        "target1": torch.randn(states, vocabulary, generator=g, requires_grad=True),
        "target2": torch.randn(states, vocabulary, generator=g, requires_grad=True),
        "v": torch.randn(states, generator=g, requires_grad=True),
        "next_v": torch.randn(states, generator=g, requires_grad=True),
        "state": torch.randint(states, (tokens,), generator=g),
        "next": torch.randint(states, (tokens,), generator=g),
        "token": torch.randint(vocabulary, (tokens,), generator=g),
        "reward": torch.randn(tokens, generator=g),
        "terminated": torch.rand(tokens, generator=g) < 0.3,
    }


def ilql(p: dict[str, Tensor], gamma: float = 0.9, expectile: float = 0.8, cql_weight: float = 0.3):  # type: ignore[no-untyped-def]
    at = (p["state"], p["token"])
    return ilql_loss(
        [gather_token_scores(p["q1"], *at), gather_token_scores(p["q2"], *at)],
        [gather_token_scores(p["target1"], *at).score, gather_token_scores(p["target2"], *at).score],
        p["v"][p["state"]],
        p["next_v"][p["next"]],
        p["reward"],
        p["terminated"],
        gamma=gamma,
        expectile=expectile,
        cql_weight=cql_weight,
    )


def test_ilql_equals_a_plain_loop() -> None:
    p = random_problem()
    gamma = 0.9
    tau = 0.8
    alpha = 0.3
    p = {name: tensor.detach() for name, tensor in p.items()}
    q_loss = v_loss = cql = 0.0
    for n in range(11):
        s = int(p["state"][n])
        u = int(p["token"][n])
        y = float(p["reward"][n]) + (0.0 if p["terminated"][n] else gamma * float(p["next_v"][p["next"][n]]))
        low = min(float(p["target1"][s, u]), float(p["target2"][s, u]))
        v = float(p["v"][s])
        for q in (p["q1"], p["q2"]):
            q_loss += 0.5 * (float(q[s, u]) - y) ** 2
            cql += math.log(sum(math.exp(float(x)) for x in q[s])) - float(q[s, u])
        v_loss += 0.5 * (tau if low >= v else 1 - tau) * (v - low) ** 2
    found = ilql(p)
    assert found.q_loss.item() == pytest.approx(q_loss / 11, abs=1e-5)
    assert found.v_loss.item() == pytest.approx(v_loss / 11, abs=1e-5)
    assert found.cql_loss.item() == pytest.approx(cql / 11, abs=1e-5)
    assert found.loss.item() == pytest.approx((q_loss + v_loss + alpha * cql) / 11, abs=1e-5)


def test_ilql_sends_each_gradient_only_where_it_belongs() -> None:
    p = random_problem()

    def gradients(loss: Tensor) -> dict[str, bool]:
        names = ["q1", "q2", "target1", "target2", "v", "next_v"]
        found = torch.autograd.grad(loss, [p[n] for n in names], allow_unused=True)
        return {n: g is not None and bool(g.abs().sum() > 0) for n, g in zip(names, found, strict=True)}

    assert gradients(ilql(p).q_loss) == dict(q1=True, q2=True, target1=False, target2=False, v=False, next_v=False)
    assert gradients(ilql(p).v_loss) == dict(q1=False, q2=False, target1=False, target2=False, v=True, next_v=False)
    assert gradients(ilql(p).cql_loss) == dict(q1=True, q2=True, target1=False, target2=False, v=False, next_v=False)


def test_expectile_weight_is_not_differentiated() -> None:
    value = torch.tensor([0.0, 2.0], requires_grad=True)
    expectile_loss(value, torch.tensor([1.0, 1.0]), 0.9).sum().backward()
    torch.testing.assert_close(value.grad, torch.tensor([-0.9, 0.1]))  # too low pulls nine times as hard


def test_expectile_of_one_half_is_half_the_squared_error_of_the_mean() -> None:
    value = torch.tensor([0.0, 2.0, 5.0])
    target = torch.tensor([1.0, 1.0, 5.0])
    torch.testing.assert_close(expectile_loss(value, target, 0.5), torch.tensor([0.25, 0.25, 0.0]))


def test_td_target_by_hand() -> None:
    target = td_target(torch.tensor([1.0, 2.0]), torch.tensor([10.0, 10.0]), torch.tensor([False, True]), 0.9)
    torch.testing.assert_close(target, torch.tensor([10.0, 2.0]))


def test_an_undefined_value_beyond_the_end_is_not_looked_at() -> None:
    target = td_target(torch.tensor([2.0]), torch.tensor([math.nan]), torch.tensor([True]), 0.9)
    assert target.tolist() == [2.0]


def test_returns_of_two_turns_of_three_tokens() -> None:
    found = returns_to_go([0, 0, -1, 0, 0, 1], 0.99)
    expected = (-0.02910995, -0.02940399, -0.02970100, 0.9801, 0.99, 1.0)
    assert found == pytest.approx(expected, abs=1e-8)


def test_returns_without_discount_are_suffix_sums_and_with_none_the_rewards() -> None:
    rewards = [1.0, -2.0, 3.0]
    assert returns_to_go(rewards, 1.0).tolist() == [2.0, 1.0, 3.0]
    assert returns_to_go(rewards, 0.0).tolist() == rewards


def test_returns_of_very_long_episodes_stay_finite() -> None:
    returns = returns_to_go(np.ones(20_000), 0.9)
    assert np.isfinite(returns).all()
    assert returns[0] == pytest.approx(10.0)


def test_mc_by_hand() -> None:
    scores = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    q = gather_token_scores(scores, torch.tensor([0, 1]), torch.tensor([0, 0]))
    found = mc_loss(q, torch.tensor([3.0, -1.0]), cql_weight=0.1)
    nll = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(2))) / 2
    assert found.q_loss.item() == pytest.approx((0.5 * 4 + 0.5 * 1) / 2)
    assert found.loss.item() == pytest.approx(1.25 + 0.1 * nll)


def test_bc_is_the_mean_negative_log_likelihood_of_the_tokens_said() -> None:
    logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0]], requires_grad=True)
    loss = bc_loss(logits, torch.tensor([0, 1, 0]), torch.tensor([0, 2, 1])).loss
    total = math.log(math.e**2 + 1 + math.e)
    assert loss.item() == pytest.approx(((total - 2) + math.log(3) + (total - 0)) / 3)


def test_tabular_bc_finds_the_frequencies_of_the_data() -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    state = torch.zeros(10, dtype=torch.long)
    token = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    optimizer = torch.optim.SGD([logits], lr=2.0)
    for _ in range(300):
        optimizer.zero_grad()
        bc_loss(logits, state, token).loss.backward()
        optimizer.step()
    torch.testing.assert_close(logits.softmax(-1)[0], torch.tensor([0.5, 0.3, 0.2]), atol=1e-4, rtol=0)


def test_no_action_token_gives_zero_and_not_nan() -> None:
    none = torch.zeros(0, dtype=torch.long)
    scores = torch.randn(2, 3, requires_grad=True)
    zero = torch.zeros(0)
    losses = [
        bc_loss(scores, none, none).loss,
        mc_loss(gather_token_scores(scores, none, none), zero, cql_weight=1.0).loss,
        ilql_loss(
            [gather_token_scores(scores, none, none)],
            [zero],
            zero,
            zero,
            zero,
            zero.bool(),
            gamma=0.9,
            expectile=0.7,
            cql_weight=1.0,
        ).loss,
    ]
    for loss in losses:
        assert loss.item() == 0.0
        (gradient,) = torch.autograd.grad(loss, scores, allow_unused=True)
        assert gradient is None or not gradient.abs().any()


def test_swapping_the_heads_changes_nothing() -> None:
    p = random_problem()
    swapped = {**p, "q1": p["q2"], "q2": p["q1"], "target1": p["target2"], "target2": p["target1"]}
    torch.testing.assert_close(ilql(p).loss, ilql(swapped).loss)


@cases(
    ("returns", "bins", "places", "means"),
    [
        ([4.0, 1.0, 3.0, 2.0], 2, [1, 0, 1, 0], [1.5, 3.5]),
        ([5.0, 1.0, 2.0, 3.0, 4.0], 2, [1, 0, 0, 1, 1], [1.5, 4.0]),
        ([-1.0, -1.0, -1.0, 2.0], 1, [0, 0, 0, 0], [-0.25]),
        # Three returns, about a third each: no bin is empty, and the best one does not hold the second best too.
        ([0.0] * 34 + [2.0] * 33 + [4.0] * 33, 3, [0] * 34 + [1] * 33 + [2] * 33, [0.0, 2.0, 4.0]),
        ([0.0] * 3 + [2.0] * 4 + [4.0] * 3, 3, [0] * 3 + [1] * 4 + [2] * 3, [0.0, 2.0, 4.0]),
        # One return outweighs the others, at either end and in the middle.
        ([0.0] * 8 + [1.0, 2.0], 3, [0] * 8 + [1, 2], [0.0, 1.0, 2.0]),
        ([0.0, 1.0] + [2.0] * 8, 3, [0, 1] + [2] * 8, [0.0, 1.0, 2.0]),
        ([0.0] + [1.0] * 8 + [2.0], 5, [0] + [3] * 8 + [4], {0: 0.0, 3: 1.0, 4: 2.0}),
        # Equal returns share a bin; those between are empty, and the last one never is.
        ([0.0] * 6 + [1.0] * 4, 10, [5] * 6 + [9] * 4, {5: 0.0, 9: 1.0}),
        ([7.0, 7.0], 3, [2, 2], {2: 7.0}),
    ],
)
def test_bins_hold_about_equally_many(
    returns: list[float], bins: int, places: list[int], means: list[float] | dict[int, float]
) -> None:
    values = torch.tensor(returns)
    edges = quantile_edges(values, bins)
    assert len(edges) == bins - 1 and edges.dtype == torch.float32
    assert bin_of(values, edges).tolist() == places
    wanted = dict(enumerate(means)) if isinstance(means, list) else means
    found = bin_means(values, edges).tolist()
    assert {place: mean for place, mean in enumerate(found) if mean == mean} == pytest.approx(wanted)


def test_returns_beyond_the_data_are_in_the_outer_bins() -> None:
    edges = quantile_edges(torch.arange(100.0), 4)
    assert edges.tolist() == [25.0, 50.0, 75.0]
    assert bin_of(torch.tensor([-9.0, 24.9, 25.0, 74.9, 75.0, 999.0]), edges).tolist() == [0, 0, 1, 2, 3, 3]
