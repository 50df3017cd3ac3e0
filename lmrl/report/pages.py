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

# Only what would be read as markup: an underscore inside a word and a bracket that no link follows are plain text.
_MARKDOWN = re.compile(r"([\\`*|~$]|\](?=[(\[:])|(?<!\w)_|_(?!\w))")


# In a script element of data only "<" could end anything; the others are for those who paste it elsewhere.
_HEAD = 2_000  # bytes of a page in which its generator is noted
_ESCAPES = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&"}


def render_html(words: Mapping[str, Any], pictures: Iterable[Path]) -> str:
    """One HTML page: all text escaped, pictures inside as base64, no script, nothing loaded from elsewhere."""
    images = {path.name: base64.b64encode(path.read_bytes()).decode("ascii") for path in pictures}
    return render_page("report.html.j2", {**words, "images": images})


def render_page(template: str, words: Mapping[str, Any]) -> str:
    """One HTML page from a template of this package: all text escaped, control characters replaced."""
    return printable(_environment(autoescape=True).get_template(template).render(words))


def check_page(path: Path, generator: str) -> None:
    """Make sure that a page may be written to a file: a new one, or a page that the same command has written.

    Args:
        path: of the page.
        generator: the command, as its template notes it in the page: ``lmrl view``.

    Raises:
        UserError: there is another file, or a folder.
    """
    mark = f'<meta name="generator" content="{generator}">'
    if path.is_dir() or (path.is_file() and mark.encode() not in path.read_bytes()[:_HEAD]):
        raise UserError(f"{path} is there, and no page of {generator}: choose another name for the page")


def render_markdown(words: Mapping[str, Any], pictures: Iterable[Path]) -> str:
    """The same report as Markdown; pictures are named and expected next to it."""
    environment = _environment(autoescape=False)
    environment.filters |= {"md": _escaped, "code": _code}
    page = environment.get_template("report.md.j2").render(words, images={path.name for path in pictures})
    return re.sub(r"\n{3,}", "\n\n", printable(page)).strip() + "\n"


def _environment(autoescape: bool) -> Environment:
    loader = PackageLoader("lmrl.report", "templates")
    return Environment(loader=loader, autoescape=autoescape, undefined=StrictUndefined)


def scripts(*names: str, before: Sequence[str] = ()) -> dict[str, Any]:
    """Scripts of this package, and the hashes by which a page allows them and no other: words for a template.

    Each is an element of its own, so that one which a browser cannot read takes no other with it.

    Args:
        names: of the scripts.
        before: texts of other scripts, which come first.
    """
    folder = files("lmrl.report").joinpath("templates")
    found = [*before, *(folder.joinpath(name).read_text(encoding="utf-8") for name in names)]
    texts = [printable(text) for text in found]  # as the whole page will be: hashes are of what the browser reads
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in texts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    return {"scripts": [Markup(text) for text in texts], "script_hashes": Markup(hashes)}


def page_parts(pictures: Sequence[type[Picture]], *names: str) -> dict[str, Any]:
    """Return the scripts, and with ``picture_style`` also the style sheets of pictures, for a page that shows episodes.

    A picture whose files cannot be read is reported and left out: the page shows episodes of its task without one.
    """
    own = _text_of("lmrl.report:templates/pictures.js")
    before = [own]
    styles = []
    for picture in pictures:
        try:
            texts = _text_of(picture.script), _text_of(picture.style) if picture.style else ""
        except (OSError, ImportError, UnicodeDecodeError) as error:  # of a package that was installed without it
            told = in_one_line(f"{type(error).__name__}: {error}")
            _log.warning("pages show no picture of %r (%s): %s", picture.kind, picture.script, told)
            continue
        before.append(texts[0])
        styles.append(texts[1])
    return {**scripts(*names, before=before), "picture_style": Markup("\n".join(filter(None, styles)))}


def _text_of(place: str) -> str:
    """Return the text of a file of a package, ``package:file``."""
    package, _, name = place.partition(":")
    return files(package).joinpath(name).read_text(encoding="utf-8")


def embedded(data: object) -> Markup:
    """JSON for a script element of a template, which no text in it can end."""
    return Markup(json.dumps(data, separators=(",", ":")).translate(_ESCAPES))


def _escaped(text: object) -> str:
    """Text as Markdown that shows exactly it, on one line."""
    line = " ".join(str(text).split())
    return _MARKDOWN.sub(r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def _code(text: object) -> str:
    """An indented block: unlike a fenced one, no text can close it."""
    return "\n".join(f"    {line}" for line in str(text).splitlines())


_LONGEST = 20_000
"""Characters of a text that are shown."""


def episode_facts(episode: Episode) -> dict[str, Any]:
    """The numbers of an episode; ``ending`` is 0 for solved, 1 for ended by the rules, 2 for cut short."""
    return {
        "return": rounded(episode.total_reward, 4),
        "turns": len(episode),
        "illegal": episode.illegal,
        "ending": 0 if episode.success else 1 if episode.terminated else 2,
        "seed": str(episode.seed),  # beyond what a number of JavaScript holds
        "rewards": [rounded(reward, 4) for reward in episode.rewards],
    }


def said(episode: Episode) -> list[str]:
    """All texts in the order in which they were said, an observation first and last."""
    found = [episode.observations[0]]
    for action, observation in zip(episode.actions, episode.observations[1:], strict=True):
        found += (action, observation)
    return found


def shown_text(text: str) -> str:
    """A text as pages show it: cut if it is very long, with a mark for what cannot be seen."""
    return printable(cut(text))


def cut(text: str) -> str:
    """The text; of a very long one its beginning, and how long it is."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text)} characters)"


def rounded(value: float | None, digits: int) -> float | None:
    """As JSON has it: no number where there is none."""
    return round(value, digits) if value is not None and isfinite(value) else None
