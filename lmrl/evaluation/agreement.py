"""How often a partner answers as the scripted one does."""

from dataclasses import dataclass
from itertools import islice
from typing import Any

from lmrl.envs.base import DialogueEnv
from lmrl.envs.registry import make, partner_prompts, tasks
from lmrl.errors import UserError
from lmrl.evaluation.intervals import wilson
from lmrl.types import Partner

__all__ = ["Agreement", "partner_agreement"]

_BATCH = 256


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two speakers over questions of one kind."""

    group: str
    """Which questions."""
    yes: tuple[int, int]
    """Of the questions to which the scripted speaker says yes: those to which the other does too, and all."""
    no: tuple[int, int]
    """Likewise for no."""

    @property
    def share(self) -> float:
        """Return the share of all questions."""
        return (self.yes[0] + self.no[0]) / max(1, self.yes[1] + self.no[1])

    def to_dict(self) -> dict[str, Any]:
        """JSON-like, with a 95 % Wilson interval."""
        same = self.yes[0] + self.no[0]
        asked = self.yes[1] + self.no[1]
        return {
            "group": self.group,
            "questions": asked,
            "agreement": self.share,
            "agreement_ci": list(wilson(same, asked)),
            "agreement_on_yes": self.yes[0] / max(1, self.yes[1]),
            "agreement_on_no": self.no[0] / max(1, self.no[1]),
        }


def partner_agreement(partner: Partner, task_name: str, size: int = 2_000, seed: int = 0) -> list[Agreement]:
    """Ask a partner and the scripted one the same questions.

    Args:
        partner: the speaker to be tested.
        task_name: a dialogue task whose answers are yes or no.
        size: questions in all, the same number of each kind.
        seed: of the questions.

    Returns:
        One line for each kind of question: worded as in the dataset, and worded otherwise.

    Raises:
        UserError: for another task, or fewer than two questions.
    """
    asking = {}
    for name, task in tasks().items():
        source = partner_prompts(name).questions if task.partner else None
        if source:
            asking[name] = source
    if task_name not in asking:
        raise UserError(
            f"agreement can be counted where answers are yes or no ({', '.join(asking)}), got {task_name!r}"
        )
    if size < 2:
        raise UserError(f"size must be at least 2, got {size}")
    env = make(task_name)
    assert isinstance(env, DialogueEnv)
    counts: dict[str, dict[bool, list[int]]] = {}
    questions = islice(asking[task_name](seed), size)
    while asked := list(islice(questions, _BATCH)):
        requests = [request for _, request in asked]
        for (group, _), right, said in zip(asked, env.partner.reply(requests), partner.reply(requests), strict=True):
            tally = counts.setdefault(group, {True: [0, 0], False: [0, 0]})[_yes(right)]
            tally[0] += _yes(right) == _yes(said)
            tally[1] += 1
    return [Agreement(group, (c[True][0], c[True][1]), (c[False][0], c[False][1])) for group, c in counts.items()]


def _yes(text: str) -> bool:
    """As the game reads it: what does not begin with yes is no."""
    return text.strip().lower().startswith("yes")
