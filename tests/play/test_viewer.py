"""The viewer's page as text, and in a browser where one is installed."""

import base64
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmrl.cli import main
from lmrl.data import generate
from lmrl.data.storage import read_episodes, write_episodes
from lmrl.envs.registry import make_policy
from lmrl.errors import UserError
from lmrl.evaluation import evaluate, write_evaluation
from lmrl.evaluation.token_values import TokenValue
from lmrl.play.viewer import view_data, write_view
from lmrl.report import pages
from lmrl.types import Episode
from tests.contrib.study.test_page import EVIL, Page
from tests.helpers.browser import in_browser, opened


def maze(*actions: str, start: tuple[int, int] = (7, 6), **more: Any) -> Episode:
    """Return a walk in the partially observed maze; the texts do not matter."""
    rewards = tuple(-1.0 for _ in actions)
    info = {"start": {"init_position": start}, **more}
    return Episode("maze_po", ("walls\n",) * (len(actions) + 1), actions, rewards, False, True, seed=2**60, info=info)


def test_what_the_page_holds_by_hand() -> None:
    word = Episode(
        "wordle", ("Wordle:\n", "g g g g g\n"), ("c r a n e\n",), (0.0,), True, False, info={"success": True}
    )
    walk = maze("move up\n", "jump\n", "move up\n", "move left\n", illegal=1)
    values = [[[TokenValue("c r", 0.25, -1.0, None), TokenValue("\n", 0.99999, None, 0.12345)]]]
    held = json.loads(json.dumps(view_data([word, walk], values, run="bc")))
    assert held["texts"] == [
        "Wordle:\n",
        "c r a n e\n",
        "g g g g g\n",
        "walls\n",
        "move up\n",
        "jump\n",
        "move left\n",
        "c r",
        "\n",
    ]
    assert held["episodes"] == {
        "task": ["wordle", "maze_po"],
        "return": [0.0, -4.0],
        "turns": [1, 4],
        "illegal": [0, 1],
        "ending": [0, 2],
        "seed": ["0", str(2**60)],
        "said": [[0, 1, 2], [3, 4, 3, 5, 3, 4, 3, 6, 3]],
        "rewards": [[0.0], [-1.0] * 4],
        "states": [None, [[7, 6], [6, 6], [6, 6], [5, 6], [5, 5]]],
    }
    assert held["values"] == {"0": [[[7, 0.25, -1.0, None], [8, 1.0, None, 0.123]]]}
    assert held["tasks"]["wordle"] == {"kind": "wordle"}
    assert (held["tasks"]["maze_po"]["kind"], held["tasks"]["maze_po"]["goal"]) == ("maze", [8, 6])


def test_the_map_is_that_of_the_environment_that_was_played() -> None:
    walk = maze("move up\n")
    assert view_data([walk], env={"layout": ["?"]})["tasks"]["maze_po"] == {"kind": ""}
    small = view_data([maze("move down\n", start=(1, 1))], env={"layout": "umaze"})
    assert (small["tasks"]["maze_po"]["goal"], small["episodes"]["states"]) == ([3, 3], [[(1, 1), (2, 1)]])


def test_numbers_that_are_none_and_endless_texts() -> None:
    odd = Episode("toy", ("x" * 30_000, "y"), ("\ud800\u202e",), (float("nan"),), True, False)
    held = view_data([odd])
    assert (held["episodes"]["return"], held["episodes"]["rewards"]) == ([None], [[None]])
    assert held["texts"] == ["x" * 20_000 + " ... (30000 characters)", "\ufffd\ufffd", "y"]
    assert view_data([])["episodes"] == {"return": []}


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    episodes = [Episode(text, (f"Opening {text}", text), (text,), (1.0,), True, False) for text in EVIL[:3]]
    write_episodes(
        tmp_path / "evil.jsonl", [*episodes, Episode("__proto__", ("a", "b"), ("</ScRiPt>",), (0.0,), True, False)]
    )
    write_view(tmp_path / "evil.jsonl", tmp_path / "evil.html")
    return tmp_path / "evil.html"


def scripts_of(page: Path) -> list[str]:
    """Return the scripts of a page that a browser runs."""
    return [rest.split("</script>")[0] for rest in page.read_text().split("<script>")[1:]]


def test_hostile_texts_stay_texts(evil: Path) -> None:
    page = Page(evil.read_text())
    assert page.tags.count("script") == 1 + len(scripts_of(evil)) and page.tags.count("input") == 7
    assert (
        not {"img", "svg", "link", "iframe", "article", "h1"} & set(page.tags) - {"h1"} and page.tags.count("h1") == 1
    )
    held = evil.read_text().split('id="data">')[1].split("</script>")[0]
    assert not set("<>&") & set(held)
    assert f"Opening {EVIL[0]}" in json.loads(held)["texts"]


def test_only_the_pages_own_scripts_may_run_and_nothing_is_loaded(evil: Path) -> None:
    page = Page(evil.read_text())
    scripts = scripts_of(evil)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    (policy,) = [value for _, value in page.attributes if "default-src" in value]
    assert policy.startswith("default-src 'none';") and policy.endswith(
        "script-src " + " ".join(f"'sha256-{digest}'" for digest in digests)
    )
    assert not [pair for pair in page.attributes if pair[0] in ("src", "href", "action") or pair[0].startswith("on")]
    writing = ("fetch(", "innerHTML", "insertAdjacent", "document.write", "eval(")
    assert not [word for word in writing for script in scripts if word in script]


def held_by(page: Path) -> dict[str, Any]:
    """Return the data of a page."""
    held: dict[str, Any] = json.loads(page.read_text().split('id="data">')[1].split("</script>")[0])
    return held


def test_the_environment_is_the_one_asked_for_else_the_one_of_the_file(tmp_path: Path) -> None:
    source = tmp_path / "walk.parquet"
    page = tmp_path / "page.html"
    write_episodes(source, [maze("move down\n", start=(1, 1))], {"env": {"layout": "umaze"}})
    goals = []
    for env in (None, {}, {"layout": "double_t_maze"}):
        write_view(source, page, env=env)
        goals.append(held_by(page)["tasks"]["maze_po"]["goal"])
    assert goals == [[3, 3], [3, 3], [8, 6]]


def test_a_map_that_only_the_file_names_is_not_read(tmp_path: Path) -> None:
    layout = tmp_path / "maze.txt"
    source = tmp_path / "walk.parquet"
    page = tmp_path / "page.html"
    layout.write_text("#####\n# G##\n#####\n")
    write_episodes(source, [maze("move down\n", start=(1, 1))], {"env": {"layout": str(layout)}})
    write_view(source, page)
    assert held_by(page)["tasks"]["maze_po"] == {"kind": ""}
    write_view(source, page, env={"layout": str(layout)})
    assert held_by(page)["tasks"]["maze_po"]["goal"] == [1, 2]


def test_values_are_those_of_the_first_episodes_that_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmrl.play.viewer.load_module", lambda run: SimpleNamespace(made_with={}))
    value = [[TokenValue("move up\n", 0.5, None, None)]]
    monkeypatch.setattr("lmrl.play.viewer.token_values", lambda module, episodes: (value for _ in episodes))
    write_episodes(tmp_path / "walks.parquet", [maze("move up\n")] * 4)
    for shown, valued, expected in ((None, 3, "012"), (2, 3, "01"), (3, 1, "0")):
        write_view(tmp_path / "walks.parquet", tmp_path / "page.html", tmp_path, episodes=shown, valued=valued)
        assert [*held_by(tmp_path / "page.html")["values"]] == [*expected]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    played = evaluate(make_policy("maze_fo", "optimal"), "maze_fo", 5)
    write_evaluation(played, Path("runs/maze_fo/optimal/evaluation"))
    assert main(["view", "runs/maze_fo/optimal", "--episodes", "3"]) == 0
    page = Path("runs/maze_fo/optimal/evaluation/episodes.html")
    assert capsys.readouterr().out == f"3 episodes written to {page}; open it in a browser\n"
    assert page.is_file()
    for words, message in (
        (["runs/maze_fo"], "has no evaluation/episodes.parquet; make it with: lmrl evaluate"),
        (["gone.parquet"], "gone.parquet: no such file"),
        ([f"{page.with_suffix('.parquet')}", "--out", "x.txt"], "out must be an .html file, got 'x.txt'"),
        ([f"{page.with_suffix('.parquet')}", "--valued", "0"], "valued must be at least 1, got 0"),
        ([f"{page.with_suffix('.parquet')}", "--run", "nowhere"], "there is no best.ckpt or last.ckpt in nowhere"),
    ):
        assert main(["view", *words]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(UserError, match="episodes must be at least 1, got 0"):
        write_view(page.with_suffix(".parquet"), page, episodes=0)


# -- in a browser -----------------------------------------------------------------------------------------------------

_READING = """
const log = [];
const rows = () => [...document.querySelectorAll(".row")].map((row) => Number(row.dataset.index));
const set = (id, value) => { const field = document.getElementById(id); field.value = value;
  field.dispatchEvent(new Event("input", { bubbles: true })); };
const press = (key) =>
  document.body.dispatchEvent(new window.KeyboardEvent("keydown", { key, bubbles: true }));
log.push(Number(document.body.dataset.ready), text("count"), rows().length < 60, rows().slice(0, 3));
set("turns-most", "3"); set("turns-least", "2");
const kept = text("count");
document.querySelector("[data-by=return]").click();
log.push(kept, rows()[0], document.querySelector("[data-by=return]").getAttribute("aria-label"));
document.querySelector("[data-by=return]").click();
log.push(rows()[0], document.querySelector("[data-by=return]").getAttribute("aria-label"));
set("ending", "0");
const solved = text("count");
set("turns-most", ""); set("turns-least", ""); set("ending", ""); set("words", "at position 1, 1 1.");
log.push(solved, text("count"));
set("words", "nothing says this");
log.push(text("count"), rows());
set("words", "");
document.querySelector("[data-by=number]").click();
document.getElementById("scroll").scrollTop = 1e6;
await new Promise((done) => setTimeout(done, 200));
log.push(rows()[rows().length - 1]);
document.querySelector(".row:last-child").click();
press("ArrowUp");
log.push(document.querySelector(".facts b").textContent, document.querySelector("output").textContent);
press("ArrowLeft");
log.push(document.querySelector("output").textContent, document.querySelectorAll(".picture line").length);
log.push(document.getElementById(document.getElementById("scroll").getAttribute("aria-activedescendant")).dataset.index);
return log;
"""


@pytest.mark.nightly
def test_ten_thousand_episodes_open_and_are_filtered_and_sorted(tmp_path: Path) -> None:
    some = list(read_episodes(generate("maze_fo", 500, 0, tmp_path / "maze.parquet", progress=False)))
    write_episodes(tmp_path / "many.parquet", some * 20)
    assert write_view(tmp_path / "many.parquet", tmp_path / "page.html") == 10_000
    held = held_by(tmp_path / "page.html")
    columns = held["episodes"]
    texts = held["texts"]
    log = in_browser(tmp_path / "page.html", _READING)
    assert log[0] < 30_000  # 0.4 s on two idle cores
    assert log[1:4] == ["10000 episodes", True, [0, 1, 2]]
    kept = [i for i in range(10_000) if 2 <= columns["turns"][i] <= 3]
    returns = columns["return"]
    assert log[4] == f"{len(kept)} of 10000 episodes"
    assert log[5:7] == [max(kept, key=lambda i: (returns[i], -i)), "return, descending"]
    assert log[7:9] == [min(kept, key=lambda i: (returns[i], i)), "return, ascending"]
    assert log[9] == f"{sum(columns['ending'][i] == 0 for i in kept)} of 10000 episodes"
    wanted = {number for number, text in enumerate(texts) if "at position 1, 1 1." in text}
    assert log[10] == f"{sum(not wanted.isdisjoint(said) for said in columns['said'])} of 10000 episodes"
    assert log[11:13] == ["0 of 10000 episodes", []]
    turns = columns["turns"][9998]
    assert log[13] == 9999
    assert log[14:16] == ["9998", f"turn {turns} of {turns}"]
    assert log[16:] == [f"turn {turns - 1} of {turns}", turns - 1, "9998"]


_PICTURES = """
const shown = [];
const all = (selector) => [...document.querySelectorAll(selector)];
for (const row of all(".row")) {
  row.click();
  shown.push(all(".tile").map((tile) => tile.className.slice(5) + tile.textContent).join(" "));
  shown.push(all(".picture rect").length, all("svg text[font-size='18']").length);
}
return [shown, all(".text").map((text) => text.textContent), String(window.pwned)];
"""


@pytest.mark.slow
def test_a_picture_that_no_browser_can_read_costs_only_its_own_task_the_drawing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_of = pages._text_of
    broken = "lmrl.envs.wordle:"
    monkeypatch.setattr(pages, "_text_of", lambda it: "const = ;" if it.startswith(broken) else text_of(it))
    word = Episode("wordle", ("Wordle:\n", "g g g g g\n"), ("c r a n e\n",), (0.0,), True, False)
    write_episodes(tmp_path / "two.parquet", [maze("move up\n"), word])
    write_view(tmp_path / "two.parquet", tmp_path / "page.html")
    drawn: list[int] = []
    with pytest.raises(AssertionError, match="Unexpected token"), opened() as tab:
        tab.goto((tmp_path / "page.html").as_uri())
        for row in (0, 1):
            tab.locator(".row").nth(row).click()
            drawn.append(tab.locator("#detail .text").count())
            drawn.append(tab.locator(".picture, .tile").count())
    assert drawn == [3, 1, 3, 0]


@pytest.mark.slow
def test_tiles_boards_and_maps_are_drawn_and_hostile_ones_are_not(tmp_path: Path) -> None:
    guesses = ("c r a n e\n", "<b>x</b>\n", "s l a t e\n")
    position = "8 / 5 R 2 / 4 K 3 / 8 / 2 k 5 / 8 / 8 / 4 Q 3   w   -   -   0   1\n"
    episodes = [
        Episode("wordle", ("Wordle:\n", "b y g b b\n", "\n", "<i> \n"), guesses, (-1.0,) * 3, True, False),
        Episode("endgames", (position, EVIL[1]), ("x\n",), (0.0,), True, False),
        Episode("endgames", (position, position), ("R f 3\n",), (0.0,), True, False),
        maze("move up\n"),
        maze("move up\n", start=(0, 0)),
        Episode(EVIL[0], (EVIL[0], EVIL[2]), (EVIL[1],), (0.0,), True, False),
    ]
    write_episodes(tmp_path / "odd.parquet", episodes)
    write_view(tmp_path / "odd.parquet", tmp_path / "page.html")
    shown, said, pwned = in_browser(tmp_path / "page.html", _PICTURES)
    assert shown[0] == "bc yr ga bn be x< xb x> xx x< xs xl xa xt xe"
    assert shown[1:4] == [0, 0, ""]
    # At the last turn there is no position; the first one had been drawn to see whether there is a board at all.
    assert shown[4:9] == [0, 0, "", 64, 4]
    assert shown[9:15] == ["", 1 + 26, 0, "", 0, 0]
    assert said == [EVIL[0], EVIL[1], EVIL[2]]
    assert pwned == "undefined"


_HEAT = """
const seen = {};
for (const name of ["A", "V", "Q", "p"]) {
  const choice = document.getElementById("measure");
  choice.value = name;
  choice.dispatchEvent(new Event("change"));
  seen[name] = [...document.querySelectorAll(".token")].map((token) => [token.textContent, token.style.background]);
}
return [seen, document.querySelector(".token").title];
"""


def minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


@pytest.mark.slow
def test_the_words_are_coloured_by_what_the_model_thinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [[[TokenValue("move", 0.25, -2.0, -3.0), TokenValue(" up\n", 1.0, -2.0, -1.0)]]]
    monkeypatch.setattr("lmrl.play.viewer.load_module", lambda run: SimpleNamespace(made_with={}))
    monkeypatch.setattr("lmrl.play.viewer.token_values", lambda module, episodes: values)
    write_episodes(tmp_path / "one.parquet", [maze("move up\n")])
    write_view(tmp_path / "one.parquet", tmp_path / "page.html", run=tmp_path)
    seen, title = in_browser(tmp_path / "page.html", _HEAT)
    words = {name: [text for text, _ in tokens] for name, tokens in seen.items()}
    assert words["A"] == [minus("move-1.00"), " up⏎1.00"]
    assert words["V"] == [minus("move-2.00"), minus(" up⏎-2.00")]
    assert words["Q"] == [minus("move-3.00"), minus(" up⏎-1.00")]
    assert words["p"] == ["move0.25", " up⏎1.00"]
    assert title == "A -1.000   V -2.000   Q -3.000   p 0.250"
    (worst, best), (low, high) = ([colour for _, colour in seen[name]] for name in ("A", "Q"))
    assert "rgb(217, 130, 43) 80%" in worst and "rgb(47, 134, 189) 80%" in best
    assert "0%" in low and "75%" in high
