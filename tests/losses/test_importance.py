"""Truncated importance weights: of tokens, of whole actions, and where in the losses they stand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lmrl.losses import (
    GRPOColumns,
    PPOColumns,
    TokenLogprobs,
    clipped_policy_loss,
    grpo_loss,
    importance_weights,
    ppo_loss,
    token_logprobs,
    truncated_policy_loss,
)

PI = torch.tensor([0.5, 0.3, 0.2]).log()
MU = torch.tensor([0.2, 0.3, 0.5]).log()
ADVANTAGE = torch.tensor([1.0, -2.0, 0.5])


def test_weights_of_tokens() -> None:
    assert importance_weights(PI, MU, 2.0).tolist() == pytest.approx([2.0, 1.0, 0.4])
    assert importance_weights(PI, MU, 3.0).tolist() == pytest.approx([2.5, 1.0, 0.4])
    assert importance_weights([0.0], [-2000.0], 2.0).tolist() == pytest.approx([2.0]), "e^2000 is no number"
    assert importance_weights([], [], 2.0).tolist() == importance_weights([], [], 2.0, []).tolist() == []


def test_weights_of_whole_actions() -> None:
    """Ratios of 2, 3 | 0.5, 4, 0.25 | 1: products of 6, 0.5 and 1."""
    ratios = torch.tensor([2.0, 3.0, 0.5, 4.0, 0.25, 1.0], dtype=torch.float64)
    found = importance_weights(ratios.log(), torch.zeros(6), 5.0, [2, 3, 1])
    assert found.tolist() == pytest.approx([5.0, 5.0, 0.5, 0.5, 0.5, 1.0])


@pytest.mark.parametrize("cap", [10.0, 2.0])
def test_what_another_sampler_drew_gives_the_gradient_of_the_policy(cap: float) -> None:
    """In expectation over ``mu``; where a weight is capped, of so much of the policy's probability as is left."""
    theta = PI.clone().requires_grad_()
    tokens = torch.arange(3)
    now = token_logprobs(theta[None], torch.zeros(3, dtype=torch.long), tokens, torch.zeros(3, dtype=torch.bool))
    importance = torch.from_numpy(importance_weights(now.logprob.detach(), MU, cap)).float()
    # Each token counts as often as ``mu`` draws it: three tokens, so the mean is a third of the sum.
    often = 3.0 * MU.exp()
    terms = clipped_policy_loss(
        now, now.logprob.detach(), ADVANTAGE, clip=0.2, weight=often, importance=importance.float()
    )
    (found,) = torch.autograd.grad(terms.policy_loss, theta, retain_graph=True)
    counted = torch.minimum(PI.exp(), cap * MU.exp())
    (exact,) = torch.autograd.grad(-(counted * ADVANTAGE * now.logprob).sum(), theta)
    torch.testing.assert_close(found, exact)


@pytest.mark.parametrize("cap", [10.0, 2.0])
def test_weights_of_a_step_give_the_gradient_of_the_policy_as_it_is_then(cap: float) -> None:
    theta = PI.clone().requires_grad_()
    now = token_logprobs(theta[None], torch.zeros(3, dtype=torch.long), torch.arange(3), torch.zeros(3).bool())
    terms = truncated_policy_loss(now, MU, ADVANTAGE, cap=cap, clip=10.0, weight=3.0 * MU.exp())
    (found,) = torch.autograd.grad(terms.loss, theta, retain_graph=True)
    counted = torch.minimum(PI.exp(), cap * MU.exp())
    (exact,) = torch.autograd.grad(-(counted * ADVANTAGE * now.logprob).sum(), theta)
    torch.testing.assert_close(found, exact)
    assert terms.loss.item() == pytest.approx(-(counted * ADVANTAGE).sum().item(), abs=1e-6)
    assert terms.clipfrac.item() == pytest.approx(0.0 if cap == 10.0 else 1 / 3)
    assert terms.ratio.item() == pytest.approx(2.5)


def test_weights_of_a_step_are_those_of_whole_actions_where_ratios_are() -> None:
    """Ratios of 2, 3 | 0.5, 4, 0.25: products of 6, capped at 5, and 0.5."""
    log_ratio = torch.tensor([2.0, 3.0, 0.5, 4.0, 0.25]).log().requires_grad_()
    now = TokenLogprobs(log_ratio, torch.zeros(5))
    ends = torch.tensor([False, True, False, False, True])
    terms = truncated_policy_loss(now, torch.zeros(5), torch.ones(5), cap=5.0, clip=10.0, turn_end=ends)
    (found,) = torch.autograd.grad(terms.loss, log_ratio)
    # Each token of an action moves the weight of all of its tokens.
    assert found.tolist() == pytest.approx([-2 * 5.0 / 5, -2 * 5.0 / 5, *[-3 * 0.5 / 5] * 3])


def test_a_token_that_has_moved_far_enough_is_not_pushed_again() -> None:
    """Ratios of 0.7, 0.7, 0.9, 1.4, 1.4, 1.2, 3 with a clip of 0.2 downwards and of 0.3 upwards, and a cap of 2."""
    log_ratio = torch.tensor([0.7, 0.7, 0.9, 1.4, 1.4, 1.2, 3.0]).log().requires_grad_()
    advantage = torch.tensor([-1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0])
    now = TokenLogprobs(log_ratio, torch.zeros(7))
    terms = truncated_policy_loss(now, torch.zeros(7), advantage, cap=2.0, clip=0.2, clip_high=0.3)
    (found,) = torch.autograd.grad(terms.loss, log_ratio)
    assert (7 * found).tolist() == pytest.approx([0.0, -0.7, 0.9, 1.4, 0.0, -1.2, 2.0])
    shares = [terms.clipfrac, terms.clip_ratio_low, terms.clip_ratio_high]
    assert [round(7 * float(share)) for share in shares] == [3, 1, 1]


def test_with_a_cap_the_losses_of_ppo_and_grpo_truncate_weights_under_all_settings() -> None:
    """Actions of two tokens with ratios of 2 and 0.6, together 1.2, and of one token with 1.25 and with 0.85.

    The first weight is capped at 1.1. The others are 0: one is above 1.22, the other below 0.9.
    """
    now = TokenLogprobs(torch.tensor([2.0, 0.6, 1.25, 0.85]).log(), torch.zeros(4))
    old = torch.zeros(4)
    advantage = torch.tensor([1.0, 1.0, 1.0, -1.0])
    weight = torch.tensor([0.5, 0.75, 2.0, 3.0])
    settings: dict[str, Any] = {"clip": 0.1, "clip_high": 0.22, "importance_cap": 1.1, "entropy_weight": 0.0}
    settings["turn_end"] = torch.tensor([False, True, True, True])
    columns = PPOColumns(old, old, advantage, old, weight)
    ppo = ppo_loss(now, None, columns, value_clip=None, value_weight=0.0, **settings)
    grpo = grpo_loss(now, GRPOColumns(old, old, advantage, weight), kl_weight=None, kl_loss_type="k3", **settings)
    by_hand = -(0.5 + 0.75) * 1.1 / 4
    assert [ppo.loss.item(), grpo.loss.item()] == pytest.approx([by_hand, by_hand])


def policies() -> tuple[TokenLogprobs, Tensor]:
    old = torch.tensor([-1.0, -2.0, -0.5])
    return TokenLogprobs(old + torch.tensor([0.05, -0.05, 0.4]), torch.tensor([0.7, 0.8, 0.9])), old


def test_of_ppo_the_policy_loss_alone_is_weighed() -> None:
    now, old = policies()
    importance = torch.tensor([2.0, 0.5, 0.25])
    shared = (old, torch.zeros(3), ADVANTAGE, torch.ones(3))
    settings = {"clip": 0.2, "value_clip": None, "value_weight": 0.5, "entropy_weight": 0.1}
    plain, found = (
        ppo_loss(now, torch.zeros(3), old, **settings)  # type: ignore[arg-type]
        for old in (PPOColumns(*shared), PPOColumns(*shared, importance=importance))
    )
    # The third ratio, e^0.4, is above 1.2 with an advantage above 0: its loss is clipped, and then weighed.
    by_hand = -2.0 * math.exp(0.05) + 0.5 * 2.0 * math.exp(-0.05) - 0.25 * 0.5 * 1.2
    assert found.policy_loss.item() == pytest.approx(by_hand / 3)
    assert (found.value_loss, found.entropy, found.approx_kl) == (plain.value_loss, plain.entropy, plain.approx_kl)
    assert (found.loss - plain.loss).item() == pytest.approx((found.policy_loss - plain.policy_loss).item())


def test_of_grpo_the_kl_penalty_is_not_weighed() -> None:
    now, old = policies()
    ref = torch.tensor([-1.5, -1.0, -0.7])
    importance = torch.tensor([2.0, 0.5, 0.25])
    weight = torch.tensor([1.5, 1.5, 0.0])
    settings = {"clip": 0.2, "clip_high": None, "kl_loss_type": "k3", "entropy_weight": 0.1}
    columns = GRPOColumns(old, ref, ADVANTAGE, weight, importance)
    found = grpo_loss(now, columns, kl_weight=0.3, **settings)  # type: ignore[arg-type]
    policy_loss = (-1.5 * 2.0 * math.exp(0.05) + 1.5 * 0.5 * 2.0 * math.exp(-0.05)) / 3
    # The log-ratios to the reference are 0.55 and -1.05; the third token has no weight.
    kl_loss = 1.5 * (math.exp(-0.55) - 1 + 0.55 + math.exp(1.05) - 1 - 1.05) / 3
    assert (found.policy_loss.item(), found.kl_loss.item()) == pytest.approx((policy_loss, kl_loss))
    assert found.loss.item() == pytest.approx(policy_loss + 0.3 * kl_loss - 0.1 * 0.8)
    without_kl = grpo_loss(now, columns, kl_weight=None, **settings)  # type: ignore[arg-type]
    assert without_kl.loss.item() == pytest.approx(policy_loss - 0.1 * 0.8)
