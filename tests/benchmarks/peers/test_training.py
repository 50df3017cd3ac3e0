"""TRL trains on what lmrl reads of the same episode: the ids, and which of them the model said."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("trl")

from benchmarks.peers import training
from lmrl.models.tokenizer import load_tokenizer
from lmrl.tokens.encoding import Encoder, Window
from lmrl.tokens.segments import segments
from lmrl.types import Episode


@pytest.mark.nightly
@pytest.mark.parametrize("task", training.TASKS)
def test_both_sides_play_as_many_turns_and_read_the_same(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "GROUPS", 1)
    monkeypatch.setattr(training, "EPISODES", training.GROUP_SIZE)
    model = training.save_model(tmp_path)
    seen: list[dict[str, torch.Tensor]] = []
    loss = training.Timed._compute_loss
    monkeypatch.setattr(
        training.Timed, "_compute_loss", lambda self, network, its: (seen.append(its), loss(self, network, its))[1]
    )
    block, trainer = training.theirs(model, task, tmp_path, rounds=1)
    assert 0 < block.playing < block.seconds
    turns = training.TASKS[task][0]
    encoder = Encoder(load_tokenizer())
    batch = seen[-1]
    played = {tuple(its.texts[1::2]): its.texts[::2] for its in trainer.environments}
    assert len(played) == training.GROUP_SIZE, "all say something else"
    for row in range(training.GROUP_SIZE):  # in another order: TRL shuffles what it learns from
        asked = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()].tolist()
        kept = batch["completion_mask"][row].bool()
        said = batch["completion_ids"][row][kept].tolist()
        mask = batch["tool_mask"][row][kept].tolist()
        ids = tuple(tuple(said[part]) for part in _runs(mask))
        actions = tuple(map(encoder.decode, ids))
        observations = played.pop(actions)
        assert len(actions) == turns
        episode = Episode(task, tuple(observations), actions, (0.0,) * turns, True, False, 0, {}, ids)
        (segment,) = segments(episode, encoder, Window(None, 1000))
        read = [*asked, *said]
        assert segment.ids[: len(read)].tolist() == read
        assert segment.token.tolist() == [token for token, own in zip(said, mask, strict=True) if own]
    assert not played


def _runs(mask: list[int]) -> list[slice]:
    """Return the slices in which the model speaks."""
    edges = np.flatnonzero(np.diff([0, *mask, 0]))
    return [slice(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True)]


@pytest.mark.parametrize("kind", [training.GRPO, training.PPO])
def test_a_round_of_ours_is_timed(kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "EPISODES", training.GROUP_SIZE)
    block = training.ours(kind, training.save_model(tmp_path), "wordle", tmp_path, rounds=1)
    assert 0 < block.playing < block.seconds


def test_what_is_said_after_the_end_of_a_game_is_left_out() -> None:
    env = training.Bare("wordle", {})
    env.reset(seed=1)
    mask = [1, 1, 0, 0, 1, 0, 1, 1]
    env.leave_out_rest(mask)
    assert mask == [1, 1, 0, 0, 1, 0, 1, 1], "the game goes on"
    env.act("zzzzz\n")
    env.act("light\n")  # solved
    env.leave_out_rest(mask)
    assert mask == [1, 1, 0, 0, 1, 0, 0, 0]
