"""Plugins: packages whose entry points add tasks, partners, commands or algorithms. Nothing is imported here."""

import re
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

__all__ = [
    "ALGORITHMS", "COMMANDS", "PARTNERS", "TASKS", "TASK_KINDS", "algorithm_packages", "entry_points_of",
    "plugin_configs",
]  # fmt: skip

TASKS = "lmrl.tasks"
"""The value of an entry point, ``module:attribute``, is a `lmrl.envs.task.Task` or a tuple of them."""
TASK_KINDS = "lmrl.task_kinds"
"""The name is a prefix, such as that of ``openenv:URL``; the value is a function from the rest to a task."""
COMMANDS = "lmrl.commands"
"""The value is a mapping from names of commands to `lmrl.commands.verb.Verb`."""
PARTNERS = "lmrl.partners"
"""The name is that of a partner; the value is a class or function that makes it from its settings."""
ALGORITHMS = "lmrl.algorithms"
"""The value is a package. Checkpoints may name the classes in its ``__all__``."""


@cache  # `entry_points` opens a file of every installed package, and each environment that is made asks for them
def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, by name of their package."""
    points = entry_points(group=group)
    return tuple(sorted(points, key=lambda point: (point.dist.name if point.dist else "", point.name)))


@cache
def algorithm_packages() -> tuple[str, ...]:
    """Return the packages whose classes a checkpoint may name: `lmrl.modules`, and those of plugins."""
    return ("lmrl.modules", *(point.value for point in entry_points_of(ALGORITHMS)))


@cache
def plugin_configs() -> tuple[Path, ...]:
    """Return the folders ``configs`` in packages that add tasks; they hold ``<task>/<algorithm>.yaml``."""
    folders = []
    for point in entry_points_of(TASKS):
        # The top package is found without importing it, and so without what it imports.
        spec = find_spec(re.split(r"[.:]", point.value)[0])
        if spec is None:
            continue
        for location in spec.submodule_search_locations or ():
            folder = Path(location) / "configs"
            if folder.is_dir() and folder not in folders:
                folders.append(folder)
    return tuple(folders)
