"""Packages are imported when they are needed: commands without a model start without torch."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import lmrl
from lmrl import policies
from lmrl.cli import main, verbs
from lmrl.policies import chat

HEAVY = ("torch", "transformers", "lightning", "torchmetrics", "matplotlib", "scipy", "tensorboard", "wandb")
COMMANDS = (
    *("play wordle", "play maze_fo --advisor optimal", "play chess"),
    "data generate maze_fo --size 8 --shard 0/2 --out a.parquet",
    "data generate maze_fo --size 8 --shard 1/2 --out b.parquet",
    "data join a.parquet b.parquet --out maze.parquet",
    "data stats maze.parquet",
    "data verify maze.parquet",
    "data import wordle games.jsonl --out wordle.parquet",
    "evaluate wordle --policy random --episodes 2 --out evaluation",
    *("fit", "fit --help", "fit -h"),
    *("zoo list", "zoo info zoo:maze_fo/bc", "compare evaluation evaluation"),
)


def loaded(folder: Path, *statements: str) -> list[list[str]]:
    """Return the heavy packages that a new interpreter has imported after each of the statements."""
    show = f"print('\\nloaded:', *[name for name in {HEAVY} if name in sys.modules])"
    code = "\n".join(["import sys", *(f"{statement}\n{show}" for statement in statements)])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, input="")
    assert done.returncode == 0, done.stderr
    return [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("loaded:")]


def test_commands_without_a_model_load_no_torch(tmp_path: Path) -> None:
    sequence = [["Wordle:\n", 0.0], ["t r a i n\n", 1.0], ["y b b y b\n", 0.0]]
    record = {"sequence": sequence, "reward": [-1.0, 0.0], "done": True}
    (tmp_path / "games.jsonl").write_text(json.dumps(record) + "\n")
    heavy = loaded(tmp_path, "from lmrl.cli import main", *(f"main({command.split()!r})" for command in COMMANDS))
    assert len(heavy) == 1 + len(COMMANDS)
    assert not [(command, names) for command, names in zip(COMMANDS, heavy[1:], strict=True) if names]
    assert all((tmp_path / f"{name}.parquet").is_file() for name in ("maze", "wordle"))


@pytest.mark.nightly
def test_the_top_level_loads_only_what_is_named(tmp_path: Path) -> None:
    light = "import lmrl\nlmrl.evaluate, lmrl.load_policy, lmrl.read_episodes, lmrl.make, lmrl.tasks"
    assert loaded(tmp_path, light, "lmrl.load_policy('random', 'maze_fo')") == [[], []]
    (heavy,) = loaded(tmp_path, "import lmrl\nlmrl.load_module")
    assert "torch" in heavy


@pytest.mark.parametrize("package", [lmrl, chat, policies], ids=lambda package: package.__name__)
def test_every_public_name_is_there_and_listed(package: ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
        assert name in dir(package)
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_the_help_of_fit_names_options_that_its_parser_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", "configs/maze_fo/bc.yaml", "--help"]) == 0
    parser = capsys.readouterr().out
    assert "--trainer.use_distributed_sampler" in parser
    options = [line.split()[0] for line in verbs()["fit"].page.splitlines() if line.startswith("  --")]
    assert len(options) == 11
    options.remove("--resume")  # it becomes --ckpt_path
    for option in options:
        key = option.partition("=")[0].replace("KEY", "").rstrip(".").removesuffix(".init_args")
        assert key in parser, option
