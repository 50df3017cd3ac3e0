"""Edited checkpoints, run folders, model folders and adapters: each is loaded or refused in one line.

An edit changes a value or its type, adds or removes a key, claims an absurd size, names a path, flips bytes or cuts the
file off. No edit may cost much time or memory, or show the content of a file that it names.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fuzz.damage import BYTES

SECRET = "hunter2-abcdef"
TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128}
KINDS = ("checkpoint", "run", "model", "adapters", "adapted")
_SECONDS = 20
_GROWTH = 2**20  # kilobytes

# Sizes that a file claims without holding the weights.
_LLAMA = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
ABSURD: list[dict[str, object]] = [
    {"n_layer": 10**6},
    {"n_layer": 900},
    {"n_embd": 10**6, "n_head": 1},
    {"n_positions": 10**9},
    {"num_labels": 10**9},
    {"vocab_size": 10**9},
    {"n_inner": 10**11},
    {"model_type": "llama", "hidden_size": 2**15, "intermediate_size": 2**17, "num_hidden_layers": 100},
    {"model_type": "llama", **_LLAMA, "num_hidden_layers": 10**9},
    {"model_type": "mixtral", **_LLAMA, "num_hidden_layers": 1, "num_local_experts": 10**6},
    {"model_type": "mamba", "hidden_size": 2**31, "num_hidden_layers": 1},
]


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(10, marks=pytest.mark.nightly),
        pytest.param(200, marks=[pytest.mark.nightly, pytest.mark.timeout(1_200)]),
    ],
)
def test_edited_files_are_loaded_or_refused_in_one_line(tmp_path: Path, count: int) -> None:
    """The files are read in a process of their own, whose memory is measured."""
    command = [sys.executable, __file__, str(tmp_path), str(count)]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert SECRET not in done.stdout + done.stderr
    outcomes = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(outcomes) == count + 2 * len(ABSURD)
    assert [outcome for outcome in outcomes if outcome["fault"]] == []
    results = [outcome["what"] for outcome in outcomes]
    assert results[: 2 * len(ABSURD)] == ["refused"] * 2 * len(ABSURD)
    assert results.count("refused") > count / 2 and "loaded" in results


# The process that loads the files.


def main(folder: Path, count: int) -> None:
    """Print a line of JSON for each edit."""
    from lmrl.errors import system_error, user_error_in

    warnings.simplefilter("ignore")
    good = folder / "good"
    make(good)
    (folder / "secret").write_text(f"TOKEN={SECRET}\n")
    for kind in KINDS:
        loads(kind, good)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, (kind, name, edit) in enumerate([*absurd(), *edits(count, folder / "secret")]):
        copy = folder / "edited"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(good, copy, symlinks=True)
        chance = Random(f"{kind} {number}")
        note = edit(copy, chance)
        began = time.process_time()
        what = "loaded"
        fault = said = ""
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(10 * _SECONDS)
        try:
            loads(kind, copy)
        except Exception as error:
            what = "refused"
            said = str(user_error_in(error) or system_error(error) or "")
            if not said:
                fault = f"{type(error).__name__}: {error}"[:300]
        signal.alarm(0)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
        memory += max(grown, 0)
        seconds = time.process_time() - began
        if "\n" in said or SECRET in said or grown > _GROWTH or seconds > _SECONDS:
            fault = f"{seconds:.0f} s, {grown >> 10} MB: {said[:300]}"
        print(json.dumps({"kind": kind, "edit": f"{name}: {note}", "what": what, "fault": fault}), flush=True)
        if os.environ.get("LMRL_DEBUG"):
            print(said[-200:])


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"above {10 * _SECONDS} s")


def make(good: Path) -> None:
    """Write an intact file or folder of each kind."""
    import peft

    from lmrl.models.lm import build_lm
    from lmrl.models.tokenizer import load_tokenizer
    from lmrl.modules import BC, ILQL
    from lmrl.tokens.encoding import Window

    torch.manual_seed(0)
    module = ILQL(architecture=TINY)
    module.window = Window(tokens=90)
    module.made_with = {"task": "maze_fo"}
    module.export(good / "model")
    saved: dict[str, Any] = {"state_dict": module.state_dict(), "global_step": 1, "pytorch-lightning_version": "2.6.0"}
    module.on_save_checkpoint(saved)
    torch.save(saved, good / "one.ckpt")
    (good / "run").mkdir()
    torch.save(saved, good / "run" / "best.ckpt")
    shutil.copytree(good / "model", good / "run" / "best")
    adapted = BC(pretrained=str(good / "model"), lora={"r": 2})
    adapted.window = Window(tokens=90)
    adapted.made_with = {"task": "maze_fo"}
    saved = {"state_dict": adapted.state_dict(), "global_step": 1, "pytorch-lightning_version": "2.6.0"}
    adapted.on_save_checkpoint(saved)
    torch.save(saved, good / "adapted.ckpt")
    settings = {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True}
    model = build_lm(str(good / "model"), {}, len(load_tokenizer()))
    peft.get_peft_model(model, peft.LoraConfig(**settings)).save_pretrained(good / "adapters")
    load_tokenizer().save_pretrained(good / "adapters")
    config = good / "adapters" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "base_model_name_or_path": str(good / "model")}))


def loads(kind: str, folder: Path) -> None:
    """Read a file as commands do, and play a turn with what is in it."""
    from lmrl.checkpoints.export import load_values
    from lmrl.evaluation.loading import load_policy
    from lmrl.modules import BC
    from lmrl.types import Request

    path = {"checkpoint": "one.ckpt", "adapted": "adapted.ckpt"}.get(kind, kind)
    if kind == "adapters":
        BC(pretrained=str(folder / path))
        return
    policy = load_policy(folder / path, "maze_fo").policy
    policy.act([Request(0, 0, ("The goal is at 1, 1.\n",), ())])
    if kind == "run":
        BC(pretrained=str(folder / path))
    if kind == "model":
        load_values(folder / path)


Edit = Callable[[Path, Random], str]


def absurd() -> Iterator[tuple[str, str, Edit]]:
    """Yield edits that claim absurd sizes, in a checkpoint and in a model folder."""
    for settings in ABSURD:

        def in_checkpoint(copy: Path, chance: Random, settings: dict[str, object] = settings) -> str:
            content = torch.load(copy / "one.ckpt", weights_only=True)
            content["hyper_parameters"]["architecture"].update(settings)
            torch.save(content, copy / "one.ckpt")
            return str(settings)

        def in_folder(copy: Path, chance: Random, settings: dict[str, object] = settings) -> str:
            names = chance.choice((("lmrl.json", "config.json"), ("lmrl.json",), ("config.json",)))
            for name in names:
                found = json.loads((copy / "model" / name).read_text())
                (found["hyper_parameters"]["architecture"] if name == "lmrl.json" else found).update(settings)
                (copy / "model" / name).write_text(json.dumps(found))
            return f"{names} {settings}"

        yield "checkpoint", "absurd", in_checkpoint
        yield "model", "absurd", in_folder


def edits(count: int, secret: Path) -> Iterator[tuple[str, str, Edit]]:
    """Yield `count` edits, as many for each kind of file."""

    def plain(copy: Path, chance: Random, files: tuple[str, ...] = ("one.ckpt", "run/best.ckpt")) -> str:
        file = chance.choice(files)
        content = torch.load(copy / file, weights_only=True)
        note = change(content, chance, secret)
        torch.save(content, copy / file)
        return f"{file} {note}"

    def text(copy: Path, chance: Random, folder: str) -> str:
        file = chance.choice(sorted((copy / folder).glob("*.json")))
        content = json.loads(file.read_text())
        note = change(content, chance, secret)
        file.write_text(json.dumps(content))
        return f"{folder}/{file.name} {note}"

    def tensors(copy: Path, chance: Random, folder: str) -> str:
        file = chance.choice(sorted((copy / folder).glob("*.safetensors")))
        weights = load_file(file)
        note = change(weights, chance, secret, only=("cut", "gone", "kind"))
        save_file(weights, file, metadata={"format": "pt"})
        return f"{folder}/{file.name} {note}"

    def raw(copy: Path, chance: Random, folder: str) -> str:
        files = [path for path in (copy / folder).iterdir() if path.is_file() and path.suffix != ".md"]
        file = chance.choice(sorted(files)) if folder else copy / "one.ckpt"
        name = chance.choice(list(BYTES))
        BYTES[name](file, chance)
        return f"{folder}/{file.name} {name}"

    ways: dict[str, list[tuple[str, Edit]]] = {
        "checkpoint": [("values", plain), ("values", plain), ("bytes", lambda c, r: raw(c, r, ""))],
        "run": [
            ("values", plain),
            ("json", lambda c, r: text(c, r, "run/best")),
            ("bytes", lambda c, r: raw(c, r, "run")),
        ],
        "model": [
            ("json", lambda c, r: text(c, r, "model")),
            ("json", lambda c, r: text(c, r, "model")),
            ("tensors", lambda c, r: tensors(c, r, "model")),
            ("bytes", lambda c, r: raw(c, r, "model")),
        ],
        "adapted": [("values", lambda c, r: plain(c, r, ("adapted.ckpt",)))],
        "adapters": [
            ("json", lambda c, r: text(c, r, "adapters")),
            ("tensors", lambda c, r: tensors(c, r, "adapters")),
            ("bytes", lambda c, r: raw(c, r, "adapters")),
        ],
    }
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        name, edit = ways[kind][number // len(KINDS) % len(ways[kind])]
        yield kind, name, edit


def change(content: dict[Any, Any], chance: Random, secret: Path, only: tuple[str, ...] = ()) -> str:
    """Change one entry somewhere in nested values, and return what was done."""
    at: Any = content
    where = []
    while True:
        key = chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
        where.append(str(key))
        inner = at[key]
        if not (isinstance(inner, dict | list) and inner) or chance.random() < 0.1:
            break
        at = inner
    odd: tuple[Any, ...] = (
        None, True, 0, -1, 7.5, 10**6, 10**9, 2**62, 10**30, float("inf"), "", "x", str(secret), "../../secret",
        "os.system", [], {}, [[]], {"a": {}}, [None] * 3, {"name": "wordle", "vocab": str(secret)}, "a" * 10**5,
    )  # fmt: skip
    way = chance.choice(only or ("value", "value", "value", "gone", "added", "kind"))
    if isinstance(inner, torch.Tensor) and way in ("value", "cut"):
        way = "cut"
        absurd = torch.zeros(1).expand(2**20, 2**20) if not only else torch.zeros(3, 5)
        at[key] = chance.choice((inner[:1].clone(), inner.double(), inner.reshape(-1)[:0].clone(), absurd))
    elif way == "gone" and isinstance(at, dict):
        del at[key]
    elif way == "added" and isinstance(at, dict):
        name = chance.choice(("x", "pretrained", "auto_map", "trust_remote_code", "_name_or_path", "tokenizer_file"))
        at[name] = chance.choice(odd)
        return f"{'.'.join(where)} {way} {name}={at[name]!r:.40}"
    elif isinstance(inner, torch.Tensor):
        at[key] = inner.to(torch.int64)
    elif way == "kind":
        at[key] = [inner] if chance.random() < 0.5 else str(inner)
    else:
        at[key] = chance.choice(odd)
    return f"{'.'.join(where)} {way} {at.get(key, '') if isinstance(at, dict) else at[key]!r:.40}"[:200]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
