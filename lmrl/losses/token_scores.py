"""From hidden states to scores of the N action tokens, without keeping the scores of a whole vocabulary.

A float32 table of 1,000 states by 50,000 words takes 200 MB, and plain autograd keeps several of them for each head.
Here scores are computed piece by piece, so memory is that of one piece for any vocabulary (the idea of Wijmans et al.
2024, "Cut Your Losses in Large-Vocabulary Language Models", without its kernels). On a CPU a piece holds some words
(entries of the vocabulary) for all states, and stays in the cache. On a GPU it holds all words for some states, because
one kernel normalises a row of scores.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad
from torch.utils.checkpoint import checkpoint

from lmrl.errors import in_one_line

__all__ = [
    "LinearScores",
    "RowScores",
    "Scores",
    "TokenScores",
    "gather_scores",
    "gather_token_scores",
    "linear_scores",
    "row_scores",
    "soft_cap",
]

_MAX_TABLE_SCORES = 2**24  # tables of up to this many scores are made at once: for small vocabularies that is faster
_WORD_PIECE_SCORES = 2**19  # scores in a piece of words; they should stay in the cache of a CPU
_MIN_PIECE_WORDS = 256  # words in a piece at least: a thinner matrix product is slow
_WORD_ALIGNMENT = 64  # the number of words is padded to a multiple of this
_STATE_PIECE_BYTES = 2**30  # bytes of all tables of a piece of states; each piece adds to the gradient of the weight
_ROW_PIECE_SCORES = 2**22  # scores that `RowScores` computes at once; it holds a handful of such tables


def soft_cap(scores: Tensor, cap: float | None) -> Tensor:
    """Keep scores between ``-cap`` and ``cap``, as Gemma 2 does with its logits; None leaves them as they are."""
    return scores if cap is None else cap * torch.tanh(scores / cap)


class LinearScores(NamedTuple):
    """The table ``soft_cap(hidden @ weight.T + bias)``, (S, vocabulary), as its factors."""

    hidden: Tensor
    """(S, width)."""
    weight: Tensor
    """(vocabulary, width)."""
    bias: Tensor | None
    """(vocabulary,)."""
    cap: float | None = None
    """See `soft_cap`."""

    def score(self, state: Tensor, token: Tensor) -> Tensor:
        """(N,) float32 score of each token: rows of the factors, no vocabulary."""
        score = (self.hidden[state] * self.weight[token]).float().sum(-1)
        if self.bias is not None:
            score = score + self.bias[token]
        return soft_cap(score, self.cap)

    def score_and_logsumexp(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) float32 score of each token, and (S,) float32 ``logsumexp`` of each state's scores."""
        result: tuple[Tensor, Tensor] = _ScoreAndLogsumexp.apply(  # type: ignore[no-untyped-call]
            *self._factors(), state, token, self.cap
        )
        return result

    def table(self, rows: slice) -> Tensor:
        """The scores of all words in some of the states."""
        return soft_cap(linear(self.hidden[rows], self.weight, self.bias), self.cap)

    def distribution(self, state: Tensor, token: Tensor, invalid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distribution of a policy that never samples some words, at N tokens.

        Args:
            state: (N,) index of the state of each token.
            token: (N,) its id.
            invalid: (vocabulary,) bool, words that are never sampled.

        Returns:
            (N,) score of each token, and (S,) ``logsumexp`` and entropy of each state's valid scores; float32.
        """
        result: tuple[Tensor, Tensor, Tensor] = _ScoreLogsumexpEntropy.apply(  # type: ignore[no-untyped-call]
            *self._factors(), state, token, invalid, self.cap
        )
        return result

    def _factors(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Hidden vectors, weight and bias in the precision in which a linear layer would compute here."""
        precision = _precision(self.hidden)
        bias = None if self.bias is None else self.bias.to(precision)
        return self.hidden.to(precision), self.weight.to(precision), bias


def _float32_product(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer of 16 bit whose result stays float32, as the scores of a policy in `_scores_of_states` do."""
    precision = _precision(hidden)
    with torch.autocast(hidden.device.type, enabled=False):
        exact_bias = None if bias is None else bias.to(precision).float()
        return linear(hidden.to(precision).float(), weight.to(precision).float(), exact_bias)


def _precision(hidden: Tensor) -> torch.dtype:
    """Return the precision in which a linear layer would compute here."""
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


class RowScores(NamedTuple):
    """A table of scores, (S, vocabulary), that is computed for some states at a time, and again for the gradient.

    It takes any function of hidden states: a head with adapters, or logits to which values are added. `LinearScores`
    is faster and leaner where one matrix product gives the scores.
    """

    compute: Callable[..., Tensor]
    """Return the (n, vocabulary) scores of n states from the rows of `inputs`."""
    inputs: tuple[Tensor, ...]
    """(S, width) each."""
    vocabulary: int
    """Number of words."""

    def score(self, state: Tensor, token: Tensor) -> Tensor:
        """(N,) float32 score of each token."""
        score, _ = self.score_and_logsumexp(state, token)
        return score

    def score_and_logsumexp(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) float32 score of each token, and (S,) float32 ``logsumexp`` of each state's scores."""
        invalid = torch.zeros(self.vocabulary, dtype=torch.bool, device=token.device)
        score, logsumexp, _ = self.distribution(state, token, invalid)
        return score, logsumexp

    def table(self, rows: slice) -> Tensor:
        """The scores of all words in some of the states."""
        return self.compute(*[part[rows] for part in self.inputs])

    def distribution(self, state: Tensor, token: Tensor, invalid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `LinearScores.distribution`."""

        def describe(rows: slice, row: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            scores = self.table(rows).float().masked_fill(invalid, -torch.inf)
            logsumexp = scores.logsumexp(-1)
            logprob = scores - logsumexp[:, None]
            entropy = -(logprob.exp() * logprob.masked_fill(invalid, 0.0)).sum(-1)
            return scores[row, words], logsumexp, entropy

        num_states = self.inputs[0].shape[0]
        rows_at_once = max(1, _ROW_PIECE_SCORES // self.vocabulary)
        positions = []
        scores = []
        logsumexps = []
        entropies = []
        for first in range(0, num_states, rows_at_once):
            rows = slice(first, first + rows_at_once)
            inside = ((state >= rows.start) & (state < rows.stop)).nonzero().squeeze(-1)  # tokens of these states
            # A checkpoint computes the piece again for its gradient instead of keeping its table.
            score, logsumexp, entropy = checkpoint(
                describe, rows, state[inside] - first, token[inside], use_reentrant=False, preserve_rng_state=False
            )
            positions.append(inside)
            scores.append(score)
            logsumexps.append(logsumexp)
            entropies.append(entropy)
        order = torch.cat(positions).argsort()  # tokens back into their own order
        return torch.cat(scores)[order], torch.cat(logsumexps), torch.cat(entropies)


Scores: TypeAlias = Tensor | LinearScores | RowScores
"""(S, vocabulary) logits or Q values at the distinct states: a table, or what it is computed from."""


def row_scores(compute: Callable[..., Tensor], inputs: tuple[Tensor, ...], vocabulary: int) -> Tensor | RowScores:
    """Scores of all words for the losses: a table if it is small, else `RowScores` with these fields."""
    if inputs[0].shape[0] * vocabulary <= _MAX_TABLE_SCORES:
        return compute(*inputs)
    return RowScores(compute, inputs, vocabulary)


def linear_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: float = 1.0, cap: float | None = None
) -> Tensor | LinearScores:
    """Scores of all words for the losses: a table if it is small, else its factors.

    Args:
        hidden: (S, width).
        weight: (vocabulary, width).
        bias: (vocabulary,).
        scale: factor of the scores.
        cap: limit of the scaled scores; see `soft_cap`.
    """
    if hidden.shape[0] * weight.shape[0] <= _MAX_TABLE_SCORES:
        # Policies whose weights have 16 bit play with rounded scores on a CPU, so the losses have those.
        plays_rounded = hidden.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        if plays_rounded or _precision(hidden) not in (torch.bfloat16, torch.float16):
            scores = linear(hidden, weight, bias)
            return soft_cap(scores if scale == 1.0 else scores * scale, cap)
        if weight.numel() <= _MAX_TABLE_SCORES:
            scores = _float32_product(hidden, weight, bias)
            return soft_cap(scores if scale == 1.0 else scores * scale, cap)
    if scale != 1.0:
        # The factor goes into what is small, so that the pieces need not know of it.
        hidden = hidden * scale
        bias = None if bias is None else bias * scale
    return LinearScores(hidden, weight, bias, cap)


def _word_pieces(hidden: Tensor, weight: Tensor, tables: int = 1) -> Iterator[slice]:
    """Slices of the vocabulary, narrower where several tables of a piece are held at once."""
    step = max(_MIN_PIECE_WORDS, _WORD_PIECE_SCORES // tables // max(1, hidden.shape[0]))
    return (slice(first, first + step) for first in range(0, weight.shape[0], step))


def _scores_of_words(hidden: Tensor, weight: Tensor, bias: Tensor | None, words: slice, cap: float | None) -> Tensor:
    """(S, words) float32 scores of some words in all states: a piece on a CPU."""
    scores = linear(hidden, weight[words], None if bias is None else bias[words]).float()
    return soft_cap(scores, cap)


def _soft_cap_derivative(capped: Tensor, cap: float) -> Tensor:
    """The derivative of `soft_cap`, from its result; 0 for words that are never sampled, of score ``-inf``."""
    return 1.0 - (capped / cap).square().clamp_(max=1.0)


def _by_states(device: torch.device) -> bool:
    """Return True if a piece holds all words for some states, False if some words for all states."""
    return device.type != "cpu"


def _state_pieces(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Slices of the states, of which a table and its gradient are held at once."""
    num_states = hidden.shape[0]
    step = max(1, _STATE_PIECE_BYTES // (8 * weight.shape[0]))  # float32 in both
    return (slice(first, min(first + step, num_states)) for first in range(0, num_states, step))


def _aligned(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Add words, so that rows of a table begin where the fast products of a GPU need them."""
    more = -weight.shape[0] % _WORD_ALIGNMENT
    return pad(weight, (0, 0, 0, more)), None if bias is None else pad(bias, (0, more))


def _scores_of_states(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, vocabulary: int, invalid: Tensor | None, cap: float | None
) -> Tensor:
    """(states, words) scores of all words in some states: a piece on a GPU.

    Words that are never sampled, or were added by `_aligned`, have ``-inf``. Scores of a policy (`invalid` is given)
    are float32 whatever is multiplied. Ratios of probabilities compare them with those of play, and in bfloat16 a score
    of 16 is rounded by up to .06.
    """
    if invalid is None:
        scores = linear(hidden, weight, bias)
    else:
        scores = _product(hidden, weight) if bias is None else _product(hidden, weight) + bias
    scores = soft_cap(scores, cap)
    scores[:, vocabulary:] = -torch.inf
    if invalid is not None:
        scores[:, :vocabulary].masked_fill_(invalid, -torch.inf)
    return scores


def _product(hidden: Tensor, weight: Tensor) -> Tensor:
    """``hidden @ weight.T`` in float32."""
    if hidden.dtype == torch.float32 or hidden.device.type != "cuda":
        return hidden.float() @ weight.float().T
    return torch.mm(hidden, weight.T, out_dtype=torch.float32)


class _Fused:
    """A function of one pass over a table: on a GPU compiled to one kernel, elsewhere as it is.

    Operation by operation, a table of 16 bit is written and read as one of 32 bit several times, which takes longer
    than the products around it. Without a compiler it still works.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._compiled: Callable[..., Any] | None = None
        self._can_compile = True

    def __call__(self, *tensors: Tensor) -> Any:
        if tensors[0].device.type != "cuda" or not self._can_compile:
            return self._function(*tensors)
        try:
            if self._compiled is None:
                self._compiled = torch.compile(self._function, dynamic=True)
            return self._compiled(*tensors)
        except torch._dynamo.exc.TorchDynamoException as error:
            warnings.warn(
                f"losses are slower: their kernels cannot be compiled ({in_one_line(error, 200)})", stacklevel=2
            )
            self._can_compile = False
            return self._function(*tensors)


@_Fused
def _logsumexp(scores: Tensor) -> Tensor:
    return scores.float().logsumexp(-1)


@_Fused
def _logsumexp_and_entropy(scores: Tensor) -> tuple[Tensor, Tensor]:
    exact = scores.float()
    logsumexp = exact.logsumexp(-1)
    logprob = exact - logsumexp[:, None]
    entropy = -(logprob.exp() * logprob.masked_fill(scores == -torch.inf, 0.0)).sum(-1)
    return logsumexp, entropy


@_Fused
def _softmax(scores: Tensor, logsumexp: Tensor) -> Tensor:
    """The softmax, which is the derivative of logsumexp."""
    return (scores.float() - logsumexp[:, None]).exp().to(scores.dtype)


@_Fused
def _grad_scores(
    scores: Tensor, logsumexp: Tensor, entropy: Tensor, grad_logsumexp: Tensor, grad_entropy: Tensor
) -> Tensor:
    """The gradient of the scores from those of logsumexp and entropy."""
    # With p the softmax and H the entropy: d logsumexp / d score = p, d H / d score = -p (log p + H).
    logprob = (scores.float() - logsumexp[:, None]).masked_fill(scores == -torch.inf, 0.0)
    softmax = (scores.float() - logsumexp[:, None]).exp()
    grad_scores = softmax * (grad_logsumexp[:, None] - grad_entropy[:, None] * (logprob + entropy[:, None]))
    return grad_scores.to(scores.dtype)


def _forward_by_states(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    token: Tensor,
    invalid: Tensor | None,
    cap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `LinearScores.distribution`; the entropy is 0 where `invalid` is None.

    Nothing here or in `_backward_by_states` makes the host wait for the device: no index is read back.
    """
    score = hidden.new_zeros(token.shape, dtype=torch.float32)
    logsumexp = hidden.new_empty(hidden.shape[:1], dtype=torch.float32)
    entropy = torch.zeros_like(logsumexp)
    vocabulary = weight.shape[0]
    weight, bias = _aligned(weight, bias)
    for rows in _state_pieces(hidden, weight):
        scores = _scores_of_states(hidden[rows], weight, bias, vocabulary, invalid, cap)
        row = state - rows.start
        inside = (row >= 0) & (row < scores.shape[0])
        score = torch.where(inside, scores[row.clamp(0, scores.shape[0] - 1), token].float(), score)
        if invalid is None:
            logsumexp[rows] = _logsumexp(scores)
        else:
            logsumexp[rows], entropy[rows] = _logsumexp_and_entropy(scores)
    return score, logsumexp, entropy


def _backward_by_states(
    ctx: Any, grad_score: Tensor, grad_logsumexp: Tensor, grad_entropy: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of hidden vectors, weight and bias of `_forward_by_states`.

    Args:
        ctx: context of `_ScoreAndLogsumexp` or `_ScoreLogsumexpEntropy`.
        grad_score: (N,) gradient of the loss with respect to the scores of the tokens.
        grad_logsumexp: (S,) gradient with respect to the ``logsumexp`` of each state.
        grad_entropy: (S,) gradient with respect to its entropy; None in `_ScoreAndLogsumexp`.
    """
    hidden, weight, bias, state, token, invalid, score, logsumexp, entropy = ctx.saved_tensors
    cap: float | None = ctx.cap
    vocabulary = weight.shape[0]
    weight, bias = _aligned(weight, bias)
    grad_hidden = torch.empty_like(hidden, dtype=torch.float32)
    # Sums over pieces and over tokens are float32: in bfloat16 the sum of a frequent word would stop growing.
    grad_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
    grad_bias = None
    if bias is not None and ctx.needs_input_grad[2]:
        grad_bias = torch.zeros_like(bias, dtype=torch.float32)
    # Without entropy, grad_scores = softmax * grad_logsumexp[:, None]. Apply that (S,) factor to hidden and
    # grad_hidden, which have `width` columns, and not to the table, which has one column per word. With entropy,
    # `_grad_scores` already contains it, and the factor is 1.
    row_factor = grad_logsumexp if grad_entropy is None else torch.ones_like(grad_logsumexp)
    rounded_factor = row_factor.to(hidden.dtype)
    scaled_hidden = hidden * rounded_factor[:, None]
    for rows in _state_pieces(hidden, weight):
        scores = _scores_of_states(hidden[rows], weight, bias, vocabulary, invalid, cap)
        if grad_entropy is None:
            grad_scores = _softmax(scores, logsumexp[rows])
        else:
            grad_scores = _grad_scores(scores, logsumexp[rows], entropy[rows], grad_logsumexp[rows], grad_entropy[rows])
        if cap is not None:
            grad_scores *= _soft_cap_derivative(scores, cap)
        grad_scores = grad_scores.to(hidden.dtype)
        grad_hidden[rows] = (grad_scores @ weight) * row_factor[rows, None]
        if grad_weight is not None:
            grad_weight += grad_scores.T @ scaled_hidden[rows]
        if grad_bias is not None:
            grad_bias += grad_scores.T @ rounded_factor[rows]
    # Then the gradient of the scores of the N tokens.
    if cap is not None:
        grad_score = grad_score * _soft_cap_derivative(score, cap)
    grad_hidden.index_add_(0, state, grad_score[:, None] * weight[token])
    if grad_weight is not None:
        grad_weight.index_add_(0, token, grad_score[:, None] * hidden[state])
        grad_weight = grad_weight[:vocabulary].to(weight.dtype)
    if grad_bias is not None:
        grad_bias.index_add_(0, token, grad_score)
        grad_bias = grad_bias[:vocabulary].to(hidden.dtype)
    return grad_hidden.to(hidden.dtype), grad_weight, grad_bias


def _update_scores(score: Tensor, scores: Tensor, words: slice, state: Tensor, token: Tensor) -> Tensor:
    """Return the (N,) scores of the tokens, with those filled in whose words are in this piece.

    Args:
        score: (N,) scores of the tokens that are known so far.
        scores: (S, words) scores of the piece, in all states.
        words: the words of the piece.
        state: (N,) index of the state of each token.
        token: (N,) its id.
    """
    column = token - words.start
    inside = (column >= 0) & (column < scores.shape[1])
    return torch.where(inside, scores[state, column.clamp(0, scores.shape[1] - 1)], score)


class _ScoreAndLogsumexp(torch.autograd.Function):
    """Forward goes over the table in pieces; backward does it again, since nothing (S, vocabulary) is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        state: Tensor,
        token: Tensor,
        cap: float | None,
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(hidden.device.type, enabled=False):
            if _by_states(hidden.device):
                score, logsumexp, _ = _forward_by_states(hidden, weight, bias, state, token, None, cap)
            else:
                logsumexp = hidden.new_full(hidden.shape[:1], -torch.inf, dtype=torch.float32)
                score = hidden.new_zeros(token.shape, dtype=torch.float32)
                for words in _word_pieces(hidden, weight):
                    scores = _scores_of_words(hidden, weight, bias, words, cap)
                    score = _update_scores(score, scores, words, state, token)
                    # logsumexp over all words so far.
                    logsumexp = torch.logaddexp(logsumexp, scores.logsumexp(-1))
        ctx.save_for_backward(hidden, weight, bias, state, token, None, score, logsumexp, None)
        ctx.cap = cap
        return score, logsumexp

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_score: Tensor, grad_logsumexp: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, state, token, _, score, logsumexp, _ = ctx.saved_tensors
        cap: float | None = ctx.cap
        with torch.autocast(hidden.device.type, enabled=False):
            if _by_states(hidden.device):
                return *_backward_by_states(ctx, grad_score, grad_logsumexp), None, None, None
            grad_hidden = torch.zeros_like(hidden, dtype=torch.float32)
            grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
            grad_bias = torch.empty_like(bias) if ctx.needs_input_grad[2] else None
            # As in `_backward_by_states`, the factor grad_logsumexp is applied to hidden and grad_hidden.
            rounded_factor = grad_logsumexp.to(hidden.dtype)
            scaled_hidden = hidden * rounded_factor[:, None]
            for words in _word_pieces(hidden, weight):
                # The derivative of logsumexp is the softmax.
                scores = _scores_of_words(hidden, weight, bias, words, cap)
                cap_derivative = None if cap is None else _soft_cap_derivative(scores, cap)
                grad_scores = scores.sub_(logsumexp[:, None]).exp_()
                if cap_derivative is not None:
                    grad_scores *= cap_derivative
                grad_scores = grad_scores.to(hidden.dtype)
                grad_hidden += grad_scores @ weight[words]
                if grad_weight is not None:
                    torch.mm(grad_scores.T, scaled_hidden, out=grad_weight[words])
                if grad_bias is not None:
                    torch.mv(grad_scores.T, rounded_factor, out=grad_bias[words])
            grad_hidden *= grad_logsumexp[:, None]
            # Then the gradient of the scores of the N tokens.
            if cap is not None:
                grad_score = grad_score * _soft_cap_derivative(score, cap)
            rounded_grad = grad_score.to(hidden.dtype)
            grad_hidden.index_add_(0, state, (rounded_grad[:, None] * weight[token]).float())
            if grad_weight is not None:
                grad_weight.index_add_(0, token, rounded_grad[:, None] * hidden[state])
            if grad_bias is not None:
                grad_bias.index_add_(0, token, rounded_grad)
        return grad_hidden.to(hidden.dtype), grad_weight, grad_bias, None, None, None


class _ScoreLogsumexpEntropy(torch.autograd.Function):
    """Like `_ScoreAndLogsumexp`, with the entropy and without the words that are never sampled."""

    _TABLES_AT_ONCE = 4  # tables of a piece that backward holds together

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        state: Tensor,
        token: Tensor,
        invalid: Tensor,
        cap: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast(hidden.device.type, enabled=False):
            if _by_states(hidden.device):
                score, logsumexp, entropy = _forward_by_states(hidden, weight, bias, state, token, invalid, cap)
            else:
                # Not -inf, from which nothing can be taken off if all words of the first piece are invalid.
                lowest = torch.finfo(torch.float32).min
                logsumexp = hidden.new_full(hidden.shape[:1], lowest, dtype=torch.float32)
                entropy = torch.zeros_like(logsumexp)
                score = hidden.new_zeros(token.shape, dtype=torch.float32)
                for words in _word_pieces(hidden, weight, _ScoreLogsumexpEntropy._TABLES_AT_ONCE):
                    invalid_words = invalid[words]
                    scores = _scores_of_words(hidden, weight, bias, words, cap).masked_fill_(invalid_words, -torch.inf)
                    score = _update_scores(score, scores, words, state, token)
                    before = logsumexp
                    logsumexp = torch.logaddexp(before, scores.logsumexp(-1))
                    # With Z = exp(logsumexp), p the new softmax, and the sum over the words of this piece:
                    # H_new = Z_old / Z_new * (H_old + log(Z_new / Z_old)) - sum p log p.
                    earlier_entropy = (before - logsumexp).exp() * (entropy + (logsumexp - before))
                    logprob = scores.sub_(logsumexp[:, None])
                    softmax = logprob.exp()
                    entropy = earlier_entropy - softmax.mul_(logprob.masked_fill_(invalid_words, 0.0)).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, state, token, invalid, score, logsumexp, entropy)
        ctx.cap = cap
        return score, logsumexp, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_score: Tensor, grad_logsumexp: Tensor, grad_entropy: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, state, token, invalid, _, logsumexp, entropy = ctx.saved_tensors
        if _by_states(hidden.device):
            with torch.autocast(hidden.device.type, enabled=False):
                return *_backward_by_states(ctx, grad_score, grad_logsumexp, grad_entropy), None, None, None, None
        grad_hidden = torch.zeros_like(hidden, dtype=torch.float32)
        grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = torch.empty_like(bias) if ctx.needs_input_grad[2] else None
        leaf = hidden.detach().requires_grad_()
        for words in _word_pieces(hidden, weight, _ScoreLogsumexpEntropy._TABLES_AT_ONCE):
            weight_piece = weight[words].detach().requires_grad_(grad_weight is not None)
            bias_piece = None if bias is None else bias[words].detach().requires_grad_(grad_bias is not None)
            with torch.enable_grad(), torch.autocast(hidden.device.type, enabled=False):
                scores = _scores_of_words(leaf, weight_piece, bias_piece, slice(None), ctx.cap)
            invalid_words = invalid[words]
            logprob = (scores.detach() - logsumexp[:, None]).masked_fill_(invalid_words, -torch.inf)
            softmax = logprob.exp()
            # With p the softmax and H the entropy: d logsumexp / d score = p, d H / d score = -p (log p + H).
            grad_scores = logprob.masked_fill_(invalid_words, 0.0).add_(entropy[:, None]).mul_(-grad_entropy[:, None])
            grad_scores.add_(grad_logsumexp[:, None]).mul_(softmax)
            column = token - words.start
            inside = (column >= 0) & (column < grad_scores.shape[1])
            grad_scores.index_put_((state[inside], column[inside]), grad_score[inside], accumulate=True)
            leaves = {"hidden": leaf}
            if grad_weight is not None:
                leaves["weight"] = weight_piece
            if grad_bias is not None and bias_piece is not None:
                leaves["bias"] = bias_piece
            gradients = dict(zip(leaves, torch.autograd.grad(scores, [*leaves.values()], grad_scores), strict=True))
            grad_hidden += gradients["hidden"]
            if grad_weight is not None:
                grad_weight[words] = gradients["weight"]
            if grad_bias is not None:
                grad_bias[words] = gradients["bias"]
        return grad_hidden.to(hidden.dtype), grad_weight, grad_bias, None, None, None, None


class TokenScores(NamedTuple):
    """The scores of the actions that were taken, from a table of scores."""

    score: Tensor
    """(N,) the score of the token."""
    nll: Tensor
    """(N,) cross-entropy of the softmax over all scores: ``logsumexp(scores) - score``."""


def gather_token_scores(scores: Scores, state: Tensor, token: Tensor) -> TokenScores:
    """Look up the action tokens.

    Args:
        scores: (S, vocabulary) logits or Q values at the distinct states.
        state: (N,) index of the state of each action token.
        token: (N,) its id.

    Returns:
        Score and negative log-likelihood of each token, float32.
    """
    if isinstance(scores, LinearScores | RowScores):
        score, logsumexp = scores.score_and_logsumexp(state, token)
    else:
        score = gather_scores(scores, state, token)
        logsumexp = scores.float().logsumexp(dim=-1)
    return TokenScores(score=score, nll=logsumexp.index_select(0, state) - score)


def gather_scores(scores: Scores, state: Tensor, token: Tensor) -> Tensor:
    """(N,) the scores of the tokens alone, float32; for arguments see `gather_token_scores`."""
    if isinstance(scores, LinearScores | RowScores):
        return scores.score(state, token)
    return scores.reshape(-1).index_select(0, state * scores.shape[-1] + token).float()
