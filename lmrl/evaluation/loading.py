"""The one place where a name (``random``, ``runs/maze_fo/ilql``, ``vllm:URL#MODEL``) becomes a policy.

`PolicySpec.parse` reads a name once and finds its files. Everything else asks the record that it returns.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from lmrl import modules, policies
from lmrl.checkpoints.run_files import has_run
from lmrl.checkpoints.zoo import ZOO_PREFIX, zoo_policy
from lmrl.data.recording import first_episodes
from lmrl.data.storage import read_dataset
from lmrl.envs import registry
from lmrl.envs.outside import named_task
from lmrl.envs.registry import chat_prompt, policy_names
from lmrl.envs.task import Task
from lmrl.errors import OtherTaskError, UserError, check_range, unknown
from lmrl.policies import chat as chat_models
from lmrl.policies.chat.policy import ChatPolicy, Speaker
from lmrl.policies.human import HumanPolicy
from lmrl.types import Episode, LoadedPolicy, Policy

__all__ = ["Kind", "PolicySpec", "TrainedModule", "load_policy", "module_task", "own_tasks_only", "task_of"]

HUMAN = "human"
Kind: TypeAlias = Literal["scripted", "human", "trained", "zoo", "chat", "vllm"]

# The class of lmrl.policies.chat that answers for each prefix of a chat model's name.
_CLIENTS = {"chat": "ChatClient", "local": "LocalChat"}
# Decoding settings that a model at a server takes. A trained policy takes those of its module.
_SETTINGS: Mapping[Kind, tuple[str, ...]] = {"vllm": ("temperature", "top_k", "top_p"), "chat": ("temperature",)}
_CHECKPOINTS = ("best", "last")
# The longest answer of a chat model, in tokens. One on this machine may be slow, and a small one often goes on talking.
_AT_ENDPOINT = 512
_ON_THIS_MACHINE = 64
_THOUGHT = 64  # more where an answer holds one
_AROUND_ACTION = 16  # the least for what stands around the longest action: JSON and a few words
_EXAMPLE_POOL = 1_000
"""Episodes of a given file among which the examples of a chat prompt are chosen."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """The meaning of a policy's name. `parse` makes one, `load` makes the policy.

    Example::

        spec = PolicySpec.parse("runs/maze_fo/ilql")
        spec.kind, spec.task.name, spec.default_folder()  # 'trained', 'maze_fo', runs/maze_fo/ilql/evaluation
        policy = spec.load(temperature=0.0).policy
    """

    name: str
    """As the user typed it."""
    kind: Kind
    task: Task
    """The task that the policy will play."""
    allow_pickle: bool = False
    """Also read a checkpoint with pickled objects. Reading one can run any code."""
    file: Path | None = None
    """The checkpoint or exported folder of a trained policy; None for other kinds."""
    trained_on: str | None = None
    """Name of the task that a trained policy learned; None if its file does not say, and for other kinds."""
    published_settings: Mapping[str, float] = field(default_factory=dict)
    """Decoding settings with which a policy of the zoo plays unless others are given; empty for other kinds."""

    @classmethod
    def parse(cls, name: str, task: Task | str | None = None, *, allow_pickle: bool = False) -> "PolicySpec":
        """Read the name of a policy.

        Args:
            name: one of the task's scripted policies (``random``, ``behaviour``, ...), ``human``, ``chat:MODEL``,
                ``local:PATH``, ``vllm:URL#MODEL``, ``zoo:TASK/NAME``, a run folder, a checkpoint or an exported folder.
            task: what the policy will play, or its name; None: the task on which it was trained.
            allow_pickle: see `lmrl.load_module`.

        Raises:
            UserError: the task or the policy is unknown, its file cannot be read, or `task` is None and the policy was
                not trained on one.
        """
        if isinstance(task, str):
            task = _task_named(task)
        scripted = _scripted_policies() if task is None else policy_names(task.name)
        source = _find(name, scripted, allow_pickle)
        if task is None:
            task = _task_of_first({name: source})
        if source.kind is None:
            raise _no_policy(name, [*scripted, HUMAN])
        return cls(name, source.kind, task, allow_pickle, source.file, source.trained_on, source.settings)

    @property
    def is_trained(self) -> bool:
        """Whether the policy is one that lmrl trained: a run, a checkpoint, an exported folder, or one of the zoo."""
        return self.kind in ("trained", "zoo")

    def load(
        self,
        env: Mapping[str, Any] | None = None,
        chat: Mapping[str, Any] | None = None,
        vllm: Mapping[str, Any] | None = None,
        speaker: Speaker | None = None,
        **settings: Any,
    ) -> LoadedPolicy:
        """Make the policy.

        Args:
            env: arguments of the environment in which it will play.
            chat: settings of a chat model: ``reply`` (json or plain), ``examples`` (a file of episodes from which the
                examples in the prompt are taken), and those of `lmrl.policies.chat.client.ChatClient` or
                `lmrl.policies.chat.local.LocalChat`.
            vllm: settings of a model at a vLLM server: ``tokenizer``, ``timeout``, ``retries``, ``max_parallel``.
            speaker: the chat model of another policy with the same name, task and settings; None: it is loaded.
            **settings: for a trained policy, its decoding settings (``temperature``, ``top_k``, ``top_p``, ``beta``,
                ``compile``), ``rerank``, ``device`` and ``module`` (see `lmrl.modules.load_trained`), and
                ``allow_other_task`` to let it play another task than its own; for a chat model, ``temperature``; for a
                vLLM server, ``temperature``, ``top_k`` and ``top_p``.

        Raises:
            UserError: it was trained on another task, this kind of policy does not have such a setting, or the policy
                cannot be made.
        """
        if chat and self.kind != "chat":
            raise UserError(f"chat can be set for a chat model only (chat:MODEL or local:PATH), not for {self.name!r}")
        if vllm and self.kind != "vllm":
            raise UserError(
                f"vllm can be set for a model at a vLLM server only (vllm:URL#MODEL), not for {self.name!r}"
            )
        if self.file is not None:
            allow_other_task = settings.pop("allow_other_task", False)
            if self.trained_on not in (None, self.task.name) and not allow_other_task:
                raise OtherTaskError(f"{self.name} was trained on {self.trained_on}, not on {self.task.name}")
            if not settings.get("rerank"):
                settings = {**self.published_settings, **settings}
            return modules.load_trained(self.file, self.task, **{"allow_pickle": self.allow_pickle, **settings})
        refused = [setting for setting in settings if setting not in _SETTINGS.get(self.kind, ())]
        if refused:
            raise UserError(f"{', '.join(refused)} can be set for a trained policy only, not for {self.name!r}")
        policy: Policy
        if self.kind == "vllm":
            task = self.task
            policy = policies.vllm_player(self.name, task.last_texts, task.max_action_tokens, vllm or {}, **settings)
        elif self.kind == "chat":
            policy = _chat_policy(self.name, self.task, env, speaker, **settings, **(chat or {}))
        elif self.kind == "human":
            policy = HumanPolicy()
        else:
            policy = registry.make_policy(self.task.name, self.name, env)
        return LoadedPolicy(policy)

    def load_advisor(
        self, env: Mapping[str, Any] | None = None, chat: Mapping[str, Any] | None = None, **settings: Any
    ) -> LoadedPolicy:
        """Make the policy so that it says the action that it finds best: greedy if it samples. Arguments are of `load`.

        Raises:
            UserError: as `load`; or a human would have to be asked.
        """
        if self.kind == "human":
            raise UserError("the advisor must be a policy, not 'human'")
        # Chat models keep the published temperature, scripted policies have none.
        samples = self.is_trained or self.kind == "vllm"
        if samples:
            settings["temperature"] = 0.0
        return self.load(env, chat, **settings)

    def default_folder(self, settings: str = "") -> Path:
        """Return the folder of an evaluation where the user names none; reports look for it there.

        It is ``RUN/evaluation`` for a run and its best checkpoint, ``RUN/evaluation_last`` for its last one, and
        ``RUN/evaluation_at_25`` for a policy that a budget of compute has kept there. For other policies, exported
        folders elsewhere, and runs that play another task than their own it is ``runs/TASK/NAME/evaluation``
        (``runs/TASK/ilql_of_maze_fo/evaluation``, ``runs/TASK/vllm-MODEL/evaluation``, of a run that a chat prompt asks
        ``runs/TASK/local-NAME/evaluation``).

        Args:
            settings: names the settings that differ from the policy's own, as a part of the folder's name.
        """
        path = Path(self.name)
        checkpoint = ""
        # The task's name may be an address, so signs that folders cannot hold are replaced.
        runs = Path("runs") / _folder_name(self.task.name)
        if self.kind == "trained":
            if path.suffix == ".ckpt" or path.name in _CHECKPOINTS:
                checkpoint = path.stem
                path = path.parent
            elif not has_run(path) and has_run(path.parent):
                checkpoint = path.name  # what a budget of compute has kept: `at_25`
                path = path.parent
            if checkpoint == "best":
                checkpoint = ""
            if self.trained_on not in (None, self.task.name):
                # The name comes from the file, which may be anyone's: it must not lead to another folder.
                folder = runs / _folder_name(f"{path.resolve().name}_of_{self.trained_on}")
            elif any(path.glob("*.ckpt")):
                folder = path
            else:
                folder = runs / path.resolve().name
                if any(folder.glob("*.ckpt")):
                    folder = runs / f"exported-{folder.name}"  # a run's folder must stay its own
        elif self.kind == "zoo":
            folder = runs / f"zoo-{path.name}"
        elif self.kind == "vllm":
            # The served model may have the name of a run, whose folder must stay its own.
            folder = runs / f"vllm-{Path(self.name.rpartition('#')[2]).name}"
        else:
            prefix, _, model = self.name.partition(":")
            folder = runs / Path(model or self.name).name
            if any(folder.glob("*.ckpt")):
                folder = runs / f"{prefix}-{folder.name}"  # a run's folder must stay its own
        parts = [part for part in ("evaluation", checkpoint, settings) if part]
        return folder / "_".join(parts)


class _Source(NamedTuple):
    """The meaning of a name, whatever the task; the fields are those of `PolicySpec`. Kind None: no such policy."""

    kind: Kind | None
    file: Path | None = None
    trained_on: str | None = None
    settings: Mapping[str, float] = {}


def _find(name: str, scripted: Sequence[str], allow_pickle: bool = False) -> _Source:
    """Find what a name stands for: a word with a meaning, a policy of the zoo, or a path.

    Raises:
        UserError: the zoo has no such policy; a run has no checkpoint, or one that cannot be read; a model that is none
            of ours is named without ``local:``.
    """
    prefix, _, model = name.partition(":")
    if prefix == "vllm" and name != prefix:
        return _Source("vllm")
    if prefix in _CLIENTS and model:
        return _Source("chat")
    if name == HUMAN:
        return _Source("human")
    if name in scripted:
        return _Source("scripted")
    if name.startswith(ZOO_PREFIX):
        entry = zoo_policy(name)
        found = modules.find_trained(entry.folder)
        return _Source("zoo", found.file, found.task, entry.settings)
    if Path(name).exists():
        found = modules.find_trained(name, allow_pickle=allow_pickle)
        return _Source("trained", found.file, found.task)
    return _Source(None)


def task_of(names: Sequence[str], task: str | None = None) -> Task:
    """Return the task that policies will play.

    Args:
        names: names of the policies.
        task: the name of the task; None: the task on which the first trained policy among them was trained.

    Raises:
        UserError: the task is unknown; or none is named, and no policy was trained on one.
    """
    if task is not None:
        return _task_named(task)
    scripted = _scripted_policies()
    return _task_of_first({name: _find(name, scripted) for name in names})


def _task_named(name: str) -> Task:
    if Path(name).exists() and name not in registry.tasks():
        raise UserError(f"the task must be the name of one, not a path: --policy {name} plays the task of that run")
    return named_task(name)


def _task_of_first(sources: Mapping[str, _Source]) -> Task:
    """Return the task of the first policy, by its name, that was trained on one."""
    for source in sources.values():
        if source.trained_on is not None:
            return registry.task(source.trained_on)
    for name, source in sources.items():
        if source.kind is None:
            raise _no_policy(name, [HUMAN], "; with the name of a task also its scripted policies")
    reason = f"; {', '.join(sources)} does not say which it plays" if sources else ""
    raise UserError(f"name a task{reason}; known: {', '.join(registry.tasks())}")


def _scripted_policies() -> list[str]:
    """Return the names of the scripted policies of all tasks."""
    names: list[str] = []
    for task in registry.tasks():
        names += policy_names(task)
    return names


def _no_policy(name: str, known: Sequence[str], more: str = "") -> UserError:
    listed = ", ".join([*known, "zoo:TASK/NAME", "chat:MODEL", "local:PATH", "vllm:URL#MODEL"])
    return UserError(f"no policy {name!r}: there is no such run folder or checkpoint; known: {listed}{more}")


def _folder_name(text: str) -> str:
    return re.sub(r"[^\w.=,+-]+", "-", text)


@runtime_checkable
class TrainedModule(Protocol):
    """A trained module in memory that provides a policy: a `lmrl.modules.LanguageModule`."""

    def policy(self, **settings: Any) -> Policy: ...


def load_policy(
    policy: Policy | LoadedPolicy | TrainedModule | PolicySpec | str | PathLike[str],
    task: Task | str | None = None,
    *,
    env: Mapping[str, Any] | None = None,
    **settings: Any,
) -> LoadedPolicy:
    """Load the policy that a name, a path or an object stands for.

    `lmrl.evaluate` and `lmrl.rollout.rollout` take the result as it is; its field ``policy`` is the policy itself.

    Example::

        load_policy("runs/maze_fo/ilql", temperature=0.0)
        load_policy("random", "maze_fo").policy.act(requests)

    Args:
        policy: a name as `PolicySpec.parse` takes it (``random``, ``zoo:maze_fo/ilql``, ``chat:MODEL``, ...), a run
            folder, checkpoint or exported folder, a module in memory, or a policy.
        task: what it will play, or its name; None: the task on which it was trained.
        env: arguments of the environment in which it will play.
        **settings: see `PolicySpec.load` (``temperature``, ``beta``, ``rerank``, ``allow_other_task``, ...); for a
            module in memory, those of its ``policy`` method.

    Raises:
        UserError: there is no such policy, or no task that it can play; it was trained on another task; or this kind
            of policy does not have such a setting.
    """
    if isinstance(policy, str | PathLike):
        policy = PolicySpec.parse(fspath(policy), task, allow_pickle=bool(settings.get("allow_pickle")))
    if isinstance(policy, PolicySpec):
        return policy.load(env, **settings)
    # A policy may also have an attribute `policy`.
    if isinstance(policy, TrainedModule) and not isinstance(policy, Policy | LoadedPolicy):
        if not isinstance(task, Task):
            task = task_of([], task or module_task(policy))
        return LoadedPolicy(
            policy.policy(**{"max_new_tokens": modules.longest_action(policy, task), **settings}), policy
        )
    if settings:
        kind = type(policy.policy if isinstance(policy, LoadedPolicy) else policy).__name__
        raise UserError(f"{', '.join(settings)} can be set where a policy is made, not of {kind}")
    return policy if isinstance(policy, LoadedPolicy) else LoadedPolicy(policy)


def module_task(module: object) -> str | None:
    """Return the name of the task on which a module in memory was trained; None if it does not say."""
    made_with = getattr(module, "made_with", None) or {}
    return made_with.get("task")


@contextmanager
def own_tasks_only() -> Iterator[None]:
    """Refuse a policy that was trained on another task, without a hint to the option that would allow it."""
    try:
        yield
    except OtherTaskError as error:
        raise UserError(f"{error.args[0]}: lmrl play and lmrl web let a policy play its own task only") from error


def _chat_policy(
    name: str,
    task: Task,
    env: Mapping[str, Any] | None,
    speaker: Speaker | None,
    /,
    *,
    temperature: float | None = None,
    reply: str = "json",
    examples: str | int | None = None,
    **settings: Any,
) -> ChatPolicy:
    """Make a chat model that plays, with the published settings of the task where none are given.

    Args:
        name: ``chat:MODEL`` at an OpenAI-compatible endpoint, ``local:PATH`` on this machine.
        task: what it will play.
        env: arguments of the environment.
        speaker: see `PolicySpec.load`.
        temperature: temperature of sampling; None: the task's.
        reply: ``json`` or ``plain``.
        examples: number of examples in the prompt, or a file of episodes from which they are taken; None: the task's
            number, from its dataset.
        settings: settings of `lmrl.policies.chat.client.ChatClient` or `lmrl.policies.chat.local.LocalChat`.
    """
    prefix, _, model = name.partition(":")
    client: Callable[..., Speaker] = getattr(chat_models, _CLIENTS[prefix])
    known = [setting for setting in inspect.signature(client).parameters if setting not in ("model", "path")]
    for setting in settings:
        if setting not in known:
            raise unknown(f"setting of {prefix} players", setting, [*known, "reply", "examples"])
    prompt = chat_prompt(task.name)
    if isinstance(examples, int):
        check_range("[0, inf)", examples=examples)
        prompt = replace(prompt, examples=examples)
    episodes: list[Episode] = []
    if isinstance(examples, str):
        episodes = list(islice(read_dataset(examples, task.name), _EXAMPLE_POOL))
    elif prompt.examples:
        episodes = first_episodes(task.name)
    chosen = prompt.temperature if temperature is None else temperature
    longest = _AT_ENDPOINT
    if prefix == "local":
        longest = max(_ON_THIS_MACHINE, task.max_action_tokens + _AROUND_ACTION)
        if prompt.thought and reply == "json":
            longest += _THOUGHT
    if speaker is None:
        speaker = client(model, **{"max_tokens": longest, **settings, "temperature": chosen})
    return ChatPolicy(speaker, task.name, episodes, reply, env, prompt.examples)
