"""Learning curves of GRPO compared with those of AgileRL's `GRPO`: return over played episodes and over seconds.

Both sides start from the same policy of the zoo and train adapters of rank 16 on all linear layers, because AgileRL
trains nothing else. Rounds, sampling, loss and clipping are those of `benchmarks.peers.learning`; the learning rate and
the weight decay are larger. AgileRL plays in its own loop, without a server in between, and reads the bare texts of the
game, which have the same tokens on both sides (a test compares them).

What is not equal: AgileRL divides advantages by the sample's standard deviation, lmrl by the population's. The starts
come from the same distribution, but are not the same ones. The ids that no token has cannot be sampled by lmrl.

AgileRL replaces layers of Llama models by Triton kernels wherever their package is installed. They need a GPU, so this
module turns that off.

Seconds are those that the process computes on one thread. A run takes more than an hour, so each training is kept in
`CURVES` and not repeated. Delete that file to start over.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import torch
import transformers
from agilerl.algorithms import GRPO
from agilerl.algorithms.core import base as agilerl_base
from agilerl.llm_envs import RolloutHarness
from agilerl.training.llm import train_llm_rollout
from peft import LoraConfig
from transformers import PreTrainedTokenizerBase

import lmrl
from benchmarks.peers import curves
from benchmarks.peers.beside import OURS
from benchmarks.peers.curves import EPISODES, GROUP_SIZE, GROUPS, Curve
from benchmarks.row import Row
from lmrl.envs.registry import task as find_task
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer

__all__ = ["AGILERL", "CURVES", "ours", "run", "theirs"]

PACKAGES = ("agilerl", "transformers", "peft")
AGILERL = "AgileRL"
LR = 1e-3
WEIGHT_DECAY = 0.01  # of torch's AdamW, which AgileRL does not change
RANK = 16
TASKS: dict[str, tuple[int, int]] = {"wordle": (6, 100), "twenty_questions": (20, 20)}
"""Turns of an episode, and rounds."""
CURVES = Path(__file__).parents[1] / "results" / "learning_agilerl.json"

ours = partial(curves.ours, lr=LR, weight_decay=WEIGHT_DECAY, lora={"r": RANK, "lora_alpha": RANK})


class _Game:
    """A game as an environment of AgileRL."""

    system_prompt = ""

    def __init__(self, task: str) -> None:
        self._env = lmrl.make(task)

    def reset(self, seed: int | None = None, **columns: Any) -> tuple[str, dict[str, Any]]:
        text, _ = self._env.reset(seed=seed)
        return text, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, reward, terminated, truncated, _ = self._env.step(action)
        return text, float(reward), terminated, truncated, {}


class _Enough(Exception):
    """The last round has been learned from; AgileRL itself counts turns and not rounds."""


def theirs(task: str, start: Path, folder: Path, seed: int, rounds: int) -> Curve:
    """Train with AgileRL; the arguments are those of `benchmarks.peers.curves.ours`."""
    turns, _ = TASKS[task]
    torch.manual_seed(seed)
    transformers.logging.set_verbosity_error()  # `generate` warns at each turn that the model has a maximum length
    tokenizer = load_tokenizer(str(start))
    agent = agent_of(task, start, tokenizer, seed)
    learn = agent.learn
    curve: Curve = []

    def noted(experiences: Any, **settings: Any) -> Any:
        found = learn(experiences, **settings)
        _, _, rewards = experiences
        assert len(rewards) == EPISODES
        curve.append((process_time() - began, float(rewards.sum(dim=1).mean())))
        if len(curve) == rounds:
            raise _Enough
        return found

    agent.learn = noted
    began = process_time()
    never = 10**9
    try:
        train_llm_rollout(
            [agent],
            max_turns=turns,
            env_factory=lambda: harness_of(task, tokenizer, agent.max_model_len),
            max_steps=never,
            evaluation_interval=never,
            verbose=False,
        )
    except _Enough:
        pass
    return curve


def agent_of(task: str, start: Path, tokenizer: PreTrainedTokenizerBase, seed: int) -> Any:
    """Return AgileRL's agent.

    Args:
        task: the task.
        start: the folder of the policy to start from.
        tokenizer: of the policy.
        seed: the training seed.
    """
    agilerl_base.HAS_LIGER_KERNEL = False
    model = build_lm(str(start), {}, len(tokenizer), dtype=torch.float32)
    return GRPO(
        pad_token_id=tokenizer.pad_token_id,
        pad_token=tokenizer.pad_token,
        actor_network=model,
        lora_config=LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear", task_type="CAUSAL_LM"),
        seed=1_000_000 * (1 + seed),  # of the starts, too: apart from those of evaluation
        batch_size=GROUPS,
        group_size=GROUP_SIZE,
        lr=LR,
        beta=0.0,
        max_grad_norm=1.0,
        temperature=1.0,
        top_k=0,
        max_output_tokens=find_task(task).max_action_tokens,
        max_model_len=model.config.max_position_embeddings,
        adv_norm="mean_std",
        advantage_granularity="trajectory",
        loss_norm="episode",
        off_policy_token_mask_bounds=None,
        off_policy_sequence_mask_threshold=None,
        use_separate_reference_adapter=False,
        use_liger_loss=False,
        gradient_checkpointing=False,
        device="cpu",
    )


def harness_of(task: str, tokenizer: PreTrainedTokenizerBase, positions: int) -> Any:
    """Return AgileRL's view of a game: bare texts, one after the other."""
    turns, _ = TASKS[task]
    return RolloutHarness.local(
        _Game(task), tokenizer, max_turns=turns, apply_chat_template=False, max_model_len=positions
    )


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks.peers learning_agilerl`. The curves go to `CURVES`."""
    rounds = {task: number for task, (_, number) in TASKS.items()}
    return curves.learned(CURVES, rounds, {OURS: ours, AGILERL: theirs})
