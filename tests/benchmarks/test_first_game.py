"""What the clock of ``make demo`` takes for a game is one, and the command is that of the Makefile."""

from pathlib import Path

import pytest

from benchmarks import first_game

ROOT = Path(__file__).parents[2]


def test_the_command_is_that_of_the_makefile() -> None:
    assert f"lmrl {' '.join(first_game.WORDS)} " in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_a_command_without_an_address_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_game, "WORDS", ("web", "nothing"))
    with pytest.raises(RuntimeError, match="printed no address"), first_game.demo(tmp_path):
        pass


def test_the_first_game_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_game, "WORDS", ("web", "maze_fo", "--policy", "optimal", "--seed", "3"))
    with first_game.demo(tmp_path) as address:
        state = first_game.first_state(address)
    assert (state["task"], state["seed"], len(state["seats"])) == ("maze_fo", "3", 1)
    seconds, cores = first_game.seconds_to_answer(tmp_path)
    assert 0 < cores and 0 < seconds
