"""Reconstruction of the hidden word, which the official Wordle files leave out.

A record is ``{"sequence": [[text, is_action], ...], "reward", "done"}``. ``info["start"]`` is the hidden word or,
where a game was not solved, any of the vocabulary that agrees with all answers.
"""

from functools import reduce

from lmrl.envs.base import TextEnv
from lmrl.envs.official import FileFormat, Game, game_of_sequence
from lmrl.envs.task import Task
from lmrl.envs.wordle.env import LENGTH, TRIES, Wordle, word_of
from lmrl.errors import UserError
from lmrl.types import Episode

__all__ = ["FORMAT", "wordle_episode"]

_SOLVED = "g" * LENGTH
_MARK = "<|endoftext|>"  # some files begin and end games with it


def wordle_episode(game: Game, row: Task, env: TextEnv) -> Episode | None:
    """The episode of a record, or None if no guess of it can be kept; the module states the rules."""
    assert isinstance(env, Wordle)
    texts = [text.replace(_MARK, "") for text in game.observations]
    _check(texts, game)
    known = min(len(game.actions), len(texts) - 1)
    if known == 0:
        return None
    solved = word_of(texts[known]) == _SOLVED
    over = solved or known == TRIES
    word = word_of(game.actions[known - 1]) if solved else _hidden(env, texts, game, known)
    info = {"source": "official", "success": solved, "illegal": sum(not word_of(text) for text in texts[1 : known + 1])}
    return Episode(
        task=row.name,
        observations=tuple(texts[: known + 1]),
        actions=game.actions[:known],
        rewards=game.rewards[:known],
        terminated=over,
        truncated=not over,
        info=info if word is None else {**info, "start": {"word": word}},
    )


def _check(texts: list[str], game: Game) -> None:
    if texts[0] != "Wordle:\n":
        raise UserError(f"a game must begin with 'Wordle:\\n', got {texts[0]!r:.60}")
    for place, text in enumerate(texts[1:]):
        answer = word_of(text)
        if answer and (len(answer) != LENGTH or not set(answer) <= set("gyb")):
            raise UserError(f"answer {place} must be five of g, y and b or an empty line, got {text!r:.60}")
        guess = word_of(game.actions[place]) if answer else ""
        if answer and not (len(guess) == LENGTH and guess.isascii() and guess.isalpha() and guess.islower()):
            raise UserError(f"guess {place} has an answer but is not five letters from a to z, got {guess!r:.60}")


def _hidden(env: Wordle, texts: list[str], game: Game, known: int) -> str | None:
    """A word of the vocabulary that agrees with every answer, if there is one."""
    words = env.vocabulary
    said = [(word_of(action), word_of(text)) for action, text in zip(game.actions[:known], texts[1:], strict=False)]
    sets = (words.agreeing(guess, answer, env.counted) for guess, answer in said if answer)
    left = reduce(int.__and__, sets, words.everything)
    return words.pick(left, 0) if left else None


FORMAT = FileFormat(game_of_sequence, wordle_episode, "[")
