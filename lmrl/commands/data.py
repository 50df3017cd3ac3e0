"""``lmrl data`` and ``lmrl check-env``."""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from lmrl.commands.arguments import partner_argument
from lmrl.data import dataset_stats, generate, import_official, join_shards, stats_table, verify
from lmrl.data.floor import entropy_floor
from lmrl.envs.base import TextEnv
from lmrl.envs.checker import tried_laws
from lmrl.envs.outside import named_task
from lmrl.envs.registry import DIALOGUES
from lmrl.errors import UserError, check_range, counted, terminated_by_exception
from lmrl.evaluation.intervals import student_mean
from lmrl.partners import environment
from lmrl.utils.configuration import env_arguments, named_values
from lmrl.utils.consoles import table_console

__all__ = [
    "check_env_command",
    "generate_command",
    "import_command",
    "join_command",
    "stats_command",
    "verify_command",
]


def generate_command(
    task: str,
    *,
    size: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    partner: str | None = None,
    behaviour: str | None = None,
    env: list[str] | None = None,
    shard: str | None = None,
    chat: list[str] | None = None,
    vllm: list[str] | None = None,
    overwrite: bool = False,
    resume: bool = False,
) -> None:
    """Record a dataset; the same seed gives the same file.

    Args:
        task: name of the task, e.g. maze_fo.
        size: number of episodes (default: that of the task).
        seed: decides every episode, whatever the number of workers.
        out: a .parquet or .jsonl file (default: in $LMRL_DATA or data, named after task, generator, size and seed).
        workers: processes that play (default: 1; with --ray as many as the cluster has cores for).
        ray: play on a Ray cluster: local (this machine), auto (begun here by ray start) or HOST:PORT.
        partner: who answers, for the dialogue tasks: scripted, lm:PATH, chat:MODEL or
            vllm:URL#MODEL (default: scripted).
        behaviour: who plays: lm:PATH, vllm:URL#MODEL or a scripted player (default: the task's own).
        env: arguments of the environment, e.g. opponent=stockfish nodes=100.
        shard: i/n, e.g. 0/8: record only part i, counted from 0, of n parts of the dataset (see data join).
        chat: settings of a chat partner, e.g. budget_tokens=1000000 timeout=30 base_url=URL.
        vllm: settings of a behaviour or partner at a vLLM server, e.g. tokenizer=models/llama.
        overwrite: take the place of a file with other settings (the same dataset is always recorded again).
        resume: continue after the episodes that an interrupted recording of the same dataset has kept, if any.
    """
    if chat and partner is None:
        raise UserError("chat sets a chat partner: --partner chat:MODEL is missing")
    if partner is not None:
        partner_argument(partner, chat)  # which refuses settings for another kind of partner
    settings = named_values(vllm, "vllm")
    player, second = (_at_server(name, settings) for name in (behaviour, partner))
    if settings and (player, second) == (behaviour, partner):
        raise UserError("vllm sets a player at a vLLM server: --behaviour (or --partner) vllm:URL#MODEL is missing")
    spoken = second if second != partner or partner is None else partner_argument(partner, chat)
    arguments = {**env_arguments(env), **({} if spoken is None else {"partner": spoken})}
    part = _part(shard)
    more: dict[str, Any] = {"behaviour": player, "shard": part, "ray": ray, "overwrite": overwrite, "resume": resume}
    with terminated_by_exception():
        path = generate(task, size, seed, out, workers, env=arguments, **more)
    print(f"written to {path}")


def _at_server(name: str | None, settings: Mapping[str, Any]) -> str | dict[str, Any] | None:
    """A player or partner with the settings of a vLLM server, if it is at one."""
    return {"name": name, **settings} if settings and (name or "").startswith("vllm:") else name


def _part(shard: str | None) -> tuple[int, int] | None:
    """``0/8`` as numbers."""
    if shard is None:
        return None
    part, slash, parts = shard.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal()):
        raise UserError(f"shard must be i/n, for example 0/8, got {shard!r}")
    return int(part), int(parts)


def join_command(files: list[str], *, out: Path, overwrite: bool = False) -> None:
    """Put the parts of a dataset together; the file is the one that is recorded in one go.

    Args:
        files: all parts, in any order, as data generate --shard wrote them.
        out: a .parquet or .jsonl file.
        overwrite: take the place of a file that holds another dataset.
    """
    print(f"{join_shards(files, out, overwrite=overwrite)} episodes written to {out}")


def stats_command(file: Path, *, json: bool = False) -> None:
    """Describe a dataset, next to the published figures where there are any.

    Args:
        file: a .parquet or .jsonl file of episodes.
        json: print JSON instead of a table.
    """
    stats = dataset_stats(file)
    if json:
        _print_json(stats.to_dict())
    else:
        table_console().print(stats_table(stats))


def verify_command(file: Path, *, env: list[str] | None = None) -> int:
    """Replay every action of a dataset through its environment; exit code 1 if anything differs.

    Args:
        file: a .parquet or .jsonl file of episodes.
        env: arguments of the environment, over those that the file was recorded with; a path or a program, such as
            engine_path, is never taken from the file.
    """
    report = verify(file, env_arguments=env_arguments(env))
    for mismatch in report.mismatches:
        print(mismatch, file=sys.stderr)
    if report.task == DIALOGUES.name:
        dialogues = counted(report.episodes, "dialogue")
        replies = f"{report.turns} {'reply' if report.turns == 1 else 'replies'}"
        print(f"in order: {dialogues} with {replies} of the assistant")
        if report.several_lines:
            found = counted(report.several_lines, "dialogue")
            print(f"replies of several lines in {found}: train with --data.init_args.rendering=chat")
        return 0
    right = report.episodes - report.mismatched
    print(f"{report.task}: {right} of {report.episodes} episodes ({report.turns} turns) replay as recorded")
    return 0 if report.ok else 1


def floor_command(task: str, *, episodes: int = 64, seed: int = 0, env: list[str] | None = None) -> None:
    """Compute the entropy per action of a task's recorder: no clone's loss per action is lower.

    What a player draws once for a whole episode, such as its skill, is taken as known.

    Args:
        task: name of the task, e.g. maze_fo.
        episodes: how many are played to come to states.
        seed: seed of the dataset whose first episodes these are.
        env: arguments of the environment.
    """
    found = entropy_floor(task, env_arguments(env), episodes, seed)
    low, high = student_mean(found.by_episode)
    over = f"over {len(found.by_episode)} episodes with {found.actions} actions"
    print(f"{found.mean:.4f} nats an action (95 % interval {low:.4f} to {high:.4f}, {over})")


def import_command(task: str, file: Path, *, out: Path, env: list[str] | None = None, overwrite: bool = False) -> None:
    """Convert an official LMRL-Gym file; nothing is written if a line is broken.

    Args:
        task: name of the task, e.g. maze_fo.
        file: JSON lines or one JSON list, as released.
        out: a .parquet or .jsonl file.
        env: arguments of the environment that the file belongs to, e.g. vocab=words.txt.
        overwrite: take the place of a file that holds another dataset.
    """
    count = import_official(task, file, out, env_arguments(env), overwrite=overwrite)
    print(f"{count} episodes written to {out}")


def _print_json(record: dict[str, object]) -> None:
    print(json.dumps(record, indent=2))


def _check_arguments(make_env: Callable[[], TextEnv], seed: int) -> None:
    """Begin an episode: a mistake in the arguments breaks no law.

    Raises:
        UserError: an argument is unknown, or its value is.
    """
    try:
        with closing(make_env()) as env:
            env.reset(seed=seed)
    except UserError:
        raise
    except Exception:  # breaks a law, which says so
        return


def check_env_command(task: str, *, texts: int = 200, seed: int = 0, env: list[str] | None = None) -> int:
    """Test an environment; exit code 1 if it breaks a law.

    Texts to read, determinism, isolation, return range, endings, any text, closing, pickling.

    Args:
        task: name of the task, e.g. maze_fo, openenv:URL or textarena:NAME.
        texts: how many odd texts it has to answer.
        seed: seed of the episodes and texts.
        env: arguments of the environment, e.g. opponent=random.
    """
    check_range("[1, inf)", texts=texts)
    check_range("[0, inf)", seed=seed)
    row = named_task(task)
    make_env = environment(row.name, env_arguments(env))
    _check_arguments(make_env, seed)
    whole = True
    for law, broken in tried_laws(make_env, texts, seed, row.last_texts):
        whole = whole and broken is None
        if broken is None:
            print(f"ok: {law}")
        else:
            print(f"failed: {broken}", file=sys.stderr)
    return 0 if whole else 1
