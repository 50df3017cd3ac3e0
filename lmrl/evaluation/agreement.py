"""The share of yes-or-no questions to which a partner gives the right answer."""

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Any

from lmrl.envs.base import DialogueEnv
from lmrl.envs.registry import make, partner_prompts, tasks
from lmrl.errors import UserError
from lmrl.evaluation.intervals import wilson
from lmrl.types import Partner, ask

__all__ = ["Agreement", "partner_agreement"]

_BATCH = 256


@dataclass(frozen=True, slots=True)
class Agreement:
    """Right answers of a partner to the questions of one group."""

    group: str
    """Name of the group."""
    yes: tuple[int, int]
    """Among questions whose answer is yes: number of right answers, and of questions."""
    no: tuple[int, int]
    """The same for no."""

    @property
    def share(self) -> float:
        """Return the share of right answers among all questions."""
        return (self.yes[0] + self.no[0]) / max(1, self.yes[1] + self.no[1])

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, JSON-like, with a 95 % Wilson interval of the share."""
        right = self.yes[0] + self.no[0]
        questions = self.yes[1] + self.no[1]
        return {
            "group": self.group,
            "questions": questions,
            "agreement": self.share,
            "agreement_ci": list(wilson(right, questions)),
            "agreement_on_yes": self.yes[0] / max(1, self.yes[1]),
            "agreement_on_no": self.no[0] / max(1, self.no[1]),
        }


def partner_agreement(partner: Partner | None, task_name: str, size: int = 2_000, seed: int = 0) -> list[Agreement]:
    """Ask a partner questions whose answers the task knows.

    Args:
        partner: the partner to be tested; None: the task's own.
        task_name: a dialogue task whose answers are yes or no.
        size: number of questions, the same number in each group.
        seed: seed of the questions.

    Returns:
        An entry for each group of questions: worded as in the dataset, and worded differently.

    Raises:
        UserError: for another task, or fewer than two questions.
    """
    questions_of_tasks = {}
    for name, task in tasks().items():
        questions = partner_prompts(name).questions if task.partner else None
        if questions:
            questions_of_tasks[name] = questions
    if task_name not in questions_of_tasks:
        raise UserError(
            f"agreement can be counted where answers are yes or no ({', '.join(questions_of_tasks)}), got {task_name!r}"
        )
    if size < 2:
        raise UserError(f"size must be at least 2, got {size}")
    if partner is None:
        env = make(task_name)
        assert isinstance(env, DialogueEnv)
        partner = env.partner
    # Counts by group, whether the right answer is yes, and whether the partner gives it.
    counts = Counter[tuple[str, bool, bool]]()
    endless = questions_of_tasks[task_name](seed)
    for first in range(0, size, _BATCH):
        # In batches, as a language model answers many questions at once much faster.
        asked = list(islice(endless, min(_BATCH, size - first)))
        answers = ask(partner, [question.request for question in asked])
        for question, answer in zip(asked, answers, strict=True):
            counts[question.group, question.is_yes, question.is_yes == _yes(answer)] += 1
    agreements = []
    for group in dict.fromkeys(group for group, _, _ in counts):
        yes = counts[group, True, True]
        no = counts[group, False, True]
        of_yes = yes + counts[group, True, False]
        of_no = no + counts[group, False, False]
        agreements.append(Agreement(group, (yes, of_yes), (no, of_no)))
    return agreements


def _yes(text: str) -> bool:
    """Read an answer as the game does: anything that does not begin with yes counts as no."""
    return text.strip().lower().startswith("yes")
