import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lmrl.cli import main
from lmrl.envs import registry
from lmrl.envs.registry import tasks
from lmrl.envs.task import Tuning
from lmrl.errors import UserError
from lmrl.evaluation import default_episodes
from lmrl.reproduce import OFFLINE, ONLINE, Order, shortened
from lmrl.reproduce.plan import PRESETS, Cell, Step, plan
from lmrl.utils.configuration import configuration, value_at

Make = Callable[..., Order]


def trainings(order: Order) -> list[Cell]:
    return [cell for cell in plan(order) if cell.fit]


def words(cell: Cell) -> tuple[str, ...]:
    assert cell.fit is not None
    return cell.fit.words


def test_the_plan(place: Path, order: Make) -> None:
    cells = plan(order("mc", "bc", episodes=None))
    assert [(cell.name, cell.after, cell.max_steps) for cell in cells] == [
        ("maze_fo/data", None, None),
        ("maze_fo/random", None, None),
        ("maze_fo/behaviour", None, None),
        ("maze_fo/optimal", None, None),
        ("maze_fo/bc", "maze_fo/data", 70),
        ("maze_fo/mc", "maze_fo/bc", 70),
    ]
    assert [step.name for step in cells[-1].steps] == ["fit", "evaluate", "evaluate_last", "tune", "evaluate_tuned"]
    assert cells[-1].steps[3].words == ("tune", "runs/maze_fo/mc", "--episodes", "128")
    assert cells[-1].steps[4].words[-3:] == ("--tuned", "--out", "runs/maze_fo/mc/evaluation_tuned")
    assert cells[-1].steps[1].words[3:7] == ("runs/maze_fo/mc", "--episodes", "275", "--seed")
    trial = plan(shortened(order("mc")))[-1].steps[3].words
    assert trial[4:] == ("--temperatures", "1", "0.5", "--betas", "1", "8"), "a trial run chooses among few settings"
    longer = trainings(order("mc", overrides=["--trainer.max_steps=9"]))
    assert longer[1].max_steps == 9 and longer[1].recipe != cells[-1].recipe
    elsewhere = trainings(order("mc", overrides=["--model.init_args.pretrained=gpt2"]))
    assert [(cell.algorithm, cell.after) for cell in elsewhere] == [("mc", "maze_fo/data")]


def test_a_start_that_overrides_give_to_every_training_is_refused(place: Path, order: Make) -> None:
    overrides = ("--model.pretrained=runs/maze_fo/filtered_bc",)
    with pytest.raises(UserError, match="maze_fo/filtered_bc would start from itself"):
        plan(replace(order("ppo"), overrides=overrides))


def test_enough_episodes_from_each_start_alike() -> None:
    assert default_episodes("endgames", selection=True) == 512  # other starts
    assert {task: default_episodes(task) for task in ("maze_fo", "endgames", "wordle")} == {
        "maze_fo": 275,
        "endgames": 645,
        "wordle": 256,
    }


def test_seeds_are_folders_of_runs(place: Path, order: Make) -> None:
    cells = trainings(order("mc", seeds=(0, 2)))
    assert [(cell.name, cell.folder.as_posix()) for cell in cells] == [
        ("maze_fo/bc", "runs/maze_fo/bc"),
        ("maze_fo/mc", "runs/maze_fo/mc"),
        ("maze_fo/bc seed 2", "runs/seed_2/maze_fo/bc"),
        ("maze_fo/mc seed 2", "runs/seed_2/maze_fo/mc"),
    ]
    assert cells[3].after == "maze_fo/bc seed 2"
    assert "--model.init_args.pretrained=runs/seed_2/maze_fo/bc" in words(cells[3])
    assert words(cells[3])[3:5] == ("--seed_everything", "2")
    assert ("--seed", "2") == cells[3].steps[1].words[6:8]


def test_runs_kept_elsewhere(place: Path, order: Make) -> None:
    bc, mc = trainings(order("mc", runs=Path("other")))
    assert "--trainer.default_root_dir=other/maze_fo/bc" in words(bc)
    assert "--model.init_args.pretrained=other/maze_fo/bc" in words(mc)
    assert mc.steps[1].words[-1] == "other/maze_fo/mc/evaluation"


def test_another_environment_reaches_data_training_and_evaluation(place: Path, order: Make) -> None:
    data, *_, cell = plan(order("bc", env={"max_steps": 3}))
    plain = trainings(order("bc"))[0]
    assert data.steps[0].words[-2:] == ("--env", "max_steps=3")
    assert '--data.init_args.env={"max_steps": 3}' in words(cell)
    assert cell.steps[1].words[-4:-2] == ("--env", "max_steps=3")
    assert all(one.recipe != other.recipe for one, other in zip(cell.steps, plain.steps, strict=True))


def test_online_cells_start_where_their_configurations_say(order: Make) -> None:
    cells = trainings(shortened(order("ilql_to_ppo", "online_ilql")))
    assert [(cell.algorithm, cell.after) for cell in cells] == [
        ("bc", "maze_fo/data"),
        ("ilql", "maze_fo/bc"),
        ("ilql_to_ppo", "maze_fo/ilql"),
        ("online_ilql", "maze_fo/bc"),
    ]
    rounds = {"class_path": "lmrl.callbacks.RolloutCollection", "init_args": {"episodes": 5}}
    for cell in cells:
        (word,) = [word for word in words(cell) if word.startswith("--trainer.callbacks=")]
        online = cell.algorithm in ("ilql_to_ppo", "online_ilql")
        assert json.loads(word.partition("=")[2])[1:] == ([rounds] if online else [])
        assert cell.max_steps == (6 if online else 60)


def test_a_short_round_is_made_up_of_whole_groups(order: Make) -> None:
    cell = trainings(shortened(order("grpo")))[-1]
    (word,) = [word for word in words(cell) if word.startswith("--trainer.callbacks=")]
    assert json.loads(word.partition("=")[2])[-1]["init_args"] == {"episodes": 16, "group_size": 8}


def test_a_handful_of_games_is_kept_whether_won_or_not(order: Make) -> None:
    """In the shortened form alone: a real run learns from solved episodes only, and says when there are none."""
    for given, kept in ((order("online_filtered_bc"), True), (shortened(order("online_filtered_bc")), False)):
        cell = trainings(given)[-1]
        assert value_at(configuration(words(cell)), "model.init_args.success") is kept


@pytest.mark.nightly
def test_the_whole_table_is_planned_at_both_sizes() -> None:
    """Every task with every algorithm, each after what it starts from."""
    for name in ("cpu", "gpu"):
        preset = PRESETS[name]
        order = Order([*tasks()], [*OFFLINE, *ONLINE], preset.runs, seeds=range(3), preset=preset)
        cells = plan(order)
        seen: set[str] = set()
        for cell in cells:
            assert cell.after is None or cell.after in seen
            seen.add(cell.name)
        assert len(seen) == len(cells) and sum(cell.fit is not None for cell in cells) == 10 * 7 * 3
        assert all(cell.max_steps for cell in cells if cell.fit), name


def test_a_choice_of_settings_is_played_anew_where_others_are_tried(
    order: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def last_two() -> tuple[Step, ...]:
        return trainings(replace(order("bc"), episodes=None))[0].steps[-2:]

    plain = last_two()
    for grid in ("TEMPERATURES", "BETAS"):
        with monkeypatch.context() as fewer:
            fewer.setitem(vars(sys.modules["lmrl.reproduce.plan"]), grid, (1.0, 2.0))
            tuning, tuned = last_two()
        assert tuning.words == plain[0].words, grid
        assert tuning.recipe != plain[0].recipe and tuned.recipe != plain[1].recipe, grid
    task = replace(registry.task("maze_fo"), tuning=Tuning(top_ps=(0.9, 0.8), episodes=512))
    monkeypatch.setattr(registry, "task", lambda name: task)
    tuning, tuned = last_two()
    assert plain[0].words[-2:] == ("--episodes", "128")
    assert tuning.words[-5:] == ("--episodes", "512", "--top_ps", "0.9", "0.8")
    assert tuning.recipe != plain[0].recipe and tuned.recipe != plain[1].recipe


def test_the_large_preset(order: Make) -> None:
    bc, ilql = trainings(Order(["maze_fo"], ["ilql"], Path("runs/gpu"), preset=PRESETS["gpu"]))
    assert "--model.init_args.pretrained=gpt2" in words(bc) and "configs/scale/gpt2.yaml" in words(bc)
    assert "--model.init_args.pretrained=runs/gpu/maze_fo/bc" in words(ilql)
    assert "configs/paper/maze_fo/ilql.yaml" in words(ilql)
    config = configuration(words(ilql))
    assert value_at(config, "model.init_args.architecture.n_layer") == 12
    assert value_at(config, "model.init_args.expectile") == 0.99 and bc.max_steps == 20_000
    assert bc.steps[1].words[-6:-2] == ("--device", "cuda", "--slots", "256")
    scratch = Order(["maze_fo"], ["bc"], Path("runs/gpu"), preset=PRESETS["gpu"], weights="scratch")
    assert not [word for word in words(trainings(scratch)[0]) if "pretrained" in word]
    with pytest.raises(UserError, match="weights go with the preset gpu"):
        plan(order("bc", weights="gpt2"))


@pytest.mark.parametrize(
    ("given", "placed"),
    [
        ([], []),
        (["--device", "cuda:1"], ["--device", "cuda:1", "--slots", "256"]),
        (["--device", "cpu"], ["--device", "cpu"]),
    ],
)
def test_small_models_may_play_on_a_gpu_too(
    given: list[str], placed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Order] = []
    monkeypatch.setattr("lmrl.commands.reproduce.reproduce", lambda order, **_: found.append(order))
    assert main(["reproduce", "maze_fo", "--algorithms", "bc", *given]) == 0
    (bc,) = trainings(found[0])
    assert [
        word for step in bc.steps for word in step.words if word in ("--device", "cpu", "cuda:1", "--slots", "256")
    ] == placed * 4
