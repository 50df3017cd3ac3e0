"""Tests of the page of `lmrl web`: labels, contrast by day and by night, shared games, and games in a browser."""

import re
import threading
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from lmrl.checkpoints.zoo import zoo_policies
from lmrl.envs import registry
from lmrl.envs.registry import make, make_policy
from lmrl.errors import UserError
from lmrl.play.app import _page
from lmrl.play.game import Game, Offer, Order, listed_players, read_moves
from lmrl.types import Policy, Request
from tests.helpers.browser import accessibility_faults, contrast, opened
from tests.helpers.cases import cases
from tests.play.test_web import ORDER, ask, hidden_word, replace_policies, served, texts, typed

# -- the page ---------------------------------------------------------------------------------------------------------


class Fields(HTMLParser):
    """Collects the fields and buttons of a page, and whether each has a label for people who hear the page."""

    def __init__(self) -> None:
        super().__init__()
        self.named: dict[str, bool] = {}
        self._labels = 0
        self._button: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        self._labels += tag == "label"
        if tag in ("input", "select", "button"):
            name = own.get("id") or own.get("value") or f"{tag} {len(self.named)}"
            self.named[name] = bool(self._labels or own.get("aria-label"))
            self._button = name if tag == "button" else None

    def handle_data(self, data: str) -> None:
        if self._button is not None and re.search(r"\w", data):
            self.named[self._button] = True

    def handle_endtag(self, tag: str) -> None:
        self._labels -= tag == "label"
        if tag == "button":
            self._button = None


def page() -> str:
    return bytes(_page(Offer(Order("maze_fo"), Path("runs")))(None).body).decode()  # type: ignore[arg-type]


def test_all_that_can_be_filled_in_or_pressed_has_a_name() -> None:
    fields = Fields()
    fields.feed(page())
    assert {"task", "left", "right", "advisor", "seed", "env", "turn", "pace", "link", "copy", "back"} <= {
        *fields.named
    }
    assert [name for name, told in fields.named.items() if not told] == []


def colours(style: str) -> list[dict[str, str]]:
    """Return the named colours by day, and by night."""
    day, night = (block for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL) if "--paper" in block)
    found = [dict(re.findall(r"--(\w+): (#\w+)", block)) for block in (day, night)]
    return [found[0], {**found[0], **found[1]}]


def test_the_measure_of_contrast() -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.478, abs=1e-3)


@pytest.mark.parametrize("night", [False, True])
def test_words_stand_out(night: bool) -> None:
    named = colours(page())[night]
    pairs = [*product(("ink", "soft", "mark"), ("paper", "tint")), ("ink", "own"), ("soft", "own")]
    pairs += [("good", "paper"), ("paper", "act")]
    found = {pair: contrast(named[pair[0]], named[pair[1]]) for pair in pairs}
    tiles = re.findall(r"\.tile\.[gy] \{ background: (#\w+)", page())
    found |= {("#fff", ground): contrast("#fff", ground) for ground in (*tiles, named["blank"])}
    assert len(tiles) == 2
    assert {pair: ratio for pair, ratio in found.items() if ratio < 4.5} == {}


def test_what_is_offered_before_the_first_move(tmp_path: Path) -> None:
    (tmp_path / "wordle" / "bc").mkdir(parents=True)
    (tmp_path / "wordle" / "bc" / "best.ckpt").touch()
    run = str(tmp_path / "wordle" / "bc")
    assert listed_players("wordle", tmp_path) == {
        "scripted players": [*registry.policy_names("wordle")],
        "zoo": zoo_policies("wordle"),
        "runs": [run],
    }
    offer = Offer(Order("wordle", ("chat:x", run)), tmp_path)
    told = offer.describe()["tasks"]
    assert told["wordle"]["players"]["named on the command line"] == ["chat:x"]
    for name, guide in ((row.name, registry.guide(row.name)) for row in registry.BENCHMARK):
        shown = {"rules": guide.rules, "action": f"{guide.action} {guide.page}".strip(), "example": [*guide.example]}
        assert told[name]["guide"] == shown


# -- a person's game ---------------------------------------------------------------------------------------------------


def test_what_was_hidden_is_told_at_the_end_and_not_before() -> None:
    game = Game(Order("wordle", seed=1))
    word = hidden_word(1)
    game.step("zzzzz")
    (seat,) = game.state()["seats"]
    assert (seat["solution"], seat["notes"]) == ("", ["", "zzzzz is not in the list of 431 words."])
    assert word not in repr(game.state())
    game.step(word)
    assert game.state()["seats"][0]["solution"] == f"The word was {word}."


def test_a_game_of_chess_is_shown_in_san_beside_the_texts_that_policies_read() -> None:
    game = Game(Order("chess", seed=1))
    game.step("e4")
    game.step("N f 3")
    (seat,) = game.state()["seats"]
    assert seat["said"][1::2] == ["e4\n", "N f 3\n"]
    assert seat["shown"][1::2] == ["e4\n", "Nf3\n"]
    assert seat["said"][2].replace("   ", " ").startswith("r 1 b q k b n r / p p") and " " in seat["said"][2][:3]
    assert seat["shown"][2] == "r1bqkbnr/pppppppp/2n5/8/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 1 2\n"
    assert seat["notes"][1:] == ["You played e4. Black played Nc6.", "You played Nf3. Black played Nf6."]


@cases("task", [row.name for row in registry.BENCHMARK])
def test_an_illegal_text_is_said_to_be_one(task: str) -> None:
    game = Game(Order(task, seed=1))
    for typed_text in ("!!!", " "):
        game.step(typed_text)
    (seat,) = game.state()["seats"]
    assert seat["illegal"] == 2
    for said, note in zip(("!!!", "An empty line"), seat["notes"][1:], strict=True):
        assert re.match(f"{said} is (an illegal action|no action|no legal move|not in the list)", note), note


def test_a_text_that_is_illegal_when_time_is_up_is_said_to_be_one() -> None:
    game = Game(Order("maze_fo", seed=1, env=["max_steps=1"]))
    game.step("move up")
    game.step("!!!")
    assert game.state()["seats"][0]["notes"][2] == "Time is up, and !!! is no action."


def scripted_moves(task: str, seed: int) -> list[str]:
    """Return the actions of the random policy in an episode, to its end."""
    env = make(task)
    player = make_policy(task, "random")
    text, info = env.reset(seed=seed)
    observations = [text]
    actions = list[str]()
    over = False
    while not over:
        (reply,) = player.act([Request(0, seed, observations, actions, info=info)])
        text, _, terminated, truncated, info = env.step(reply.text)
        observations.append(text)
        actions.append(reply.text)
        over = terminated or truncated
    return [action.removesuffix("\n") for action in actions]


@cases("task", [row.name for row in registry.BENCHMARK])
def test_every_task_is_played_to_its_end_and_again_from_its_link(task: str) -> None:
    game = Game(Order(task, seed=3))
    moves = scripted_moves(task, 3)
    for move in moves:
        assert not game.seats[0].over
        game.step(move)
    (seat,) = game.state()["seats"]
    assert seat["over"] and len(seat["notes"]) == len(moves) + 1
    told = parse_qs(game.state()["link"], keep_blank_values=True)
    assert (told["task"], told["seed"], told["move"]) == ([task], ["3"], moves)
    again = Game(Order(told["task"][0], seed=int(told["seed"][0])))
    again.replay([*read_moves(told["move"]), "one more than there is room for"])
    assert again.state() == game.state()


def test_only_a_persons_own_game_has_a_link() -> None:
    assert Game(Order("wordle", ("random",))).state()["link"] == ""
    assert Game(Order("wordle", ("human", "random"))).state()["link"] == ""
    assert Game(Order("twenty_questions", env=["partner=scripted"])).state()["link"] == ""
    game = Game(Order("maze_fo", seed=2, env=["max_steps=7"]))
    game.step("go & see=é #\ud800")
    assert game.state()["link"] == "task=maze_fo&seed=2&env=max_steps%3D7&move=go+%26+see%3D%C3%A9+%23%3F"
    game.step("x" * 2_001)
    assert game.state()["link"] == ""


def test_a_link_may_not_use_what_the_command_line_named() -> None:
    first = Order("twenty_questions", env=["partner=scripted"])
    offer = Offer(first, Path("runs"))
    assert offer.check(first) is first
    with pytest.raises(UserError, match="the page may not set 'partner=scripted'"):
        offer.check(first, shared=True)


@cases("told", ["about", None, ["a", 1], [["a"]], {"0": "a"}, ["a"] * 501, ["a" * 2_001], ["a" * 2_000] * 9])
def test_moves_of_a_link_are_texts_and_not_too_many(told: Any) -> None:
    with pytest.raises(UserError, match=r"moves must be a list of texts|a shared game has at most 500 moves"):
        read_moves(told)


def test_a_shared_game_is_checked_like_any_other(tmp_path: Path) -> None:
    word = hidden_word(1)
    with served(Order("wordle"), tmp_path) as root:
        shared = {"order": ORDER, "moves": ["zzzzz", word, "after the end"]}
        assert ask(f"{root}replay", shared, token="")[0] == 403
        status, _, game = ask(f"{root}replay", shared)
        assert status == 200 and game["seats"][0]["turns"] == 2 and game["seats"][0]["over"]
        evil = {**ORDER, "env": [f"vocab={tmp_path}/words.txt"]}
        for body, message in (
            (ORDER, "a shared game has the fields order, moves"),
            ({"order": ORDER}, "a shared game has the fields order, moves"),
            ({"order": 3, "moves": []}, "an order has the fields"),
            ({"order": {**ORDER, "task": "../trap"}, "moves": []}, "unknown task"),
            ({"order": {**ORDER, "seed": None}, "moves": []}, "seed must be a whole number"),
            ({"order": {**ORDER, "seed": -1}, "moves": []}, "seed must be a whole number"),
            ({"order": {**ORDER, "policies": ["random"]}, "moves": []}, "a shared game has one player"),
            ({"order": {**ORDER, "policies": ["human", "random"]}, "moves": []}, "a shared game has one player"),
            ({"order": {**ORDER, "advisor": "optimal"}, "moves": []}, "a shared game has one player"),
            ({"order": evil, "moves": []}, "the page may not set"),
            ({"order": ORDER, "moves": "about"}, "moves must be a list of texts"),
            ({"order": ORDER, "moves": ["a"] * 501}, "a shared game has at most 500 moves"),
        ):
            status, _, told = ask(f"{root}replay", body)
            assert status == 400 and told["error"].startswith(message), told


# -- in a browser -----------------------------------------------------------------------------------------------------

# It returns whether the input field is completely in the window.
IN_VIEW = """() => {
    const { top, bottom, width } = document.querySelector(".answer input").getBoundingClientRect();
    return top >= 0 && bottom <= innerHeight && width > 0;
}"""
FOLLOW = "words => { delete document.body.dataset.turns; location.hash = words; }"


#: A board and a dialogue; every night all tasks play in both widths.
IN_EACH_CHANGE = (("chess", 1280), ("twenty_questions", 390))


def _mark_of(task: str, width: int) -> pytest.MarkDecorator:
    return pytest.mark.slow if (task, width) in IN_EACH_CHANGE else pytest.mark.nightly


@pytest.mark.parametrize(
    ("task", "width"),
    [
        pytest.param(task.name, width, marks=_mark_of(task.name, width))
        for task in registry.BENCHMARK
        for width in (390, 1280)
    ],
)
def test_every_task_in_the_page_to_its_end_and_from_its_link(task: str, width: int) -> None:
    moves = scripted_moves(task, 3)
    window = {"viewport": {"width": width, "height": 844}}
    game = Game(Order(task, seed=3))
    game.replay(moves[:-5])  # the last turns are typed, the others come by a link
    with served(Order("wordle")) as root, opened(**window) as tab:
        tab.goto(f"{root}#k")
        tab.wait_for_selector("body[data-turns='0']")
        assert tab.is_visible("#guide dl") and accessibility_faults(tab) == []
        tab.evaluate(FOLLOW, game.state()["link"])
        for turn, move in [*enumerate(moves)][-5:]:
            tab.wait_for_selector(f"body[data-turns='{turn}']")
            assert width > 390 or tab.evaluate(IN_VIEW), turn
            typed(tab, move, turn + 1)
            game.step(move)
        tab.wait_for_selector(".facts .good, .facts .bad")
        assert not tab.is_visible(".answer") and accessibility_faults(tab) == []
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        assert texts(tab, ".solution") == [game.state()["seats"][0]["solution"]]
        link, facts = tab.input_value("#link"), texts(tab, ".facts")
        assert link == f"{root}#{game.state()['link']}"
        tab.evaluate(FOLLOW, link.partition("#")[2])
        tab.wait_for_selector(f"body[data-turns='{len(moves)}']")
        assert texts(tab, ".facts") == facts
        tab.evaluate("location.hash = 'task=nothing&seed=1&move=x'")
        tab.wait_for_selector("#problem:not(:empty)")


@pytest.mark.nightly
@pytest.mark.parametrize("fails", [False, True])
def test_players_that_take_long_to_load_are_named_and_nothing_else_is_ordered(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = threading.Event()

    def load(name: str) -> Policy:
        assert loaded.wait(60)
        if fails:
            raise UserError("it is broken")
        return make_policy("maze_fo", "optimal")

    with served(Order("maze_fo", seed=3)) as root, opened() as tab:
        tab.goto(f"{root}#k")
        tab.wait_for_selector("body[data-turns='0']")
        assert tab.is_enabled("#start") and tab.inner_text("#loading") == ""
        replace_policies(monkeypatch, load)
        tab.click("label:has([value=watch]) span")
        tab.select_option("#left", "optimal")
        tab.click("#start")
        tab.wait_for_selector("#loading:not(:empty)")
        assert tab.inner_text("#loading[role=status]") == "loading optimal \u2026"
        assert tab.is_disabled("#start") and tab.is_disabled("#another") and accessibility_faults(tab) == []
        loaded.set()
        tab.wait_for_selector("#start:enabled")
        assert tab.inner_text("#loading") == "" and tab.is_enabled("#another")
        assert tab.evaluate("document.activeElement.id") == "start"
        assert texts(tab, "#problem") == (["it is broken"] if fails else [""])
        assert texts(tab, ".player") == (["you"] if fails else ["optimal"])
