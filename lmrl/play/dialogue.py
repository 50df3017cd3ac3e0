"""Dialogues at the terminal: a person writes what a policy observes, and the policy replies."""

import sys

from rich.console import Console

from lmrl.envs.registry import DIALOGUES
from lmrl.errors import UserError, printable
from lmrl.evaluation.token_values import action_scores, has_values
from lmrl.modules import LanguageModule
from lmrl.policies.chat.endpoint import mended
from lmrl.report.wording import number
from lmrl.types import Episode, LoadedPolicy, Reply, Request

__all__ = ["hold_dialogues"]

_NEW = "/new"
_QUIT = "/quit"


def hold_dialogues(loaded: LoadedPolicy, system: str = "", seed: int = 0) -> None:
    """Read lines and print the replies of a policy, until the input ends.

    Each line is an observation, and the policy reads the dialogue so far. An empty line or ``/new`` begins a new
    dialogue, ``/quit`` ends. Each reply of a policy with values is shown with V before it and its own Q. At a terminal
    a prompt asks for each line; from a pipe the replies are all that is printed.

    Args:
        loaded: the policy, and its module.
        system: stands in front of the first line of each dialogue; empty: nothing does.
        seed: seed of the first dialogue; each new one has the next.

    Raises:
        UserError: from a pipe, a line that the policy cannot read.
    """
    console = Console(highlight=False, emoji=False)
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        console.print(f"An empty line or {_NEW} begins a new dialogue; {_QUIT} or Ctrl-D ends.", style="dim")
    observations: list[str] = []
    replies: list[Reply] = []
    while True:
        try:
            typed = mended(input("> " if at_terminal else "")).strip()
        except EOFError:
            break
        if typed == _QUIT:
            break
        if typed in ("", _NEW):
            if observations:
                observations = []
                replies = []
                seed += 1
                console.print("-- new dialogue --" if at_terminal else "", style="dim")
            continue
        # Texts end with a line break, as in files of dialogues.
        observations.append(f"{typed}\n" if observations or not system else f"{system}\n\n{typed}\n")
        try:
            reply = _reply(loaded, seed, observations, replies)
            shown = f"{printable(reply.text).strip()}{_values(loaded, seed, observations, [*replies, reply])}"
        except UserError as error:
            if not at_terminal:
                raise
            # The person can say it otherwise, and the dialogue continues.
            observations.pop()
            console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
            continue
        replies.append(reply)
        console.print(shown, style="cyan" if at_terminal else None, markup=False, soft_wrap=True)


def _reply(loaded: LoadedPolicy, seed: int, observations: list[str], replies: list[Reply]) -> Reply:
    actions = [reply.text for reply in replies]
    ids = [reply.ids for reply in replies]
    request = Request(slot=0, seed=seed, observations=observations, actions=actions, action_ids=ids)
    return loaded.policy.act([request])[0]


def _values(loaded: LoadedPolicy, seed: int, observations: list[str], replies: list[Reply]) -> str:
    """Return V before the last reply and its Q, as far as the policy has them: ``   V 0.41, Q 0.63``."""
    if not isinstance(loaded.module, LanguageModule) or not has_values(loaded.module):
        return ""
    # Values are computed from whole episodes. This one has ended, so that its last observation is not read.
    episode = Episode(
        task=DIALOGUES.name,
        observations=(*observations, ""),
        actions=tuple(reply.text for reply in replies),
        rewards=(0.0,) * len(replies),
        terminated=True,
        truncated=False,
        seed=seed,
        action_ids=tuple(reply.ids for reply in replies),
    )
    (scores,) = action_scores(loaded.module, [episode])
    values = []
    for name, found in (("V", scores.v), ("Q", scores.q)):
        if found is not None:
            values.append(f"{name} {number(float(found[-1]), 2)}")
    return f"   {', '.join(values)}" if values else ""
