"""PPO's mathematics against numbers worked by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lmrl.errors import UserError
from lmrl.losses import (
    KLController,
    PPOColumns,
    TokenLogprobs,
    clipped_policy_loss,
    explained_variance,
    first_of_turn,
    gae,
    k3,
    kl_penalty,
    loss_weights,
    ppo_loss,
    sum_over_turn,
    token_logprobs,
    truncated_policy_loss,
    whiten,
    with_kl_penalty,
)

# Tokens o o a a o a a o and V at every position; states are the positions before the action tokens 2, 3, 5, 6.
VALUES = np.array([0.0, 0.5, 0.4, 0.3, 0.2, 0.1, -0.1, 0.7])
STATES = [1, 2, 4, 5]
REWARDS = [0.0, -1.0, 0.0, 2.0]
DONE = [-0.3662528, -0.31424, 1.258, 1.9]
CUT = [-0.1311066, 0.012352, 1.7116, 2.53]


@pytest.mark.parametrize(("end", "expected"), [(0.0, DONE), (0.7, CUT)])
def test_advantages_of_two_turns(end: float, expected: list[float]) -> None:
    advantages = gae(REWARDS, VALUES[STATES], end, 0.9, 0.8)
    np.testing.assert_allclose(advantages, expected, atol=1e-7)
    targets = {0.0: [0.1337472, 0.08576, 1.458, 2.0], 0.7: [0.3688934, 0.412352, 1.9116, 2.63]}[end]
    np.testing.assert_allclose(advantages + VALUES[STATES], targets, atol=1e-7)


def test_the_ends_of_lambda() -> None:
    values = VALUES[STATES]
    np.testing.assert_allclose(gae(REWARDS, values, 0.0, 0.9, 1.0) + values, [0.558, 0.62, 1.8, 2.0])
    deltas = [0.9 * 0.4 - 0.5, -1.0 + 0.9 * 0.2 - 0.4, 0.9 * 0.1 - 0.2, 2.0 - 0.1]
    np.testing.assert_allclose(gae(REWARDS, values, 0.0, 0.9, 0.0), deltas)
    np.testing.assert_allclose(gae(REWARDS, values, 0.0, 1.0, 1.0), np.array([1.0, 1.0, 2.0, 2.0]) - values)


def test_three_steps_by_hand() -> None:
    np.testing.assert_allclose(gae([0, 0, 1], [0.5, 0.2, -0.1], 0.3, 0.9, 0.95), [0.43355425, 0.88135, 1.37])


def test_a_chain_is_its_pieces_put_together() -> None:
    """The chain has 3 + 4 tokens: the second piece's first state is the end of the first, and its tail is passed on."""
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=7)
    values = rng.normal(size=7)
    whole = gae(rewards, values, 0.5, 0.9, 0.8)
    last = gae(rewards[3:], values[3:], 0.5, 0.9, 0.8)
    first = gae(rewards[:3], values[:3], values[3], 0.9, 0.8) + last[0] * (0.9 * 0.8) ** np.array([3, 2, 1])
    np.testing.assert_allclose(np.concatenate([first, last]), whole)


def test_no_tokens_no_advantages() -> None:
    assert gae([], [], 0.3, 0.9, 0.8).shape == whiten([]).shape == (0,)


def test_whitening() -> None:
    np.testing.assert_allclose(whiten([1, 2, 3, 4]), [-1.34164, -0.44721, 0.44721, 1.34164], atol=1e-5)
    assert whiten([5.0, 5.0]).tolist() == [0.0, 0.0]
    values = np.random.default_rng(0).normal(size=50)
    assert np.argsort(whiten(values)).tolist() == np.argsort(values).tolist()


def test_explained_variance() -> None:
    assert explained_variance([1, 2, 3], [1, 2, 3]) == 1.0
    assert explained_variance([7, 7, 7], [1, 2, 3]) == pytest.approx(0.0)
    assert math.isnan(explained_variance([1, 2], [3, 3]))


# -- the KL penalty ---------------------------------------------------------------------------------------------------


def test_the_same_policy_costs_nothing() -> None:
    rewards = [0.0, -1.0]
    logprob = [-0.3, -2.0]
    assert with_kl_penalty(rewards, logprob, logprob, 0.5).tolist() == rewards
    assert k3(np.zeros(3)).tolist() == [0.0] * 3


def test_the_price_of_a_likelier_token() -> None:
    changed = with_kl_penalty([0.0, -1.0], [math.log(0.5), -2.0], [math.log(0.25), -2.0], 0.1)
    np.testing.assert_allclose(changed, [-0.1 * 0.69315, -1.0], atol=1e-6)
    assert k3(math.log(2)) == pytest.approx(1 - math.log(2))


def test_k3_estimates_the_divergence() -> None:
    """The mean under the sampling policy of k3(start - now) is the KL itself."""
    now = np.array([0.7, 0.2, 0.1])
    start = np.array([0.3, 0.3, 0.4])
    exact = float((now * np.log(now / start)).sum())
    assert float((now * k3(np.log(start / now))).sum()) == pytest.approx(exact)
    assert float((now * k3(np.log(now / start))).sum()) != pytest.approx(exact, rel=0.05)


def test_the_controller() -> None:
    adaptive = KLController(target=6.0, horizon=1e4)
    raised = adaptive.updated(0.001, kl=60.0, samples=32)
    assert raised == pytest.approx(0.00100064)
    assert adaptive.updated(raised, kl=0.0, samples=32) == pytest.approx(raised * (1 - 0.00064))
    assert adaptive.updated(0.001, kl=6.6, samples=32) == pytest.approx(0.001 * (1 + 0.1 * 32 / 1e4))  # less than 0.2
    assert KLController().updated(0.001, kl=60.0, samples=32) == 0.001
    assert KLController(target=0.01, horizon=100).updated(0.1, kl=0.0, samples=512) == pytest.approx(
        0.01
    )  # not negative
    for wrong in ({"target": 6.0}, {"horizon": 1.0}, {"target": -1.0, "horizon": 1.0}):
        with pytest.raises(UserError, match="kl_target"):
            KLController(**wrong)


# -- the loss ---------------------------------------------------------------------------------------------------------


def loss_of(ratio: float, advantage: float) -> tuple[float, float]:
    """Return the policy loss of one token and its derivative by the log of the ratio."""
    rho = torch.tensor([ratio], requires_grad=True)
    old = PPOColumns(torch.zeros(1), torch.zeros(1), torch.tensor([advantage]), torch.zeros(1))
    now = TokenLogprobs(rho.log(), torch.zeros(1))
    settings = {"clip": 0.2, "clip_high": 0.3, "value_clip": 0.2, "value_weight": 1.0}
    loss = ppo_loss(now, torch.zeros(1), old, **settings).policy_loss  # type: ignore[arg-type]
    (gradient,) = torch.autograd.grad(loss, rho)
    return loss.item(), gradient.item() * ratio  # by the log of the ratio


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 1.0, (-1.3, 0.0)), (1.5, -1.0, (1.5, 1.5)), (0.5, 1.0, (-0.5, -0.5)), (0.5, -1.0, (0.8, 0.0))],
)
def test_the_ratio_is_clipped(ratio: float, advantage: float, expected: tuple[float, float]) -> None:
    assert loss_of(ratio, advantage) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "old_value", "target", "expected"),
    [
        (1.0, 0.0, 2.0, (1.62, 0.0)),
        (-1.0, 0.0, -2.0, (1.62, 0.0)),
        (1.0, 0.0, 0.1, (0.405, 0.9)),
        (0.1, 0.0, 2.0, (1.805, -1.9)),
    ],
)
def test_the_value_is_clipped(value: float, old_value: float, target: float, expected: tuple[float, float]) -> None:
    v = torch.tensor([value], requires_grad=True)
    old = PPOColumns(torch.zeros(1), torch.tensor([old_value]), torch.zeros(1), torch.tensor([target]))
    loss = ppo_loss(TokenLogprobs(torch.zeros(1), torch.zeros(1)), v, old, clip=0.2, value_clip=0.2, value_weight=1.0)
    (gradient,) = torch.autograd.grad(loss.value_loss, v)
    assert (loss.value_loss.item(), gradient.item()) == pytest.approx(expected)


def problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 6, generator=g, requires_grad=True)
    invalid = torch.tensor([False, False, False, False, False, True])
    return logits, torch.tensor([0, 1, 1, 3]), torch.tensor([2, 0, 4, 1]), invalid


def test_the_first_step_is_the_policy_gradient() -> None:
    logits, state, token, invalid = problem()
    now = token_logprobs(logits, state, token, invalid)
    advantage = torch.tensor([0.5, -1.0, 2.0, 0.1])
    old = PPOColumns(now.logprob.detach(), torch.ones(4), advantage, torch.ones(4))
    loss = ppo_loss(now, torch.ones(4), old, clip=0.2, value_clip=0.2, value_weight=0.5)
    assert loss.policy_loss.item() == pytest.approx(-advantage.mean().item())
    assert (loss.approx_kl.item(), loss.clipfrac.item(), loss.value_loss.item()) == (0.0, 0.0, 0.0)
    assert loss.ratio.item() == 1.0
    (ours,) = torch.autograd.grad(loss.loss, logits, retain_graph=True)
    (expected,) = torch.autograd.grad(-(advantage * now.logprob).mean(), logits)
    torch.testing.assert_close(ours, expected)
    assert not ours[2].any()  # nothing was said there
    assert not ours[:, 5].any()  # and token 5 is never said


def test_terms_add_up() -> None:
    logits, state, token, invalid = problem()
    now = token_logprobs(logits, state, token, invalid)
    old = PPOColumns(now.logprob.detach() - 0.1, torch.zeros(4), torch.ones(4), torch.ones(4))
    loss = ppo_loss(now, torch.full((4,), 0.5), old, clip=0.05, value_clip=None, value_weight=2.0, entropy_weight=0.3)
    assert loss.value_loss.item() == pytest.approx(0.125)
    assert loss.clipfrac.item() == 1.0
    assert loss.approx_kl.item() == pytest.approx(math.exp(0.1) - 1 - 0.1, rel=1e-4)
    assert loss.ratio.item() == pytest.approx(math.exp(0.1))
    assert loss.loss.item() == pytest.approx((loss.policy_loss + 2 * loss.value_loss - 0.3 * loss.entropy).item())


def test_shares_of_clipped_tokens_by_the_sign_of_their_advantage() -> None:
    """Ratios of .7, .7, 1.5 and 1 with advantages of both signs: a ratio is clipped where moving on would pay."""
    logits, state, token, invalid = problem()
    now = token_logprobs(logits, state, token, invalid)
    old = now.logprob.detach() - torch.tensor([0.7, 0.7, 1.5, 1.0]).log()
    for advantage, low, high in (((-1.0, 1.0, -1.0, 1.0), 0.25, 0.0), ((1.0, -1.0, 1.0, 1.0), 0.25, 0.25)):
        terms = clipped_policy_loss(now, old, torch.tensor(advantage), clip=0.2)
        assert (terms.clipfrac.item(), terms.clip_ratio_low.item(), terms.clip_ratio_high.item()) == (0.75, low, high)
    grad = torch.autograd.grad(terms.policy_loss, now.logprob)[0]
    assert (grad == 0.0).tolist() == [False, True, True, False]  # exactly the quarter below and the quarter above


def test_what_is_never_said_has_no_part_in_the_distribution() -> None:
    logits, state, token, invalid = problem()
    now = token_logprobs(logits, state, token, invalid)
    allowed = torch.distributions.Categorical(logits=logits[state][:, :5])
    torch.testing.assert_close(now.logprob, allowed.log_prob(token))
    torch.testing.assert_close(now.entropy, allowed.entropy())


def test_no_action_tokens_give_zero() -> None:
    def terms(device: str) -> list[Tensor]:
        empty = torch.zeros(0, device=device)
        old = PPOColumns(empty, empty, empty, empty)
        loss = ppo_loss(TokenLogprobs(empty, empty), empty, old, clip=0.2, value_clip=0.2, value_weight=1.0)
        return [term for term in loss if term is not None]

    found = [term.item() for term in terms("cpu")]
    assert found == [0.0] * (len(found) - 1) + [1.0]
    assert all(term.is_meta for term in terms("meta")), "all terms are where the loss is"


def test_the_logged_kl_is_that_of_tokens_whatever_is_clipped() -> None:
    old = torch.tensor([-1.0, -2.0, -0.5])
    now = TokenLogprobs(torch.tensor([-1.2, -1.5, -0.6]), torch.zeros(3))
    expected = float((torch.exp(now.logprob - old) - 1.0 - (now.logprob - old)).mean())
    for turn_end in (None, torch.tensor([False, True, True])):
        clipped = clipped_policy_loss(now, old, torch.ones(3), clip=0.2, turn_end=turn_end)
        cut = truncated_policy_loss(now, old, torch.ones(3), cap=2.0, clip=0.2, turn_end=turn_end)
        assert float(clipped.approx_kl) == pytest.approx(expected) == float(cut.approx_kl)


def test_a_turn_begins_with_its_first_token_and_adds_up_all() -> None:
    turn_end = torch.tensor([False, True, True, False, False, True])
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert first_of_turn(values, turn_end).tolist() == [1.0, 1.0, 3.0, 4.0, 4.0, 4.0]
    assert sum_over_turn(values, turn_end).tolist() == [3.0, 3.0, 3.0, 15.0, 15.0, 15.0]
    assert first_of_turn(values[:0], turn_end[:0]).tolist() == sum_over_turn(values[:0], turn_end[:0]).tolist() == []


def test_with_turns_as_steps_v_is_that_of_where_an_action_begins() -> None:
    turn_end = torch.tensor([False, True, True])
    now = TokenLogprobs(torch.zeros(3), torch.zeros(3))
    weight = torch.from_numpy(loss_weights([[2, 1]], "turn-mean")).float()
    old = PPOColumns(torch.zeros(3), torch.zeros(3), torch.zeros(3), torch.tensor([2.0, 2.0, 3.0]), weight)
    value = torch.tensor([1.0, 100.0, 5.0])
    found = ppo_loss(now, value, old, clip=0.2, value_clip=None, value_weight=1.0, turn_end=turn_end)
    assert found.value_loss.item() == pytest.approx(0.5 * ((1 - 2) ** 2 + (5 - 3) ** 2) / 2)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", [1, 1, 1, 1]),
        ("turn-mean", [4 / 6, 4 / 6, 4 / 3, 4 / 3]),
        ("seq-mean-token-sum", [2, 2, 2, 2]),
        ("seq-mean-token-mean", [2 / 3, 2 / 3, 2 / 3, 2]),
        ("seq-mean-turn-sum", [1, 1, 2, 2]),
    ],
)
def test_weights_of_tokens(mode: str, expected: list[float]) -> None:
    """Two episodes: the first has actions of two tokens and of one, the second has an action of one token."""
    assert loss_weights([[2, 1], [1]], mode).tolist() == pytest.approx(expected)
    assert loss_weights([], mode).tolist() == []


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("k1", [math.log(2), -math.log(2)]),
        ("k2", [math.log(2) ** 2 / 2, math.log(2) ** 2 / 2]),
        ("k3", [0.5 - 1 + math.log(2), 2 - 1 - math.log(2)]),
    ],
)
def test_the_kl_penalty_of_a_token_that_is_twice_and_half_as_likely(kind: str, expected: list[float]) -> None:
    penalty = kl_penalty(torch.tensor([0.5, 0.25]).log(), torch.tensor([0.25, 0.5]).log(), kind)
    assert penalty.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_the_gradient_of_the_kl_penalty_is_that_of_the_kl(kind: str) -> None:
    """The gradient of k2 is that of the KL everywhere, the gradient of k3 near the reference."""
    theta = torch.tensor([0.3, -0.2, 0.1], requires_grad=True)
    ref = theta.detach() + (torch.tensor([0.5, -0.4, 0.2]) if kind == "k2" else torch.tensor([1e-3, -2e-3, 1e-3]))
    logprob = theta.log_softmax(-1)
    ref_logprob = ref.log_softmax(-1)
    (exact,) = torch.autograd.grad((logprob.exp() * (logprob - ref_logprob)).sum(), theta, retain_graph=True)
    (found,) = torch.autograd.grad((logprob.detach().exp() * kl_penalty(logprob, ref_logprob, kind)).sum(), theta)
    torch.testing.assert_close(found, exact, atol=2e-6, rtol=1e-3)
