"""What a configuration file may do before anything is built: little, and quickly."""

from pathlib import Path
from time import process_time

import pytest
import yaml

from lmrl.cli import main
from lmrl.configuration import check_config
from lmrl.errors import UserError

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12))


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("evil", ["os.system", "subprocess.Popen"])
@pytest.mark.parametrize("place", ["model", "data", "trainer.logger", "trainer.callbacks+", "trainer.strategy"])
def test_a_class_path_of_another_kind_is_not_called(
    evil: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever a class is named, it must be one of the kind that belongs there."""
    arguments = {"os.system": {"command": f"touch {tmp_path / 'ran'}"}, "subprocess.Popen": {"args": ["touch", "ran"]}}
    section, _, key = place.partition(".")
    value = {"class_path": evil, "init_args": arguments[evil]}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({section: {key: value} if key else value}))
    base = str(Path("configs/maze_fo/bc.yaml").resolve())
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", base, "--config", str(path)]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert evil in line
    assert [file.name for file in tmp_path.iterdir()] == ["run.yaml"]
