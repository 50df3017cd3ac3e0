"""The laws that every environment obeys, and a test of any environment against them."""

import copy
import json
import math
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lmrl.envs.base import TextEnv
from lmrl.errors import UserError

__all__ = ["LawBroken", "Play", "Trial", "check_env", "odd_texts", "tried_laws"]

# Traps: empty and huge texts, control characters, other scripts, and characters that formatters or shells interpret.
_FIXED = (
    "",
    "\n",
    " " * 1000,
    "x" * 100_000,
    "\n" * 5_000,
    "".join(map(chr, range(32))) + "\x7f\x85",
    "\x00",
    "\ufeffmove\u200b\u202e\u2028",
    "нет",
    "左に動く\n",
    "تحرك يسارا\n",
    "👩‍👩‍👧‍👦" * 50,
    "e\u0301" * 100,
    "{}%s%d{0}\\n$(x)`x`'\"",
    "<|endoftext|>",
    "NaN",
    "-1",
)


def odd_texts(legal: Sequence[str], count: int, seed: int) -> Iterator[str]:
    """Yield ``count`` valid Unicode texts: fixed traps first, then random ones and near misses of legal actions."""
    rng = random.Random(seed)
    for index in range(count):
        if index < len(_FIXED):
            yield _FIXED[index]
        elif legal and index % 2:
            yield _near_miss(rng.choice(legal), rng)
        else:
            yield "".join(_character(rng) for _ in range(rng.randrange(60)))


def _near_miss(action: str, rng: random.Random) -> str:
    """Change a legal action a little: case, white space, repetition, a cut, one more character."""
    place = rng.randrange(len(action) + 1)
    return rng.choice(
        [
            action.upper(),
            action.rstrip("\n"),
            action + "\n",
            " " + action,
            action.replace(" ", "  "),
            action * 2,
            action[:place],
            action[:place] + _character(rng) + action[place:],
        ]
    )


def _character(rng: random.Random) -> str:
    code = rng.randrange(0x110000 - 0x800)
    return chr(code if code < 0xD800 else code + 0x800)  # surrogates are no characters


_MAX_TURNS = 10_000  # an episode that is longer counts as endless


class LawBroken(UserError):
    """An environment does what none may do; `law` is the name of the law."""

    def __init__(self, law: str, what: str) -> None:
        super().__init__(f"law {law!r} broken: {what}")
        self.law = law


@dataclass(frozen=True)
class Trial:
    """One law being tried."""

    law: str
    """Name of the law."""
    make: Callable[[], TextEnv]
    seed: int
    """Seed of the first episode."""
    texts: int
    """Number of odd texts that the environment must answer."""
    last_texts: int | None = None
    """Number of newest texts that a policy reads; None: all."""

    def require(self, condition: bool, what: str) -> None:
        """Raise `LawBroken` unless the condition holds."""
        if not condition:
            raise LawBroken(self.law, what)

    def refused(self, call: Callable[[], Any], when: str) -> None:
        """Raise `LawBroken` unless ``call`` raises a `UserError`."""
        try:
            call()
        except UserError:
            return
        except Exception as error:
            raise LawBroken(self.law, f"{when} must be a UserError, got {error!r}") from error
        raise LawBroken(self.law, f"{when} must be a UserError, but was answered")

    def works(self, call: Callable[[], Any], what: str) -> Any:
        """Return the result of ``call``; raise `LawBroken` if it raises."""
        try:
            return call()
        except Exception as error:
            raise LawBroken(self.law, f"{what} raised {error!r}") from error

    def begin(self, index: int) -> "Play":
        """Begin a game; its seed and its moves follow from ``index``."""
        return Play(self, self.make(), self.seed + index)

    def play(self, index: int, turns: int | None = None) -> "Play":
        """Play random moves, to the end or for a number of turns."""
        game = self.begin(index)
        for _ in range(_MAX_TURNS if turns is None else turns):
            if game.over:
                return game
            game.move()
        self.require(turns is not None, f"seed {self.seed + index} goes on after {_MAX_TURNS} turns: episodes must end")
        return game


class Play:
    """A running game: the environment and all its answers so far.

    Args:
        trial: the law that is being tried; it checks the form of every answer.
        env: the environment, which is reset here.
        seed: seed of the episode and of the random player.
    """

    def __init__(self, trial: Trial, env: TextEnv, seed: int) -> None:
        self.trial = trial
        self.env = env
        self._rng = random.Random(seed)
        self.answers: list[Any] = [trial.works(lambda: env.reset(seed=seed), f"reset(seed={seed})")]
        self.total = 0.0
        self.over = False

    def move(self) -> None:
        """Play a random action: mostly a legal one, sometimes an illegal one."""
        # One action in ten is illegal, so that every law is also tried after mistakes.
        legal = self.legal()
        unlucky = not legal or self._rng.random() < 0.1
        self.say(f"not a move {self._rng.randrange(100)}\n" if unlucky else self._rng.choice(legal))

    def legal(self) -> Sequence[str]:
        """Return the legal actions that the environment lists."""
        listed: Sequence[str] = self.trial.works(self.env.legal_actions, "legal_actions()")
        return listed

    def say(self, action: str) -> None:
        """Play an action, and check the form of the answer."""
        turn = self.trial.works(lambda: self.env.step(action), f"step({action[:80]!r})")
        _check_form(self.trial, turn)
        self.answers.append(turn)
        # The environment may return Gymnasium's plain tuple instead of a `Turn`.
        _, reward, terminated, truncated, _ = turn
        self.total += reward
        self.over = terminated or truncated


def _check_form(trial: Trial, turn: Any) -> None:
    trial.require(isinstance(turn, tuple) and len(turn) == 5, "step must return five values")
    text, reward, terminated, truncated, info = turn
    trial.require(isinstance(text, str), f"an observation must be a str, got {text!r:.80}")
    is_number = isinstance(reward, float) and math.isfinite(reward)
    trial.require(is_number, f"a reward must be a finite float, got {reward!r:.80}")
    are_flags = isinstance(terminated, bool) and isinstance(truncated, bool)
    trial.require(are_flags, f"terminated and truncated must be bool, got {terminated!r} and {truncated!r}")
    trial.require(isinstance(info, dict), f"info must be a dict, got {info!r:.80}")
    _check_json(trial, info)
    # Whether the task is solved has to be known at the end only.
    for key in ("illegal", "success") if terminated or truncated else ("illegal",):
        trial.require(isinstance(info.get(key), bool), f"info[{key!r}] must be a bool, got {info.get(key)!r}")


def _check_json(trial: Trial, info: dict[str, Any]) -> None:
    try:
        json.dumps(info)
    except (TypeError, ValueError, RecursionError) as error:
        raise LawBroken(trial.law, f"info must hold what JSON knows, as files of episodes do: {error}") from error


_EPISODES = 8  # for each law
_ILLEGAL_TURNS = 1_000


def check_env(
    env: TextEnv | Callable[[], TextEnv], texts: int = 200, seed: int = 0, last_texts: int | None = None
) -> list[str]:
    """Test an environment against all laws.

    Args:
        env: an environment that was not reset yet (copies of it are tried), or a function that makes a fresh one.
        texts: how many odd texts (empty, huge, control characters, other scripts, near misses) it must answer.
        seed: seed of the episodes and texts.
        last_texts: how many texts a policy reads, as `Task.last_texts`. If it is 1, no observation may be empty;
            otherwise only the first must hold text.

    Returns:
        The names of the laws, all obeyed.

    Raises:
        LawBroken: for the first law that is not obeyed.
    """
    for _, broken in tried_laws(env, texts, seed, last_texts):
        if broken is not None:
            raise broken
    return list(_LAWS)


def tried_laws(
    env: TextEnv | Callable[[], TextEnv], texts: int = 200, seed: int = 0, last_texts: int | None = None
) -> Iterator[tuple[str, LawBroken | None]]:
    """Test an environment against one law after the other, and continue after a broken one.

    Yields:
        The name of the law, and how it is broken; None if it is not. Arguments: see `check_env`.
    """
    if isinstance(env, TextEnv):
        # Every trial needs environments of its own: copy the one that was given.
        model = env
        yield from tried_laws(lambda: copy.deepcopy(model), texts, seed, last_texts)
        return
    for name, law in _LAWS.items():
        try:
            law(Trial(name, env, seed, texts, last_texts))
        except LawBroken as broken:
            yield name, broken
        except Exception as error:  # a game may raise anything, and lack what an earlier law has asked for
            unexpected = LawBroken(name, f"the game raised {error!r}")
            unexpected.__cause__ = error
            yield name, unexpected
        else:
            yield name, None


def _form(trial: Trial) -> None:
    answer = trial.begin(0).answers[0]
    trial.require(isinstance(answer, tuple) and len(answer) == 2, "reset must return (text, info), and no reward")
    text, info = answer
    trial.require(isinstance(text, str), f"the first observation must be a str, got {text!r:.80}")
    # Without seed and start an episode cannot be repeated, and without reward at reset returns are sums over turns.
    named = isinstance(info, dict) and {"seed", "task_id", "start"} <= set(info)
    trial.require(named, "info after reset must have seed, task_id and start")
    trial.require("reward" not in info, "reset must not give a reward")
    _check_json(trial, info)
    for index in range(_EPISODES):
        trial.play(index)


def _something_to_read(trial: Trial) -> None:
    for index in range(_EPISODES):
        first, *turns = trial.play(index).answers
        where = f"seed {trial.seed + index}"
        trial.require(
            first[0] != "", f"the first observation of {where} is an empty text: a policy has nothing to read"
        )
        for number, (text, _, terminated, _, info) in enumerate(turns, start=1):
            # No policy reads what follows a terminal state. After a truncation, learners bootstrap from the value of
            # `final_observation`, so that text counts.
            read = info.get("final_observation", text) != "" or terminated or trial.last_texts != 1
            trial.require(read, f"observation {number} of {where} is an empty text, and a policy reads nothing else")


def _same_seed(trial: Trial) -> None:
    for index in range(_EPISODES):
        same = trial.play(index).answers == trial.play(index).answers
        trial.require(same, f"two instances with seed {trial.seed + index} and the same actions differ")


def _start_repeats(trial: Trial) -> None:
    for index in range(_EPISODES):
        first = trial.begin(index).answers[0]
        seed = first[1]["seed"]
        options = first[1]["start"]
        again = trial.works(partial(trial.make().reset, seed=seed, options=options), "reset")
        trial.require(again == first, f"reset(seed={seed}, options={options}) does not repeat the start")


def _interleaved(trial: Trial) -> None:
    # Play two episodes one after the other, then the same two in turns: state outside of an instance would mix them.
    alone = [trial.play(0), trial.play(1)]
    together = [trial.begin(0), trial.begin(1)]
    while not (together[0].over and together[1].over):
        for game in together:
            if not game.over:
                game.move()
    for game, reference in zip(together, alone, strict=True):
        trial.require(game.answers == reference.answers, "instances that take turns influence each other")


def _global_rng(trial: Trial) -> None:
    # A game that draws from a global generator would change what other code draws, such as the sampling of a policy.
    before = _global_states()
    trial.play(0)
    for name, state in _global_states().items():
        trial.require(name not in before or before[name] == state, f"the global generator of {name} was touched")


def _global_states() -> dict[str, Any]:
    states: dict[str, Any] = {"random": random.getstate(), "numpy": pickle.dumps(np.random.get_state())}
    if "torch" in sys.modules:  # a game does not need torch, so neither does its test
        states["torch"] = sys.modules["torch"].get_rng_state().numpy().tobytes()
    return states


def _return_range(trial: Trial) -> None:
    declared = getattr(trial.make(), "return_range", None)
    if declared is None:
        raise LawBroken(trial.law, "the environment has no return_range, its lowest and highest return")
    low, high = declared
    for index in range(_EPISODES):
        total = trial.play(index).total
        trial.require(low <= total <= high, f"a return of {total} is outside of the declared {low} to {high}")
    # The lowest return is often that of a policy which never finds a legal action.
    game = trial.begin(0)
    for _ in range(_ILLEGAL_TURNS):
        if game.over:
            break
        game.say("no such action\n")
    trial.require(low <= game.total, f"illegal actions bring {game.total}, below the declared {low}")


def _endings(trial: Trial) -> None:
    trial.refused(lambda: trial.make().step("before"), "step() before reset()")
    for index in range(_EPISODES):
        game = trial.play(index)
        _, _, terminated, truncated, _ = game.answers[-1]
        trial.require(not (terminated and truncated), "an episode may be terminated or truncated, not both")
        trial.refused(partial(game.env.step, "after"), "step() after the end")
        again = game.env.reset(seed=trial.seed + index)
        trial.require(again == game.answers[0], "reset() after the end does not begin afresh")


def _any_text(trial: Trial) -> None:
    game = trial.begin(0)
    for text in odd_texts(game.legal(), trial.texts, trial.seed):
        game.say(text)
        if game.over:
            game = trial.begin(0)


def _close_twice(trial: Trial) -> None:
    for env in (trial.make(), trial.begin(0).env):
        trial.works(env.close, "close()")
        trial.works(env.close, "the second close()")


def _pickling(trial: Trial) -> None:
    # Play two identical games, replace one environment by its unpickled copy, and compare all further answers.
    for turns in (0, 1, 3):
        game = trial.play(0, turns)
        twin = trial.play(0, turns)
        frozen = trial.works(partial(pickle.dumps, twin.env), f"pickling after {turns} turns")
        twin.env = trial.works(partial(pickle.loads, frozen), f"unpickling after {turns} turns")
        while not (game.over or twin.over):
            game.move()
            twin.move()
        trial.require(game.answers == twin.answers, f"a copy made after {turns} turns goes on differently")


_LAWS: dict[str, Callable[[Trial], None]] = {
    "reward only on turns, values of the right types": _form,
    "something to read before every action": _something_to_read,
    "same seed, same actions, same episode": _same_seed,
    "info repeats the start": _start_repeats,
    "instances do not influence each other": _interleaved,
    "no global generator is touched": _global_rng,
    "returns within the declared range": _return_range,
    "truncation and termination apart": _endings,
    "any text is answered": _any_text,
    "close twice": _close_twice,
    "pickling keeps behaviour": _pickling,
}
