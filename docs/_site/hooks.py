"""Add to the site what is not written by hand: navigation, command line, notebooks, games, pictures and equations."""

import html
import json
import re
from base64 import b64decode
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from lmrl.cli import verbs
from lmrl.commands.arguments import command_reference
from lmrl.evaluation.curves import Curve, Curves
from lmrl.evaluation.records import read_record_curves, read_records
from lmrl.play.viewer import write_view
from lmrl.report.fair import fair_rows, plot_compute, plot_heat_map
from lmrl.report.pictures import draw_curves, draw_probes, plot_health

_GUIDES = (
    "install.md",
    "first_hour.md",
    "games.md",
    "dialogues.md",
    "models.md",
    "choose.md",
    "evaluate.md",
    "play.md",
    "chat.md",
    "data.md",
    "partners.md",
    "sweeps.md",
    "scale.md",
    "cluster.md",
    "overlap.md",
    "export.md",
    "integrations.md",
    "add_task.md",
    "add_algorithm.md",
    "zoo.md",
    "tips.md",
)
_CLI = "cli.md"  # is generated
_REFERENCE = ("commands.md", _CLI, "api.md", "logged_keys.md", "files.md", "gallery.md", "protocol.md")
# A search finds guides first and signatures last.
_SEARCH_BOOSTS = {"guide/": 4.0, "index.md": 4.0, "reference/api.md": 0.2}
_FOLDERS = {"tasks": "Tasks", "algorithms": "Algorithms"}
_NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
_RECORDS = Path(__file__).parents[2] / "results" / "cpu"
_FAIR = Path(__file__).parents[2] / "results" / "protocol"
_GAMES_LINK = re.compile(r"\]\(((?:\.\./)+)games/(\w+)\.jsonl\)")
# On the repository's pages links lead to the notebooks themselves, here to the pages made of them.
_NOTEBOOK_LINK = re.compile(r"\]\(\.\./((?:\.\./)*)notebooks/(\w+)\.ipynb\)")
# A picture that is a link, of which the page keeps the link: nothing is loaded from elsewhere.
_BADGE = re.compile(r"\[!\[([^\]]*)\]\([^)]*\)\]\(([^)]*)\)")
# What arithmatex makes of $...$ and $$...$$.
_EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give every page a place in its shelf: the pages that are named here first, the others by name."""
    docs = Path(config.docs_dir)
    guides = _in_order("guide", _GUIDES, docs)
    reference: list[Any] = _in_order("reference", _REFERENCE, docs)
    sections: list[Any] = []
    for folder, title in _FOLDERS.items():
        sections.append({title: _in_order(f"reference/{folder}", ("index.md",), docs)})
    notebooks = [f"notebooks/{path.stem}.md" for path in _notebooks()]
    log = [f"log/{path.name}" for path in sorted((docs / "log").glob("*.md"), reverse=True)]
    config.nav = [
        {"Start here": "index.md"},
        {"Guide": guides},
        {"Notebooks": notebooks},
        *sections,
        {"Reference": reference},
        {"Log": log},
    ]
    return config


def _in_order(folder: str, first: tuple[str, ...], docs: Path) -> list[str]:
    """Return the pages of a folder: those of `first` in their order, then the others by name."""
    others = {path.name for path in (docs / folder).glob("*.md")} - set(first)
    names = [name for name in first if name == _CLI or (docs / folder / name).is_file()]
    return [f"{folder}/{name}" for name in [*names, *sorted(others)]]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the pictures of those that are made of notebooks."""
    files.append(File.generated(config, f"reference/{_CLI}", content=command_reference(verbs())))
    for path in _notebooks():
        page, pictures = notebook_page(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    for name, picture in _pictures().items():
        files.append(File.generated(config, f"pictures/{name}", content=picture))
    for path in sorted((Path(config.docs_dir) / "games").glob("*.jsonl")):
        files.append(File.generated(config, f"games/{path.stem}.html", content=_games_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rank the page in searches, lead its links to notebooks and games to the site, and show its first game."""
    for start, weight in _SEARCH_BOOSTS.items():
        if page.file.src_uri.startswith(start):
            page.meta.setdefault("search", {"boost": weight})
    games = _GAMES_LINK.findall(markdown)
    markdown = _GAMES_LINK.sub(r"](\1games/\2.html)", markdown)
    if games:
        before, heading, after = markdown.partition("\n## To watch\n")
        shown, rest = after.split("\n## ", 1)
        source = get_relative_url(f"games/{games[0][1]}.html", page.url)
        frame = (
            f'<iframe src="{source}" title="Games of {games[0][1]}" width="100%" height="640" loading="lazy"></iframe>'
        )
        markdown = f"{before}{heading}{shown}\n{frame}\n\n## {rest}"
    return _NOTEBOOK_LINK.sub(r"](\1notebooks/\2.md)", markdown)


def _pictures() -> dict[str, bytes]:
    """Draw the learning curves and probes of the records, and the fair table; PNG by file name."""
    tasks = [path.stem for path in sorted(_RECORDS.glob("*.jsonl"))]
    records = {task: read_records(_RECORDS, task) for task in tasks}
    curves = {task: read_record_curves(_RECORDS, task) for task in tasks}
    with TemporaryDirectory() as folder:
        drawn = [*draw_curves(curves, Path(folder)), *draw_probes(records, Path(folder)), Path(folder) / "health.png"]
        plot_health(_health(), drawn[-1])
        rows = fair_rows(_FAIR)
        if rows:
            plot_heat_map(rows, Path(folder) / "fair_scores.png")
            plot_compute(rows, Path(folder) / "fair_compute.png")
            drawn += [Path(folder) / "fair_scores.png", Path(folder) / "fair_compute.png"]
        return {path.name: path.read_bytes() for path in drawn}


def _health() -> dict[str, Curves]:
    """The runs of `python -m benchmarks ill_runs`."""
    runs = {}
    for name, signs in json.loads((_RECORDS / "health.json").read_text(encoding="utf-8")).items():
        runs[name] = {key: Curve(curve["games"], curve["values"]) for key, curve in signs.items()}
    return runs


def _games_page(path: Path) -> str:
    with TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        write_view(path, page)
        return page.read_text(encoding="utf-8")


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(_BADGE.sub(r"[Open in \1](\2)", source))
            continue
        parts.append(_fenced(source, "python"))
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}_{len(pictures)}.png"
                pictures[name] = b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({name})")
            else:
                parts.append(_fenced("".join(output.get("text", data.get("text/plain", ""))), "text"))
    return "\n\n".join(parts) + "\n", pictures


def _notebooks() -> list[Path]:
    return sorted(_NOTEBOOKS.glob("[0-9]_*.ipynb"))


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Equations as MathML, which browsers draw themselves; the colons that lead to an example as one."""
    return _EQUATION.sub(_mathml, content).replace("::</p>", ":</p>")


def _mathml(found: re.Match[str]) -> str:
    return str(convert(html.unescape(found[2]), display="block" if found[1] == "div" else "inline"))
