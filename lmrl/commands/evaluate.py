"""``lmrl evaluate``: let one policy play, and write what it played and how well."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lmrl import commands, utils
from lmrl.data.storage import read_dataset
from lmrl.envs import registry
from lmrl.envs.registry import chat_prompt
from lmrl.errors import UserError, check_range, counted, terminated_by_exception
from lmrl.evaluation.evaluate import RayWorkers, default_episodes
from lmrl.evaluation.loading import PolicySpec
from lmrl.evaluation.result_json import read_json
from lmrl.evaluation.run_folder import record_evaluation
from lmrl.evaluation.scores import SETTINGS_WITHOUT_EFFECT, describe_settings
from lmrl.evaluation.tuning import CHOSEN, tuned_settings
from lmrl.types import Episode
from lmrl.utils.configuration import env_arguments, named_values
from lmrl.utils.files import locked
from lmrl.utils.log_lines import LogLines

__all__ = ["evaluate_command"]

# Settings of served and prompted models that do not change their answers.
_REQUESTS = (
    "base_url", "budget_requests", "budget_tokens", "cache", "max_parallel", "requests_per_minute", "retries",
    "shared_budget", "slots", "timeout", "tokenizer",
)  # fmt: skip
_EPISODES = (".jsonl", ".parquet")  # ends of the names of files of episodes, which can stand in place of a task


def evaluate_command(
    task: str | None = None,
    *,
    policy: str,
    behaviour: str | None = None,
    episodes: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    slots: int | None = None,
    ray: str | None = None,
    workers: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    beta: float | None = None,
    tuned: bool = False,
    rerank: bool = False,
    selection: bool = False,
    resume: bool = False,
    allow_other_task: bool = False,
    allow_pickle: bool = False,
    device: str | None = None,
    compile: bool = False,
    env: list[str] | None = None,
    chat: list[str] | None = None,
    vllm: list[str] | None = None,
) -> None:
    """Let a policy play and write ``episodes.parquet`` and ``scores.json``, or judge it by recorded episodes.

    A file in place of the task is read and not played: the loss on what the policy was not trained on, how well its
    values predict the returns, and an off-policy estimate of its own return.

    Args:
        task: name of the task, e.g. maze_fo, openenv:URL or textarena:NAME (default: the one that the policy was
            trained on), or a file of episodes or dialogues, e.g. logs.jsonl.
        policy: a run folder, a checkpoint, a scripted player (random, behaviour, optimal), human, chat:MODEL at an
            OpenAI-compatible endpoint, local:PATH for a chat model on this machine, vllm:URL#MODEL for a language
            model at a vLLM server, or zoo:TASK/NAME (lmrl zoo list).
        behaviour: with a file, a model of who wrote it: a BC run (default: the logprobs in the file, or what MC, ILQL
            and Q-SFT started from).
        episodes: how many; the task's starts are taken in turn (default: 256 or more, so that
            each comes equally often; of a chat model as many as published; of a file all).
        seed: seed of the whole evaluation; the result does not depend on the number of slots.
        out: folder for the two files (default: evaluation in the run's folder, or in runs/TASK/PLAYER; with other
            settings than the policy's own, a folder next to it that names them; with --tuned evaluation_tuned).
        slots: how many episodes are played side by side; None: 32, for a language model on a GPU up to 256.
        ray: play on a Ray cluster: local (this machine), auto (begun here by ray start) or HOST:PORT.
        workers: with --ray, how many processes play (default: as many as the cluster has cores for).
        temperature: sampling temperature, 0 is greedy (default: the checkpoint's; of a chat model the published one).
        top_k: sample among the k most probable tokens only.
        top_p: sample among the most probable tokens with this total probability only.
        beta: weight of the learned values (MC, ILQL, Q-SFT).
        tuned: with the temperature, top_p and beta that lmrl tune has chosen for a run.
        rerank: score the task's actions as wholes and say the best; makes illegal actions impossible.
        selection: play games by which settings are chosen: starts that a task keeps for it, and seeds that no reported
            score uses.
        resume: play only what an evaluation in the same folder has left, nothing if it has finished; all other words
            stay the same.
        allow_other_task: let a policy play another task than the one that it was trained on.
        allow_pickle: read a checkpoint with pickled objects; that can run any code in it.
        device: where a trained policy computes, e.g. cuda (default: the CPU).
        compile: have torch.compile make the decode steps of a trained policy; pays where many episodes are played.
        env: arguments of the environment, e.g. opponent=stockfish nodes=100.
        chat: settings of a chat model, e.g. reply=plain max_tokens=64 budget_tokens=1000000 base_url=URL. The longest
            answer, max_tokens, is 512 for chat:MODEL; for local:PATH it is 64, or 128 where the task asks for a
            thought, too.
        vllm: settings of a model at a vLLM server, e.g. tokenizer=models/llama timeout=600.
    """
    file: Path | None = None
    task_name = task
    if task is not None and Path(task).suffix in _EPISODES:
        file = Path(task)
        task_name = next(read_dataset(file)).task
    spec = PolicySpec.parse(policy, task_name, allow_pickle=allow_pickle)
    arguments = env_arguments(env)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "beta": beta}
    if tuned:
        sampling = _tuned_sampling(spec, sampling)
    if file is not None:
        playing: dict[str, Any] = {
            "slots": slots,
            "ray": ray,
            "workers": workers,
            "resume": resume,
            "rerank": rerank,
            "selection": selection,
            "compile": compile,
            "env": env,
            "chat": chat,
            "vllm": vllm,
        }
        if _set(playing):
            raise UserError(f"{file} is read and not played: leave out {', '.join(_set(playing))}")
        check_range("[1, inf)", episodes=episodes)
        check_range("[0, inf)", seed=seed)
        decoding = _set(sampling)
        words = _told(decoding, selection)
        if out is None:
            out = spec.default_folder(f"recorded_{words}" if words else "recorded")
            _check_holds(out, "file", str(file))
        commands.evaluate_file(
            file,
            spec,
            behaviour=behaviour,
            episodes=episodes,
            seed=seed,
            out=out,
            settings=decoding,
            device=device or "cpu",
            allow_other_task=allow_other_task,
        )
        return
    if behaviour is not None:
        raise UserError("behaviour is for recorded episodes: name their file, lmrl evaluate FILE --policy RUN")
    decoding = _set({**sampling, "device": device, "rerank": rerank, "allow_pickle": allow_pickle, "compile": compile})
    settings = decoding | _set({"allow_other_task": allow_other_task})
    chat_settings = named_values(chat, "chat")
    vllm_settings = named_values(vllm, "vllm")
    load = partial(spec.load, arguments, chat_settings, vllm_settings, **settings)
    check_range("[1, inf)", workers=workers)
    if ray is None and workers is not None:
        raise UserError("workers are those of a Ray cluster: add --ray local, auto or HOST:PORT")
    if ray is not None and spec.kind in ("human", "chat"):
        raise UserError(f"{spec.name} cannot play on a Ray cluster; of a chat model, --slots are asked side by side")
    on_gpu = device is not None and device.startswith("cuda")
    if out is None:
        named_settings = decoding | arguments | chat_settings | vllm_settings
        words = _told(named_settings, selection)
        others = {name: value for name, value in named_settings.items() if name not in CHOSEN}
        is_run = spec.kind == "trained" and spec.default_folder().name == "evaluation"
        if tuned and is_run and not _told(others, selection):
            words = "tuned"  # where reports look for it
        out = spec.default_folder(words)
        if spec.kind in ("chat", "vllm"):  # several servers and folders can have a model of one name
            _check_holds(out, "policy", spec.name)
    loaded = load()
    human = spec.kind == "human"
    if episodes is None:
        if spec.kind == "chat":
            episodes = chat_prompt(spec.task.name).games
        else:
            episodes = default_episodes(spec.task.name, arguments, selection)
    # Checked before the folder is locked, which makes it.
    check_range("[1, inf)", episodes=episodes, slots=slots)
    check_range("[0, inf)", seed=seed)
    published = {} if rerank else dict(spec.published_settings)
    bar = _bar(spec.task.name, episodes, disable=human)
    threads = nullcontext() if loaded.module is None else utils.threads_for(loaded.module)
    with locked(out, "evaluation folder"), terminated_by_exception(), threads, bar as counts:
        scores = record_evaluation(
            loaded,
            spec.task.name,
            out,
            episodes=episodes,
            seed=seed,
            slots=1 if human else slots,
            name=spec.name,
            greedy=partial(load, temperature=0.0, module=loaded.module) if spec.is_trained and not selection else None,
            provenance={"policy": spec.name, "decoding": published | decoding},
            on_episode=counts.episode,
            on_turns=counts.turns,
            env=arguments,
            selection=selection,
            resume=resume,
            ray=None if ray is None else RayWorkers(ray, workers, load, gpu=on_gpu),
        )
    print(_heading(scores, spec.is_trained), *_summary(scores, out), sep="\n")


def _tuned_sampling(spec: PolicySpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling settings that `lmrl tune` has chosen, or those of the zoo, over the given ones.

    Raises:
        UserError: a given setting is among those that are chosen, or no settings can have been chosen for the policy.
    """
    if not spec.is_trained:
        raise UserError(f"{spec.name} is neither a run nor a policy of the zoo: leave out --tuned")
    twice = [name for name in CHOSEN if given[name] is not None]
    if twice:
        raise UserError(f"tuned says what {' and '.join(twice)} should be: give one or the other")
    if spec.kind == "trained":
        return {**given, **tuned_settings(Path(spec.name))}
    if not spec.published_settings:
        raise UserError(f"no settings were chosen for {spec.name}: leave out --tuned")
    return {**given, **spec.published_settings}


def _set(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those that somebody has set."""
    return {name: value for name, value in settings.items() if value is not None and value is not False}


class _Counts:
    """The games and turns of an evaluation, on a progress bar."""

    def __init__(self, bar: Progress, lines: LogLines, task: str, episodes: int) -> None:
        self._bar = bar
        self._lines = lines
        self._task = task
        self._episodes = episodes
        self._line = bar.add_task(task, total=episodes, turns=0)
        self._played = 0
        self._turns = 0

    def episode(self, episode: Episode) -> None:
        self._played += 1
        self._bar.advance(self._line)

    def turns(self, count: int) -> None:
        self._turns += count
        self._bar.update(self._line, turns=self._turns)
        self._lines.say(f"playing {self._task}: {self._played}/{self._episodes} games, {self._turns:,} turns")


@contextmanager
def _bar(task: str, episodes: int, disable: bool) -> Iterator[_Counts]:
    """Show how many games have ended, and how many turns were played: a slow model needs minutes for its first game."""
    columns = (
        TextColumn("playing {task.description}"),
        MofNCompleteColumn(),
        TextColumn("games, {task.fields[turns]:,} turns"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    lines = LogLines(console, quiet=disable)
    with Progress(*columns, console=console, transient=True, disable=disable) as bar:
        yield _Counts(bar, lines, task, episodes)


def _check_holds(folder: Path, key: str, value: str) -> None:
    """Refuse a default folder that holds the evaluation of another policy or file.

    Raises:
        UserError: it does; the message names that one.
    """
    before = read_json(folder / "scores.json").get(key)
    if before not in (None, value):
        raise UserError(f"{folder} holds the evaluation of {before}: name another folder with --out")


def _told(settings: Mapping[str, Any], selection: bool) -> str:
    """Return the settings that change what is played, as part of a folder's name: ``temperature=0.0_beta=4.0``."""
    left_out = (*SETTINGS_WITHOUT_EFFECT, *_REQUESTS)
    parts = [f"{name}={value}" for name, value in settings.items() if name not in left_out]
    if selection:
        parts.append("selection")
    return "_".join(re.sub(r"[^\w.=,+-]+", "-", part) for part in parts)


def _heading(scores: Mapping[str, Any], trained: bool) -> str:
    """Return the heading: ``maze_fo, policy runs/maze_fo/ilql: 275 episodes, seed 0, as trained``."""
    made_with = scores["provenance"]
    settings = describe_settings(made_with.get("decoding", {}))
    if trained and not settings:
        settings = "as trained"
    facts = [counted(scores["episodes"], "episode"), f"seed {scores['seed']}"]
    if settings:
        facts.append(settings)
    for name, value in made_with["env"].items():
        facts.append(f"{name} {value}")
    if made_with.get("selection"):
        facts.append("games to choose settings by")
    return f"{scores['task']}, policy {scores['policy']}: {', '.join(facts)}"


def _summary(scores: dict[str, Any], out: Path) -> list[str]:
    low, high = scores["return_ci"]
    lines = [f"return     {scores['return_mean']:.2f}  (95 % interval {low:.2f} to {high:.2f})"]
    # The published constants hold for the task's own settings alone.
    if registry.task(scores["task"]).scores.any_scale and not scores["provenance"].get("env"):
        normalised = "normalised {:.1f}  (95 % interval {:.1f} to {:.1f})"
        lines.append(normalised.format(scores["normalized"], *scores["normalized_ci"]))
    if scores["own"] is not None:
        own = "own scale  {:.1f}  (95 % interval {:.1f} to {:.1f})"
        lines.append(own.format(scores["own"], *scores["own_ci"]))
    success = "success    {:.1%}  (95 % interval {:.1%} to {:.1%})"
    lines.append(success.format(scores["success_rate"], *scores["success_ci"]))
    lines.append(f"length     {scores['length_mean']:.1f}     illegal actions {scores['illegal_rate']:.1%}")
    told = scores["provenance"].get("player", {})
    if "replies" in told:
        asked = ", ".join(f"{count} {what}" for what, count in told["spent"].items())
        since = " since it was resumed" if "finished_before" in scores["provenance"] else ""
        lines.append(f"replies    {told['replies']}{since}, without an action {told['unreadable']}; asked: {asked}")
    notes = [f"note: {warning}" for warning in scores["warnings"]]
    return [*lines, *notes, f"written to {out / 'scores.json'} and {out / 'episodes.parquet'}"]
