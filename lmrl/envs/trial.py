"""What the laws are tried with: environments that random players play, and a complaint in the law's name."""

import math
import random
from collections.abc import Callable
from typing import Any

from lmrl.envs.base import TextEnv
from lmrl.errors import UserError

__all__ = ["LawBroken", "Play", "Trial"]

_MAX_TURNS = 10_000


class LawBroken(UserError):
    """An environment does what none may do; `law` is the name of the law."""

    def __init__(self, law: str, what: str) -> None:
        super().__init__(f"law {law!r} broken: {what}")
        self.law = law


class Trial:
    """One law being tried.

    Args:
        law: its name.
        make: makes an environment.
        seed: of the first episode.
        texts: how many odd texts the environment must answer.
        last_texts: how many texts a policy reads; None: all.
    """

    def __init__(
        self, law: str, make: Callable[[], TextEnv], seed: int, texts: int, last_texts: int | None = None
    ) -> None:
        self.law, self.make, self.seed, self.texts, self.last_texts = law, make, seed, texts, last_texts

    def require(self, condition: bool, what: str) -> None:
        """The law is broken unless ``condition``."""
        if not condition:
            raise LawBroken(self.law, what)

    def refused(self, call: Callable[[], Any], when: str) -> None:
        """The law is broken unless ``call`` raises a `UserError`."""
        try:
            call()
        except UserError:
            return
        except Exception as error:
            raise LawBroken(self.law, f"{when} must be a UserError, got {error!r}") from error
        raise LawBroken(self.law, f"{when} must be a UserError, but was answered")

    def works(self, call: Callable[[], Any], what: str) -> Any:
        """The law is broken if ``call`` raises."""
        try:
            return call()
        except Exception as error:
            raise LawBroken(self.law, f"{what} raised {error!r}") from error

    def begin(self, index: int) -> "Play":
        """A game that has just begun; its seed and its moves follow from ``index``."""
        return Play(self, self.make(), self.seed + index)

    def play(self, index: int, turns: int | None = None) -> "Play":
        """A game of random moves, to the end or for so many turns."""
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
        trial: hears about every answer that has the wrong form.
        env: is reset.
        seed: of the episode and of the random player.
    """

    def __init__(self, trial: Trial, env: TextEnv, seed: int) -> None:
        self.trial, self.env, self._rng = trial, env, random.Random(seed)
        self.answers: list[Any] = [trial.works(lambda: env.reset(seed=seed), f"reset(seed={seed})")]
        self.total = 0.0
        self.over = False

    def move(self) -> None:
        """Mostly a legal action, sometimes an illegal one."""
        legal = self.env.legal_actions()
        unlucky = not legal or self._rng.random() < 0.1
        self.say(f"not a move {self._rng.randrange(100)}\n" if unlucky else self._rng.choice(legal))

    def say(self, action: str) -> None:
        """One action; the answer must have the right form."""
        turn = self.trial.works(lambda: self.env.step(action), f"step({action[:80]!r})")
        _check_form(self.trial, turn)
        self.answers.append(turn)
        self.total += turn[1]
        self.over = turn[2] or turn[3]


def _check_form(trial: Trial, turn: Any) -> None:
    trial.require(isinstance(turn, tuple) and len(turn) == 5, "step must return five values")
    text, reward, terminated, truncated, info = turn
    trial.require(isinstance(text, str), f"an observation must be a str, got {text!r:.80}")
    is_number = isinstance(reward, float) and math.isfinite(reward)
    trial.require(is_number, f"a reward must be a finite float, got {reward!r:.80}")
    are_flags = isinstance(terminated, bool) and isinstance(truncated, bool)
    trial.require(are_flags, f"terminated and truncated must be bool, got {terminated!r} and {truncated!r}")
    trial.require(isinstance(info, dict), f"info must be a dict, got {info!r:.80}")
    for key in ("illegal", "success") if terminated or truncated else ("illegal",):
        trial.require(isinstance(info.get(key), bool), f"info[{key!r}] must be a bool, got {info.get(key)!r}")
