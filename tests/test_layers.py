"""Packages are totally ordered, modules have no cycles, no import hides in a function, `import lmrl` stays light."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import lmrl

ROOT = Path(lmrl.__file__).parent

# The one table: what is below lmrl/, each importing only from those before it.
ORDER = (
    "errors",
    "utils",
    "types",
    "envs",
    "losses",
    "tokens",
    "models",
    "checkpoints",
    "decoding",
    "rollout",
    "policies",
    "partners",
    "data",
    "datamodules",
    "training",
    "modules",
    "evaluation",
    "callbacks",
    "report",
    "play",
    "reproduce",
    "commands",
    "integrations",
    "contrib",
    "__init__",
    "cli",
    "__main__",
)

FILES = sorted(ROOT.rglob("*.py"))
MODULES = {
    ".".join(("lmrl", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__") for path in FILES
}
_CALLS = ("import_module", "__import__", "load")


def _module(path: Path) -> str:
    return ".".join(("lmrl", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def _home(module: str) -> str:
    """The name in the table: a package or, directly below lmrl/, a module."""
    return module.split(".")[1] if "." in module else "__init__"


def _imports(path: Path) -> Iterator[str]:
    """The modules of lmrl that a file imports, at any depth of the code, also for type checkers alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module


GRAPH = {_module(path): set(_imports(path)) - {_module(path)} for path in FILES}


def test_imports_point_to_what_comes_before() -> None:
    upward = []
    for module, imported in GRAPH.items():
        home = _home(module)
        assert home in ORDER, f"give lmrl/{home} a place in tests/test_layers.py"
        later = ORDER[ORDER.index(home) + 1 :]
        upward += [f"{module} imports {other}" for other in imported if _home(other) in later]
    assert not upward


def test_the_core_knows_no_plugin() -> None:
    plugins = ("lmrl.integrations", "lmrl.contrib")
    core = {module: imported for module, imported in GRAPH.items() if not module.startswith(plugins)}
    assert not [module for module, imported in core.items() if any(name.startswith(plugins) for name in imported)]


def test_modules_have_no_cycles() -> None:
    # The facade of a package names its modules for type checkers and imports them when they are first used.
    facades = {_module(path) for path in FILES if path.name == "__init__.py"}
    graph = {module: set() if module in facades else reached for module, reached in GRAPH.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)


def test_only_facades_import_their_own_for_type_checkers_alone() -> None:
    hidden = [path for path in FILES if path.name != "__init__.py" and any(_imported_for_types(path))]
    assert not hidden


def _imported_for_types(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            named = [inner.module or "" for inner in ast.walk(node) if isinstance(inner, ast.ImportFrom)]
            yield from (name for name in named if name.startswith("lmrl"))


def test_nothing_is_imported_inside_a_function() -> None:
    hidden = []
    for path in FILES:
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = [node.lineno for node in ast.walk(function) if _is_own_import(node)]
                hidden += [(str(path.relative_to(ROOT)), line) for line in lines]
    assert not hidden


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


def test_starting_up_loads_neither_torch_nor_chess() -> None:
    command = "from lmrl.cli import main; main(['--help'])"
    heavy = ("torch", "transformers", "lightning", "chess", "wandb", "matplotlib")
    code = f"import sys; {command}; print('loaded:', *[name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.splitlines()[-1].split() == ["loaded:"]


@pytest.mark.nightly
def test_the_core_trains_without_integrations_and_contrib(tmp_path: Path) -> None:
    shutil.copytree(ROOT, tmp_path / "lmrl", ignore=shutil.ignore_patterns("integrations", "contrib", "__pycache__"))
    shutil.copytree(ROOT.parent / "configs", tmp_path / "configs")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "lmrl", *words]
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr[-2000:]
        return result.stdout

    overview = run("--help")
    assert "lmrl fit" in overview and "lmrl serve" not in overview and "lmrl symbolic" not in overview
    tiny = {"n_embd": 16, "n_layer": 1, "n_head": 2}
    options = [
        f"--model.init_args.architecture={tiny}",
        "--data.init_args.size=20",
        "--evaluation.episodes=1",
        "--data.init_args.batch_size=4",
        "--trainer.max_steps=2",
        "--trainer.accelerator=cpu",
        "--trainer.default_root_dir=run",
    ]
    run("fit", "--config", "configs/maze_fo/bc.yaml", *options)
    assert (tmp_path / "run" / "last.ckpt").is_file()
