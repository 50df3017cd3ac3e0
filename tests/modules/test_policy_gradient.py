"""Gradients of rounds, expected over all possible rounds, against the exact gradient of the return.

Episodes have one or two turns with actions of one to three tokens. The environment draws its answers, and an episode
that ends after one turn is terminated or truncated.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor

from lmrl.errors import UserError
from lmrl.losses import GRPOColumns, PPOColumns, group_advantages
from lmrl.modules import GAGPO, GRPO, HGPO, PPO, GiGPO
from lmrl.modules import ppo as module_of_ppo
from lmrl.modules.policy_gradient import RolloutCorrection, RolloutEpisode, rollout_episode
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.encoding import Window
from lmrl.tokens.segments import segments
from lmrl.types import Episode
from tests.helpers.doubles import CHARS, VOCABULARY, episode, prefixes

TINY = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 32}
ACTIONS = ("x", "yx", "yzx", "yzz")  # the policy draws x or y, after y x or z, and after yz again x or z
SAID = "xyz"
#: After the first action: what is observed and how likely, the reward, and whether the episode ends there.
FIRST = {
    "x": [("p", 0.3, 1.0, ""), ("q", 0.7, 0.0, "")],
    "yx": [("p", 0.5, -1.0, ""), ("e", 0.5, 2.0, "terminated")],
    "yzx": [("q", 0.8, 0.5, ""), ("e", 0.2, 0.0, "truncated")],
    "yzz": [("e", 1.0, 1.0, "terminated")],
}
#: The reward of the second action, by what was observed before it.
SECOND = {
    "p": {"x": 0.0, "yx": 2.0, "yzx": -1.0, "yzz": 1.0},
    "q": {"x": 1.5, "yx": 0.0, "yzx": 3.0, "yzz": -2.0},
}
WINDOWS = [Window(), Window(texts=1)]


def episodes() -> Iterator[tuple[Episode, float]]:
    """Yield all episodes, and the probability of the environment's part in each."""
    for action in ACTIONS:
        for seen, chance, reward, end in FIRST[action]:
            if end:
                yield episode("s", action, seen, rewards=[reward], terminated=end == "terminated"), chance
                continue
            for second in ACTIONS:
                rewards = [reward, SECOND[seen][second]]
                yield episode("s", action, seen, second, rewards=rewards, terminated=True), chance


class Table:
    """A table of logits by what has been read, in place of a network."""

    def __init__(self, window: Window) -> None:
        draw = torch.Generator().manual_seed(0)
        names = {
            CHARS.decode(part.ids[: col + 1].tolist())
            for one, _ in episodes()
            for part in segments(one, CHARS, window)
            for col in part.col
        }
        self.rows = {name: row for row, name in enumerate(sorted(names))}
        self.logits = torch.randn(len(self.rows), len(SAID), generator=draw).requires_grad_()

    def __call__(self, batch: TokenBatch) -> Tensor:
        rows = torch.tensor([self.rows.get(name, 0) for name in prefixes(batch)])
        full = torch.full((len(rows), VOCABULARY), -1e9)
        return full.index_copy(1, torch.tensor([ord(c) for c in SAID]), self._allowed(rows, batch))

    def _allowed(self, rows: Tensor, batch: TokenBatch) -> Tensor:
        begun = torch.tensor([name.endswith(("y", "yz")) for name in prefixes(batch)])
        forbidden = torch.stack([torch.zeros_like(begun), begun, ~begun], dim=-1)
        return self.logits[rows].masked_fill(forbidden, -1e9)


def sampled(table: Table, window: Window) -> list[tuple[Episode, Tensor]]:
    """Return all episodes as the policy would have noted them, and the probability of each, with its gradient."""
    found = []
    for one, chance in episodes():
        parts = list(segments(one, CHARS, window))
        batch = collate(parts, bootstrap=False)
        logprobs = table(batch).log_softmax(-1)[batch.state, batch.token]
        ids = tuple(CHARS.encode(action) for action in one.actions)
        noted = np.split(logprobs.detach().numpy(), np.cumsum([len(its) for its in ids])[:-1])
        kept = replace(one, action_ids=ids, action_logprobs=tuple(tuple(map(float, turn)) for turn in noted))
        found.append((kept, chance * logprobs.sum().exp()))
    return found


def gradient(value: Tensor, table: Table, keep: bool = False) -> Tensor:
    (found,) = torch.autograd.grad(value, table.logits, retain_graph=keep)
    return found


def discounted(rewards: Sequence[float], gamma: float) -> float:
    return float(sum(gamma**turn * reward for turn, reward in enumerate(rewards)))


def of_the_return(table: Table, window: Window, gamma: float = 1.0) -> Tensor:
    """Return the exact gradient of the expected discounted return."""
    found = sampled(table, window)
    assert sum(p.item() for _, p in found) == pytest.approx(1.0, abs=1e-5)
    return gradient(torch.stack([p * discounted(one.rewards, gamma) for one, p in found]).sum(), table)


def of_a_round(
    module: GRPO | PPO, table: Table, window: Window, played: Sequence[Episode], term: str = "loss"
) -> Tensor:
    """Return the gradient of the loss of a round of these episodes, which began alike."""
    module.invalid = torch.zeros(VOCABULARY, dtype=torch.bool)
    played = [replace(one, info={"group": 0}) for one in played]
    rollout = rollout_of(played, window)
    module.process(rollout)
    batch = collate([part for episode in rollout for part in episode.trained_segments()], bootstrap=False)
    return gradient(getattr(module.losses(batch), term) * batch.scale, table)


def rollout_of(played: Sequence[Episode], window: Window) -> list[RolloutEpisode]:
    parts = [list(segments(one, CHARS, window)) for one in played]
    ref = [np.zeros(sum(len(part.col) for part in its)) for its in parts]
    return [rollout_episode(*its) for its in zip(played, parts, ref, strict=True)]


def expected(module: GRPO | PPO, table: Table, window: Window, size: int, term: str = "loss") -> Tensor:
    """Return the gradient of the loss of a round of `size` episodes, expected over all rounds."""
    total = torch.zeros_like(table.logits)
    for chosen in product(sampled(table, window), repeat=size):
        chance = float(torch.stack([p.detach() for _, p in chosen]).prod())
        total += chance * of_a_round(module, table, window, [one for one, _ in chosen], term)
    return total


def make(kind: type[GRPO], table: Table, **arguments: Any) -> GRPO:
    torch.manual_seed(0)
    module = kind(architecture=TINY, **{"loss_agg_mode": "seq-mean-token-sum", "kl_weight": 0.0, **arguments})
    module.logits = table  # type: ignore[assignment, method-assign]
    return module


def far(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


pytestmark = pytest.mark.filterwarnings("ignore:all advantages")


@pytest.mark.parametrize(("advantage", "share", "window"), [("rloo", 1.0, WINDOWS[0]), ("dr_grpo", 0.5, WINDOWS[1])])
def test_groups_give_the_gradient_of_the_return(window: Window, advantage: str, share: float) -> None:
    table = Table(window)
    found = expected(make(GRPO, table, advantage=advantage), table, window, 2)
    assert far(found, -share * of_the_return(table, window)) < 1e-5


def test_ratios_of_turns_give_the_gradient_of_the_return() -> None:
    table = Table(WINDOWS[1])
    settings = {"importance_sampling_level": "turn", "loss_agg_mode": "seq-mean-turn-sum"}
    found = expected(make(GRPO, table, advantage="rloo", **settings), table, WINDOWS[1], 2)
    assert far(found, -of_the_return(table, WINDOWS[1])) < 1e-5


def test_a_ratio_of_a_whole_action_counts_once_by_default() -> None:
    """Up to the constant, the gradient is that of ratios of tokens, of which an action has one for each."""
    table = Table(WINDOWS[0])
    played = {one.actions: one for one, _ in sampled(table, WINDOWS[0])}
    rounds = [played["yzx", "x"], played["x", "yx"]]
    for kind in (GRPO, GAGPO):
        found = []
        for level, mode in (("turn", None), ("token", "seq-mean-token-sum")):
            module = make(
                kind, table, advantage="dr_grpo", importance_sampling_level=level, gamma=0.9, loss_agg_mode=mode
            )
            found.append(of_a_round(module, table, WINDOWS[0], rounds))
        turns = 4
        assert far(turns * found[0], 2 * found[1]) < 1e-5 < far(found[1], torch.zeros(()))


def test_grpo_climbs_the_chance_to_beat_another_episode() -> None:
    """In groups of two the standardised advantage is the sign of the difference."""
    table = Table(WINDOWS[0])
    window = WINDOWS[0]
    found = sampled(table, window)
    beats = [p * q.detach() * np.sign(one.total_reward - other.total_reward) for one, p in found for other, q in found]
    exact = gradient(torch.stack(beats).sum(), table)
    assert far(expected(make(GRPO, table, advantage="grpo"), table, window, 2), -exact) < 1e-4


def rloo(played: Sequence[Episode]) -> list[float]:
    """Return the advantage of each episode of a group of two over the other one."""
    one, other = (episode.total_reward for episode in played)
    return [one - other, other - one]


def bias(found: Tensor, exact: Tensor) -> float:
    """Return how far a gradient is from any multiple of the exact one."""
    share = float((found * exact).sum() / exact.square().sum())
    return far(found, share * exact)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "turn-mean"])
def test_what_divides_by_lengths_is_biased(mode: str) -> None:
    table = Table(WINDOWS[0])
    window = WINDOWS[0]

    def by_hand(played: Sequence[Episode]) -> list[float]:
        found = []
        tokens = sum(len("".join(one.actions)) for one in played)
        turns = sum(map(len, played))
        for one, advantage in zip(played, rloo(played), strict=True):
            for action in one.actions:
                divisors = {
                    "token-mean": tokens / 2,
                    "seq-mean-token-mean": len("".join(one.actions)),
                    "turn-mean": turns / 2 * len(action),
                }
                found.append(advantage / divisors[mode])
        return found

    found = expected(make(GRPO, table, advantage="rloo", loss_agg_mode=mode), table, window, 2)
    assert far(found, -by_brute_force(table, window, by_hand, 2)) < 1e-5
    assert bias(found, of_the_return(table, window)) > 1e-3


def test_dividing_by_the_episodes_that_reach_a_turn_is_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_index(lengths: Any, mode: str) -> Any:
        reach = [sum(len(its) > turn for its in lengths) for turn in range(2)]
        total = sum(map(sum, lengths))
        return np.asarray([total / reach[t] for its in lengths for t, n in enumerate(its) for _ in range(n)])

    def by_hand(played: Sequence[Episode]) -> list[float]:
        reach = [2, sum(len(one) > 1 for one in played)]
        found = []
        for one, advantage in zip(played, rloo(played), strict=True):
            found += [2 * advantage / reach[turn] for turn in range(len(one))]
        return found

    table = Table(WINDOWS[0])
    window = WINDOWS[0]
    monkeypatch.setattr("lmrl.modules.grpo.loss_weights", by_index)
    found = expected(make(GRPO, table, advantage="rloo"), table, window, 2)
    assert far(found, -by_brute_force(table, window, by_hand, 2)) < 1e-5
    assert bias(found, of_the_return(table, window)) > 1e-2


def test_steps_of_gigpo_weigh_states_by_how_often_others_come_there() -> None:
    """A turn that is alone in its state has no advantage; the others have that of the policy gradient."""
    table = Table(WINDOWS[1])
    window = WINDOWS[1]
    module = make(GiGPO, table, advantage="rloo", step_gamma=1.0)
    found = expected(module, table, window, 2) - expected(make(GRPO, table, advantage="rloo"), table, window, 2)
    every = sampled(table, window)
    visits = {s: sum(p.item() for one, p in every if s in one.observations[: len(one)]) for s in "spq"}
    exact = torch.zeros_like(table.logits)
    for one, p in every:
        batch = collate(list(segments(one, CHARS, window)), bootstrap=False)
        logprobs = table(batch).log_softmax(-1)[batch.state, batch.token]
        turns = np.repeat(np.arange(len(one)), [len(action) for action in one.actions])
        to_come = [sum(one.rewards[turn:]) * visits[one.observations[turn]] for turn in turns]
        exact += p.item() * gradient((torch.tensor(to_come) * logprobs).sum(), table)
    assert far(found, -exact) < 1e-4


@pytest.mark.parametrize("anchor", ["observation", "context"])
def test_gigpo_as_it_comes_also_climbs_the_chance_to_beat_another_turn_in_the_same_state(anchor: str) -> None:
    """In groups of two a standardised advantage is the sign of the difference, of turns as of episodes."""
    window = WINDOWS[0]
    table = Table(window)
    found = sampled(table, window)

    def earned(one: Episode) -> dict[str, float]:
        """Return the return from each turn on, by its state (none comes twice), discounted by GiGPO's 0.95."""
        texts = [text for turn in zip(one.observations, one.actions, strict=False) for text in turn]
        begin = 0 if anchor == "context" else -1
        states = ["".join(texts[: 2 * turn + 1][begin:]) for turn in range(len(one))]
        return {state: discounted(one.rewards[turn:], 0.95) for turn, state in enumerate(states)}

    exact = torch.zeros_like(table.logits)
    for one, p in found:
        batch = collate(list(segments(one, CHARS, window)), bootstrap=False)
        logprobs = table(batch).log_softmax(-1)[batch.state, batch.token]
        said = torch.stack([its.sum() for its in torch.split(logprobs, [len(action) for action in one.actions])])
        for other, chance in found:
            beats = [np.sign(mine - earned(other).get(state, mine)) for state, mine in earned(one).items()]
            weights = torch.tensor(np.sign(one.total_reward - other.total_reward) + np.asarray(beats))
            exact += p.item() * chance.item() * gradient((weights * said).sum(), table, keep=True)
    assert far(expected(make(GiGPO, table, anchor=anchor), table, window, 2), -exact) < 1e-4


def test_steps_of_gigpo_are_compared_within_their_group() -> None:
    table = Table(WINDOWS[1])
    window = WINDOWS[1]
    module = make(GiGPO, table, advantage="dr_grpo")
    played = [replace(one, info={"group": number // 2}) for number, (one, _) in enumerate(sampled(table, window)[:4])]

    def advantages(its: Sequence[Episode]) -> list[list[float]]:
        found = module.turn_advantages(rollout_of(its, window), [np.asarray(one.rewards) for one in its])
        return [turns.tolist() for turns in found]

    assert advantages(played) == [*advantages(played[:2]), *advantages(played[2:])]


def test_the_advantage_among_turns_of_gigpo_has_a_weight() -> None:
    """The episodes return 1 and 0; discounted by 0.5, what followed was 0.5 and 0 in s, and 1 and 0 in t."""
    played = [
        episode("s", "x", "t", "x", "e", rewards=[0.0, 1.0], terminated=True),
        episode("s", "x", "t", "x", "e", rewards=[0.0, 0.0], terminated=True),
    ]
    module = make(GiGPO, Table(WINDOWS[1]), advantage="dr_grpo", step_gamma=0.5, step_weight=0.2)
    first = [0.5 + 0.2 * 0.25, 0.5 + 0.2 * 0.5]
    assert turn_advantages(module, played, [0, 0]) == pytest.approx([*first, -first[0], -first[1]])


#: Two turns in the same room, "o", whose histories differ, and one episode that was truncated.
WALKS = [
    (("a", "o", "e"), [0.0, 3.0], True),
    (("a", "o", "e"), [1.0, 1.0], True),
    (("b", "o", "o", "e"), [0.5, 2.0, 0.25], True),
    (("o", "b", "o", "c"), [-1.0, 0.0, 2.0], False),
]


def walks() -> list[Episode]:
    """Return episodes of one group, whose actions are all "x"."""
    found = []
    for observations, rewards, terminated in WALKS:
        texts = ["x"] * (2 * len(observations) - 1)
        texts[::2] = observations
        found.append(episode(*texts, rewards=rewards, terminated=terminated))
    return found


def turn_advantages(module: GRPO, played: Sequence[Episode], groups: Sequence[int]) -> list[float]:
    noted = []
    for one, group in zip(played, groups, strict=True):
        ids = tuple(CHARS.encode(action) for action in one.actions)
        logprobs = tuple((0.0,) * len(its) for its in ids)
        noted.append(replace(one, info={"group": group}, action_ids=ids, action_logprobs=logprobs))
    rollout = rollout_of(noted, WINDOWS[1])
    rewards = [np.asarray(one.rewards) for one in played]
    return [float(one) for turns in module.turn_advantages(rollout, rewards) for one in turns]


def turns_of(played: Sequence[Episode], gamma: float) -> list[tuple[Sequence[str], float]]:
    """Return, for each turn, what was observed up to it and the return from there on."""
    found = []
    for one in played:
        for turn in range(len(one)):
            found.append((one.observations[: turn + 1], discounted(one.rewards[turn:], gamma)))
    return found


def hgpo_by_hand(played: Sequence[Episode], gamma: float, history: int, power: float) -> list[float]:
    turns = turns_of(played, gamma)
    found = []
    for seen, own in turns:
        above = 0.0
        below = 0.0
        for level in range(history + 1):
            if len(seen) <= level:
                continue
            alike = [
                other for texts, other in turns if len(texts) > level and texts[-level - 1 :] == seen[-level - 1 :]
            ]
            if len(alike) > 1:
                above += (level + 1) ** power * (own - sum(alike) / len(alike))
                below += (level + 1) ** power
        found.append(above / below if below else 0.0)
    return found


def gagpo_by_hand(played: Sequence[Episode], gamma: float, decay: float) -> list[float]:
    turns = turns_of(played, gamma)

    def value(text: str) -> float:
        visits = [own for seen, own in turns if seen[-1] == text]
        return sum(visits) / len(visits)

    found = []
    for one in played:
        for first in range(len(one)):
            total = 0.0
            for turn in range(first, len(one)):
                after = value(one.observations[turn + 1]) if turn + 1 < len(one) else 0.0
                error = one.rewards[turn] + gamma * after - value(one.observations[turn])
                total += (gamma * decay) ** (turn - first) * error
            found.append(total)
    return [one - sum(found) / len(found) for one in found]


@pytest.mark.parametrize(("history", "power"), [(0, 1.0), (1, 1.0), (2, 1.0), (2, 0.5)])
def test_hgpo_compares_turns_by_ever_longer_histories(history: int, power: float) -> None:
    module = make(HGPO, Table(WINDOWS[1]), history=history, level_power=power, gamma=0.9)
    exact = hgpo_by_hand(walks(), 0.9, history, power)
    assert turn_advantages(module, walks(), [0] * 4) == pytest.approx(exact, abs=1e-9)
    apart = hgpo_by_hand(walks()[:2], 0.9, history, power) + hgpo_by_hand(walks()[2:], 0.9, history, power)
    assert turn_advantages(module, walks(), [0, 0, 1, 1]) == pytest.approx(apart, abs=1e-9)


def test_the_worked_example_of_hgpo() -> None:
    """The returns in the same state are 3, 1 and 2; the first two also share what was observed before it."""
    played = [
        episode("a", "x", "o", "x", "e", rewards=[0.0, 3.0], terminated=True),
        episode("a", "x", "o", "x", "e", rewards=[0.0, 1.0], terminated=True),
        episode("b", "x", "o", "x", "e", rewards=[0.0, 2.0], terminated=True),
    ]
    module = make(HGPO, Table(WINDOWS[1]), history=1, gamma=1.0)
    found = turn_advantages(module, played, [0, 0, 0])
    assert found == pytest.approx([1.0, 1.0, -1.0, -1.0, 0.0, 0.0])


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
def test_gagpo_is_generalised_advantage_estimation_with_means_of_the_group(decay: float) -> None:
    module = make(GAGPO, Table(WINDOWS[1]), advantage="dr_grpo", gae_lambda=decay, gamma=0.9)
    assert turn_advantages(module, walks(), [0] * 4) == pytest.approx(gagpo_by_hand(walks(), 0.9, decay), abs=1e-9)
    apart = gagpo_by_hand(walks()[:2], 0.9, decay) + gagpo_by_hand(walks()[2:], 0.9, decay)
    assert turn_advantages(module, walks(), [0, 0, 1, 1]) == pytest.approx(apart, abs=1e-9)


def test_the_worked_example_of_gagpo() -> None:
    played = [
        episode("s", "x", "t", "x", "e", rewards=[0.0, 1.0], terminated=True),
        episode("s", "x", "t", "x", "e", rewards=[0.0, 0.0], terminated=True),
    ]
    module = make(GAGPO, Table(WINDOWS[1]), advantage="dr_grpo", gae_lambda=0.8, gamma=1.0)
    assert turn_advantages(module, played, [0, 0]) == pytest.approx([0.4, 0.5, -0.4, -0.5])
    standardised = make(GAGPO, Table(WINDOWS[1]), gae_lambda=0.8, gamma=1.0)
    spread = np.sqrt((0.4**2 + 0.5**2) / 2)
    exact = np.array([0.4, 0.5, -0.4, -0.5]) / spread
    assert turn_advantages(standardised, played, [0, 0]) == pytest.approx(exact, abs=1e-4)


def by_brute_force(
    table: Table, window: Window, advantages: Callable[[Sequence[Episode]], Sequence[float]], size: int
) -> Tensor:
    """Return the gradient of the mean over all rounds of ``advantage * log-probability``, turn by turn."""
    found = []
    for one, p in sampled(table, window):
        batch = collate(list(segments(one, CHARS, window)), bootstrap=False)
        logprobs = table(batch).log_softmax(-1)[batch.state, batch.token]
        said = torch.split(logprobs, [len(action) for action in one.actions])
        found.append((one, p.item(), [gradient(turn.sum(), table, keep=True) for turn in said]))
    total = torch.zeros_like(table.logits)
    for chosen in product(found, repeat=size):
        chance = float(np.prod([p for _, p, _ in chosen]))
        weights = advantages([one for one, _, _ in chosen])
        gradients = [turn for _, _, turns in chosen for turn in turns]
        for weight, turn in zip(weights, gradients, strict=True):
            total += chance / size * weight * turn
    return total


@pytest.mark.parametrize("kind", [HGPO, GAGPO])
def test_gradients_of_hgpo_and_gagpo_are_those_of_brute_force(kind: type[GRPO]) -> None:
    table = Table(WINDOWS[1])
    window = WINDOWS[1]
    module = make(kind, table, advantage="dr_grpo", gamma=0.9, importance_sampling_level="token")

    def by_hand(played: Sequence[Episode]) -> list[float]:
        if kind is HGPO:
            return hgpo_by_hand(played, 0.9, history=2, power=1.0)
        return gagpo_by_hand(played, 0.9, decay=0.95)

    found = expected(module, table, window, 2)
    assert far(found, -by_brute_force(table, window, by_hand, 2)) < 1e-6


@pytest.mark.parametrize("critic", ["shared", "detached"])
@pytest.mark.parametrize(("level", "mode"), [("token", "seq-mean-token-sum"), ("turn", "seq-mean-turn-sum")])
def test_ppo_gives_the_gradient_of_the_return(
    level: str, mode: str, critic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lambda is 1 and V is arbitrary. Whitening, which scales by the round's own spread, is left out.

    With a detached critic it is the gradient of the whole loss, which V does not affect.
    """
    table = Table(WINDOWS[1])
    window = WINDOWS[1]
    monkeypatch.setattr(module_of_ppo, "whiten", lambda advantages: advantages)
    torch.manual_seed(0)
    settings = {"gamma": 1.0, "gae_lambda": 1.0, "kl_weight": 0.0, "critic_passes": 0}
    module = PPO(architecture=TINY, level=level, loss_agg_mode=mode, critic=critic, **settings)
    values: Callable[[str], float] = lambda name: float(np.sin(sum(map(ord, name))))  # noqa: E731

    def states(batch: TokenBatch) -> Tensor:
        return torch.tensor([[values(name)] for name in prefixes(batch)])

    def read_states(rollout: Sequence[RolloutEpisode]) -> tuple[Tensor, Any]:
        batches = [collate(episode.segments, bootstrap=False) for episode in rollout]
        hidden = torch.cat([states(batch)[batch.state] for batch in batches])
        return hidden, np.arange(len(hidden))

    module.states = states  # type: ignore[method-assign]
    module.logits_from = lambda hidden, batch: table(batch)  # type: ignore[method-assign]
    module._end_values = lambda rollout: [0.0] * len(rollout)  # type: ignore[method-assign]
    if module.critic is None:
        module.v_head = torch.nn.Identity()  # type: ignore[assignment]
    else:
        module._read_states = read_states  # type: ignore[method-assign]
        module.critic.residual = lambda hidden: hidden.squeeze(-1)  # type: ignore[method-assign]
        module.critic.baseline.update([np.asarray([-3.0, 5.0])])  # of an earlier round; it stays the same
        module.critic.baseline.update = lambda returns: None  # type: ignore[method-assign]
        module._trainer = SimpleNamespace()  # type: ignore[assignment]
        monkeypatch.setattr(module_of_ppo, "online_datamodule", lambda *_: SimpleNamespace(seed=0, round=0))
    noted = []
    for one, p in sampled(table, window):
        states_of = [[one.observations[t] + a[:i] for i in range(len(a))] for t, a in enumerate(one.actions)]
        noted.append((replace(one, action_values=tuple(tuple(map(values, turn)) for turn in states_of)), p))
    monkeypatch.setattr("tests.modules.test_policy_gradient.sampled", lambda *_: noted)
    found = expected(module, table, window, 1, "policy_loss" if critic == "shared" else "loss")
    assert far(found, -gradient(torch.stack([p * one.total_reward for one, p in noted]).sum(), table)) < 1e-6


def test_rebn_whitens_what_is_to_come_over_all_turns() -> None:
    table = Table(WINDOWS[1])
    window = WINDOWS[1]
    module = make(GRPO, table, advantage="rebn", gamma=0.5)
    played = [one for one, _ in sampled(table, window)][:4]
    rewards = [np.asarray(one.rewards) for one in played]
    found = np.concatenate(module.turn_advantages(rollout_of(played, window), rewards))
    to_come = np.concatenate([[r[0] + 0.5 * r[1], r[1]] if len(r) == 2 else r for r in rewards])
    np.testing.assert_allclose(found, (to_come - to_come.mean()) / to_come.std(), atol=1e-6)


def test_a_baseline_by_turn_is_taken_off_what_is_to_come() -> None:
    """The baseline is the mean of each turn in earlier rounds, so the first has none; then the round is whitened."""
    table = Table(WINDOWS[1])
    window = WINDOWS[1]
    module = make(GRPO, table, advantage="turn_baseline", gamma=1.0)
    played = rollout_of([one for one, _ in sampled(table, window)][:2], window)
    first = [np.asarray([1.0, 3.0]), np.asarray([5.0])]  # to come: 4, 3; 5
    second = [np.asarray([2.0, 1.0]), np.asarray([0.0])]  # to come: 3, 1; 0
    found = [np.concatenate(module.turn_advantages(played, rewards)) for rewards in (first, second)]
    for advantages, less in zip(found, (np.asarray([4.0, 3.0, 5.0]), np.asarray([-1.5, -2.0, -4.5])), strict=True):
        np.testing.assert_allclose(advantages, (less - less.mean()) / less.std(), atol=1e-6)


def in_proportion(table: Table, window: Window) -> list[Episode]:
    """Return a round of a policy that tosses coins; each episode occurs in proportion to its probability."""
    with torch.no_grad():
        table.logits.zero_()
    counts = [(one, 640 * p.item()) for one, p in sampled(table, window)]
    assert sum(round(count) for _, count in counts) == 640 and all(abs(c - round(c)) < 1e-3 for _, c in counts)
    return [one for one, count in counts for _ in range(round(count))]


@pytest.mark.parametrize(("gamma", "window"), [(1.0, WINDOWS[0]), (0.5, WINDOWS[1])])
def test_rebn_of_a_large_round_gives_the_gradient_of_the_return(gamma: float, window: Window) -> None:
    """It is divided by the deviation of the returns to come; a later turn counts in full, not with its gamma."""
    table = Table(window)
    played = in_proportion(table, window)
    to_come = [discounted(one.rewards[turn:], gamma) for one in played for turn in range(len(one))]
    exact = of_the_return(table, window, gamma)
    exact[[row for name, row in table.rows.items() if {*"pq"} & {*name}]] /= gamma
    found = of_a_round(make(GRPO, table, advantage="rebn", gamma=gamma), table, window, played)
    assert far(found, -exact / float(np.std(to_come))) < 1e-5


def test_rebn_of_a_small_round_is_biased() -> None:
    """Its mean and its deviation come from the same turns that are compared with them."""
    table = Table(WINDOWS[0])
    window = WINDOWS[0]

    def by_hand(played: Sequence[Episode]) -> list[float]:
        to_come = np.asarray([own for _, own in turns_of(played, 1.0)])
        whitened = (to_come - to_come.mean()) / np.sqrt(to_come.var() + 1e-8)
        return [float(advantage) for advantage in whitened]

    found = expected(make(GRPO, table, advantage="rebn"), table, window, 2)
    assert far(found, -by_brute_force(table, window, by_hand, 2)) < 1e-5
    assert bias(found, of_the_return(table, window)) > 1e-2


def test_a_group_in_numbers() -> None:
    returns = [1.0, 3.0, 5.0, 7.0, 9.0]
    groups = ["a", "b", "a", "b", "c"]
    assert group_advantages(returns, groups, "dr_grpo").tolist() == [-2.0, -2.0, 2.0, 2.0, 0.0]
    assert group_advantages(returns, groups, "rloo").tolist() == [-4.0, -4.0, 4.0, 4.0, 0.0]
    np.testing.assert_allclose(group_advantages(returns, groups, "grpo"), [-1, -1, 1, 1, 0], atol=1e-5)


def test_episodes_that_were_not_played_in_groups_cannot_be_compared() -> None:
    module = make(GRPO, Table(WINDOWS[0]))
    played = [one for one, _ in sampled(Table(WINDOWS[0]), WINDOWS[0])][:2]
    with pytest.raises(UserError, match="set group_size of RolloutCollection to 2 or more"):
        module.groups(played)
    alone = [replace(one, info={"group": index}) for index, one in enumerate(played)]  # the others failed
    assert module.groups(alone) == [0, 1] and group_advantages([1.0, 3.0], [0, 1], "grpo").tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("kl_weight", "is_computed"), [(0.0, False), (0.1, True)])
def test_a_kl_in_the_rewards_is_only_computed_if_all_episodes_were_scored(kl_weight: float, is_computed: bool) -> None:
    """Without a penalty the reference scores a sample of the episodes; the others keep their own log-probabilities."""
    table = Table(WINDOWS[0])
    module = make(GRPO, table, advantage="rebn", use_kl_in_reward=True, kl_weight=kl_weight)
    module.invalid = torch.zeros(VOCABULARY, dtype=torch.bool)
    rollout = rollout_of([one for one, _ in sampled(table, WINDOWS[0])][:2], WINDOWS[0])
    module.process(rollout)
    batch = collate([part for episode in rollout for part in episode.trained_segments()], bootstrap=False)
    assert (module.losses(batch).kl_loss is not None) is is_computed


def tokens_of(table: Table, *actions: tuple[str, ...]) -> list[RolloutEpisode]:
    """Return the episodes with these actions."""
    played = {one.actions: one for one, _ in sampled(table, WINDOWS[1])}
    return rollout_of([played[names] for names in actions], WINDOWS[1])


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_the_penalty_in_the_loss_of_grpo_is_of_the_kind_that_was_asked_for(kind: str) -> None:
    """The reference model is certain of all tokens, so the log-ratio is the policy's log-probability."""
    table = Table(WINDOWS[1])
    rollout = tokens_of(table, ("yzz",), ("x", "yx"))
    for number, one in enumerate(rollout):
        one.episode = replace(one.episode, info={"group": 0})
        one.reward[-1] = number
    module = make(GRPO, table, kl_weight=0.1, kl_loss_type=kind, loss_agg_mode="token-mean")
    module.invalid = torch.zeros(VOCABULARY, dtype=torch.bool)
    module.process(rollout)
    batch = collate([part for one in rollout for part in one.trained_segments()], bootstrap=False)
    x = np.concatenate([one.logprob for one in rollout])
    by_hand = {"k1": x, "k2": x**2 / 2, "k3": np.exp(-x) - 1 + x}[kind].mean()
    assert module.losses(batch).kl_loss.item() == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("kind", [GRPO, PPO])
def test_of_stale_rounds_that_are_learned_from_once_each_step_truncates_the_weights(
    kind: type[GRPO | PPO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ratios are 3 and the cap is 2: a bad token counts twice, a good one is likely enough and counts no more."""
    learned_once = SimpleNamespace(hparams={"epochs": 1, "batches": None})
    monkeypatch.setattr("lmrl.modules.policy_gradient.online_datamodule", lambda *_: learned_once)
    table = Table(WINDOWS[1])
    rollout = tokens_of(table, ("yzz",), ("x", "yx"))
    module: GRPO | PPO = kind(architecture=TINY)
    module._trainer = SimpleNamespace()  # type: ignore[assignment]
    module.set_correction(RolloutCorrection(2.0, max_gap=None, is_stale=True))
    module.invalid = torch.zeros(VOCABULARY, dtype=torch.bool)
    if isinstance(module, PPO):
        module.logits_from = lambda hidden, batch: table(batch)  # type: ignore[method-assign]
    else:
        module.logits = table  # type: ignore[assignment, method-assign]
    columns = PPOColumns._fields[:4] if kind is PPO else GRPOColumns._fields[:4]
    for one, advantage in zip(rollout, (1.0, -1.0), strict=True):
        ones = np.ones(one.num_tokens)
        one.columns = {name: ones for name in columns}
        one.columns |= {"logprob": one.logprob - np.log(3.0), "advantage": advantage * ones}
    batch = collate([part for one in rollout for part in one.trained_segments()], bootstrap=False)
    assert module.losses(batch).policy_loss.item() == pytest.approx((3 * 0.0 + 3 * 2.0) / 6)


@pytest.mark.parametrize(("level", "expected"), [("token", [2.0] * 6), ("turn", [8.0] * 3 + [2.0] + [4.0] * 2)])
def test_importance_weights_are_of_that_whose_ratio_is_clipped(
    level: str, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sampler says of each token that it was half as likely; actions have three tokens, one and two."""
    data = SimpleNamespace(hparams={"epochs": 2, "batches": None}, minibatch_size=8)
    monkeypatch.setattr("lmrl.modules.policy_gradient.online_datamodule", lambda *_: data)
    monkeypatch.setattr("lmrl.modules.policy_gradient.log_now", lambda *_: None)
    table = Table(WINDOWS[1])
    module = make(GRPO, table, advantage="rebn", importance_sampling_level=level)
    module._trainer = SimpleNamespace(precision_plugin=Precision())  # type: ignore[assignment]
    module.set_correction(RolloutCorrection(importance_cap=100.0, max_gap=None))
    module.invalid = torch.zeros(VOCABULARY, dtype=torch.bool)
    module.ref_logits = table  # type: ignore[assignment, method-assign]
    played = []
    for one in tokens_of(table, ("yzz",), ("x", "yx")):
        halved = tuple(tuple(logprob - np.log(2.0) for logprob in turn) for turn in one.episode.action_logprobs)
        played.append(replace(one.episode, action_logprobs=halved))
    prepared = module.prepare_rollout(played, [list(segments(one, CHARS, WINDOWS[1])) for one in played])
    weights = [part.columns["importance"] for parts in prepared for part in parts]
    assert np.concatenate(weights).tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("max_gap", "expected"), [(None, [0.0, 0.7, 0.9, 0.0, 2.0]), (0.1, [0.7, 0.7, 0.9, 1.4, 2.0])])
def test_of_stale_rounds_tokens_that_have_moved_far_enough_weigh_nothing(
    max_gap: float | None, expected: list[float]
) -> None:
    module = GRPO(architecture=TINY, clip=0.2, clip_high=0.3)
    module.correction = RolloutCorrection(2.0, max_gap, is_stale=max_gap is None)
    ratio = np.array([0.7, 0.7, 0.9, 1.4, 3.0])
    advantage = np.array([-1.0, 1.0, -1.0, 1.0, -1.0])
    round_of_one = [SimpleNamespace(columns={"advantage": advantage})]
    assert module._importance(ratio, round_of_one).tolist() == expected  # type: ignore[arg-type]
