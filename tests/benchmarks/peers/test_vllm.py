"""A vLLM server says what our slots say."""

import os

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import vllm
from benchmarks.peers.beside import OURS


def test_without_a_python_that_has_vllm_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "VLLM", None)
    assert "LMRL_VLLM" in command.missing("vllm")[-1]
    monkeypatch.setattr(command, "VLLM", "python")
    assert not any("LMRL_VLLM" in one for one in command.missing("vllm"))


@pytest.mark.slow
@pytest.mark.skipif("LMRL_VLLM" not in os.environ, reason="vLLM has an environment of its own")
def test_greedy_actions_are_those_of_our_slots() -> None:
    rows = {row.name: row for row in vllm.run(repeats=1, episodes=4)}
    for task in vllm.TOKENS:
        assert (rows[f"{task}, dialogues with the same greedy actions"].value or 0) >= 7, "ties are rare"
        assert rows[f"{task}, 32 slots, Llama, {OURS} / vLLM"].value
