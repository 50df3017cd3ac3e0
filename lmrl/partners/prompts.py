"""What a model-backed second speaker reads, in the form in which the published benchmark trained its own.

Source: LMRL-Gym, appendices C.6 to C.8, and its code: the oracles of Twenty Questions and Guess My City read one
question without those before it; the buyer reads the whole dialogue behind a line that says whom they play.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from lmrl.episode import Episode
from lmrl.errors import unknown
from lmrl.protocols import PartnerRequest

__all__ = ["partner_episodes", "spoken"]

Spoken: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""What a speaker has read, ``t + 1`` texts, and what they said in between, ``t`` texts."""


def _object(facts: Mapping[str, Any], question: str) -> str:
    names = ", ".join(facts["variants"])
    return (
        "Answer the question about the object truthfully.\n"
        f"object: ({names})\nquestion: {question}\nanswer (yes or no): "
    )


def _city(facts: Mapping[str, Any], question: str) -> str:
    place = f"{facts['city']},{facts['country']}".lower()
    return f"Answer the question about the city truthfully.\nobject: {place}\nquestion: {question}\nanswer: "


def _oracle(prompt: Callable[[Mapping[str, Any], str], str]) -> Callable[[PartnerRequest], Spoken]:
    return lambda request: ((prompt(request.facts, request.heard[-1].strip()),), ())


def _buyer(request: PartnerRequest) -> Spoken:
    first = f"Start\n{request.facts['profile']}{request.heard[0]}"
    heard = (first, *request.heard[1:])
    if not request.begin:
        return heard, tuple(request.said)
    # Asked once more after what they said last: nothing was heard in between.
    return (*heard, request.begin), tuple(request.said)


_SPOKEN: Mapping[str, Callable[[PartnerRequest], Spoken]] = {
    "twenty_questions": _oracle(_object),
    "guess_city": _oracle(_city),
    "car_dealer": _buyer,
}


def spoken(request: PartnerRequest) -> Spoken:
    """The dialogue as the second speaker reads it; the reply comes next.

    Raises:
        UserError: for a task whose second speaker has no prompt.
    """
    if request.task not in _SPOKEN:
        raise unknown("dialogue task", request.task, _SPOKEN)
    return _SPOKEN[request.task](request)


def partner_episodes(pairs: Sequence[tuple[PartnerRequest, str]]) -> list[Episode]:
    """What a second speaker was asked in one episode and replied, as episodes in which they are the player.

    Who reads the whole dialogue has one episode of many turns; who reads one question at a time has one for each. They
    have no rewards; the last observation is empty.
    """
    found: list[Episode] = []
    for index, (request, reply) in enumerate(pairs):
        heard, said = spoken(request)
        follows = index + 1 < len(pairs) and len(spoken(pairs[index + 1][0])[1]) > len(said)
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
