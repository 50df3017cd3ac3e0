"""Policies judged by files: an estimate of a return that is known exactly, values that are known, held-out episodes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmrl.checkpoints.reading import files_learned_from
from lmrl.cli import main
from lmrl.data.dialogues import with_system_in_front
from lmrl.data.storage import read_dataset, write_episodes
from lmrl.datamodules import OfflineDataModule
from lmrl.datamodules.offline import hash_of_file, held_out_mask
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.evaluation.calibration import calibration
from lmrl.evaluation.recorded import evaluate_recorded, held_out_episodes
from lmrl.evaluation.token_values import action_scores, token_values
from lmrl.modules import AWR, BC, ILQL, MC, QSFT, ArCHer, LanguageModule
from lmrl.tokens.encoding import Encoder, Window
from lmrl.tokens.segments import context
from lmrl.types import Episode
from tests.helpers.corridor import GOAL, corridor_task

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 512, "initializer_range": 0.5}


def made(kind: type[LanguageModule], window: Window, **settings: Any) -> LanguageModule:
    """A module with random weights, value heads included."""
    torch.manual_seed(3)
    module = kind(architecture=TINY, **settings).eval()
    for name, parameter in module.named_parameters():
        if "_head" in name and "target" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    module.window = window
    return module


# -- the return of a policy that differs from the one that played --------------------------------------------------


def walker(beta: float) -> LanguageModule:
    """Walks to the right with a probability that depends on the square, and on how strongly its values count."""
    torch.manual_seed(0)
    module = MC(architecture={**TINY, "initializer_range": 0.1}, tokenizer="lmrl-letters", beta=beta).eval()
    module.window = Window(texts=1, tokens=8)
    module.made_with = {"task": "corridor"}
    right, left = module.tokenizer.convert_tokens_to_ids(["R", "L"])
    with torch.no_grad():
        torch.nn.init.normal_(module.q_heads[0].outer.weight, std=0.2)
        module.q_heads[0].outer.bias[right] = 4.0
        module.q_heads[0].outer.bias[left] = 3.0
    return module


def exact_return(module: Any, beta: float) -> float:
    """Mean return from the three squares, by dynamic programming; one forward pass for each square."""
    chances = []
    for square in range(GOAL):
        ids = torch.tensor([module.tokenizer.encode(str(square), add_special_tokens=False)])
        with torch.inference_mode():
            q = module.q_heads[0](module.trunk(ids).last_hidden_state[0, -1])
            logits = module.model(ids).logits[0, -1] + beta * q
            logits = logits.index_fill(0, torch.tensor(module.tokenizer.all_special_ids), -torch.inf)
        chances.append({letter: float(logits.softmax(-1)[module.tokenizer.encode(letter)[0]]) for letter in "LR"})
    value = [0.0] * (GOAL + 1)  # with no steps left
    for _ in range(3):
        after = [0.0] * (GOAL + 1)
        for square, chance in enumerate(chances):
            right = value[square + 1] - (square + 1 < GOAL)
            left = value[max(0, square - 1)] - 1.0
            stay = value[square] - 1.0
            after[square] = chance["R"] * right + chance["L"] * left + (1 - chance["R"] - chance["L"]) * stay
        value = after
    return float(np.mean(value[:GOAL]))


def test_the_estimate_of_a_played_file_holds_the_exact_return(tmp_path: Path) -> None:
    """Played, written, read and judged by the command line, with the sampler's log-probs and with a model in place."""
    with corridor_task():
        player = walker(beta=1.5)
        file = tmp_path / "played.parquet"
        played = evaluate(player.policy(max_new_tokens=1), "corridor", 300).episodes
        write_episodes(file, played)
        player.export(tmp_path / "player")
        walker(beta=2.0).export(tmp_path / "run")
        words = ["evaluate", str(file), "--policy", str(tmp_path / "run"), "--out", str(tmp_path / "out")]
        assert main(words) == 0
        recorded = json.loads((tmp_path / "out" / "scores.json").read_text())
        assert main([*words, "--behaviour", str(tmp_path / "player")]) == 0
        modelled = json.loads((tmp_path / "out" / "scores.json").read_text())
        greedy = evaluate_recorded(walker(beta=2.0), played[:60], temperature=0.0)["off_policy"]["return_ci"]

    before = exact_return(player, 1.5)
    after = exact_return(player, 2.0)
    found = recorded["off_policy"]
    low, high = recorded["data_return_ci"]
    assert low < before < high < after  # the file itself says something else
    assert found["return_ci"][0] < after < found["return_ci"][1] and found["return_ci"][0] > high
    assert found["gain_ci"][0] < after - before < found["gain_ci"][1]
    assert found["return_ci"][1] - found["return_ci"][0] < after - before  # and it says it with some precision
    assert 60 < found["effective_episodes"] < 300
    assert recorded["behaviour"] == "logprobs of the file" and modelled["behaviour"] == str(tmp_path / "player")
    assert modelled["off_policy"]["return_mean"] == pytest.approx(found["return_mean"], abs=1e-4)
    assert greedy[0] < -1.0 < greedy[1]  # straight to the goal: 0, -1 or -2


@pytest.mark.parametrize("kind", [BC, ILQL, QSFT])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 40, "top_p": 0.9}])
def test_scored_actions_have_the_probability_with_which_they_were_sampled(
    kind: type[LanguageModule], settings: dict[str, Any]
) -> None:
    module = made(kind, Window(tokens=400), **({"return_range": [-4.0, 0.0]} if kind is QSFT else {}))
    more = {} if kind is BC else {"beta": 1.5}
    policy = module.policy(max_new_tokens=4, **settings, **more)
    episodes = evaluate(policy, "maze_fo", 3, env={"max_steps": 3}).episodes
    for episode, scores in zip(episodes, action_scores(module, episodes, **settings, **more), strict=True):
        assert scores.logprob == pytest.approx([sum(turn) for turn in episode.action_logprobs], rel=1e-4)
        assert scores.tokens.tolist() == [len(ids) for ids in episode.action_ids]
        if not settings:
            assert scores.nll == pytest.approx(-scores.logprob)


# -- values ---------------------------------------------------------------------------------------------------------

TALK = Episode("dialogues", ("Hi\n", "Oh\n", "\n"), ("Hello.\n", "Bye.\n"), (1.0, 2.0), True, False)


@pytest.mark.parametrize("kind", [MC, ILQL, AWR, ArCHer])
def test_values_are_read_before_and_after_the_reply(kind: type[LanguageModule]) -> None:
    module: Any = made(kind, Window(tokens=400), gamma=0.5)
    (scores,) = action_scores(module, [TALK])
    encode = Encoder(module.tokenizer).encode
    lengths = [len(encode(action)) for action in TALK.actions]
    if kind is ArCHer:  # a discount per turn
        assert scores.v_return.tolist() == scores.q_return.tolist() == [1.0 + 0.5 * 2.0, 2.0]
    else:  # per token: the reward comes with the last token of a reply
        second = 2.0 * 0.5 ** (lengths[1] - 1)
        assert scores.q_return == pytest.approx([1.0 + 0.5 * second, 2.0])
        assert scores.v_return == pytest.approx([0.5 ** (lengths[0] - 1) * (1.0 + 0.5 * second), second])

    heads = module.critic if kind in (AWR, ArCHer) else module
    for turn, action in enumerate(TALK.actions):
        before = context(Encoder(module.tokenizer), module.window, TALK.observations[: turn + 1], TALK.actions[:turn])
        reply = list(encode(action))
        with torch.inference_mode():
            hidden = heads.trunk(torch.tensor([before + reply])).last_hidden_state[0]
            v = None if kind is MC else float(heads.v_head(hidden[len(before) - 1]))
            if kind is ArCHer:  # with all of the reply read
                q = min(float(head(hidden[-1])) for head in heads.q_heads)
            elif kind is not AWR:  # of the last token, where it is chosen
                q = min(float(head(hidden[-2])[reply[-1]]) for head in heads.q_heads)
        assert (scores.v is None) == (v is None) and (scores.q is None) == (kind is AWR)
        if scores.v is not None:
            assert scores.v[turn] == pytest.approx(v, abs=1e-5)
        if scores.q is not None:
            assert scores.q[turn] == pytest.approx(q, abs=1e-5)


def test_a_calibration_by_hand() -> None:
    """Two episodes; predictions 0, 1, 2 and 3 before returns 1, 1, 2 and 6."""
    found = calibration([np.array([0.0, 3.0]), np.array([1.0, 2.0])], [np.array([1.0, 6.0]), np.array([1.0, 2.0])], 2)
    assert found.correlation == pytest.approx(np.corrcoef([0, 3, 1, 2], [1, 6, 1, 2])[0, 1])
    # Errors -1, -3, 0 and 0, whose variance is 1.5; that of the returns is 4.25.
    assert (found.bias, found.explained_variance) == pytest.approx((-1.0, 1 - 1.5 / 4.25))
    assert [(part.actions, part.predicted, part.returned) for part in found.bins] == [(2, 0.5, 1.0), (2, 2.5, 4.0)]
    # A resample holds one of the two episodes, once: the upper bin then returned 6 or 2, the bias is -2 or 0.
    assert found.bins[1].returned_ci == (2.0, 6.0) and found.bias_ci == (-2.0, 0.0)
    same = calibration([np.ones(3)], [np.array([0.0, 1.0, 2.0])])
    assert same.correlation is None and len(same.bins) == 1


def test_equal_numbers_have_no_variance_though_their_mean_is_rounded() -> None:
    equal = np.full(7, -0.1)
    assert equal.std() > 0
    found = calibration([np.arange(7.0)], [equal])
    assert found.correlation is None and found.explained_variance is None
    assert calibration([equal], [np.arange(7.0)]).correlation is None


def test_two_short_episodes_say_nothing_about_a_correlation() -> None:
    """A resample holds one of the two, whose single action has no correlation."""
    found = calibration([np.array([0.0]), np.array([3.0])], [np.array([1.0]), np.array([2.0])])
    assert (found.correlation, found.correlation_ci) == (pytest.approx(1.0), None)
    assert found.bias_ci == (-1.0, 1.0)


def test_true_values_are_calibrated_and_others_are_not() -> None:
    draw = np.random.default_rng(0)
    values = [draw.normal(size=draw.integers(1, 6)) for _ in range(300)]
    returns = [episode + draw.normal(size=len(episode)) for episode in values]
    found = calibration(values, returns)
    assert found.correlation_ci is not None and found.correlation_ci.low < 0.5**0.5 < found.correlation_ci.high
    assert all(part.returned_ci.low < part.predicted < part.returned_ci.high for part in found.bins)
    other = calibration(values, [draw.normal(size=len(episode)) for episode in values])
    assert other.correlation_ci is not None and other.correlation_ci.low < 0 < other.correlation_ci.high


# -- which episodes, and what is said about them ----------------------------------------------------------------------


def dialogues(path: Path, count: int, **more: Any) -> Path:
    rows = []
    for number in range(count):
        texts = [f"Hi {number}", "Hello.", "Bye.", "See you."]
        messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]
        rows.append({"messages": messages, "rewards": [0, number % 3], **more})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_policy_is_judged_by_what_it_was_not_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = dialogues(tmp_path / "logs.jsonl", 50)
    data = OfflineDataModule(None, path=str(file), val_fraction=0.2, data_seed=3)
    data.setup("fit")
    module = made(ILQL, Window(tokens=400))
    module.made_with = data.facts()
    held = held_out_episodes(file, module)
    assert held.episodes == data.split()[1] and held.in_file == 50 and held.is_split and len(held.episodes) == 10
    other = dialogues(tmp_path / "other.jsonl", 20)
    assert len(held_out_episodes(other, module).episodes) == 20
    assert len(held_out_episodes(other, module, most=7).episodes) == 7
    # What it started from has learned from another part of the file.
    before = {"data_hash": hash_of_file(file), "val_fraction": 0.5, "data_seed": 4}
    module.made_with = {**data.facts(), "learned_from": [before, *files_learned_from(data.facts())]}
    both = held_out_mask(50, 0.2, 3) & held_out_mask(50, 0.5, 4)
    assert len(held_out_episodes(file, module).episodes) == both.sum() > 0
    module.made_with = {**data.facts(), "val_fraction": 0.0}
    with pytest.raises(UserError, match=r"trained on .*logs\.jsonl, and nothing of it was held out.*val_fraction=0\.2"):
        held_out_episodes(file, module)

    module.made_with = data.facts()
    module.export(tmp_path / "run")
    words = ["evaluate", str(file), "--policy", str(tmp_path / "run"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "10 of 50 episodes, held out from its training" in shown
    assert "note: 10 episodes say little" in shown and "note: V and Q estimate the returns of a better policy" in shown
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert scores["behaviour"] == "its BC policy (pi_beta)" and scores["provenance"]["data_hash"] == hash_of_file(file)
    assert scores["values"]["q"]["actions"] == scores["values"]["v"]["actions"] == 20
    assert main(words) == 0  # an evaluation of a file may be replaced
    (tmp_path / "out" / "scores.json").write_text('{"task": "maze_fo"}')
    assert main(words) == 2 and "holds scores.json" in capsys.readouterr().err
    for more, error in (
        (["--slots", "3"], "is read and not played: leave out slots"),
        (["--temperature", "-1"], "temperature must be at least 0"),
    ):
        assert main([*words[:-1], str(tmp_path / "new"), *more]) == 2
        assert error in capsys.readouterr().err
    assert main(["evaluate", str(file), "--policy", "random"]) == 2
    assert main(["evaluate", "maze_fo", "--policy", "random", "--behaviour", "x", "--out", str(tmp_path / "x")]) == 2
    assert "behaviour is for recorded episodes" in capsys.readouterr().err
    module.made_with = {**data.facts(), "task": "maze_fo"}
    module.export(tmp_path / "maze")
    assert main([*words[:-1], str(tmp_path / "new"), "--behaviour", str(tmp_path / "maze")]) == 2
    assert "maze was trained on maze_fo, and" in capsys.readouterr().err


def test_a_reply_that_no_policy_can_say_costs_its_episode_alone(tmp_path: Path) -> None:
    file = dialogues(tmp_path / "logs.jsonl", 40)
    rows = file.read_text().splitlines()
    rows[3] = rows[3].replace("Hello.", "Hello<|endoftext|>.")
    file.write_text("\n".join(rows) + "\n")
    episodes = list(read_dataset(file))
    module = made(ILQL, Window(tokens=400))
    found = evaluate_recorded(module, episodes)
    assert np.isfinite(found["nll"]) and np.isfinite(found["behaviour_nll"])
    assert found["off_policy"] is not None
    assert any(warning.startswith("1 episode left out of the off-policy estimate") for warning in found["warnings"])


def test_two_replies_are_judged_without_an_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for number in range(2):
        messages = [{"role": "user", "content": f"Hi {number}"}, {"role": "assistant", "content": "Hello."}]
        rows.append({"messages": messages, "rewards": [number]})
    (tmp_path / "logs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    made(MC, Window(tokens=400)).export(tmp_path / "run")
    words = ["evaluate", str(tmp_path / "logs.jsonl"), "--policy", str(tmp_path / "run")]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    assert "explained variance" in capsys.readouterr().out
    values = json.loads((tmp_path / "out" / "scores.json").read_text())["values"]
    assert values["q"]["correlation_ci"] is None


def test_a_policy_that_writes_otherwise_is_not_estimated_in_silence(tmp_path: Path) -> None:
    module = made(ILQL, Window(tokens=400))
    file = dialogues(tmp_path / "logs.jsonl", 60, logprobs=[-0.1, -0.1])
    found = evaluate_recorded(module, held_out_episodes(file, module).episodes)
    assert found["behaviour"] == "logprobs of the file"
    assert any(note.startswith("do not trust the off-policy estimate") for note in found["warnings"])
    greedy = evaluate_recorded(module, held_out_episodes(file, module).episodes, temperature=0.0)
    assert greedy["off_policy"] is None and "none of the recorded replies" in greedy["warnings"][-1]
    cut = [Episode("dialogues", ("Hi\n", "Oh\n"), ("Hello.\n",), (1.0,), False, True)] * 30
    assert "30 episodes that were cut short" in " ".join(evaluate_recorded(module, cut)["warnings"])


def test_system_messages_are_read_as_in_training(tmp_path: Path) -> None:
    file = dialogues(tmp_path / "logs.jsonl", 20)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["messages"].insert(0, {"role": "system", "content": f"You are {number}."})
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    module = made(BC, Window(tokens=400))
    episodes = held_out_episodes(file, module).episodes
    read = [with_system_in_front(episode) for episode in episodes]
    assert read[3].observations[0] == "You are 3.\n\nHi 3\n"
    scores = list(action_scores(module, read))
    expected = sum(score.nll.sum() for score in scores) / sum(score.tokens.sum() for score in scores)
    assert evaluate_recorded(module, episodes)["nll"] == pytest.approx(expected)
    assert list(token_values(module, episodes)) == list(token_values(module, read))
    # Trained with data.init_args.system="", which leaves them out.
    module.made_with["system_in_front"] = False
    without = [replace(episode, info={}) for episode in episodes]
    assert evaluate_recorded(module, episodes)["nll"] == evaluate_recorded(module, without)["nll"] != expected
