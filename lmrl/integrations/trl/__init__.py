"""The tasks for TRL's `GRPOTrainer`: moves by calling a tool, or moves that are what the model says, as raw text."""

from typing import TYPE_CHECKING

from lmrl.utils.lazy import exports

__all__ = [
    "GAME_OVER",
    "TaskEnvironment",
    "TextRollout",
    "answer",
    "environment_factory",
    "episode_return",
    "finish",
    "opening",
]

_TOOLS = "lmrl.integrations.trl.tools"

if TYPE_CHECKING:
    from lmrl.integrations.trl.raw_text import TextRollout
    from lmrl.integrations.trl.tools import (
        GAME_OVER,
        TaskEnvironment,
        answer,
        environment_factory,
        episode_return,
        finish,
        opening,
    )

__getattr__, __dir__ = exports(
    __name__, dict.fromkeys(__all__, _TOOLS) | {"TextRollout": "lmrl.integrations.trl.raw_text"}
)
