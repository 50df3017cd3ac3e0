"""Tests of predicting observations: they count once, apart from the actions, and only if that is asked for."""

import math

import pytest
import torch

from lmrl.losses import bc_loss
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.encoding import Window
from tests.helpers.doubles import cut, episode

EPISODES = [
    episode("ab", "x\n", "cd", "y\n", "e", rewards=[0, 1], terminated=True),
    episode("ab", "z\n", "e", rewards=[1], terminated=True),
]


def said_and_read(batch: TokenBatch) -> tuple[int, int]:
    assert batch.observation_token is not None
    return batch.n_tokens, len(batch.observation_token)


def test_what_is_read_is_not_said() -> None:
    batch = collate(cut(EPISODES[:1], Window()), observations=True)
    # a b | x \n | c d | y \n: a has nothing before it, the last text follows the last action.
    assert said_and_read(batch) == (4, 3)
    plain = collate(cut(EPISODES[:1], Window()))
    assert plain.observation_token is None
    assert torch.equal(plain.input_ids, batch.input_ids)


def test_what_episodes_share_counts_as_often_as_they_have_it() -> None:
    batch = collate(cut(EPISODES, Window(texts=1)), observations=True)
    assert said_and_read(batch) == (6, 3)  # b after a in both episodes, and d after c


def test_answers_weigh_as_often_as_they_were_given() -> None:
    """Nine of ten episodes go on with "y", one with "n", and all of them end alike."""
    asked = [episode("q", "a\n", "yn"[i == 9], "b\n", rewards=[0, 0], terminated=True) for i in range(10)]
    batch = collate(cut(asked, Window()), observations=True)
    assert batch.observation_token is not None
    assert sorted(map(chr, batch.observation_token.tolist())) == ["n"] + ["y"] * 9


def test_windows_that_overlap_read_each_observation_once() -> None:
    """In a window of three texts only the newest observation is new, and earlier actions are no observations."""
    long = [episode("ab", "x\n", "cd", "y\n", "ef", "z\n", "gh", "w\n", rewards=[0] * 4, terminated=True)]
    parts = cut(long, Window(texts=3))
    assert [part.new_col for part in parts] == [0, 4, 4]
    batch = collate(parts, observations=True)
    assert batch.observation_token is not None
    assert sorted(map(chr, batch.observation_token.tolist())) == list("bcdefgh")
    assert sum(part.n_observation_tokens for part in parts) == 7


def test_read_tokens_are_looked_up_before_they_come() -> None:
    batch = collate(cut(EPISODES, Window()), observations=True)
    assert batch.observation_state is not None
    assert batch.observation_token is not None
    before = batch.input_ids[batch.row[batch.observation_state], batch.col[batch.observation_state]]
    pairs = zip(map(chr, before.tolist()), map(chr, batch.observation_token.tolist()), strict=True)
    assert sorted(map("".join, pairs)) == ["\nc", "ab", "ab", "cd"]


def test_the_loss_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    state = torch.tensor([0])
    token = torch.tensor([1])
    observation_state = torch.tensor([1, 0])
    observation_token = torch.tensor([1, 0])
    found = bc_loss(logits, state, token, observation_state, observation_token, observation_loss_weight=0.5)
    nll = math.log(4)
    read = (math.log(1 / 0.8) + math.log(2)) / 2
    assert found.nll is not None
    assert found.read_nll is not None
    assert [float(v) for v in (found.nll, found.read_nll)] == pytest.approx([nll, read])
    assert float(found.loss) == pytest.approx(nll + 0.5 * read)
    assert float(bc_loss(logits, state, token).loss) == pytest.approx(nll)
