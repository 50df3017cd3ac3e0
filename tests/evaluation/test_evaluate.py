import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import gymnasium
import pytest

from lmrl.cli import main
from lmrl.data import verify
from lmrl.data.storage import read_episodes, read_metadata, write_episodes
from lmrl.envs.registry import make_policy, task
from lmrl.envs.scores import normalize
from lmrl.errors import UserError
from lmrl.evaluation.evaluate import Evaluation, RayWorkers, evaluate
from lmrl.evaluation.intervals import bootstrap_mean, wilson
from lmrl.evaluation.records import read_record_curves, read_records
from lmrl.evaluation.result_json import SCORE_KEYS, read_json
from lmrl.evaluation.run_folder import notes_on_weights, record_evaluation, transcript, write_evaluation
from lmrl.types import Episode, LoadedPolicy, Reply, Request
from lmrl.utils.worker_processes import WorkerProcesses
from tests.helpers.corridor import corridor_task

KEYS = (
    "task policy episodes return_mean return_ci normalized normalized_ci success_rate success_ci length_mean "
    "illegal_rate seed"
)


def episode(rewards: list[float], success: bool = False, illegal: int = 0) -> Episode:
    texts = tuple("x\n" for _ in rewards)
    info = {"success": success, "illegal": illegal}
    return Episode("maze_fo", ("at 1, 1\n", *texts), texts, tuple(rewards), success, not success, info=info)


def three() -> Evaluation:
    episodes = (episode([-1.0, -4.0, 0.0], True, 1), episode([-1.0] * 101), episode([-4.0] * 4, illegal=4))
    return Evaluation("maze_fo", "mine", episodes, seed=7, provenance={"decoding": {"beta": 16}})


def test_the_scores_by_hand() -> None:
    scores = three().scores()
    returns = [-5.0, -101.0, -16.0]
    assert set(SCORE_KEYS) == set(KEYS.split())
    assert set(scores) == {*KEYS.split(), "own", "own_ci", "starts", "warnings", "provenance"}
    assert (scores["task"], scores["policy"], scores["episodes"], scores["seed"]) == ("maze_fo", "mine", 3, 7)
    assert scores["return_mean"] == pytest.approx(-122 / 3)
    assert scores["return_ci"] == list(bootstrap_mean(returns))
    assert scores["normalized"] == pytest.approx(50 + 50 * (83 - 122 / 3) / (83 - 6.84))
    # -101 is 0 points; the mean of three times the best is -5, a little above 100.
    assert scores["normalized_ci"] == pytest.approx([0.0, 50 + 50 * (83 - 5) / (83 - 6.84)])
    scale = task("maze_fo").own_scale
    assert scale is not None and scores["own"] == pytest.approx(normalize(scores["return_mean"], scale))
    assert [normalize(value, scale) for value in (scale.random, scale.recorder, scale.best)] == [0.0, 50.0, 100.0]
    assert scores["success_rate"] == pytest.approx(1 / 3)
    assert scores["success_ci"] == list(wilson(1, 3))
    assert scores["length_mean"] == pytest.approx((3 + 101 + 4) / 3)
    assert scores["illegal_rate"] == pytest.approx(5 / 108)
    assert scores["warnings"] == []
    assert scores["provenance"]["decoding"] == {"beta": 16}


@pytest.mark.parametrize(
    ("rewards", "words"),
    [
        ([-4.0] * 100, ["the mean return -400.00 is below -101, the lowest", "2 of 2 returns are below -101"]),
        ([-1.0, 0.0], ["the mean return -1.00 is above -6.84, the highest"]),
    ],
)
def test_values_outside_of_the_constants_are_told_and_not_clipped(rewards: list[float], words: list[str]) -> None:
    scores = Evaluation("maze_fo", "mine", (episode(rewards),) * 2, 0).scores()
    assert len(scores["warnings"]) == len(words)
    for warning, part in zip(scores["warnings"], words, strict=True):
        assert part in warning
    assert not 0 <= scores["normalized"] <= 100


def test_the_optimal_player_scores_what_the_search_says(seer: Any) -> None:
    result = evaluate(seer, "maze_fo", 25)
    assert sum(e.total_reward for e in result.episodes) / 25 == pytest.approx(-6.84)
    assert result.scores()["normalized"] == pytest.approx(100.0)
    assert result.scores()["success_rate"] == 1.0


def test_what_is_certain_has_no_interval(seer: Any) -> None:
    """The start decides the moves of the best player, and every start is played, so nothing is left to chance."""
    scores = evaluate(seer, "maze_fo", 275).scores()
    assert scores["starts"] == 25
    assert scores["return_ci"] == pytest.approx([scores["return_mean"]] * 2)
    assert scores["normalized_ci"] == pytest.approx([100.0, 100.0])


def test_starts_are_taken_in_turn(seer: Any) -> None:
    starts = [start["init_position"] for start in task("maze_fo").starts]
    positions = [tuple(e.info["start"]["init_position"]) for e in evaluate(seer, "maze_fo", 30).episodes]
    assert positions == starts + starts[:5]


def test_another_layout_has_its_own_starts(tmp_path: Path) -> None:
    played = evaluate("optimal", "maze_fo", env={"layout": "umaze"})
    positions = {tuple(e.info["start"]["init_position"]) for e in played.episodes}
    assert positions == {(1, 1), (1, 2), (1, 3), (2, 1), (2, 3), (3, 1)}
    assert (played.starts, len(played.episodes)) == (6, 258)  # the least multiple of 6 from 256
    assert played.scores()["warnings"] == []  # all returns are better than any on the published scale, of another maze
    # In a file with a start, all episodes begin there.
    (tmp_path / "maze.txt").write_text("######\n#S  G#\n######\n")
    fixed = evaluate("optimal", "maze_po", 3, env={"layout": str(tmp_path / "maze.txt")}, selection=True)
    assert {tuple(e.info["start"]["init_position"]) for e in fixed.episodes} == {(1, 1)}
    # Other arguments leave the starts of the task.
    assert evaluate("optimal", "maze_fo", 1, env={"max_steps": 3}).starts == 25


def test_scores_say_where_starts_were_not_played_equally_often(seer: Any) -> None:
    few, more, even = (evaluate(seer, "maze_fo", count).scores() for count in (3, 30, 50))
    assert few["return_mean"] == -10.0  # the mean over all starts is -6.84
    assert "only the first 3 of the 25 fixed starts were played, and the mean is theirs" in few["warnings"][-1]
    assert "some of the 25 fixed starts were played more often than others" in more["warnings"][-1]
    assert even["warnings"] == []
    assert evaluate("random", "wordle", 2).scores()["warnings"] == []  # wordle has no fixed starts


def test_scores_say_that_one_episode_has_no_interval() -> None:
    scores = evaluate("random", "wordle", 1).scores()
    assert scores["return_ci"] == [scores["return_mean"]] * 2
    assert scores["warnings"] == [
        "one episode does not say how returns vary, so the interval of the mean has no width; play more"
    ]


def test_a_player_may_be_named() -> None:
    named = evaluate("random", "maze_fo")
    made = evaluate(make_policy("maze_fo", "random"), "maze_fo", 275)
    assert named.episodes == made.episodes
    assert (named.policy, named.provenance["policy"]) == ("random", "random")
    for policy, message in (
        ("random", "name a task; random does not say which it plays"),
        ("clever", "no policy 'clever'"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate(policy)
    with pytest.raises(UserError, match="name a task; known: "):
        evaluate(make_policy("maze_fo", "random"))


def test_seeds_differ_by_episode_and_by_evaluation(seer: Any) -> None:
    seeds = [{e.seed for e in evaluate(seer, "maze_fo", 40, seed=seed).episodes} for seed in (0, 1)]
    assert len(seeds[0] | seeds[1]) == 80


def test_what_checkpoints_are_chosen_by_is_never_reported(seer: Any) -> None:
    """This holds for the same seed too; a task that keeps no starts for selection uses the same starts."""
    chosen = evaluate(seer, "maze_fo", 40, seed=3, selection=True)
    reported = {e.seed for seed in range(5) for e in evaluate(seer, "maze_fo", 40, seed=seed).episodes}
    assert not {e.seed for e in chosen.episodes} & reported
    assert (chosen.starts, chosen.provenance["selection"]) == (25, True)
    assert "selection" not in evaluate(seer, "maze_fo", 1).provenance


def test_the_number_of_slots_changes_nothing(player: Any) -> None:
    def say(request: Request) -> str:
        return Random(f"{request.seed} {request.turn}").choice(task("maze_fo").actions)

    results = [evaluate(player(say), "maze_fo", 12, seed=3, slots=slots).episodes for slots in (1, 5, 64)]
    assert results[0] == results[1] == results[2]
    assert results[0] != evaluate(player(say), "maze_fo", 12, seed=4).episodes


@pytest.mark.nightly
def test_an_evaluation_on_a_cluster_is_that_of_one_process(ray_cluster: str, bc_run: str) -> None:
    played: dict[str, Any] = {"episodes": 20, "slots": 2, "env": {"max_steps": 6}}
    one = evaluate(bc_run, **played)
    told = list[int]()
    many = evaluate(bc_run, **played, ray=RayWorkers(ray_cluster, 1), on_episode=lambda e: told.append(e.seed))
    assert many == one and all(any(e.action_logprobs) for e in one.episodes)
    assert told == [e.seed for e in one.episodes]


def test_workers_know_a_task_that_is_registered_here_alone(player: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class LocalWorkers(WorkerProcesses[Any, Any]):
        """Processes of this machine in the place of Ray's."""

        def __init__(self, address: str, count: int, make: Any, gpu: bool) -> None:
            super().__init__(count, make)

        def __enter__(self) -> "LocalWorkers":
            return self

        def __exit__(self, *error: object) -> None:
            self.close()

    monkeypatch.setitem(vars(sys.modules["lmrl.evaluation.evaluate"]), "Workers", LocalWorkers)
    with corridor_task():
        ray = RayWorkers("local", 1, lambda: LoadedPolicy(player(lambda request: "R")))
        policy = player(lambda request: "R")
        played = evaluate(policy, "corridor", 3, slots=1, ray=ray)
        assert played.episodes == evaluate(policy, "corridor", 3, slots=1).episodes


def _up(request: Request) -> str:
    return "move up\n"


class Remembering:
    """A policy that keeps the seeds that it has seen since its last reset, as a policy with a cache might."""

    def __init__(self) -> None:
        self.seen: list[set[int]] = []

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        self.seen[-1] |= {request.seed for request in requests}
        return [Reply("move up\n") for _ in requests]

    def reset(self) -> None:
        self.seen.append(set())


def test_a_policy_that_remembers_begins_anew_with_each_piece(player: Any) -> None:
    """A piece has four episodes per slot, whichever policy plays it."""
    policy = Remembering()
    played = evaluate(policy, "maze_fo", 20, slots=2, env={"max_steps": 3})
    assert [len(seen) for seen in policy.seen] == [8, 8, 4]
    assert policy.seen[0] == {episode.seed for episode in played.episodes[:8]}
    assert evaluate(player(_up), "maze_fo", 20, slots=2, env={"max_steps": 3}).episodes == played.episodes


def test_a_cluster_needs_a_policy_that_its_processes_can_make(player: Any) -> None:
    with pytest.raises(UserError, match="ray needs a policy that other processes can make"):
        evaluate(player(_up), "maze_fo", 4, ray=RayWorkers("local"))
    with pytest.raises(UserError, match="ray must be left out where processes that train together"):
        evaluate("random", "maze_fo", 4, ray=RayWorkers("local"), together=True)
    budget = {"partner": {"name": "chat:nobody", "budget_tokens": 5, "base_url": "http://127.0.0.1:9"}}
    with pytest.raises(UserError, match=r"workers must be 1 where the partner has a budget \(budget_tokens\), got 2"):
        evaluate("random", "twenty_questions", 4, ray=RayWorkers("local", 2), env=budget)


def test_another_environment_is_part_of_the_result(seer: Any) -> None:
    played = evaluate(seer, "maze_fo", 25, env={"reward": "illegal_penalty"})
    assert played.scores()["return_mean"] == 1.0
    assert played.provenance["env"] == {"reward": "illegal_penalty"}
    assert evaluate(seer, "maze_fo", 1).provenance["env"] == {}


def test_episodes_are_told_as_they_end(seer: Any) -> None:
    told: list[Episode] = []
    result = evaluate(seer, "maze_fo", 9, slots=4, on_episode=told.append)
    assert len(told) == 9 and sorted(map(len, told)) == sorted(map(len, result.episodes))


def test_turns_are_told_as_they_are_played(seer: Any) -> None:
    """Turns of unfinished episodes count too, so that the counter of a slow policy moves."""
    told: list[int] = []
    ended_at: list[int] = []
    result = evaluate(
        seer, "maze_fo", 9, slots=4, on_turns=told.append, on_episode=lambda _: ended_at.append(len(told))
    )
    assert sum(told) == sum(map(len, result.episodes))
    assert told[0] == 4 and min(ended_at) > 1


def test_finished_episodes_are_not_played_again(seer: Any) -> None:
    whole = evaluate(seer, "maze_fo", 5, slots=2)
    played: list[Episode] = []
    resumed = evaluate(seer, "maze_fo", 5, slots=2, finished=whole.episodes[1:3], on_episode=played.append)
    assert resumed.episodes == whole.episodes
    assert {episode.seed for episode in played} == {whole.episodes[index].seed for index in (0, 3, 4)}


def test_the_progress_shows_games_and_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    words = ["maze_fo", "--policy", "optimal", "--episodes", "2", "--env", "max_steps=2"]
    assert main(["evaluate", *words, "--out", str(tmp_path / "e")]) == 0
    played = re.sub("\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "playing maze_fo 2/2 games, 6 turns" in played


def interrupted(words: Sequence[str], rounds: int) -> subprocess.CompletedProcess[str]:
    """Run the command with a slow policy, and press Ctrl-C after some rounds of turns."""
    command = [sys.executable, "-m", "tests.helpers.slow", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(rounds):
            assert process.stdout.readline() == "round\n"
        process.send_signal(signal.SIGINT)
        out, told = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, told)


@pytest.mark.slow
def test_an_evaluation_goes_on_after_ctrl_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "maze_fo", "--policy", "behaviour", "--episodes", "9", "--slots", "2", "--env", "max_steps=8"]
    partial = tmp_path / "e" / "episodes.partial.parquet"
    stopped = interrupted([*words, "--out", str(tmp_path / "e")], rounds=20)
    kept = list(read_episodes(partial))
    assert stopped.returncode == 130 and 0 < len(kept) < 9
    note = (
        f"note: {len(kept)} of 9 episodes are finished and kept in {partial}; the same command with --resume continues"
    )
    assert note in stopped.stderr and stopped.stderr.endswith("interrupted\n")

    again = interrupted([*words, "--out", str(tmp_path / "e")], rounds=9)
    assert again.returncode == 130 and list(read_episodes(partial)) == kept, "a shorter try replaces no longer one"
    resumed = [*words, "--out", str(tmp_path / "e"), "--resume"]
    assert main([*resumed, "--episodes", "1"]) == 2
    assert f"holds {len(kept)} episodes, more than 1" in capsys.readouterr().err
    assert main([*resumed, "--seed", "1"]) == 2
    assert "was played with another seed (0, now 1): resume it as it was" in capsys.readouterr().err
    assert main(resumed) == 0
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    assert list(read_episodes(tmp_path / "e")) == list(read_episodes(tmp_path / "whole"))
    found, expected = (read_json(tmp_path / name / "scores.json") for name in ("e", "whole"))
    assert found["provenance"].pop("finished_before") == len(kept)
    assert found == expected
    assert not partial.exists()


def test_a_finished_evaluation_is_not_played_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster starts a job again whether or not it has begun or finished."""
    words = ["evaluate", "maze_fo", "--policy", "random", "--episodes", "3", "--env", "max_steps=8"]
    words += ["--out", str(tmp_path / "e"), "--resume"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "e").iterdir()}
    assert main(words) == 0
    assert capsys.readouterr().out == shown
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "e").iterdir()} == before
    for other in (
        ["--episodes", "4"],
        ["--seed", "1"],
        ["--env", "max_steps=9"],
        ["--policy", "optimal"],
        ["--selection"],
    ):
        assert main([*words, *other]) == 2
        assert "scores.json was played with another" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"task": "maze"}, "unknown task 'maze'; known: car_dealer, chess, endgames, guess_city, maze_fo, maze_po"),
        ({"episodes": 0}, "episodes must be at least 1, got 0"),
        ({"slots": 0}, "slots must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_wrong_arguments(seer: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        evaluate(seer, **{"task": "maze_fo", "episodes": 1, **arguments})


def test_written_and_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "maze_fo" / "mine"
    scores = write_evaluation(three(), folder / "evaluation")
    assert json.loads((folder / "evaluation" / "scores.json").read_text()) == scores
    result = read_records(tmp_path, "maze_fo")["mine"][0]
    assert result.scores == scores
    assert tuple(read_episodes(folder / "evaluation" / "episodes.parquet")) == three().episodes
    assert result.episodes.returns.tolist() == [episode.total_reward for episode in three().episodes]
    assert result.transcript == transcript(three().episodes[0]) and result.tuned is None
    assert read_record_curves(tmp_path, "maze_fo") == {} and result.timing == {} and result.probe is None


def test_a_failed_write_leaves_the_evaluation_before(tmp_path: Path) -> None:
    """The write fails in the middle, as it would on a full disk."""
    folder = tmp_path / "evaluation"
    write_evaluation(three(), folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    broken = Evaluation("maze_fo", "mine", (Episode("maze_fo", ("\ud800",), (), (), True, False),), 0)
    with pytest.raises(UserError):
        write_evaluation(broken, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation"]


class Fails:
    """A policy that moves up, and raises an error in the third episode that it plays."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.seeds = error, set[int]()

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        self.seeds |= {request.seed for request in requests}
        if len(self.seeds) > 2:
            raise self.error
        return [Reply("move up \ud83d\n") for _ in requests]


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("a mistake in a policy"),
        UnicodeEncodeError("utf-8", "\ud83d", 0, 1, "surrogates not allowed"),
        OSError(errno.ENOSPC, "No space left on device", "another file"),
        KeyboardInterrupt(),
        SystemExit(143),
        UserError("the server is gone"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_finished_episodes_are_kept_whatever_fails(
    error: BaseException, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)) as raised:
        record_evaluation(Fails(error), "maze_fo", tmp_path / "e", episodes=5, slots=1, env={"max_steps": 1})
    kept = [*read_episodes(tmp_path / "e" / "episodes.partial.parquet")]
    assert [episode.actions for episode in kept] == [("move up \ufffd\n",) * 2] * 2
    told = str(raised.value) if isinstance(error, UserError) else capsys.readouterr().err
    partial = tmp_path / "e" / "episodes.partial.parquet"
    assert told.rstrip().endswith(f"2 of 5 episodes are finished and kept in {partial}")
    scores = read_json(tmp_path / "e" / "scores.partial.json")
    assert (scores["episodes"], scores["planned"]) == (2, 5)
    assert scores["return_mean"] == kept[0].total_reward
    assert "interrupted after 2 of 5 episodes" in scores["warnings"][0]


def test_files_of_episodes_hold_the_arguments_of_the_environment(tmp_path: Path, player: Any) -> None:
    settings: dict[str, Any] = {"episodes": 2, "env": {"bad_word_reward": -10}}
    record_evaluation(player(lambda request: "zzzzz\n"), "wordle", tmp_path / "e", **settings)
    assert read_metadata(tmp_path / "e" / "episodes.parquet")["env"] == {"bad_word_reward": -10}
    assert verify(tmp_path / "e" / "episodes.parquet").ok
    # Without arguments, also where an evaluation was interrupted.
    with pytest.raises(KeyboardInterrupt):
        record_evaluation(Fails(KeyboardInterrupt()), "maze_fo", tmp_path / "f", episodes=3, slots=1)
    assert read_metadata(tmp_path / "f" / "episodes.partial.parquet")["env"] == {}
    write_evaluation(three(), tmp_path / "g")
    assert read_metadata(tmp_path / "g" / "episodes.parquet")["env"] == {}


def test_the_arguments_of_the_environment_may_be_null_in_older_files(tmp_path: Path, player: Any) -> None:
    episodes = evaluate(player(_up), "maze_fo", 1).episodes
    write_episodes(tmp_path / "old.jsonl", episodes, {"task": "maze_fo", "env": None})
    assert verify(tmp_path / "old.jsonl").ok


class Odd(gymnasium.Env[str, str]):
    """An environment of one turn: the third episode has the given text, reward and info, the others ordinary ones."""

    def __init__(self, text: str = "x\n", reward: Any = 1.0, info: Any = None, begun: list[int] | None = None) -> None:
        self.last = (text, reward, info)
        self.begun = [] if begun is None else begun

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.begun.append(seed or 0)
        return "begin\n", {}

    def step(self, action: str) -> Any:
        text, reward, info = self.last if len(self.begun) == 3 else ("x\n", 1.0, None)
        return text, reward, True, False, {} if info is None else {"facts": info}


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({"reward": 1e300}, r"reward of a step must be a finite number \(of float32\), got 1e\+300"),
        ({"reward": float("nan")}, "reward of a step must be .*, got nan"),
        ({"reward": 10**400}, "reward of a step must be .*, got inf"),
        ({"info": {1, 2}}, "the info of episodes 0 to 3 must hold what JSON knows: .*set"),
        ({"info": "\ud83d"}, "a text of episodes 0 to 3 is not valid Unicode"),
    ],
)
def test_what_no_file_can_hold_loses_no_episode(
    odd: dict[str, Any], told: str, tmp_path: Path, player: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An odd reward is refused at its turn; an info that cannot be written is left out of what is kept."""
    begun: list[int] = []
    make = partial(Odd, begun=begun, **odd)
    monkeypatch.setattr(sys.modules["lmrl.evaluation.evaluate"], "environment", lambda *_: make)
    count = 2 if "reward" in odd else 4
    with pytest.raises(UserError, match=rf"{told}.*; {count} of 4 episodes are finished and kept in .*"):
        record_evaluation(player(_up), "maze_fo", tmp_path / "e", episodes=4, slots=1)
    kept = [*read_episodes(tmp_path / "e" / "episodes.partial.parquet")]
    assert [episode.rewards for episode in kept] == [(1.0,)] * count


def test_half_a_character_of_an_environment_is_mended(
    tmp_path: Path, player: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["lmrl.evaluation.evaluate"], "environment", lambda *_: lambda: Odd("half \ud83d\n"))
    record_evaluation(player(_up), "maze_fo", tmp_path / "e", episodes=3, slots=1)
    texts = [episode.observations[-1] for episode in read_episodes(tmp_path / "e" / "episodes.parquet")]
    assert texts == ["x\n", "x\n", "half \ufffd\n"]


def test_a_disk_that_is_full_of_other_files_loses_no_episode(
    tmp_path: Path, player: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "scores.json")

    monkeypatch.setattr("lmrl.evaluation.run_folder.write_json", full)
    with pytest.raises(OSError, match="No space left"):
        record_evaluation(player(_up), "maze_fo", tmp_path / "e", episodes=3, env={"max_steps": 1})
    assert os.listdir(tmp_path / "e") == ["episodes.partial.parquet"]
    assert len([*read_episodes(tmp_path / "e" / "episodes.partial.parquet")]) == 3


def test_nothing_but_an_evaluation_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "run" / "notes").mkdir(parents=True)
    with pytest.raises(UserError, match="holds notes, which no evaluation has made"):
        write_evaluation(three(), tmp_path / "run")
    write_evaluation(three(), tmp_path / "run" / "evaluation")
    (tmp_path / "run" / "evaluation" / "episodes.html").touch()
    write_evaluation(three(), tmp_path / "run" / "evaluation")
    assert not (tmp_path / "run" / "evaluation" / "episodes.html").exists()  # it showed the earlier episodes


@pytest.mark.parametrize("text", ["{", "[]", '{"task": "maze_fo"}'])
def test_broken_scores_name_their_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "maze_fo" / "bc" / "evaluation" / "scores.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(UserError, match=r"scores\.json"):
        read_records(tmp_path, "maze_fo")


def test_scores_of_weights_that_a_run_no_longer_has_are_left_out(tmp_path: Path) -> None:
    run = tmp_path / "maze_fo" / "bc"
    write_evaluation(replace(three(), provenance={"weights": "one"}), run / "evaluation")
    (run / "best").mkdir()
    for weights, found, note in (
        ("one", ["bc"], []),
        ("two", [], [f"{run / 'evaluation'} is of weights that the run no longer has: left out; play again"]),
    ):
        (run / "best" / "lmrl.json").write_text(json.dumps({"files": [], "made_with": {"weights": weights}}))
        assert [*read_records(tmp_path, "maze_fo")] == found and notes_on_weights(tmp_path, "maze_fo") == note
    write_evaluation(three(), run / "evaluation")
    assert [*read_records(tmp_path, "maze_fo")] == ["bc"]
    told = "maze_fo: scores of bc do not say which weights played"
    assert notes_on_weights(tmp_path, "maze_fo") == [told]
    for name in ("short", ".earlier"):
        (tmp_path / "maze_fo" / name / "last").mkdir(parents=True)
        (tmp_path / "maze_fo" / name / "last" / "lmrl.json").write_text('{"made_with": {"weights": "three"}}')
    short = tmp_path / "maze_fo" / "short"
    idle = f"maze_fo: trained and not evaluated: short; lmrl evaluate --policy {short}"
    assert notes_on_weights(tmp_path, "maze_fo") == [told, idle]
