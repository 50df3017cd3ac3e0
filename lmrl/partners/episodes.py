"""A dialogue as its second speaker reads it, and as episodes in which they are the player."""

from collections.abc import Sequence

from lmrl.envs.hooks import PartnerDialogue
from lmrl.envs.registry import partner_prompts
from lmrl.types import Episode, PartnerRequest

__all__ = ["partner_dialogue", "partner_episodes"]


def partner_dialogue(request: PartnerRequest) -> PartnerDialogue:
    """The dialogue as the second speaker reads it; the reply comes next.

    Raises:
        UserError: for a task whose second speaker has no prompts.
    """
    return partner_prompts(request.task).dialogue(request)


def partner_episodes(pairs: Sequence[tuple[PartnerRequest, str]]) -> list[Episode]:
    """What a second speaker was asked in one episode and replied, as episodes in which they are the player.

    Who reads the whole dialogue has one episode of many turns; who reads one question at a time has one for each. They
    have no rewards; the last observation is empty.
    """
    found: list[Episode] = []
    for index, (request, reply) in enumerate(pairs):
        heard, said = partner_dialogue(request)
        follows = index + 1 < len(pairs) and len(partner_dialogue(pairs[index + 1][0])[1]) > len(said)
        if not follows:
            actions = (*said, reply if reply.endswith("\n") else f"{reply}\n")
            found.append(
                Episode(
                    task=request.task,
                    observations=(*heard, ""),
                    actions=actions,
                    rewards=(0.0,) * len(actions),
                    terminated=True,
                    truncated=False,
                    seed=request.seed,
                )
            )
    return found
