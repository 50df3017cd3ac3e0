"""Guess My City: find out by twenty questions where the partner lives."""

import unicodedata
from typing import Any, ClassVar

from lmrl.envs.base import DialogueEnv, Opening, Turn
from lmrl.envs.guess_city.cities import City, cities, city_named, topics
from lmrl.envs.guess_city.oracle import ScriptedResident, guarded, guessed
from lmrl.errors import UserError, unknown
from lmrl.types import Partner, PartnerRequest

__all__ = ["FOUND", "HEADER", "QUESTIONS", "GuessCity"]

HEADER = "Questions:\n"
QUESTIONS = 20
FOUND = "Yes, you found it.\n"
"""The game's own answer to the right guess."""
_NO_QUESTION = "Please ask me a question.\n"
_SILENT = "I am not sure.\n"
_MAX_QUESTION_CHARACTERS = 512  # characters of a question
_MAX_REPLY_CHARACTERS = 200
_CANDOR = 0.1


class GuessCity(DialogueEnv):
    r"""A guessing game: the partner lives in one of a hundred cities; the policy asks questions and wins by naming it.

    Every question costs 1, the winning one nothing. The right guess or the twentieth question terminates.
    `lmrl.envs.guess_city.oracle.guessed` recognises guesses. The game answers the right one by itself, and the
    partner answers everything else in one line. An answer that names the city, or the country before a question did,
    is replaced by a refusal; ``info["refused"]`` says so. A text without letters is illegal: it costs a question, and
    the game answers it without the partner.

    ``info["start"]["city"]`` is the city. Source: LMRL-Gym, section 4 and appendix C.7; there the answers are yes or no
    in the code, and no question can win.

    Args:
        partner: the resident; None: `ScriptedResident`. Its requests have the facts ``city``, ``aliases``,
            ``country``, and ``facts`` by topic.
        noise: probability that the scripted resident evades a question.
        candor: probability that the scripted resident adds details.
        deterministic: choose the city with the index seed mod 100 instead of drawing one, in the order of
            `lmrl.envs.guess_city.cities.cities`.
        render_mode: see `TextEnv`.

    Raises:
        UserError: for ``noise`` or ``candor`` that is no probability, or together with a partner.
    """

    reset_options: ClassVar[tuple[str, ...]] = ("city",)

    def __init__(
        self,
        partner: Partner | None = None,
        noise: float = 0.0,
        candor: float = _CANDOR,
        deterministic: bool = False,
        render_mode: str | None = "ansi",
    ) -> None:
        if partner is not None and (noise, candor) != (0.0, _CANDOR):
            raise UserError(
                "noise and candor must be left out where a partner is given: only the scripted resident has them; got "
                f"{noise} and {candor}"
            )
        super().__init__(ScriptedResident(noise, candor) if partner is None else partner, render_mode)
        self.deterministic = deterministic
        self.return_range = (-float(QUESTIONS), 0.0)
        self._name = ""
        self._heard: list[str] = []  # the questions
        self._said: list[str] = []  # the answers, the game's own among them

    def render(self) -> str:
        """Return all questions and answers so far."""
        lines = [HEADER]
        for heard, said in zip(self._heard, self._said, strict=False):
            lines += (heard, said)
        return "".join(lines)

    def legal_actions(self) -> list[str]:
        """Return questions that are understood, and a guess of each city; other texts with letters are legal too."""
        actions: list[str] = []
        for topic in topics():
            for question in topic.questions:
                actions.append(f"{question}\n")
        for city in cities():
            actions.append(f"Is it {city.name}?\n")
        return actions

    @property
    def _city(self) -> City:
        return city_named(self._name)

    def begin(self, options: dict[str, Any]) -> Opening:
        names = [city.name for city in cities()]
        if "city" in options and options["city"] not in names:
            raise unknown("city", str(options["city"])[:60], names)
        seed = self.np_random_seed
        if self.deterministic and seed is not None:
            index = seed % len(names)
        else:
            index = int(self.np_random.integers(len(names)))
        self._name = options.get("city", names[index])
        self._heard = []
        self._said = []
        return Opening(HEADER, task_id=self._name, start={"city": self._name})

    def on_action(self, action: str) -> Turn | PartnerRequest:
        del self._heard[len(self._said) :]  # the last question, if the partner failed to answer it
        self._heard.append(" ".join(action.split())[:_MAX_QUESTION_CHARACTERS] + "\n")
        if not any(map(str.isalpha, self._heard[-1])):
            return self._answered(_NO_QUESTION, illegal=True)
        # The game decides by itself about a right guess, so a partner cannot deny it.
        if guessed(self._heard[-1]) == self._name:
            return self._answered(FOUND, success=True)
        city = self._city
        known = {"city": city.name, "aliases": city.aliases, "country": city.country, "facts": city.facts}
        return PartnerRequest("guess_city", known, tuple(self._heard), tuple(self._said), self._facts["seed"])

    def on_reply(self, reply: str) -> Turn:
        # Answers are ASCII: accents go (an "é" becomes "e"), and so do other scripts. One character may become several,
        # so the line is cut afterwards.
        line = unicodedata.normalize("NFKD", " ".join(reply.split()))
        line = line.encode("ascii", "ignore").decode()[:_MAX_REPLY_CHARACTERS].strip()
        kept = guarded(line, self._city, self._heard)
        return self._answered(f"{kept}\n" if kept else _SILENT, refused=kept != line)

    def _answered(self, text: str, illegal: bool = False, success: bool = False, refused: bool = False) -> Turn:
        self._said.append(text)
        over = success or len(self._said) == QUESTIONS
        info = {"illegal": illegal, "success": success, "refused": refused}
        return Turn(text, 0.0 if success else -1.0, terminated=over, truncated=False, info=info)
