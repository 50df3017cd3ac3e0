"""Twenty Questions: find a hidden object by questions that a scripted oracle answers by yes or no."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any, ClassVar

from lmrl.envs.base import DialogueEnv, Opening, Turn
from lmrl.envs.task import TaskTokens, words_as_tokens
from lmrl.envs.twenty_questions.meaning import is_guess, meaning
from lmrl.envs.twenty_questions.objects import Thing, place_of, properties, things
from lmrl.errors import UserError
from lmrl.types import Partner, PartnerRequest

__all__ = ["QUESTIONS", "ScriptedOracle", "TwentyQuestions", "guess_of", "scripted_oracle", "tokens"]

_VERSION = 1
"""Goes up whenever the same question gets another answer."""


class ScriptedOracle:
    r"""A `Partner` that answers ``Yes.\n`` or ``No.\n`` by the table; what it does not understand is answered by no.

    Args:
        noise: probability with which an answer is turned round; it follows from the episode's seed and the turn.

    Raises:
        UserError: for a number that is no probability.
    """

    def __init__(self, noise: float = 0.0) -> None:
        if not 0 <= noise <= 1:
            raise UserError(f"noise must be from 0 to 1, got {noise}")
        self.noise = float(noise)

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """An answer for each request; ``facts`` must have the hidden ``word``."""
        return ["Yes.\n" if self._answer(request) else "No.\n" for request in requests]

    def describe(self) -> dict[str, Any]:
        """Name, version and noise."""
        return {"name": "scripted", "version": _VERSION, "noise": self.noise}

    def _answer(self, request: PartnerRequest) -> bool:
        yes = bool(meaning(request.heard[-1]) >> place_of()[request.facts["word"]] & 1)
        if not self.noise:
            return yes
        return yes != (Random(f"noise {request.seed} {len(request.heard)}").random() < self.noise)


@lru_cache(maxsize=16)
def scripted_oracle(noise: float = 0.0) -> ScriptedOracle:
    """One oracle for all environments that ask for the same, so that they ask it together."""
    return ScriptedOracle(noise)


QUESTIONS = 20
_HEADER = "Questions:\n"
_YES = "Yes.\n"
_NO = "No.\n"
_WORD = re.compile(r"[^\W_]")


class TwentyQuestions(DialogueEnv):
    r"""The guessing game: ``Is it alive?\n`` is answered by ``Yes.\n`` or ``No.\n``.

    Each question costs 1, the one that wins nothing. A question wins if it is a guess of the hidden object (see
    `lmrl.envs.twenty_questions.meaning`) and the oracle says yes to it. The winning question or the 20th terminates.
    A reply of the oracle that does not begin with "yes" counts as no. A text without letters and digits is illegal:
    the oracle is not asked, the answer is no, and it costs a question.

    ``info["start"]["word"]`` is the hidden object, one of `lmrl.envs.twenty_questions.objects.things`. Source:
    LMRL-Gym, section 4 and appendix C.6.

    Args:
        partner: who answers; None: the scripted oracle. It is asked with the ``facts`` ``word`` and ``variants``.
        noise: probability with which the scripted oracle says the opposite.
        deterministic: hide object ``seed % 158`` instead of drawing one by the seed.
        render_mode: see `TextEnv`.

    Raises:
        UserError: for ``noise`` that is no probability, or that is to be that of another partner.
    """

    reset_options: ClassVar[tuple[str, ...]] = ("word", "deterministic")

    def __init__(
        self,
        partner: Partner | None = None,
        noise: float = 0.0,
        deterministic: bool = False,
        render_mode: str | None = "ansi",
    ) -> None:
        if partner is not None and noise:
            raise UserError(f"noise must be 0 where a partner is given: only the scripted oracle has it; got {noise}")
        super().__init__(scripted_oracle(noise) if partner is None else partner, render_mode)
        self.deterministic = deterministic
        self.return_range = (-float(QUESTIONS), 0.0)
        self._thing = things()[0]
        self._asked: list[str] = []
        self._answers: list[str] = []

    def render(self) -> str:
        """All questions so far with their answers."""
        said = (f"{asked.rstrip()} {answer}" for asked, answer in zip(self._asked, self._answers, strict=False))
        return "".join([_HEADER, *said])

    def legal_actions(self) -> list[str]:
        """A guess of each object; any other question is legal too."""
        return [*_guesses()]

    def begin(self, options: dict[str, Any]) -> Opening:
        self._thing = self._hidden(options)
        self._asked = []
        self._answers = []
        return Opening(_HEADER, task_id=self._thing.name, start={"word": self._thing.name})

    def _hidden(self, options: dict[str, Any]) -> Thing:
        every = things()
        if "word" in options:
            if options["word"] not in place_of():
                raise UserError(f"word must be one of the {len(every)} objects, got {options['word']!r:.60}")
            return every[place_of()[options["word"]]]
        if options.get("deterministic", self.deterministic):
            return every[(self.np_random_seed or 0) % len(every)]
        return every[int(self.np_random.integers(len(every)))]

    def on_action(self, action: str) -> Turn | PartnerRequest:
        self._asked.append(action)
        if not _WORD.search(action):
            return self._answered(_NO, illegal=True)
        return PartnerRequest(
            task="twenty_questions",
            facts={"word": self._thing.name, "variants": self._thing.variants},
            heard=tuple(self._asked),
            said=tuple(self._answers),
            seed=self._facts["seed"],
        )

    def on_reply(self, reply: str) -> Turn:
        return self._answered(_YES if reply.strip().lower().startswith("yes") else _NO, illegal=False)

    def _answered(self, answer: str, illegal: bool) -> Turn:
        self._answers.append(answer)
        solved = answer == _YES and is_guess(self._asked[-1], self._thing.variants)
        over = solved or len(self._asked) == QUESTIONS
        info = {"illegal": illegal, "success": solved}
        return Turn(answer, 0.0 if solved else -1.0, terminated=over, truncated=False, info=info)


def guess_of(thing: Thing) -> str:
    r"""How to guess an object: ``Is it a cat?\n``."""
    return f"Is it {thing.guess}?\n"


def tokens(env: Mapping[str, Any]) -> TaskTokens:
    """The words of all questions that players know, and both answers."""
    questions = [question for item in properties() for question in item.phrasings]
    return words_as_tokens([*questions, *_guesses()], lines=["Questions:\n", "Yes.\n", "No.\n"])


@lru_cache(maxsize=1)
def _guesses() -> tuple[str, ...]:
    return tuple(guess_of(thing) for thing in things())
