"""The games of the page, the server behind it, the command, and all of it in a browser where one is installed."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn

from lmrl.cli import main
from lmrl.commands.web import _chat_settings, _leading_to
from lmrl.envs.registry import make, make_policy, register, task
from lmrl.envs.task import Task
from lmrl.errors import UserError
from lmrl.evaluation.loading import PolicySpec
from lmrl.play.access import listen
from lmrl.play.app import make_app
from lmrl.play.game import Game, Offer, Order
from lmrl.play.seat import Seat
from lmrl.types import LoadedPolicy, Policy, Reply, Request
from tests.contrib.study.test_page import EVIL
from tests.helpers.browser import accessibility_faults, contrast, opened
from tests.helpers.cases import cases
from tests.helpers.corridor import corridor_task
from tests.helpers.endpoints import Unruly, completion

# -- games ------------------------------------------------------------------------------------------------------------


def hidden_word(seed: int) -> str:
    return str(make("wordle").reset(seed=seed)[1]["start"]["word"])


def test_a_person_is_told_once_that_a_guess_would_be_wasted() -> None:
    game = Game(Order("wordle", seed=1))
    for typed in ("zzzzz", "yyyyy", "zzzzz"):
        with pytest.raises(UserError, match=f"{typed} is not in the list of 431 words"):
            game.check_slip(typed)
    game.check_slip("zzzzz")
    game.check_slip(hidden_word(1))
    Game(Order("wordle", policies=("optimal",))).check_slip(None)


def test_games_with_the_same_policy_share_its_weights(bc_run: str) -> None:
    games = [Game(Order("maze_fo", (bc_run,), seed=seed, advisor=bc_run)) for seed in range(2)]
    modules = {id(game.seats[0]._loaded.module) for game in games if game.seats[0]._loaded is not None}
    modules |= {id(game._advisor.module) for game in games if game._advisor is not None}
    assert len(modules) == 1


def test_games_share_their_chat_models_and_partners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMRL_DATA", str(tmp_path))
    loaded: list[str] = []

    class Model:
        def __init__(self, path: str, **settings: Any) -> None:
            loaded.append(path)

        def describe(self) -> dict[str, Any]:
            return {}

    monkeypatch.setattr("lmrl.policies.chat.LocalChat", Model)
    monkeypatch.setattr("lmrl.partners.lm.LMPartner", Model)
    (tmp_path / "model").mkdir()
    env = [f"partner=lm:{tmp_path / 'model'}"]
    order = Order("twenty_questions", (f"local:{tmp_path / 'model'}", "human"), env=env, advisor=f"local:{tmp_path}")
    games = [Game(replace(order, seed=seed), {"examples": 0}) for seed in range(2)]
    assert loaded == [str(tmp_path / "model"), str(tmp_path), str(tmp_path / "model")]
    assert games[0].seats[0]._make_env().partner is games[1].seats[0]._make_env().partner
    # A model that was trained anew is another one.
    (tmp_path / "model" / "best").mkdir()
    Game(order, {"examples": 0})
    assert len(loaded) == 5


def test_a_task_from_outside_is_on_the_page() -> None:
    """Those of servers and of TextArena are in no list of tasks."""
    with corridor_task():
        register(task("corridor"), listed=False)
        offer = Offer(Order("corridor"), Path("runs"))
        assert "corridor" in offer.describe()["tasks"]
        with served(Order("corridor")) as url, urllib.request.urlopen(url) as page:
            assert "corridor" in page.read().decode()


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
    distance = make("maze_fo").layout.distances()[tuple(best["states"][0])]  # type: ignore[attr-defined]
    assert (best["ending"], best["turns"], best["return"]) == (0, distance, 1.0 - distance)
    assert (best["states"][-1], best["picture"]["goal"]) == ((8, 6), [8, 6])
    assert (other["ending"], other["turns"], len(other["states"])) == (2, 8, 9)


def test_a_person_in_the_dark_is_shown_the_cells_around_until_the_end() -> None:
    game = Game(Order("maze_po", seed=3, env=["max_steps=1", "layout=umaze"]))
    (seat,) = game.state()["seats"]
    row, col = make("maze_po", layout="umaze").reset(seed=3)[1]["position"]
    rows = make("maze_po", layout="umaze").layout.rows  # type: ignore[attr-defined]
    around = f"{rows[row - 1][col]}{rows[row][col - 1]}{rows[row][col + 1]}{rows[row + 1][col]}"
    assert "".join(seat["picture"]["rows"]) == "?{}?{} {}?{}?".format(*around)
    assert (seat["picture"]["goal"], seat["states"]) == (None, [(1, 1)])
    game.step("jump")
    game.step("jump")
    (seat,) = game.state()["seats"]
    assert (seat["picture"]["rows"], seat["picture"]["goal"], seat["states"]) == ([*rows], [3, 3], [(row, col)] * 3)
    watched = Game(Order("maze_po", ("optimal",), seed=3)).state()["seats"][0]
    assert (watched["picture"]["goal"], watched["states"]) == ([8, 6], [watched["states"][0]])


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
    assert game.advice() == {"turn": 0, "name": "optimal", "move": "move left", "value": None, "words": None}
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


def test_the_words_of_a_policy_with_values_have_theirs() -> None:
    name = "zoo:maze_fo/ilql"
    game = Game(Order("maze_fo", (name, "optimal"), seed=5))
    for _ in range(3):
        game.step(None)
    theirs, scripted = game.state()["seats"]
    game.step(None)
    assert game.state()["seats"][0]["words"][:3] == theirs["words"] and scripted["words"] == [None] * 3
    for turn, words in enumerate(theirs["words"]):
        assert "".join(text for text, *_ in words) == theirs["said"][2 * turn + 1]
        assert words[0][2] == pytest.approx(theirs["values"][turn], abs=2e-3)  # V before the first token
        assert all(0 <= probability <= 1 and q < 0 for _, probability, _, q in words)
    # Advice has the values that the action has once it is played; an odd text before it does not matter.
    for typed_before in ([], ["jump \u2603"]):
        asked = Game(Order("maze_fo", advisor=name, seed=5))
        for text in typed_before:
            asked.step(text)
        assert asked.advice()["words"] == theirs["words"][0]
        assert asked.state()["seats"][0]["words"] == [None] * len(typed_before)


def test_a_policy_without_values_over_its_tokens_has_words_without_them() -> None:
    for name in ("zoo:maze_fo/bc", "zoo:maze_fo/ppo"):  # PPO has V of the turn
        game = Game(Order("maze_fo", (name,), seed=5))
        game.step(None)
        assert game.state()["seats"][0]["words"] == [None]


class Stuck:
    """A player that fails at its second turn."""

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        if requests[0].turn:
            raise UserError("no answer")
        return [Reply("move up\n")]


def replace_policies(monkeypatch: pytest.MonkeyPatch, load: Callable[[str], Policy]) -> None:
    """Let every name but ``human`` stand for the policy that ``load(name)`` returns."""

    def parse(name: str, task: Task) -> PolicySpec:
        return PolicySpec(name, "human" if name == "human" else "scripted", task)

    monkeypatch.setattr(PolicySpec, "parse", parse)
    monkeypatch.setattr(PolicySpec, "load", lambda spec, *_, **__: LoadedPolicy(load(spec.name)))


def test_if_one_player_fails_nobody_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    policies: dict[str, Policy] = {"optimal": make_policy("maze_fo", "optimal"), "stuck": Stuck()}
    replace_policies(monkeypatch, policies.__getitem__)
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


def test_a_game_ends_that_cannot_be_brought_back() -> None:
    """As where the partner of a dialogue stays away."""
    made = [make("maze_fo")]
    seat = Seat("maze_fo", made.pop, 0, "you", None)
    seat.play(seat.move("move left"))
    seat._slot.env.step = lambda action: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(ZeroDivisionError):
        seat.play(seat.move("move left"))
    assert seat.over


@cases(
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
def served(first: Order, runs: Path = Path("runs")) -> Iterator[str]:
    """Serve a page whose token is ``k``, and yield its address."""
    with listen("127.0.0.1", 0) as listener:
        app = make_app(Offer(first, runs), "k", ["here"])
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(20)


def ask(address: str, body: Any = None, token: str = "k", **headers: str) -> tuple[int, Any, Any]:
    """Return the status, the headers and the answer, parsed if it is JSON."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    named = {"content-type": "application/json", "x-lmrl-session": token, **headers}
    named = {name.replace("_", "-"): value for name, value in named.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, named), timeout=60) as answer:
            status = answer.status
            came = answer.headers
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        status = error.code
        came = error.headers
        text = error.read().decode()
    return status, came, json.loads(text) if text.startswith("{") else text


CLOSED = {"error": "Open the whole address that lmrl web printed."}


def test_only_who_has_the_token_is_answered_and_told_what_is_wrong() -> None:
    with served(Order("wordle", seed=1)) as root:
        # The page itself is no secret: it has neither order nor runs.
        status, headers, page = ask(root, token="")
        assert status == 200 and "<title>lmrl</title>" in page and "car_dealer" in page
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "script-src 'sha256-" in policy
        for path in ("offer", "new", "step", "advice"):
            for token in ("", "no", "\xe4"):
                assert ask(f"{root}{path}?key=k", ORDER, token)[::2] == (403, CLOSED)
        for body in ({"key": "no"}, {"key": ["k"]}, {}, [], "k"):
            assert ask(f"{root}open", body, "")[::2] == (403, CLOSED)
        assert ask(f"{root}open", {"key": "k"}, "")[::2] == (200, {"session": "k"})
        assert ask(f"{root}offer", {})[2]["first"]["seed"] == 1
        status, headers, game = ask(f"{root}new", ORDER)
        assert (status, game["game"], game["seats"][0]["said"]) == (200, 1, ["Wordle:\n"])
        assert "Set-Cookie" not in headers
        status, _, game = ask(f"{root}step", {"game": 1, "action": hidden_word(1)})
        assert (status, game["game"], game["seats"][0]["ending"]) == (200, 1, 0)
        for path, body, message in (
            ("new", b"{", "the request is not JSON"),
            ("new", b"[" * 60_000, "the request is not JSON"),
            ("new", b"\xff\x00", "the request is not JSON"),
            ("new", b" " * 70_000, "the request is longer than 65536 bytes"),
            ("new", [], "an order has the fields task, policies, seed, advisor, env, got []"),
            ("new", {**ORDER, "seed": "1"}, "seed must be a whole number, got '1'"),
            ("new", {**ORDER, "seed": -1}, "seed must be a whole number from 0, got -1"),
            ("new", {**ORDER, "seed": 10**300}, "seed must be at most 9007199254740992, got 1e+300"),
            ("new", {**ORDER, "seed": 10**400}, "seed must be at most 9007199254740992, got a number of 401 digits"),
            ("new", {**ORDER, "policies": [1]}, "policies must be a list of texts, got [1]"),
            ("new", {**ORDER, "task": "x"}, "unknown task 'x'"),
            ("step", {"game": 1, "action": "about"}, "the game is over"),
            ("step", {"game": 1, "action": 3}, "action must be a text, got 3"),
            ("step", {"game": 9}, "this game is no longer there"),
            ("advice", 3, "this game is no longer there"),
        ):
            status, _, told = ask(f"{root}{path}", body)
            assert status == 400 and told["error"].startswith(message), told


def test_the_game_that_was_not_played_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmrl.play.app._MOST_GAMES", 3)
    with served(Order("wordle")) as root:
        games = [ask(f"{root}new", ORDER)[2]["game"] for _ in range(3)]
        assert ask(f"{root}advice", {"game": games[0]})[::2] == (200, {})
        games.append(ask(f"{root}new", ORDER)[2]["game"])
        assert [ask(f"{root}advice", {"game": game})[0] for game in games] == [200, 400, 200, 200]


@cases(
    ("headers", "answered"),
    [
        ({"host": "localhost:9000"}, True),  # as a forwarded port has it
        ({"host": "[::1]:8765"}, True),
        ({"host": "192.168.0.7"}, True),
        ({"host": "HERE:8765", "origin": "http://here:8765"}, True),
        ({"host": "evil.example:8765"}, False),
        ({"host": "127.0.0.1.evil.example"}, False),
        ({"host": "[::1"}, False),
        ({"host": "localhost", "origin": "http://localhost"}, True),
        ({"host": "localhost", "origin": "http://localhost:81"}, False),
        ({"host": "localhost", "origin": "http://evil.example"}, False),
        ({"host": "localhost", "origin": "null"}, False),
        ({"content_type": "text/plain"}, False),  # what a form of any page may send
    ],
)
def test_pages_from_elsewhere_are_not_answered(headers: dict[str, str], answered: bool) -> None:
    with served(Order("wordle")) as root:
        assert (ask(f"{root}offer", {}, **headers)[0] == 200) is answered


@contextmanager
def watched(*places: str) -> Iterator[list[tuple[str, str]]]:
    """Record what this process opens, lists, runs and imports in the context, if it names one of the places."""
    seen: list[tuple[str, str]] = []
    _watchers.append((places, seen))
    if len(_watchers) == 1 and not _hooked:
        _hooked.append(True)
        sys.addaudithook(_audit)
    try:
        yield seen
    finally:
        _watchers.pop()


_watchers: list[tuple[tuple[str, ...], list[tuple[str, str]]]] = []
_hooked: list[bool] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    for places, seen in _watchers:
        if event.split(".")[0] in ("open", "import", "subprocess", "os", "exec", "compile", "socket"):
            told = repr(arguments)
            seen += [(event, told) for place in places if place in told]


def test_no_request_chooses_a_path_a_program_a_module_or_an_endpoint(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    runs = tmp_path / "runs"
    path = str(trap)
    run = runs / "wordle" / "mine"
    for name in ("trap.ckpt", "config.json", "double.txt"):
        (tmp_path / name).write_text("{}")
    players = [path, f"{path}.ckpt", str(tmp_path), f"local:{tmp_path}", "chat:trap", f"lm:{tmp_path}", "os:system"]
    players += [str(run / ".." / ".." / ".." / "trap.ckpt"), "../trap", "runs/wordle/mine/trap", "human\0", ""]
    words = [f"engine_path={path}", f"opponent=stockfish engine_path={path}", "opponent=stockfish"]
    arguments = [
        *(("chess", word.split()) for word in (*words, f"opponent={path}", f"render_mode={path}")),
        *(("endgames", word.split()) for word in (*words, f"piece_sets={path}")),
        *(
            ("wordle", [word])
            for word in (f"vocab={path}", "vocab=[1,2]", "vocab=&a", "vocab=", "__class__=1", "self=1")
        ),
        *(("wordle", [word]) for word in ("vocab=${oc.env:HOME}", "counted=${oc.env:HOME}", "bad_word_reward=1e400")),
        *(
            ("maze_fo", [word])
            for word in (f"layout={path}", f"layout={tmp_path}/double.txt", "layout.rows=1", "max_steps=x")
        ),
        *(("twenty_questions", [f"partner={name}"]) for name in (f"lm:{path}", "chat:trap", "trap.module:Partner")),
        *(("twenty_questions", [f"partner.{name}"]) for name in ("name=chat:trap", "base_url=http://trap")),
    ]
    orders = [{**ORDER, "env": words, "task": task} for task, words in arguments]
    for name in players:
        orders += [{**ORDER, "policies": [name]}, {**ORDER, "policies": ["human", name]}]
        orders += [{**ORDER, "advisor": name}] if name else []
    orders += [{**ORDER, "task": name} for name in (path, "trap:Task", "../trap")]
    with served(Order("wordle"), runs) as root, watched("trap", "double.txt") as seen:
        for order in orders:
            status, _, told = ask(f"{root}new", order)
            assert status == 400 and re.match(
                "unknown player|unknown task|unknown argument|the page may not set|env takes", told["error"]
            )
    assert not seen and not (tmp_path / "sprung").exists()


def test_what_the_page_may_choose(tmp_path: Path) -> None:
    for name in ("wordle/done/best.ckpt", "wordle/begun/log.txt", "chess/done/last.ckpt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    # What the command line names may be chosen, with its arguments word for word.
    first = Order("chess", ("human", "chat:x"), 0, "runs/best", ("opponent=stockfish", "engine_path=/opt/engine"))
    offer = Offer(first, tmp_path)
    assert offer.check(first) is first
    assert [*offer.players("wordle")][-3:] == [str(tmp_path / "wordle" / "done"), "chat:x", "runs/best"]
    assert {"random", "optimal"} <= {*offer.players("wordle")} and "human" not in offer.players("wordle")
    for order in (
        Order("maze_po", ("random", "human"), env=["layout=umaze", "max_steps=5", "reward=illegal_penalty"]),
        Order("wordle", (str(tmp_path / "wordle" / "done"),), advisor="chat:x", env=["vocab=null", "counted=true"]),
        Order("wordle", env=["bad_word_reward=-2.5"]),
        Order("chess", env=["opponent=alphabeta", "depth=2"]),
        Order("endgames", env=["piece_sets=kQK"]),
        Order("twenty_questions", env=["noise=0.25", "deterministic=false"]),
    ):
        assert offer.check(order) is order
        if "done" not in "".join(order.policies) and not order.advisor:
            Game(order).close()
    for order in (
        Order("chess", env=["engine_path=/opt/other"]),
        Order("endgames", env=["engine_path=/opt/engine"]),
        Order("wordle", (str(tmp_path / "wordle" / "begun"),)),
        Order("wordle", (str(tmp_path / "chess" / "done"),)),
    ):
        with pytest.raises(UserError, match="named on the command line"):
            offer.check(order)


@pytest.mark.parametrize("word", ["foo=1", "foo=bar", "foo.bar=1"])
def test_an_unknown_argument_is_told_as_in_the_terminal(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "wordle", "--env", word]) == 2
    (told,) = re.findall(r"error: (unknown argument of task wordle 'foo'; known: .*vocab.*)\n", capsys.readouterr().err)
    with pytest.raises(UserError) as error:
        Offer(Order("wordle"), Path("runs")).check(Order("wordle", env=[word]))
    assert str(error.value) == told
    with pytest.raises(UserError, match="the page may not set 'vocab=/etc/words'"):
        Offer(Order("wordle"), Path("runs")).check(Order("wordle", env=["vocab=/etc/words"]))


def test_the_games_of_a_page_have_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai", reason="needs openai: pip install 'lmrl[chat]'")
    monkeypatch.setenv("LMRL_DATA", str(tmp_path))
    first = Order("maze_fo", ("chat:x",))
    up = completion('{"action": "move up"}')
    with Unruly(*[up] * 9) as server:
        chat = _chat_settings(first, [f"base_url={server.url}", "cache=false", "budget_requests=3"])
        for turns in (2, 1):
            game = Game(first, chat)
            for _ in range(turns):
                game.step(None)
        with pytest.raises(UserError, match="budget of 3 requests"):
            game.step(None)
        assert game.state()["seats"][0]["turns"] == 1


def test_a_page_that_is_told_to_end_leaves_no_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lmrl", "web", "wordle", "--port", "0", "--no-browser"]
    settings = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        root = process.stdout.readline().split()[-1].partition("#")[0]
        while not list(tmp_path.glob("lmrl-*")):
            time.sleep(0.01)
        with suppress(OSError):
            ask(root)
        process.terminate()
        assert process.wait(20) == 143
        assert "Traceback" not in process.stderr.read()
    assert not list(tmp_path.iterdir())


def test_what_goes_wrong_inside_is_told_to_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmrl.play.app.Game", lambda *_: 1 / 0)
    with served(Order("wordle")) as root:
        assert ask(f"{root}new", ORDER)[::2] == (500, {"error": "ZeroDivisionError: division by zero"})


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ports = []
    shown = list[str]()
    printed = list[str]()
    leading = list[str]()

    def run(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        ports.append(sockets[0].getsockname())
        raise KeyboardInterrupt  # as Ctrl-C does

    monkeypatch.setattr("uvicorn.Server.run", run)

    def show(address: str) -> bool:
        """Check that other users see only the path of a file that they cannot read."""
        page = Path(urlsplit(address).path)
        assert (page.stat().st_mode & 0o777, page.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        leading.append(page.read_text())
        shown.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", show)
    assert main(["web", "wordle", "--port", "0", "--policy", "random"]) == 0
    printed += capsys.readouterr().out.split()
    assert printed[:2] == ["wordle", "at"] and "note:" not in printed
    place, _, key = printed[2].partition("#")
    assert place == f"http://127.0.0.1:{ports[0][1]}/" and len(key) >= 20
    (led,) = re.findall(r"url=(.*?)\"", leading[0])
    assert led == printed[2]
    assert re.fullmatch(r"file://[\w/.-]+/lmrl\.html", shown[0]) and not Path(urlsplit(shown[0]).path).exists()
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
            (["wordle", "--chat", "timeout=3"], "chat can be set for a chat model only"),
            (["wordle", "--policy", "chat:x", "--chat", "base_url=http://x", "timeout=-3"], "timeout must be above 0"),
        ):
            assert main(["web", *words]) == 2
            assert message in capsys.readouterr().err
    assert len(ports) == 2


@pytest.mark.parametrize(
    ("words", "played"),
    [
        (["--policy", "zoo:maze_fo/ilql", "--advisor", "optimal"], "maze_fo --policy zoo:maze_fo/ilql"),
        (["maze_fo", "--policy", "human", "random"], "maze_fo --policy random"),
        (["maze_fo", "--advisor", "optimal"], "maze_fo --advisor optimal"),
        (["maze_fo"], "maze_fo"),
    ],
)
def test_where_no_browser_can_be_opened_the_terminal_is_named(
    words: list[str], played: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: None)
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    assert main(["web", *words, "--port", "0"]) == 0
    first, _, last = capsys.readouterr().out.splitlines()
    address = first.removeprefix("maze_fo at ")
    assert last == (
        f"no browser could be opened here: open {address} in one, or play in the terminal: lmrl play {played}"
    )
    assert main(["web", *words, "--port", "0", "--no-browser"]) == 0
    assert "no browser" not in capsys.readouterr().out


# -- in a browser -----------------------------------------------------------------------------------------------------


def typed(tab: Any, words: str, turn: int) -> None:
    tab.fill(".answer input", words)
    tab.press(".answer input", "Enter")
    tab.wait_for_selector(f"body[data-turns='{turn}']")


def order(tab: Any, task: str, mode: str, **fields: str) -> None:
    """Fill in the form, press its button, and wait until the new game is there."""
    tab.evaluate("delete document.body.dataset.turns")
    tab.evaluate("document.getElementById('choose').open = true")
    tab.select_option("#task", task)
    tab.click(f"label:has([value={mode}]) span")
    for name, value in fields.items():
        (tab.select_option if name in ("left", "right", "advisor") else tab.fill)(f"#{name}", value)
    tab.click("text=Start")
    tab.wait_for_selector("body[data-turns]")


def texts(tab: Any, selector: str) -> list[str]:
    return [" ".join(words.split()) for words in tab.locator(selector).all_inner_texts()]


@pytest.mark.parametrize(
    ("task", "policy", "count"),
    [("wordle", "human", 431), ("chess", "human", 20), ("maze_fo", "human", 0), ("wordle", "random", 0)],
)
def test_the_page_lists_what_can_be_typed_first(task: str, policy: str, count: int) -> None:
    with served(Order(task)) as root:
        _, _, game = ask(f"{root}new", {**ORDER, "task": task, "policies": [policy]})
    assert len(game["first_moves"]) == count


@pytest.mark.slow
def test_a_reader_finds_the_words_of_wordle_by_keyboard() -> None:
    with served(Order("wordle", seed=1)) as root, opened(viewport={"width": 390, "height": 800}) as tab:
        tab.goto(f"{root}#k")
        tab.wait_for_selector("body[data-turns='0']")
        assert texts(tab, "#listed summary") == ["What you can type first (431)"]
        assert not tab.locator("#listed div").is_visible()
        tab.focus("#listed summary")
        tab.keyboard.press("Enter")
        assert texts(tab, "#listed div")[0].startswith("about actor adopt")
        assert accessibility_faults(tab) == []
        order(tab, "maze_fo", "play")
        assert not tab.locator("#listed").is_visible()


@pytest.mark.slow
def test_wordle_to_its_end_in_the_page() -> None:
    word = hidden_word(1)
    with served(Order("wordle", seed=1, advisor="optimal")) as root, opened() as tab:
        tab.goto(f"{root}#k")
        tab.wait_for_selector("body[data-turns='0']")
        tab.fill(".answer input", "zzzzz")
        tab.press(".answer input", "Enter")
        tab.wait_for_selector("#problem:not(:empty)")
        assert texts(tab, "#problem")[0].startswith("zzzzz is not in the list")
        assert tab.get_attribute("body", "data-turns") == "0"
        typed(tab, "zzzzz", 1)  # once more: it is played
        assert texts(tab, "#problem") == [""]
        tab.fill(".answer input", word[:2])
        letters = [letter for letter in texts(tab, ".tiles .tile")]
        assert letters[:7] == ["Z"] * 5 + [*word[:2].upper()] and len(letters) == 30
        tab.click("text=Use it")
        advised = tab.input_value(".answer input")
        tab.press(".answer input", "Enter")
        tab.wait_for_selector("body[data-turns='2']")
        assert texts(tab, "li.own .text") == ["zzzzz", advised]
        typed(tab, word, 3)
        assert texts(tab, ".facts")[0] == "you return \N{MINUS SIGN}2 last reward 0 turn 3 illegal 1 solved"
        assert tab.locator(".tile.g").count() >= 10  # the row, and the letters below
        assert not tab.is_visible(".answer") and not tab.is_visible(".hint")
        tab.click("#back")
        assert texts(tab, ".facts")[0].startswith(
            "you return \N{MINUS SIGN}2 last reward \N{MINUS SIGN}1 turn 2 illegal 1"
        )
        assert tab.is_disabled("#on") is False
        tab.click("text=Next seed")
        tab.wait_for_selector("body[data-turns='0']")
        assert tab.input_value("#seed") == "2" and tab.locator(".tiles .tile.o").count() == 30


@pytest.mark.slow
def test_the_browser_is_led_to_the_page_and_keeps_the_token(tmp_path: Path) -> None:
    with served(Order("wordle", seed=1)) as root, opened() as tab:
        tab.goto(_leading_to(f"{root}#k", tmp_path))
        tab.wait_for_selector("body[data-turns='0']")
        assert tab.url == root  # the token is neither shown nor in the history
        tab.reload()
        tab.wait_for_selector("body[data-turns='0']")
        other = tab.context.new_page()
        other.goto(root)
        other.wait_for_selector("#problem:not(:empty)")
        assert texts(other, "#problem") == [CLOSED["error"]]
        assert other.locator("#seats > *").count() == 0
        other.evaluate("location.hash = 'wrong'")
        other.wait_for_function("location.hash === ''")
        other.evaluate("location.hash = 'k'")
        other.wait_for_selector("body[data-turns='0']")


@pytest.mark.nightly
def test_the_words_of_a_watched_policy_and_of_advice_show_their_values() -> None:
    name = "zoo:maze_fo/ilql"
    first = Order("maze_fo", (name,), seed=5, advisor=name)
    Game(first).step(None)  # imports are done now, so that the page does not wait for them
    with served(first) as root, opened() as tab:
        tab.goto(f"{root}#k")
        tab.wait_for_selector(".facts .good")
        assert [text.split()[0] for text in texts(tab, "li.own .token")[:3]] == ["move", "right", "\u23ce"]
        tokens = tab.locator("li.own .token")
        assert tokens.count() == 3 * tab.locator("li.own").count()
        assert "color-mix" in tokens.nth(1).get_attribute("style")
        assert re.fullmatch(r"A 2\.\d+   V -11\.\d+   Q -8\.\d+   p [01]\.\d+", tokens.nth(1).get_attribute("title"))
        minus = "\N{MINUS SIGN}"
        legend = f"over the words: advantage Q {minus} V; V, Q and probability when pointed at"
        assert texts(tab, ".said .words") == [legend]
        assert accessibility_faults(tab) == []
        tab.check("[value=play]", force=True)
        tab.click("#order button.main")
        tab.wait_for_selector(".hint .token")
        assert tab.locator(".hint .token").count() == 3 and tab.locator("li .token").count() == 0


@pytest.mark.slow
def test_a_policy_is_watched_in_the_maze() -> None:
    with served(Order("maze_fo", ("optimal",), seed=3)) as root, opened() as tab:
        tab.goto(f"{root}#k")
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


@pytest.mark.slow
def test_two_policies_side_by_side_and_a_mistake_that_is_explained() -> None:
    with served(Order("maze_po", ("random", "optimal"), seed=3, env=["max_steps=5"])) as root, opened() as tab:
        tab.goto(f"{root}#k")
        tab.select_option("#pace", "fast")
        tab.wait_for_selector(".seat:nth-child(2) .good, .seat:nth-child(2) .bad")
        assert texts(tab, ".player") == ["random", "optimal"]
        first = [texts(tab, f".seat:nth-child({n}) li")[0] for n in (1, 2)]
        assert first[0] == first[1]
        assert tab.eval_on_selector_all("#right option", "all => all.map(one => one.value)")[:2] == ["human", "random"]
        tab.fill("#env", "max_steps=-5")
        tab.click("text=Start")
        tab.wait_for_selector("#problem:not(:empty)")
        assert texts(tab, "#problem")[0].startswith("max_steps must be ")
        assert texts(tab, ".player") == ["random", "optimal"]


@pytest.mark.slow
def test_moves_on_the_board_and_with_the_arrow_keys() -> None:
    with served(Order("chess", env=["opponent=random"])) as root, opened() as tab:
        tab.goto(f"{root}#k")
        tab.click("[data-square=g1]")
        assert sorted(tab.eval_on_selector_all(".to", "all => all.map(square => square.dataset.square)")) == [
            "f3",
            "h3",
        ]
        tab.click("[data-square=f3]")
        tab.wait_for_selector("body[data-turns='1']")
        assert texts(tab, "li.own .text") == ["Nf3"]
        assert texts(tab, ".note")[0].startswith("You played Nf3. Black played ")
        order(tab, "maze_po", "play", env="")
        tab.keyboard.press("ArrowUp")
        tab.wait_for_selector("body[data-turns='1']")
        assert texts(tab, "li.own .text") == ["move up"]
        assert tab.locator(".picture rect").count() == 5


class Hostile:
    def act(self, requests: Sequence[Request]) -> list[Reply]:
        return [Reply(EVIL[request.turn % 3] + "\n") for request in requests]


@pytest.mark.nightly
def test_hostile_texts_of_people_and_models_stay_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_policies(monkeypatch, lambda name: Hostile())
    evil = Order("twenty_questions", ("human", EVIL[0]), advisor=EVIL[1], env=[])
    with served(evil) as root, opened() as tab:
        tab.goto(f"{root}#k")
        tab.wait_for_selector("body[data-turns='0']")
        for turn, text in enumerate(EVIL[:3], 1):
            tab.fill(".answer input", text)
            tab.press(".answer input", "Enter")
            tab.wait_for_selector("#problem:not(:empty)")  # the oracle does not understand it
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
@pytest.mark.nightly
def test_a_narrow_window_is_wide_enough_and_the_words_stand_out(scheme: str) -> None:
    window = {"viewport": {"width": 390, "height": 800}, "color_scheme": scheme}
    with served(Order("wordle")) as root, opened(**window) as tab:
        tab.goto(f"{root}#k")
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
            assert accessibility_faults(tab) == [], task
        for ink, paper in (
            ("ink", "paper"),
            ("soft", "tint"),
            ("ink", "own"),
            ("soft", "own"),
            ("mark", "paper"),
            ("good", "paper"),
            ("paper", "act"),
        ):
            assert contrast(named_colour(tab, ink), named_colour(tab, paper)) >= 4.5, (ink, paper)


def named_colour(tab: Any, name: str) -> str:
    """Return a colour of the page by its name in the style."""
    script = "name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()"
    return str(tab.evaluate(script, name))
