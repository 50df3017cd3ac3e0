from collections.abc import Sequence
from typing import Any

import pytest

import lmrl
from lmrl.errors import UserError
from lmrl.types import PartnerRequest


def test_step_before_reset() -> None:
    with pytest.raises(UserError, match=r"none has begun: call reset\(\) first"):
        lmrl.make("maze_fo").step("move up\n")


def test_step_after_the_end() -> None:
    env = lmrl.make("maze_fo")
    env.reset(seed=0, options={"init_position": (7, 6)})
    env.step("move down\n")
    with pytest.raises(UserError, match=r"the last one is over: call reset\(\) first"):
        env.step("move down\n")
    env.reset(seed=0)
    env.step("move down\n")


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True])
def test_wrong_seed(seed: object) -> None:
    with pytest.raises(UserError, match="seed must be a whole number from 0, got"):
        lmrl.make("maze_fo").reset(seed=seed)  # type: ignore[arg-type]


def test_every_info_says_how_to_repeat_the_episode() -> None:
    env = lmrl.make("maze_fo")
    env.reset(seed=1)
    for _ in range(5):
        text, info = env.reset()  # a seed of its own
        for action in ("move up\n", "nonsense"):
            later = env.step(action)[4]
            assert {key: later[key] for key in ("seed", "task_id", "start")} == {
                key: info[key] for key in ("seed", "task_id", "start")
            }
        assert lmrl.make("maze_fo").reset(seed=info["seed"])[0] == text


def test_resets_without_seed_follow_from_the_first_seed() -> None:
    def starts() -> list[str]:
        env = lmrl.make("maze_fo")
        env.reset(seed=3)
        return [env.reset()[0] for _ in range(10)]

    assert starts() == starts()
    assert len(set(starts())) > 3


def test_infos_are_the_callers_to_change() -> None:
    env = lmrl.make("maze_fo")
    _, info = env.reset(seed=0, options={"init_position": (1, 1)})
    info["start"].clear()
    info.clear()
    assert env.step("move up\n")[4]["start"] == {"init_position": (1, 1), "goal": (8, 6)}
    # Lists in it, too: the buyer reads the profile, and the chess game its replies.
    dealer = lmrl.make("car_dealer")
    _, info = dealer.reset(seed=0)
    wished = [*info["start"]["features"]]
    info["start"]["features"].clear()
    request = dealer.unwrapped.say("Hello!\n")
    assert isinstance(request, PartnerRequest) and request.facts["features"] == wished
    chess = lmrl.make("chess")
    _, info = chess.reset(seed=0, options={"replies": ["e7e5", "g8f6"]})
    info["start"]["replies"].clear()
    assert chess.step("d 4\n")[4]["start"]["replies"] == ["e7e5", "g8f6"]


class Absent:
    """A partner that fails on every second call."""

    def __init__(self) -> None:
        self.calls = 0

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        self.calls += 1
        if self.calls % 2:
            raise ConnectionError
        assert all(len(request.heard) == len(request.said) + 1 for request in requests)
        return ["No.\n"] * len(requests)

    def describe(self) -> dict[str, Any]:
        return {"name": "absent"}


@pytest.mark.parametrize("task", ["twenty_questions", "guess_city", "car_dealer"])
def test_a_step_that_the_partner_failed_can_be_repeated(task: str) -> None:
    env = lmrl.make(task, partner=Absent(), **({"max_texts": 42} if task == "car_dealer" else {}))
    env.reset(seed=0)
    for _ in range(20):
        with pytest.raises(ConnectionError):
            env.step("Is it big?\n")
        turn = env.step("Is it big?\n")
    assert turn[2] == (task != "car_dealer")
    assert env.render().count("Is it big?") == 20


def test_render_draws_the_player() -> None:
    env = lmrl.make("maze_po")
    env.reset(seed=0, options={"init_position": (5, 3)})
    env.step("move right\n")
    drawn = env.render().splitlines()
    assert drawn[5] == "### P     ###"
    assert drawn[8] == "######G######"
