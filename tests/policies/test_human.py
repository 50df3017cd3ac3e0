import pytest

from lmrl.errors import UserError
from lmrl.policies.human import HumanPolicy
from lmrl.types import Reply, Request


def test_it_shows_the_newest_text_and_ends_the_action_with_one_newline() -> None:
    shown: list[str] = []
    policy = HumanPolicy(ask=lambda prompt: "move up", show=lambda request: shown.append(request.observations[-1]))
    request = Request(slot=0, seed=0, observations=["first\n", "second\n"], actions=["x\n"])
    assert policy.act([request, request]) == [Reply("move up\n"), Reply("move up\n")]
    assert shown == ["second\n", "second\n"]


def test_the_end_of_the_input_is_said_with_its_turn() -> None:
    def nobody(prompt: str) -> str:
        raise EOFError

    with pytest.raises(UserError, match="ended on turn 1"):
        HumanPolicy(ask=nobody, show=str).act([Request(slot=0, seed=0, observations=["a\n", "b\n"], actions=["x\n"])])


def test_bytes_that_are_no_text_can_be_written() -> None:
    policy = HumanPolicy(ask=lambda prompt: "move \udcff", show=str)
    assert policy.act([Request(slot=0, seed=0, observations=["a\n"])]) == [Reply("move \ufffd\n")]
