"""Rounds of GRPO and PPO compared with TRL's `GRPOTrainer`: playing and learning, on the same games and tokens.

Both sides start from the same weights file (4 layers of 128, random), play 32 episodes of 8 starts at once with their
own loop (TRL with ``environment_factory``), and take one step of AdamW on all of them, with a reference model for the
KL penalty, gradients clipped at 1, in float32 on one thread. The whole history is read on both sides and nothing else:
TRL's messages are the bare texts of the game, and whatever its model says is a call of its tool, so that both train on
the same kind of sequence, ``observation, action, observation, ...`` (`Bare` says how; a test holds them together). The
learning rate is so small that actions stay as long as they are.

TRL 1.16 has no PPO and no other trainer that plays. Our PPO is therefore compared with TRL's GRPO. Its critic is the
default one, which learns from each round before the policy does; that time counts as learning.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import lightning as L
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import lmrl
from benchmarks.engine import chatty_lm
from benchmarks.peers.beside import OURS, REPEATS, alternating, beside
from benchmarks.peers.curves import WholeHistory, quiet_trainer
from benchmarks.row import Row
from lmrl.callbacks import RolloutCollection
from lmrl.envs.registry import task as find_task
from lmrl.integrations.hf_datasets import datasets_package
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import GRPO, PPO, LanguageModule
from lmrl.policies.lm import stop_ids
from lmrl.tokens.encoding import Encoder

__all__ = ["Bare", "bare_tokenizer", "run", "trl_trainer"]

PACKAGES = ("trl", "transformers", "accelerate", "datasets")
GROUPS = 8
GROUP_SIZE = 4
EPISODES = GROUPS * GROUP_SIZE
ROUNDS = 2
"""The counted rounds of a block; one more round comes first and is not counted."""
LR = 1e-7
KL = 0.001
TASKS: dict[str, tuple[int, dict[str, Any]]] = {"maze_fo": (10, {"max_steps": 10}), "wordle": (6, {})}
"""Turns of an episode, and arguments of the environment."""
TRL = "TRL"
ASKED = {TRL: ">= 2x"}
_ALWAYS: dict[str, Any] = {
    "temperature": 1.0,
    "top_k": 0,
    "lr_scheduler_type": "constant",
    "loss_type": "grpo",
    "gradient_checkpointing": False,
    "bf16": False,
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "logging_steps": 1000,
    "disable_tqdm": True,
    "shuffle_dataset": False,
}
"""The settings of TRL in every comparison."""


class Block(NamedTuple):
    """The times of a block of rounds of one side."""

    seconds: float
    """Seconds per round."""
    playing: float
    """The part of them for playing."""
    ends: float = 0.0
    """The part of them for reading V after the last observation of episodes that were cut."""


# A message is its text and nothing else. The other words are there for TRL's check of templates, which looks for them.
# They are never trained on: completions are kept as they were sampled.
_TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}"
    "{{ c.function.arguments }}{% endfor %}{{ '\\n' }}{% endif %}{% endfor %}"
)


def bare_tokenizer(made: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Give one of our tokenizers a template of bare texts, and parse every completion as a call of the tool ``act``."""
    encoder = Encoder(made)
    (newline,) = made.encode("\n", add_special_tokens=False)
    made.eos_token = made.convert_ids_to_tokens(newline)
    made.chat_template = _TEMPLATE

    def parse_response(ids: Sequence[int], **_: Any) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": "act", "arguments": {"action": encoder.decode(ids)}}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    made.parse_response = parse_response
    made.response_template = {"defaults": {"role": "assistant"}, "fields": {}}
    return made


class Bare:
    """A game as an environment of TRL; `episode_return` makes its last move and gives its return."""

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        self._env = lmrl.make(name, **arguments)
        self.texts: list[str] = []

    def reset(self, seed: int, **columns: Any) -> str:
        """Start the game and return the first text."""
        text, _ = self._env.reset(seed=seed)
        self._rewards = 0.0
        self._over = False
        self.texts = [text]
        return text

    def act(self, action: str) -> str:
        """Make a move.

        Args:
            action: the move.
        """
        if self._over:
            return ""
        text, reward, terminated, truncated, _ = self._env.step(action)
        self._rewards = self._rewards + float(reward)
        self._over = terminated or truncated
        self.texts += [action, text]
        return text

    def leave_out_rest(self, mask: list[int]) -> None:
        """Set the mask of what the model said to 0 from the end of the game on.

        Args:
            mask: 1 for tokens of the model, 0 for texts of the game.
        """
        if not self._over:
            return
        moves = len(self.texts) // 2
        begun = 0
        before = 0
        for place, own in enumerate(mask):
            if own and not before:
                begun += 1
            before = own
            if begun > moves:
                mask[place] = 0


def episode_return(
    environments: Sequence[Bare], completions: Sequence[Sequence[Mapping[str, Any]]], **_: Any
) -> list[float]:
    """Make the last move, which TRL samples but does not make, and give the return of each episode."""
    for environment, messages in zip(environments, completions, strict=True):
        if messages[-1].get("tool_calls"):
            environment.act(**messages[-1]["tool_calls"][0]["function"]["arguments"])
    return [environment._rewards for environment in environments]


class Timed(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer with a clock for playing.

    TRL keeps asking for moves until there are as many as allowed, even when a game is over. The loss leaves out what
    the model says then.
    """

    playing = 0.0

    def _generate(self, prompts: list[Any]) -> Any:
        began = perf_counter()
        found = super()._generate(prompts)
        self.playing += perf_counter() - began
        for environment, mask in zip(self.environments, found[2], strict=True):
            environment.leave_out_rest(mask)
        return found


class _Stamps(TrainerCallback):
    def __init__(self) -> None:
        self.trainer: Any = None
        self.seen: list[tuple[float, float]] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seen.append((perf_counter(), self.trainer.playing))


def trl_trainer(
    model: Path,
    tokenizer: PreTrainedTokenizerBase,
    environment: Callable[[], Bare],
    seeds: Sequence[int],
    callback: TrainerCallback,
    reward: Callable[..., list[float]] | None = None,
    **settings: Any,
) -> Timed:
    """Return a trainer of TRL that plays our games as lmrl plays them.

    Args:
        model: the folder of the policy.
        tokenizer: from `bare_tokenizer`.
        environment: creates an environment.
        seeds: the seeds of the starts, in their order.
        callback: for the trainer.
        reward: computes the returns of episodes; None: `episode_return`.
        **settings: for `trl.GRPOConfig`; they override the settings of every comparison.
    """
    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": seed} for seed in seeds]
    return Timed(
        model=str(model),
        processing_class=tokenizer,
        environment_factory=environment,
        reward_funcs=reward or episode_return,
        train_dataset=datasets_package().Dataset.from_list(rows),
        args=GRPOConfig(**{**_ALWAYS, **settings}),
        callbacks=[callback],
    )


def theirs(model: Path, task: str, folder: Path, rounds: int) -> tuple[Block, Any]:
    """Run rounds of TRL and return their times, and the trainer."""
    turns, arguments = TASKS[task]
    stamps = _Stamps()
    trainer = trl_trainer(
        model,
        bare_tokenizer(load_tokenizer()),
        lambda: Bare(task, arguments),
        range(GROUPS * (1 + rounds)),
        stamps,
        output_dir=str(folder / "trl"),
        max_steps=1 + rounds,
        num_generations=GROUP_SIZE,
        per_device_train_batch_size=EPISODES,
        max_completion_length=900,
        max_tool_calling_iterations=turns - 1,
        generation_kwargs={"max_new_tokens": find_task(task).max_action_tokens},
        beta=KL,
        learning_rate=LR,
    )
    stamps.trainer = trainer
    trainer.train()
    return _block(stamps.seen, rounds), trainer


class _Clock(L.Callback):
    def __init__(self, collection: RolloutCollection) -> None:
        self.collection = collection
        self.seen: list[tuple[float, float]] = []

    def on_train_batch_end(self, *args: Any) -> None:
        self.seen.append((perf_counter(), self.collection._rollout_seconds))


def ours(kind: type[LanguageModule], model: Path, task: str, folder: Path, rounds: int) -> Block:
    """Run rounds of one of our modules and return their times."""
    module = kind(pretrained=str(model), lr=LR, lr_schedule="constant", warmup_steps=0, kl_weight=KL)
    ends: list[float] = []
    if isinstance(module, PPO):
        module._end_values = _timed(module._end_values, ends)  # type: ignore[method-assign]
    group_size = GROUP_SIZE if kind is GRPO else 1
    collection = RolloutCollection(episodes=EPISODES, slots=EPISODES, group_size=group_size)
    clock = _Clock(collection)
    trainer = quiet_trainer(folder, 1 + rounds, [collection, clock])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a round of a random model has nothing to teach
        trainer.fit(module, WholeHistory(task=task, batch_size=EPISODES, env=TASKS[task][1], seed=0))
    return _block(clock.seen, rounds)._replace(ends=median(ends[1:]) if ends else 0.0)


def _timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def timed(*args: Any) -> Any:
        began = perf_counter()
        found = function(*args)
        seconds.append(perf_counter() - began)
        return found

    return timed


def _block(seen: Sequence[tuple[float, float]], rounds: int) -> Block:
    assert len(seen) == 1 + rounds, "a round is one step"
    (began, before) = seen[0]
    (ended, after) = seen[-1]
    return Block((ended - began) / rounds, (after - before) / rounds)


def save_model(folder: Path) -> Path:
    """Save the weights that all sides start from, and return their folder."""
    tokenizer = load_tokenizer()
    model: PreTrainedModel = chatty_lm(tokenizer)
    model.generation_config.eos_token_id = sorted(stop_ids(Encoder(tokenizer)))
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder / "model"


def run(repeats: int = REPEATS, rounds: int = ROUNDS) -> Iterator[Row]:
    """Rows for `python -m benchmarks.peers training`."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    torch.manual_seed(0)
    with TemporaryDirectory() as place:
        folder = Path(place)
        model = save_model(folder)
        for task in TASKS:
            blocks: dict[str, list[Block]] = {"GRPO": [], "PPO": [], TRL: []}
            sides: dict[str, Callable[[], Block]] = {
                "GRPO": lambda task=task: ours(GRPO, model, task, folder, rounds),  # type: ignore[misc]
                "PPO": lambda task=task: ours(PPO, model, task, folder, rounds),  # type: ignore[misc]
                TRL: lambda task=task: theirs(model, task, folder, rounds)[0],  # type: ignore[misc]
            }
            ways = {name: _noted(side, blocks[name]) for name, side in sides.items()}
            speeds = alternating(ways, repeats)
            for name in ("GRPO", "PPO"):
                found = {OURS: speeds[name], TRL: speeds[TRL]}
                yield from beside(f"a round of {name}, {task}", "episodes/s", found, ASKED)
                for what, seconds in (("playing", _playing), ("learning", _learning)):
                    parts = {
                        side: [EPISODES / seconds(block) for block in blocks[key][1:]]
                        for side, key in ((OURS, name), (TRL, TRL))
                    }
                    yield from beside(f"a round of {name}, {task}, {what} alone", "episodes/s", parts)
            share = median(100 * block.ends / block.seconds for block in blocks["PPO"][1:])
            yield Row(f"a round of PPO, {task}, V after the last observation, share of it", share, "%", "lower", "", 1)


def _noted(side: Callable[[], Block], blocks: list[Block]) -> Callable[[], float]:
    def way() -> float:
        blocks.append(side())
        return EPISODES / blocks[-1].seconds

    return way


def _playing(block: Block) -> float:
    return block.playing


def _learning(block: Block) -> float:
    return block.seconds - block.playing
