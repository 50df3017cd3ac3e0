"""Stand-ins that make claims about the learning code exact: a character tokenizer, and tables in place of networks."""

from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import Tensor

from lmrl.losses import TokenScores, gather_token_scores
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.encoding import Encoder, Window
from lmrl.tokens.segments import Segment, segments
from lmrl.types import Episode

VOCABULARY = 128


class CharEncoder(Encoder):
    """One id per character."""

    def __init__(self) -> None:
        self.tokenizer = range(VOCABULARY)  # type: ignore[assignment]

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


CHARS = CharEncoder()
MARKOV = Window(texts=1)


def episode(*texts: str, rewards: Sequence[float], terminated: bool, truncated: bool | None = None) -> Episode:
    """Return an episode of alternating texts, an observation first; a missing last observation counts as ``$``."""
    spoken = list(texts) if len(texts) % 2 else [*texts, "$"]
    cut = not terminated if truncated is None else truncated
    return Episode("toy", tuple(spoken[::2]), tuple(spoken[1::2]), tuple(map(float, rewards)), terminated, cut)


def cut(episodes: Sequence[Episode], window: Window = MARKOV) -> list[Segment]:
    return [segment for e in episodes for segment in segments(e, CHARS, window)]


def prefixes(batch: TokenBatch) -> list[str]:
    """Return the text that has been read in each of the S states, found by the mask alone."""
    found = []
    for row, col in zip(batch.row.tolist(), batch.col.tolist(), strict=True):
        seen = torch.arange(batch.input_ids.shape[1]) <= col if batch.mask is None else batch.mask[row, 0, col]
        found.append(CHARS.decode(batch.input_ids[row][seen].tolist()))
    return found


class Tables:
    """Values of states by the text read so far, in place of a network. If V must reach a maximum, start below it."""

    def __init__(self, batch: TokenBatch, heads: int = 2, start: float = 0.0) -> None:
        self.batch = batch
        names = sorted(set(prefixes(batch)))
        self.of = {name: index for index, name in enumerate(names)}
        self.state = torch.tensor([self.of[name] for name in prefixes(batch)])
        self.q = [torch.full((len(names), VOCABULARY), start).requires_grad_() for _ in range(heads)]
        self.v = torch.full((len(names),), start).requires_grad_()

    def gather_token_scores(self, head: Tensor) -> TokenScores:
        return gather_token_scores(head[self.state], self.batch.state, self.batch.token)

    def values(self) -> tuple[Tensor, Tensor]:
        """Return V of the states, and of the states in which the policy speaks next, (N,) each."""
        value = self.v[self.state]
        return value[self.batch.state], value[self.batch.next]

    def fit(self, loss: Callable[["Tables"], Tensor], steps: int = 400, rate: float = 1.0) -> None:
        """Run gradient descent with a step that suits a mean over N tokens, of which each entry sees its share."""
        count = torch.zeros_like(self.v).index_add_(0, self.state[self.batch.state], torch.ones(self.batch.n_tokens))
        pairs = torch.zeros(len(self.v), VOCABULARY)
        pairs.index_put_(
            (self.state[self.batch.state], self.batch.token), torch.ones(self.batch.n_tokens), accumulate=True
        )
        for _ in range(steps):
            gradients = torch.autograd.grad(loss(self), [*self.q, self.v], allow_unused=True)
            with torch.no_grad():
                for table, gradient in zip([*self.q, self.v], gradients, strict=True):
                    if gradient is not None:
                        share = count if table is self.v else pairs
                        table -= rate * gradient * self.batch.n_tokens / share.clamp(min=1)

    def v_of(self, *names: str) -> list[float]:
        return [self.v[self.of[name]].item() for name in names]

    def q_of(self, name: str, action: str, head: int = 0) -> float:
        return self.q[head][self.of[name], ord(action)].item()


def corridor(actions: tuple[str, str] = ("L", "R")) -> list[Episode]:
    """Return all 2**3 action strings from the states 0, 1 and 2, with the goal 3; -1 a step, 0 at the goal."""
    episodes = []
    for start, choices in product((0, 1, 2), product(range(2), repeat=3)):
        here = start
        texts = [str(start)]
        rewards = []
        for choice in choices:
            here = min(3, here + 1) if choice else max(0, here - 1)
            texts += [actions[choice], str(here)]
            rewards.append(0.0 if here == 3 else -1.0)
            if here == 3:
                break
        episodes.append(episode(*texts, rewards=rewards, terminated=here == 3))
    return episodes


def table_batch(episodes: Sequence[Episode], window: Window = MARKOV) -> TokenBatch:
    return collate(cut(episodes, window))
