from pathlib import Path

import pytest
import yaml

from lmrl.errors import UserError
from lmrl.integrations.optuna.space import Choices, Range, as_words, first_values, overlay, read_space
from lmrl.utils.configuration import configuration, value_at
from tests.helpers.cases import cases


def test_a_space_has_ranges_and_choices_under_full_names(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(
        "model.lr: {low: 1e-5, high: 1e-3, log: true}\n"
        "model.init_args.expectile: {low: 0.6, high: 0.9, step: 0.1}\n"
        "data.batch_size: {low: 32, high: 96, step: 32}\n"
        "model.init_args.optimizer: [adamw, muon, null, true, 0.5]\n"
    )
    space = read_space(tmp_path / "space.yaml")
    assert space == {
        "model.init_args.lr": Range(1e-5, 1e-3, log=True),
        "model.init_args.expectile": Range(0.6, 0.9, step=0.1),
        "data.init_args.batch_size": Range(32, 96, step=32),
        "model.init_args.optimizer": Choices(("adamw", "muon", None, True, 0.5)),
    }
    assert [part.whole for part in space.values() if isinstance(part, Range)] == [False, False, True]
    assert list(first_values(space).values()) == [1e-5, 0.6, 32, "adamw"]


@cases(
    ("text", "told"),
    [
        ("model.lr: {low: 1, hgh: 2}", "unknown key 'hgh'; known: high, log, low, step"),
        ("model.lr: {low: 1}", "high is missing"),
        ("model.lr: {low: 2, high: 1}", "low must be below high, got 2 and 1"),
        ("model.lr: {low: true, high: 2}", "low must be a finite number, got True"),
        ("model.lr: {low: 1, high: .inf}", "high must be a finite number, got inf"),
        ("model.lr: {low: 0, high: 1, log: true}", "with log, low must be above 0"),
        ("model.lr: {low: 1, high: 2, log: maybe}", "log must be true or false"),
        ("model.lr: {low: 0.0, high: 1.0, step: 0.3}", "step must be above 0 and lead from low to high, got 0.3"),
        ("model.lr: {low: 0, high: 4, step: -2}", "step must be above 0"),
        ("model.lr: 3", "must be {low, high, log, step} or a list of choices, got 3"),
        ("model.lr: []", "choices must be different values, at least one"),
        ("model.lr: [1, 1.0]", "choices must be different values"),
        ("model.lr: [[1], [2]]", "a choice must be a number, a text, true, false or null, got [1]"),
        ("model.lr: [1]\nmodel.init_args.lr: [2]", "model.init_args.lr is there twice"),
        ("trainer.default_root_dir: [a, b]", "a sweep sets this itself"),
        ("model lr: [1]", "must be a dotted option of a run file"),
        ("model.architecture: [1]\nmodel.architecture.n_layer: [2]", "n_layer is a part of"),
        ("- 1", "must hold names and values"),
        ("{}", "holds no option to search"),
        ("model.lr: ['${oc.env:TOKEN}']", "${oc.env:TOKEN} would be written out"),
    ],
)
def test_what_is_no_space_is_refused_in_one_line(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        read_space(tmp_path / "space.yaml")
    assert told in str(caught.value) and str(tmp_path / "space.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_says_what_it_would_hold(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file; .*model\.init_args\.lr"):
        read_space(tmp_path / "nowhere.yaml")


def test_words_and_overlay_are_read_as_the_same_settings(tmp_path: Path) -> None:
    settings = {"model.init_args.lr": 1e-05, "model.init_args.lora": None, "data.init_args.task": "maze_fo"}
    settings |= {"trainer.deterministic": True, "data.init_args.batch_size": 64}
    words = as_words(settings)
    assert words[0] == "--model.init_args.lr=1e-05" and words[3] == "--trainer.deterministic=true"
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(overlay(settings)))
    for given in (words, ["--config", str(tmp_path / "best.yaml")]):
        merged = configuration(["fit", *given])
        assert {key: value_at(merged, key) for key in settings} == settings


def test_a_part_of_an_argument_is_written_with_all_of_it(tmp_path: Path) -> None:
    """A file replaces a whole argument, an option of the command line a part of it."""
    words = ["fit", "--config", "configs/maze_fo/bc.yaml"]
    settings = {"model.init_args.architecture.n_layer": 7, "model.init_args.lr": 0.5}
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(overlay(settings, words)))
    tried = configuration([*words, *as_words(settings)])
    written = configuration([*words, "--config", str(tmp_path / "best.yaml")])
    assert written == tried and written.model.init_args.architecture.n_head > 0
