"""Scores in pieces are those of the whole table, gradients too, and the table is never kept."""

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

STATES, WIDTH, WORDS = 8, 6, 23
STATE, TOKEN = torch.tensor([0, 3, 3, 4, 0, 1, 3]), torch.tensor([22, 0, 7, 8, 22, 15, 0])


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four words at a time, whatever the size."""
    monkeypatch.setattr(token_scores, "_WHOLE", 0)
    monkeypatch.setattr(token_scores, "_PIECE", {"cpu": 1})
    monkeypatch.setattr(token_scores, "_NARROWEST", 4)


def factors(bias: bool = True) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = [(STATES, WIDTH), (WORDS, WIDTH), *([(WORDS,)] if bias else [])]
    return [(3 * torch.randn(shape, generator=g)).requires_grad_() for shape in shapes]


def objective(found: TokenScores) -> Tensor:
    """Every token pulls with its own weight, at its score and at its likelihood."""
    weight = torch.linspace(-1.0, 2.0, len(TOKEN))
    return (weight * found.nll).sum() + (weight.flip(0) * found.score.square()).sum()


@pytest.mark.parametrize("bias", [True, False])
def test_pieces_give_the_numbers_and_gradients_of_the_table(pieces: None, bias: bool) -> None:
    ours, theirs = factors(bias), factors(bias)
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
    pieces: None, bias: bool
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


def test_frozen_factors_get_no_gradient(pieces: None) -> None:
    hidden, weight, bias = factors()
    objective(gather_token_scores(LinearScores(hidden, weight.detach(), bias.detach()), STATE, TOKEN)).backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_nothing_of_the_size_of_the_table_is_kept(pieces: None) -> None:
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


def test_under_autocast_products_are_rounded_as_by_a_linear_layer(pieces: None) -> None:
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


def test_no_states_no_numbers(pieces: None) -> None:
    none = torch.zeros(0, dtype=torch.long)
    hidden = torch.zeros(0, WIDTH, requires_grad=True)
    found = gather_token_scores(linear_scores(hidden, *factors()[1:]), none, none)
    found.nll.sum().backward()
    assert found.nll.shape == (0,)


@pytest.mark.parametrize("inner", [None, 2])
def test_a_value_head_looks_up_in_pieces_what_it_says_as_a_whole(pieces: None, inner: int | None) -> None:
    head = ValueHead(WIDTH, WORDS, bias=-1.0, inner=inner)
    torch.nn.init.normal_(head.outer.weight)
    hidden = torch.randn(STATES, WIDTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # heads stay float32
        found, scores = head.gather_token_scores(hidden, STATE, TOKEN), head.gather_scores(hidden, STATE, TOKEN)
    expected = gather_token_scores(head(hidden), STATE, TOKEN)
    torch.testing.assert_close(found.nll, expected.nll)
    torch.testing.assert_close(scores, expected.score)


def test_the_rank_of_a_head_is_its_inner_size() -> None:
    head = ValueHead(WIDTH, WORDS, inner=2)
    torch.nn.init.normal_(head.outer.weight)
    with torch.no_grad():
        assert int(torch.linalg.matrix_rank(head(torch.randn(50, WIDTH)))) == 2
    assert sum(p.numel() for p in head.parameters()) == 2 * (WIDTH + 1) + WORDS * 3


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
    pieces: None, bias: bool, never: Tensor, cap: float | None
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


def test_a_first_piece_of_words_that_are_never_sampled(pieces: None) -> None:
    never = torch.arange(WORDS) < 4
    token = TOKEN.clamp(min=4)
    ours, theirs = factors(), factors()
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
    monkeypatch.setattr(token_scores, "_WHOLE", 0)
    monkeypatch.setattr(token_scores, "_PIECE_OF_ROWS", 3 * WORDS)
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


@pytest.mark.parametrize(
    ("kind", "lora"),
    [(PPO, None), (GRPO, None), (GRPO, {"r": 2, "target_modules": ["lm_head", "c_attn"]})],
    ids=["ppo", "grpo", "adapters of the head"],
)
def test_no_policy_gradient_makes_a_table_of_tokens_by_words(
    kind: type[PolicyGradient], lora: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest tensors of a step are then as large as the weights of the head."""
    words, width = 2048, 16
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
    monkeypatch.setattr(token_scores, "_WHOLE", 0)
    monkeypatch.setattr(token_scores, "_PIECE", {"cpu": 1})
    monkeypatch.setattr(token_scores, "_PIECE_OF_ROWS", width * words)
    with Largest() as pieces:
        module.losses(data).loss.backward()
    assert table.elements >= len(data.row) * words
    assert pieces.elements == words * width
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, expected[name], atol=1e-5, rtol=1e-5)
