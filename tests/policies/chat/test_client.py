import gzip
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from lmrl.errors import BudgetError, UserError, terminated_by_exception
from lmrl.policies.chat.client import ChatCache, ChatClient, ChatError, Messages
from lmrl.policies.chat.limits import ChatLimits
from tests.helpers.cases import cases
from tests.helpers.endpoints import Unruly, completion, hang, late, reply, trickle

pytest.importorskip("openai", reason="needs openai: pip install 'lmrl[chat]'")

BROKEN = reply(500, '{"error": {"message": "out of order"}}')


def say(*texts: str) -> list[Messages]:
    return [[{"role": "system", "content": "Turn it round."}, {"role": "user", "content": text}] for text in texts]


def client(server: Unruly, **settings: Any) -> ChatClient:
    return ChatClient("tiny", **{"base_url": server.url, "api_key": "sk-secret", "cache": False, **settings})


def test_a_batch_is_asked_side_by_side_and_answered_in_order() -> None:
    texts = [f"text {number}" for number in range(64)]
    with Unruly(seconds=0.5) as server:
        asking = client(server)
        assert asking.complete(say(*texts)) == [text[::-1] for text in texts]
        assert server.most > 24
        assert asking.spent() == {"requests": 64, "tokens": 640}
        server.most = 0
        assert client(server, max_parallel=3).complete(say(*texts[:9])) == [text[::-1] for text in texts[:9]]
        assert server.most == 3


def test_what_is_sent() -> None:
    with Unruly() as server:
        client(server, temperature=0.7, max_tokens=5, extra={"top_p": 0.5}).complete(say("a"), seeds=[2**31 + 9])
        sent = server.bodies[-1]
        assert sent.pop("_path") == "/v1/chat/completions"
        assert sent.pop("_key") == "Bearer sk-secret"
        assert sent.pop("_encoding") == "identity"
        assert sent == {
            "model": "tiny",
            "messages": list(say("a")[0]),
            "temperature": 0.7,
            "max_tokens": 5,
            "top_p": 0.5,
            "seed": 9,
        }
        client(server, temperature=None, max_tokens=None).complete(say("a"))
        assert {*server.bodies[-1]} == {"model", "messages", "_path", "_key", "_encoding"}


def test_faults_that_pass_are_waited_for() -> None:
    with Unruly(BROKEN, BROKEN) as server:
        assert client(server, retries=2).complete(say("abc")) == ["cba"]
        first = server.times[1] - server.times[0]
        second = server.times[2] - server.times[1]
        # 0.5 and 1 s, less up to a half.
        assert first >= 0.25
        assert 0.5 <= second < 5
        server.faults = [
            reply(200, '{"choices": [{"mess'),
            reply(200, "<html>come back later</html>", content_type="text/html"),
            reply(200, '{"id": "1"}'),
            completion(["no", "text"]),
            reply(408, ""),
            hang(0.0),
        ]
        assert client(server, retries=1).complete(say(*"abcdef")) == [*"abcdef"]
        assert len(server.bodies) == 3 + 12


@cases(
    ("fault", "shown"),
    [
        (reply(500, "out of\n order"), "status 500: out of order"),
        (reply(502, ""), "status 502: nothing else"),
        (reply(200, '{"choices": [{"mess'), "a malformed answer: "),
        (reply(200, "<html>later</html>", content_type="text/html"), "a malformed answer: <html>later</html>"),
        (completion(["no", "text"]), "a malformed answer: content must be a text, got list"),
        (reply(200, '{"choices": {"0": {"message": {"content": "a"}}}}'), 'a malformed answer: {"choices": {"0"'),
        (reply(200, '{"choices": [{"message": "a"}]}'), "a malformed answer: "),
        (reply(200, '{"choices": []}'), "a malformed answer: "),
        (reply(200, "[" * 100_000), r"a malformed answer: \[\[\["),
        (reply(200, '{"choices": ' + "9" * 5_000 + "}"), "a malformed answer: "),
        (reply(200, "\x00\x00"), "a malformed answer: "),
        (reply(200, " " * (5 << 20)), "an answer of more than 4 MiB"),
        (hang(0.0), "no connection: "),
    ],
)
def test_what_came_instead_is_told(fault: Any, shown: str) -> None:
    with Unruly(fault) as server, pytest.raises(ChatError, match=rf"v1: {shown}.* \(tries: 1\); 0 of 1 answers came$"):
        client(server, retries=0).complete(say("a"))


def test_an_endpoint_that_wants_a_pause_gets_it_from_all() -> None:
    # One of two is told to wait while the other is being answered: the third and the fourth do not come in between.
    with Unruly(reply(429, "{}", retry_after="1.2"), late(0.4, "b")) as server:
        client(server, max_parallel=2).complete(say(*"abcd"))
        others = [at - server.times[0] for at in server.times[2:]]
    assert len(others) == 3
    assert min(others) >= 1.2
    limits = ChatLimits(requests_per_minute=60)
    assert [limits.turn() for _ in range(3)] == pytest.approx([0, 1, 2], abs=0.05)
    limits.pause(10)
    assert limits.turn() == pytest.approx(10, abs=0.05)


def test_a_pause_that_is_too_long_is_none() -> None:
    for wish in ("3600", formatdate(time.time() + 3600.9, usegmt=True)):
        with Unruly(reply(503, "{}", retry_after=wish)) as server:
            with pytest.raises(ChatError, match=r"status 503: \{\}, asks for a pause of 3[56]\d\d s \(tries: 1\)"):
                client(server).complete(say("a"))
            assert len(server.bodies) == 1


def test_a_server_that_hangs_is_given_up_and_asked_again() -> None:
    with Unruly(hang(9.0), hang(9.0)) as server:
        began = time.monotonic()
        assert client(server, timeout=0.3, retries=1, max_parallel=1).complete(say("ab")[:0]) == []
        with pytest.raises(ChatError, match=r"no whole answer within 0\.3 s \(tries: 2\)"):
            client(server, timeout=0.3, retries=1).complete(say("ab"))
        assert time.monotonic() - began < 6
        assert client(server, timeout=0.3).complete(say("ab")) == ["ba"]


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 500 No\r\n\r\n"])
def test_an_endpoint_that_trickles_is_given_up_in_time(begin: bytes) -> None:
    """Each byte comes well within the time; all of them never come: of the headers, an answer, a refusal."""
    stop = threading.Event()
    began = time.monotonic()
    with Unruly(trickle(begin, 0.01, stop)) as server:
        with pytest.raises(ChatError, match=r"no whole answer within 0\.4 s \(tries: 1\)"):
            client(server, timeout=0.4, retries=0).complete(say("ab"))
        assert time.monotonic() - began < 6
        stop.set()


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    def half(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
        handler.close_connection = True

    with Unruly(half) as server:
        assert client(server, retries=1).complete(say("ab")) == ["ba"]
    with Unruly(half) as server, pytest.raises(ChatError, match=r"the answer broke off: .* \(tries: 1\)"):
        client(server, retries=0).complete(say("ab"))


def test_an_endpoint_that_is_not_there() -> None:
    with Unruly() as server:
        url = server.url
    asking = ChatClient("tiny", base_url=url, cache=False, retries=1)
    with pytest.raises(ChatError, match=rf"chat model 'tiny' at {url}: no connection: .*\(tries: 2\); 0 of 1 answers"):
        asking.complete(say("a"))


@pytest.mark.parametrize(
    "refusal",
    [
        reply(400, '{"error": {"message": "too long, sk-secret"}}'),
        reply(429, '{"error": {"message": "no money", "code": "insufficient_quota"}}'),
        reply(500, '{"error": {"message": "never"}}', x_should_retry="false"),
    ],
)
def test_a_refusal_is_final_and_tells_no_key(refusal: Any) -> None:
    with Unruly(refusal) as server:
        with pytest.raises(ChatError, match=r"status (400|429|500): .*(too long, \(key\)|no money|never)") as error:
            client(server).complete(say("a"))
        assert len(server.bodies) == 1
    assert "sk-secret" not in str(error.value)


def test_no_answer_and_no_error_repeats_the_key() -> None:
    """Nor a part of it, where an error is cut within it; a short word that serves as key may be said."""
    key = "sk-secret-of-some-length"
    with Unruly(completion(f"It is {key}."), reply(200, f"{' ' * 780}{key}")) as server:
        asking = client(server, api_key=key, retries=0)
        assert asking.complete(say("a")) == ["It is (key)."]
        with pytest.raises(ChatError) as error:
            asking.complete(say("a"))
        assert "a malformed answer: (key)" in str(error.value) and "sk-" not in str(error.value)
        assert client(server, api_key="EMPTY").complete(say("EMPTY"[::-1])) == ["EMPTY"]


@pytest.mark.parametrize("status", [200, 400])
def test_compressed_bodies_are_refused_before_they_grow(status: int) -> None:
    """A few kB can stand for GiB, and one part of them is decompressed as a whole."""

    def bomb(handler: Any) -> None:
        body = gzip.compress(b" " * (64 << 20))
        handler.send_response(status)
        handler.send_header("content-encoding", "gzip")
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with Unruly(bomb) as server:
        with pytest.raises(ChatError, match="an answer in the encoding 'gzip', which was not asked for"):
            client(server, retries=0).complete(say("a"))
        assert server.bodies[-1]["_encoding"] == "identity"


def test_the_body_of_a_refusal_is_read_up_to_the_limit() -> None:
    sent = []

    def endless(handler: Any) -> None:
        handler.send_response(400)
        handler.end_headers()
        handler.close_connection = True
        with suppress(OSError):
            for _ in range(64):
                handler.wfile.write(b"no " * (1 << 20))
                sent.append(3 << 20)

    with Unruly(endless) as server, pytest.raises(ChatError, match="status 400: no no no"):
        client(server, retries=0).complete(say("a"))
    assert sum(sent) < 64 << 20  # what the sockets hold, and not all of it


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    with Unruly() as other, Unruly(reply(status, "", location=other.url)) as server:
        with pytest.raises(ChatError, match=f"status {status}: it redirects to {other.url}, which is not followed"):
            client(server).complete(say("a"))
        assert other.bodies == []
        assert len(server.bodies) == 1


@pytest.mark.parametrize("reason", [["length"], {"stop": 1}, 3, True])
def test_an_answer_with_a_reason_of_another_kind_is_malformed(reason: Any) -> None:
    with Unruly(completion("b", reason), completion("c", None)) as server:
        assert client(server, retries=1).complete(say("a")) == ["c"]
        server.faults = [completion("b", reason)] * 2
        told = r"a malformed answer: finish_reason must be a text, got \w+ \(tries: 2\)"
        with pytest.raises(ChatError, match=told):
            client(server, retries=1).complete(say("a"))


ABSURD = ["Wed, 21 Oct 99999999999 07:28:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "Wed, 0 0 0 0:0:0", "1e400", "1e300"]


@cases("wish", [*ABSURD, "nan", "-5", "soon", ",", "1 2 3 4 5"])
def test_an_absurd_pause_is_not_kept(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmrl.policies.chat.endpoint._FIRST_WAIT", 0.01)
    with Unruly(reply(503, "{}", retry_after=wish)) as server:
        assert client(server, retries=1).complete(say("ab")) == ["ba"]


@pytest.mark.parametrize("url", ["ftp://me:hunter2@host/v1", "http://me:hunter2@host:port/v1", "//me:hun@ter2@host"])
def test_a_refused_address_is_shown_without_its_password(url: str) -> None:
    with pytest.raises(UserError, match=r"base_url must be an address .*//\.\.\.@host") as error:
        ChatClient("tiny", base_url=url, cache=False)
    assert "ter2" not in str(error.value)


def test_a_failure_stops_the_rest_and_keeps_what_came(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(20)]
    good = [completion(f"answer {number}") for number in range(5)]
    with Unruly(*good, reply(400, "no")) as server:
        asking = client(server, max_parallel=1, cache=tmp_path / "answers")
        kept = rf"status 400: no; 5 of 20 answers came, they are kept in {tmp_path / 'answers'}"
        with pytest.raises(ChatError, match=kept):
            asking.complete(say(*texts))
        assert len(server.bodies) == 6
        again = client(server, max_parallel=1, cache=tmp_path / "answers").complete(say(*texts))
        assert again[:6] == ["answer 0", "answer 1", "answer 2", "answer 3", "answer 4", "5 txet"]
        assert len(server.bodies) == 6 + 15


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to one thread")
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_gives_up_what_is_under_way_and_keeps_what_came(
    interrupt: type[BaseException], tmp_path: Path
) -> None:
    number = signal.SIGINT if interrupt is KeyboardInterrupt else signal.SIGTERM
    texts = [f"text {number}" for number in range(3)]
    with Unruly(completion("kept"), hang(20.0)) as server, terminated_by_exception():
        asking = client(server, max_parallel=1, retries=0, timeout=15.0, cache=tmp_path / "answers")

        def interrupt_second() -> None:
            while len(server.bodies) < 2:
                time.sleep(0.05)
            signal.pthread_kill(threading.main_thread().ident or 0, number)

        threading.Thread(target=interrupt_second, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(interrupt):
            asking.complete(say(*texts))
        assert time.monotonic() - began < 10
        assert len(server.bodies) == 2
        assert [*asking.complete(say(texts[0]))] == ["kept"]


def test_an_interrupt_keeps_answers_that_have_just_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def interrupted_wait(running: Any, **how: Any) -> Any:
        calls.append(how)
        if len(calls) > 1:
            return wait(running, **how)
        wait(running)
        raise KeyboardInterrupt

    monkeypatch.setattr("lmrl.policies.chat.client.wait", interrupted_wait)
    with Unruly() as server:
        asking = client(server, cache=tmp_path / "answers")
        with pytest.raises(KeyboardInterrupt):
            asking.complete(say("ab", "cd"))
        assert asking.complete(say("ab", "cd")) == ["ba", "dc"]
        assert len(server.bodies) == 2


def test_answers_are_valid_unicode_without_control_characters(tmp_path: Path) -> None:
    odd = "half \ud83d, whole \ud83d\ude00, \x00\x1b[2J\x7f,\tand\n"
    with Unruly(completion(odd)) as server:
        first = client(server, cache=tmp_path / "c").complete(say("a"))
        assert first == ["half \ufffd, whole \U0001f600, \ufffd\ufffd[2J\ufffd,\tand\n"]
        assert client(server, cache=tmp_path / "c").complete(say("a")) == first
        # What is asked is mended, too, or it could not be sent.
        assert client(server).complete(say("\ud83d a")) == ["a \ufffd"]


@pytest.mark.parametrize(
    ("useless", "said"),
    [
        (completion(None), ""),
        (completion(" \n"), " \n"),
        (completion('{"action": "move', "length"), '{"action": "move'),
        (completion("I must not", "content_filter"), "I must not"),
        (reply(200, '{"choices": [{"message": {}}]}'), ""),
    ],
)
def test_empty_answers_and_those_that_are_cut_off_are_handed_on_but_not_kept(
    useless: Any, said: str, tmp_path: Path
) -> None:
    with Unruly(useless) as server:
        assert client(server, cache=tmp_path / "c").complete(say("ab")) == [said]
        assert client(server, cache=tmp_path / "c").complete(say("ab")) == ["ba"]
        assert client(server, cache=tmp_path / "c").complete(say("ab")) == ["ba"]
        assert len(server.bodies) == 2


def test_the_pace_holds_for_repeated_requests_too() -> None:
    with Unruly(BROKEN) as server:
        asking = client(server, requests_per_minute=240)
        began = time.monotonic()
        asking.complete(say(*"abcde"))
        # One of five is asked again: the sixth request comes after five gaps of a quarter of a second.
        assert [at - began >= 0.25 * number for number, at in enumerate(server.times)] == [True] * 6


def test_budgets() -> None:
    with Unruly(BROKEN) as server:
        asking = client(server, budget_requests=4, max_parallel=1)
        with pytest.raises(ChatError, match=r"budget of 4 requests .* is used up; 3 of 5 answers"):
            asking.complete(say(*"abcde"))
        assert asking.spent() == {"requests": 4, "tokens": 30}
        assert len(server.bodies) == 4
        asking = client(server, budget_tokens=25, max_parallel=1)
        with pytest.raises(ChatError, match=r"budget of 25 tokens .* is used up: 30 were used; 3 of 5 answers"):
            asking.complete(say(*"abcde"))
        server.usage = None
        with pytest.raises(ChatError, match="budget_tokens needs an endpoint that tells"):
            client(server, budget_tokens=25, max_parallel=1).complete(say("a", "b"))


@cases("total", [-1_000_000, 0, 1.5, True, "10", [10], None, 10**12])
def test_no_count_of_tokens_extends_a_budget(total: Any) -> None:
    with Unruly() as server:
        asking = client(server, budget_tokens=25, max_parallel=1)
        asking.complete(say("a", "b"))
        server.usage = {"total_tokens": total}
        with pytest.raises(BudgetError, match=r"budget_tokens needs an endpoint that tells .*; 1 of 2 answers came$"):
            asking.complete(say("c", "d"))
        assert asking.spent() == {"requests": 3, "tokens": 20}


def test_malformed_answers_cost_what_they_cost() -> None:
    with Unruly(completion(3)) as server:
        asking = client(server, budget_tokens=25)
        assert asking.complete(say("a")) == ["a"]
        assert asking.spent() == {"requests": 2, "tokens": 20}


def test_clients_may_share_a_budget() -> None:
    with Unruly() as server:
        shared: dict[str, Any] = {"budget_requests": 3, "shared_budget": True}
        one = client(server, **shared)
        other = client(server, temperature=0.5, **shared)
        one.complete(say("a", "b"))
        other.complete(say("a"))
        with pytest.raises(BudgetError, match=r"budget of 3 requests .* is used up"):
            other.complete(say("b"))
        assert one.spent() == other.spent() == {"requests": 3, "tokens": 30}
        assert client(server, budget_requests=3).complete(say("c")) == ["c"]
        with pytest.raises(UserError, match=r"who shares a budget gives the same limits: one client has .*requests=3"):
            client(server, budget_requests=4, shared_budget=True)


def test_a_repeated_run_costs_nothing(tmp_path: Path) -> None:
    with Unruly() as server:
        assert client(server, cache=tmp_path / "c").complete(say("ab", "cd", "ab")) == ["ba", "dc", "ba"]
        assert len(server.bodies) == 2
        again = client(server, cache=tmp_path / "c", budget_requests=1)
        assert again.complete(say("cd", "ab")) == ["dc", "ba"]
        assert again.spent() == {"requests": 0, "tokens": 0}
        # Anything that an answer depends on makes it another request.
        others = ({"temperature": 0.5}, {"max_tokens": 9}, {"extra": {"top_p": 0.5}}, {"base_url": server.url + "/"})
        assert [_asked(server, tmp_path / "c", **other) for other in others] == [1, 1, 1, 0]


def _asked(server: Unruly, cache: Path, seeds: Sequence[int] | None = None, **settings: Any) -> int:
    before = len(server.bodies)
    client(server, cache=cache, **settings).complete(say("ab"), seeds=seeds)
    return len(server.bodies) - before


def test_seeds_tell_samples_apart_and_greedy_answers_have_none(tmp_path: Path) -> None:
    with Unruly() as server:
        sampled = client(server, temperature=1.0, cache=tmp_path / "c")
        sampled.complete(say(*"aaaa"), seeds=[1, 2, 2, 3])
        assert sorted(body["seed"] for body in server.bodies) == [1, 2, 3]
        assert _asked(server, tmp_path / "c", seeds=[1]) == 1
        assert "seed" not in server.bodies[-1]
        assert _asked(server, tmp_path / "c", seeds=[2]) == 0


def test_many_processes_share_a_cache(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from lmrl.policies.chat.client import ChatCache\n"
        "cache = ChatCache(Path(sys.argv[1]))\n"
        "for number in range(25): cache.keep({f'{sys.argv[2]} {number}': 'yes', 'all': 'a'}, 'tiny')"
    )
    path = tmp_path / "deep" / "answers.sqlite"
    running = [subprocess.Popen([sys.executable, "-c", code, str(path), str(number)]) for number in range(2)]
    assert [process.wait(30) for process in running] == [0] * 2
    keys = [f"{number} {place}" for number in range(2) for place in range(25)]
    assert ChatCache(path).find([*keys, "all", "none"]) == {**dict.fromkeys(keys, "yes"), "all": "a"}


def test_the_first_answer_stays(tmp_path: Path) -> None:
    cache = ChatCache(tmp_path / "c")
    threads = [threading.Thread(target=cache.keep, args=({"key": f"answer {number}"}, "tiny")) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (first,) = cache.find(["key"]).values()
    cache.keep({"key": "late"}, "tiny")
    assert cache.find(["key"]) == {"key": first}


def test_a_cache_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database at all, but long enough to be told from an empty file\n" * 20)
    for path in (tmp_path / "text", tmp_path / "text" / "below", tmp_path):
        with pytest.raises(UserError, match="cache must be "):
            ChatCache(path)


def test_the_default_cache_is_with_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMRL_DATA", str(tmp_path))
    with Unruly() as server:
        client(server, cache=True).complete(say("a"))
    assert (tmp_path / "chat.sqlite").is_file()


def test_endpoint_and_key_come_from_the_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    with Unruly() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", " sk-env\n")
        assert ChatClient("tiny", cache=False).complete(say("ab")) == ["ba"]
        assert server.bodies[-1]["_key"] == "Bearer sk-env"
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(UserError, match="needs a key in \\$OPENAI_API_KEY"):
        ChatClient("tiny", cache=False)


def test_descriptions_hold_what_matters_and_no_secret() -> None:
    asking = ChatClient("tiny", "http://me:pw@host:8000/v1?k=x", "sk-secret", cache=False, extra={"top_p": 0.5})
    told = {"model": "tiny", "endpoint": "http://host:8000/v1", "temperature": 0.0, "max_tokens": 128, "top_p": 0.5}
    assert json.loads(json.dumps(asking.describe())) == told


@cases(
    ("settings", "message"),
    [
        ({"model": ""}, "model must be"),
        ({"model": 3}, "model must be the name of a chat model at the endpoint, got 3"),
        (
            {"base_url": "localhost:8000/v1"},
            r"base_url must be an address such as http://localhost:8000/v1, got 'local",
        ),
        ({"base_url": "http://[1/v1"}, "base_url must be an address"),
        ({"base_url": "http://host:70000/v1"}, "base_url must be an address"),
        ({"timeout": "long"}, "timeout must be a finite number, above 0, got 'long'"),
        ({"timeout": None}, "timeout must be a number of seconds, got None"),
        ({"timeout": float("inf")}, "timeout must be a finite number, above 0, got inf"),
        ({"retries": 1.5}, "retries must be a whole number, got 1.5"),
        ({"max_parallel": True}, "max_parallel must be a whole number, got True"),
        ({"budget_requests": "many"}, "budget_requests must be a finite number, above 0, got 'many'"),
        ({"extra": 5}, "extra must be names and values, such as extra.top_p=0.5, got 5"),
        ({"temperature": -0.1}, r"temperature must be at least 0, got -0\.1"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"timeout": 0}, "timeout must be above 0, got 0"),
        ({"retries": -1}, "retries must be at least 0, got -1"),
        ({"max_parallel": 0}, "max_parallel must be at least 1, got 0"),
        ({"requests_per_minute": 0}, "requests_per_minute must be above 0"),
        ({"budget_requests": 0}, "budget_requests must be above 0"),
        ({"budget_tokens": float("nan")}, "budget_tokens must be a finite number, above 0"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ChatClient(**{"model": "tiny", "base_url": "http://localhost:1/v1", "cache": False, **settings})


def test_a_missing_package_is_named() -> None:
    code = (
        "import sys; sys.modules['openai'] = None\n"
        "from lmrl.errors import BudgetError, UserError; from lmrl.policies.chat.client import ChatClient\n"
        "assert 'torch' not in sys.modules\n"
        "try: ChatClient('tiny', base_url='http://localhost/v1', cache=False)\n"
        "except UserError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert "pip install 'lmrl[chat]'" in found.stdout


def test_waits_differ_by_chance_of_their_own() -> None:
    state = random.getstate()
    with Unruly(BROKEN) as server:
        client(server).complete(say("a"))
    assert random.getstate() == state
