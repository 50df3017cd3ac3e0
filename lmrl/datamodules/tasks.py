"""One LightningDataModule per game, and one for the other side of recorded dialogues."""

from itertools import islice
from typing import Any

from lmrl.data.inspection import partner_pairs
from lmrl.data.storage import read_metadata
from lmrl.datamodules.offline import OfflineDataModule
from lmrl.envs.base import DialogueEnv
from lmrl.envs.registry import make, partner_prompts, recorded_arguments
from lmrl.errors import UserError, check_range, counted
from lmrl.partners import partner_episodes
from lmrl.tokens.encoding import Window

__all__ = [
    "CarDealerDataModule", "ChessDataModule", "GuessCityDataModule", "MazeDataModule", "PartnerDataModule",
    "TextNavDataModule", "TwentyQuestionsDataModule", "WordleDataModule",
]  # fmt: skip


class MazeDataModule(OfflineDataModule):
    """Episodes of ``maze_fo`` (one segment per turn: the last observation) or ``maze_po`` (the last 40 texts)."""

    def __init__(self, task: str = "maze_fo", **shared: Any) -> None:
        """Choose the maze; the other arguments are those of `OfflineDataModule`."""
        super().__init__(task, **shared)


class TextNavDataModule(OfflineDataModule):
    """Episodes of ``text_nav_fo`` (one segment per turn: the last observation) or ``text_nav_po`` (one per episode)."""

    def __init__(self, task: str = "text_nav_fo", **shared: Any) -> None:
        """Choose the house; the other arguments are those of `OfflineDataModule`."""
        super().__init__(task, **shared)


class WordleDataModule(OfflineDataModule):
    """Games of ``wordle``: one segment per game."""

    def __init__(self, task: str = "wordle", **shared: Any) -> None:
        """Take the arguments of `OfflineDataModule`."""
        super().__init__(task, **shared)


class ChessDataModule(OfflineDataModule):
    """Games of ``chess`` or ``endgames``: one segment per move, the position before it."""

    def __init__(self, task: str = "chess", **shared: Any) -> None:
        """Choose the game; the other arguments are those of `OfflineDataModule`."""
        super().__init__(task, **shared)


class TwentyQuestionsDataModule(OfflineDataModule):
    """Dialogues of ``twenty_questions``: one segment per dialogue."""

    def __init__(self, task: str = "twenty_questions", **shared: Any) -> None:
        """Take the arguments of `OfflineDataModule`."""
        super().__init__(task, **shared)


class GuessCityDataModule(OfflineDataModule):
    """Games of ``guess_city``: one segment per game."""

    def __init__(self, task: str = "guess_city", **shared: Any) -> None:
        """Take the arguments of `OfflineDataModule`."""
        super().__init__(task, **shared)


class CarDealerDataModule(OfflineDataModule):
    """Conversations of ``car_dealer``: one segment each."""

    def __init__(self, task: str = "car_dealer", **shared: Any) -> None:
        """Take the arguments of `OfflineDataModule`."""
        super().__init__(task, **shared)


class PartnerDataModule(OfflineDataModule):
    """The partner's side of a task's dialogues, to be imitated: what distils a partner.

    Prompts are those of `lmrl.partners.lm`. A Twenty Questions or Guess My City oracle learns from single
    questions, a buyer from whole dialogues. Training and validation are split by the partner's episodes.
    """

    def __init__(self, task: str, lessons: int | None = None, **shared: Any) -> None:
        """Choose what is learned from.

        Args:
            task: name of a task with a partner.
            lessons: learn from this many single questions that the task makes up, with the right answers, instead of
                from dialogues.
            **shared: arguments of `OfflineDataModule`.

        Raises:
            UserError: for a task without a partner or without lessons, or a chat rendering.
        """
        check_range("[1, inf)", lessons=lessons)
        super().__init__(task, **shared)
        if self.hparams["rendering"] != "text":
            raise UserError("rendering must be text here: partners read prompts of their own")
        if not isinstance(make(self.task.name), DialogueEnv):
            raise UserError(f"task must be one with a partner, got {task!r}")
        self._lessons = partner_prompts(self.task.name).lessons
        if lessons is not None and self._lessons is None:
            raise UserError(f"{self.task.name} has no lessons: leave lessons out, and dialogues are learned from")
        self._number = lessons

    def prepare_data(self) -> None:
        """Generate the dialogues, unless single questions are learned from."""
        if self._number is None:
            super().prepare_data()

    def setup(self, stage: str) -> None:
        """Make the partner's episodes."""
        if self.episodes:
            return
        if self._number is not None and self._lessons is not None:
            pairs = []
            for lesson in islice(self._lessons(self.hparams["data_seed"]), self._number):
                pairs.append((lesson.request, "Yes.\n" if lesson.is_yes else "No.\n"))
            self.episodes = partner_episodes(pairs)
            return
        super().setup(stage)
        recorded = read_metadata(self.path).get("env", {})
        given = {**(self.env or {}), "partner": None}
        env = make(self.task.name, **recorded_arguments(self.task.name, recorded, given, str(self.path)))
        assert isinstance(env, DialogueEnv)
        # The partner becomes the one who acts: its texts are the actions, what it heard the observations.
        turned = []
        for episode in self.episodes:
            turned += partner_episodes(partner_pairs(env, episode))
        self.episodes = turned

    def facts(self) -> dict[str, Any]:
        """See `OfflineDataModule.facts`."""
        facts = super().facts()
        if self._number is None:
            return facts
        return {**facts, "data": f"{counted(self._number, 'question')} of the task", "data_hash": None}

    def window(self) -> Window:
        """All that the partner is asked."""
        window = super().window()
        return Window(None, window.tokens, bos=window.bos)
