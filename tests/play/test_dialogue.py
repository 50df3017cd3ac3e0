"""Dialogues at the terminal: history, values, new dialogues, the system message, and input from a pipe."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from lmrl.cli import main
from lmrl.errors import printable
from lmrl.evaluation.loading import load_policy
from lmrl.evaluation.token_values import action_scores
from lmrl.modules import BC, ILQL, LanguageModule, load_module
from lmrl.tokens.encoding import Window
from lmrl.types import Episode, Reply, Request
from tests.tokens.test_encoding import CHATML, tokenizer

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 512, "initializer_range": 0.5}


def run(folder: Path, kind: type[LanguageModule], window: Window, **settings: Any) -> str:
    """The folder of a policy with random weights, which answers with a few tokens."""
    torch.manual_seed(3)
    module = kind(architecture=TINY, **settings).eval()
    for name, parameter in module.named_parameters():
        if "_head" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    module.window = window
    module.made_with = {"task": "maze_fo"}
    module.export(folder)
    return str(folder)


def talk(lines: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return main(["chat", *words])


def replies_to(policy: Any, seed: int, *observations: str) -> list[Reply]:
    """The replies to these texts, one after the other."""
    replies: list[Reply] = []
    for turn in range(len(observations)):
        actions = [reply.text for reply in replies]
        ids = [reply.ids for reply in replies]
        replies += policy.act([Request(0, seed, observations[: turn + 1], actions, ids)])
    return replies


def shown_text(reply: Reply) -> str:
    return printable(reply.text).strip()


def test_the_policy_reads_the_dialogue_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(tmp_path / "bc", BC, Window(tokens=400))
    lines = "Hello\nAnd then?\nSo?\n\nHello\n/new\nAnd then?\n/quit\nHello\n"
    assert talk(lines, monkeypatch, folder, "--seed", "5", "--temperature", "0.5") == 0
    shown = capsys.readouterr().out.split("\n")
    policy = load_policy(folder, temperature=0.5).policy
    expected = [shown_text(reply) for reply in replies_to(policy, 5, "Hello\n", "And then?\n", "So?\n")]
    for seed, text in ((6, "Hello\n"), (7, "And then?\n")):
        expected += ["", *map(shown_text, replies_to(policy, seed, text))]
    assert shown == [*expected, ""]


def test_a_reply_comes_with_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(tmp_path / "ilql", ILQL, Window(tokens=400), beta=1.0)
    assert talk("Hello\nAnd then?\n", monkeypatch, folder, "--beta", "3", "--temperature", "0", "--top_p", "0.9") == 0
    shown = capsys.readouterr().out.splitlines()
    policy = load_policy(folder, temperature=0.0, beta=3.0, top_p=0.9).policy
    texts = ("Hello\n", "And then?\n")
    replies = replies_to(policy, 0, *texts)
    actions = tuple(reply.text for reply in replies)
    spoken = Episode(
        "maze_fo", (*texts, ""), actions, (0.0, 0.0), True, False, action_ids=tuple(r.ids for r in replies)
    )
    (scores,) = action_scores(load_module(folder), [spoken])
    assert scores.v is not None and scores.q is not None
    for line, reply, v, q in zip(shown, replies, scores.v, scores.q, strict=True):
        assert line.startswith(shown_text(reply))
        found = re.search(r"   V (\S+), Q (\S+)$", line.replace("\N{MINUS SIGN}", "-"))
        assert found is not None and [float(number) for number in found.groups()] == pytest.approx([v, q], abs=0.006)
    # V is what the policy itself expects.
    assert policy.state_values([Request(0, 0, texts[:1])])[0] == pytest.approx(scores.v[0], abs=1e-4)


def test_a_system_message_takes_the_place_that_it_has_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the chat template where all dialogues shared one, else in front of the first line alone."""
    tokenizer(CHATML).save_pretrained(tmp_path / "tokens")
    chat = {"tokenizer": str(tmp_path / "tokens")}
    shared = run(tmp_path / "shared", BC, Window(tokens=400, rendering="chat", system="You are Ann."), **chat)
    other = run(tmp_path / "other", BC, Window(tokens=400, rendering="chat", system="You are Bob."), **chat)
    without = run(tmp_path / "without", BC, Window(tokens=400, rendering="chat"), **chat)
    greedy = ("--temperature", "0")
    assert talk("Hi\nOh\n", monkeypatch, other, *greedy) == talk("", monkeypatch, shared) == 0
    expected = capsys.readouterr().out
    assert talk("Hi\nOh\n", monkeypatch, shared, "--system", "You are Bob.", *greedy) == 0
    assert capsys.readouterr().out == expected
    assert talk("Hi\nOh\n", monkeypatch, without, "--system", "You are Bob.", *greedy) == 0
    policy = load_policy(without, temperature=0.0).policy
    said = [*map(shown_text, replies_to(policy, 0, "You are Bob.\n\nHi\n", "Oh\n"))]
    assert capsys.readouterr().out.splitlines() == said


def test_at_a_terminal_there_is_a_prompt_and_an_error_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    window = Window(tokens=100, rendering="chat", system="Be brief.")
    tokenizer(CHATML).save_pretrained(tmp_path / "tokens")
    folder = run(tmp_path / "bc", BC, window, tokenizer=str(tmp_path / "tokens"))
    long = "word " * 100  # with the system message more than the policy reads
    assert talk(f"{long}\n", monkeypatch, folder) == 2
    assert "may have 100: shorten" in capsys.readouterr().err
    terminal = io.StringIO(f"Hi\n{long}\nOh\n\nHi\n")
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    assert main(["chat", folder, "--temperature", "0"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("> ") == 6 and "/quit or Ctrl-D ends" in shown
    assert shown.count("error: ") == 1 and "-- new dialogue --" in shown
    for name in ("nobody", "random"):
        assert main(["chat", name]) == 2
        assert f"there is no run, checkpoint or exported folder '{name}'" in capsys.readouterr().err
