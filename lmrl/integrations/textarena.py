"""Games of the package TextArena as tasks: ``textarena:NAME``.

Its games draw from the global generators, so each game here has their states of its own: the same seed is the same game
again, and other code is not affected. A limit of turns is not distinguished from an end by the rules.
"""

import math
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import RLock
from typing import Any

import numpy as np

from lmrl.envs.base import Opening, TextEnv, Turn
from lmrl.envs.outside import outside_task
from lmrl.envs.task import Task
from lmrl.errors import UserError, in_one_line, unknown

__all__ = ["TextArenaGame", "textarena_task"]

# Threads share the global generators, so one game at a time has its own states in them.
_lock = RLock()


def textarena_task(name: str) -> Task:
    """Return the task of a game.

    Raises:
        UserError: TextArena is missing, or has no game of that name.
    """
    return outside_task("textarena", name, f"{__name__}:TextArenaGame", name=_arena_name(name))


class TextArenaGame(TextEnv):
    """A game of TextArena for one player, as it is under its wrappers: only new text is shown.

    The reward is that of the end, success a reward of 1, illegal what the game calls an invalid move.

    Args:
        name: id of the game in TextArena's registry, e.g. ``Mastermind-v0``.
        render_mode: see `TextEnv`.

    Raises:
        UserError: the package is missing, has no such game, or cannot make it; it is for several players.
    """

    return_range = (-math.inf, math.inf)

    def __init__(self, name: str, render_mode: str | None = "ansi") -> None:
        super().__init__(render_mode)
        self._name = _arena_name(name)
        self._chance = (random.Random(0).getstate(), np.random.RandomState(0).get_state())
        self._game: Any = None

    def begin(self, options: dict[str, Any]) -> Opening:
        seed = int(self.np_random_seed)
        arena = _arena()
        # States of the two global generators that TextArena draws from. NumPy takes seeds of 32 bits.
        self._chance = (random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state())
        with self._own_chance():
            try:
                self._game = arena.make(self._name)
                self._game.reset(num_players=1, seed=seed)
            except (Exception, SystemExit) as error:  # whatever a game raises; some exit where a package is missing
                reason = in_one_line(error, 120)
                raise UserError(f"TextArena cannot begin {self._name} ({type(error).__name__}: {reason})") from error
            if not isinstance(self._game.state, arena.SinglePlayerState):
                raise UserError(f"{self._name} is not for one player: only those games can be played")
            text, _ = self._new_text()
        return Opening(text, task_id=f"{self._name} {seed}", start={})

    def turn(self, action: str) -> Turn:
        with self._own_chance():
            done, _ = self._game.step(action)
            text, illegal = self._new_text()
            if not done:
                return Turn(text, 0.0, False, False, {"illegal": illegal, "success": False})
            rewards, facts = self._game.close()
        reward = float((rewards or {}).get(0, 0.0))
        outcome = (facts or {}).get(0, {})  # outcome for player 0, the only one
        reason = str(outcome.get("reason", ""))
        text = "\n".join(filter(None, (text, reason)))
        info = {"illegal": illegal or bool(outcome.get("invalid_move")), "success": reward >= 1, "reason": reason}
        return Turn(text, reward, terminated=True, truncated=False, info=info)

    def _new_text(self) -> tuple[str, bool]:
        """Return the text since the last turn without the player's own words, and whether a move was invalid."""
        kinds = _arena().ObservationType
        _, messages = self._game.get_observation()
        if isinstance(messages, str):
            return messages, False
        texts = []
        illegal = False
        for _, text, kind in messages:
            if kind is not kinds.PLAYER_ACTION:
                texts.append(text)
            # The game's own messages to a player are about invalid moves.
            illegal = illegal or kind is kinds.GAME_ADMIN
        return "\n".join(texts), illegal

    @contextmanager
    def _own_chance(self) -> Iterator[None]:
        """Inside, the global generators are those of this game."""
        with _lock:
            # Swap the states in, and the states of other code back at the end.
            others = random.getstate(), np.random.get_state()
            random.setstate(self._chance[0])
            np.random.set_state(self._chance[1])
            try:
                yield
            finally:
                self._chance = (random.getstate(), np.random.get_state())
                random.setstate(others[0])
                np.random.set_state(others[1])


def _arena() -> Any:
    try:
        return import_module("textarena")
    except ImportError as error:
        raise UserError(f"this game needs textarena ({error}): pip install 'lmrl[textarena]'") from error


def _arena_name(name: str) -> str:
    """Return the name of the game without its wrappers, which is always a key of TextArena's own table."""
    _arena()
    known = import_module("textarena.envs.registration").ENV_REGISTRY
    if name not in known:
        raise unknown("game of textarena", name, [key for key in known if not re.search(r"-(raw|train)$", key)])
    raw = f"{name}-raw"
    return raw if raw in known else name
