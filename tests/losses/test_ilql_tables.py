"""ILQL against fixed points that are known exactly, with tables in place of networks."""

import pytest
import torch
from torch import Tensor

from lmrl.losses import ilql_loss, mc_loss
from lmrl.tokens.collate import collate
from lmrl.tokens.encoding import Window
from tests.helpers.doubles import MARKOV, Tables, corridor, cut, episode, table_batch


def learn(tables: Tables, expectile: float, gamma: float, steps: int = 200, rate: float = 1.0) -> Tables:
    def loss(t: Tables) -> Tensor:
        value, following = t.values()
        q = [t.gather_token_scores(head) for head in t.q]
        return ilql_loss(
            q,
            [head.score.detach() for head in q],
            value,
            following,
            t.batch.reward,
            t.batch.terminated,
            gamma=gamma,
            expectile=expectile,
            cql_weight=0.0,
        ).loss

    tables.fit(loss, steps, rate)
    return tables


CORRIDOR = {
    0.5: ((-5.7120, -4.7591, -2.6416), (-6.1408, -6.1408, -5.2832), (-5.2832, -3.3775, 0.0)),
    0.9: ((-2.3389, -1.3931, -0.2254), (-3.1050, -3.1050, -2.2537), (-2.2537, -1.2028, 0.0)),
    0.99: ((-1.9393, -1.0347, -0.0193), None, None),
    0.99999: ((-1.9, -1.0, 0.0), (-2.71, -2.71, -1.9), (-1.9, -1.0, 0.0)),
}


@pytest.mark.parametrize("expectile", CORRIDOR)
def test_corridor_with_actions_of_one_token(expectile: float) -> None:
    tables = learn(Tables(table_batch(corridor()), start=-10.0), expectile, gamma=0.9)
    value, left, right = CORRIDOR[expectile]
    assert tables.v_of("0", "1", "2") == pytest.approx(value, abs=1e-3)
    if left is not None and right is not None:
        assert [tables.q_of(s, "L") for s in "012"] == pytest.approx(left, abs=1e-3)
        assert [tables.q_of(s, "R", head=1) for s in "012"] == pytest.approx(right, abs=1e-3)


def test_corridor_with_actions_of_two_tokens_discounts_every_token() -> None:
    batch = table_batch(corridor(("L;", "R;")))
    best = learn(Tables(batch, start=-10.0), 0.99999, gamma=0.9)
    assert best.v_of("0", "1", "2") == pytest.approx((-1.629, -0.9, 0.0), abs=1e-3)
    assert [best.q_of(s, "L") for s in "012"] == pytest.approx((-2.21949, -2.21949, -1.629), abs=1e-3)
    assert [best.q_of(s, "R") for s in "012"] == pytest.approx((-1.629, -0.9, 0.0), abs=1e-3)
    assert learn(Tables(batch), 0.9, gamma=0.9).v_of("0", "1", "2") == pytest.approx(
        (-1.9248, -1.1919, -0.1865), abs=1e-3
    )


@pytest.mark.parametrize(("expectile", "value"), [(0.5, 0.25), (0.7, 0.4375), (0.9, 0.75)])
def test_value_of_one_state_is_the_expectile_of_what_follows(expectile: float, value: float) -> None:
    """Q is 1 with probability 1/4: V = tau p / (tau p + (1 - tau)(1 - p))."""
    data = [episode("s", "w", rewards=[1], terminated=True)]
    data += [episode("s", letter, rewards=[0], terminated=True) for letter in "xyz"]
    assert learn(Tables(table_batch(data)), expectile, gamma=0.9).v_of("s") == pytest.approx([value], abs=1e-4)


STITCH = [
    episode("A", "a", "M", "x", rewards=[0, -10], terminated=True),
    episode("C", "c", "M", "y", rewards=[0, 10], terminated=True),
    episode("A", "b", rewards=[1], terminated=True),
]


@pytest.mark.parametrize(("expectile", "worth"), [(0.9, 7.2), (0.5, 0.0), (0.99, 8.82)])
def test_trajectories_are_stitched_where_contexts_meet(expectile: float, worth: float) -> None:
    tables = learn(Tables(table_batch(STITCH)), expectile, gamma=0.9)
    assert tables.q_of("A", "a") == pytest.approx(worth, abs=1e-2)
    assert tables.q_of("A", "b") == pytest.approx(1.0, abs=1e-3)


def test_nothing_is_stitched_where_the_whole_past_is_read() -> None:
    assert learn(Tables(table_batch(STITCH, Window())), 0.9, 0.9).q_of("A", "a") == pytest.approx(-9.0, abs=1e-2)


def returns_table(batch_of: list, window: Window, gamma: float) -> Tables:  # type: ignore[type-arg]
    from lmrl.datamodules.offline import _with_returns

    tables = Tables(collate([part for e in batch_of for part in _with_returns(cut([e], window), gamma)]), heads=1)
    tables.fit(lambda t: mc_loss(t.gather_token_scores(t.q[0]), t.batch.return_to_go, cql_weight=0.0).loss)
    return tables


def test_monte_carlo_does_not_stitch() -> None:
    assert returns_table(STITCH, MARKOV, 0.9).q_of("A", "a") == pytest.approx(-9.0, abs=1e-3)


def test_monte_carlo_equals_td_of_the_behaviours_value() -> None:
    """Every path of a three-step walk once: then the mean return is what TD with the plain mean finds."""
    paths = []
    for code in range(8):
        place = 0
        texts = ["0,0"]
        rewards = []
        for step in range(3):
            right = code >> step & 1
            rewards.append(float((step + 1) * (place + 2) * (1 if right else -1)))
            place += right
            texts += ["R" if right else "L", f"{step + 1},{place}"]
        paths.append(episode(*texts, rewards=rewards, terminated=True))
    mc = returns_table(paths, MARKOV, 0.9)
    td = learn(Tables(table_batch(paths)), 0.5, gamma=0.9)
    for name in ("0,0", "1,0", "1,1", "2,0", "2,1", "2,2"):
        for action in "LR":
            assert mc.q_of(name, action) == pytest.approx(td.q_of(name, action), abs=1e-3)


def test_a_terminal_win_is_worth_its_reward_and_no_more() -> None:
    """A one-step win must converge to Q = 1, not to 1 / (1 - gamma)."""
    tables = learn(Tables(table_batch([episode("s", "w", "s", rewards=[1], terminated=True)])), 0.7, gamma=0.9)
    assert tables.q_of("s", "w") == pytest.approx(1.0, abs=1e-4)


def test_only_the_last_target_knows_how_an_episode_ended() -> None:
    from lmrl.losses import td_target

    torch.manual_seed(0)
    targets = []
    for terminated in (True, False):
        batch = table_batch([episode("s", "ab", "t", "cd", "u", rewards=[1, 2], terminated=terminated)])
        values = torch.tensor([len(name) * 10.0 + ord(name[-1]) for name in Tables(batch).of])
        names = list(Tables(batch).of)
        following = values[Tables(batch).state][batch.next]
        targets.append(td_target(batch.reward, following, batch.terminated, 0.9))
    end = 0.9 * values[names.index("u")]
    torch.testing.assert_close(targets[1] - targets[0], torch.tensor([0.0, 0.0, 0.0, float(end)]))
