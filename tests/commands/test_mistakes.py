"""Mistakes of people who are new to the commands: each is one line that names the way out, and not a traceback."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import lightning as L
import pytest
import yaml

from lmrl.cli import main
from lmrl.data import generate
from lmrl.modules import BC
from tests.helpers.online import TINY

#: A configuration that would train, and what is changed in it.
FIT = "fit --config short.yaml"
BC_CONFIG, ILQL_CONFIG = (f"fit --config configs/maze_fo/{name}.yaml" for name in ("bc", "ilql"))

#: Words after ``lmrl``, and the way out.
MISTAKES = [
    # The command and its words.
    ("trian", "known: fit, evaluate"),
    ("fit", "lmrl fit --config configs/<task>/<algorithm>.yaml"),
    ("fit maze_fo bc", "lmrl fit --config configs/maze_fo/bc.yaml"),
    ("evaluate maze_fo --polic random --out x", "did you mean 'policy'?"),
    ("compare folder --sede 3", "unknown key 'sede'; there is none"),
    # Configuration files.
    ("fit --config configs/maze_fo/ilq.yaml", "known: configs/maze_fo/archer.yaml"),
    ("fit --config folder", "'folder' is a folder, not a config file; known: configs/car_dealer/"),
    ("fit --config empty.yaml", "empty.yaml must hold names and values (model: ..., data: ..., trainer: ...)"),
    ("fit --config broken.yaml", "broken.yaml, line 2: no YAML: "),
    ("fit --config binary.yaml", "binary.yaml is no text file with YAML"),
    # Names and kinds of settings.
    (f"{FIT} --trainer.max_stps=3", "did you mean 'trainer.max_steps'?"),
    (f"{ILQL_CONFIG} --model.init_args.betta=3", "did you mean 'beta'?"),
    (f"{FIT} --model ILQLL", "did you mean 'ILQL'?"),
    (
        f"{FIT} --model.class_path=my_package.Mine",
        "model: 'my_package.Mine' is in the module 'my_package', which cannot be imported: No module named "
        "'my_package'; run the command as PYTHONPATH=FOLDER lmrl ...",
    ),
    (f"{FIT} --data.init_args.batch_size=abc", "data.init_args.batch_size must be a whole number, got 'abc'"),
    # Values.
    (f"{ILQL_CONFIG} --model.init_args.expectile=1.5", "expectile must be in [0.5, 1), got 1.5"),
    (f"{FIT} --data.init_args.task=maze", "known: car_dealer, chess"),
    (f"{FIT} --data.init_args.path=junk.parquet", "junk.parquet: not a Parquet file"),
    (f"{FIT} --trainer.max_steps=0", "trainer.max_steps must be at least 1, or -1 for no limit, got 0"),
    (f"{FIT} --trainer.callbacks+=RolloutCollection", "plays for lmrl.datamodules.OnlineDataModule"),
    (f"{FIT} --model.init_args.architecture.n_positions=8", "take a model with more positions (n_positions)"),
    ("check-env maze_po --texts 0", "texts must be at least 1, got 0"),
    ("check-env maze_po --env reward=foo", "known: "),
    ("data floor maze_po --seed -7", "seed must be at least 0, got -7"),
    ("reproduce maze_po --seeds -5", "seeds must be at least 1, got -5"),
    ("symbolic --seed -1", "seed must be at least 0, got -1"),
    # Files and devices that this machine lacks.
    ("evaluate maze_fo --policy runs/maze_fo/bc --out x --device tpu", "unknown device 'tpu'; take cpu, cuda"),
    ("evaluate maze_fo --policy runs/maze_fo/bc --out x --device meta", "unknown device 'meta'"),
    (ILQL_CONFIG, "make it with: lmrl fit --config configs/maze_fo/bc.yaml"),
    (f"{FIT} --trainer.accelerator=gpu", "--trainer.accelerator=cpu"),
    (f"{FIT} --config configs/logger/wandb.yaml", "run wandb login, or stay on this machine: WANDB_MODE=offline"),
    (f"{FIT} --ckpt_path=junk.ckpt", "junk.ckpt is not a checkpoint of lmrl"),
    (
        f"{FIT} --model FilteredBC --model.success=true --ckpt_path=bc.ckpt",
        "give its run folder as model.init_args.pretrained instead",
    ),
    # Other commands.
    (
        "evaluate maze_fo --policy clever --out x",
        "optimal, human, zoo:TASK/NAME, chat:MODEL, local:PATH, vllm:URL#MODEL",
    ),
    ("evaluate maze_fo --policy random --out x --env hole=3", "known: layout, max_steps"),
    ("evaluate maze_fo --policy chat:gpt-4o --out x", "$OPENAI_API_KEY"),
    ("evaluate maze_fo --policy vllm:http://127.0.0.1:1#tiny --vllm tokenizer=lmrl --out x", "no connection"),
    ("data generate maze_fo --size 3 --out maze.csv", "maze.csv: episodes are kept in .parquet or .jsonl files"),
    ("data generate maze_fo --size 3 --out /proc/x.parquet", "/proc/x.parquet: No such file or directory"),
    ("data import maze_fo junk.parquet --out x.parquet", "junk.parquet, line 1: not valid JSON"),
    ("export bc.ckpt --to full", "name another folder, or move that away"),
    (
        "evaluate --policy runs/maze_fo",
        "runs/maze_fo is not a run, but holds some: name one of bc, e.g. runs/maze_fo/bc",
    ),
    (
        "compare zoo:maze_fo/ilql other",
        "lmrl evaluate --policy zoo:maze_fo/ilql --out FOLDER, and compare FOLDER",
    ),
    ("fit --config configs/foo/bc.yaml", "configs/wordle/"),
    ("view nothing.jsonl --out x.html", "nothing.jsonl holds no episodes"),
    ("web maze_fo --port 99999999", "--port 0 takes any free one"),
    ("play openenv:http://127.0.0.1:1", "no server at ws://127.0.0.1:1/ws"),
    ("reproduce maze_fo --algorithms dpo", "known: configs/maze_fo/archer.yaml"),
    ("evaluate maze_fo --policy random --ray head --out x", "ray must be local, auto or HOST:PORT, got 'head'"),
    ("evaluate maze_fo --policy random --env layout=[ --out x", "env: layout=[ cannot be read: "),
    ("evaluate maze_fo --policy random --episodes 2 --out .", "is the working directory or holds it"),
    ("evaluate maze.parquet --policy bc.ckpt --resume", "maze.parquet is read and not played: leave out resume"),
    ("plot ''", "runs must name something, got ''"),
    ("data join '' --out x.parquet", "files must name something, got ''"),
    ("data generate maze_fo --size 3 --out folder.parquet", "folder.parquet is there, and no file"),
    (
        "data generate twenty_questions --size 3 --partner vllm:http://x#m --vllm timeout=9 --chat timeout=9",
        "chat can be set for a chat model only (chat:MODEL), not for 'vllm:http://x#m'",
    ),
    ("report --runs nowhere --records records", "nowhere is no folder of runs"),
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset, a BC checkpoint, a short configuration, and files that are none of these."""
    root = tmp_path_factory.mktemp("mistakes")
    generate("maze_fo", 20, 0, root / "maze.parquet", progress=False)
    config = {
        "model": {"class_path": "BC", "init_args": {"architecture": TINY}},
        "data": {"class_path": "MazeDataModule", "init_args": {"path": "maze.parquet", "batch_size": 8}},
        "trainer": {
            "max_steps": 1,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_model_summary": False,
            "default_root_dir": "run",
        },
    }
    texts = {
        "short.yaml": yaml.safe_dump(config),
        "empty.yaml": "# nothing\n",
        "list.yaml": "- model\n",
        "broken.yaml": "model: {class_path: BC\ntrainer: 3\n",
        "nowhere_to.yaml": 'trainer: {default_root_dir: "${trainer.nope}"}\n',
        "junk.parquet": "not parquet",
        "junk.ckpt": "not a checkpoint",
        "nothing.jsonl": "",
        "full/letter.txt": "not a model",
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    (root / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (root / "folder").mkdir()
    (root / "folder.parquet").mkdir()
    (root / "bc.ckpt").write_bytes(_checkpoint(root / "made"))
    (root / "runs" / "maze_fo" / "bc").mkdir(parents=True)
    (root / "runs" / "maze_fo" / "bc" / "last.ckpt").write_bytes((root / "bc.ckpt").read_bytes())
    return root


def _checkpoint(root: Path) -> bytes:
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=root)
    trainer.strategy.connect(BC(architecture=TINY))
    trainer.save_checkpoint(root / "bc.ckpt")
    return (root / "bc.ckpt").read_bytes()


@pytest.fixture(autouse=True)
def clean(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prepared)
    for name in ("OPENAI_API_KEY", "WANDB_API_KEY", "WANDB_MODE", "LMRL_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(prepared))  # where a login would be
    monkeypatch.setenv("NETRC", str(prepared / "netrc"))


def said(words: Sequence[str], capfd: pytest.CaptureFixture[str]) -> str:
    """The one line that is said; the exit code is that of a mistake."""
    capfd.readouterr()
    assert main(words) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if line.strip() and not line.startswith("wandb: ")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    assert "Traceback" not in lines[0]
    return lines[0]


@pytest.mark.parametrize(("words", "way_out"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_line_with_the_way_out(words: str, way_out: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert way_out in said(shlex.split(words), capfd)
    assert not Path("x").exists() and not Path("run/last.ckpt").exists()


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("peft", f"{FIT} --model.init_args.lora.r=4", "lmrl[lora]"),
        ("ray", "data generate maze_fo --ray local --out x.parquet", "lmrl[ray]"),
        ("openai", "evaluate maze_fo --policy chat:gpt-4o --out x", "lmrl[chat]"),
        ("uvicorn", "web maze_fo --no-browser --port 0", "lmrl[web]"),
        ("textarena", "play textarena:Mastermind-v0", "lmrl[textarena]"),
    ],
)
def test_a_missing_package_is_named(
    package: str, words: str, extra: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert extra in said(shlex.split(words), capfd)


_FAULTY = """
import lightning as L


class Faulty(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.number = {}["missing"]
"""


def test_a_bug_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faulty.py").write_text(_FAULTY)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises((KeyError, ValueError), match="missing"):
        main(["fit", "--config", "short.yaml", "--model=faulty.Faulty"])
