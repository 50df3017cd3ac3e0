"""What the site needs beside the pages: their order, the command-line reference, and equations without a script."""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from lmrl.cli import VERBS
from lmrl.commands.arguments import command_reference

_FIRST = ("index.md", "models.md", "view.md", "chat.md", "partners.md", "study.md")
_LAST = ("extending.md", "design.md", "errata.md", "logged_keys.md", "cli.md", "api.md")
_FOLDERS = {"tasks": "Tasks", "algorithms": "Algorithms"}
# What arithmatex makes of $...$ and $$...$$.
_EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every page has a place: new ones of a folder in its section, new ones at the top before the reference."""
    docs = Path(config.docs_dir)
    top = {path.name for path in docs.glob("*.md")} - {*_FIRST, *_LAST}
    sections: list[Any] = [
        {title: [f"{folder}/{path.name}" for path in sorted((docs / folder).glob("*.md"))]}
        for folder, title in _FOLDERS.items()
    ]
    using = {"Using": [*_FIRST[1:], *sorted(top)]}
    config.nav = [{"Start here": _FIRST[0]}, *sections, using, {"Reference": list(_LAST)}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated page."""
    files.append(File.generated(config, "cli.md", content=command_reference(VERBS)))
    return files


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Equations as MathML, which browsers draw themselves; the colons that lead to an example as one."""
    return _EQUATION.sub(_mathml, content).replace("::</p>", ":</p>")


def _mathml(found: re.Match[str]) -> str:
    return str(convert(html.unescape(found[2]), display="block" if found[1] == "div" else "inline"))
