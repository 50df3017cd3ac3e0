"""Markdown and HTML pages that need no file next to them, and what they show of an episode."""

import base64
import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lmrl.envs.task import Picture
from lmrl.errors import UserError, in_one_line, printable
from lmrl.types import Episode

__all__ = [
    "check_page",
    "cut",
    "embedded",
    "episode_facts",
    "page_parts",
    "printable",
    "render_html",
    "render_markdown",
    "render_page",
    "rounded",
    "said",
    "scripts",
    "shown_text",
]

_log = logging.getLogger(__name__)

# Only what Markdown reads as markup: an underscore inside a word and a bracket without a link are plain text.
_MARKDOWN = re.compile(r"([\\`*|~$]|\](?=[(\[:])|(?<!\w)_|_(?!\w))")

_HEAD = 2_000  # bytes of a page in which its generator is noted
# Inside a script element only "<" can end the data. The others are escaped for people who copy the data elsewhere.
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def render_html(words: Mapping[str, Any], pictures: Iterable[Path]) -> str:
    """One HTML page: all text escaped, pictures inside as base64, no script, nothing loaded from elsewhere."""
    images = {}
    for path in pictures:
        images[path.name] = base64.b64encode(path.read_bytes()).decode("ascii")
    return render_page("lmrl.report", "report.html.j2", {**words, "images": images})


def render_page(package: str, template: str, words: Mapping[str, Any]) -> str:
    """One HTML page: all text escaped, control characters replaced.

    Args:
        package: the package whose folder ``templates`` holds the template.
        template: its file name.
        words: what the template shows.
    """
    return printable(_environment(package, autoescape=True).get_template(template).render(words))


def check_page(path: Path, generator: str) -> None:
    """Make sure that a page may be written to a file: a new one, or a page that the same command has written.

    Args:
        path: path of the page.
        generator: the command, as its template notes it in the page: ``lmrl view``.

    Raises:
        UserError: there is another file, or a folder.
    """
    mark = f'<meta name="generator" content="{generator}">'
    if path.is_dir() or (path.is_file() and mark.encode() not in path.read_bytes()[:_HEAD]):
        raise UserError(f"{path} is there, and no page of {generator}: choose another name for the page")


def render_markdown(words: Mapping[str, Any], pictures: Iterable[Path]) -> str:
    """The same report as Markdown; pictures are named and expected next to it."""
    environment = _environment("lmrl.report", autoescape=False)
    environment.filters |= {"md": _escaped, "code": _code}
    page = environment.get_template("report.md.j2").render(words, images={path.name for path in pictures})
    # Tables and pictures that are left out leave runs of empty lines behind.
    return re.sub(r"\n{3,}", "\n\n", printable(page)).strip() + "\n"


def _environment(package: str, autoescape: bool) -> Environment:
    loader = PackageLoader(package, "templates")
    return Environment(loader=loader, autoescape=autoescape, undefined=StrictUndefined)


def scripts(package: str, *names: str, before: Sequence[str] = ()) -> dict[str, Any]:
    """Scripts for a template, and the hashes by which a page allows them and no others.

    Each script gets an element of its own, so that one which a browser cannot read does not stop the others.

    Args:
        package: the package whose folder ``templates`` holds the scripts.
        names: file names of the scripts.
        before: texts of other scripts, which come first.

    Returns:
        ``scripts`` and ``script_hashes`` for the template.
    """
    texts = list(before)
    for name in names:
        texts.append(_text_of(f"{package}:templates/{name}"))
    elements = []
    hashes = []
    for text in texts:
        # `render_page` makes the whole page printable, and the browser hashes what it reads there.
        shown = printable(text)
        digest = hashlib.sha256(shown.encode()).digest()
        elements.append(Markup(shown))
        hashes.append(f"'sha256-{base64.b64encode(digest).decode('ascii')}'")
    return {"scripts": elements, "script_hashes": Markup(" ".join(hashes))}


def page_parts(package: str, pictures: Sequence[type[Picture]], *names: str) -> dict[str, Any]:
    """Return the scripts, and with ``picture_style`` also the style sheets of pictures, for a page that shows episodes.

    If the files of a picture cannot be read, a warning is logged and the page shows episodes of that task without it.

    Args:
        package: the package whose folder ``templates`` holds ``pictures.js`` and the scripts.
        pictures: kinds of pictures that the page may show.
        names: file names of the page's own scripts.
    """
    before = [_text_of(f"{package}:templates/pictures.js")]
    styles = []
    for picture in pictures:
        try:
            script = _text_of(picture.script)
            style = _text_of(picture.style) if picture.style else ""
        except (OSError, ImportError, UnicodeDecodeError) as error:  # a plugin may be installed without these files
            reason = in_one_line(f"{type(error).__name__}: {error}")
            _log.warning("pages show no picture of %r (%s): %s", picture.kind, picture.script, reason)
            continue
        before.append(script)
        if style:
            styles.append(style)
    return {**scripts(package, *names, before=before), "picture_style": Markup("\n".join(styles))}


def _text_of(file: str) -> str:
    """Return the text of a file of a package, ``package:file``."""
    package, _, name = file.partition(":")
    return files(package).joinpath(name).read_text(encoding="utf-8")


def embedded(data: object) -> Markup:
    """JSON for a script element of a template, which no text in it can end."""
    return Markup(json.dumps(data, separators=(",", ":")).translate(_ESCAPES))


def _escaped(text: object) -> str:
    """Text on one line, escaped so that Markdown shows it unchanged."""
    line = " ".join(str(text).split())
    return _MARKDOWN.sub(r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def _code(text: object) -> str:
    """An indented block: unlike a fenced one, no text can close it."""
    return "\n".join(f"    {line}" for line in str(text).splitlines())


_LONGEST = 20_000
"""Characters of a text that are shown."""


def episode_facts(episode: Episode) -> dict[str, Any]:
    """Return, turns, illegal actions, seed and rewards of an episode, and how it ended.

    ``ending`` is 0 if it was solved, 1 if the rules ended it, 2 if it was cut short.
    """
    return {
        "return": rounded(episode.total_reward, 4),
        "turns": len(episode),
        "illegal": episode.illegal,
        "ending": 0 if episode.success else 1 if episode.terminated else 2,
        "seed": str(episode.seed),  # a text, because JavaScript numbers are exact only up to 2**53
        "rewards": [rounded(reward, 4) for reward in episode.rewards],
    }


def said(episode: Episode) -> list[str]:
    """Return observations and actions in turn, an observation first and last."""
    texts = [episode.observations[0]]
    for action, observation in zip(episode.actions, episode.observations[1:], strict=True):
        texts += (action, observation)
    return texts


def shown_text(text: str) -> str:
    """A text as pages show it: cut if it is very long, with a mark for what cannot be seen."""
    return printable(cut(text))


def cut(text: str) -> str:
    """Return the text, or the beginning of a very long one with its length."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text)} characters)"


def rounded(value: float | None, digits: int) -> float | None:
    """Round a number for JSON, which has no NaN and no infinity: they become None."""
    return round(value, digits) if value is not None and isfinite(value) else None
