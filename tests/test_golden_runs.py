"""Golden runs: three training steps and an evaluation of every algorithm give the numbers that they gave before.

``python -m tests.test_golden_runs`` records ``golden/runs/<algorithm>.json`` again, for all algorithms or for those
that are named after it. Record only on purpose, and say in the commit why the numbers change.

Each algorithm is trained by one process, by one process that is stopped after the first step and resumed, and by two
processes. The resumed run must equal the uninterrupted one in every digit. Two processes must find what one finds,
where they learn from the same batches: all algorithms are compared so every night, and those of `IN_TWO` in CI.
"""

import json
import math
import re
import shutil
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from signal import SIGTERM
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.exceptions import SIGTERMException
from omegaconf import OmegaConf

from lmrl.data.storage import write_episodes
from lmrl.datamodules import OfflineDataModule
from lmrl.decoding.cache import attend_on_gpu
from lmrl.envs.maze.players import MazePlayer
from lmrl.envs.registry import task
from lmrl.evaluation import evaluate
from lmrl.models.lm import hidden_states
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import BC, LanguageModule
from lmrl.utils.configuration import configuration
from tests.helpers.online import trainer as quiet_trainer
from tests.helpers.ranks import on_ranks, strategy
from tests.modules.test_resume_offline import Killed

GOLDEN = Path(__file__).parent / "golden"
RUNS = GOLDEN / "runs"
#: The model that the runs start from, without its tokenizer. It is committed, because training it in the test would
#: enlarge the differences in the last digits that there are between processors. Delete it to train another one.
START = GOLDEN / "start"

#: The policy reads up to 40 texts. With ten moves some episodes reach the goal, and the others are truncated.
TASK = "maze_po"
ENV = {"max_steps": 10}
#: Episodes have up to 160 tokens, so the windows of late turns begin after the first text.
MAX_TOKENS = 96

#: Settings of all runs, over those of ``configs/maze_po/<algorithm>.yaml``.
COMMON: dict[str, Any] = {
    "seed_everything": 0,
    "data.batch_size": 64,
    "data.consecutive": 8,
    "data.env": ENV,
    "data.max_tokens": MAX_TOKENS,
    "evaluation.episodes": 4,
    "model.lr": 1e-2,
    "model.lr_schedule": "cosine",
    "model.warmup_steps": 2,
    "model.weight_decay": 0.1,
    "trainer.gradient_clip_val": 0.5,
    "trainer.log_every_n_steps": 1,
    "trainer.max_steps": 3,
}
VALUES = {"model.head_bias": -5.0, "model.polyak": 0.5}
#: Two steps per round: the second one has ratios other than 1, and the round after it has a KL other than 0.
ROUND = {"rollout.episodes": 8, "data.epochs": 2}
REPLAY = {"rollout.episodes": 8, "data.batches": 2}
PPO = {**ROUND, "model.kl_weight": 0.1, "model.value_weight": 0.1, "model.entropy_weight": 0.01}
#: With this seed returns differ in every group: the sign of an advantage that is only nearly zero differs between
#: processors.
GROUPS = {**ROUND, "seed_everything": 6, "rollout.episodes": 16, "data.batch_size": 128, "model.kl_weight": 0.1}

#: Settings of each algorithm. They let every term of its loss matter, and use options that no other run has.
SETTINGS: dict[str, dict[str, Any]] = {
    "bc": {"model.observation_loss_weight": 0.5},
    "filtered_bc": {"data.batch_size": 16},
    "mc": {"model.head_bias": -5.0},
    "ilql": VALUES,
    "awr": {"model.head_bias": -5.0, "model.bootstrap": True, "model.expectile": 0.7},
    "archer": {**VALUES, "model.optimizer": "muon", "model.temperature": 0.05, "model.max_weight": 2.0},
    "qsft": {"model.return_range": [-6.0, -0.2], "model.polyak": 0.5, "model.beta": 8.0},
    "return_conditioned": {"model.bins": 4},
    "ppo": {**PPO, "model.head_bias": -5.0, "model.value_clip": 0.1, "model.kl_target": 0.01, "model.kl_horizon": 20},
    "turn_ppo": {
        **PPO,
        "model.critic": "detached",
        "model.lambda_level": "turn",
        "model.bc_weight": 0.1,
        "data.offline": True,
    },
    "ilql_to_ppo": PPO,
    "grpo": {**GROUPS, "model.clip_high": 0.3},
    "gigpo": {
        **GROUPS,
        "model.advantage": "rloo",
        "model.importance_sampling_level": "turn",
        "model.loss_agg_mode": "seq-mean-token-mean",
        "model.use_kl_in_reward": True,
    },
    "hgpo": {**GROUPS, "seed_everything": 8, "model.history": 1, "model.advantage": "rloo"},
    "gagpo": {**GROUPS, "model.gae_lambda": 0.5},
    "online_filtered_bc": {**ROUND, "model.success": False, "model.top_fraction": 0.5, "data.keep_replay": True},
    "online_archer": {
        **ROUND,
        **VALUES,
        "model.actor_loss": "pg",
        "data.offline": False,
        "data.keep_replay": False,
        "data.batches": None,
    },
    "online_ilql": {**REPLAY, **VALUES, "model.play_target": True},
    "ilql_to_online": {**REPLAY, **VALUES},
}


#: Algorithms that two processes train at each change. They differ in what the processes share: recorded episodes with
#: one kind of loss (BC) or with target networks (ILQL) or with Muon (ArCHer), rounds with a critic (PPO, and by turn
#: with recorded episodes beside the rounds), groups (GRPO), and a replay buffer (online ILQL). The others train so
#: every night.
IN_TWO = ("bc", "ilql", "archer", "ppo", "turn_ppo", "grpo", "online_ilql")
#: Algorithms that train in the ways of a GPU at each change; the others do every night.
ON_GPU = ("bc", "ilql", "qsft", "ppo", "gigpo")


class Notes(Logger):
    """Keep what is logged at each step, except for times and speeds, and for what ``health/`` repeats."""

    name = "notes"
    version = 0

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[str, dict[str, float]] = {}

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        row = self.steps.setdefault(f"step {step}", {})
        for name, value in metrics.items():
            # The noise scale is divided by a signal near 0, so that rounding decides its first values.
            if not name.startswith(("epoch", "health/", "perf/", "time/", "train/noise_scale")):
                row[name] = float(value)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


# -- the three ways of training -----------------------------------------------------------------------------------


def lay_out(folder: Path) -> None:
    """Write what the runs start from: the model and recorded episodes."""
    shutil.copytree(START, folder / "start")
    load_tokenizer().save_pretrained(folder / "start")
    record(folder / "data.parquet", episodes=32, seed=0)


def record(path: Path, episodes: int, seed: int) -> None:
    """Record a player that mostly knows the way."""
    player = MazePlayer(skill=0.9)
    write_episodes(path, evaluate(player, TASK, episodes, seed, env=ENV).episodes, {"task": TASK})


def made(part: Mapping[str, Any]) -> Any:
    """Make the object that a part of a configuration describes."""
    module, _, name = part["class_path"].rpartition(".")
    return getattr(import_module(module), name)(**part["init_args"])


def train(
    name: str, folder: Path, world: int = 1, stop: bool = False, resume: bool = False
) -> tuple[L.LightningModule, Notes]:
    """Train as ``lmrl fit`` does, but without its parser, which takes longer than the three steps.

    Args:
        name: the algorithm.
        folder: what `lay_out` has written; the run is kept in ``runs/<name>`` below it.
        world: the number of processes that train together.
        stop: end the run after the first step.
        resume: continue from ``last.ckpt``.

    Returns:
        The trained module, and what was logged.
    """
    root = folder / "runs" / name
    settings = {**COMMON, **SETTINGS[name]}
    settings["data.path"] = str(folder / "data.parquet")
    settings["data.batch_size"] //= world
    settings["trainer.default_root_dir"] = str(root)
    words = [f"--{key}={json.dumps(value)}" for key, value in settings.items()]
    file = f"configs/{TASK}/{name}.yaml"
    config: Any = OmegaConf.to_container(configuration(["--config", file, *words]), resolve=True)

    arguments = config["model"]["init_args"]
    arguments.pop("architecture", None)  # BC starts from scratch by default
    before = Path(arguments.get("pretrained", "runs/maze_po/bc")).name
    arguments["pretrained"] = str(folder / "start" if before == "bc" else folder / "runs" / before)

    # The other seed shows that a resumed run takes all that is random from the checkpoint.
    L.seed_everything(config["seed_everything"] + resume, verbose=False)
    notes = Notes()
    callbacks = [made(part) for part in config["trainer"]["callbacks"]]
    if stop:
        callbacks.append(Killed(0, SIGTERM))
    ours = {"logger": notes, "callbacks": callbacks, "enable_progress_bar": False, "accelerator": "cpu"}
    ours |= {"devices": world, "strategy": strategy("ddp" if world > 1 else "one")}
    trainer = L.Trainer(**{**config["trainer"], **ours})
    module = made(config["model"])
    data = made(config["data"])
    try:
        trainer.fit(module, data, ckpt_path=root / "last.ckpt" if resume else None, weights_only=True)
    except SIGTERMException:
        assert stop
    return module, notes


def weights_of(module: L.LightningModule) -> dict[str, float]:
    """Return the norm and the mean of the weights of each part of a module."""
    parts: dict[str, list[torch.Tensor]] = {}
    for name, tensor in module.state_dict().items():
        parts.setdefault(name.partition(".")[0], []).append(tensor.flatten().double())
    found = {}
    for name, tensors in parts.items():
        weights = torch.cat(tensors).nan_to_num()  # the mean return of a bin without episodes is not a number
        found[f"norm of {name}"] = float(weights.norm())
        found[f"mean of {name}"] = float(weights.mean())
    return found


def one_process(name: str, folder: Path) -> dict[str, Any]:
    """Train, evaluate the checkpoint, and train again with an interruption."""
    module, notes = train(name, folder)
    numbers: dict[str, Any] = {**notes.steps, "weights": weights_of(module)}
    starts = len(task(TASK).starts)
    played = evaluate(str(folder / "runs" / name / "last.ckpt"), TASK, starts, env=ENV).episodes
    evaluation = {
        "returns": [episode.total_reward for episode in played],
        "lengths": [len(episode) for episode in played],
        "logprobs": [math.fsum(map(math.fsum, episode.action_logprobs)) for episode in played],
    }

    shutil.rmtree(folder / "runs" / name)
    _, first = train(name, folder, stop=True)
    module, rest = train(name, folder, resume=True)
    assert first.steps.keys() == {"step 0"}
    resumed = {**first.steps, **rest.steps, "weights": weights_of(module)}
    check("the resumed run is not the uninterrupted one", differences(resumed, numbers))
    return {**numbers, "evaluation": evaluation}


def two_processes(name: str, folder: Path) -> dict[str, Any]:
    """Train as one of two processes."""
    module, notes = train(name, folder, world=2)
    return {**notes.steps, "weights": weights_of(module)}


def run_one_process(name: str, folder: Path) -> dict[str, Any]:
    """Train an algorithm in one process, with and without an interruption, and return its numbers."""
    lay_out(folder)
    train_what_it_starts_from(name, folder)
    (numbers,) = on_ranks(one_process, name, folder, world=1)
    return numbers


def run_two_processes(name: str, folder: Path, one: Mapping[str, Any]) -> dict[str, Any]:
    """Train an algorithm in two processes and return the numbers on which they agree.

    Args:
        name: the algorithm.
        folder: an empty folder.
        one: the numbers of one process.
    """
    lay_out(folder)
    train_what_it_starts_from(name, folder)
    first, second = on_ranks(two_processes, name, folder, world=2)
    check("two processes do not agree", differences(first, second))
    if "rollout.episodes" in SETTINGS[name]:  # rounds are divided into the same batches, recorded episodes are not
        changed = differences(first, {key: one[key] for key in first}, exact=False)
        # Of the largest weight, the mean over processes is logged.
        check("two processes are not one", [line for line in changed if "/weight_max" not in line])
    return first


def train_what_it_starts_from(name: str, folder: Path) -> None:
    """Train the run that an algorithm continues, if it continues one."""
    if name.startswith("ilql_to"):
        on_ranks(train, "ilql", folder, world=1)


# -- comparing and recording ----------------------------------------------------------------------------------------


def differences(found: Any, golden: Any, exact: bool = True, where: str = "") -> list[str]:
    """Return a line for each number that has changed.

    Args:
        found: numbers in dictionaries and lists.
        golden: what they should be.
        exact: compare all digits; otherwise four: AdamW makes differences of rounding larger from step to step.
        where: the place of both within the whole.
    """
    if isinstance(golden, list):
        found = dict(enumerate(found))
        golden = dict(enumerate(golden))
    if isinstance(golden, dict):
        if found.keys() != golden.keys():
            return [f"{where}: only one side has {sorted(found.keys() ^ golden.keys())}"]
        lines = []
        for key, value in golden.items():
            lines += differences(found[key], value, exact, f"{where}, {key}" if where else str(key))
        return lines
    same = found == golden if exact else math.isclose(found, golden, rel_tol=1e-4, abs_tol=1e-6)
    return [] if same else [f"{where}: {found!r}, was {golden!r}"]


def check(what: str, changed: list[str]) -> None:
    """Fail if there are differences, and show the first of them."""
    assert not changed, "\n".join([f"{what}, {len(changed)} numbers:", *changed[:20]])


def made_with() -> dict[str, str]:
    """Return what the last digits depend on: the processor, and the packages that compute."""
    cpuinfo = Path("/proc/cpuinfo")
    facts = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    words = re.findall(r"^(?:model name|cpu family|model)\s*: .+", facts.partition("\n\n")[0], re.MULTILINE)
    words = [re.sub(r"\s*: ", " ", word) for word in words]
    processor = ", ".join([*words, torch.backends.cpu.get_cpu_capability()])
    packages = {name: version(name) for name in ("torch", "numpy", "transformers")}
    return {"processor": processor, **packages}


def recorded(name: str) -> dict[str, Any]:
    """Return the golden run of an algorithm."""
    golden: dict[str, Any] = json.loads((RUNS / f"{name}.json").read_text(encoding="utf-8"))
    return golden


def compare_with_record(name: str, part: str, found: dict[str, Any]) -> None:
    """Fail if the numbers of a part of an algorithm's golden run have changed."""
    golden = recorded(name)
    changed = differences(found, golden["numbers"][part], exact=golden["made_with"] == made_with())
    check(f"{name}, {part}, has changed; if on purpose: python -m tests.test_golden_runs {name}", changed)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_gives_the_numbers_of_before(name: str, tmp_path: Path) -> None:
    """All digits count on the processor that the file names, four on others.

    A sampled token can be another one on another processor, if two tokens are as likely up to rounding errors; then
    all that follows is different. If that happens to you, record that algorithm with another seed in `SETTINGS`.
    """
    compare_with_record(name, "one process", run_one_process(name, tmp_path))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in IN_TWO else pytest.mark.nightly) for name in SETTINGS],
)
def test_two_processes_give_the_numbers_of_before(name: str, tmp_path: Path) -> None:
    """All digits count on the processor that the file names, four on others."""
    one = recorded(name)["numbers"]["one process"]
    compare_with_record(name, "two processes", run_two_processes(name, tmp_path, one))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in ON_GPU else pytest.mark.nightly) for name in SETTINGS],
)
def test_the_ways_of_a_gpu_give_the_same_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU batches are read by one pass, tables are cut by states, and passes over all slots are recorded."""
    monkeypatch.setattr(LanguageModule, "hidden_states", lambda _, trunk, batch: hidden_states(trunk, batch, False))
    monkeypatch.setattr("lmrl.losses.token_scores._by_states", lambda device: True)
    monkeypatch.setattr("lmrl.losses.token_scores._MAX_TABLE_SCORES", 0)
    monkeypatch.setattr("lmrl.losses.token_scores._STATE_PIECE_BYTES", 2**18)
    monkeypatch.setattr("lmrl.decoding.reader.is_recorded", lambda device: True)
    monkeypatch.setattr("lmrl.decoding.reader.Recorder.record", lambda recorder, run: run)
    monkeypatch.setattr("lmrl.decoding.gpt2.attend", attend_on_gpu)
    lay_out(tmp_path)
    if name.startswith("ilql_to"):
        train("ilql", tmp_path)
    module, notes = train(name, tmp_path)
    golden = recorded(name)["numbers"]["one process"]
    steps = {key: golden[key] for key in notes.steps}
    check(name, differences(notes.steps, steps, exact=False))
    check(name, differences(weights_of(module), golden["weights"], exact=False))


def train_start() -> None:
    """Train the model that the runs start from. It reaches the goal now and then, and says a few illegal actions."""
    L.seed_everything(0)
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 128, "initializer_range": 0.3}
    module = BC(architecture=shape, lr=1e-2, warmup_steps=5)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "data.parquet"
        record(path, episodes=400, seed=1)
        data = OfflineDataModule(TASK, str(path), batch_size=64, consecutive=8, max_tokens=MAX_TOKENS)
        quiet_trainer(Path(folder), steps=120).fit(module, data)
    module.model.bfloat16().save_pretrained(START)


def write(name: str) -> None:
    """Record the golden run of an algorithm."""
    with TemporaryDirectory() as folder:
        one = run_one_process(name, Path(folder) / "one")
        two = run_two_processes(name, Path(folder) / "two", one)
    numbers = {"one process": one, "two processes": two}
    about = "Golden run of tests/test_golden_runs.py. It changes only on purpose, and the commit says why."
    golden = {"about": about, "made_with": made_with(), "numbers": numbers}
    (RUNS / f"{name}.json").write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if not START.exists():
        train_start()
    RUNS.mkdir(exist_ok=True)
    for algorithm in sys.argv[1:] or SETTINGS:
        write(algorithm)
        print(algorithm)
