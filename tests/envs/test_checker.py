"""The checker finds each law broken: an honest little game, and one liar per law."""

import random
import sys
from typing import Any

import numpy as np
import pytest

import lmrl
from lmrl.envs import LawBroken, TextEnv, check_env
from lmrl.envs.base import Opening, Turn
from lmrl.envs.checker import odd_texts, tried_laws
from tests.helpers.cases import cases

FORM = "reward only on turns, values of the right types"
READ = "something to read before every action"
SAME = "same seed, same actions, same episode"
START = "info repeats the start"
APART = "instances do not influence each other"
GLOBAL = "no global generator is touched"
RANGE = "returns within the declared range"
ENDINGS = "truncation and termination apart"
TEXTS = "any text is answered"
CLOSE = "close twice"
PICKLE = "pickling keeps behaviour"


class Count(TextEnv):
    """Say ``more`` until a drawn number of turns is over."""

    reset_options = ("turns",)
    return_range = (-6.0, 0.0)

    def legal_actions(self) -> tuple[str, ...]:
        return ("more\n", "pass\n")

    def begin(self, options: dict[str, Any]) -> Opening:
        self.left = options.get("turns") or int(self.np_random.integers(4, 7))
        return Opening(f"{self.left} to go\n", str(self.left), {"turns": self.left})

    def turn(self, action: str) -> Turn:
        self.left -= 1
        info = {"illegal": action not in self.legal_actions(), "success": self.left == 0}
        return Turn(f"{self.left} to go\n", -1.0, self.left == 0, False, info)


class RewardAtReset(Count):
    def reset(self, **kwargs: Any) -> Any:
        text, info = super().reset(**kwargs)
        return text, {**info, "reward": 1.0}


class IntegerReward(Count):
    def turn(self, action: str) -> Turn:
        return super().turn(action)._replace(reward=-1)


class NoSuccess(Count):
    def turn(self, action: str) -> Turn:
        turn = super().turn(action)
        return turn._replace(info={"illegal": turn.info["illegal"]})


class Endless(Count):
    def turn(self, action: str) -> Turn:
        return Turn("on\n", 0.0, False, False, {"illegal": False})


class Unseeded(Count):
    def begin(self, options: dict[str, Any]) -> Opening:
        return super().begin({"turns": 4 + random.SystemRandom().randrange(100)})


class StartForgotten(Count):
    def begin(self, options: dict[str, Any]) -> Opening:
        return super().begin(options)._replace(start={"turns": 99})


class Shared(Count):
    turns_of_all: list[int] = []  # noqa: RUF012

    def begin(self, options: dict[str, Any]) -> Opening:
        self.turns_of_all.clear()
        return super().begin(options)

    def turn(self, action: str) -> Turn:
        self.turns_of_all.append(1)
        return super().turn(action)._replace(text=f"{len(self.turns_of_all)} so far\n")


class PythonRandom(Count):
    def turn(self, action: str) -> Turn:
        random.random()
        return super().turn(action)


class NumpyRandom(Count):
    def turn(self, action: str) -> Turn:
        np.random.random()
        return super().turn(action)


class TorchRandom(Count):
    def turn(self, action: str) -> Turn:
        sys.modules["torch"].rand(1)
        return super().turn(action)


class TooGood(Count):
    return_range = (-6.0, -5.5)


class WorseWhenIllegal(Count):
    def turn(self, action: str) -> Turn:
        turn = super().turn(action)
        return turn._replace(reward=-100.0) if action == "no such action\n" else turn


class NoRange(Count):
    return_range = None  # type: ignore[assignment]


class NothingListed(Count):
    def legal_actions(self) -> tuple[str, ...]:
        raise RuntimeError("no list")


class NoSeed(Count):
    def reset(self, **kwargs: Any) -> Any:
        text, info = super().reset(**kwargs)
        del info["seed"]
        return text, info


class BothFlags(Count):
    def turn(self, action: str) -> Turn:
        turn = super().turn(action)
        return turn._replace(truncated=turn.terminated)


class Undead(Count):
    def step(self, action: str) -> Turn:
        self._playing = True
        return super().step(action)


class Stale(Count):
    def begin(self, options: dict[str, Any]) -> Opening:
        again = getattr(self, "left", None) == 0
        opening = super().begin(options)
        return opening._replace(text="welcome back\n") if again else opening


class AsciiOnly(Count):
    def turn(self, action: str) -> Turn:
        action.encode("ascii")
        return super().turn(action)


class ClosesOnce(Count):
    def close(self) -> None:
        del self.observation_space


class SilentAtFirst(Count):
    def begin(self, options: dict[str, Any]) -> Opening:
        return super().begin(options)._replace(text="")


class SilentLater(Count):
    def turn(self, action: str) -> Turn:
        turn = super().turn(action)
        return turn._replace(text="") if self.left == 2 else turn


class SilentAtTheEnd(Count):
    def turn(self, action: str) -> Turn:
        turn = super().turn(action)
        return turn._replace(text="") if self.left == 0 else turn


class TellsASet(Count):
    def turn(self, action: str) -> Turn:
        turn = super().turn(action)
        return turn._replace(info={**turn.info, "seen": {action}})


class BeginsWithBytes(Count):
    def begin(self, options: dict[str, Any]) -> Opening:
        return super().begin(options)._replace(info={"board": b""})


class Unpicklable(Count):
    def begin(self, options: dict[str, Any]) -> Opening:
        self.helper = lambda: None
        return super().begin(options)


class Forgetful(Count):
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "left": 50}


#: Their games are long, or their first position takes long to find.
SLOW = ("chess", "endgames")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in lmrl.tasks()]
)
def test_the_tasks_obey(name: str) -> None:
    laws = check_env(lambda: lmrl.make(name), last_texts=lmrl.task(name).last_texts)
    assert laws == [FORM, READ, SAME, START, APART, GLOBAL, RANGE, ENDINGS, TEXTS, CLOSE, PICKLE]
    assert check_env(lmrl.make(name), texts=30, seed=5) == laws


def test_an_honest_game_obeys() -> None:
    assert len(check_env(Count)) == 11


@cases(
    ("liar", "law", "what"),
    [
        (RewardAtReset, FORM, "reset must not give a reward"),
        (IntegerReward, FORM, "finite float, got -1"),
        (NoSuccess, FORM, r"info\['success'\] must be a bool"),
        (Endless, FORM, "episodes must end"),
        (TellsASet, FORM, "info must hold what JSON knows.*set is not JSON serializable"),
        (BeginsWithBytes, FORM, "info must hold what JSON knows.*bytes is not JSON serializable"),
        (SilentAtFirst, READ, "the first observation of seed 0 is an empty text"),
        (Unseeded, SAME, "differ"),
        (StartForgotten, START, "does not repeat the start"),
        (Shared, APART, "influence each other"),
        (PythonRandom, GLOBAL, "generator of random"),
        (NumpyRandom, GLOBAL, "generator of numpy"),
        (TooGood, RANGE, "outside of the declared"),
        (WorseWhenIllegal, RANGE, "illegal actions bring"),
        (NoRange, RANGE, "has no return_range"),
        (NothingListed, FORM, r"legal_actions\(\) raised RuntimeError\('no list'\)"),
        (BothFlags, ENDINGS, "not both"),
        (Undead, ENDINGS, r"step\(\) before reset\(\) must be a UserError"),
        (Stale, ENDINGS, "does not begin afresh"),
        (AsciiOnly, TEXTS, "UnicodeEncodeError"),
        (ClosesOnce, CLOSE, "second close"),
        (Unpicklable, PICKLE, "pickling after 0 turns"),
        (Forgetful, PICKLE, "goes on differently"),
    ],
)
def test_each_law_is_found_broken(liar: type[Count], law: str, what: str) -> None:
    with pytest.raises(LawBroken, match=what) as caught:
        check_env(liar)
    assert caught.value.law == law


@cases("liar", [NoRange, NothingListed, NoSeed])
def test_all_laws_are_tried_whatever_a_game_raises(liar: type[Count]) -> None:
    tried = dict(tried_laws(liar, texts=5))
    assert len(tried) == 11
    assert tried[CLOSE] is None
    if liar is NoSeed:
        assert "must have seed" in str(tried[FORM]) and "KeyError('seed')" in str(tried[START])


def test_only_who_reads_a_single_text_is_left_with_nothing_by_silence() -> None:
    assert len(check_env(SilentLater)) == 11
    assert len(check_env(SilentLater, last_texts=2)) == 11
    with pytest.raises(LawBroken, match="observation 4 of seed 0 is an empty text, and a policy reads nothing else"):
        check_env(SilentLater, last_texts=1)
    assert len(check_env(SilentAtTheEnd, last_texts=1)) == 11


def test_torch_is_watched_where_it_is_loaded() -> None:
    pytest.importorskip("torch")
    with pytest.raises(LawBroken, match="generator of torch"):
        check_env(TorchRandom)


def test_ten_thousand_texts() -> None:
    check_env(lambda: lmrl.make("maze_fo"), texts=10_000)


def test_odd_texts_are_odd_and_repeat() -> None:
    texts = list(odd_texts(("move up\n",), 400, seed=1))
    assert texts == list(odd_texts(("move up\n",), 400, seed=1))
    assert len(texts) == 400
    assert {"", "move up", "MOVE UP\n"} <= set(texts)
    assert max(map(len, texts)) == 100_000
    assert any(ord(character) > 0x10000 for text in texts[50:] for character in text)
    assert "".join(texts).encode()  # valid Unicode
