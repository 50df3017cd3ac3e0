import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lmrl.cli import main
from lmrl.envs import registry
from lmrl.envs.task import Tuning
from lmrl.errors import UserError
from lmrl.evaluation import tuning
from lmrl.evaluation.loading import PolicySpec
from lmrl.evaluation.tuning import TUNED, tune, tuned_settings
from lmrl.modules import MC, load
from lmrl.tokens.encoding import Window
from lmrl.types import LoadedPolicy, Policy


@pytest.fixture
def run(bc_run: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bc_run, tmp_path / "bc"))


def test_the_best_of_all_settings_is_kept_and_played(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["tune", str(run), "--temperatures", "0", "1", "--episodes", "4"]) == 0
    record = json.loads((run / TUNED).read_text())
    tried = {line["settings"]["temperature"]: line["return_mean"] for line in record["tried"]}
    assert len(tried) == 2 and tried[record["settings"]["temperature"]] == max(tried.values())
    assert f"chosen: --temperature {record['settings']['temperature']:g}" in capsys.readouterr().out
    assert main(["evaluate", "--policy", str(run), "--tuned", "--episodes", "2"]) == 0
    # Where reports look for it.
    scores = json.loads((run / "evaluation_tuned" / "scores.json").read_text())
    assert scores["provenance"]["decoding"] == record["settings"]
    # Other settings and other checkpoints have folders of their own.
    for words in (["--policy", str(run), "--env", "max_steps=2"], ["--policy", str(run / "last.ckpt")]):
        assert main(["evaluate", *words, "--tuned", "--episodes", "2"]) == 0
    temperature = f"temperature={record['settings']['temperature']}"
    assert {path.parent.name for path in run.glob("evaluation*/scores.json")} == {
        *("evaluation_tuned", f"evaluation_{temperature}_max_steps=2", f"evaluation_last_{temperature}")
    }


def test_a_choice_is_made_by_games_that_no_score_counts(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def spying(policy: Policy, task: str, episodes: int, seed: int, **more: object) -> object:
        asked.append((episodes, seed, more["selection"]))
        return tuning_evaluate(policy, task, episodes, seed, **more)  # type: ignore[arg-type]

    tuning_evaluate = tuning.evaluate
    monkeypatch.setattr("lmrl.evaluation.tuning.evaluate", spying)
    tune(run, temperatures=(1.0,), episodes=1, seed=4)
    assert asked == [(1, 4, True)]


def test_the_weights_are_read_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def noted(*arguments: Any, **settings: Any) -> Any:
        made.append(arguments[0])
        return make(*arguments, **settings)

    make = load._build_module
    monkeypatch.setattr(load, "_build_module", noted)
    tune(run, temperatures=(1.0, 0.5), top_ps=(0.9,), episodes=1)
    assert len(made) == 1
    # The maze's probe needs a greedy policy.
    assert main(["evaluate", "--policy", str(run), "--episodes", "1"]) == 0
    assert (run / "evaluation" / "probe.json").is_file()
    assert len(made) == 2


def test_what_cannot_be_tuned_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="what is tuned is the folder of a run"):
        tune(run / "last.ckpt")
    with pytest.raises(UserError, match="temperature -1"):
        tune(run, temperatures=(-1.0,))
    with pytest.raises(UserError, match="make it with: lmrl tune"):
        tuned_settings(run)
    (run / TUNED).write_text('{"settings": {"temperature": "hot"}}')
    with pytest.raises(UserError, match="settings must be numbers"):
        tuned_settings(run)
    assert main(["evaluate", "--policy", str(run), "--tuned", "--temperature", "1"]) == 2
    assert "tuned says what temperature should be" in capsys.readouterr().err


def test_tuned_is_refused_where_nothing_can_have_been_chosen(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        (["maze_fo", "--policy", "random"], "random is neither a run nor a policy of the zoo: leave out --tuned"),
        (["--policy", str(run / "last.ckpt")], f"{run} has no tuned.json; make it with: lmrl tune {run}"),
        (["--policy", str(run / "last")], f"{run} has no tuned.json; make it with: lmrl tune {run}"),
        (["--policy", "zoo:maze_fo/ilql"], "no settings were chosen for zoo:maze_fo/ilql: leave out --tuned"),
    ):
        assert main(["evaluate", *words, "--tuned", "--episodes", "1"]) == 2
        assert capsys.readouterr().err.strip().endswith(told)


def test_settings_that_were_chosen_for_other_weights_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tune(run, temperatures=(0.5,), episodes=1)
    assert tuned_settings(run) == {"temperature": 0.5}
    checkpoint = torch.load(run / "last.ckpt", weights_only=True)
    checkpoint["lmrl"]["made_with"]["weights"] = "0123456789abcdef"  # as after further training
    torch.save(checkpoint, run / "last.ckpt")
    assert main(["evaluate", "--policy", str(run), "--tuned", "--episodes", "1"]) == 2
    assert capsys.readouterr().err.endswith(f"other weights than the run has now; tune again: lmrl tune {run}\n")
    # A run whose checkpoints are gone, and a file from before weights were noted, are accepted.
    (run / "last.ckpt").rename(run / "away")
    assert tuned_settings(run / "last") == {"temperature": 0.5}
    (run / "away").rename(run / "last.ckpt")
    record = json.loads((run / TUNED).read_text())
    del record["weights"]
    (run / TUNED).write_text(json.dumps(record))
    assert tuned_settings(run) == {"temperature": 0.5}


def test_betas_of_a_policy_without_values_are_not_tried(run: Path) -> None:
    with pytest.warns(UserWarning, match="has no values, so no beta is tried"):
        tried = tune(run, temperatures=(1.0,), betas=(1.0, 2.0), episodes=1)
    assert all("beta" not in one.settings for one in tried)


def test_the_highest_mean_return_wins(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    returns = iter([1.0, 3.0, 2.0])

    class Played:
        def scores(self) -> dict[str, object]:
            return {"return_mean": next(returns), "return_ci": [0.0, 4.0]}

    monkeypatch.setattr("lmrl.evaluation.tuning.evaluate", lambda *given, **more: Played())
    tried = tune(run, temperatures=(1.0, 0.5, 0.25))
    assert [line.return_mean for line in tried] == [3.0, 2.0, 1.0]
    assert tuned_settings(run) == {"temperature": 0.5}


def test_it_plays_on_the_device_that_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    load = PolicySpec.load

    def spying(spec: PolicySpec, env: object = None, **settings: Any) -> LoadedPolicy:
        asked.append(settings.pop("device", None))
        return load(spec, None, **settings)

    monkeypatch.setattr(PolicySpec, "load", spying)
    tune(run, temperatures=(1.0,), episodes=1, device="cuda:3")
    assert asked[-1] == "cuda:3"


def test_a_task_says_which_top_ps_are_tried_and_they_are_so_at_temperature_1(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = replace(registry.task("maze_fo"), tuning=Tuning(top_ps=(0.9, 0.5)))
    monkeypatch.setattr(registry, "task", lambda name: task)
    returns = {0.9: 2.0, 0.5: 3.0, None: 1.0}
    played: list[dict[str, Any]] = []

    class Played:
        def scores(self) -> dict[str, object]:
            return {"return_mean": returns[played[-1].get("top_p")], "return_ci": [0.0, 4.0]}

    load = PolicySpec.load

    def spying(spec: PolicySpec, env: object = None, **settings: Any) -> LoadedPolicy:
        played.append({name: value for name, value in settings.items() if name != "module"})
        return load(spec, None, **settings)

    monkeypatch.setattr(PolicySpec, "load", spying)
    monkeypatch.setattr(tuning, "evaluate", lambda *given, **more: Played())
    tune(run, temperatures=(0.5,))
    assert played[1:] == [{"temperature": 0.5}, *({"temperature": 1.0, "top_p": value} for value in (0.9, 0.5))]
    assert tuned_settings(run) == {"temperature": 1.0, "top_p": 0.5}
    for none in ((), (1.0,)):
        assert [tried.settings for tried in tune(run, temperatures=(0.5,), top_ps=none)] == [{"temperature": 0.5}]
    with pytest.raises(UserError, match=r"top_p 1\.5"):
        tune(run, top_ps=(1.5,))


@pytest.mark.parametrize(("given", "expected"), [(None, [0.25, 0.5, 0.75, 1.0, 2.0, 4.0, 8.0, 16.0]), ((3.0,), [3.0])])
def test_the_beta_that_a_run_was_trained_with_is_tried(
    run: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[float, ...] | None, expected: list[float]
) -> None:
    class Played:
        def scores(self) -> dict[str, object]:
            return {"return_mean": 1.0, "return_ci": [0.0, 4.0]}

    module = MC(pretrained=str(run), beta=0.75)
    module.window = Window(tokens=64)
    trained = module.policy(max_new_tokens=8)
    monkeypatch.setattr(PolicySpec, "load", lambda *given, **more: LoadedPolicy(trained))
    monkeypatch.setattr("lmrl.evaluation.tuning.evaluate", lambda *given, **more: Played())
    assert [tried.settings["beta"] for tried in tune(run, temperatures=(1.0,), betas=given)] == expected
