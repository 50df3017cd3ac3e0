"""A real chat model, SmolLM2-135M (``make smollm2``), on Twenty Questions: time and memory of learning.

Batches are four recorded dialogues in the model's chat template, with the rules as its system message. Everything is
float32, on one thread, and in a process of its own; memory is the peak of that process. Processes of the two sides of a
comparison take turns, and medians are compared.

- ``peft``: a bare loop around the model of `transformers` with adapters of `peft`, AdamW, and gradients clipped at 1,
  on the dialogues of BC, one padded row each;
- algorithms: a step of `lmrl fit`, in full and with adapters (rank 16 on all linear layers). PPO and GRPO learn from a
  round that they have played themselves; their reference model counts in their memory.
"""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import torch
from transformers import AutoModelForCausalLM

from benchmarks.row import Row
from lmrl.callbacks import RolloutCollection
from lmrl.data import generate
from lmrl.datamodules import OfflineDataModule, OnlineDataModule
from lmrl.modules import BC, GRPO, ILQL, PPO, LanguageModule
from lmrl.tokens.collate import TokenBatch, collate

TASK = "twenty_questions"
FOLDER = "models/smollm2-135m"
MODULE = "benchmarks.chat_model"
LORA = {"r": 16}
ROWS = 4
TURNS = 20
#: Whole dialogues: all turns of one are read together.
CHAT: dict[str, Any] = {"rendering": "chat", "max_tokens": 1024, "consecutive": TURNS, "batch_size": ROWS * TURNS}
WARM_UP = 1
STEPS = 4
REPEATS = 2
ALGORITHMS: dict[str, type[LanguageModule]] = {"BC": BC, "ILQL": ILQL, "PPO": PPO, "GRPO": GRPO}


class _Clock(L.Callback):
    """Seconds and tokens of the steps after the first ones."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.tokens: list[int] = []
        self.losses: list[float] = []
        self._began = 0.0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: TokenBatch, batch_idx: int) -> None:
        self.tokens.append(sum(batch.lengths))
        self._began = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.seconds.append(time.perf_counter() - self._began)
        # Algorithms with several losses log each of them under a name of its own.
        self.losses.append(float(trainer.callback_metrics.get("train/loss", 0.0)))

    def figures(self) -> dict[str, float]:
        """Seconds of a step, and tokens per second."""
        seconds = self.seconds[WARM_UP:]
        return {
            "seconds": median(seconds),
            "loss": self.losses[0],
            "tokens_per_s": sum(self.tokens[WARM_UP:]) / sum(seconds),
        }


def _settings(lora: bool) -> dict[str, Any]:
    return {
        "pretrained": FOLDER,
        "lr": 1e-4,
        "lr_schedule": "constant",
        "warmup_steps": 0,
        "lora": LORA if lora else None,
    }


def _recorded(folder: str) -> OfflineDataModule:
    path = generate(TASK, 64, 0, Path(folder) / "dialogues.parquet", progress=False)
    return OfflineDataModule(TASK, path=str(path), val_fraction=0.0, **CHAT)


def _learned(name: str, lora: bool) -> dict[str, float]:
    """Figures of an algorithm."""
    torch.manual_seed(0)
    clock = _Clock()
    callbacks: list[L.Callback] = [clock]
    # The policy of PPO learns from the first round on, as that of GRPO.
    more = {"critic_warmup_rounds": 0} if name == "PPO" else {}
    module = ALGORITHMS[name](**_settings(lora), **more)
    module.starts_from_bc = False
    with TemporaryDirectory() as folder:
        data: OfflineDataModule
        if name in ("BC", "ILQL"):
            data = _recorded(folder)
        else:
            episodes = (WARM_UP + STEPS) * ROWS
            data = OnlineDataModule(TASK, **CHAT)
            group_size = ROWS if name == "GRPO" else 1
            callbacks.append(RolloutCollection(episodes=episodes, slots=episodes, group_size=group_size))
        trainer = L.Trainer(
            accelerator="cpu",
            max_steps=WARM_UP + STEPS,
            gradient_clip_val=1.0,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            limit_val_batches=0,
            default_root_dir=folder,
            callbacks=callbacks,
        )
        trainer.fit(module, data)
    return clock.figures()


def _bare() -> dict[str, float]:
    """Figures of the bare loop of `transformers` and `peft`, on the batches of BC."""
    import peft

    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        data = _recorded(folder)
        module = BC(pretrained=FOLDER)
        data.configure_batches(module.batch_spec())
        data.setup("fit")
        loader = data.train_dataloader()
        batches = []
        for indices in islice(loader.batch_sampler, WARM_UP + STEPS):
            batches.append([collate(loader.dataset[index]) for index in indices])
        del module
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", **LORA))
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    seconds = []
    losses = []
    for dialogues in batches:
        began = time.perf_counter()
        longest = max(dialogue.lengths[0] for dialogue in dialogues)
        ids = torch.zeros(len(dialogues), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        labels = torch.full_like(ids, -100)
        for row, dialogue in enumerate(dialogues):
            length = dialogue.lengths[0]
            ids[row, :length] = dialogue.input_ids[0, :length]
            mask[row, :length] = 1
            # An action token is chosen at the place before it.
            labels[row, dialogue.col[dialogue.state] + 1] = dialogue.token
        loss = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
        losses.append(loss.item())
    return {"seconds": median(seconds[WARM_UP:]), "loss": losses[0]}


def measured(module: str, *words: str) -> dict[str, float]:
    """The figures of one side, measured in a process of its own, with the peak of its memory in MB."""
    command = [sys.executable, "-m", module, *words]
    ended = subprocess.run(command, capture_output=True, check=True, text=True)
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def in_turns(module: str, *sides: tuple[str, ...]) -> list[dict[str, float]]:
    """The median figures of several sides, each measured `REPEATS` times."""
    runs: list[list[dict[str, float]]] = [[] for _ in sides]
    for _ in range(REPEATS):
        for index, words in enumerate(sides):
            runs[index].append(measured(module, *words))
    medians = []
    for found in runs:
        medians.append({name: median(figures[name] for figures in found) for name in found[0]})
    return medians


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks chat_model`."""
    if not Path(FOLDER).is_dir():
        yield Row("SmolLM2", None, shown="not measured: make smollm2 has not been run")
        return
    bare, ours = in_turns(MODULE, ("peft",), ("BC", "lora"))
    yield Row("SmolLM2, BC with adapters, bare loop with peft: a step", bare["seconds"], "s", "lower", digits=2)
    yield Row("SmolLM2, BC with adapters, lmrl: a step", ours["seconds"], "s", "lower", digits=2)
    ratio = ours["seconds"] / bare["seconds"]
    yield Row("a step of BC, lmrl / bare loop", ratio, "x", "lower", "<= 1.1x", 2)
    difference = abs(ours["loss"] - bare["loss"])
    yield Row("first loss, difference", difference, asked="<= 1e-3", shown=f"{difference:.1e}")
    ratio = ours["megabytes"] / bare["megabytes"]
    yield Row("peak memory of BC, lmrl / bare loop", ratio, "x", "lower", "<= 1.02x", 3)

    for name in ALGORITHMS:
        for how in ("full", "lora"):
            found = measured(MODULE, name, how)
            label = f"SmolLM2, {name}, {'all weights' if how == 'full' else 'adapters'}"
            yield Row(f"{label}: learning", found["tokens_per_s"], "tokens/s", "higher")
            yield Row(f"{label}: peak memory", found["megabytes"] / 1024, "GB", "lower", digits=2)


def _main(words: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if words[0] == "peft":
        figures = _bare()
    else:
        figures = _learned(words[0], words[1] == "lora")
    tell(figures)


def tell(figures: Mapping[str, float]) -> None:
    """Print the figures of this process for `measured`, with the peak of its memory in MB."""
    peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    print(json.dumps({**figures, "megabytes": peak / 1024}))


if __name__ == "__main__":
    _main(sys.argv[1:])
