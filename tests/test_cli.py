"""The commands through their real entry point: exit codes, messages, files."""

import io
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import yaml

from lmrl import __version__
from lmrl.cli import main, verbs
from lmrl.commands.verb import Verb
from lmrl.data.storage import read_episodes, write_episodes
from tests.helpers.cases import cases


def failed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a wrong command prints; it exits with 2 and without a traceback."""
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    line = said.err.strip().splitlines()[-1]
    assert line.startswith("error: ")
    assert "Traceback" not in said.err
    return line


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    path = tmp_path / "maze.parquet"
    assert main(["data", "generate", "maze_fo", "--size", "40", "--seed", "3", "--out", str(path)]) == 0
    return path


def test_help_names_every_verb_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, verb in verbs().items():
        assert f"lmrl {name}" in out
        assert verb.help in out


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_output_that_the_terminal_cannot_encode_is_written_plainly(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    monkeypatch.setitem(verbs(), "compare", Verb("anything:at_all", "", page="\u22126.8 [\u22127.3, \u22126.4] \u5de6"))
    assert main(["compare", "--help"]) == 0
    sys.stdout.flush()
    assert written.getvalue().decode(encoding).strip() == "-6.8 [-7.3, -6.4] ?"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lmrl {__version__}\n"


def test_each_verb_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in sorted(set(verbs()) - {"fit"}):
        assert main([*verb.split(), "--help"]) == 0
        out = capsys.readouterr().out
        assert f"lmrl {verb}" in out
        assert "options:" in out


def test_an_unknown_verb_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert "known: fit, evaluate," in failed(capsys, "trian")
    assert failed(capsys, "data", "make") == (
        "error: unknown command 'data make'; "
        "known: data generate, data join, data stats, data verify, data floor, data import, data export"
    )


@cases(
    ("words", "message"),
    [
        ("check-env maze", "unknown task 'maze'; known: car_dealer, chess, endgames, guess_city"),
        ("data generate maze --size 3", "unknown task 'maze'; known: car_dealer, chess, endgames, guess_city"),
        ("data generate maze_fo --sice 3", "unknown key 'sice'; did you mean 'size'?"),
        ("data generate maze_fo --size three", "size must be a whole number, got 'three'"),
        ("data generate", "arguments are required: task"),
        ("data stats nowhere.parquet", "nowhere.parquet: no such file"),
        ("data import maze_fo nowhere.jsonl --out x.parquet", "nowhere.jsonl: no such file"),
        ("evaluate maze_fo --policy clever --out x", "no policy 'clever': there is no such run folder or checkpoint"),
        ("evaluate maze_fo --policy random --beta 3 --out x", "beta can be set for a trained policy only"),
        ("evaluate maze_fo --policy random --compile --out x", "compile can be set for a trained policy only"),
        ("evaluate maze_fo --policy random --episodes 0 --out x", "episodes must be at least 1, got 0"),
        ("report --runs nowhere", "no results of"),
    ],
)
def test_wrong_words_are_answered_in_one_line(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in failed(capsys, *words.split())
    assert list(tmp_path.iterdir()) == []


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMRL_DEBUG", "1")
    with pytest.raises(ValueError, match="unknown command"):
        main(["trian"])


def test_a_warning_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # Under pytest warnings are not printed, so the text that would be is looked at.
    def dispatch(words: list[str]) -> int:
        print(warnings.formatwarning("two\nlines", UserWarning, "file.py", 1), end="")
        return 0

    monkeypatch.setattr("lmrl.cli._dispatch", dispatch)
    assert main(["anything"]) == 0
    assert capsys.readouterr().out == "warning: two lines\n"
    assert "file.py" in warnings.formatwarning("two\nlines", UserWarning, "file.py", 1)


def test_interruption_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Impatient(io.StringIO):
        def readline(self, size: int | None = -1, /) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", Impatient())
    assert main(["play", "maze_fo"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def _run_as_main(monkeypatch: pytest.MonkeyPatch, ending: BaseException) -> int:
    def end(words: list[str]) -> int:
        raise ending

    monkeypatch.setattr("lmrl.cli._dispatch", end)
    return main([])


def test_an_exit_with_a_message_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run_as_main(monkeypatch, SystemExit("no data")) == 1
    assert capsys.readouterr().err == "no data\n"


def test_a_pipe_that_breaks_elsewhere_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout", sys.__stdout__)
    assert _run_as_main(monkeypatch, BrokenPipeError(32, "the logger is gone")) == 2
    assert "the logger is gone" in capfd.readouterr().err


@pytest.mark.parametrize("words", ["--version", "zoo list"])
def test_an_output_that_nobody_reads_is_no_failure(words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "lmrl", *words.split()], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_without_standard_input_there_is_nothing_to_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main(["play", "maze_fo"]) == 2
    assert capsys.readouterr().err == "error: the input ended on turn 0, before the episode did\n"


def test_generate_is_the_same_by_seed(dataset: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.parquet"
    other = tmp_path / "other.parquet"
    for path, seed in ((again, "3"), (other, "4")):
        assert main(["data", "generate", "maze_fo", "--size", "40", "--seed", seed, "--out", str(path)]) == 0
    assert again.read_bytes() == dataset.read_bytes()
    assert other.read_bytes() != dataset.read_bytes()


def test_stats_as_json(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["data", "stats", str(dataset), "--json"]) == 0
    stats = json.loads(capsys.readouterr().out)
    episodes = list(read_episodes(dataset))
    assert stats["episodes"] == 40
    assert stats["return_mean"] == pytest.approx(sum(episode.total_reward for episode in episodes) / 40)


def test_verify_fails_on_a_changed_reward(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "verify", str(dataset)]) == 0
    first, *others = read_episodes(dataset)
    changed = type(first)(
        **{name: getattr(first, name) for name in first.__slots__} | {"rewards": (7.0, *first.rewards[1:])}
    )
    bad = tmp_path / "bad.parquet"
    write_episodes(bad, [changed, *others])
    capsys.readouterr()
    assert main(["data", "verify", str(bad)]) == 1
    said = capsys.readouterr()
    assert "39 of 40 episodes" in said.out
    assert "episode 0, turn 0: reward 7.0 in the file, -1.0 in the environment" in said.err


def test_check_env(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "maze_fo", "--texts", "50"]) == 0
    assert main(["check-env", "twenty_questions", "--texts", "5", "--env", "partner=scripted"]) == 0
    assert "ok: pickling keeps behaviour" in capsys.readouterr().out


def test_evaluate_writes_episodes_and_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "evaluation"
    assert main(["evaluate", "maze_fo", "--policy", "optimal", "--episodes", "25", "--out", str(out)]) == 0
    scores = json.loads((out / "scores.json").read_text())
    # Each of the 25 starts once: the mean optimal return by breadth-first search.
    assert scores["return_mean"] == pytest.approx(-6.84)
    assert scores["success_rate"] == 1.0
    assert {"task", "policy", "normalized_ci", "success_ci", "length_mean", "illegal_rate", "seed"} <= set(scores)
    assert len(list(read_episodes(out / "episodes.parquet"))) == 25
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "maze_fo, policy optimal: 25 episodes, seed 0"
    assert second.startswith("return     -6.84")


def test_an_evaluation_begins_with_all_that_is_not_as_usual(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "evaluate maze_fo --policy optimal --episodes 3 --seed 7 --selection --env max_steps=20 --out"
    assert main([*words.split(), str(tmp_path / "played")]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "maze_fo, policy optimal: 3 episodes, seed 7, max_steps 20, games to choose settings by"


def test_an_evaluation_with_other_settings_has_no_normalised_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", "maze_fo", "--policy", "random", "--episodes", "2", "--out", str(tmp_path / "e")]
    assert main([*words, "--env", "max_steps=8"]) == 0
    assert "normalised" not in capsys.readouterr().out
    assert main([*words[:-1], str(tmp_path / "f")]) == 0
    assert "normalised" in capsys.readouterr().out


def test_an_evaluation_of_one_episode_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "maze_fo", "--policy", "optimal", "--episodes", "1", "--out", str(tmp_path / "played")]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[0] == "maze_fo, policy optimal: 1 episode, seed 0"


def test_playing_by_hand(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # Seed 0 starts at 5, 8: two cells right of the goal's stem, three above the goal.
    monkeypatch.setattr("sys.stdin", io.StringIO("move left\nhop\nmove left\nmove down\nmove down\nmove down\n"))
    assert main(["play", "maze_fo", "--seed", "0"]) == 0
    out = capsys.readouterr().out
    assert "Your current position is at position 5, 8." in out
    assert out.endswith("Success\nturn 6: reward 0, return -8\nsolved: return -8 in 6 turns, 1 illegal\n")


# -- fit, on a small model of its own: what the command adds to Lightning ------------------------------------------

_TOY = """
import os
import signal

import lightning as L
import torch


class Line(L.LightningModule):
    def __init__(self, width: int = 4, rate: float = 0.5) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)

    def training_step(self, batch, index):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams["rate"])


class Impatient(Line):
    def training_step(self, batch, index):
        raise KeyboardInterrupt


class Evicted(Line):
    def training_step(self, batch, index):
        os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(batch, index)


class Numbers(L.LightningDataModule):
    def __init__(self, count: int = 8) -> None:
        super().__init__()
        self.count = count

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(self.count, 4), batch_size=4)
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run of two steps: ``toy.yaml``, to be trained in ``run``."""
    (tmp_path / "toy_run.py").write_text(_TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config = {
        "model": {"class_path": "toy_run.Line", "init_args": {"rate": 0.25}},
        "data": {"class_path": "toy_run.Numbers"},
        "trainer": {
            "max_steps": 2,
            "accelerator": "cpu",
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": "run",
        },
    }
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def test_fit_merges_overlays_and_keeps_the_whole_configuration(toy: Path) -> None:
    (toy / "overlay.yaml").write_text("model: {init_args: {rate: 0.125}}\ntrainer: {max_steps: 3}\n")
    words = ["fit", "--config", "toy.yaml", "--config", "overlay.yaml", "--trainer.max_steps=1"]
    assert main(words) == 0
    kept = yaml.safe_load((toy / "run" / "config.yaml").read_text())
    assert kept["seed_everything"] == 0
    assert kept["model"]["init_args"] == {"width": 4, "rate": 0.125}
    assert kept["trainer"]["max_steps"] == 1
    # What was kept is a configuration that can be trained again.
    assert main(["fit", "--config", "run/config.yaml", "--trainer.max_steps=2"]) == 0


def test_fit_goes_on_from_a_checkpoint(toy: Path) -> None:
    import torch

    assert main(["fit", "--config", "toy.yaml"]) == 0
    (first,) = toy.glob("run/checkpoints/*.ckpt")
    assert main(["fit", "--config", "toy.yaml", "--trainer.max_steps=5", "--ckpt_path", str(first)]) == 0
    steps = sorted(torch.load(path, weights_only=True)["global_step"] for path in toy.glob("run/checkpoints/*.ckpt"))
    assert steps == [2, 5]


def test_an_interrupted_training_is_130(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert main(["fit", "--config", "toy.yaml", "--model.class_path=toy_run.Impatient"]) == 130
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning leaves it ignored
    assert "\ninterrupted at step 0; there is no run/last.ckpt" in f"\n{capsys.readouterr().err}"


@pytest.mark.parametrize(("kind", "code"), [("Impatient", 130), ("Evicted", 143)])
def test_a_training_that_ended_early_says_how_to_go_on(
    kind: str, code: int, toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "--config", "toy.yaml"]) == 0
    (toy / "run" / "last.ckpt").write_bytes(next(toy.glob("run/checkpoints/*.ckpt")).read_bytes())
    handler = signal.getsignal(signal.SIGINT)
    words = ["fit", "--config", "toy.yaml", f"--model.class_path=toy_run.{kind}", "--trainer.max_steps=9"]
    try:
        assert main([*words, "--ckpt_path", "run/last.ckpt"]) == code
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning leaves it ignored
    assert capsys.readouterr().err.endswith(f"resume with: lmrl {' '.join(words)} --ckpt_path=run/last.ckpt\n")


def test_a_terminated_training_is_143(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", "toy.yaml", "--model.class_path=toy_run.Evicted"]) == 143
    assert "terminated at step 1; there is no run/last.ckpt" in capsys.readouterr().err


def test_fit_prints_its_configuration(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", "toy.yaml", "--print_config"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["model"]["init_args"]["rate"] == 0.25
    assert shown["trainer"]["callbacks"] is None  # those of the defaults are for language models
    assert not (toy / "run").exists()


@cases(
    ("words", "message"),
    [
        ("--data.init_args.size=3", "unknown key 'size' of toy_run.Numbers; known: count"),
        ("--model.init_args.rate=fast", "model.init_args.rate must be a number, got 'fast'"),
        ("--model.class_path=toy_run.Lime", "unknown name 'Lime' of toy_run; did you mean 'Line'?"),
        (
            "--ckpt_path gone.ckpt",
            "ckpt_path must be a checkpoint file or a folder of shards, there is none at 'gone.ckpt'",
        ),
        ("--config bad_group.yaml", "unknown key 'trainer.max_stps'; did you mean 'trainer.max_steps'?"),
        (
            "--config bad_key.yaml",
            "unknown key 'modle'; did you mean 'model'? known: allow_pickle, checkpoint, ckpt_path, compute, config",
        ),
        ("--compute.save_at=[0.5]", "compute.save_at are shares of compute.tflop, which is not given"),
    ],
)
def test_fit_names_what_is_wrong(toy: Path, words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    (toy / "bad_group.yaml").write_text("trainer: {max_stps: 2}\n")
    (toy / "bad_key.yaml").write_text("modle: 2\n")
    assert message in failed(capsys, "fit", "--config", "toy.yaml", *words.split())
    assert not (toy / "run").exists()


def test_python_dash_m() -> None:
    command = [sys.executable, "-m", "lmrl", "check-env", "nowhere"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1, result.stderr


def test_games_to_choose_by_are_others_and_are_written_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["evaluate", "maze_fo", "--policy", "optimal", "--episodes", "3"]
    assert main(words) == main([*words, "--selection"]) == 0
    played = [tmp_path / "runs/maze_fo/optimal" / name for name in ("evaluation", "evaluation_selection")]
    reported, chosen = ({e.seed for e in read_episodes(folder / "episodes.parquet")} for folder in played)
    assert len(reported | chosen) == 6
    marked = [json.loads((folder / "scores.json").read_text())["provenance"].get("selection") for folder in played]
    assert marked == [None, True]
