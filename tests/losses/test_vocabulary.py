"""Scores in pieces are those of the whole table, gradients too, and the table is never kept."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from benchmarks.vocabulary import policy_batch
from lmrl.losses import (
    LinearScores,
    RowScores,
    TokenLogprobs,
    TokenScores,
    gather_scores,
    gather_token_scores,
    linear_scores,
    row_scores,
    token_logprobs,
    token_scores,
)
from lmrl.models.heads import ValueHead
from lmrl.modules import GRPO, PPO
from lmrl.modules.policy_gradient import PolicyGradient

STATES = 8
WIDTH = 6
WORDS = 23
STATE = torch.tensor([0, 3, 3, 4, 0, 1, 3])
TOKEN = torch.tensor([22, 0, 7, 8, 22, 15, 0])


@pytest.fixture(params=["words", "states"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Four words at a time as on a CPU, or up to three states at a time as on a GPU, whatever the size."""
    by: str = request.param
    monkeypatch.setattr(token_scores, "_MAX_TABLE_SCORES", 0)
    monkeypatch.setattr(token_scores, "_WORD_PIECE_SCORES", 1)
    monkeypatch.setattr(token_scores, "_MIN_PIECE_WORDS", 4)
    monkeypatch.setattr(token_scores, "_STATE_PIECE_BYTES", 3 * 12 * WORDS)
    monkeypatch.setattr(token_scores, "_by_states", lambda device: by == "states")
    return by


def factors(bias: bool = True) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = [(STATES, WIDTH), (WORDS, WIDTH), *([(WORDS,)] if bias else [])]
    return [(3 * torch.randn(shape, generator=g)).requires_grad_() for shape in shapes]


def assert_near(found: Tensor | None, expected: Tensor | None, share: float) -> None:
    """Within a share of the largest number: what rounding of half precision leaves."""
    assert found is not None and expected is not None
    torch.testing.assert_close(found.float(), expected, atol=share * expected.abs().max().item(), rtol=0)


def objective(found: TokenScores) -> Tensor:
    """Every token pulls with its own weight, at its score and at its likelihood."""
    weight = torch.linspace(-1.0, 2.0, len(TOKEN))
    return (weight * found.nll).sum() + (weight.flip(0) * found.score.square()).sum()


@pytest.mark.parametrize("bias", [True, False])
def test_pieces_give_the_numbers_and_gradients_of_the_table(pieces: str, bias: bool) -> None:
    ours = factors(bias)
    theirs = factors(bias)
    table = torch.nn.functional.linear(*theirs)
    expected = gather_token_scores(table, STATE, TOKEN)
    scores = linear_scores(*ours, *([] if bias else [None]))
    assert isinstance(scores, LinearScores)
    found = gather_token_scores(scores, STATE, TOKEN)
    torch.testing.assert_close(found.score, expected.score)
    torch.testing.assert_close(found.nll, expected.nll)
    torch.testing.assert_close(gather_scores(scores, STATE, TOKEN), gather_scores(table, STATE, TOKEN))
    objective(found).backward()
    objective(expected).backward()
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left.grad, right.grad, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_pieces_of_scaled_and_capped_scores_give_the_numbers_and_gradients_of_the_table(
    pieces: str, bias: bool
) -> None:
    ours = factors(bias)
    theirs = factors(bias)
    table = 4.0 * torch.tanh(0.25 * torch.nn.functional.linear(*theirs) / 4.0)
    expected = gather_token_scores(table, STATE, TOKEN)
    scores = linear_scores(*ours, *([] if bias else [None]), scale=0.25, cap=4.0)
    assert isinstance(scores, LinearScores)
    found = gather_token_scores(scores, STATE, TOKEN)
    torch.testing.assert_close(found.score, expected.score)
    torch.testing.assert_close(found.nll, expected.nll)
    torch.testing.assert_close(gather_scores(scores, STATE, TOKEN), gather_scores(table, STATE, TOKEN))
    torch.testing.assert_close(scores.table(slice(None)), table)
    objective(found).backward()
    objective(expected).backward()
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left.grad, right.grad, atol=1e-4, rtol=1e-5)


def test_small_tables_are_scaled_and_capped_too() -> None:
    table = torch.nn.functional.linear(*factors())
    found = linear_scores(*factors(), scale=0.25, cap=4.0)
    torch.testing.assert_close(found, 4.0 * torch.tanh(0.25 * table / 4.0))


@pytest.mark.parametrize("learning", [(0,), (0, 1), (0, 2)], ids=["hidden", "and weight", "and bias"])
@pytest.mark.parametrize("policy", [False, True])
def test_frozen_factors_get_no_gradient(pieces: str, learning: tuple[int, ...], policy: bool) -> None:
    """Those of the others are as if all learned."""
    found = []
    for learns in (learning, (0, 1, 2)):
        parts = [part.requires_grad_(index in learns) for index, part in enumerate(factors())]
        scores = LinearScores(*parts)
        loss = objective(gather_token_scores(scores, STATE, TOKEN))
        if policy:
            loss = policy_objective(token_logprobs(scores, STATE, TOKEN, NEVER))
        loss.backward()
        found.append([part.grad for part in parts])
    for index, (some, every) in enumerate(zip(*found, strict=True)):
        assert (some is not None) == (index in learning)
        if some is not None:
            torch.testing.assert_close(some, every)


def test_nothing_of_the_size_of_the_table_is_kept(pieces: str) -> None:
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        gather_token_scores(linear_scores(*factors()), STATE, TOKEN)
        assert max(kept) == WORDS * WIDTH  # the weights themselves
        kept.clear()
        gather_token_scores(torch.nn.functional.linear(*factors()), STATE, TOKEN)
        assert kept.count(STATES * WORDS) > 0  # the way that the rule above can fail


def test_small_tables_are_made_at_once() -> None:
    assert isinstance(linear_scores(*factors()), Tensor)


def test_under_autocast_products_are_rounded_as_by_a_linear_layer(pieces: str) -> None:
    parts = factors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gather_token_scores(linear_scores(*parts), STATE, TOKEN)
        table = torch.nn.functional.linear(*parts)
    assert table.dtype == torch.bfloat16
    assert found.nll.dtype == torch.float32
    torch.testing.assert_close(found.score, gather_token_scores(table, STATE, TOKEN).score, rtol=0, atol=0)
    torch.testing.assert_close(found.nll, gather_token_scores(table, STATE, TOKEN).nll)
    objective(found).backward()
    assert all(part.grad is not None and part.grad.dtype == torch.float32 for part in parts)


@pytest.mark.parametrize("cap", [None, 4.0])
def test_half_precision_is_near_float32(pieces: str, cap: float | None) -> None:
    """Hidden vectors and weights that bfloat16 holds: what is left is the rounding of scores and of the softmax."""
    found = []
    for half in (False, True):
        parts = [(0.2 * part.detach()).bfloat16().float().requires_grad_() for part in factors()]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            scores = linear_scores(*parts, cap=cap)
            assert isinstance(scores, LinearScores)
            looked_up = gather_token_scores(scores, STATE, TOKEN)
            logprobs = token_logprobs(scores, STATE, TOKEN, NEVER)
        (objective(looked_up) + policy_objective(logprobs)).backward()
        found.append((*looked_up, *logprobs, *[part.grad for part in parts]))
    for exact, rounded in zip(*found, strict=True):
        assert_near(rounded, exact, 0.02)


def test_in_half_precision_a_frequent_word_keeps_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of states add in float32: a sum in bfloat16 ends where the next term is below its last digit."""
    monkeypatch.setattr(token_scores, "_by_states", lambda device: True)
    monkeypatch.setattr(token_scores, "_STATE_PIECE_BYTES", 1)
    count = 2000
    hidden = torch.ones(count, WIDTH, dtype=torch.bfloat16)
    weight = torch.zeros(WORDS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    zeros = torch.zeros(count, dtype=torch.long)
    gather_token_scores(LinearScores(hidden, weight, None), torch.arange(count), zeros).nll.sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.bfloat16
    expected = torch.full((WORDS, WIDTH), count / WORDS)
    expected[0] -= count
    torch.testing.assert_close(weight.grad.float(), expected, rtol=0.02, atol=0)


def test_the_logsumexp_is_exact_whatever_a_word_has(pieces: str) -> None:
    """Even where the first word, or the word of the token, is so unlikely that float32 has no share for it."""
    hidden = torch.ones(2, 1)
    weight = torch.full((WORDS, 1), -1e9)
    weight[5:7] = 3.0
    found = gather_token_scores(LinearScores(hidden, weight, None), torch.tensor([1, 0]), torch.tensor([0, 5]))
    torch.testing.assert_close(found.nll, torch.tensor([1e9, math.log(2.0)]))


class Waits(TorchDispatchMode):
    """Notes operations for which the host of a GPU waits, since it needs a number or a shape from there."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name.strip("_").startswith("index") and any(
            isinstance(part, Tensor) and part.dtype == torch.bool for part in tree_flatten(args)[0]
        )
        if by_mask or name in ("_local_scalar_dense", "equal", "item", "masked_select", "nonzero"):
            self.names.add(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("cap", [None, 4.0])
def test_pieces_of_states_never_wait_for_the_device(cap: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_scores, "_STATE_PIECE_BYTES", 3 * 12 * WORDS)
    monkeypatch.setattr(token_scores, "_by_states", lambda device: True)
    parts = factors()
    with Waits() as waits:
        scores = LinearScores(*parts, cap)
        loss = objective(gather_token_scores(scores, STATE, TOKEN))
        (loss + policy_objective(token_logprobs(scores, STATE, TOKEN, NEVER))).backward()
    assert not waits.names
    with Waits() as waits:
        float(TOKEN[STATE > 0].sum())
    assert {"index", "_local_scalar_dense"} <= waits.names  # the ways that the rule above can fail


def test_no_states_no_numbers(pieces: str) -> None:
    none = torch.zeros(0, dtype=torch.long)
    hidden = torch.zeros(0, WIDTH, requires_grad=True)
    found = gather_token_scores(linear_scores(hidden, *factors()[1:]), none, none)
    found.nll.sum().backward()
    assert found.nll.shape == (0,)


@pytest.mark.parametrize("inner", [None, 2])
def test_a_value_head_looks_up_in_pieces_what_it_says_as_a_whole(pieces: str, inner: int | None) -> None:
    head = ValueHead(WIDTH, WORDS, bias=-1.0, inner=inner)
    torch.nn.init.normal_(head.outer.weight)
    hidden = torch.randn(STATES, WIDTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # heads stay float32
        found = head.gather_token_scores(hidden, STATE, TOKEN)
        scores = head.gather_scores(hidden, STATE, TOKEN)
    expected = gather_token_scores(head(hidden), STATE, TOKEN)
    torch.testing.assert_close(found.nll, expected.nll)
    torch.testing.assert_close(scores, expected.score)


def test_the_rank_of_a_head_is_its_inner_size() -> None:
    head = ValueHead(WIDTH, WORDS, inner=2)
    torch.nn.init.normal_(head.outer.weight)
    with torch.no_grad():
        assert int(torch.linalg.matrix_rank(head(torch.randn(50, WIDTH)))) == 2
    assert sum(p.numel() for p in head.parameters()) == 2 * (WIDTH + 1) + WORDS * 3


def test_probabilities_of_a_policy_are_not_rounded_with_its_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the product of what bfloat16 holds is float32, so that ratios to what was sampled are near 1."""
    monkeypatch.setattr(token_scores, "_MAX_TABLE_SCORES", 0)
    monkeypatch.setattr(token_scores, "_by_states", lambda device: True)
    hidden, weight = (part.detach().bfloat16() for part in factors(bias=False))
    never = torch.zeros(WORDS, dtype=torch.bool)
    exact = token_logprobs(hidden.float() @ weight.float().T, STATE, TOKEN, never).logprob
    found = token_logprobs(LinearScores(hidden, weight, None), STATE, TOKEN, never).logprob
    torch.testing.assert_close(found, exact, atol=1e-4, rtol=0.0)
    rounded = token_logprobs(hidden @ weight.T, STATE, TOKEN, never).logprob
    assert float((rounded - exact).abs().max()) > 1e-2


def policy_objective(found: TokenLogprobs) -> Tensor:
    """Every token pulls with its own weight, at its log-probability and at its entropy."""
    weight = torch.linspace(-1.0, 2.0, len(TOKEN))
    return (weight * found.logprob).sum() + (weight.flip(0) * found.entropy.square()).sum()


#: All words of the first piece but those that are taken, some within others, and all of the last piece but one.
NEVER = torch.tensor([word not in (0, 7, 8, 9, 10, 15, 22) for word in range(WORDS)])


@pytest.mark.parametrize("never", [torch.zeros(WORDS, dtype=torch.bool), NEVER], ids=["all words", "some words"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cap", [None, 4.0])
def test_pieces_give_the_log_probabilities_and_entropies_of_the_table(
    pieces: str, bias: bool, never: Tensor, cap: float | None
) -> None:
    ours = factors(bias)
    theirs = factors(bias)
    table = token_scores.soft_cap(torch.nn.functional.linear(*theirs), cap)
    expected = token_logprobs(table, STATE, TOKEN, never)
    scores = linear_scores(*ours, *([] if bias else [None]), cap=cap)
    assert isinstance(scores, LinearScores)
    found = token_logprobs(scores, STATE, TOKEN, never)
    torch.testing.assert_close(found.logprob, expected.logprob)
    torch.testing.assert_close(found.entropy, expected.entropy, atol=1e-5, rtol=1e-5)
    policy_objective(found).backward()
    policy_objective(expected).backward()
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left.grad, right.grad, atol=1e-4, rtol=1e-5)


def test_a_first_piece_of_words_that_are_never_sampled(pieces: str) -> None:
    never = torch.arange(WORDS) < 4
    token = TOKEN.clamp(min=4)
    ours = factors()
    theirs = factors()
    found = token_logprobs(LinearScores(*ours), STATE, token, never)
    expected = token_logprobs(torch.nn.functional.linear(*theirs), STATE, token, never)
    policy_objective(found).backward()
    policy_objective(expected).backward()
    torch.testing.assert_close(found.logprob, expected.logprob)
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left.grad, right.grad, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("never", [torch.zeros(WORDS, dtype=torch.bool), NEVER], ids=["all words", "some words"])
def test_scores_of_some_rows_at_a_time_give_the_numbers_and_gradients_of_the_table(
    never: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function of the rows has weights of its own, and the states of the tokens are in no order."""
    monkeypatch.setattr(token_scores, "_MAX_TABLE_SCORES", 0)
    monkeypatch.setattr(token_scores, "_ROW_PIECE_SCORES", 3 * WORDS)
    ours = factors()
    theirs = factors()

    def scores_of(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.tanh(torch.nn.functional.linear(hidden, weight, bias)) * 4.0

    rows = row_scores(lambda hidden: scores_of(hidden, *ours[1:]), (ours[0],), WORDS)
    assert isinstance(rows, RowScores)
    table = scores_of(*theirs)
    found = token_logprobs(rows, STATE, TOKEN, never)
    expected = token_logprobs(table, STATE, TOKEN, never)
    torch.testing.assert_close(found.logprob, expected.logprob)
    torch.testing.assert_close(found.entropy, expected.entropy)
    looked_up = gather_token_scores(rows, STATE, TOKEN)
    looked_up_in_table = gather_token_scores(table, STATE, TOKEN)
    torch.testing.assert_close(looked_up.nll, looked_up_in_table.nll)
    torch.testing.assert_close(gather_scores(rows, STATE, TOKEN), gather_scores(table, STATE, TOKEN))
    (policy_objective(found) + objective(looked_up)).backward()
    (policy_objective(expected) + objective(looked_up_in_table)).backward()
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left.grad, right.grad, atol=1e-4, rtol=1e-5)


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that an operation makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_flatten(result)[0]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("by_states", [False, True], ids=["words", "states"])
@pytest.mark.parametrize(
    ("kind", "lora"),
    [(PPO, None), (GRPO, None), (GRPO, {"r": 2, "target_modules": ["lm_head", "c_attn"]})],
    ids=["ppo", "grpo", "adapters of the head"],
)
def test_no_policy_gradient_makes_a_table_of_tokens_by_words(
    kind: type[PolicyGradient], lora: dict[str, Any] | None, by_states: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest tensors of a step are then as large as the weights of the head."""
    words = 2048
    width = 16
    architecture = {"n_embd": width, "n_layer": 1, "n_head": 1, "n_positions": 64, "vocab_size": words}
    architecture["tie_word_embeddings"] = lora is None
    module = kind(architecture=architecture, entropy_weight=0.1, lora=lora)
    module.invalid.zero_()  # the batch has any ids
    data = policy_batch(kind, words, rows=4, length=64)
    assert len(data.row) > 2 * width
    with Largest() as table:
        module.losses(data).loss.backward()
    expected = {name: parameter.grad for name, parameter in module.named_parameters()}
    module.zero_grad()
    monkeypatch.setattr(token_scores, "_MAX_TABLE_SCORES", 0)
    monkeypatch.setattr(token_scores, "_WORD_PIECE_SCORES", 1)
    monkeypatch.setattr(token_scores, "_ROW_PIECE_SCORES", width * words)
    monkeypatch.setattr(token_scores, "_STATE_PIECE_BYTES", 8 * width * words)
    monkeypatch.setattr(token_scores, "_by_states", lambda device: by_states)
    with Largest() as pieces:
        module.losses(data).loss.backward()
    assert table.elements >= len(data.row) * words
    assert pieces.elements == words * width
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, expected[name], atol=1e-5, rtol=1e-5)


def test_a_small_table_of_a_policy_in_mixed_precision_is_not_rounded() -> None:
    """In bfloat16 a score of 16 is rounded by up to .06."""
    torch.manual_seed(0)
    hidden = 4 * torch.randn(STATES, WIDTH).bfloat16()
    weight = 4 * torch.randn(50, WIDTH).bfloat16().float()
    with torch.autocast("cpu", torch.bfloat16):
        scores = linear_scores(hidden, weight, None)
    assert isinstance(scores, Tensor)
    torch.testing.assert_close(scores, hidden.float() @ weight.T, atol=1e-5, rtol=0)
