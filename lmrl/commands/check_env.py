"""``lmrl check-env``: put a task's environment to the laws that all environments obey."""

import sys
from functools import partial

from lmrl.commands.arguments import env_arguments
from lmrl.envs import LawBroken, check_env, make, registration

__all__ = ["check_env_command"]


def check_env_command(task: str, *, texts: int = 200, seed: int = 0, env: list[str] | None = None) -> int:
    """Test an environment; exit code 1 if it breaks a law.

    Texts to read, determinism, isolation, return range, endings, any text, closing, pickling.

    Args:
        task: name of the task, e.g. maze_fo.
        texts: how many odd texts it has to answer.
        seed: of the episodes and texts.
        env: arguments of the environment, e.g. opponent=random.
    """
    row = registration.task(task)
    try:
        laws = check_env(partial(make, row.name, **env_arguments(env)), texts, seed, row.last_texts)
    except LawBroken as broken:
        print(f"failed: {broken}", file=sys.stderr)
        return 1
    for law in laws:
        print(f"ok: {law}")
    return 0
