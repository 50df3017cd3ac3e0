import ast
from itertools import pairwise
from pathlib import Path

import pytest

import lmrl
from lmrl.envs import TextEnv

GOLDEN = Path(__file__).parents[1] / "golden"


def play_line(env: TextEnv, line: str, action: str) -> str:
    """The line that the environment writes for a start (``action`` empty of meaning) or an action."""
    if line.startswith("@"):
        text, _ = env.reset(seed=0, options=ast.literal_eval(line[2:]))
        return f"  {text!r}"
    text, reward, terminated, truncated, _ = env.step(action)
    ending = "terminated" if terminated else "truncated" if truncated else "-"
    return f"< {reward} {ending} {text!r}"


@pytest.mark.parametrize("name", [path.stem for path in sorted(GOLDEN.glob("*.txt"))])
def test_the_environment_writes_the_golden_transcript(name: str) -> None:
    lines = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    arguments = ast.literal_eval(lines[1].removeprefix("# ")) if lines[1].startswith("# {") else {}
    env = lmrl.make(name, **arguments)
    checked = 0
    for line, following in pairwise(lines):
        if line[:1] in ("@", ">"):
            action = ast.literal_eval(line[2:]) if line.startswith(">") else ""
            assert play_line(env, line, action) == following
            checked += 1
    assert checked >= 10
