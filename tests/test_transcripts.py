"""Transcripts in the docs are what commands and functions say: ``python -m tests.test_transcripts`` makes them anew."""

import io
import re
import shlex
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from lmrl.cli import main
from lmrl.contrib.study.page import draw_samples
from lmrl.contrib.symbolic import GridMaze, q_learning
from lmrl.data.storage import read_episodes, write_episodes
from lmrl.envs.registry import chat_prompt, make
from lmrl.evaluation.run_folder import transcript
from lmrl.integrations.hf_datasets import conversations_dataset
from lmrl.policies.chat.policy import best_examples, conversation, introduction
from lmrl.types import Request
from tests.helpers.pages import PAGES, ROOT, rewrite

GAMES = ROOT / "docs" / "games"
SHOWN = re.compile(r"(<!-- shown: (.+?) -->\n).*?(<!-- end of what is shown -->)", re.DOTALL)


def asked() -> str:
    """What a chat model reads at the first turn of the fully observed maze."""
    prompt = chat_prompt("maze_fo")
    examples = best_examples(list(read_episodes(GAMES / "maze_fo.jsonl")), prompt)
    text, _ = make("maze_fo").reset(seed=0)
    request = Request(slot=0, seed=0, observations=(text,))
    messages = conversation(prompt, introduction(prompt, prompt.appendix({}), examples, "json"), request, "json")
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)


def played() -> str:
    """A game of Wordle as `transcript` prints it."""
    return transcript(min(read_episodes(GAMES / "wordle.jsonl"), key=len))


def rated() -> str:
    """Six turns as the people who rate read them."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "games.jsonl"
        write_episodes(path, list(read_episodes(GAMES / "twenty_questions.jsonl"))[-3:], {})
        sample, *_ = draw_samples({"games": path}, 3, turns=6)
    return "\n".join(f"{line.speaker}: {line.text}" for line in sample.lines)


def values() -> str:
    """The highest Q of each cell, as a table has learned it, and the goal."""
    env = GridMaze()
    q = q_learning(env)
    best = {cell: f"{np.max(row):.1f}" for cell, row in zip(env.grid.cells, q, strict=True)}
    best[env.grid.layout.goal] = "G"
    rows, cols = len(env.grid.layout.rows), len(env.grid.layout.rows[0])
    lines = ("".join(f"{best.get((row, col), '#'):>5}" for col in range(cols)) for row in range(rows))
    return "\n".join(lines)


def called() -> str:
    """Beginning and end of a game of the maze as TRL's tool has it: the rules, calls and answers."""
    shortest = min(read_episodes(GAMES / "maze_fo.jsonl"), key=len)
    *messages, last = conversations_dataset([shortest])[0]["messages"]
    assert (last["role"], last["content"]) == ("assistant", "")
    told = [f"[{message['role']}]\n{_content(message)}" for message in messages]
    return "\n\n".join([*told[:6], "...", *told[-2:]])


def _content(message: dict[str, Any]) -> str:
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or ()]
    return "\n".join([*([message["content"]] if message["content"] else []), *calls])


FUNCTIONS: dict[str, Callable[[], str]] = {
    function.__name__: function for function in (asked, called, played, rated, values)
}


def said(what: str) -> str:
    """What a command of ours prints, or a function above returns."""
    if what in FUNCTIONS:
        return FUNCTIONS[what]()
    program, *words = shlex.split(what)
    assert program == "lmrl"
    with redirect_stdout(io.StringIO()) as out:
        assert main(words) == 0
    return out.getvalue()


def renewed(text: str) -> str:
    """A page with its transcripts as they are today."""
    return SHOWN.sub(lambda block: f"{block[1]}\n```text\n{said(block[2]).rstrip()}\n```\n\n{block[3]}", text)


@pytest.mark.parametrize("page", [page for page in PAGES if SHOWN.search(page.read_text(encoding="utf-8"))])
def test_what_is_shown_is_what_is_said(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert renewed(text) == text, "python -m tests.test_transcripts"


def test_all_are_shown_somewhere() -> None:
    shown = {what for page in PAGES for _, what, _ in SHOWN.findall(page.read_text(encoding="utf-8"))}
    assert {*FUNCTIONS} < shown


if __name__ == "__main__":
    rewrite(renewed)
