"""The one place where a name (``random``, ``runs/maze_fo/ilql``, ``vllm:URL#MODEL``) becomes a policy."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lmrl import modules, policies
from lmrl.data.recording import dataset_path, generate
from lmrl.data.storage import read_dataset, read_episodes
from lmrl.envs import registry
from lmrl.envs.outside import named_task
from lmrl.envs.registry import chat_prompt, policy_names, task
from lmrl.envs.task import Task
from lmrl.errors import OtherTaskError, UserError, unknown
from lmrl.models.zoo import is_zoo
from lmrl.policies import chat as chat_models
from lmrl.policies.chat.policy import ChatPolicy, Speaker
from lmrl.policies.human import HumanPolicy
from lmrl.types import Episode, Policy

__all__ = [
    "Trained",
    "chat_player",
    "default_folder",
    "first_episodes",
    "is_chat",
    "is_served",
    "is_trained",
    "load_policy",
    "make_policy",
    "named_adviser",
    "named_policy",
    "own_tasks_only",
    "played_task",
    "task_of",
]

_COUNT = 32


def first_episodes(task_name: str, count: int = _COUNT) -> list[Episode]:
    """Episodes 0 to ``count - 1`` of the default dataset.

    They come from its file if that is there. Otherwise they are recorded and kept: a longer dataset begins with the
    same episodes.

    Raises:
        UserError: for an unknown task.
    """
    paths = [dataset_path(task_name, size, 0) for size in (task(task_name).dataset_size, count)]
    found = next((path for path in paths if path.is_file()), None) or generate(task_name, count, progress=False)
    return list(islice(read_episodes(found), count))


_SPEAKERS = {"chat": "ChatClient", "local": "LocalChat"}
_SAMPLING = ("temperature", "top_k", "top_p")
_KEPT = ("best", "last")
_MAX_TOKENS = 512
_POOL = 1_000
"""Episodes of a given file among which the best are found."""


def played_task(task: str | None, *names: str, allow_pickle: bool = False) -> Task:
    """The task that players of those names play: the one that is named, or else the one that a trained one learned.

    Args:
        task: its name; None: that of the first player that is a run, a checkpoint or an exported folder.
        names: of players.
        allow_pickle: as of `lmrl.load_module`.

    Raises:
        UserError: an unknown task; or none is named, and no player tells.
    """
    if task is not None:
        if Path(task).exists() and task not in registry.tasks():
            raise UserError(f"the task must be the name of one, not a path: --policy {task} plays the task of that run")
        return named_task(task)
    for name in names:
        if not (is_chat(name) or is_served(name)) and _is_there(name):
            own = modules.trained_task(name, allow_pickle=allow_pickle)
            if own is not None:
                return registry.task(own)
    for name in names:
        if not (is_chat(name) or is_served(name) or _is_there(name) or name in _all_players()):
            raise _no_policy(name, ["human"], "; with the name of a task also its scripted players")
    told = f"; {', '.join(names)} does not say which it plays" if names else ""
    raise UserError(f"name a task{told}; known: {', '.join(registry.tasks())}")


def _is_there(name: str) -> bool:
    """Return whether a trained policy has that name. An unknown name of the zoo raises an error with the known ones."""
    return is_zoo(name) or Path(name).exists()


def _all_players() -> set[str]:
    return {"human"}.union(*map(policy_names, registry.tasks()))


def named_policy(
    name: str,
    task: Task,
    env: Mapping[str, Any] | None = None,
    chat: Mapping[str, Any] | None = None,
    vllm: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Policy:
    """The policy of that name: a scripted player, ``human``, a model at a server, or a run folder or checkpoint.

    Args:
        name: one of the task's players (``random``, ``behaviour``, ...), ``human``, ``chat:MODEL``, ``local:PATH``,
            ``vllm:URL#MODEL``, ``zoo:TASK/NAME``, or a path.
        task: what it will play.
        env: arguments of the environment that it will play in.
        chat: settings of a chat model, see `chat_player`.
        vllm: settings of a model at a vLLM server: ``tokenizer``, ``timeout``, ``retries``, ``max_parallel``.
        settings: of a trained policy, those of `lmrl.load_policy`; of a chat model, ``temperature``; at a vLLM server,
            ``temperature``, ``top_k`` and ``top_p``.

    Raises:
        UserError: there is neither a player nor a file of that name; or a setting that this kind of player does not
            have.
    """
    if chat and not is_chat(name):
        raise UserError(f"chat can be set for a chat model only (chat:MODEL or local:PATH), not for {name!r}")
    if vllm and not is_served(name):
        raise UserError(f"vllm can be set for a model at a vLLM server only (vllm:URL#MODEL), not for {name!r}")
    if is_trained(name, task):
        return modules.load_policy(name, task, **settings)
    taken = _SAMPLING if is_served(name) else ("temperature",) if is_chat(name) else ()
    refused = [setting for setting in settings if setting not in taken]
    if refused:
        raise UserError(f"{', '.join(refused)} can be set for a trained policy only, not for {name!r}")
    if is_served(name):
        return policies.vllm_player(name, task.last_texts, task.max_action_tokens, vllm or {}, **settings)
    if is_chat(name):
        return chat_player(name, task, env, **settings, **(chat or {}))
    return HumanPolicy() if name == "human" else registry.make_policy(task.name, name, env)


@runtime_checkable
class Trained(Protocol):
    """A trained module that provides a policy: a `lmrl.modules.LanguageModule`."""

    def policy(self, **settings: Any) -> Policy: ...


def task_of(player: object) -> str | None:
    """The task that a module in memory was trained on; None of other objects, and where it does not say."""
    made_with = getattr(player, "made_with", None) or {}
    return made_with.get("task")


def load_policy(
    player: Policy | Trained | str | PathLike[str],
    task: Task | str | None = None,
    *,
    env: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Policy:
    """The policy that a name, a path or an object stands for, ready to play.

    Example::

        load_policy("runs/maze_fo/ilql", temperature=0.0)
        load_policy("random", "maze_fo")

    Args:
        player: a name as of ``lmrl evaluate --policy`` (``random``, ``zoo:maze_fo/ilql``, ``chat:MODEL``, ...), a run
            folder, checkpoint or exported folder, a module in memory, or a policy, which is given back.
        task: what it will play, or its name; None: what a trained one was trained on.
        env: arguments of the environment that it will play in.
        **settings: of a trained policy, those of `lmrl.modules.load_policy` (``temperature``, ``beta``, ``rerank``,
            ``allow_other_task``, ...); of a module in memory, those of its ``policy``; else as of `named_policy`.

    Raises:
        UserError: there is no such player, or no task that it can play; it was trained on another task; or a setting
            that this kind of player does not have.
    """
    if isinstance(player, str | PathLike):
        name = fspath(player)
        pickled = bool(settings.get("allow_pickle"))
        record = task if isinstance(task, Task) else played_task(task, name, allow_pickle=pickled)
        return named_policy(name, record, env, **settings)
    if isinstance(player, Trained) and not isinstance(player, Policy):  # a policy may have another as its `policy`
        record = task if isinstance(task, Task) else played_task(task or task_of(player))
        return player.policy(**{"max_new_tokens": record.max_action_tokens, **settings})
    if settings:
        raise UserError(f"{', '.join(settings)} can be set where a policy is made, not of {type(player).__name__}")
    return player


def make_policy(
    task: Task | str,
    player: Policy | Trained | str | PathLike[str],
    env: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Policy:
    """The player of a task: `load_policy` with the task named first.

    Example::

        make_policy("maze_fo", "optimal")

    Args:
        task: what it will play, or its name.
        player: as of `load_policy`.
        env: arguments of the environment that it will play in.
        **settings: as of `load_policy`.

    Raises:
        UserError: as `load_policy`.
    """
    return load_policy(player, task, env=env, **settings)


@contextmanager
def own_tasks_only() -> Iterator[None]:
    """Inside, a policy that was trained on another task is refused without the option of those who would take it."""
    try:
        yield
    except OtherTaskError as error:
        raise UserError(f"{error.args[0]}: lmrl play and lmrl web let a policy play its own task only") from error


def named_adviser(
    name: str, task: Task, env: Mapping[str, Any] | None = None, chat: Mapping[str, Any] | None = None
) -> Policy:
    """The policy of that name, greedy if it can be: the move that it finds best.

    Raises:
        UserError: see `named_policy`; a person cannot be asked.
    """
    if name == "human":
        raise UserError("the advisor must be a policy, not 'human'")
    settings: dict[str, Any] = {"temperature": 0.0} if is_trained(name, task) or is_served(name) else {}
    return named_policy(name, task, env, chat, **settings)


def is_trained(name: str, task: Task) -> bool:
    """Whether the name is that of a run folder or checkpoint, not of a player of the task.

    Raises:
        UserError: it is neither.
    """
    players = [*policy_names(task.name), "human"]
    if is_chat(name) or is_served(name):
        return False
    if name not in players and not _is_there(name):
        raise _no_policy(name, players)
    return name not in players


def _no_policy(name: str, players: Sequence[str], more: str = "") -> UserError:
    known = ", ".join([*players, "zoo:TASK/NAME", "chat:MODEL", "local:PATH", "vllm:URL#MODEL"])
    return UserError(f"no policy {name!r}: there is no such run folder or checkpoint; known: {known}{more}")


def default_folder(name: str, task: Task, settings: str = "", *, allow_pickle: bool = False) -> Path:
    """Return the default folder of a player's evaluation, where reports look for it.

    ``RUN/evaluation`` for a run and its best checkpoint, ``RUN/evaluation_last`` for its last one;
    ``runs/TASK/NAME/evaluation`` for other players, exported folders elsewhere, and runs that play another task than
    their own (``runs/TASK/ilql_of_maze_fo/evaluation``); ``runs/TASK/vllm-MODEL/evaluation`` for those at a server.

    Args:
        name: as of `named_policy`.
        task: what it plays.
        settings: what else is not as usual; becomes part of the folder's name.
        allow_pickle: as of `lmrl.load_module`.
    """
    path = Path(name)
    kept = ""
    # The name may be an address, so signs that folders cannot hold are replaced.
    runs = Path("runs") / re.sub(r"[^\w.=,+-]+", "-", task.name)
    if is_zoo(name):
        folder = runs / f"zoo-{path.name}"
    elif is_trained(name, task):
        if path.suffix == ".ckpt" or path.name in _KEPT:
            path, kept = path.parent, path.stem.removeprefix("best")
        own = modules.trained_task(name, allow_pickle=allow_pickle)
        if own not in (None, task.name):
            # The name comes from the file, which may be anyone's: it must not lead to another folder.
            folder = runs / re.sub(r"[^\w.=,+-]+", "-", f"{path.resolve().name}_of_{own}")
        else:
            folder = path if any(path.glob("*.ckpt")) else runs / path.resolve().name
    else:
        # What is served may have the name of a run, whose folder must stay its own.
        served = f"vllm-{Path(name.rpartition('#')[2]).name}" if is_served(name) else None
        folder = runs / (served or Path(name.partition(":")[2] or name).name)
    return folder / "_".join(filter(None, ("evaluation", kept, settings)))


def is_served(name: str) -> bool:
    """Whether a policy of that name is a model at a vLLM server."""
    return name.startswith("vllm:")


def is_chat(name: str) -> bool:
    """Whether a policy of that name is a chat model."""
    kind, _, model = name.partition(":")
    return kind in _SPEAKERS and bool(model)


def chat_player(
    name: str,
    task: Task,
    env: Mapping[str, Any] | None = None,
    *,
    temperature: float | None = None,
    reply: str = "json",
    examples: str | None = None,
    **settings: Any,
) -> ChatPolicy:
    """A chat model that plays, with the published settings of the task where nothing else is said.

    Args:
        name: ``chat:MODEL`` at an OpenAI-compatible endpoint, ``local:PATH`` on this machine.
        task: what it will play.
        env: arguments of the environment that it will play in.
        temperature: of sampling; None: the task's.
        reply: ``json`` or ``plain``.
        examples: file of episodes from which the examples are taken; None: the task's dataset.
        settings: of `lmrl.policies.chat.client.ChatClient` or `lmrl.policies.chat.local.LocalChat`.

    Raises:
        UserError: for an unknown setting, and as those.
    """
    kind, _, model = name.partition(":")
    speaker: Callable[..., Speaker] = getattr(chat_models, _SPEAKERS[kind])
    known = [setting for setting in inspect.signature(speaker).parameters if setting not in ("model", "path")]
    for setting in settings:
        if setting not in known:
            raise unknown(f"setting of {kind} players", setting, [*known, "reply", "examples"])
    prompt = chat_prompt(task.name)
    if examples is not None:
        episodes = list(islice(read_dataset(examples, task.name), _POOL))
    else:
        episodes = first_episodes(task.name) if prompt.examples else []
    chosen = prompt.temperature if temperature is None else temperature
    made = speaker(model, **{"max_tokens": _MAX_TOKENS, **settings, "temperature": chosen})
    return ChatPolicy(made, task.name, episodes, reply, env)
