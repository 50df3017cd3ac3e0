"""Reconstruction of what the official Wordle files leave out: the hidden word.

A record is ``{"sequence": [[text, is_action], ...], "reward", "done"}``. ``info["start"]`` is the hidden word or,
where a game was not solved, any of the vocabulary that agrees with all answers.
"""

from lmrl.envs.base import TextEnv
from lmrl.envs.official import FileFormat, Game, game_of_sequence
from lmrl.envs.task import Task
from lmrl.envs.wordle.env import LENGTH, TRIES, Wordle, word_of
from lmrl.errors import UserError
from lmrl.types import Episode

__all__ = ["FORMAT", "wordle_episode"]

_SOLVED = "g" * LENGTH
_MARK = "<|endoftext|>"  # some files begin and end games with it


def wordle_episode(game: Game, task: Task, env: TextEnv) -> Episode | None:
    """Return the episode of a record, or None if no guess of it can be kept; the module states the rules."""
    assert isinstance(env, Wordle)
    texts = [text.replace(_MARK, "") for text in game.observations]
    _check(texts, game)
    # A last guess without an answer cannot be kept.
    known = min(len(game.actions), len(texts) - 1)
    if known == 0:
        return None
    solved = word_of(texts[known]) == _SOLVED
    over = solved or known == TRIES
    word = word_of(game.actions[known - 1]) if solved else _hidden(env, texts, game, known)
    # An illegal guess is answered by an empty line.
    illegal = sum(not word_of(text) for text in texts[1 : known + 1])
    info = {"source": "official", "success": solved, "illegal": illegal}
    return Episode(
        task=task.name,
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
    """Return a word of the vocabulary that agrees with every answer, if there is one."""
    words = env.vocabulary
    agreeing = words.everything
    for action, text in zip(game.actions[:known], texts[1:], strict=False):
        answer = word_of(text)
        if answer:
            agreeing &= words.agreeing(word_of(action), answer, env.counted)
    return words.pick(agreeing, 0) if agreeing else None


FORMAT = FileFormat(game_of_sequence, wordle_episode, "[")
