"""Raw-text episodes in a real `GRPOTrainer`: the ids and masks that TRL trains on are those that lmrl reads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM, PreTrainedTokenizerBase

from lmrl.envs.registry import chat_prompt
from lmrl.errors import UserError
from lmrl.integrations.trl import TextRollout, episode_return
from lmrl.models.tokenizer import load_tokenizer
from lmrl.policies.chat.policy import system_prompt
from lmrl.tokens.encoding import Window, encoder_for
from lmrl.tokens.segments import segments
from lmrl.types import Reply, Request

trl = pytest.importorskip("trl")
from datasets import Dataset  # noqa: E402 (comes with trl)
from trl.chat_template_utils import qwen2_5_chat_template  # noqa: E402

from lmrl.integrations.hf_datasets import prompts_dataset, seeds_dataset  # noqa: E402
from tests.helpers.mazes import near_the_goal  # noqa: E402

QUIET = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1}
WAY = ("move down\n", "move down\n")
"""From the start of `near_the_goal` to the goal."""


def tokenizer() -> PreTrainedTokenizerBase:
    """Return the bundled tokenizer with the template and the special tokens of Qwen 2.5."""
    made = load_tokenizer("lmrl")
    made.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    made.chat_template = qwen2_5_chat_template
    return made


def model(positions: int = 512) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": len(tokenizer())}
    return GPT2LMHeadModel(GPT2Config(**shape, n_positions=positions, bos_token_id=0, eos_token_id=0))


def grpo(
    root: Path, rollout: TextRollout, rewards: Any = episode_return, brain: Any = None, lora: Any = None, **more: Any
) -> Any:
    given = {"num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 300, "max_steps": 1}
    return trl.GRPOTrainer(
        model=brain or model(),
        peft_config=lora,
        reward_funcs=rewards,
        args=trl.GRPOConfig(str(root), **{**QUIET, **given, **more}),
        train_dataset=Dataset.from_list([{"prompt": str(near_the_goal())}]),
        processing_class=tokenizer(),
        rollout_func=rollout,
    )


class Trained:
    """Records the batches that the loss of a trainer gets."""

    def __init__(self, trainer: Any) -> None:
        self.batches: list[dict[str, torch.Tensor]] = []
        self._loss = trainer._compute_loss
        trainer._compute_loss = self._note

    def _note(self, network: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        self.batches.append(inputs)
        return self._loss(network, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("rendering", ["text", "chat"])
def test_what_is_trained_on_is_what_lmrl_reads_of_the_episode(rendering: str, tmp_path: Path) -> None:
    heard: list[Any] = []

    def note(environments: Any, completion_ids: Any, **columns: Any) -> list[float]:
        """Note the episodes. Their rewards differ, so that something is learned even if their returns are equal."""
        heard.extend(environment.episode for environment in environments)
        return [100.0 * number for number in range(len(environments))]

    rollout = TextRollout("maze_fo", rendering, max_new_tokens=6, max_steps=4)
    trainer = grpo(tmp_path, rollout, [note, episode_return])
    trained = Trained(trainer)
    before = {name: one.clone() for name, one in trainer.model.state_dict().items()}
    trainer.train()
    (batch,) = trained.batches
    system = system_prompt(chat_prompt("maze_fo"), {}) if rendering == "chat" else ""
    window = Window(None, 1024, rendering, system)
    encoder = encoder_for(tokenizer(), window)
    expected = set()
    for episode in heard:
        assert len(episode) == 5 and episode.truncated, "four steps, and a last one"
        (segment,) = segments(episode, encoder, window)
        said = np.zeros(len(segment.ids), dtype=int)
        said[segment.col + 1] = 1
        expected.add((tuple(segment.ids.tolist()), tuple(said.tolist())))
    assert len(expected) == 2, "generations of a prompt are sampled apart"
    found = set()
    for row in range(2):
        prompt, reads = (batch[name][row][batch["prompt_mask"][row] == 1] for name in ("prompt_ids", "prompt_mask"))
        here = batch["completion_mask"][row] == 1
        ids = [*prompt.tolist(), *batch["completion_ids"][row][here].tolist()]
        found.add((tuple(ids), (*[0] * len(reads), *batch["tool_mask"][row][here].tolist())))
    assert found == expected
    assert heard[0].observations[0] == heard[1].observations[0] and heard[0].seed == near_the_goal()
    log = trainer.state.log_history[0]
    assert log["rewards/episode_return/mean"] == np.mean([episode.total_reward for episode in heard])
    assert any(not torch.equal(before[name], one) for name, one in trainer.model.state_dict().items())


@pytest.mark.parametrize("rendering", ["text", "chat"])
def test_what_is_sampled_has_the_probability_that_the_model_gives_it(rendering: str, tmp_path: Path) -> None:
    rollout = TextRollout("maze_fo", rendering, max_new_tokens=6, max_steps=4)
    trainer = grpo(tmp_path, rollout, temperature=0.5, top_k=40)
    columns = rollout([str(near_the_goal())] * 2, trainer)
    for prompt, completion, mask, given in zip(
        *(columns[name] for name in ("prompt_ids", "completion_ids", "env_mask", "logprobs")), strict=True
    ):
        with torch.no_grad():
            logits = trainer.model.eval()(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / 0.5
        words = tokenizer()
        never = [one for one in words.all_special_ids if rendering == "text" or one != words.eos_token_id]
        logits[:, never] = -torch.inf
        least = logits.topk(40).values[:, -1:]
        reads = logits.masked_fill(logits < least, -torch.inf).log_softmax(-1)
        reads = reads.gather(1, torch.tensor(completion)[:, None])[:, 0]
        chosen = torch.tensor(mask) == 1
        torch.testing.assert_close(torch.tensor(given)[chosen], reads[chosen], atol=1e-4, rtol=1e-4)
        assert not torch.tensor(given)[~chosen].any()


def test_a_model_reads_what_fits_into_its_attention_window(tmp_path: Path) -> None:
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    brain = MistralForCausalLM(
        MistralConfig(**shape, num_key_value_heads=2, vocab_size=len(tokenizer()), sliding_window=100)
    )
    assert brain.config.max_position_embeddings > 1_000
    rollout = TextRollout("maze_fo", "text", max_new_tokens=6, max_steps=20)
    columns = rollout([str(near_the_goal())] * 2, grpo(tmp_path, rollout, brain=brain))
    lengths = [len(columns["prompt_ids"][row]) + len(columns["completion_ids"][row]) for row in range(2)]
    assert 60 < max(lengths) <= 100


class Scripted:
    """A policy in place of `LMPolicy` that says what its test decides, slot by slot."""

    ways: Sequence[Sequence[str]] = ()

    def __init__(self, model: Any, words: PreTrainedTokenizerBase, window: Window, **settings: Any) -> None:
        self._encoder = encoder_for(words, window)

    def reset(self) -> None:
        self.draws: list[int] = []

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        replies = []
        for request in requests:
            text = self.ways[request.slot][request.turn]
            ids = self._encoder.action(text)
            replies.append(Reply(text, ids, (-1.0,) * len(ids)))
        return replies


def logprob(network: GPT2LMHeadModel, read: str, said: str) -> float:
    words = encoder_for(tokenizer(), None)
    ids = torch.tensor([words.encode(read) + words.encode(said)])
    with torch.no_grad():
        scores = network.eval()(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    return float(scores[len(words.encode(read)) - 1 :].sum())


@pytest.mark.nightly
@pytest.mark.parametrize("served", [False, True])
def test_the_better_episode_becomes_more_likely(served: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("websockets")
    from tests.helpers.served import serving

    monkeypatch.setattr("lmrl.integrations.trl.raw_text.LMPolicy", Scripted)
    monkeypatch.setattr(Scripted, "ways", (WAY, ("move left\n", "fly\n", "x\n", "x\n", "x\n")))
    brain = model()
    with serving("maze_fo", max_steps=4) as url:
        rollout = TextRollout(f"openenv:{url}") if served else TextRollout("maze_fo", max_steps=4)
        trainer = grpo(tmp_path, rollout, brain=brain, learning_rate=1e-3, max_completion_length=400)
        trainer.train()
        good, bad = (environment.episode for environment in rollout._environments)
    assert good.actions == WAY and good.success and good.total_reward == -1.0
    assert bad.actions[:2] == ("move left\n", "fly\n") and bad.total_reward == -1.0 - 4.0 * 3 - 1.0
    log = trainer.state.log_history[0]
    assert (log["success"], log["unfinished"], log["rewards/episode_return/mean"]) == (0.5, 0.0, -7.5)
    (first, *_), old = good.observations, model()
    gains = [
        logprob(brain.cpu(), first, action) - logprob(old, first, action) for action in ("move down\n", "move left\n")
    ]
    assert gains[0] > gains[1]


def test_no_action_is_cut_and_what_has_no_room_goes_on_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmrl.integrations.trl.raw_text.LMPolicy", Scripted)
    monkeypatch.setattr(Scripted, "ways", [["move left\n"] * 9] * 2)
    words = encoder_for(tokenizer(), None)
    rollout = TextRollout("maze_fo", max_new_tokens=8, max_steps=4)
    trainer = grpo(tmp_path, rollout, max_completion_length=8)
    columns = rollout([str(near_the_goal())] * 2, trainer)
    assert columns["completion_ids"] == [[*words.encode("move left\n")]] * 2, "one turn, and no room for another"
    observed = len(words.encode(columns["environments"][0].episode.observations[1]))
    said = len(words.encode("move left\n"))
    for room, turns in ((said + observed + 7, 1), (said + observed + 8, 2)):
        trainer = grpo(tmp_path, rollout, max_completion_length=room)
        columns = rollout([str(near_the_goal())] * 2, trainer)
        assert sum(columns["env_mask"][0]) == said * turns and len(columns["completion_ids"][0]) <= room
    told: dict[str, float] = {}
    assert episode_return(columns["environments"], told.__setitem__) == [2 * -1.0 + 2 * -4.0 - 1.0] * 2
    assert told == {"success": 0.0, "unfinished": 1.0}


def test_generations_differ_from_call_to_call_and_repeat_with_the_seed_of_the_trainer(tmp_path: Path) -> None:
    def played(seed: int) -> list[list[int]]:
        rollout = TextRollout("maze_fo", max_new_tokens=6, max_steps=4)
        trainer = grpo(tmp_path, rollout, seed=seed)
        return [ids for _ in range(2) for ids in rollout([str(near_the_goal())], trainer)["completion_ids"]]

    first, second = played(0)
    assert first != second and played(0) == [first, second] and played(1)[0] not in (first, second)


@pytest.mark.nightly
def test_adapters_are_trained(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    rollout = TextRollout("maze_fo", max_new_tokens=6, max_steps=4)
    rewards = lambda environments, **_: [float(len(one.episode.actions[0])) for one in environments]  # noqa: E731
    lora = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    trainer = grpo(tmp_path, rollout, rewards, lora=lora)
    trainer.train()
    weights = [one for name, one in trainer.model.named_parameters() if "lora_B" in name]
    assert weights and any(one.abs().sum() > 0 for one in weights)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"max_completion_length": 5}, r"max_completion_length \(5\) must have room for an action \(6 tokens"),
        ({"min_p": 0.1}, "min_p to be left out"),
        ({"mask_truncated_completions": True}, "mask_truncated_completions to be left out"),
        ({"repetition_penalty": 1.2}, "repetition_penalty 1, got 1.2"),
    ],
)
def test_settings_that_cannot_be_followed_are_errors(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    rollout = TextRollout("maze_fo", max_new_tokens=6)
    trainer = grpo(tmp_path, rollout, **more)
    for _ in range(2):
        with pytest.raises(UserError, match=said):
            rollout([str(near_the_goal())], trainer)


def test_what_is_no_seed_and_what_does_not_fit_are_errors(tmp_path: Path) -> None:
    rollout = TextRollout("maze_fo", max_new_tokens=6)
    trainer = grpo(tmp_path, rollout)
    for prompt in ("go", "-1", "1" * 19, [{"role": "user", "content": "1"}]):
        with pytest.raises(UserError, match="a prompt must be the seed of an episode"):
            rollout([prompt], trainer)
    trainer = grpo(tmp_path, rollout, brain=model(20))
    with pytest.raises(UserError, match=r"seed 3 and an action of 6 tokens do not fit into the model's 20 positions"):
        rollout(["3"], trainer)
    with pytest.raises(UserError, match="unknown task 'sudoku'"):
        TextRollout("sudoku")
    with pytest.raises(UserError, match="unknown rendering 'json'"):
        TextRollout("maze_fo", "json")
    with pytest.raises(UserError, match="max_new_tokens"):
        TextRollout("maze_fo", max_new_tokens=0)


def test_prompts_are_the_seeds_of_the_other_dataset() -> None:
    rows = seeds_dataset(3, seed=1)
    assert rows.column_names == ["prompt"]
    assert [int(row["prompt"]) for row in rows] == prompts_dataset("maze_fo", 3, seed=1)["seed"][:]
    with pytest.raises(UserError, match="size must be at least 1, got 0"):
        seeds_dataset(0)
