"""Generic code knows no game: their names are in their folders, and what others need of them hangs on a `Task`."""

import ast
import re
from pathlib import Path

import lmrl

ROOT = Path(lmrl.__file__).parent
NAMES = re.compile(
    r"maze|text_?nav|(?<![a-z])nav(?![a-z])|wordle|chess|endgame|twenty|guess_?city|(?<![a-z])cit(?:y|ies)(?![a-z])"
    r"|dealer|(?<![a-z])cars?(?![a-z])",
    re.IGNORECASE,
)
EXAMPLE = "maze_fo"
"""The one task by which docstrings and the help of the command line show what to write: ``runs/maze_fo/ilql``. It
stands for any other, and help without an example is no help."""

# Where names may be, and why.
HOMES = ("contrib", "datamodules/tasks.py")
"""Work around single tasks, which the core does not import, and the datamodules that are called after the tasks."""
FACADES = {
    "datamodules/__init__.py": "hands out what tasks.py defines",
}
HELP = ("cli.py",)
"""Modules whose strings are help."""


def _generic() -> list[Path]:
    """Modules, scripts, templates and style sheets outside the folders of the games."""
    files = (path for path in sorted(ROOT.rglob("*")) if path.suffix in (".py", ".js", ".j2", ".css"))
    return [path for path in files if not _at_home(path.relative_to(ROOT))]


def _at_home(path: Path) -> bool:
    in_game = path.parts[0] == "envs" and len(path.parts) > 2
    return in_game or path.as_posix() in FACADES or path.as_posix().startswith(HOMES)


def _docstring_lines(text: str) -> set[int]:
    """Lines of docstrings, and of the texts below attributes."""
    alone = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    texts = [node for node in alone if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)]
    return {line for node in texts for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def test_generic_code_names_no_game() -> None:
    named = []
    for path in _generic():
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT).as_posix()
        docstrings = _docstring_lines(text) if path.suffix == ".py" else set()
        for number, line in enumerate(text.splitlines(), start=1):
            shown = line.replace(EXAMPLE, "") if number in docstrings or name in HELP else line
            if NAMES.search(shown):
                named.append(f"{name}:{number}: {line.strip()}")
    assert not named


def test_the_names_of_all_games_are_known() -> None:
    games = [path.name for path in (ROOT / "envs").iterdir() if (path / "__init__.py").is_file()]
    assert games and all(NAMES.search(name) for name in games)


def test_facades_only_import_and_list() -> None:
    for name in FACADES:
        tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
        assert all(isinstance(node, ast.ImportFrom | ast.Assign | ast.Expr) for node in tree.body), name
