"""Make partners from their names, environments with such partners, and training data for partners."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, cast
from urllib.parse import urlsplit

from lmrl.envs import registry
from lmrl.envs.base import TextEnv
from lmrl.envs.registry import make, partner_prompts
from lmrl.envs.task import PartnerDialogue
from lmrl.errors import UserError, in_one_line, unknown
from lmrl.policies.chat.client import ChatClient
from lmrl.types import Episode, Partner, PartnerRequest
from lmrl.utils.plugins import PARTNERS, entry_points_of

__all__ = ["check_budget", "environment", "make_partner", "partner_dialogue", "partner_episodes"]

# Imported on demand: models need torch, endpoints a client.
_KINDS = {
    "lm": ("lmrl.partners.lm", "LMPartner"),
    "chat": ("lmrl.partners.chat", "ChatPartner"),
    "vllm": ("lmrl.partners.vllm", "VLLMPartner"),
}


def make_partner(name: str | Mapping[str, Any], task: str) -> Partner | None:
    """Make the partner of a name: ``scripted`` (None), ``lm:PATH``, ``chat:MODEL``, ``vllm:URL#MODEL``, or a plugin's.

    Args:
        name: a name, or a mapping of ``name`` and the settings of `lmrl.partners.lm.LMPartner`,
            `lmrl.policies.chat.client.ChatClient`, `lmrl.partners.vllm.VLLMPartner` or the partner of a plugin
            (`lmrl.utils.plugins.PARTNERS`), for example ``{"name": "chat:gpt-4o", "budget_tokens": 1_000_000}``.
        task: name of the game.

    Raises:
        UserError: for an unknown name or setting, a missing model, or a missing package.
    """
    settings = {"name": name} if isinstance(name, str) else dict(name)
    name = str(settings.pop("name", ""))
    kind, _, what = name.partition(":")
    if name == "scripted":
        if settings:
            raise UserError(f"the scripted partner has no settings, got {', '.join(settings)}")
        return None
    plugins = {point.name: point for point in entry_points_of(PARTNERS)}
    if name in plugins:
        try:
            maker = plugins[name].load()
        except Exception as error:  # the import of another package may raise anything
            reason = in_one_line(f"{type(error).__name__}: {error}", 300)
            raise UserError(f"the partner {name} ({plugins[name].value}) cannot be loaded: {reason}") from error
        for setting in settings:
            if setting not in inspect.signature(maker).parameters:
                raise unknown(f"setting of the partner {name}", setting, inspect.signature(maker).parameters)
        return cast(Partner, maker(**settings))
    if kind not in _KINDS or not what:
        known = ", ".join(["vllm:URL#MODEL", *plugins])
        raise UserError(
            "partner must be scripted, lm:PATH (a run folder, a model folder or a hub id), chat:MODEL (at an "
            f"OpenAI-compatible endpoint) or {known}, got {name!r:.80}"
        )
    module, class_name = _KINDS[kind]
    partner_class = getattr(import_module(module), class_name)
    _check_settings(kind, settings, ChatClient if kind == "chat" else partner_class)
    # The task decides whether its partner samples, unless the settings do.
    temperature = partner_prompts(task).temperature if registry.task(task).partner else 0.0
    return cast(Partner, partner_class(what, **{"temperature": temperature, **settings}))


def _check_settings(kind: str, settings: Mapping[str, Any], taker: Callable[..., object]) -> None:
    # The name of the partner already gives the model.
    hidden = ("model", "path", "address", "api_key")
    parameters = inspect.signature(taker).parameters
    known = [name for name in parameters if name not in hidden]
    for name, value in settings.items():
        # Arguments of an environment are written into datasets and scores, which must not contain secrets.
        if name == "api_key" and kind == "chat":
            raise UserError("api_key is no setting of a partner, for those are written into files: set $OPENAI_API_KEY")
        if name not in known:
            raise unknown(f"setting of {kind} partners", name, known)
        if parameters[name].annotation is int and (not isinstance(value, int) or isinstance(value, bool)):
            raise UserError(f"{name} must be a whole number, got {value!r:.60}")
    try:
        host = urlsplit(str(settings.get("base_url", ""))).netloc
    except ValueError:  # no address: the client refuses it
        host = ""
    if "@" in host:
        raise UserError(
            "base_url of a partner must hold no password, for it is written into files: set $OPENAI_BASE_URL"
        )


def check_budget(partner: Any, workers: int) -> None:
    """Make sure that only one process uses a partner with a budget.

    Args:
        partner: a name, or a mapping of a name and settings.
        workers: number of processes with environments.

    Raises:
        UserError: if there are several, since each would have the full budget.
    """
    # One worker is no loss: a chat partner gets the requests of all slots in parallel anyway.
    limits = [name for name in partner if name.startswith("budget_")] if isinstance(partner, Mapping) else []
    if limits and workers > 1:
        raise UserError(f"workers must be 1 where the partner has a budget ({', '.join(limits)}), got {workers}")


def environment(task: str, arguments: Mapping[str, Any] | None = None) -> Callable[[], TextEnv]:
    """Return a function that makes the environment of a task; all of its environments share one partner.

    Args:
        task: name of the task.
        arguments: arguments of the environment, as for `lmrl.make`; ``partner`` may be a name, or a mapping of a name
            and settings (see `make_partner`).

    Raises:
        UserError: see `make_partner` and `lmrl.make`.
    """
    given = dict(arguments or {})
    if isinstance(given.get("partner"), str | Mapping):
        given["partner"] = make_partner(given["partner"], task)
    return partial(make, task, **given)


def partner_dialogue(request: PartnerRequest) -> PartnerDialogue:
    """Return the dialogue as the partner reads it, up to its next reply.

    Raises:
        UserError: for a task whose partner has no prompts.
    """
    return partner_prompts(request.task).dialogue(request)


def first_line(text: str) -> str:
    """Return the first line of a model's reply; models may continue the dialogue by themselves."""
    return f"{text.strip().partition(chr(10))[0].strip()}\n"


def partner_episodes(pairs: Sequence[tuple[PartnerRequest, str]]) -> list[Episode]:
    """Return the requests to a partner and its replies in one episode as episodes with the partner as the policy.

    A partner that reads the whole dialogue has one episode of many turns. A partner that reads one question at a time
    has one episode per question. The rewards are 0, and the last observation is empty.
    """
    found: list[Episode] = []
    for index, (request, reply) in enumerate(pairs):
        heard, said = partner_dialogue(request)
        # The next dialogue contains this one if it has more replies: then only the last one counts.
        continued = index + 1 < len(pairs) and len(partner_dialogue(pairs[index + 1][0])[1]) > len(said)
        if not continued:
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
