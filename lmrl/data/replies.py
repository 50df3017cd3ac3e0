"""From a recorded dialogue back to what its second speaker was asked, and replied."""

from collections.abc import Iterator, Sequence
from typing import Any

from lmrl.envs.dialogue import DialogueEnv
from lmrl.episode import Episode
from lmrl.errors import UserError
from lmrl.protocols import PartnerRequest

__all__ = ["RecordedPartner", "partner_pairs"]


class RecordedPartner:
    """Says again what a second speaker said in an episode.

    Args:
        episode: ``info["replies"]`` is what they said before the rules had their say. Without it (an official file)
            what the player saw is taken.
    """

    def __init__(self, episode: Episode) -> None:
        self._seed = episode.seed
        self._replies: Iterator[str] = iter(episode.info.get("replies") or episode.observations[1:])

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """The next replies.

        Raises:
            UserError: if there are fewer than are asked for.
        """
        replies = [reply for _, reply in zip(requests, self._replies, strict=False)]
        if len(replies) < len(requests):
            raise UserError(f"the episode of seed {self._seed} holds fewer replies than its environment asks for")
        return replies

    def describe(self) -> dict[str, Any]:
        """See `lmrl.protocols.Partner`."""
        return {"name": "recorded"}


def partner_pairs(env: DialogueEnv, episode: Episode) -> list[tuple[PartnerRequest, str]]:
    """Play an episode again with the recorded replies, and note them beside what was asked.

    Args:
        env: of the episode's task; its own partner is not asked.
        episode: ``info["start"]`` says how it began; for its replies see `RecordedPartner`.

    Raises:
        UserError: if the start is not known, or there are too few replies.
    """
    if "start" not in episode.info:
        raise UserError(
            f"the episode of seed {episode.seed} does not say how it began: what its partner knew is unknown"
        )
    recorded = RecordedPartner(episode)
    env.reset(seed=episode.seed, options=episode.info["start"])
    pairs: list[tuple[PartnerRequest, str]] = []
    for action in episode.actions:
        outcome = env.say(action)
        while isinstance(outcome, PartnerRequest):
            (reply,) = recorded.reply([outcome])
            pairs.append((outcome, reply))
            outcome = env.hear(reply)
        if outcome[2] or outcome[3]:
            break
    return pairs
