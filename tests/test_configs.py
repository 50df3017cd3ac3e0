"""The shipped configurations: all are read, and one of each kind trains a step."""

import csv
import json
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from lmrl.cli import main
from lmrl.data import generate
from lmrl.envs.registry import tasks
from lmrl.reproduce.plan import PRESETS
from lmrl.utils.configuration import configs_folder, configuration, value_at
from tests.helpers.cases import cases
from tests.helpers.ranks import on_ranks

CONFIGS = configs_folder()
# Two games of an untrained model are sometimes equal, or both lost.
pytestmark = pytest.mark.filterwarnings("ignore:(round [0-9]+. |all advantages)")

RUNS = sorted(path for path in CONFIGS.glob("*/*.yaml") if path.parent.name in tasks())
PAPER = sorted(CONFIGS.glob("paper/*/*.yaml"))
OVERLAYS = sorted([*CONFIGS.glob("scale/*.yaml"), *CONFIGS.glob("logger/*.yaml")])
GPT2 = CONFIGS / "scale" / "gpt2.yaml"

#: One of each algorithm and of each form of online training; of both kinds of network and all lengths of window.
TRAINED = (
    *(f"maze_fo/{name}" for name in ("bc", "filtered_bc", "mc", "ilql", "ilql_to_online", "ilql_to_ppo")),
    *(f"maze_fo/{name}" for name in ("return_conditioned", "awr", "qsft", "archer", "online_archer")),
    "maze_po/online_ilql",
    *(f"maze_fo/{name}" for name in ("gigpo", "turn_ppo")),
    *(f"wordle/{name}" for name in ("online_filtered_bc", "ppo")),
    "twenty_questions/partner",
)
#: Tests of every change parse these: both kinds of data, a critic, groups, a partner, and the paper's settings. The
#: others have the same form.
READ = ("maze_fo/bc", "maze_fo/ilql", "maze_fo/gigpo", "wordle/ppo", "twenty_questions/partner", "paper/maze_po/ppo")

#: Games that an untrained model would not end soon.
_SHORT = {"maze_fo": {"max_steps": 5}, "maze_po": {"max_steps": 5}}


def name_of(path: Path) -> str:
    return path.relative_to(CONFIGS).with_suffix("").as_posix()


def files_of(path: Path) -> list[Path]:
    """Return a run file alone, or one of the paper's settings after the files that it is for."""
    return [path] if path in RUNS else [CONFIGS / path.relative_to(CONFIGS / "paper"), GPT2, path]


def words_of(*files: Path) -> list[str]:
    return [word for file in files for word in ("--config", str(file))]


@cache
def shown(*words: str) -> dict[str, Any]:
    """Return what ``lmrl fit --print_config`` shows."""
    with redirect_stdout(StringIO()) as out:
        assert main(["fit", *words, "--print_config"]) == 0
    found: dict[str, Any] = yaml.safe_load(out.getvalue())
    return found


def contains(whole: Any, part: Any) -> bool:
    """Return whether one configuration contains all entries of another."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(contains(whole.get(key), value) for key, value in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)


def check_folder_and_task(path: Path) -> None:
    planned = OmegaConf.to_container(configuration(words_of(*files_of(path))), resolve=True)
    assert isinstance(planned, dict)
    run = files_of(path)[0]
    assert planned["trainer"]["default_root_dir"] == f"runs/{name_of(run)}"
    arguments = [callback.get("init_args", {}) for callback in planned["trainer"]["callbacks"]]
    played = [given["task"] for given in arguments if "task" in given]
    assert played == ([] if run.stem.startswith("partner") else [run.parent.name])


@cases("path", [path for path in [*RUNS, *PAPER] if name_of(path) in READ])
def test_a_file_trains_into_its_own_folder_and_plays_its_own_task(path: Path) -> None:
    check_folder_and_task(path)


@pytest.mark.slow
@cases("path", [*RUNS, *PAPER])
def test_all_files_train_into_their_own_folders_and_play_their_own_tasks(path: Path) -> None:
    check_folder_and_task(path)


def check_parser(path: Path) -> None:
    words = words_of(*files_of(path))
    assert contains(shown(*words), OmegaConf.to_container(configuration(words), resolve=True))


@pytest.mark.slow
@cases("path", [path for path in [*RUNS, *PAPER] if name_of(path) in READ])
def test_fit_parses_a_file_as_reproduce_plans_with_it(path: Path) -> None:
    check_parser(path)


@pytest.mark.slow
def test_a_file_replaces_an_argument_that_is_a_mapping() -> None:
    words = words_of(CONFIGS / "endgames" / "bc.yaml", GPT2)  # its architecture has one more key
    planned = OmegaConf.to_container(configuration(words))
    assert isinstance(planned, dict)
    architecture = planned["model"]["init_args"]["architecture"]
    assert architecture == shown(*words)["model"]["init_args"]["architecture"]
    assert "n_inner" not in architecture
    words += ["--model.init_args.architecture.n_layer=3"]
    changed = OmegaConf.to_container(configuration(words))
    assert isinstance(changed, dict) and changed["model"]["init_args"]["architecture"] == {**architecture, "n_layer": 3}


@pytest.mark.nightly
@pytest.mark.parametrize("task", tasks())
def test_fit_parses_all_files_of_a_task_as_reproduce_plans_with_them(task: str) -> None:
    for path in [*RUNS, *PAPER]:
        if path.parent.name == task:
            check_parser(path)


@cases("path", PAPER)
def test_settings_of_the_paper_start_from_its_bc_and_use_its_optimizer(path: Path) -> None:
    """Those of the small networks start elsewhere, use Muon and accumulate gradients in some tasks."""
    config = configuration(words_of(*files_of(path)))
    settings = config.model.init_args
    assert (settings.optimizer, settings.task_tokens) == ("adamw", None)
    start = "ilql" if path.stem == "ilql_to_ppo" else "bc"
    assert settings.pretrained == f"runs/{path.parent.name}/{start}"
    accumulated = 4 if path == CONFIGS / "paper" / "chess" / "ppo.yaml" else 1
    assert value_at(config, "trainer.accumulate_grad_batches") in (None, accumulated)


@cases("task", tasks())
def test_ppo_after_ilql_begins_with_the_policy_that_ilql_has_played(task: str) -> None:
    for preset in ("cpu", "gpu"):
        betas = []
        for name in ("ilql", "ilql_to_ppo"):
            files = [f"configs/{task}/{name}.yaml", *PRESETS[preset].overlays(task, name)]
            betas.append(configuration(words_of(*map(Path, files))).model.init_args.beta)
        assert betas[0] == betas[1], preset


@pytest.mark.slow
@cases("path", OVERLAYS)
def test_an_overlay_fits_over_a_run(path: Path) -> None:
    changed = yaml.safe_load(path.read_text(encoding="utf-8"))
    words = words_of(CONFIGS / "maze_fo" / "ilql.yaml", path)
    planned = OmegaConf.to_container(configuration(words), resolve=True)
    assert isinstance(planned, dict) and contains(shown(*words), {key: planned[key] for key in changed})


def test_the_overlay_of_weights_and_biases_keeps_the_other_loggers() -> None:
    words = words_of(CONFIGS / "maze_fo" / "bc.yaml", CONFIGS / "logger" / "wandb.yaml")
    names = [logger["class_path"].rpartition(".")[2] for logger in shown(*words)["trainer"]["logger"]]
    assert names == ["CSVLogger", "TensorBoardLogger", "WandbLogger"]


# -- training ----------------------------------------------------------------------------------------------------


def short(path: Path, folder: Path) -> list[str]:
    """Return the words after ``fit`` for one step of a configuration with little data and few games."""
    task = path.parent.name
    data = folder / f"{task}.parquet"
    if not data.exists():
        generate(task, 60, 0, data, progress=False)
    words = ["--config", str(path), f"--data.init_args.path={data}", "--data.init_args.batch_size=8"]
    if not path.stem.startswith("partner"):
        words += ["--evaluation.episodes=1", f"--data.init_args.env={json.dumps(_SHORT.get(task, {}))}"]
    if "online" in path.stem or "ppo" in path.stem:
        words.append("--rollout.episodes=2")
    if path.stem == "online_filtered_bc":  # two games of a model that has learned for a step are never won
        words.append("--model.init_args.success=false")
    return [*words, "--trainer.max_steps=1"]


def fit(path: Path, folder: Path) -> Path:
    """Train one step and return the run's folder; train first the run that the configuration starts from."""
    root = folder / "runs" / name_of(path)
    if (root / "last.ckpt").is_file():
        return root
    words = [*short(path, folder), f"--trainer.default_root_dir={root}"]
    start = configuration(["--config", str(path)]).model.init_args.get("pretrained")
    if start is not None:
        words.append(f"--model.init_args.pretrained={fit(path.with_name(f'{Path(start).name}.yaml'), folder)}")
    assert main(["fit", *words]) == 0
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configs")


#: Their configurations differ from others in few settings, and golden runs train the algorithms in each change.
NIGHTLY = [
    f"maze_fo/{name}"
    for name in ("filtered_bc", "mc", "ilql_to_online", "return_conditioned", "awr", "qsft", "archer", "online_archer")
]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else pytest.mark.slow) for name in TRAINED],
)
def test_one_of_each_kind_trains_a_step(name: str, folder: Path) -> None:
    run = fit(CONFIGS / f"{name}.yaml", folder)
    kept = ["last.ckpt", "last/config.json", "config.yaml"]
    if not name.endswith("partner"):  # a partner is not a policy: nothing is played, so nothing is best
        kept += ["best.ckpt", "best/config.json", "metrics.csv"]
    assert [name for name in kept if not (run / name).is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TRAINED if name.endswith("ppo")])
def test_the_first_ratio_of_a_run_is_one(name: str, folder: Path) -> None:
    """The tokens that are trained are those that were sampled."""
    with (fit(CONFIGS / f"{name}.yaml", folder) / "metrics.csv").open(encoding="utf-8") as file:
        ratios = [float(row["ppo/first_ratio"]) for row in csv.DictReader(file) if row["ppo/first_ratio"]]
    assert ratios == pytest.approx([1.0], abs=1e-5)


@pytest.mark.slow
def test_a_run_plays(folder: Path) -> None:
    run = fit(CONFIGS / "maze_fo" / "ilql.yaml", folder)
    out = folder / "evaluation"
    words = ["--episodes", "1", "--out", str(out), "--temperature", "0.5", "--beta", "2"]
    assert main(["evaluate", "maze_fo", "--policy", str(run), *words]) == 0
    scores = json.loads((out / "scores.json").read_text())
    assert scores["provenance"]["decoding"] == {"temperature": 0.5, "beta": 2.0}
    assert (out / "probe.json").is_file()


def train(words: list[str]) -> int:
    return main(["fit", *words])


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("ddp", marks=pytest.mark.nightly), "fsdp"])
def test_two_processes_train_a_step(name: str, folder: Path, tmp_path: Path) -> None:
    """They train as the overlay says, but on the CPU, and leave what any run leaves."""
    words = [*short(CONFIGS / "maze_fo" / "bc.yaml", folder), "--config", str(CONFIGS / "scale" / f"{name}.yaml")]
    words += ["--trainer.accelerator=cpu", f"--trainer.default_root_dir={tmp_path / 'run'}"]
    assert on_ranks(train, words) == [0, 0]
    assert (tmp_path / "run" / "best.ckpt").is_dir() == (name == "fsdp")
    assert (tmp_path / "run" / "best" / "model.safetensors").is_file()
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "exported")]) == 0
