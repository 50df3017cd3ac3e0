"""``lmrl chat``: a person at the terminal talks to a trained policy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from lmrl.checkpoints.zoo import ZOO_PREFIX
from lmrl.errors import UserError
from lmrl.evaluation.loading import PolicySpec, load_policy
from lmrl.modules import LanguageModule
from lmrl.play.dialogue import hold_dialogues

__all__ = ["chat_command"]


def chat_command(
    policy: str,
    *,
    system: str | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    beta: float | None = None,
    seed: int = 0,
    allow_pickle: bool = False,
    device: str | None = None,
) -> None:
    """Talk to a trained policy: type what it observes, press enter, and read its reply, with its values if it has any.

    It reads the dialogue so far. An empty line or /new begins a new dialogue, /quit or Ctrl-D ends. A pipe works too:
    then each line of the output is a reply.

    Args:
        policy: a run folder, a checkpoint, an exported folder, or zoo:TASK/NAME.
        system: a system message, in the place that it had in training (default: with a chat template the one that all
            dialogues of the training shared).
        temperature: sampling temperature, 0 is greedy (default: the policy's own).
        top_k: sample among the k most probable tokens only.
        top_p: sample among the most probable tokens with this total probability only.
        beta: weight of the learned values (MC, ILQL, Q-SFT).
        seed: decides what is random about the replies.
        allow_pickle: read a checkpoint with pickled objects; that can run any code in it.
        device: where the policy computes, e.g. cuda (default: the CPU).
    """
    if not policy.startswith(ZOO_PREFIX) and not Path(policy).exists():
        raise UserError(f"there is no run, checkpoint or exported folder {policy!r}; of the zoo: lmrl zoo list")
    spec = PolicySpec.parse(policy, allow_pickle=allow_pickle)
    chosen = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "beta": beta, "device": device}
    settings: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    loaded = spec.load(**settings)
    module = loaded.module
    if system is not None and isinstance(module, LanguageModule) and module.context_window().system:
        module.window = replace(module.context_window(), system=system)
        settings.pop("device", None)  # where the module is by now
        loaded = load_policy(module, spec.task, **{**spec.published_settings, **settings})
        system = None
    hold_dialogues(loaded, system or "", seed)
