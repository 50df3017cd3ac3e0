"""AgileRL's GRPO on a task of `lmrl serve`: one real step, its episodes and its rewards are the game's."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerBase

pytest.importorskip(
    "agilerl", reason="AgileRL needs another transformers: `make agilerl` tests it in an environment of its own"
)
import lmrl
from lmrl.models.tokenizer import load_tokenizer
from tests.helpers.mazes import near_the_goal
from tests.helpers.served import serving

# What AgileRL and its packages say of themselves.
pytestmark = pytest.mark.filterwarnings("ignore")

GOOD = ("move down", "move down")
BAD = ("move left", "fly", "x", "x", "x")
"""From the start of `near_the_goal` to the goal; and until the game cuts it."""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerBase:
    made = load_tokenizer("lmrl")
    made.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    made.chat_template = TEMPLATE
    return made


class Decided(GPT2LMHeadModel):
    """A network that says what its test decides; all else is as it was."""

    def speak(self, speech: PreTrainedTokenizerBase, ways: Sequence[Sequence[str]]) -> None:
        self._speech = speech
        self._ways = ways
        self._begun = 0

    def generate(self, input_ids: torch.Tensor, **settings: Any) -> torch.Tensor:
        read = self._speech.decode(input_ids[0])
        turn = read.count("<|im_start|>assistant") - 1
        if turn == 0:
            self._begun += 1
        way = self._ways[self._begun - 1] if turn == 0 else next(way for way in self._ways if way[0] in read)
        said = self._speech.encode(f"{way[turn]}<|im_end|>")
        return torch.cat([input_ids, torch.tensor([said])], dim=1)


def test_a_step_of_training_plays_a_served_task(monkeypatch: pytest.MonkeyPatch) -> None:
    from agilerl.algorithms import GRPO
    from agilerl.llm_envs import RolloutHarness
    from agilerl.training.llm import train_llm_rollout
    from peft import LoraConfig

    speech = tokenizer()
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 512, "vocab_size": len(speech)}
    brain = Decided(GPT2Config(**shape, bos_token_id=0, eos_token_id=speech.eos_token_id))
    brain.speak(speech, (GOOD, BAD))
    lora = LoraConfig(r=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    agent = GRPO(
        pad_token_id=speech.pad_token_id,
        pad_token=speech.pad_token,
        actor_network=brain,
        batch_size=1,
        group_size=2,
        max_model_len=512,
        max_output_tokens=8,
        lora_config=lora,
        use_liger_loss=False,
        gradient_checkpointing=False,
        lr=1e-2,
        device="cpu",
    )
    learned: list[Any] = []
    learn = agent.learn
    monkeypatch.setattr(agent, "learn", lambda *given, **more: (learned.append(given[0]), learn(*given, **more))[1])
    start = speech.encode(f"<|im_start|>user\n{first_text()}<|im_end|>\n<|im_start|>assistant\n")
    before = fork(agent, start, speech)
    with serving("maze_fo", max_steps=4) as url:
        train_llm_rollout(
            [agent],
            max_turns=5,
            env_factory=lambda: RolloutHarness(
                url,
                speech,
                max_turns=5,
                action_field="text",
                observation_field="text",
                action_processor=lambda said: f"{said}\n",
                max_model_len=512,
                tasks=[{"seed": near_the_goal()}],
            ),
            max_steps=1,
            verbose=False,
        )
    ((ids, masks, rewards),) = learned
    assert [float(row.sum()) for row in rewards] == [-1.0, -1.0 - 4.0 * 3 - 1.0]
    for row, mask, way in zip(ids, masks, (GOOD, BAD), strict=True):
        said = speech.decode(row[0, 1:][mask[0]])
        assert said == "".join(f"{action}<|im_end|>" for action in way), "only what the model said is trained"
        assert speech.decode(row[0]).startswith(speech.decode(start))
    assert fork(agent, start, speech) > before, "the better way became more likely"


def first_text() -> str:
    return lmrl.make("maze_fo").reset(seed=near_the_goal())[0]


def fork(agent: Any, start: Sequence[int], speech: PreTrainedTokenizerBase) -> float:
    """How much more likely the first token is that only the good way has."""
    both = [speech.encode(way[0]) for way in (GOOD, BAD)]
    place = next(place for place, pair in enumerate(zip(*both, strict=False)) if pair[0] != pair[1])
    with torch.no_grad():
        logits = agent.actor.eval()(torch.tensor([[*start, *both[0][:place]]])).logits[0, -1]
    return float(logits[both[0][place]] - logits[both[1][place]])
