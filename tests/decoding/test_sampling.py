import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lmrl.decoding.sampling import SamplingSettings, draw, process_logits, uniforms
from lmrl.errors import UserError


def logits(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


def probabilities(logprobs: Tensor) -> list[float]:
    return logprobs.exp()[0].tolist()


def test_temperature_by_hand() -> None:
    # Probabilities to the power 1 / temperature: .64 and .04 at temperature .5.
    assert probabilities(process_logits(logits(0.8, 0.2), temperature=0.5)) == pytest.approx([16 / 17, 1 / 17])
    assert probabilities(process_logits(logits(0.8, 0.2), temperature=2.0)) == pytest.approx([2 / 3, 1 / 3])


def test_greedy_puts_all_mass_on_the_largest() -> None:
    assert process_logits(logits(0.2, 0.5, 0.3), temperature=0.0).tolist() == [[-math.inf, 0.0, -math.inf]]


def test_top_k_by_hand() -> None:
    assert probabilities(process_logits(logits(0.1, 0.4, 0.3, 0.2), top_k=2)) == pytest.approx([0, 4 / 7, 3 / 7, 0])
    assert probabilities(process_logits(logits(0.1, 0.4, 0.3, 0.2), top_k=9)) == pytest.approx([0.1, 0.4, 0.3, 0.2])


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (0.39, [0, 1, 0, 0]),
        (0.41, [0, 4 / 7, 3 / 7, 0]),
        (0.71, [0, 4 / 9, 3 / 9, 2 / 9]),
        (1.0, [0.1, 0.4, 0.3, 0.2]),
        (1e-9, [0, 1, 0, 0]),
    ],
)
def test_top_p_by_hand(top_p: float, expected: list[float]) -> None:
    assert probabilities(process_logits(logits(0.1, 0.4, 0.3, 0.2), top_p=top_p)) == pytest.approx(expected)


def test_the_order_is_invalid_temperature_top_k_top_p() -> None:
    scores = logits(0.5, 0.2, 0.2001, 0.0999)
    invalid = torch.tensor([True, False, False, False])
    # Without the invalid id, top-k 2 keeps the two in the middle; flattened by the temperature, neither has 60 %.
    both = process_logits(scores, temperature=10.0, top_k=2, top_p=0.6, invalid=invalid)
    assert probabilities(both) == pytest.approx([0, 0.5, 0.5, 0], abs=1e-3)
    # Sharpened by the temperature first, the nucleus is a single token.
    one = process_logits(logits(0.5, 0.4, 0.1), temperature=0.1, top_p=0.6)
    assert probabilities(one) == pytest.approx([1, 0, 0])


def test_arithmetic_is_float32_and_normalised() -> None:
    scores = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    logprobs = process_logits(scores, temperature=0.7, top_k=20, top_p=0.9)
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs.exp().sum(-1), torch.ones(3))
    kept = logprobs > -math.inf
    expected = (scores.float() / 0.7).masked_fill(~kept, -math.inf).log_softmax(-1)
    torch.testing.assert_close(logprobs, expected)


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.2499, 1), (0.2501, 3), (1 - 2**-53, 3)])
def test_drawing_inverts_the_cumulative_distribution(uniform: float, token: int) -> None:
    logprobs = logits(0.0, 0.25, 0.0, 0.75, 0.0)
    assert draw(logprobs, torch.tensor([uniform], dtype=torch.float64)).tolist() == [token]


def test_the_largest_uniform_number_never_falls_behind_the_last_token() -> None:
    # In float32 the probabilities of these rows do not sum to 1, so u * total may round up to the total.
    logprobs = process_logits(torch.randn(2000, 30, generator=torch.Generator().manual_seed(1)), top_k=7)
    ids = draw(logprobs, torch.full((2000,), 1 - 2**-53, dtype=torch.float64))
    assert bool((logprobs.gather(1, ids[:, None]) > -math.inf).all())


def test_frequencies_follow_the_distribution() -> None:
    numbers = torch.from_numpy(uniforms(0, 0, 20_000))
    ids = draw(logits(0.5, 0.2, 0.3).expand(20_000, -1), numbers)
    assert (ids.bincount() / 20_000).tolist() == pytest.approx([0.5, 0.2, 0.3], abs=0.012)


def test_uniforms_belong_to_seed_and_turn() -> None:
    first = uniforms(7, 3, 4)
    assert np.array_equal(first, uniforms(7, 3, 4))
    assert np.array_equal(first[:2], uniforms(7, 3, 2))
    others = [uniforms(*key, 4) for key in ((7, 4), (8, 3), (3, 7), (-7, 3), (2**40, 3))]
    assert len({tuple(numbers) for numbers in (first, *others)}) == 6
    assert all(0 <= number < 1 for numbers in others for number in numbers)


def test_no_global_generator_is_touched() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    draw(logits(0.5, 0.5), torch.from_numpy(uniforms(1, 2, 1)))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"temperature": -0.1}, "temperature must be at least 0, got -0.1"),
        ({"top_k": -1}, "top_k must be at least 0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
    ],
)
def test_settings_outside_their_range(setting: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SamplingSettings(**setting)
