"""Imports reach only towards lower layers; nothing is imported inside a function; `import lmrl` stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lmrl

ROOT = Path(lmrl.__file__).parent

# The one table: a module or package below lmrl/ and its layer.
LAYERS = {
    "errors": 0,
    "lazy": 0,
    "episode": 0,
    "protocols": 0,
    "storage": 0,
    "atomic": 0,
    "locks": 1,
    "records": 0,
    "json_text": 0,
    "columns": 0,
    "ranks": 1,
    "batch": 2,
    "layout": 2,
    "config_files": 0,
    "envs": 1,
    "rollout": 2,
    "slot": 2,
    "tokens": 2,
    "rendering": 2,
    "behaviours": 2,
    "losses": 3,
    "models": 3,
    "policies": 4,
    "partners": 5,
    "integrations": 5,
    "data": 6,
    "datamodules": 7,
    "modules": 8,
    "players": 8,
    "symbolic": 8,
    "evaluation": 9,
    "callbacks": 10,
    "reproduce": 11,
    "commands": 12,
    "cli": 13,
    "__main__": 14,
    "tied": 14,
    "__init__": 14,
}

# Imports that happen when a function is called, and why that is no way around a cycle.
AT_CALL_TIME = {
    "cli.py": "a verb's module is loaded when the verb is called: `lmrl --help` must not load torch",
}

FILES = sorted(ROOT.rglob("*.py"))
_CALLS = ("import_module", "__import__", "load")


def _home(path: Path) -> str:
    """The layer table's name for a file: its package or, directly below lmrl/, its module."""
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def _imports(tree: ast.AST) -> set[str]:
    """The names below ``lmrl.`` that a file imports, at any depth of the code, or takes from the top level."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = str(node.module)
            found |= {f"lmrl.{alias.name}" for alias in node.names} if module == "lmrl" else {module}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lmrl":
            taken = getattr(lmrl, node.attr)
            found.add(str(getattr(taken, "__module__", getattr(taken, "__name__", "lmrl"))))
    own = {name.split(".")[1] if "." in name else "__init__" for name in found if name.split(".")[0] == "lmrl"}
    # `from lmrl import __version__` and the like reach the package itself
    return {name if name in LAYERS else "__init__" for name in own} - {"__init__"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    home = _home(path)
    assert home in LAYERS, f"give lmrl/{home} a layer in tests/test_layers.py"
    reached = _imports(ast.parse(path.read_text(encoding="utf-8"))) - {home}
    upwards = {name: LAYERS[name] for name in reached if LAYERS[name] > LAYERS[home]}
    assert not upwards, f"{home} is layer {LAYERS[home]} and imports {upwards}"


def test_no_two_packages_import_each_other() -> None:
    edges: set[tuple[str, str]] = set()
    for path in FILES:
        home = _home(path)
        edges |= {(home, other) for other in _imports(ast.parse(path.read_text(encoding="utf-8"))) if other != home}
    assert not {tuple(sorted(edge)) for edge in edges if edge[::-1] in edges}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_imported_inside_a_function(path: Path) -> None:
    hidden: list[int] = []
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            hidden += [node.lineno for node in ast.walk(function) if _is_own_import(node)]
    if str(path.relative_to(ROOT)) in AT_CALL_TIME:
        assert hidden, "the exception is no longer needed: remove it from AT_CALL_TIME"
    else:
        assert not hidden, f"imports inside functions, lines {hidden}"


def _is_own_import(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] == "lmrl" for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] == "lmrl"
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        # Loading a class that the user names by its path is what a class path is for; only our own names are hidden.
        return name in _CALLS and any("lmrl" in ast.dump(argument) for argument in node.args)
    return False


@pytest.mark.parametrize("command", ["import lmrl", "from lmrl.cli import main; main(['--help'])"])
def test_starting_up_loads_neither_torch_nor_chess(command: str) -> None:
    heavy = ("torch", "transformers", "lightning", "chess", "wandb", "matplotlib")
    code = f"import sys; {command}; print('loaded:', *[name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.splitlines()[-1].split() == ["loaded:"]
