"""Tests of configuration files: what they may do before anything is built (little, and quickly), and how they merge."""

import re
import shlex
from pathlib import Path
from time import process_time
from typing import Any

import pytest
import yaml

from lmrl.cli import main
from lmrl.errors import UserError
from lmrl.utils.configuration import check_config, configs_folder, configuration, defaults_file, value_at
from tests.helpers.cases import cases

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12))


@cases(
    ("text", "message"),
    [
        (BOMB, r"its aliases \(\*name\) stand for more than 100,000 values"),
        (MERGED, r"its aliases \(\*name\) stand for more than 100,000 values"),
        ("model: &m [*m]\n", "is nested too deep, or holds itself"),
        ("model: &m {x: *m}\n", "is nested too deep, or holds itself"),
        ("model: " + "[" * 1500 + "]" * 1500, "is nested too deep"),
        (
            "model: !!python/object/apply:os.system ['touch ran']\n",
            "line 1: no YAML: could not determine",
        ),
    ],
)
def test_a_file_that_would_never_end_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    begun = process_time()
    with pytest.raises(UserError, match=message) as error:
        check_config(path)
    assert process_time() - begun < 20
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == ["odd.yaml"]


def test_aliases_for_what_is_meant_twice_are_fine(tmp_path: Path) -> None:
    (tmp_path / "fine.yaml").write_text("a: &a {lr: 1}\nb: *a\nc: {<<: *a, x: 2}\n")
    check_config(tmp_path / "fine.yaml")


@pytest.mark.parametrize("place", ["value", "list", "key", "escaped", "default", "word"])
def test_secrets_of_the_environment_do_not_get_into_files(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_TOKEN", "swordfish")
    named = {"default": "${oc.env:MY_TOKEN,none}", "escaped": "${ oc.env : MY_TOKEN }"}.get(place, "${oc.env:MY_TOKEN}")
    root = {"key": {named: 1}, "list": [named]}.get(place, named)
    content = {"trainer": {} if place == "word" else {"default_root_dir": root}}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(content))
    words = ["fit", "--config", str(path), *([f"--trainer.default_root_dir={named}"] if place == "word" else [])]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "${oc.env:MY_TOKEN} would be written out in config.yaml" in said and "swordfish" not in said
    assert [file.name for file in tmp_path.iterdir()] == ["run.yaml"]


def test_places_of_the_environment_may_be_named(tmp_path: Path) -> None:
    names = ("HOME", "USER", "SCRATCH", "TMPDIR", "LMRL_DATA", "SLURM_JOB_ID")
    (tmp_path / "fine.yaml").write_text(yaml.safe_dump({name: f"${{oc.env:{name}}}/x" for name in names}))
    check_config(tmp_path / "fine.yaml")


@cases("place", ["model", "data", "trainer.logger", "trainer.callbacks+", "trainer.strategy"])
def test_a_class_path_of_another_kind_is_not_called(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever a class is named, it must be one of the kind that belongs there."""
    section, _, key = place.partition(".")
    value = {"class_path": "os.system", "init_args": {"command": f"touch {tmp_path / 'ran'}"}}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({section: {key: value} if key else value}))
    base = str(configs_folder() / "maze_fo" / "bc.yaml")
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", base, "--config", str(path)]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "os.system" in line
    assert [file.name for file in tmp_path.iterdir()] == ["run.yaml"]


# -- what is merged ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that has no configurations of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["fit", *words, "--print_config"]) == 0
    found: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return found


def callbacks(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["class_path"].rpartition(".")[2]: entry["init_args"] for entry in config["trainer"]["callbacks"]}


def test_words_are_merged_in_their_order(folder: Path) -> None:
    (folder / "run.yaml").write_text(
        "trainer: {max_steps: 3, logger+: [{class_path: MyLogger}]}\nmodel: {class_path: BC}\n"
    )
    words = ["fit", "--trainer.max_steps=2", "--config=run.yaml", "--data.size", "9", "--overwrite", "--model", "ILQL"]
    config = configuration([*words, "--rollout.episodes=5"])
    assert config.trainer.max_steps == 3 and len(config.trainer.logger) == 3
    assert config.data.init_args.size == 9 and config.model.class_path == "ILQL"
    assert config.rollout.episodes == 5 and config.seed_everything == 0
    assert value_at(config, "trainer.logger")[0].init_args.save_dir == "."
    with pytest.raises(UserError, match=r"--model\.init_args\.lr=\[ cannot be read"):
        configuration(["--model.init_args.lr=["])


def test_kept_contents_follow_their_file_and_are_not_changed_by_use(folder: Path) -> None:
    """Contents of files are kept: a change of the file is seen, a change of one configuration affects no other."""
    file = folder / "run.yaml"
    file.write_text("trainer: {max_steps: 3, logger+: [{class_path: MyLogger}]}\n")
    first = configuration(["fit", "--config=run.yaml", "--trainer.max_steps=9"])
    first.trainer.logger.append({"class_path": "Another"})
    first.trainer.max_epochs = 7
    second = configuration(["fit", "--config=run.yaml"])
    assert (second.trainer.max_steps, len(second.trainer.logger)) == (3, 3)
    assert second.trainer.get("max_epochs") != 7
    file.write_text("trainer: {max_steps: 4}\n")
    assert configuration(["fit", "--config=run.yaml"]).trainer.max_steps == 4
    file.write_text("trainer: [\n")
    with pytest.raises(UserError, match="line 2: no YAML"):
        configuration(["fit", "--config=run.yaml"])


def test_a_run_file_of_ones_own_needs_no_more_than_the_docs_show(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = defaults_file().parents[1] / "docs" / "reference" / "commands.md"
    (text,) = re.findall("```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (folder / "mine.yaml").write_text(text)
    found = shown(capsys, "--config", "mine.yaml")
    playing = {"task": "maze_fo", "every_n_steps": 500, "episodes": 100}
    assert callbacks(found)["InteractiveEvaluation"].items() >= playing.items()
    assert found["trainer"]["logger"][0]["init_args"]["save_dir"] == "runs/maze_fo/my_ilql"


def test_classes_alone_are_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "--model", "BC", "--data", "MazeData", "--data.task=maze_po", "--data.env={max_steps: 3}")
    assert callbacks(found)["InteractiveEvaluation"]["task"] == "maze_po"
    assert callbacks(found)["InteractiveEvaluation"]["env"] == {"max_steps": 3}
    assert found["trainer"]["gradient_clip_val"] == 1.0


@pytest.mark.parametrize("name", ["ppo", "ilql"])
def test_a_complete_file_takes_nothing_from_the_defaults(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run leaves such a file as ``config.yaml``."""
    whole = shown(capsys, "--config", f"configs/maze_fo/{name}.yaml")
    (folder / "config.yaml").write_text(yaml.safe_dump(whole))
    assert shown(capsys, "--config", "config.yaml") == whole
    del whole["evaluation"], whole["checkpoint"], whole["rollout"]
    (folder / "config.yaml").write_text(yaml.safe_dump(whole))
    assert shown(capsys, "--config", "config.yaml").items() >= whole.items()


BC_CONFIG = "--config configs/maze_fo/bc.yaml"


@cases(
    ("words", "message"),
    [
        (
            f"{BC_CONFIG} --rollout.episodes=3",
            "rollout.episodes has no effect: trainer.callbacks holds no RolloutCollection",
        ),
        (
            f"{BC_CONFIG} --trainer.callbacks='[{{class_path: KeepLast}}]' --checkpoint.every_n_steps=3",
            "checkpoint.every_n_steps has no effect: trainer.callbacks says itself how KeepLast is set",
        ),
        (f"{BC_CONFIG} --evaluation.episodes=few", "evaluation.episodes must be a whole number, got 'few'"),
        (f"{BC_CONFIG} --evaluation.steps=3", "unknown key 'evaluation.steps'; "),
        ("--model BC --data OnlineDataModule", "OnlineDataModule must be given task: name it as data.init_args.task"),
        ("--model BC --data OfflineDataModule", "data.init_args.path must name their file"),
    ],
)
def test_what_has_no_effect_or_is_missing_is_said(
    words: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", *shlex.split(words)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("value", ["1" * 10_000, "${oc.en${y}:X}", "[" * 2000])
def test_odd_values_in_a_file_are_refused_in_one_line(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.yaml").write_text(f"model: {{init_args: {{lr: {value if value[0] == '1' else repr(value)}}}}}\n")
    if value[0] == "[":
        (tmp_path / "odd.yaml").write_text(f"model: {value}\n")
    assert main(["fit", "--config", "configs/maze_fo/bc.yaml", "--config", str(tmp_path / "odd.yaml")]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[-1].startswith("error: ") and "Traceback" not in "".join(told)
