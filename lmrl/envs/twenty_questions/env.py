"""Twenty Questions: find a hidden object by yes-or-no questions. Also the scripted oracle that answers them."""

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

_VERSION = 2
"""Goes up whenever the same question gets another answer."""


class ScriptedOracle:
    r"""A `Partner` that answers ``Yes.\n`` or ``No.\n`` by the table of properties, and no if it does not understand.

    Args:
        noise: probability of the opposite answer; the draw follows from the episode's seed and the turn.

    Raises:
        UserError: for a number that is no probability.
    """

    def __init__(self, noise: float = 0.0) -> None:
        if not 0 <= noise <= 1:
            raise UserError(f"noise must be from 0 to 1, got {noise}")
        self.noise = float(noise)

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """Return an answer for each request; ``facts`` must have the hidden ``word``."""
        return ["Yes.\n" if self._answer(request) else "No.\n" for request in requests]

    def describe(self) -> dict[str, Any]:
        """Return name, version and noise."""
        return {"name": "scripted", "version": _VERSION, "noise": self.noise}

    def _answer(self, request: PartnerRequest) -> bool:
        # The meaning of a question is a set of objects, one bit each: those for which the answer is yes.
        yes = bool(meaning(request.heard[-1]) >> place_of()[request.facts["word"]] & 1)
        if not self.noise:
            return yes
        return yes != (Random(f"noise {request.seed} {len(request.heard)}").random() < self.noise)


@lru_cache(maxsize=16)
def scripted_oracle(noise: float = 0.0) -> ScriptedOracle:
    """Return one oracle for all environments with the same noise, so that it can answer their requests together."""
    return ScriptedOracle(noise)


QUESTIONS = 20
_HEADER = "Questions:\n"
_YES = "Yes.\n"
_NO = "No.\n"
_WORD = re.compile(r"[^\W_]")


class TwentyQuestions(DialogueEnv):
    r"""A guessing game: ``Is it alive?\n`` is answered by ``Yes.\n`` or ``No.\n``.

    Each question costs 1, the one that wins nothing. A question wins if it is a guess of the hidden object (see
    `lmrl.envs.twenty_questions.meaning`) and the oracle says yes to it. The winning question or the 20th terminates.
    A reply of the oracle that does not begin with "yes" counts as no. A text without letters and digits is illegal:
    the oracle is not asked, the answer is no, and it costs a question.

    ``info["start"]["word"]`` is the hidden object, one of `lmrl.envs.twenty_questions.objects.things`. Source:
    LMRL-Gym, section 4 and appendix C.6.

    Args:
        partner: answers the questions; None: the scripted oracle. It gets the ``facts`` ``word`` and ``variants``.
        noise: probability that the scripted oracle gives the opposite answer.
        deterministic: hide object ``seed % 158`` instead of drawing one by the seed.
        render_mode: see `TextEnv`.

    Raises:
        UserError: for ``noise`` that is no probability, or together with a partner.
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
        """Return all questions so far with their answers."""
        lines = [_HEADER]
        for asked, answer in zip(self._asked, self._answers, strict=False):
            lines.append(f"{asked.rstrip()} {answer}")
        return "".join(lines)

    def legal_actions(self) -> list[str]:
        """Return a guess of each object; any other question is legal too."""
        return list(_guesses())

    def begin(self, options: dict[str, Any]) -> Opening:
        self._thing = self._hidden(options)
        self._asked = []
        self._answers = []
        return Opening(_HEADER, task_id=self._thing.name, start={"word": self._thing.name})

    def _hidden(self, options: dict[str, Any]) -> Thing:
        objects = things()
        if "word" in options:
            word = options["word"]
            if not isinstance(word, str) or word not in place_of():
                raise UserError(f"word must be one of the {len(objects)} objects, got {word!r:.60}")
            return objects[place_of()[word]]
        if options.get("deterministic", self.deterministic):
            return objects[(self.np_random_seed or 0) % len(objects)]
        return objects[int(self.np_random.integers(len(objects)))]

    def on_action(self, action: str) -> Turn | PartnerRequest:
        del self._asked[len(self._answers) :]  # the last question, if the partner failed to answer it
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
        # A question wins if it is a guess of the object and the oracle agrees, whichever oracle that is.
        solved = answer == _YES and is_guess(self._asked[-1], self._thing.variants)
        over = solved or len(self._answers) == QUESTIONS
        info = {"illegal": illegal, "success": solved}
        return Turn(answer, 0.0 if solved else -1.0, terminated=over, truncated=False, info=info)


def guess_of(thing: Thing) -> str:
    r"""Return the question that guesses an object: ``Is it a cat?\n``."""
    return f"Is it {thing.guess}?\n"


def tokens(env: Mapping[str, Any]) -> TaskTokens:
    """Return the tokens of a game: the words of all questions that players know, and both answers."""
    questions: list[str] = []
    for item in properties():
        questions += item.phrasings
    questions += _guesses()
    return words_as_tokens(questions, lines=["Questions:\n", "Yes.\n", "No.\n"])


@lru_cache(maxsize=1)
def _guesses() -> tuple[str, ...]:
    return tuple(map(guess_of, things()))
