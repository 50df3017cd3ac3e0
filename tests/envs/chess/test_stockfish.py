import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from lmrl.envs.chess import opponents
from lmrl.envs.chess.env import Chess
from lmrl.envs.chess.opponents import find_engine
from lmrl.errors import UserError

Between = Callable[[int], None]

try:
    find_engine()
    MISSING = ""
except UserError as error:
    MISSING = str(error)
needs_engine = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def game(env: Chess, seed: int, turns: int = 8, between: Between | None = None) -> list[tuple[str, float, bool]]:
    """A game of random moves against the engine."""
    text, _ = env.reset(seed=seed)
    chance = Random(seed)
    found = [(text, 0.0, False)]
    for turn in range(turns):
        if between is not None:
            between(turn)
        text, reward, done, cut, info = env.step(chance.choice(env.legal_actions()))
        found.append((text, reward, info["illegal"]))
        if done or cut:
            break
    return found


def kill_engines() -> None:
    for engine in opponents._running.values():
        os.kill(engine.transport.get_pid(), signal.SIGKILL)
    time.sleep(0.01)


def _kill_at(wanted: int) -> Between:
    return lambda turn: kill_engines() if turn == wanted else None


@needs_engine
def test_games_repeat_whatever_the_process_played_before() -> None:
    first = Chess(opponent="stockfish", nodes=200)
    other = Chess(opponent="stockfish", nodes=200)
    alone = [game(first, seed) for seed in range(3)]
    assert [game(other, seed) for seed in (2, 1, 0)][::-1] == alone
    kill_engines()
    assert game(first, 1) == alone[1]  # a fresh process plays the same


@needs_engine
def test_one_process_serves_all_environments() -> None:
    envs = [Chess(opponent="stockfish", nodes=10 + index) for index in range(5)]
    for env in envs:
        game(env, 0, turns=1)
    assert len(opponents._running) == 1


@needs_engine
@pytest.mark.nightly
def test_killing_the_engine_between_moves_loses_no_game() -> None:
    env = Chess(opponent="stockfish", nodes=20)
    undisturbed = [game(env, seed, turns=4) for seed in range(100)]
    # Every fourth game loses its engine on the way.
    killed = [game(env, seed, turns=4, between=_kill_at(2 if seed % 4 == 0 else 9)) for seed in range(100)]
    assert killed == undisturbed
    assert not any(illegal for played in killed for _, _, illegal in played)


@needs_engine
def test_an_environment_made_after_the_engine_died_gets_another() -> None:
    undisturbed = game(Chess(opponent="stockfish", nodes=20), 3, turns=3)
    kill_engines()
    time.sleep(0.3)  # until python-chess has seen it
    assert game(Chess(opponent="stockfish", nodes=20), 3, turns=3) == undisturbed


@needs_engine
def test_an_engine_that_falls_silent_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opponents, "_PATIENCE", 0.5)
    env = Chess(opponent="stockfish", nodes=20)
    undisturbed = game(env, 3, turns=4)
    stopped: list[int] = []

    def stop(turn: int) -> None:
        if turn == 2:
            for engine in opponents._running.values():
                engine.timeout = 0.5  # what python-chess grants beyond the limit
                stopped.append(engine.transport.get_pid())
                os.kill(stopped[-1], signal.SIGSTOP)

    assert game(env, 3, turns=4, between=stop) == undisturbed
    assert stopped and not set(stopped) & {e.transport.get_pid() for e in opponents._running.values()}


@needs_engine
def test_what_it_was_played_with_is_told() -> None:
    env = Chess(opponent="stockfish", depth=2, skill=3)
    told = env.reset(seed=0)[1]["opponent"]
    assert told.pop("version").startswith("Stockfish")
    # Stockfish 12 to 15 can do without a network; others cannot, or have none.
    assert told.pop("network") == ("Use NNUE" not in next(iter(opponents._running.values())).options)
    assert told == {"name": "stockfish", "depth": 2, "skill": 3, "repeats": False}
    default = Chess(opponent="stockfish").reset(seed=0)[1]["opponent"]
    assert (default["nodes"], default["repeats"]) == (1000, True)


@needs_engine
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"elo": 100}, r"UCI_Elo of this engine goes from \d+ to \d+, got 100"),
        ({"skill": 21}, "Skill Level of this engine goes from 0 to 20, got 21"),
        ({"nodes": 0}, "nodes of the opponent must be a whole number from 1, got 0"),
    ],
)
def test_strengths_that_it_does_not_have(settings: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Chess(opponent="stockfish", **settings)


@needs_engine
def test_a_program_that_plays_ends() -> None:
    play = "e = lmrl.make('chess', opponent='stockfish', nodes=10); e.reset(seed=0); e.step('e 4')"
    code = f"import lmrl; {play}; print('end')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("end\n", "", 0)


def test_a_missing_engine_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"there is none at '/no/engine': install it \(apt-get install stockfish"):
        Chess(opponent="stockfish", engine_path="/no/engine")
    monkeypatch.setenv("STOCKFISH", "/not/here")
    with pytest.raises(UserError, match="none at '/not/here'"):
        find_engine()


def test_what_is_no_engine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opponents, "_TIMEOUT", 0.5)
    text = tmp_path / "engine.txt"
    text.write_text("hello")
    for path in (str(text), "/bin/cat", "/bin/true"):
        with pytest.raises(UserError, match=f"engine_path must be a UCI engine such as Stockfish, got '{path}'"):
            Chess(opponent="stockfish", engine_path=path)
