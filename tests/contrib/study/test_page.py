"""The page as text, and in a browser where one is installed."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lmrl.contrib.study.page import write_study
from lmrl.data.storage import write_episodes
from lmrl.errors import UserError
from lmrl.types import Episode
from tests.helpers.browser import accessibility_faults, opened, run_script

EVIL = (
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror='window.pwned=1'><svg onload=window.pwned=1>",
    '"><input name=x checked></span></li></ol></article><h1>{{ 7*7 }}</h1>',
    "&lt;b&gt; \x00\x1b[31m\u202e\u2066 <!--",
)


def record(path: Path, texts: tuple[str, ...], **facts: Any) -> Path:
    episodes = [
        Episode("secret_task", (f"Opening {text}", f"Reply {text}"), (text,), (0.125,), True, False, **facts)
        for text in texts
    ]
    write_episodes(path, episodes, {"generator": "secret_generator"})
    return path


class Page(HTMLParser):
    """Tags and their attributes, and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A page of two conditions, two dialogues each, with texts that want to run."""
    info = {"note": "secret_info", "success": True}
    first = record(tmp_path / "zebra.jsonl", EVIL[:2], seed=987654, info=info)
    second = record(tmp_path / "quokka.jsonl", EVIL[2:])
    write_study({"zebra": first, "quokka": second}, tmp_path / "page.html", samples=2, question="Natural? <b>&")
    return tmp_path / "page.html"


def test_texts_are_shown_and_nothing_of_them_is_markup(study: Path) -> None:
    page = Page(study.read_text())
    for text in EVIL[:3]:
        assert page.words.count(text) == 3  # opening, action, reply
    assert "&lt;b&gt; \ufffd\ufffd[31m\ufffd\ufffd <!--" in page.words
    assert page.words.count("Natural? <b>&") == 4
    assert page.tags.count("script") == 1 and page.tags.count("article") == 4 and page.tags.count("input") == 21
    assert not {"img", "svg", "link", "iframe", "form"} & set(page.tags)


def test_only_the_pages_own_script_may_run_and_nothing_is_loaded(study: Path) -> None:
    page = Page(study.read_text())
    script = study.read_text().split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [value for _, value in page.attributes if "default-src" in value]
    assert policy.startswith("default-src 'none';") and f"script-src 'sha256-{digest}'" in policy
    assert not [pair for pair in page.attributes if pair[0] in ("src", "href", "action") or pair[0].startswith("on")]
    assert "://" not in study.read_text() and "fetch(" not in script and "innerHTML" not in script


def test_the_page_says_nothing_about_where_a_dialogue_is_from(study: Path) -> None:
    page = study.read_text()
    key = json.loads(study.with_suffix(".key.json").read_text())
    for word in ("zebra", "quokka", "secret", "987654", "0.125", "jsonl", "condition", "episode", "seed"):
        assert word not in page, word
    assert set(key["conditions"]) == {"zebra", "quokka"}
    for id, sample in key["samples"].items():
        shown = re.search(rf'<article(?:(?!<article).)*?name="{id}"', page, re.DOTALL)
        assert shown and re.fullmatch("[0-9a-f]{8}", id)
        text = EVIL[sample["episode"] + (2 if sample["condition"] == "quokka" else 0)]
        assert text[:8] in Page(shown[0]).words


def test_other_names_of_the_conditions_make_the_same_page(study: Path) -> None:
    files = {"a": study.with_name("zebra.jsonl"), "b": study.with_name("quokka.jsonl")}
    key = write_study(files, study.with_name("other.html"), samples=2, question="Natural? <b>&")
    assert study.with_name("other.html").read_bytes() == study.read_bytes()
    assert {sample["condition"] for sample in json.loads(key.read_text())["samples"].values()} == {"a", "b"}


def test_a_key_that_is_still_needed_is_not_lost(study: Path) -> None:
    key = study.with_suffix(".key.json")
    files = {"zebra": study.with_name("zebra.jsonl")}
    before = key.read_bytes(), study.read_bytes()
    with pytest.raises(UserError, match=r"page\.key\.json is the key of another study"):
        write_study(files, study, samples=2)
    assert (key.read_bytes(), study.read_bytes()) == before


def test_odd_arguments(study: Path) -> None:
    files = {"zebra": study.with_name("zebra.jsonl")}
    with pytest.raises(UserError, match=r"out must be an \.html file, got 'page.txt'"):
        write_study(files, Path("page.txt"))
    with pytest.raises(UserError, match="question must not be empty"):
        write_study(files, study.with_name("new.html"), question=" ")
    assert not study.with_name("new.html").exists()


# -- in a browser -----------------------------------------------------------------------------------------------------

_HELPERS = """
const log = [];
const pick = (id, n) => document.querySelector(`input[name="${id}"][value="${n}"]`);
const name = (words) => { const r = document.getElementById("rater"); r.value = words;
  r.dispatchEvent(new Event("input", { bubbles: true })); };
const save = async () => {  // a press of the button; the file it hands out, if any
  let blob = null;
  const make = window.URL.createObjectURL;
  window.URL.createObjectURL = (b) => { blob = b; return make.call(window.URL, b); };
  document.getElementById("save").click();
  window.URL.createObjectURL = make;
  return { said: text("said"), focus: document.activeElement.name || document.activeElement.id,
    file: blob && JSON.parse(await blob.text()) };
};
const ids = [...document.querySelectorAll("fieldset")].map((f) => f.querySelector("input").name);
"""
_RATING = """
log.push(text("count"), await save());
name("A. B.");
log.push(await save());
pick(ids[0], 2).click();
const key = new window.KeyboardEvent("keydown", { key: "5", bubbles: true });
pick(ids[1], 1).dispatchEvent(key);
log.push(text("count"), await save(), await save());
return { ids, log };
"""
_COMING_BACK = """
log.push(text("count"), document.getElementById("rater").value, pick(ids[1], 5).checked);
for (const id of ids) pick(id, 4).click();
log.push(await save());
window.confirm = () => true;
document.getElementById("clear").click();
log.push(text("count"), localStorage.length, String(window.pwned));
return log;
"""


@pytest.mark.nightly
def test_rating_saving_coming_back_and_starting_over(study: Path) -> None:
    with opened() as tab:
        tab.goto(study.as_uri())
        assert accessibility_faults(tab) == []
        found = run_script(tab, _HELPERS + _RATING)
        tab.reload()
        log = found["log"] + run_script(tab, _HELPERS + _COMING_BACK)
    one, two, three, four = found["ids"]
    key = json.loads(study.with_suffix(".key.json").read_text())
    assert found["ids"] == list(key["samples"])
    some = {"study": key["study"], "rater": "A. B.", "ratings": {one: 2, two: 5}}
    saved = "Saved to your downloads. Please give that file to whoever asked you."
    assert log[0] == "0 of 4 rated"
    assert log[1] == {"said": "Please enter your name or initials first.", "focus": "rater", "file": None}
    assert log[2]["said"] == "Nothing is rated yet." and log[2]["file"] is None
    assert log[3] == "2 of 4 rated"
    assert log[4]["said"] == "Not rated yet: dialogue 3, 4. Save again to leave them out."
    assert (log[4]["focus"], log[4]["file"]) == (three, None)
    assert (log[5]["said"], log[5]["file"]) == (saved, some)
    assert log[6:9] == ["2 of 4 rated", "A. B.", True]
    assert log[9]["file"] == some | {"ratings": dict.fromkeys((one, two, three, four), 4)}
    assert log[10:] == ["0 of 4 rated", 0, "undefined"]
