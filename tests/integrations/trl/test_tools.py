"""Tests of the environments that TRL plays: what the model reads, what counts, and how an episode ends."""

from collections.abc import Sequence

import pytest

import lmrl
from lmrl.envs import tasks
from lmrl.envs.registry import chat_prompt
from lmrl.envs.twenty_questions.env import ScriptedOracle
from lmrl.errors import UserError
from lmrl.integrations.trl import GAME_OVER, TaskEnvironment, environment_factory, episode_return
from lmrl.types import PartnerRequest
from tests.helpers.cases import cases
from tests.helpers.mazes import near_the_goal

WAY = ("move down", "move down")
"""From the start of `near_the_goal` to the goal."""


def played(environment: TaskEnvironment, actions: Sequence[str], seed: int) -> list[str]:
    return [environment.reset(seed=seed), *map(environment.act, actions)]


@cases("task", tasks())
def test_an_environment_plays_what_the_game_plays(task: str) -> None:
    environment = environment_factory(task)()
    env = lmrl.make(task)
    text, _ = env.reset(seed=7)
    shown = environment.reset(seed=7, prompt=[], environment=task)
    chat = chat_prompt(task)
    assert shown == (f"{chat.other}: {chat.spelling(text)}" if text.strip() != chat.header else "(You begin.)")
    total = 0.0
    for _ in range(3):
        action = env.legal_actions()[0].strip() if env.legal_actions() else "hello"
        heard = environment.act(f" {action}\n")
        text, reward, *ended, _ = env.step(f"{action}\n")
        total += float(reward)
        assert heard == chat.spelling(text) + (f"\n{GAME_OVER}" if any(ended) else "")
        assert environment.reward == total == environment.episode.total_reward
        assert environment.done == any(ended) and environment.episode.task == task
        if environment.done:
            break
    assert environment.episode.truncated != environment.episode.terminated


def test_the_end_is_said_and_later_moves_are_errors_that_change_nothing() -> None:
    environment = environment_factory("maze_fo")()
    seed = near_the_goal()
    assert played(environment, WAY, seed)[-1] == f"Success\n{GAME_OVER}"
    assert environment.done and environment.episode.success and environment.reward == -1.0
    with pytest.raises(UserError, match="the last one is over"):
        environment.act("move up")
    assert episode_return([environment]) == [-1.0]
    environment.reset(seed=seed)
    assert not environment.done and environment.reward == 0.0


def test_what_is_no_text_is_an_error_and_no_turn() -> None:
    environment = environment_factory("maze_fo")()
    environment.reset(seed=0)
    with pytest.raises(UserError, match="action must be a text, got 5"):
        environment.act(5)  # type: ignore[arg-type]
    assert len(environment.episode) == 0
    with pytest.raises(UserError, match=r"a row needs a column 'seed'.*got the columns prompt"):
        environment.reset(prompt=[])


class Unreliable(ScriptedOracle):
    """Fails in some of its answers, counted from 0."""

    def __init__(self, *fails: int) -> None:
        super().__init__()
        self._fails = fails
        self._asked = -1

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        self._asked += 1
        if self._asked in self._fails:
            raise UserError("the endpoint is gone")
        return super().reply(requests)


QUESTIONS = ("Is it alive?", "Is it a tool?", "Is it food?")


def test_a_turn_in_which_a_partner_failed_was_not_taken() -> None:
    whole = environment_factory("twenty_questions", partner=ScriptedOracle())()
    expected = played(whole, QUESTIONS, 3)
    environment = environment_factory("twenty_questions", partner=Unreliable(1))()
    shown = [environment.reset(seed=3), environment.act(QUESTIONS[0])]
    with pytest.raises(UserError, match="the endpoint is gone"):
        environment.act(QUESTIONS[1])
    assert len(environment.episode) == 1
    assert [*shown, *map(environment.act, QUESTIONS[1:])] == expected


def test_a_game_that_cannot_be_taken_back_is_over() -> None:
    environment = environment_factory("twenty_questions", partner=Unreliable(1, 2))()
    environment.reset(seed=3)
    environment.act(QUESTIONS[0])
    with pytest.raises(UserError, match="the endpoint is gone"):
        environment.act(QUESTIONS[1])
    assert environment.done and environment.episode.truncated


def test_a_move_before_the_first_reset_is_told() -> None:
    environment = environment_factory("maze_fo")()
    with pytest.raises(UserError, match="none has begun"):
        environment.act("move up")


def test_not_playing_is_playing_empty_lines() -> None:
    environments = [environment_factory("maze_fo", max_steps=4)() for _ in range(2)]
    played(environments[0], WAY, near_the_goal())
    played(environments[1], WAY[:1], near_the_goal())
    told: dict[str, float] = {}
    first, second = episode_return(environments, log_metric=told.__setitem__, prompts=[])
    env = lmrl.make("maze_fo", max_steps=4)
    env.reset(seed=near_the_goal())
    by_hand = [env.step(text)[1] for text in ("move down\n", "\n", "\n", "\n", "\n")]
    assert (first, second) == (-1.0, sum(by_hand)) == (-1.0, -14.0)
    assert told == {"success": 0.5, "unfinished": 0.5}
    assert environments[1].done and environments[1].episode.actions == ("move down\n", *["\n"] * 4)


@cases("task", tasks())
def test_silence_ends_in_every_task(task: str) -> None:
    environment = environment_factory(task)()
    environment.reset(seed=1)
    (value,) = episode_return([environment])
    low, high = lmrl.make(task).return_range
    assert environment.done and low <= value <= high


def test_a_game_without_a_clock_does_not_go_on_for_ever() -> None:
    environment = environment_factory("maze_fo", max_steps=10**9)()
    environment.reset(seed=1)
    episode_return([environment])
    assert not environment.done and len(environment.episode) == 1_000 and environment.episode.truncated


def test_a_partner_may_be_a_name() -> None:
    game = environment_factory("twenty_questions", partner="scripted")()
    game.reset(seed=1)
    assert game.act("Is it an animal?")


def test_an_unknown_task_is_an_error() -> None:
    with pytest.raises(UserError, match="unknown task 'sudoku'"):
        environment_factory("sudoku")
