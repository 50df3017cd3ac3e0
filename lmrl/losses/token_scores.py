"""From hidden states to scores of the N action tokens, without keeping the scores of a whole vocabulary.

A float32 table of 1,000 states by 50,000 words takes 200 MB, and plain autograd keeps several of them for each head.
Here the memory of a piece is all there is, whatever the vocabulary (the idea of Wijmans et al. 2024, "Cut Your Losses
in Large-Vocabulary Language Models", without its kernels). On a CPU a piece is some words of all states and stays in
the cache. On other devices it is all words of some states: there one kernel normalises a row of scores.
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

_WHOLE = 2**24  # tables up to this size are made at once: for small vocabularies that is faster
_PIECE = 2**19  # scores in a piece of words; they should stay in the cache of a CPU
_ALIGNMENT = 64  # words
_PIECE_BYTES = 2**30  # of all tables of a piece of states: less would add the gradient of the weight more often
_PIECE_OF_ROWS = 2**22  # scores that `RowScores` computes at once; it holds a handful of such tables
_NARROWEST = 256  # words in a piece at least: a thinner matrix product is a slow one


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

    def score_and_total(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) float32 score of each token, and (S,) float32 ``logsumexp`` of each state's scores."""
        result: tuple[Tensor, Tensor] = _Pieces.apply(  # type: ignore[no-untyped-call]
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
        result: tuple[Tensor, Tensor, Tensor] = _Distribution.apply(  # type: ignore[no-untyped-call]
            *self._factors(), state, token, invalid, self.cap
        )
        return result

    def _factors(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Hidden vectors, weight and bias in the precision in which a linear layer would compute here."""
        precision = _precision(self.hidden)
        bias = None if self.bias is None else self.bias.to(precision)
        return self.hidden.to(precision), self.weight.to(precision), bias


def _float32_product(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer of 16 bit whose result is not rounded to 16 bit, as `_table` is not."""
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
        score, _ = self.score_and_total(state, token)
        return score

    def score_and_total(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) float32 score of each token, and (S,) float32 ``logsumexp`` of each state's scores."""
        allowed = torch.zeros(self.vocabulary, dtype=torch.bool, device=token.device)
        score, total, _ = self.distribution(state, token, allowed)
        return score, total

    def table(self, rows: slice) -> Tensor:
        """The scores of all words in some of the states."""
        return self.compute(*[part[rows] for part in self.inputs])

    def distribution(self, state: Tensor, token: Tensor, invalid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `LinearScores.distribution`."""

        def describe(rows: slice, places: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            scores = self.table(rows).float().masked_fill(invalid, -torch.inf)
            total = scores.logsumexp(-1)
            logprob = scores - total[:, None]
            entropy = -(logprob.exp() * logprob.masked_fill(invalid, 0.0)).sum(-1)
            return scores[places, words], total, entropy

        num_states = self.inputs[0].shape[0]
        rows_at_once = max(1, _PIECE_OF_ROWS // self.vocabulary)
        positions = []
        scores = []
        totals = []
        entropies = []
        for first in range(0, num_states, rows_at_once):
            rows = slice(first, first + rows_at_once)
            inside = ((state >= rows.start) & (state < rows.stop)).nonzero().squeeze(-1)  # tokens of these states
            # A checkpoint computes the piece again for its gradient instead of keeping its table.
            score, total, entropy = checkpoint(
                describe, rows, state[inside] - first, token[inside], use_reentrant=False, preserve_rng_state=False
            )
            positions.append(inside)
            scores.append(score)
            totals.append(total)
            entropies.append(entropy)
        order = torch.cat(positions).argsort()  # tokens back into their own order
        return torch.cat(scores)[order], torch.cat(totals), torch.cat(entropies)


Scores: TypeAlias = Tensor | LinearScores | RowScores
"""(S, vocabulary) logits or Q values at the distinct states: a table, or what it is computed from."""


def row_scores(compute: Callable[..., Tensor], inputs: tuple[Tensor, ...], vocabulary: int) -> Tensor | RowScores:
    """Scores of all words for the losses: a table if it is small, else `RowScores` with these fields."""
    if inputs[0].shape[0] * vocabulary <= _WHOLE:
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
        cap: of the scaled scores; see `soft_cap`.
    """
    if hidden.shape[0] * weight.shape[0] <= _WHOLE:
        # Policies whose weights have 16 bit play with rounded scores on a CPU, so the losses have those.
        plays_rounded = hidden.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        if plays_rounded or _precision(hidden) not in (torch.bfloat16, torch.float16):
            scores = linear(hidden, weight, bias)
            return soft_cap(scores if scale == 1.0 else scores * scale, cap)
        if weight.numel() <= _WHOLE:
            scores = _float32_product(hidden, weight, bias)
            return soft_cap(scores if scale == 1.0 else scores * scale, cap)
    if scale != 1.0:
        # The factor goes into what is small, so that the pieces need not know of it.
        hidden = hidden * scale
        bias = None if bias is None else bias * scale
    return LinearScores(hidden, weight, bias, cap)


def _pieces(hidden: Tensor, weight: Tensor, tables: int = 1) -> Iterator[slice]:
    """Slices of the vocabulary, narrower where several tables of a piece are held at once."""
    step = max(_NARROWEST, _PIECE // tables // max(1, hidden.shape[0]))
    return (slice(first, first + step) for first in range(0, weight.shape[0], step))


def _scores(hidden: Tensor, weight: Tensor, bias: Tensor | None, words: slice, cap: float | None) -> Tensor:
    scores = linear(hidden, weight[words], None if bias is None else bias[words]).float()
    return soft_cap(scores, cap)


def _cap_slope(capped: Tensor, cap: float) -> Tensor:
    """The derivative of `soft_cap`, from its result; 0 for words that are never sampled, of score ``-inf``."""
    return 1.0 - (capped / cap).square().clamp_(max=1.0)


def _by_states(device: torch.device) -> bool:
    """Whether pieces are states with all their words, rather than words of all states."""
    return device.type != "cpu"


def _state_pieces(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Slices of the states, of which a table and its gradient are held at once."""
    num_states = hidden.shape[0]
    step = max(1, _PIECE_BYTES // (8 * weight.shape[0]))  # float32 in both
    return (slice(first, min(first + step, num_states)) for first in range(0, num_states, step))


def _aligned(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Add words, so that rows of a table begin where the fast products of a GPU need them."""
    more = -weight.shape[0] % _ALIGNMENT
    return pad(weight, (0, 0, 0, more)), None if bias is None else pad(bias, (0, more))


def _table(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, vocabulary: int, invalid: Tensor | None, cap: float | None
) -> Tensor:
    """Scores of states for all words; ``-inf`` for those that are never sampled or were added by `_aligned`.

    Those of a policy (`invalid` is given) are float32 whatever is multiplied. Ratios of probabilities compare them with
    those of play, and in bfloat16 a score of 16 is rounded by up to .06.
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
def _total(scores: Tensor) -> Tensor:
    return scores.float().logsumexp(-1)


@_Fused
def _total_and_entropy(scores: Tensor) -> tuple[Tensor, Tensor]:
    exact = scores.float()
    total = exact.logsumexp(-1)
    logprob = exact - total[:, None]
    entropy = -(logprob.exp() * logprob.masked_fill(scores == -torch.inf, 0.0)).sum(-1)
    return total, entropy


@_Fused
def _share(scores: Tensor, total: Tensor) -> Tensor:
    """The derivative of logsumexp: the softmax."""
    return (scores.float() - total[:, None]).exp().to(scores.dtype)


@_Fused
def _slope(scores: Tensor, total: Tensor, entropy: Tensor, to_total: Tensor, to_entropy: Tensor) -> Tensor:
    """The gradient of the scores from those of logsumexp and entropy."""
    # With p the softmax and H the entropy: d logsumexp / d score = p, d H / d score = -p (log p + H).
    logprob = (scores.float() - total[:, None]).masked_fill(scores == -torch.inf, 0.0)
    share = (scores.float() - total[:, None]).exp()
    slope = share * (to_total[:, None] - to_entropy[:, None] * (logprob + entropy[:, None]))
    return slope.to(scores.dtype)


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
    total = hidden.new_empty(hidden.shape[:1], dtype=torch.float32)
    entropy = torch.zeros_like(total)
    vocabulary = weight.shape[0]
    weight, bias = _aligned(weight, bias)
    for rows in _state_pieces(hidden, weight):
        scores = _table(hidden[rows], weight, bias, vocabulary, invalid, cap)
        row = state - rows.start
        inside = (row >= 0) & (row < scores.shape[0])
        score = torch.where(inside, scores[row.clamp(0, scores.shape[0] - 1), token].float(), score)
        if invalid is None:
            total[rows] = _total(scores)
        else:
            total[rows], entropy[rows] = _total_and_entropy(scores)
    return score, total, entropy


def _backward_by_states(
    ctx: Any, to_score: Tensor, to_total: Tensor, to_entropy: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of hidden vectors, weight and bias of `_forward_by_states`.

    Args:
        ctx: of `_Pieces` or `_Distribution`.
        to_score: (N,) gradient of the loss with respect to the scores of the tokens.
        to_total: (S,) with respect to the `logsumexp` of each state.
        to_entropy: (S,) with respect to its entropy; None in `_Pieces`.
    """
    hidden, weight, bias, state, token, invalid, score, total, entropy = ctx.saved_tensors
    cap: float | None = ctx.cap
    vocabulary = weight.shape[0]
    weight, bias = _aligned(weight, bias)
    of_hidden = torch.empty_like(hidden, dtype=torch.float32)
    # Sums over pieces and over tokens are float32: in bfloat16 the sum of a frequent word would stop growing.
    of_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
    of_bias = None
    if bias is not None and ctx.needs_input_grad[2]:
        of_bias = torch.zeros_like(bias, dtype=torch.float32)
    # One factor for a whole row of the softmax is cheaper on the narrow sides of both products.
    row_factor = to_total if to_entropy is None else torch.ones_like(to_total)
    pull = row_factor.to(hidden.dtype)
    pulled = hidden * pull[:, None]
    for rows in _state_pieces(hidden, weight):
        scores = _table(hidden[rows], weight, bias, vocabulary, invalid, cap)
        if to_entropy is None:
            slope = _share(scores, total[rows])
        else:
            slope = _slope(scores, total[rows], entropy[rows], to_total[rows], to_entropy[rows])
        if cap is not None:
            slope *= _cap_slope(scores, cap)
        slope = slope.to(hidden.dtype)
        of_hidden[rows] = (slope @ weight) * row_factor[rows, None]
        if of_weight is not None:
            of_weight += slope.T @ pulled[rows]
        if of_bias is not None:
            of_bias += slope.T @ pull[rows]
    # Then the gradient of the scores of the N tokens.
    if cap is not None:
        to_score = to_score * _cap_slope(score, cap)
    of_hidden.index_add_(0, state, to_score[:, None] * weight[token])
    if of_weight is not None:
        of_weight.index_add_(0, token, to_score[:, None] * hidden[state])
        of_weight = of_weight[:vocabulary].to(weight.dtype)
    if of_bias is not None:
        of_bias.index_add_(0, token, to_score)
        of_bias = of_bias[:vocabulary].to(hidden.dtype)
    return of_hidden.to(hidden.dtype), of_weight, of_bias


class _Pieces(torch.autograd.Function):
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
                score, total, _ = _forward_by_states(hidden, weight, bias, state, token, None, cap)
            else:
                total = hidden.new_full(hidden.shape[:1], -torch.inf, dtype=torch.float32)
                score = hidden.new_zeros(token.shape, dtype=torch.float32)
                for words in _pieces(hidden, weight):
                    scores = _scores(hidden, weight, bias, words, cap)
                    column = token - words.start
                    inside = (column >= 0) & (column < scores.shape[1])
                    score = torch.where(inside, scores[state, column.clamp(0, scores.shape[1] - 1)], score)
                    # logsumexp over all words so far.
                    total = torch.logaddexp(total, scores.logsumexp(-1))
        ctx.save_for_backward(hidden, weight, bias, state, token, None, score, total, None)
        ctx.cap = cap
        return score, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_score: Tensor, to_total: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, state, token, _, score, total, _ = ctx.saved_tensors
        cap: float | None = ctx.cap
        with torch.autocast(hidden.device.type, enabled=False):
            if _by_states(hidden.device):
                return *_backward_by_states(ctx, to_score, to_total), None, None, None
            of_hidden = torch.zeros_like(hidden, dtype=torch.float32)
            of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
            of_bias = torch.empty_like(bias) if ctx.needs_input_grad[2] else None
            pull = to_total.to(hidden.dtype)
            pulled = hidden * pull[:, None]
            for words in _pieces(hidden, weight):
                # The derivative of logsumexp is the softmax.
                scores = _scores(hidden, weight, bias, words, cap)
                slope = None if cap is None else _cap_slope(scores, cap)
                share = scores.sub_(total[:, None]).exp_()
                if slope is not None:
                    share *= slope
                share = share.to(hidden.dtype)
                of_hidden += share @ weight[words]
                if of_weight is not None:
                    torch.mm(share.T, pulled, out=of_weight[words])
                if of_bias is not None:
                    torch.mv(share.T, pull, out=of_bias[words])
            of_hidden *= to_total[:, None]
            # Then the gradient of the scores of the N tokens.
            if cap is not None:
                to_score = to_score * _cap_slope(score, cap)
            pull = to_score.to(hidden.dtype)
            of_hidden.index_add_(0, state, (pull[:, None] * weight[token]).float())
            if of_weight is not None:
                of_weight.index_add_(0, token, pull[:, None] * hidden[state])
            if of_bias is not None:
                of_bias.index_add_(0, token, pull)
        return of_hidden.to(hidden.dtype), of_weight, of_bias, None, None, None


class _Distribution(torch.autograd.Function):
    """Like `_Pieces`, with the entropy and without the words that are never sampled."""

    _TABLES = 4  # of a piece that backward holds at once

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
                score, total, entropy = _forward_by_states(hidden, weight, bias, state, token, invalid, cap)
            else:
                # Not -inf, from which nothing can be taken off if all words of the first piece are invalid.
                lowest = torch.finfo(torch.float32).min
                total = hidden.new_full(hidden.shape[:1], lowest, dtype=torch.float32)
                entropy = torch.zeros_like(total)
                score = hidden.new_zeros(token.shape, dtype=torch.float32)
                for words in _pieces(hidden, weight, _Distribution._TABLES):
                    never = invalid[words]
                    scores = _scores(hidden, weight, bias, words, cap).masked_fill_(never, -torch.inf)
                    column = token - words.start
                    inside = (column >= 0) & (column < scores.shape[1])
                    score = torch.where(inside, scores[state, column.clamp(0, scores.shape[1] - 1)], score)
                    before = total
                    total = torch.logaddexp(before, scores.logsumexp(-1))
                    # The words of earlier pieces become less likely, by the same factor.
                    kept = (before - total).exp() * (entropy + (total - before))
                    logprob = scores.sub_(total[:, None])
                    share = logprob.exp()
                    entropy = kept - share.mul_(logprob.masked_fill_(never, 0.0)).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, state, token, invalid, score, total, entropy)
        ctx.cap = cap
        return score, total, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_score: Tensor, to_total: Tensor, to_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, state, token, invalid, _, total, entropy = ctx.saved_tensors
        if _by_states(hidden.device):
            with torch.autocast(hidden.device.type, enabled=False):
                return *_backward_by_states(ctx, to_score, to_total, to_entropy), None, None, None, None
        of_hidden = torch.zeros_like(hidden, dtype=torch.float32)
        of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        of_bias = torch.empty_like(bias) if ctx.needs_input_grad[2] else None
        leaf = hidden.detach().requires_grad_()
        for words in _pieces(hidden, weight, _Distribution._TABLES):
            weight_piece = weight[words].detach().requires_grad_(of_weight is not None)
            bias_piece = None if bias is None else bias[words].detach().requires_grad_(of_bias is not None)
            with torch.enable_grad(), torch.autocast(hidden.device.type, enabled=False):
                scores = _scores(leaf, weight_piece, bias_piece, slice(None), ctx.cap)
            never = invalid[words]
            logprob = (scores.detach() - total[:, None]).masked_fill_(never, -torch.inf)
            share = logprob.exp()
            # With p the softmax and H the entropy: d logsumexp / d score = p, d H / d score = -p (log p + H).
            pull = logprob.masked_fill_(never, 0.0).add_(entropy[:, None]).mul_(-to_entropy[:, None])
            pull.add_(to_total[:, None]).mul_(share)
            column = token - words.start
            inside = (column >= 0) & (column < pull.shape[1])
            pull.index_put_((state[inside], column[inside]), to_score[inside], accumulate=True)
            leaves = [part for part in (leaf, weight_piece, bias_piece) if part is not None and part.requires_grad]
            # In the order of the leaves: those that need no gradient are not among them.
            gradients = iter(torch.autograd.grad(scores, leaves, pull))
            of_hidden += next(gradients)
            if of_weight is not None:
                of_weight[words] = next(gradients)
            if of_bias is not None:
                of_bias[words] = next(gradients)
        return of_hidden.to(hidden.dtype), of_weight, of_bias, None, None, None, None


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
        score, total = scores.score_and_total(state, token)
    else:
        score = gather_scores(scores, state, token)
        total = scores.float().logsumexp(dim=-1)
    return TokenScores(score=score, nll=total.index_select(0, state) - score)


def gather_scores(scores: Scores, state: Tensor, token: Tensor) -> Tensor:
    """(N,) the scores of the tokens alone, float32; arguments as of `gather_token_scores`."""
    if isinstance(scores, LinearScores | RowScores):
        return scores.score(state, token)
    return scores.reshape(-1).index_select(0, state * scores.shape[-1] + token).float()
