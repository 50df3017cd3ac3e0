import math
from collections.abc import Sequence
from random import Random

import pytest

from lmrl.cli import main
from lmrl.data.floor import action_distribution, entropy_floor
from lmrl.envs.registry import task, tasks
from lmrl.envs.task import least_of, turn_chance
from lmrl.errors import UserError
from lmrl.evaluation.intervals import student_mean
from lmrl.types import Reply, Request
from tests.helpers.cases import cases

REQUEST = Request(slot=0, seed=1, observations=("x\n",), actions=(), action_ids=(), info={})


class Player:
    """Decides in every way that is known."""

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        return [Reply(self.text(turn_chance(request))) for request in requests]

    def text(self, chance: Random) -> str:
        if chance.random() < 0.25:
            return chance.choice("ab")
        if chance.randrange(3) == 0:
            return "c"
        return chance.choices("cd", cum_weights=[1, 4])[0]


def test_every_branch_counts_by_its_probability() -> None:
    expected = {"a": 0.125, "b": 0.125, "c": 0.25 + 0.5 / 4, "d": 0.5 * 3 / 4}
    assert action_distribution(Player(), REQUEST) == pytest.approx(expected)


def test_a_player_draws_as_before_when_nothing_is_reckoned() -> None:
    drawn = [turn_chance(REQUEST).random() for _ in range(2)]
    action_distribution(Player(), REQUEST)
    assert [turn_chance(REQUEST).random()] * 2 == drawn


def test_several_draws_are_exact_and_orders_tried_by_sample() -> None:
    class Chooser(Player):
        def text(self, chance: Random) -> str:
            items = list("ab")
            chance.shuffle(items)
            return items[0] + max(chance.choices("01", k=3))

    found = action_distribution(Chooser(), REQUEST)
    assert sum(found.values()) == pytest.approx(1) and found["a1"] + found["b1"] == pytest.approx(7 / 8)


def test_the_least_of_several_draws_is_exact() -> None:
    """As if all draws were tried, with ties for the first drawn; and a real generator draws as it always did."""

    class Listed(Player):
        def text(self, chance: Random) -> str:
            return min(chance.choices("abcd", cum_weights=[1, 3, 6, 10], k=3), key="bcda".index)

    class Chooser(Player):
        def text(self, chance: Random) -> str:
            return least_of(chance, "abcd", [1, 3, 6, 10], 3, "bcda".index)

    assert action_distribution(Chooser(), REQUEST) == pytest.approx(action_distribution(Listed(), REQUEST))
    assert Chooser().text(Random(5)) == Listed().text(Random(5))

    class Tied(Player):
        def text(self, chance: Random) -> str:
            return least_of(chance, "abcd", [1, 3, 6, 10], 2, lambda item: item in "cd")

    # a or b unless both draws are of the others; a comes half as often as b.
    assert action_distribution(Tied(), REQUEST) == pytest.approx(
        {"a": 0.51 / 3, "b": 0.51 * 2 / 3, "c": 0.49 * 3 / 7, "d": 0.49 * 4 / 7}
    )


def test_too_many_branches_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmrl.data.floor._LEAVES", 5)
    with pytest.raises(UserError, match="Player decides in more than 5 ways on one turn"):
        action_distribution(Player(), REQUEST)


def test_the_first_guess_of_wordle_by_hand() -> None:
    """Anything agrees with no feedback at all, so it is uniform: ln 431; later guesses are less random."""
    found = entropy_floor("wordle", episodes=8)
    assert 4.5 < found.mean < math.log(431)
    low, high = student_mean(found.by_episode)
    assert low < found.mean < high and found.actions > 16 and len(found.by_episode) == 8


def test_states_of_an_episode_are_not_taken_as_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every state of an episode has the same entropy, 0 or ln 2, so there are as many values as episodes."""
    coins = {True: {"a": 0.5, "b": 0.5}, False: {"a": 1.0}}
    monkeypatch.setattr("lmrl.data.floor.action_distribution", lambda _, request: coins[request.seed % 2 == 0])
    found = entropy_floor("maze_fo", episodes=6)
    low, high = student_mean(found.by_episode)
    assert math.isclose(sum(found.by_episode) / 6, found.mean) and 0 < found.mean < math.log(2)
    of_states = math.sqrt(found.mean * (math.log(2) - found.mean) / found.actions)  # deviation, were they independent
    assert high - low > 2 * (2 * 1.96 * of_states)


@cases("name", ["maze_fo", "maze_po", "text_nav_fo", "text_nav_po", "wordle", "car_dealer"])
def test_the_entropy_of_a_task_is_what_is_reckoned(name: str) -> None:
    found = entropy_floor(name, episodes=24, seed=5)
    said = task(name).entropy
    low, high = student_mean(found.by_episode)
    assert said is not None and low - (high - low) < said < high + (high - low)


def test_every_task_says_its_entropy() -> None:
    assert all(task(name).entropy is not None for name in tasks())


def test_the_command_prints_the_floor_with_its_interval(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "floor", "maze_fo", "--episodes", "3", "--seed", "5", "--env", "max_steps=20"]
    assert main(words) == 0
    found = entropy_floor("maze_fo", {"max_steps": 20}, 3, 5)
    low, high = student_mean(found.by_episode)
    assert capsys.readouterr().out == (
        f"{found.mean:.4f} nats an action (95 % interval {low:.4f} to {high:.4f}, "
        f"over 3 episodes with {found.actions} actions)\n"
    )
