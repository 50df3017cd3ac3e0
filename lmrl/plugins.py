"""Packages that add tasks: those with an entry point of the group ``lmrl.tasks``. Nothing of them is imported here."""

import re
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

__all__ = ["GROUP", "plugin_configs", "plugins"]

GROUP = "lmrl.tasks"
"""The value of an entry point, ``module:attribute``, is a `lmrl.envs.task.Task` or a tuple of them."""


def plugins() -> list[EntryPoint]:
    """The entry points, by name of their package."""
    return sorted(entry_points(group=GROUP), key=lambda point: (point.dist.name if point.dist else "", point.name))


@cache
def plugin_configs() -> tuple[Path, ...]:
    """The folders ``configs`` in those packages; they hold ``<task>/<algorithm>.yaml``."""
    tops = dict.fromkeys(re.split(r"[.:]", point.value)[0] for point in plugins())
    folders = []
    for top in tops:
        spec = find_spec(top)
        if spec is not None:
            folders += [Path(location) / "configs" for location in spec.submodule_search_locations or ()]
    return tuple(folder for folder in folders if folder.is_dir())
