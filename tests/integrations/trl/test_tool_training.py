"""The tasks in TRL: real trainers, whose model really calls the tool, and a reward that is the game's return."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from lmrl.integrations.hf_datasets import conversations_dataset, prompts_dataset
from lmrl.integrations.trl import environment_factory, episode_return
from lmrl.models.tokenizer import load_tokenizer

trl = pytest.importorskip("trl")
from datasets import concatenate_datasets  # noqa: E402 (comes with trl)
from trl.chat_template_utils import qwen2_5_chat_template  # noqa: E402

from tests.helpers.mazes import near_the_goal  # noqa: E402

WAY = ("move down", "move down")
"""From the start of `near_the_goal` to the goal."""
CALL = '<tool_call>\n{"name": "act", "arguments": {"action": "%s"}}\n</tool_call>'
QUIET = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1}


def tokenizer() -> PreTrainedTokenizerBase:
    """The bundled one, with the template and the special tokens of Qwen 2.5."""
    made = load_tokenizer("lmrl")
    made.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    made.add_tokens(["<tool_call>", "</tool_call>"])
    made.chat_template = qwen2_5_chat_template
    return made


def model(kind: Any = Qwen3ForCausalLM) -> Any:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 8, "vocab_size": 1284}
    return kind(Qwen3Config(num_attention_heads=2, num_key_value_heads=2, **shape))


def grpo(root: Path, data: Any, factory: Any, rewards: Any = episode_return, brain: Any = None, **more: Any) -> Any:
    given = {"num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 200, "max_steps": 1}
    return trl.GRPOTrainer(
        model=brain or model(),
        reward_funcs=rewards,
        args=trl.GRPOConfig(str(root), **{**QUIET, **given, **more}),
        train_dataset=data,
        processing_class=tokenizer(),
        environment_factory=factory,
    )


@pytest.mark.nightly
def test_a_model_that_never_calls_its_tool_gets_what_silence_gets(tmp_path: Path) -> None:
    """With a dictionary of factories: two tasks in one batch."""
    rows = concatenate_datasets([prompts_dataset("maze_fo", 1), prompts_dataset("twenty_questions", 1)])
    factories = {
        "maze_fo": environment_factory("maze_fo", max_steps=4),
        "twenty_questions": environment_factory("twenty_questions"),
    }
    trainer = grpo(tmp_path, rows, factories, per_device_train_batch_size=4, max_completion_length=4)
    trainer.train()
    returns = {environment.episode.task: environment.reward for environment in trainer.environments}
    assert returns == {"maze_fo": -17.0, "twenty_questions": -20.0}
    for one, two in zip(trainer.environments[::2], trainer.environments[1::2], strict=True):
        assert one.episode == two.episode, "generations of one prompt begin alike"
    log = trainer.state.log_history[0]
    assert log["rewards/episode_return/mean"] == -18.5 and log["tools/call_frequency"] == 0.0
    assert (log["unfinished"], log["success"], log["frac_reward_zero_std"]) == (1.0, 0.0, 1.0)


class Decided(Qwen3ForCausalLM):
    """A network that says what its test decides, row by row of a batch; all else is as it was."""

    def speak(self, speech: PreTrainedTokenizerBase, ways: Sequence[Sequence[str]]) -> None:
        self._speech = speech
        self._ways = ways

    def generate(self, input_ids: torch.Tensor, **settings: Any) -> torch.Tensor:
        said = []
        for row, read in enumerate(self._speech.batch_decode(input_ids)):
            turn = read.count("<tool_response>")
            way = self._ways[row] if turn < len(self._ways[row]) else ()
            said.append(self._speech.encode(CALL % way[turn] + "<|im_end|>" if way else "<|im_end|>"))
        longest = max(map(len, said))
        padded = [ids + [self._speech.pad_token_id] * (longest - len(ids)) for ids in said]
        return torch.cat([input_ids, torch.tensor(padded)], dim=1)


@pytest.mark.nightly
def test_calls_of_the_tool_are_played_and_the_better_episode_becomes_more_likely(tmp_path: Path) -> None:
    speech = tokenizer()
    brain = model(Decided)
    good = WAY
    bad = ("move left", "fly")
    brain.speak(speech, (good, bad))
    heard: list[Any] = []

    def note(prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> list[float]:
        heard.extend(zip(prompts, completions, completion_ids, strict=True))
        return [0.0] * len(prompts)

    rows = prompts_dataset("maze_fo", 1)
    rows = rows.remove_columns("seed").add_column("seed", [near_the_goal()])
    factory = environment_factory("maze_fo", max_steps=4)
    trainer = grpo(tmp_path, rows, factory, [episode_return, note], brain, learning_rate=1e-3)
    trainer.train()
    one, two = trainer.environments
    assert one.episode.actions == ("move down\n", "move down\n") and one.episode.success and one.reward == -1.0
    assert two.episode.actions == ("move left\n", "fly\n", "\n", "\n", "\n") and two.reward == -1.0 - 4.0 * 3 - 1.0
    log = trainer.state.log_history[0]
    assert log["tools/call_frequency"] == 2.0 and log["tools/failure_frequency"] == 0.0
    assert (log["success"], log["unfinished"], log["rewards/episode_return/mean"]) == (0.5, 0.5, -7.5)
    (prompt, completion, ids), (_, _, other) = heard
    assert prompt[0] == rows[0]["prompt"][0]
    taught = conversations_dataset([one.episode])[0]["messages"]
    assert [without_none(message) for message in taught] == [*prompt, *completion]

    fork = next(place for place, pair in enumerate(zip(ids, other, strict=False)) if pair[0] != pair[1])
    tools = json.loads(conversations_dataset([one.episode])[0]["tools"])
    start = speech.apply_chat_template(prompt, tools=tools, add_generation_prompt=True, return_dict=False)
    assert "down" in speech.decode(ids[fork]) and "left" in speech.decode(other[fork])
    read = torch.tensor([start + ids[:fork]])
    old, new = (network(read).logits[0, -1].detach() for network in (model(), brain))
    assert new[ids[fork]] - new[other[fork]] > old[ids[fork]] - old[other[fork]]


@pytest.mark.nightly
def test_calls_after_the_end_are_told_to_the_model_and_are_no_moves(tmp_path: Path) -> None:
    brain = model(Decided)
    heard = []
    brain.speak(tokenizer(), ((*WAY, "move up"), WAY))

    def note(completions: Any, **columns: Any) -> list[float]:
        heard.extend(completions)
        return [0.0] * len(completions)

    rows = prompts_dataset("maze_fo", 1).remove_columns("seed").add_column("seed", [near_the_goal()])
    rewards = [episode_return, note]
    trainer = grpo(tmp_path, rows, environment_factory("maze_fo"), rewards, brain, max_completion_length=400)
    trainer.train()
    assert [environment.reward for environment in trainer.environments] == [-1.0, -1.0]
    assert "the last one is over" in heard[0][-2]["content"] and heard[0][-2]["role"] == "tool"
    log = trainer.state.log_history[0]
    assert log["tools/call_frequency"] == 2.5 and log["tools/failure_frequency"] == pytest.approx(0.2)


def without_none(message: dict[str, Any]) -> dict[str, Any]:
    """Rows of a dataset have the same fields, so those of other messages are None."""
    return {name: value for name, value in message.items() if value is not None}


@pytest.mark.slow
def test_a_step_of_training_plays_a_served_task(tmp_path: Path) -> None:
    """Over the network it is the same game, and the same loss."""
    pytest.importorskip("websockets")
    from tests.helpers.served import serving

    rows = prompts_dataset("maze_fo", 1)
    rows = rows.remove_columns("seed").add_column("seed", [near_the_goal()])
    losses = []
    with serving("maze_fo", max_steps=4) as url:
        for number, factory in enumerate(
            (environment_factory("maze_fo", max_steps=4), environment_factory(f"openenv:{url}"))
        ):
            brain = model(Decided)
            brain.speak(tokenizer(), (WAY, ("move left", "fly")))
            before = brain.state_dict()["lm_head.weight"].clone()
            trainer = grpo(tmp_path / str(number), rows, factory, episode_return, brain, learning_rate=1e-3)
            trainer.train()
            good, bad = trainer.environments
            assert good.episode.success and good.reward == -1.0 and bad.episode.actions[:2] == ("move left\n", "fly\n")
            assert not torch.equal(before, brain.state_dict()["lm_head.weight"].cpu()), "it has learned"
            losses.append((trainer.state.log_history[0]["loss"], good.episode.observations))
    assert losses[0] == losses[1]
