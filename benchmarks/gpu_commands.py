"""The commands that a user types, on a GPU: record data, ``lmrl fit`` with BC and PPO, and ``lmrl evaluate``.

Each command runs in a process of its own on Twenty Questions, from a pretrained model. The figures come from the files
that the command leaves: the TensorBoard log has the time of each logged step, and ``metrics.csv`` the pace of rounds.
"""

import csv
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import mean
from threading import Event, Thread

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from benchmarks.device import peak
from benchmarks.row import Row
from lmrl.data import dataset_path, read_dataset
from lmrl.envs.registry import task
from lmrl.errors import UserError
from lmrl.models.tokenizer import load_tokenizer
from lmrl.tokens.encoding import Window, encoder_for
from lmrl.tokens.segments import segments

__all__ = ["PARTS", "run"]

TASK = "twenty_questions"
#: In the order in which they depend on each other: PPO and the evaluation start from the BC run.
PARTS = ("data", "bc", "ppo", "evaluate")


@dataclass(frozen=True)
class Amount:
    """How much the commands do."""

    dialogues: int
    """Episodes of the dataset."""
    batch: int
    """Dialogues in a batch of BC."""
    steps: int
    """Steps of BC: so many that layers are compiled by default."""
    log_every: int
    """Steps of BC between two rows of its log; the second half of the rows is measured."""
    episodes: int
    """Episodes of a PPO round, and of the evaluation."""
    ppo_batch: int
    """Episodes in a minibatch of PPO."""
    rounds: int
    """Rounds of PPO, of which the last is measured."""


FULL = Amount(dialogues=60_000, batch=64, steps=200, log_every=20, episodes=256, ppo_batch=64, rounds=3)
TINY = Amount(dialogues=40, batch=4, steps=4, log_every=1, episodes=4, ppo_batch=2, rounds=2)


@dataclass(frozen=True)
class Session:
    """The device, the model and the folder of the commands."""

    device: str
    amount: Amount
    model: Path
    """Folder of the pretrained model."""
    runs: Path
    """Folder of the runs."""

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return torch.device(self.device).type == "cuda"

    @property
    def label(self) -> str:
        """The beginning of the rows' names."""
        return f"{self.model.name} on {TASK}"


def run(
    device: str = "cuda",
    tiny: bool = False,
    only: Sequence[str] = (),
    model: Path | None = None,
    runs: Path = Path("runs/gpu"),
) -> Iterator[Row]:
    """Run the commands one after the other and yield their rows.

    Args:
        device: as torch calls it.
        tiny: at a size that only shows that everything runs, from random weights if no model is given.
        only: parts to measure, of `PARTS`; none: all.
        model: folder of a pretrained model with its tokenizer.
        runs: folder of the runs. Datasets are in ``$LMRL_DATA``, or in ``data`` in this folder.

    Raises:
        UserError: for an unknown part, if there is no model, and if a command fails.
    """
    for part in only:
        if part not in PARTS:
            raise UserError(f"unknown part {part!r} of gpu_commands; known: {', '.join(PARTS)}")
    runs = runs.absolute()
    os.environ.setdefault("LMRL_DATA", str(runs / "data"))
    if model is None and tiny:
        model = tiny_model(runs / "tiny-model")
    if model is None:
        if [*only] != ["data"]:
            raise UserError("gpu_commands needs --model FOLDER: a pretrained model with its tokenizer")
        model = Path("none")  # what records data has no use for one
    session = Session(device, TINY if tiny else FULL, model.absolute(), runs)
    if session.on_gpu:
        yield Row("card", None, shown=torch.cuda.get_device_name(device))
    measure = {"data": record, "bc": fit_bc, "ppo": fit_ppo, "evaluate": evaluate}
    for part in only or PARTS:
        yield from measure[part](session)


def tiny_model(folder: Path) -> Path:
    """Write a Llama of two small layers with random weights and the bundled tokenizer."""
    tokenizer = load_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def record(session: Session) -> Iterator[Row]:
    """Record the dataset on all cores, unless it is there from an earlier job."""
    size = session.amount.dialogues
    if dataset_path(TASK, size, 0).exists():
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    began = time.perf_counter()
    command(["data", "generate", TASK, "--size", str(size), "--workers", str(cores)])
    seconds = time.perf_counter() - began
    yield Row(f"{TASK}, data generate, {size:,} dialogues, {cores} cores", seconds, "s", "lower", digits=1)


def fit_bc(session: Session) -> Iterator[Row]:
    """Train by BC for a few steps, and say how fast it is by its own log."""
    amount = session.amount
    folder = session.runs / "bc"
    words = ["fit", "--config", f"configs/{TASK}/bc.yaml", "--config", "configs/scale/gpt2.yaml", *scale(session)]
    words += [f"--model.init_args.pretrained={session.model}", "--model.init_args.optimizer=adamw"]
    words.append("--model.init_args.task_tokens=null")  # the tokens of the model alone
    words += [f"--data.init_args.size={amount.dialogues}", f"--data.init_args.batch_size={amount.batch}"]
    # One step more than is measured: an episode is played at the last one, before its row is logged.
    words += [f"--trainer.max_steps={amount.steps + 1}", f"--trainer.log_every_n_steps={amount.log_every}"]
    words += ["--trainer.limit_val_batches=0", *kept_short(folder)]
    began = time.time()
    with watched_memory(session) as memory:
        command(words)
    logged = log_of(folder, "train/loss")
    first = logged[0]
    logged = logged[len(logged) // 2 :]
    steps = logged[-1].step - logged[0].step
    seconds = (logged[-1].wall_time - logged[0].wall_time) / steps
    startup = first.wall_time - began - seconds * (first.step + 1)
    tokens = amount.batch * tokens_per_dialogue(session) / seconds
    best = peak(session.device, session.on_gpu, 4_096 if session.on_gpu else 1_024)
    mfu = 100 * 6 * parameters(session.model) * tokens / best.flops
    name = f"{session.label}, fit BC, batches of {amount.batch}"
    yield Row(f"{name}, start-up until the first step, with compilation", startup, "s", "lower", digits=1)
    yield Row(f"{name}, a step", seconds, "s", "lower", digits=3)
    yield Row(name, tokens, "tokens/s", "higher")
    yield Row(f"{name}, MFU (6 FLOPs per weight and token)", mfu, "% of peak", "higher", digits=1)
    yield from memory_rows(name, memory)


def fit_ppo(session: Session) -> Iterator[Row]:
    """Play rounds with the weights of the BC run and learn from them."""
    episodes = session.amount.episodes
    folder = session.runs / "ppo"
    words = ["fit", "--config", f"configs/{TASK}/ppo.yaml", *scale(session)]
    words += [f"--model.init_args.pretrained={bc_run(session)}", f"--rollout.episodes={episodes}"]
    # One pass over the episodes, as the configuration has it. Layers are compiled as in a long run.
    steps = session.amount.rounds * episodes // session.amount.ppo_batch
    words += [f"--data.init_args.batch_size={session.amount.ppo_batch}", "--trainer.accumulate_grad_batches=1"]
    words += [f"--trainer.max_steps={steps}", "--rollout.slots=null", *kept_short(folder)]
    words.append(f"--model.init_args.compile={'true' if session.on_gpu else 'false'}")
    with watched_memory(session) as memory:
        command(words)
    played = last_of(folder, "perf/episodes_per_s")
    # An episode is played at the last step before its row is logged, so the time of the others stands for it.
    last_but_one = log_of(folder, "train/grad_norm")[-2]
    learned = last_but_one.wall_time - log_of(folder, "perf/episodes_per_s")[-1].wall_time
    minibatches = episodes // session.amount.ppo_batch
    name = f"{session.label}, fit PPO, a round of {episodes} episodes"
    yield Row(f"{name}, playing", episodes / played, "s", "lower", digits=1)
    yield Row(f"{name}, playing, action tokens", last_of(folder, "perf/tokens_per_s"), "tokens/s", "higher")
    yield Row(f"{name}, learning", learned * minibatches / (minibatches - 1), "s", "lower", digits=1)
    yield from memory_rows(name, memory)


def evaluate(session: Session) -> Iterator[Row]:
    """Evaluate the BC run, and take the time of the whole command."""
    episodes = str(session.amount.episodes)
    run_folder = bc_run(session)
    words = ["evaluate", TASK, "--policy", str(run_folder), "--episodes", episodes, "--slots", episodes]
    words += ["--device", session.device, "--out", str(session.runs / "evaluation")]
    began = time.perf_counter()
    with watched_memory(session) as memory:
        command(words)
    name = f"{session.label}, evaluate, {episodes} episodes in as many slots"
    yield Row(f"{name}, with start-up", time.perf_counter() - began, "s", "lower", digits=1)
    yield from memory_rows(name, memory)


def command(words: Sequence[str]) -> None:
    """Run ``lmrl`` as a user does.

    Raises:
        UserError: it ends with another code than 0.
    """
    print("$ lmrl", *words, flush=True)
    code = subprocess.run([sys.executable, "-m", "lmrl", *words]).returncode
    if code:
        raise UserError(f"lmrl {words[0]} ended with {code}")


def scale(session: Session) -> list[str]:
    """Words that name the device of ``lmrl fit``."""
    return ["--config", f"configs/scale/{'gpu' if session.on_gpu else 'cpu'}.yaml"]


def kept_short(folder: Path) -> list[str]:
    """Words for a run of which only the speed counts: one episode is played at its end."""
    return ["--evaluation.episodes=1", f"--trainer.default_root_dir={folder}", "--overwrite"]


def bc_run(session: Session) -> Path:
    """Return the folder of the BC run.

    Raises:
        UserError: there is none yet.
    """
    folder = session.runs / "bc"
    if not (folder / "last.ckpt").exists():
        raise UserError(f"there is no BC run in {folder} yet: measure bc first")
    return folder


def log_of(folder: Path, key: str) -> list:
    """Return the logged values of a key in order, each with ``wall_time`` and ``step``."""
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return list(events.Scalars(key))


def last_of(folder: Path, key: str) -> float:
    """Return the last value of a key in ``metrics.csv``."""
    with (folder / "metrics.csv").open(encoding="utf-8") as file:
        values = [row[key] for row in csv.DictReader(file) if row.get(key)]
    return float(values[-1])


def tokens_per_dialogue(session: Session) -> float:
    """Return the mean number of tokens of the first thousand dialogues."""
    # The context of the task's configurations for a model of this size: nothing is cut off.
    window = Window(task(TASK).last_texts, 100_000, "text")
    encoder = encoder_for(load_tokenizer(str(session.model)), window)
    path = dataset_path(TASK, session.amount.dialogues, 0)
    lengths = []
    for episode in islice(read_dataset(path, TASK), 1_000):
        lengths.append(sum(len(segment.ids) for segment in segments(episode, encoder, window)))
    return mean(lengths)


def parameters(model: Path) -> int:
    """Return the number of weights of a model; a table that is used twice counts once."""
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    return sum(parameter.numel() for parameter in empty.parameters())


@contextmanager
def watched_memory(session: Session) -> Iterator[list[int]]:
    """Ask the GPU ten times a second for the bytes in use; the list holds them, above those in use before.

    That is the memory that other programs cannot have: what torch keeps in reserve is part of it.
    """
    if not session.on_gpu:
        yield []
        return
    free_before = torch.cuda.mem_get_info(session.device)[0]
    used: list[int] = []
    ended = Event()

    def watch() -> None:
        while not ended.wait(0.1):
            used.append(free_before - torch.cuda.mem_get_info(session.device)[0])

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield used
    finally:
        ended.set()
        thread.join()


def memory_rows(name: str, used: Sequence[int]) -> Iterator[Row]:
    """Yield the peak of the memory; nothing on a processor."""
    if used:
        yield Row(f"{name}, peak of the GPU memory in use", max(used) / 1e9, "GB", "lower", digits=2)
