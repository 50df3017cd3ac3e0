"""The games of the page, the server behind it, the command, and all of it in a browser where one is installed."""

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from lmrl.behaviours import make_policy
from lmrl.cli import main
from lmrl.commands.web_app import make_app
from lmrl.commands.web_game import Game, Order
from lmrl.commands.web_seat import Seat
from lmrl.envs.registration import make
from lmrl.errors import UserError
from lmrl.protocols import Policy, Reply, Request
from tests.browser import opened
from tests.evaluation.test_study_page import EVIL

# -- games ------------------------------------------------------------------------------------------------------------


def hidden_word(seed: int) -> str:
    return str(make("wordle").reset(seed=seed)[1]["start"]["word"])


def test_a_person_plays_wordle_turn_by_turn() -> None:
    game = Game(Order("wordle", seed=1))
    for guess in ("zzzzz", hidden_word(1)):
        assert not game.seats[0].over
        game.step(guess)
    (seat,) = game.state()["seats"]
    assert seat["said"] == ["Wordle:\n", "zzzzz\n", "\n", f"{hidden_word(1)}\n", "g g g g g\n"]
    facts = {
        name: seat[name] for name in ("person", "over", "return", "turns", "illegal", "ending", "rewards", "values")
    }
    assert facts == {
        "person": True,
        "over": True,
        "return": -1.0,
        "turns": 2,
        "illegal": 1,
        "ending": 0,
        "rewards": [-1.0, 0.0],
        "values": [None, None],
    }
    with pytest.raises(UserError, match="the game is over"):
        game.step("about")


def test_two_players_start_alike_and_move_together() -> None:
    game = Game(Order("maze_fo", ("optimal", "random"), seed=3, env=["max_steps=7"]))
    start = game.state()["seats"]
    assert start[0]["said"] == start[1]["said"]
    game.step(None)
    assert [seat["turns"] for seat in game.state()["seats"]] == [1, 1]
    while not all(seat.over for seat in game.seats):
        game.step(None)
    best, other = game.state()["seats"]
    distance = make("maze_fo").layout.distances()[tuple(best["path"][0])]  # type: ignore[attr-defined]
    assert (best["ending"], best["turns"], best["return"]) == (0, distance, 1.0 - distance)
    assert (best["path"][-1], best["picture"]["goal"]) == ((8, 6), [8, 6])
    assert (other["ending"], other["turns"], len(other["path"])) == (2, 8, 9)


def test_a_person_in_the_dark_is_shown_the_cells_around_until_the_end() -> None:
    game = Game(Order("maze_po", seed=3, env=["max_steps=1", "layout=umaze"]))
    (seat,) = game.state()["seats"]
    row, col = make("maze_po", layout="umaze").reset(seed=3)[1]["position"]
    rows = make("maze_po", layout="umaze").layout.rows  # type: ignore[attr-defined]
    around = f"{rows[row - 1][col]}{rows[row][col - 1]}{rows[row][col + 1]}{rows[row + 1][col]}"
    assert "".join(seat["picture"]["rows"]) == "?{}?{} {}?{}?".format(*around)
    assert (seat["picture"]["goal"], seat["path"]) == (None, [(1, 1)])
    game.step("jump")
    game.step("jump")
    (seat,) = game.state()["seats"]
    assert (seat["picture"]["rows"], seat["picture"]["goal"], seat["path"]) == ([*rows], [3, 3], [(row, col)] * 3)
    watched = Game(Order("maze_po", ("optimal",), seed=3)).state()["seats"][0]
    assert (watched["picture"]["goal"], watched["path"]) == ([8, 6], [watched["path"][0]])


def test_the_board_of_a_person_knows_the_moves_by_their_squares() -> None:
    game = Game(Order("chess", seed=0))
    moves = game.state()["seats"][0]["moves"]
    assert (len(moves), moves["g1f3"], moves["e2e4"]) == (20, "N f 3", "e 4")
    game.step(moves["g1f3"])
    (seat,) = game.state()["seats"]
    assert (seat["turns"], seat["illegal"]) == (1, 0)
    assert Game(Order("chess", ("random",))).state()["seats"][0]["moves"] == {}


def test_advice_and_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    game = Game(Order("maze_fo", seed=0, advisor="optimal"))
    assert game.advice() == {"turn": 0, "name": "optimal", "move": "move left", "value": None}
    game.step("move left")
    assert game.advice()["turn"] == 1
    assert Game(Order("maze_fo", seed=0)).advice() == {}
    assert Game(Order("maze_fo", ("random",), advisor="optimal")).advice() == {}
    assert main(["symbolic", "--algorithms", "dqn", "--steps", "2"]) == 0
    run = "runs/maze_fo/symbolic_dqn"
    game = Game(Order("maze_fo", ("human", run), advisor=run))
    value = game.advice()["value"]
    game.step("move up")
    mine, theirs = game.state()["seats"]
    assert isinstance(value, float) and theirs["values"] == [value] and mine["values"] == [None]


class Stuck:
    """A player that fails at its second turn."""

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        if requests[0].turn:
            raise UserError("no answer")
        return [Reply("move up\n")]


def test_if_one_player_fails_nobody_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    players: dict[str, Policy] = {"optimal": make_policy("maze_fo", "optimal"), "stuck": Stuck()}
    monkeypatch.setattr("lmrl.commands.web_game.named_policy", lambda name, *_: players[name])
    game = Game(Order("maze_fo", ("optimal", "stuck"), seed=5))
    game.step(None)
    with pytest.raises(UserError, match="no answer"):
        game.step(None)
    assert [seat["turns"] for seat in game.state()["seats"]] == [1, 1]


def test_an_environment_that_fails_is_brought_back_to_where_it_was() -> None:
    made = []

    def make_env() -> Any:
        made.append(make("maze_fo"))
        return made[-1]

    seat = Seat("maze_fo", make_env, 0, "you", None)
    seat.play(seat.move("move left"))
    before = seat.state()
    made[0].step = lambda action: 1 / 0
    with pytest.raises(ZeroDivisionError):
        seat.play(seat.move("move left"))
    assert (len(made), seat.state()) == (2, before)
    seat.play(seat.move("move left"))
    assert [seat.state()["said"][turn] for turn in (1, 3)] == ["move left\n"] * 2
    with pytest.raises(UserError, match="an action is needed"):
        seat.move(None)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (Order("nothing"), "unknown task 'nothing'"),
        (Order("wordle", ("nobody",)), "no policy 'nobody'"),
        (Order("wordle", ("human", "human")), "policy must be one player or two, at most one of them human"),
        (Order("wordle", ()), "policy must be one player or two"),
        (Order("wordle", ("random",) * 3), "policy must be one player or two"),
        (Order("wordle", seed=-1), "seed must be a whole number from 0, got -1"),
        (Order("wordle", advisor="human"), "the advisor must be a policy, not 'human'"),
        (Order("wordle", env=["vocab"]), "env takes arguments as name=value, got 'vocab'"),
        (Order("wordle", env=["words=3"]), "unknown argument of task wordle 'words'"),
    ],
)
def test_what_cannot_be_played(order: Order, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Game(order)


# -- the server -------------------------------------------------------------------------------------------------------

ORDER: dict[str, Any] = {"task": "wordle", "policies": ["human"], "seed": 1, "advisor": "", "env": []}


@contextmanager
def served(first: Order) -> Iterator[str]:
    """The address of a page, without its key, which is ``k``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(make_app(first, "k"), lifespan="off", log_level="critical"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(20)


def ask(address: str, body: Any = None) -> tuple[int, Any, Any]:
    """Status, headers, and what came: JSON if it is."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data), timeout=60) as answer:
            status, headers, text = answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, headers, text = error.code, error.headers, error.read().decode()
    return status, headers, json.loads(text) if text.startswith("{") else text


def test_the_server_answers_only_those_who_know_the_key_and_says_what_is_wrong() -> None:
    with served(Order("wordle", seed=1)) as root:
        for address in (root, f"{root}?key=", f"{root}?key=%C3%A4", f"{root}new?key=no"):
            status, _, text = ask(address, None if address.startswith(f"{root}?") else ORDER)
            assert (status, text) == (403, "Open the whole address that lmrl web printed.\n")
        status, headers, page = ask(f"{root}?key=k")
        assert status == 200 and "<title>lmrl</title>" in page
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "script-src 'sha256-" in policy
        assert headers["Referrer-Policy"] == "no-referrer"
        status, _, game = ask(f"{root}new?key=k", ORDER)
        assert (status, game["game"], game["seats"][0]["said"]) == (200, 1, ["Wordle:\n"])
        status, _, game = ask(f"{root}step?key=k", {"game": 1, "action": hidden_word(1)})
        assert (status, game["game"], game["seats"][0]["ending"]) == (200, 1, 0)
        for path, body, message in (
            ("new", b"{", "the request is not JSON"),
            ("new", [], "an order has the fields task, policies, seed, advisor, env, got []"),
            ("new", {**ORDER, "seed": "1"}, "seed must be a whole number, got '1'"),
            ("new", {**ORDER, "policies": [1]}, "policies must be a list of texts, got [1]"),
            ("new", {**ORDER, "task": "x"}, "unknown task 'x'"),
            ("step", {"game": 1, "action": "about"}, "the game is over"),
            ("step", {"game": 1, "action": 3}, "action must be a text, got 3"),
            ("step", {"game": 9}, "this game is no longer there"),
            ("advice", 3, "this game is no longer there"),
        ):
            status, _, told = ask(f"{root}{path}?key=k", body)
            assert status == 400 and told["error"].startswith(message), told
        for _ in range(8):
            _, _, game = ask(f"{root}new?key=k", ORDER)
        assert game["game"] == 9
        assert ask(f"{root}advice?key=k", {"game": 1})[0] == 400
        assert ask(f"{root}advice?key=k", {"game": 2})[::2] == (200, {})


def test_what_goes_wrong_inside_is_told_to_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmrl.commands.web_app.Game", lambda order: 1 / 0)
    with served(Order("wordle")) as root:
        assert ask(f"{root}new?key=k", ORDER)[::2] == (500, {"error": "ZeroDivisionError: division by zero"})


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ports, shown = [], []

    def run(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        ports.append(sockets[0].getsockname())
        raise KeyboardInterrupt  # as Ctrl-C does

    monkeypatch.setattr("uvicorn.Server.run", run)
    monkeypatch.setattr("webbrowser.open", shown.append)
    assert main(["web", "wordle", "--port", "0", "--policy", "random"]) == 0
    printed = capsys.readouterr().out.split()
    assert printed[:3] == ["wordle", "at", shown[0]] and "note:" not in printed
    assert shown[0].startswith(f"http://127.0.0.1:{ports[0][1]}/?key=") and len(shown[0].split("=")[1]) >= 20
    assert main(["web", "wordle", "--port", "0", "--no-browser", "--host", "0.0.0.0"]) == 0
    assert "note: whoever has this address" in capsys.readouterr().out
    assert len(shown) == 1 and ports[1][0] == "0.0.0.0"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for words, message in (
            (["wordle", "--port", str(taken.getsockname()[1])], "--port 0 takes any free one"),
            (["wordle", "--port", "99999999"], "cannot listen at host '127.0.0.1', port 99999999"),
            (["nothing"], "unknown task 'nothing'"),
            (["wordle", "--policy", "nobody"], "no policy 'nobody'"),
            (["wordle", "--advisor", "nobody"], "no policy 'nobody'"),
        ):
            assert main(["web", *words]) == 2
            assert message in capsys.readouterr().err
    assert len(ports) == 2


# -- in a browser -----------------------------------------------------------------------------------------------------


def typed(tab: Any, words: str, turn: int) -> None:
    tab.fill(".answer input", words)
    tab.press(".answer input", "Enter")
    tab.wait_for_selector(f"body[data-turns='{turn}']")


def order(tab: Any, task: str, mode: str, **fields: str) -> None:
    """Fill in the form and press its button; waits until the new game is there."""
    tab.evaluate("delete document.body.dataset.turns")
    tab.select_option("#task", task)
    tab.click(f"label:has([value={mode}]) span")
    for name, value in fields.items():
        tab.fill(f"#{name}", value)
    tab.click("text=Start")
    tab.wait_for_selector("body[data-turns]")


def texts(tab: Any, selector: str) -> list[str]:
    return [" ".join(words.split()) for words in tab.locator(selector).all_inner_texts()]


def test_wordle_to_its_end_in_the_page() -> None:
    word = hidden_word(1)
    with served(Order("wordle", seed=1, advisor="optimal")) as root, opened() as tab:
        tab.goto(f"{root}?key=k")
        tab.wait_for_selector("body[data-turns='0']")
        typed(tab, "zzzzz", 1)
        tab.fill(".answer input", word[:2])
        letters = [letter for letter in texts(tab, ".tiles .tile")]
        assert letters[:7] == ["Z"] * 5 + [*word[:2].upper()] and len(letters) == 30
        tab.click("text=Use it")
        advised = tab.input_value(".answer input")
        tab.press(".answer input", "Enter")
        tab.wait_for_selector("body[data-turns='2']")
        assert texts(tab, "li.own .text") == ["zzzzz", advised]
        typed(tab, word, 3)
        assert texts(tab, ".facts")[0] == "you return \N{MINUS SIGN}2 turn 3 illegal 1 solved"
        assert tab.locator(".tile.g").count() >= 10  # the row, and the letters below
        assert not tab.is_visible(".answer") and not tab.is_visible(".hint")
        tab.click("#back")
        assert texts(tab, ".facts")[0].startswith("you return \N{MINUS SIGN}2 turn 2 illegal 1")
        assert tab.is_disabled("#on") is False
        tab.click("text=Next seed")
        tab.wait_for_selector("body[data-turns='0']")
        assert tab.input_value("#seed") == "2" and tab.locator(".tiles .tile.o").count() == 30


def test_a_policy_is_watched_in_the_maze() -> None:
    with served(Order("maze_fo", ("optimal",), seed=3)) as root, opened() as tab:
        tab.goto(f"{root}?key=k")
        tab.select_option("#pace", "fast")
        tab.wait_for_selector(".facts .good")
        turns = int(tab.get_attribute("body", "data-turns"))
        assert texts(tab, "#where") == [f"turn {turns} of {turns}"]
        assert tab.locator(".picture line").count() == turns == tab.locator("li.own").count()
        assert tab.is_disabled("#play") and tab.is_disabled("#on")
        tab.click("#back")
        assert tab.locator(".picture line").count() == turns - 1
        assert tab.locator(".facts .good").count() == 0
        tab.fill("#turn", "0")
        assert tab.locator(".picture line").count() == 0 and tab.locator("li").count() == 1
        tab.click("#play")
        tab.wait_for_selector(".facts .good")


def test_two_policies_side_by_side_and_a_mistake_that_is_explained() -> None:
    with served(Order("maze_po", ("random", "optimal"), seed=3, env=["max_steps=5"])) as root, opened() as tab:
        tab.goto(f"{root}?key=k")
        tab.select_option("#pace", "fast")
        tab.wait_for_selector(".seat:nth-child(2) .good, .seat:nth-child(2) .bad")
        assert texts(tab, ".player") == ["random", "optimal"]
        first = [texts(tab, f".seat:nth-child({n}) li")[0] for n in (1, 2)]
        assert first[0] == first[1]
        tab.fill("#right", "nobody")
        tab.click("text=Start")
        tab.wait_for_selector("#problem:not(:empty)")
        assert texts(tab, "#problem")[0].startswith("no policy 'nobody': there is no such run folder")
        assert texts(tab, ".player") == ["random", "optimal"]


def test_moves_on_the_board_and_with_the_arrow_keys() -> None:
    with served(Order("chess", env=["opponent=random"])) as root, opened() as tab:
        tab.goto(f"{root}?key=k")
        tab.click("[data-square=g1]")
        assert sorted(tab.eval_on_selector_all(".to", "all => all.map(square => square.dataset.square)")) == [
            "f3",
            "h3",
        ]
        tab.click("[data-square=f3]")
        tab.wait_for_selector("body[data-turns='1']")
        assert texts(tab, "li.own .text") == ["N f 3"]
        order(tab, "maze_po", "play", env="")
        tab.keyboard.press("ArrowUp")
        tab.wait_for_selector("body[data-turns='1']")
        assert texts(tab, "li.own .text") == ["move up"]
        assert tab.locator(".picture rect").count() == 5


class Hostile:
    def act(self, requests: Sequence[Request]) -> list[Reply]:
        return [Reply(EVIL[request.turn % 3] + "\n") for request in requests]


def test_hostile_texts_of_people_and_models_stay_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmrl.commands.web_game.named_policy", lambda *_: Hostile())
    monkeypatch.setattr("lmrl.commands.web_game.named_adviser", lambda *_: Hostile())
    evil = Order("twenty_questions", ("human", EVIL[0]), advisor=EVIL[1], env=[])
    with served(evil) as root, opened() as tab:
        tab.goto(f"{root}?key=k")
        tab.wait_for_selector("body[data-turns='0']")
        for turn, text in enumerate(EVIL[:3], 1):
            typed(tab, text, turn)
        tab.wait_for_selector(".hint:not([hidden])")
        for seat in (1, 2):
            said = tab.locator(f".seat:nth-child({seat}) li.own .text").all_text_contents()
            assert said == list(EVIL[:3])
        assert tab.locator(".player").nth(1).text_content() == EVIL[0]
        assert EVIL[1] in tab.locator(".hint").first.text_content()
        assert tab.evaluate("String(window.pwned)") == "undefined"
        assert tab.locator("img, iframe, main h1, main script").count() == 0
        tab.evaluate("delete document.body.dataset.turns")
        tab.fill("#env", EVIL[1].replace(" ", "_"))
        tab.click("text=Start")
        tab.wait_for_selector("#problem:not(:empty)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_window_is_wide_enough_and_the_words_stand_out(scheme: str) -> None:
    window = {"viewport": {"width": 390, "height": 800}, "color_scheme": scheme}
    with served(Order("wordle")) as root, opened(**window) as tab:
        tab.goto(f"{root}?key=k")
        tab.wait_for_selector("body[data-turns='0']")
        for task, mode in (("wordle", "play"), ("endgames", "watch"), ("maze_fo", "compare"), ("car_dealer", "play")):
            order(
                tab,
                task,
                mode,
                **({} if mode == "play" else {"left": "random"}),
                **({"right": "random"} if mode == "compare" else {}),
            )
            assert tab.evaluate("document.documentElement.scrollWidth") == 390, task
        for ink, paper in (
            ("ink", "paper"),
            ("soft", "tint"),
            ("ink", "own"),
            ("soft", "own"),
            ("mark", "paper"),
            ("good", "paper"),
            ("paper", "act"),
        ):
            assert contrast(tab, ink, paper) >= 4.5, (ink, paper)


def contrast(tab: Any, ink: str, paper: str) -> float:
    """Of two colours of the page, as WCAG 2 has it."""
    shades = []
    for name in (ink, paper):
        code = tab.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim().slice(1)")
        wide = code if len(code) == 6 else "".join(2 * digit for digit in code)
        parts = [int(wide[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        shades.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(shades) + 0.05) / (min(shades) + 0.05)
