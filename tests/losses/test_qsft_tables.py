"""Q-SFT against the fixed point of its loss, by dynamic programming, with tables in place of networks."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from lmrl.losses import (
    LinearScores,
    best_ratio,
    gather_token_scores,
    mask_scores,
    probability_ratio,
    qsft_loss,
    qsft_weight,
    soft_cap,
    token_nll,
)
from lmrl.tokens.collate import TokenBatch
from lmrl.types import Episode
from tests.helpers.doubles import VOCABULARY, episode, prefixes, table_batch

GAMMA = 0.9
SUPPORT = 0.02
#: Half of the ids are never said.
INVALID = torch.arange(VOCABULARY) < VOCABULARY // 2
K = int((~INVALID).sum())

Q = Mapping[tuple[str, str], float]
"""Values by the text that has been read and the token that is said next."""


def dynamic_programming(
    episodes: Sequence[Episode], low: float, high: float, words: float = K, gamma: float = GAMMA
) -> Q:
    """Return the scaled Q of every token, each as often as the data have it; infinite ``words`` leave the spread out.

    A token (s, a) leads to what follows it: the mean target over its occurrences is W(s, a). With n(s, a) occurrences
    among n(s), p gets ``n(s, a) W(s, a)`` from itself and ``n(s, b) (1 - W(s, b)) / (K - 1)`` from every other b.
    """
    seen: dict[tuple[str, str], list[tuple[float, str | None]]] = defaultdict(list)
    for e in episodes:
        for turn, (action, reward) in enumerate(zip(e.actions, e.rewards, strict=True)):
            for place, token in enumerate(action):
                last = place == len(action) - 1
                ends = last and turn == len(e) - 1 and e.terminated
                after = e.observations[turn + 1] if last else e.observations[turn] + action[: place + 1]
                state = e.observations[turn] + action[:place]
                seen[state, token].append((reward if last else 0.0, None if ends else after))
    counts: dict[str, int] = defaultdict(int)
    for (state, _), found in seen.items():
        counts[state] += len(found)
    q = dict.fromkeys(seen, 0.0)
    for _ in range(300):
        best = {state: max(min(1.0, q[s, a]) for s, a in q if s == state) for state in counts}
        mean = {
            pair: sum(target(r, None if s is None else best[s], low, high, gamma) for r, s in found) / len(found)
            for pair, found in seen.items()
        }
        left = {pair: len(found) * (1.0 - mean[pair]) for pair, found in seen.items()}
        q = {
            (state, token): mean[state, token]
            + (sum(left[s, b] for s, b in left if s == state and b != token) / (words - 1)) / len(found)
            for (state, token), found in seen.items()
        }
    return {pair: min(1.0, value) for pair, value in q.items()}


def target(reward: float, best: float | None, low: float, high: float, gamma: float) -> float:
    value = reward + (0.0 if best is None else gamma * (low + (high - low) * best))
    return min(1.0, max(0.0, (value - low) / (high - low)))


class Learned:
    """Logits of p and of its target copy by state, and pi_beta as the data have it."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        self.batch: TokenBatch = table_batch(episodes)
        self.names = prefixes(self.batch)
        counts = torch.zeros(len(self.names), VOCABULARY)
        counts.index_put_((self.batch.state, self.batch.token), torch.ones(self.batch.n_tokens), accumulate=True)
        # States at the end of truncated episodes alone share the row of the same text elsewhere.
        same = torch.tensor([[float(a == b) for b in self.names] for a in self.names])
        self.share = same @ counts
        self.base = self.share.clamp(min=1e-6).log().masked_fill(INVALID, -torch.inf)
        self.first = torch.tensor([self.names.index(name) for name in self.names])
        self.logits = torch.zeros(len(self.names), VOCABULARY, requires_grad=True)

    def loss(self, scores: Tensor, target: Tensor, low: float, high: float, gamma: float) -> Tensor:
        batch = self.batch
        (bottom, top) = torch.tensor([low, high])
        assert batch.next is not None
        best = best_ratio(mask_scores(target, INVALID), self.base, SUPPORT)[batch.next]
        weight = qsft_weight(batch.reward, best, batch.terminated, gamma=gamma, low=bottom, high=top)
        base_nll = gather_token_scores(self.base, batch.state, batch.token).nll
        return qsft_loss(
            token_nll(scores, batch.state, batch.token, INVALID), base_nll, weight, low=bottom, high=top
        ).loss

    def fit(self, low: float, high: float, gamma: float = GAMMA, backups: int = 60) -> "Learned":
        """Fit by backups; each finds the minimiser for a fixed target copy, since the cross-entropy is convex."""
        for _ in range(backups):
            target = self.logits.detach()[self.first]
            optimizer = torch.optim.LBFGS([self.logits], max_iter=60, line_search_fn="strong_wolfe")

            def closure(optimizer: torch.optim.Optimizer = optimizer, target: Tensor = target) -> Tensor:
                optimizer.zero_grad()
                loss = self.loss(self.logits[self.first], target, low, high, gamma)
                loss.backward()
                return loss

            optimizer.step(closure)  # type: ignore[arg-type]
        return self

    def q(self, state: str, token: str) -> float:
        p = mask_scores(self.logits.detach()[self.first], INVALID)
        assert isinstance(p, Tensor)
        return float(probability_ratio(p, self.base, SUPPORT)[self.names.index(state), ord(token)])


#: Actions of one to three tokens; the second and the last episode are cut short.
DETERMINISTIC = [
    episode("s", "abc", "t", "x", rewards=[-1, 2], terminated=True),
    episode("s", "abc", "t", "y", "u", rewards=[-1, -3], terminated=False),
    episode("s", "d", "u", "zw", rewards=[-2, 1], terminated=True),
    episode("s", "h", "t", rewards=[0], terminated=False),
]
STOCHASTIC = [
    episode("s", "ab", "t", "x", rewards=[-1, 2], terminated=True),
    episode("s", "ab", "u", "x", rewards=[0, -3], terminated=True),
    episode("s", "ab", "t", "y", rewards=[-1, 0], terminated=True),
    episode("s", "c", rewards=[1], terminated=True),
    episode("s", "c", rewards=[-4], terminated=True),
    episode("s", "c", "u", rewards=[0], terminated=False),
    episode("u", "y", "t", rewards=[-1], terminated=False),
]


@pytest.mark.parametrize("data", [DETERMINISTIC, STOCHASTIC], ids=["deterministic", "stochastic"])
@pytest.mark.parametrize(("low", "high"), [(-6.0, 3.0), (-12.0, 4.0)])
def test_ratios_are_the_fixed_point(data: list[Episode], low: float, high: float) -> None:
    learned = Learned(data).fit(low, high)
    expected = dynamic_programming(data, low, high)
    found = {pair: learned.q(*pair) for pair in expected}
    assert found == pytest.approx(expected, abs=1e-2)
    assert max(expected.values()) - min(expected.values()) > 0.2


@pytest.mark.parametrize("data", [DETERMINISTIC, STOCHASTIC], ids=["deterministic", "stochastic"])
def test_the_spread_lifts_values_by_what_the_page_says(data: list[Episode]) -> None:
    """They rise at most by ``sum over b of pi(b) (1 - W(b)) / ((K - 1) pi(a))`` at each of the tokens ahead."""
    exact, lifted = (dynamic_programming(data, -6.0, 3.0, words) for words in (float("inf"), K))
    learned = Learned(data)
    rarest = float((learned.share / learned.share.sum(-1, keepdim=True).clamp(min=1.0))[learned.share > 0].min())
    most = 1.0 / ((K - 1) * rarest)
    assert all(0.0 <= lifted[pair] - exact[pair] <= 4 * most for pair in exact)
    assert max(lifted[pair] - exact[pair] for pair in exact) > 1e-3


def test_without_a_spread_values_are_those_of_q_learning() -> None:
    q = dynamic_programming(DETERMINISTIC, -6.0, 3.0, float("inf"))
    back = {pair: -6.0 + 9.0 * value for pair, value in q.items()}
    assert back["t", "x"] == pytest.approx(2.0) and back["uz", "w"] == pytest.approx(1.0)
    assert back["t", "y"] == pytest.approx(-3.0 + 0.9 * 0.9)  # from "u" the best is .9
    assert back["sab", "c"] == pytest.approx(-1.0 + 0.9 * 2.0) and back["s", "a"] == pytest.approx(0.81 * 0.8)
    assert back["s", "d"] == pytest.approx(-2.0 + 0.9 * 0.9)
    assert back["s", "h"] == pytest.approx(0.9 * 2.0)


def test_the_minimiser_of_one_state() -> None:
    """p(a) = pi(a) W(a) + sum over b != a of pi(b) (1 - W(b)) / (K - 1), for tokens that are never said too."""
    token = torch.tensor([100, 100, 101, 102])
    weight = torch.tensor([1.0, 0.4, 0.2, 0.0])
    logits = torch.zeros(1, VOCABULARY, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=500, line_search_fn="strong_wolfe", tolerance_grad=1e-9)
    state = torch.zeros(4, dtype=torch.long)
    zero = torch.tensor(0.0)
    one = torch.tensor(1.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = qsft_loss(token_nll(logits, state, token, INVALID), torch.zeros(4), weight, low=zero, high=one).loss
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    p = logits.detach()[0].masked_fill(INVALID, -torch.inf).softmax(-1)
    left = {100: 0.5 * 0.3, 101: 0.25 * 0.8, 102: 0.25}
    own = {100: 0.5 * 0.7, 101: 0.25 * 0.2, 102: 0.0}
    for word in range(VOCABULARY):
        others = sum(mass for other, mass in left.items() if other != word) / (K - 1)
        expected = 0.0 if INVALID[word] else own.get(word, 0.0) + others
        assert float(p[word]) == pytest.approx(expected, abs=1e-4)


def test_weights_are_cut_to_a_share_and_the_rest_is_told() -> None:
    low = torch.tensor(-2.0)
    high = torch.tensor(2.0)
    reward = torch.tensor([-5.0, 0.0, 9.0, 1.0])
    ended = torch.tensor([True, True, True, False])
    weight = qsft_weight(reward, torch.tensor([1.0, 1.0, 1.0, 0.25]), ended, gamma=0.5, low=low, high=high)
    assert weight.tolist() == pytest.approx([-0.75, 0.5, 2.75, (1.0 + 0.5 * -1.0 + 2.0) / 4.0])
    state = torch.zeros(4, dtype=torch.long)
    token = torch.tensor([100, 101, 102, 103])
    nll = token_nll(torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(0)), state, token, INVALID)
    found = qsft_loss(nll, nll.own, weight, low=low, high=high)
    w = [0.0, 0.5, 1.0, 0.625]
    terms = [a * own + (1 - a) * other for a, own, other in zip(w, nll.own.tolist(), nll.others.tolist(), strict=True)]
    assert float(found.loss) == pytest.approx(sum(terms) / 4)
    assert float(found.cut) == 0.5
    assert float(found.target) == pytest.approx(float((low + 4.0 * weight).mean()))
    assert float(found.q_mean) == pytest.approx(2.0)  # a ratio of 1 everywhere


def test_ratios_of_the_support_alone() -> None:
    base = torch.tensor([[0.6, 0.3, 0.099, 0.001], [0.4, 0.3, 0.2, 0.1]]).log()
    p = torch.tensor([[0.3, 0.6, 0.05, 0.05], [0.2, 0.1, 0.1, 0.6]]).log()
    found = probability_ratio(p, base, 0.09)
    torch.testing.assert_close(found, torch.tensor([[0.5, 1.0, 0.05 / 0.099, 0.0], [0.5, 1 / 3, 0.5, 1.0]]))
    torch.testing.assert_close(probability_ratio(p, base, 0.9)[:, 1:], torch.zeros(2, 3))
    assert best_ratio(p, base, 0.09).tolist() == pytest.approx([1.0, 1.0])
    assert best_ratio(p, base, 0.2).tolist() == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize("cap", [None, 10.0])
def test_factors_give_what_the_table_gives(monkeypatch: pytest.MonkeyPatch, cap: float | None) -> None:
    """No table is made for large vocabularies; the best ratio takes some states at a time."""
    g = torch.Generator().manual_seed(0)
    hidden, weight, bias = (torch.randn(shape, generator=g) for shape in ((6, 5), (VOCABULARY, 5), (VOCABULARY,)))
    state = torch.tensor([0, 5, 3, 3])
    token = torch.tensor([64, 127, 90, 91])
    monkeypatch.setattr("lmrl.losses.qsft._MAX_TABLE_SCORES", 2 * VOCABULARY)
    for b in (bias, None):
        factors = [LinearScores(hidden, weight, b, cap), LinearScores(hidden.flip(0), weight, b, cap)]
        tables = [soft_cap(torch.nn.functional.linear(h, weight, b), cap) for h in (hidden, hidden.flip(0))]
        for found, expected in zip(
            token_nll(factors[0], state, token, INVALID), token_nll(tables[0], state, token, INVALID), strict=True
        ):
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        ours, theirs = ([mask_scores(scores, INVALID) for scores in both] for both in (factors, tables))
        torch.testing.assert_close(best_ratio(*ours, SUPPORT), best_ratio(*theirs, SUPPORT))
        assert len(set(best_ratio(*theirs, SUPPORT).tolist())) > 1
