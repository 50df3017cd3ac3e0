"""Environments whose second speaker is named on the command line or in a configuration."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, cast

from lmrl.envs.base import TextEnv
from lmrl.envs.registration import make
from lmrl.errors import UserError
from lmrl.protocols import Partner

__all__ = ["environment", "make_partner"]

# Imported when one is asked for: models need torch, endpoints a client.
_KINDS = {"lm": ("lmrl.partners.lm", "LMPartner"), "chat": ("lmrl.partners.chat", "ChatPartner")}
_TEMPERATURE = {"car_dealer": 1.0}  # the published buyer is sampled, the oracles are greedy


def make_partner(name: str, task: str) -> Partner | None:
    """The second speaker of that name: ``scripted`` (None: the game's own), ``lm:PATH`` or ``chat:MODEL``.

    Args:
        name: of the partner.
        task: name of the game.

    Raises:
        UserError: for another name, a model that is not there, or a missing package.
    """
    kind, _, what = name.partition(":")
    if name == "scripted":
        return None
    if kind not in _KINDS or not what:
        raise UserError(
            "partner must be scripted, lm:PATH (a run folder, a model folder or a hub id) or chat:MODEL (at an "
            f"OpenAI-compatible endpoint), got {name!r:.80}"
        )
    module, speaker = _KINDS[kind]
    found = getattr(import_module(module), speaker)(what, temperature=_TEMPERATURE.get(task, 0.0))
    return cast(Partner, found)


def environment(task: str, arguments: Mapping[str, Any] | None = None) -> Callable[[], TextEnv]:
    """Something that makes the environment of a task; all that it makes share one second speaker.

    Args:
        task: name of the task.
        arguments: of the environment, as for `lmrl.make`; ``partner`` may be a name (see `make_partner`).

    Raises:
        UserError: see `make_partner` and `lmrl.make`.
    """
    given = dict(arguments or {})
    if isinstance(given.get("partner"), str):
        given["partner"] = make_partner(given["partner"], task)
    return partial(make, task, **given)
