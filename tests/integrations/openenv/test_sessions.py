"""A session answers every message, and lets a client choose no more than seed, start and action."""

import json
from typing import Any

import pytest

import lmrl
from lmrl.envs.base import Opening, TextEnv
from lmrl.errors import UserError
from lmrl.integrations.openenv import Limits
from lmrl.integrations.openenv.sessions import Refused, Session, parse_message, written
from tests.helpers.cases import cases


def session(**env: Any) -> Session:
    return Session(lambda: lmrl.make("maze_fo", **env), "maze_fo")


def said(game: Session, **message: Any) -> dict[str, Any]:
    answer = game.answer(json.dumps(message))
    assert answer is not None
    return answer


def test_an_episode_is_that_of_the_task() -> None:
    game = session()
    env = lmrl.make("maze_fo")
    text, info = env.reset(seed=3)
    first = said(game, type="reset", data={"seed": 3, "episode_id": "mine", "evaluation": True})
    assert first["type"] == "observation"
    assert first["data"] == {
        "observation": {"text": text, "terminated": False, "truncated": False, "info": info},
        "reward": None,
        "done": False,
    }
    text, reward, _, _, info = env.step("move up\n")
    after = said(game, type="step", data={"text": "move up\n", "metadata": {}})["data"]
    assert (after["observation"]["text"], after["reward"], after["observation"]["info"]) == (text, reward, info)
    told = {"episode_id": "mine", "step_count": 1, "task": "maze_fo", "seed": 3, "return": reward, "running": True}
    assert said(game, type="state") == {"type": "state", "data": told}


def test_options_begin_where_info_says() -> None:
    game = session()
    first = said(game, type="reset", data={"seed": 5})["data"]["observation"]
    again = said(game, type="reset", data={"seed": 5, "options": json.loads(written(first["info"]["start"]))})["data"]
    assert again["observation"]["text"] == first["text"]


def test_the_end_is_told_apart_and_is_the_end() -> None:
    game = session(max_steps=1)
    said(game, type="reset", data={"seed": 0})
    first, last = (said(game, type="step", data={"text": "fly\n"})["data"] for _ in range(2))
    assert not first["done"]
    assert last["done"] and last["observation"]["truncated"] and not last["observation"]["terminated"]
    refused = said(game, type="step", data={"text": "fly\n"})["data"]
    assert refused["code"] == "EXECUTION_ERROR" and "the last one is over: reset first" in refused["message"]


@cases(
    ("message", "code", "told"),
    [
        ("{", "INVALID_JSON", "must be JSON"),
        ("[" * 100_000, "INVALID_JSON", "must be JSON"),
        ("9" * 10_000, "INVALID_JSON", "must be JSON"),
        ('{"type": "reset", "data": {"seed": NaN}}', "INVALID_JSON", "NaN is no number of JSON"),
        ("[]", "VALIDATION_ERROR", "must be a JSON object, got list"),
        ('{"type": "mcp", "data": {}}', "UNKNOWN_TYPE", "got 'mcp'"),
        ('{"type": ["reset"], "data": {}}', "UNKNOWN_TYPE", "type must be"),
        ('{"type": "reset", "data": 3}', "VALIDATION_ERROR", "data must be an object, got 3"),
        ('{"type": "reset", "data": {"layout": "umaze"}}', "VALIDATION_ERROR", "unknown key 'layout'; known: ep"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR", "seed must be"),
        ('{"type": "reset", "data": {"seed": true}}', "VALIDATION_ERROR", "seed must be"),
        ('{"type": "reset", "data": {"seed": 1e3}}', "VALIDATION_ERROR", "seed must be"),
        ('{"type": "reset", "data": {"seed": 9007199254740993}}', "VALIDATION_ERROR", "seed must be"),
        ('{"type": "reset", "data": {"options": [1]}}', "VALIDATION_ERROR", "options must be an object"),
        ('{"type": "reset", "data": {"options": {"layout": "x"}}}', "EXECUTION_ERROR", "unknown reset option 'layout'"),
        ('{"type": "reset", "data": {"episode_id": 3}}', "VALIDATION_ERROR", "episode_id must be"),
        ('{"type": "step", "data": {"text": 3}}', "VALIDATION_ERROR", "a text as 'text'"),
        ('{"type": "step", "data": {"message": "x"}}', "VALIDATION_ERROR", "unknown key 'message'; known: meta"),
        ('{"type": "step", "data": {"text": "\\ud800"}}', "VALIDATION_ERROR", "half of a surrogate pair"),
        ('{"type": "step", "data": {"text": "move up"}}', "EXECUTION_ERROR", "none has begun: reset first"),
    ],
)  # fmt: skip
def test_a_bad_message_is_refused_by_name_and_the_session_goes_on(message: str, code: str, told: str) -> None:
    game = session()
    answer = game.answer(message)
    assert answer is not None and answer["type"] == "error"
    assert answer["data"]["code"] == code and told in answer["data"]["message"] and len(answer["data"]["message"]) < 310
    assert said(game, type="reset", data={"seed": 0})["type"] == "observation"


def test_after_a_refused_reset_the_old_episode_does_not_go_on() -> None:
    game = session()
    said(game, type="reset", data={"seed": 0})
    said(game, type="reset", data={"seed": 0, "options": {"goal": [99, 99]}})
    assert "the last reset was refused" in said(game, type="step", data={"text": "move up\n"})["data"]["message"]


class Broken(TextEnv):
    """A task that fails in a way of its own, with a secret in the message."""

    def begin(self, options: dict[str, Any]) -> Opening:
        return Opening("hello", "one", {})

    def turn(self, action: str) -> Any:
        raise ZeroDivisionError("/home/somebody/secret")


def test_a_task_that_fails_is_an_answer_without_its_insides() -> None:
    game = Session(Broken, "broken")
    said(game, type="reset", data={})
    failed = said(game, type="step", data={"text": "x"})["data"]
    assert failed == {"message": "the task failed (ZeroDivisionError)", "code": "EXECUTION_ERROR"}
    assert "the task failed: reset first" in said(game, type="step", data={"text": "x"})["data"]["message"]
    assert said(game, type="reset", data={})["data"]["observation"]["text"] == "hello"


class Alone(Broken):
    """A task whose partner is gone."""

    def turn(self, action: str) -> Any:
        raise UserError("the endpoint is gone")


def test_a_game_whose_partner_failed_does_not_go_on_from_half_a_turn() -> None:
    game = Session(Alone, "alone")
    said(game, type="reset", data={})
    assert said(game, type="step", data={"text": "x"})["data"]["message"] == "the endpoint is gone"
    assert "the task failed: reset first" in said(game, type="step", data={"text": "x"})["data"]["message"]


def test_close_ends_it() -> None:
    game = session()
    assert game.answer('{"type": "close"}') is None
    game.close()
    assert "the session is closed" in said(game, type="step", data={"text": "x"})["data"]["message"]


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(Refused, match="must be JSON"):
        parse_message(b"\xff\xfe{}\x00")


@pytest.mark.parametrize("wrong", [{"sessions": 0}, {"idle": 0.0}, {"idle": float("nan")}, {"message": 0}])
def test_limits_are_above_nothing(wrong: Any) -> None:
    with pytest.raises(UserError, match=f"{next(iter(wrong))} must be"):
        Limits(**wrong)
