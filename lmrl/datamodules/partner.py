"""Recorded dialogues from the other side: what the second speaker read and said."""

from typing import Any

from lmrl.data.replies import partner_pairs
from lmrl.datamodules.offline import OfflineDataModule
from lmrl.envs.dialogue import DialogueEnv
from lmrl.envs.registration import make, recorded_arguments
from lmrl.errors import UserError
from lmrl.partners import partner_episodes
from lmrl.storage import read_metadata
from lmrl.tokens import Window

__all__ = ["PartnerDataModule"]


class PartnerDataModule(OfflineDataModule):
    """The second speaker's side of a task's dialogues, to be imitated: what distils a partner.

    Prompts are those of `lmrl.partners.prompts`. A Twenty Questions or Guess My City oracle learns from single
    questions, a buyer from whole dialogues. Training and validation are split by the second speaker's episodes.
    """

    def __init__(self, task: str, **shared: Any) -> None:
        """Take the arguments of `OfflineDataModule`.

        Raises:
            UserError: for a task without a second speaker, or a chat rendering.
        """
        super().__init__(task, **shared)
        if self.hparams["rendering"] != "text":
            raise UserError("rendering must be text here: second speakers read prompts of their own")
        if not isinstance(make(self.task.name), DialogueEnv):
            raise UserError(f"task must be one with a second speaker, got {task!r}")

    def setup(self, stage: str) -> None:
        """Read the episodes and turn them round."""
        if self.episodes:
            return
        super().setup(stage)
        recorded = read_metadata(self.path).get("env", {})
        given = {**(self.hparams["env"] or {}), "partner": None}
        env = make(self.task.name, **recorded_arguments(self.task.name, recorded, given, str(self.path)))
        assert isinstance(env, DialogueEnv)
        self.episodes = [said for e in self.episodes for said in partner_episodes(partner_pairs(env, e))]

    def window(self) -> Window:
        """All that the second speaker is asked."""
        return Window(None, super().window().tokens)
