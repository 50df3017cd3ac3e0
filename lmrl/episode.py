"""One record from data file to replay buffer to evaluation log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmrl.errors import UserError

__all__ = ["Episode"]


@dataclass(frozen=True, slots=True)
class Episode:
    r"""What was said, for what reward, and how it ended.

    Example: two turns in the maze, the second reaches the goal::

        Episode(
            task="maze_fo",
            observations=("... position 6, 6 ...\n", "... position 7, 6 ...\n", "Success\n"),
            actions=("move down\n", "move down\n"),
            rewards=(-1.0, 0.0),
            terminated=True,
            truncated=False,
            seed=0,
            info={"success": True},
        )
    """

    task: str
    observations: tuple[str, ...]
    """``T + 1`` texts of the environment; the last one follows the last action."""
    actions: tuple[str, ...]
    """``T`` texts of the player."""
    rewards: tuple[float, ...]
    """``T`` rewards, one per action."""
    terminated: bool
    """The rules ended it: nothing beyond has value."""
    truncated: bool
    """It was cut short: the state after the last observation still has a value."""
    seed: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)
    """JSON-like extras; ``success`` (bool) and ``illegal`` (number of illegal actions) where known."""
    action_ids: tuple[tuple[int, ...], ...] = ()
    """Token ids of each action as sampled (``T`` tuples), or empty where nothing was sampled."""
    action_logprobs: tuple[tuple[float, ...], ...] = ()
    """Log-probabilities that belong to `action_ids`."""
    action_values: tuple[tuple[float, ...], ...] = ()
    """V of the states in which those ids were sampled, where the policy had a value head."""

    def __post_init__(self) -> None:
        turns = len(self.actions)
        if len(self.observations) != turns + 1 or len(self.rewards) != turns:
            raise UserError(
                f"an episode of {turns} actions needs {turns + 1} observations and {turns} rewards, "
                f"got {len(self.observations)} and {len(self.rewards)}"
            )
        for name in ("action_ids", "action_logprobs", "action_values"):
            if len(getattr(self, name)) not in (0, turns):
                raise UserError(
                    f"{name} must be empty or have one entry per action ({turns}), got {len(getattr(self, name))}"
                )

    def __len__(self) -> int:
        """Number of turns."""
        return len(self.actions)

    @property
    def total_reward(self) -> float:
        """The undiscounted return."""
        return float(sum(self.rewards))

    @property
    def success(self) -> bool:
        """Whether the task was solved (a metric of its own: never ``reward > 0``)."""
        return bool(self.info.get("success", False))

    @property
    def illegal(self) -> int:
        """How many actions the rules did not know."""
        return int(self.info.get("illegal", 0))
