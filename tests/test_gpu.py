"""On a GPU, runs learn and play what they do on the processor; skipped where there is none."""

import csv
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path

import pytest
import torch

import lmrl
from lmrl.cli import main
from lmrl.utils.configuration import configs_folder

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of players that have learned for a moment, and all lose
]

STEPS = 6
#: Offline: what is learned from does not depend on what is sampled.
OFFLINE = ("filtered_bc", "mc", "ilql", "awr", "archer", "qsft", "return_conditioned")
ONLINE = ("ppo", "turn_ppo", "grpo", "gigpo", "online_filtered_bc", "online_archer", "online_ilql")
SMALL = (
    "--model.init_args.architecture={model_type: gpt2, n_layer: 2, n_head: 2, n_embd: 32, n_positions: 512}",
    f"--trainer.max_steps={STEPS}",
    "--trainer.log_every_n_steps=1",
    "--trainer.enable_progress_bar=false",
    "--evaluation.episodes=4",
)


def known(name: str) -> bool:
    return (configs_folder() / "maze_fo" / f"{name}.yaml").is_file()


def fit(name: str, folder: Path, accelerator: str, base: Path | None, more: Sequence[str] = ()) -> Path:
    run = folder / accelerator / name
    words = ["fit", "--config", f"configs/maze_fo/{name}.yaml", f"--trainer.default_root_dir={run}", *SMALL, *more]
    words += [f"--trainer.accelerator={accelerator}", "--trainer.devices=1", "--data.init_args.env={max_steps: 6}"]
    if base is not None:
        words = [word for word in words if "architecture" not in word] + [f"--model.init_args.pretrained={base}"]
    if name in ONLINE:
        words.append("--rollout.episodes=8")
    if name == "online_filtered_bc":  # games of a model that has learned for a moment are never won
        words.append("--model.init_args.success=false")
    assert main(words) == 0
    return run


def column(run: Path, name: str) -> list[float]:
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMRL_DATA", str(tmp_path_factory.mktemp("data")))
        yield tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def bc(folder: Path) -> Path:
    return fit("bc", folder, "cpu", None)


def test_bc_learns_alike(folder: Path, bc: Path) -> None:
    ours = column(fit("bc", folder, "gpu", None), "train/loss")
    assert len(ours) == STEPS and ours == pytest.approx(column(bc, "train/loss"), rel=1e-3)


@pytest.mark.parametrize("name", OFFLINE)
def test_recorded_data_teach_alike(name: str, folder: Path, bc: Path) -> None:
    theirs = column(fit(name, folder, "cpu", bc), "train/loss")
    ours = column(fit(name, folder, "gpu", bc), "train/loss")
    assert len(ours) == STEPS and ours == pytest.approx(theirs, rel=2e-3, abs=1e-4)


@pytest.mark.parametrize("name", [name for name in ONLINE if known(name)])
def test_rounds_are_played_and_learned_from(name: str, folder: Path, bc: Path) -> None:
    run = fit(name, folder, "gpu", bc)
    assert isfinite(column(run, "train/loss")[-1])
    if name == "ppo":  # what is trained is what was sampled
        assert column(run, "ppo/first_ratio") == pytest.approx([1.0] * len(column(run, "ppo/first_ratio")), abs=1e-4)


@pytest.mark.parametrize("more", [(), ("--compile",)])
@pytest.mark.parametrize("name", ["bc", "ilql"])
def test_greedy_play_is_the_same(name: str, more: Sequence[str], folder: Path, bc: Path) -> None:
    run = folder / "cpu" / name if name == "bc" else fit("ilql", folder / "played", "cpu", bc)
    transcripts = []
    for device in ("cpu", "cuda"):
        out = folder / f"{name}_{device}{''.join(more)}"
        words = ["evaluate", "maze_fo", "--policy", str(run), "--episodes", "12", "--temperature", "0", "--slots", "8"]
        used = more if device == "cuda" else ()
        assert main([*words, "--env", "max_steps=6", "--device", device, *used, "--out", str(out)]) == 0
        episodes = lmrl.read_episodes(out / "episodes.parquet")
        transcripts.append([(episode.observations, episode.actions) for episode in episodes])
    assert transcripts[0] == transcripts[1]


def test_shares_on_one_gpu(folder: Path, bc: Path) -> None:
    run = fit("ilql", folder / "shares", "gpu", bc, ["--config", "configs/scale/fsdp.yaml", "--trainer.devices=1"])
    assert isfinite(column(run, "train/loss")[-1]) and (run / "last" / "config.json").is_file()


@pytest.mark.parametrize(("precision", "within"), [("bf16-mixed", 1e-3), ("bf16-true", 0.05)])
def test_bfloat16(precision: str, within: float, folder: Path, bc: Path) -> None:
    settings = ["--config", "configs/scale/gpu.yaml", f"--trainer.precision={precision}"]
    run = fit("ppo", folder / precision, "gpu", bc, settings)
    assert isfinite(column(run, "train/loss")[-1])
    ratios = column(run, "ppo/first_ratio")
    assert ratios == pytest.approx([1.0] * len(ratios), abs=within)
