"""A batch says the same as its segments, however little of them is read."""

import numpy as np
import pytest
import torch

from lmrl.losses import gather_token_scores, ilql_loss, returns_to_go, td_target
from lmrl.models.lm import build_lm, hidden_states, trunk_of
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.encoding import Window
from tests.helpers.doubles import CHARS, VOCABULARY, corridor, cut, episode, prefixes

LONG = "you stand in a hall"
OTHER = "you stand in a kitchen"
MIXED = [
    *(
        episode(LONG, f"go {first}\n", OTHER, f"go {second}\n", LONG, rewards=[1, 2], terminated=first == second)
        for first in "ns"
        for second in "nw"
    ),
    *corridor(("go L\n", "go R\n"))[::5],
    episode("start", "a\n", "next", "bb\n", "last", rewards=[1, 2], terminated=False),
    episode("start", "a\n", "else", rewards=[3], terminated=True),
]
WINDOWS = [Window(), Window(texts=1), Window(texts=3), Window(tokens=9)]


@pytest.mark.parametrize("window", WINDOWS)
def test_every_token_finds_its_state_and_its_next_state(window: Window) -> None:
    parts = cut(MIXED, window)
    batch = collate(parts, pad=0)
    expected = []
    following = []
    ends = []
    for part in parts:
        whole = CHARS.decode(part.ids.tolist())
        states = [whole[: col + 1] for col in part.col.tolist()]
        after = None if part.next_ids is None else CHARS.decode(part.next_ids.tolist())
        expected += states
        following += [*states[1:], after if after is not None else states[-1]]
        ends += [False] * (len(states) - 1) + [after is None]
    names = prefixes(batch)
    assert [names[i] for i in batch.state.tolist()] == expected
    assert [names[i] for i in batch.next.tolist()] == following
    assert batch.terminated.tolist() == ends
    assert CHARS.decode(batch.token.tolist()) == "".join(CHARS.decode(part.token.tolist()) for part in parts)
    assert batch.reward.tolist() == [float(r) for part in parts for r in part.reward]


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
def test_every_token_finds_the_state_that_has_read_it_and_the_end_of_its_action(
    window: Window, bootstrap: bool
) -> None:
    parts = cut(MIXED, window)
    batch = collate(parts, bootstrap=bootstrap, after=True)
    names = prefixes(batch)
    read = [CHARS.decode(part.ids.tolist())[: col + 2] for part in parts for col in part.col.tolist()]
    assert [names[i] for i in batch.after.tolist()] == read
    last = [place == len(action) - 1 for e in MIXED for action in e.actions for place in range(len(action))]
    assert batch.turn_end.tolist() == last
    assert collate(parts).after is None and batch.without_targets().turn_end.tolist() == []


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("widest", [27, 2_048])
@pytest.mark.parametrize("window", WINDOWS)
def test_hidden_vectors_equal_those_of_each_segment_alone(
    kind: str, window: Window, widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmrl.tokens.collate._MAX_BRANCHED_IDS", widest)
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 2, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
    small = {"n_embd": 16, "n_positions": 128} if kind == "gpt2" else {**sizes, "max_position_embeddings": 128}
    model = build_lm(None, {"model_type": kind, **small}, VOCABULARY)
    parts = cut(MIXED, window)
    batch = collate(parts)
    with torch.no_grad():
        together = hidden_states(trunk_of(model), batch)[batch.state]
        alone = [
            trunk_of(model)(input_ids=torch.from_numpy(p.ids)[None].long()).last_hidden_state[0][
                torch.from_numpy(p.col).long()
            ]
            for p in parts
        ]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", WINDOWS)
def test_what_follows_is_read_only_where_it_is_asked_for(window: Window) -> None:
    parts = cut(MIXED, window)
    batch = collate(parts, 127, observations=True)
    short = collate(parts, 127, observations=True, bootstrap=False)
    assert short.next is None
    assert (short.input_ids != 127).sum() < (batch.input_ids != 127).sum()
    for at in ("state", "observation_state"):
        mine = prefixes(short)
        theirs = prefixes(batch)
        said = [mine[i] for i in getattr(short, at).tolist()]
        assert sorted(said) == sorted(theirs[i] for i in getattr(batch, at).tolist())
    assert short.terminated.tolist() == batch.terminated.tolist()


def test_actions_after_the_same_context_are_branches() -> None:
    batch = collate(cut(MIXED[:4], Window(texts=1)))
    assert batch.mask is not None
    assert batch.input_ids.shape == (2, len(OTHER) + 2 * len("go n\n"))
    assert len(batch.row) == 2 * (1 + 2 * 4)  # per context: its end, and within each of two actions


def test_branches_do_not_make_rows_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """One mask is for all rows of a batch, and has the square of their width."""
    actions = [f"go {letter}\n" for letter in "abcdef"]
    games = cut([episode(LONG, action, "", rewards=[0], terminated=True) for action in actions], Window())
    one = len(LONG) + len(actions[0])
    assert collate(games).input_ids.shape == (1, len(LONG) + 6 * len(actions[0]))
    monkeypatch.setattr("lmrl.tokens.collate._MAX_BRANCHED_IDS", one + len(actions[0]))
    assert collate(games).input_ids.shape == (3, one + len(actions[0]))
    longer = cut([episode(LONG * 2, "go n\n", "", rewards=[0], terminated=True)], Window())
    batch = collate([*games, *longer])
    assert len(batch.input_ids) == 7 and batch.mask is None


def test_what_repeats_is_read_once() -> None:
    batch = collate(cut(corridor(), Window(texts=1)))
    assert batch.n_tokens == 62
    assert batch.input_ids.shape == (3, 3)  # states 0, 1, 2, each with its two actions as branches
    assert batch.mask is not None
    assert batch.positions is not None
    assert batch.positions[0].tolist() == [0, 1, 1]


def test_a_long_continuation_is_not_a_branch() -> None:
    """Rows stay about as long as segments: histories that only begin alike do not end up in one row."""
    batch = collate(
        cut([episode("s", f"{i}", "x" * 20, "a", rewards=[0, 0], terminated=True) for i in range(5)], Window())
    )
    assert batch.input_ids.shape == (5, 23)
    assert batch.mask is None


def loss_of(batch: TokenBatch, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = gather_token_scores(q, batch.state, batch.token)
    target = scores.score.detach() - 0.3
    return ilql_loss(
        [scores], [target], v[batch.state], v[batch.next], batch.reward, batch.terminated,
        gamma=0.9, expectile=0.8, cql_weight=0.1,
    ).loss  # fmt: skip


def values_by_text(batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Arbitrary numbers that depend on nothing but what has been read."""
    q = []
    v = []
    for name in prefixes(batch):
        generator = torch.Generator().manual_seed(sum((i + 1) * ord(c) for i, c in enumerate(name)))
        q.append(torch.randn(VOCABULARY, generator=generator))
        v.append(torch.randn((), generator=generator))
    return torch.stack(q), torch.stack(v)


def test_loss_does_not_depend_on_padding_or_order() -> None:
    parts = cut(MIXED, Window(texts=1))
    loss = loss_of(batch := collate(parts, pad=0), *values_by_text(batch))
    for other in (collate(parts, pad=99), collate(parts[::-1]), collate([*parts[5:], *parts[:5]])):
        torch.testing.assert_close(loss_of(other, *values_by_text(other)), loss)


def test_values_elsewhere_than_at_the_states_get_no_gradient() -> None:
    batch = collate(cut(MIXED, Window()))
    table = torch.randn(*batch.input_ids.shape, requires_grad=True)
    v = table[batch.row, batch.col]
    loss_of(batch, torch.zeros(len(v), VOCABULARY), v).backward()
    assert table.grad is not None
    speaking = torch.zeros_like(table, dtype=torch.bool)
    speaking[batch.row[batch.state], batch.col[batch.state]] = True
    assert not table.grad[~speaking].any()
    assert table.grad[speaking].abs().sum() > 0


@pytest.mark.parametrize("terminated", [True, False])
def test_cutting_into_segments_leaves_targets_and_returns_as_they_are(terminated: bool) -> None:
    said = episode("ab", "xy\n", "c", "z\n", "d", "w\n", "e", rewards=[-1, 2.5, 7], terminated=terminated)
    g = torch.Generator().manual_seed(0)
    worth = torch.randn(8, generator=g)  # of the seven action tokens' states, and of the end
    targets = []
    returns = []
    for window in (Window(), Window(texts=1), Window(texts=2)):
        batch = collate(cut([said], window))
        v = torch.full((len(batch.row),), torch.nan)
        v[batch.next[-1]] = worth[7]
        v[batch.state] = worth[:7]
        targets.append(td_target(batch.reward, v[batch.next], batch.terminated, 0.9))
        returns.append(returns_to_go(np.concatenate([part.reward for part in cut([said], window)]), 0.9))
    torch.testing.assert_close(targets[0], targets[1], rtol=0, atol=0)
    torch.testing.assert_close(targets[0], targets[2], rtol=0, atol=0)
    assert (returns[0] == returns[1]).all()
    assert targets[0][-1].item() == pytest.approx(7.0 if terminated else 7.0 + 0.9 * worth[7].item())


def test_an_empty_batch_has_no_tokens() -> None:
    batch = collate([])
    assert batch.n_tokens == 0
    assert batch.input_ids.shape[0] == 0


def test_no_position_lies_beyond_the_longest_context() -> None:
    """A row of many branches is wider than a model may read; its neighbours' padding has positions too."""
    branches = [
        episode("a long dark hall", f"{word}\n", rewards=[0], terminated=True) for word in ("north", "south", "west")
    ]
    batch = collate(cut([*branches, episode("cellar", "up\n", rewards=[0], terminated=True)], Window(texts=1)))
    assert batch.positions is not None
    assert batch.input_ids.shape[1] > int(batch.positions.max()) + 1 == len("a long dark hallnorth\n")
