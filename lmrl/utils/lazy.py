"""Public names of a package that are imported when they are first used (PEP 562), since torch takes seconds to load."""

import gc
import pkgutil
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

__all__ = ["exports", "load"]

Exports: TypeAlias = tuple[Callable[[str], Any], Callable[[], list[str]]]


def exports(package: str, homes: Mapping[str, str], *, search: bool = False) -> Exports:
    """``__getattr__`` and ``__dir__`` of a package.

    Type checkers and editors do not run them: the package also imports the names under ``TYPE_CHECKING``.

    Args:
        package: its ``__name__``.
        homes: public name to the module that defines it, ``{"LMPolicy": "lmrl.policies.lm"}``; a name that is itself a
            module or package to nothing, ``{"modules": ""}``.
        search: look for other names in the ``__all__`` of the package's modules, so that a new module needs no entry in
            `homes`. Type checkers know only names that the package imports.
    """

    def find(name: str) -> Any:
        if name in homes:
            home = homes[name]
            return getattr(load(home), name) if home else load(f"{package}.{name}")
        if search and not name.startswith("_"):
            modules = [module.name for module in pkgutil.iter_modules(load(package).__path__)]
            # A module of this name is left to Python, which imports it after this function has not found it.
            if name not in modules:
                for module_name in modules:
                    module = load(f"{package}.{module_name}")
                    if name in getattr(module, "__all__", ()):
                        return getattr(module, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(load(package)), *homes})

    return find, names


def load(module: str) -> ModuleType:
    """Import a module with the garbage collector at rest.

    What is imported stays, and looking for garbage among the objects of torch takes a fifth of the time.
    """
    working = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if working:
            gc.enable()
