from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import lmrl
from lmrl.data import generate, read_dataset, verify
from lmrl.data.storage import write_episodes
from lmrl.envs.registry import recorded_arguments
from lmrl.errors import UserError
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Start
from tests.helpers.cases import cases

LEFT = "move left\n"
RIGHT = "move right\n"
DOWN = "move down\n"


def played(*actions: str, start: tuple[int, int] = (6, 6), task: str = "maze_fo") -> Episode:
    """Play the actions in the real environment and return the episode."""
    env = lmrl.make(task)
    text, info = env.reset(seed=0, options={"init_position": start})
    observations = [text]
    rewards = []
    ending = (False, False)
    for action in actions:
        text, reward, *ending, info = env.step(action)  # type: ignore[assignment]
        observations.append(text)
        rewards.append(reward)
    kept = {"start": info["start"], "success": info["success"]}
    return Episode(task, tuple(observations), actions, tuple(rewards), ending[0], not ending[0], info=kept)


WON = played(LEFT, DOWN, "nonsense", DOWN)


def verified(folder: Path, *episodes: Episode) -> list[str]:
    write_episodes(folder / "e.jsonl", episodes)
    report = verify(folder / "e.jsonl")
    assert report.ok == (report.mismatched == 0) == (not report.mismatches)
    return [str(mismatch) for mismatch in report.mismatches]


@pytest.mark.parametrize("task", ["maze_fo", "maze_po"])
def test_a_generated_dataset_replays(tmp_path: Path, task: str) -> None:
    path = generate(task, 150, out=tmp_path / "e.parquet", progress=False)
    report = verify(path)
    assert report.ok
    assert (report.task, report.episodes) == (task, 150)
    assert report.turns == sum(map(len, read_dataset(path)))


def test_what_a_policy_played_replays_from_its_seed(tmp_path: Path) -> None:
    policy = lmrl.envs.registry.make_policy("maze_fo", "random")
    starts = [Start(seed) for seed in range(20)]
    episodes = in_order(rollout(policy, lambda: lmrl.make("maze_fo"), starts, task="maze_fo"))
    assert any(episode.observations[-1] == "Failure\n" for episode in episodes)
    assert verified(tmp_path, *episodes) == []


def test_an_episode_that_its_recorder_cut_is_right(tmp_path: Path) -> None:
    assert WON.terminated
    assert verified(tmp_path, WON, played(LEFT, RIGHT)) == []


@cases(
    ("change", "message"),
    [
        (
            lambda e: replace(e, observations=(*e.observations[:2], "elsewhere\n", *e.observations[3:])),
            "turn 1: observation 'elsewhere\\n' in the file, 'The goal",
        ),
        (lambda e: replace(e, observations=("elsewhere\n", *e.observations[1:])), "turn -1: observation 'elsewhere"),
        (lambda e: replace(e, rewards=(-1.0, -1.0, -1.0, 0.0)), "turn 2: reward -1.0 in the file, -4.0 in the"),
        (lambda e: replace(e, actions=(LEFT, DOWN, DOWN, DOWN)), "turn 2: observation 'The goal"),
        (
            lambda e: replace(e, terminated=False, truncated=True),
            "turn 3: ending 'truncated' in the file, 'terminated'",
        ),
        (lambda e: replace(e, truncated=True), "turn 3: ending 'terminated and truncated' in the file, 'terminated'"),
        (lambda e: replace(played(LEFT, DOWN), terminated=True, truncated=False), "turn 1: ending 'terminated' in the"),
    ],
)
def test_what_was_tampered_with_is_found(tmp_path: Path, change: Callable[[Episode], Episode], message: str) -> None:
    found = verified(tmp_path, WON, change(WON), WON)
    assert len(found) == 1
    assert found[0].startswith("episode 1, ")
    assert message in found[0]


def test_actions_after_the_end_are_found(tmp_path: Path) -> None:
    won = played(DOWN, start=(7, 6))
    longer = replace(won, observations=(*won.observations, "?"), actions=(DOWN, DOWN), rewards=(0.0, 0.0))
    assert "turn 0: ending 'none' in the file, 'terminated'" in verified(tmp_path, longer)[0]


def test_only_the_first_twenty_are_kept(tmp_path: Path) -> None:
    write_episodes(tmp_path / "e.jsonl", [replace(WON, rewards=(9.0,) * 4)] * 30)
    report = verify(tmp_path / "e.jsonl")
    assert (report.mismatched, len(report.mismatches)) == (30, 20)


def test_without_a_recorded_start_all_are_tried(tmp_path: Path) -> None:
    blind = played(RIGHT, "move up\n", RIGHT, RIGHT, start=(2, 3), task="maze_po")
    unknown = replace(blind, info={})
    assert verified(tmp_path, unknown) == []
    assert len(verified(tmp_path, replace(unknown, rewards=(-1.0, -1.0, -1.0, -4.0)))) == 1


def test_the_starts_that_are_tried_are_those_of_the_layout(tmp_path: Path) -> None:
    env = lmrl.make("maze_po", layout="umaze")
    first = env.reset(seed=0, options={"init_position": (2, 1)})[0]
    turn = env.step("move up\n")
    unknown = Episode("maze_po", (first, turn.text), ("move up\n",), (turn.reward,), False, True)
    write_episodes(tmp_path / "e.jsonl", [unknown], {"task": "maze_po", "env": {"layout": "umaze"}})
    assert verify(tmp_path / "e.jsonl").ok


def test_a_start_against_the_rules(tmp_path: Path) -> None:
    found = verified(tmp_path, WON, replace(WON, info={"start": {"init_position": [0, 0]}}))
    assert len(found) == 1
    assert "episode 1, turn -1: reset" in found[0]
    assert "free cell" in found[0]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that leaves a trace when it is run."""
    path = tmp_path / "engine"
    path.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    path.chmod(0o755)
    return path


def told(path: Path, task: str, env: object) -> str:
    """Return the error of `verify` for a file with these arguments in its metadata."""
    write_episodes(path, [replace(WON, task=task)], {"task": task, "env": env})
    with pytest.raises(UserError) as error:
        verify(path)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("task", ["chess", "endgames"])
@pytest.mark.parametrize("opponent", [{"opponent": "stockfish"}, {}])
def test_a_file_runs_no_program(tmp_path: Path, program: Path, task: str, opponent: dict[str, str]) -> None:
    path = tmp_path / "e.jsonl"
    assert f"{path}: its metadata sets " in told(path, task, {"engine_path": str(program), **opponent})
    assert "only you can: --env opponent=" in told(path, task, {"opponent": "stockfish"})
    assert not (tmp_path / "ran").exists()
    # The user's own arguments count: the program is started, but it is no engine.
    with pytest.raises(UserError, match="must be a UCI engine"):
        verify(path, env_arguments={"opponent": "stockfish", "engine_path": str(program)})
    assert (tmp_path / "ran").exists()


def test_a_file_opens_no_path(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("secret words\n")
    (tmp_path / "maze.txt").write_text("#####\n# G##\n#####\n")
    said = told(tmp_path / "e.jsonl", "wordle", {"vocab": str(tmp_path / "words.txt")})
    assert "only you can: --env vocab=..." in said
    assert "secret" not in said
    assert "--env layout=..." in told(tmp_path / "e.jsonl", "maze_fo", {"layout": str(tmp_path / "maze.txt")})
    given = {"layout": str(tmp_path / "maze.txt")}
    assert verify(tmp_path / "e.jsonl", env_arguments=given).mismatched == 1  # the user chose another maze


@cases(
    ("task", "env"),
    [
        ("maze_fo", []),
        ("maze_fo", "layout"),
        ("maze_fo", {"__class__": "x"}),
        ("maze_fo", {"layout": ["umaze"]}),
        ("maze_fo", {"layout": 3}),
        ("maze_fo", {"layout": "umaze\n/etc/passwd"}),
        ("maze_fo", {"max_steps": "7"}),
        ("maze_fo", {"max_steps": 1.5}),
        ("maze_fo", {"max_steps": 10**30}),
        ("wordle", {"vocab": 0}),
        ("wordle", {"vocab": True}),
        ("wordle", {"bad_word_reward": float("-inf")}),
        ("chess", {"engine_path": {"class_path": "os.system"}}),
        ("chess", {"opponent": None}),
        ("car_dealer", {"reward": "os.system"}),
        ("text_nav_fo", {"render_mode": "/tmp"}),
    ],
)
def test_a_file_chooses_plain_values_of_the_right_kind_alone(tmp_path: Path, task: str, env: object) -> None:
    assert f"{tmp_path / 'e.jsonl'}: " in told(tmp_path / "e.jsonl", task, env)


def test_what_a_file_may_choose_is_what_the_environments_know() -> None:
    plain = {
        "maze_fo": {"layout": "umaze", "observe": "goal", "reward": "illegal_penalty_diff_scale", "max_steps": 5},
        "text_nav_po": {"observe": "full", "show_commands": False, "prose_seed": 3},
        "wordle": {"vocab": None, "counted": True, "bad_word_reward": -10},
        "endgames": {"opponent": "random", "piece_sets": "kQK kRRK", "depth": None, "max_moves": 7},
        "car_dealer": {"reward": "fancy", "noise": 0.5, "partner": "lm:/some/model"},
    }
    for task, env in plain.items():
        chosen = recorded_arguments(task, env, None, "file")
        assert chosen == {name: value for name, value in env.items() if name != "partner"}
        lmrl.make(task, **chosen).close()
    for task, row in lmrl.tasks().items():
        for name, values in row.choices.items():
            for value in values:
                lmrl.make(task, **{name: value}).close()


@pytest.mark.parametrize("start", [{"init_position": "ab"}, {"init_position": {}}, {"goal": [1, [2]]}, {"x": 1}])
def test_odd_starts_are_mismatches(tmp_path: Path, start: object) -> None:
    assert "turn -1: reset" in verified(tmp_path, replace(WON, info={"start": start}))[0]


@pytest.mark.parametrize(
    ("task", "start"), [("wordle", {"word": []}), ("twenty_questions", {"word": {}}), ("chess", {"fen": 7})]
)
def test_odd_starts_of_other_games(tmp_path: Path, task: str, start: object) -> None:
    assert "turn -1: reset" in verified(tmp_path, replace(WON, task=task, info={"start": start}))[0]


def test_replies_that_run_out_are_a_mismatch_of_their_episode(tmp_path: Path) -> None:
    policy = lmrl.envs.registry.make_policy("car_dealer", "random")
    whole = in_order(rollout(policy, lambda: lmrl.make("car_dealer"), [Start(0), Start(1)], task="car_dealer"))
    cut = replace(whole[0], info={**whole[0].info, "replies": whole[0].info["replies"][:2]})
    write_episodes(tmp_path / "e.jsonl", [cut, whole[1]], {"task": "car_dealer", "env": {"partner": "lm:/some/model"}})
    report = verify(tmp_path / "e.jsonl")
    assert (report.episodes, report.mismatched) == (2, 1)
    assert str(report.mismatches[0]) == "episode 0, turn 2: replies too few in the file, more in the environment"


def test_files_that_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no episodes"):
        verified(tmp_path)
    with pytest.raises(UserError, match=r"unknown task in episode 1 of .*: 'go'"):
        verified(tmp_path, replace(WON, task="go"))
