"""``lmrl.fit``: the command ``lmrl fit`` as a function."""

import json
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from lmrl.commands.fit import fit as fit_command
from lmrl.commands.libraries import explain_library
from lmrl.errors import UserError, user_error_in
from lmrl.utils.configuration import configuration

__all__ = ["fit"]

_SWITCHES = ("allow_pickle", "overwrite", "resume")


def fit(*configs: str | PathLike[str], **options: Any) -> Path:
    """Train as ``lmrl fit`` does, in this process, with all that it prints and writes.

    Example::

        run = lmrl.fit("configs/maze_fo/bc.yaml", **{"trainer.max_steps": 100})
        lmrl.evaluate(run, episodes=25).scores()

    Args:
        *configs: configuration files, merged in their order; shipped ones are found from anywhere.
        **options: what the command line takes, by dotted names without dashes: ``trainer.max_steps``,
            ``model.init_args.lr``, ``seed_everything``, ``ckpt_path``, ``overwrite=True``, ``resume=True``.

    Returns:
        The folder of the run, which stands wherever a policy is asked for.

    Raises:
        UserError: what the command ends with: an unknown key or file, a value that is not taken, a run in the way.
        KeyboardInterrupt: Ctrl-C; the run resumes from its ``last.ckpt``.
    """
    words = [word for config in configs for word in ("--config", fspath(config))]
    words += [_word(name, value) for name, value in options.items() if name not in _SWITCHES or value]
    try:
        code = fit_command(words)
        folder = Path(configuration(words).trainer.default_root_dir)
    except Exception as error:
        told = user_error_in(error) or explain_library(error)
        if told is None or told is error:
            raise
        raise UserError(str(told)) from error
    if code == 130:
        raise KeyboardInterrupt
    if code:
        raise UserError(
            f"the training was told to end before its time; resume with ckpt_path={str(folder / 'last.ckpt')!r}"
        )
    return folder


def _word(name: str, value: Any) -> str:
    if name in _SWITCHES:
        return f"--{name}"
    text = fspath(value) if isinstance(value, str | PathLike) else json.dumps(value)
    return f"--{name}={text}"
