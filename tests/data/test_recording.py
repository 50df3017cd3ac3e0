import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lmrl.cli import main
from lmrl.data import dataset_path, generate, read_dataset, verify
from lmrl.data.records import record_from_episode
from lmrl.data.storage import read_metadata, write_episodes
from lmrl.envs.maze.env import Maze
from lmrl.envs.twenty_questions.env import ScriptedOracle
from lmrl.errors import UserError
from lmrl.types import Episode, PartnerRequest
from lmrl.utils.log_lines import LogLines

GENERATE = """
import sys
from lmrl.data import generate
generate("maze_fo", 200_000, out=sys.argv[1], workers=int(sys.argv[2]))
"""


def test_the_same_file_whatever_the_number_of_workers(tmp_path: Path) -> None:
    one = generate("maze_po", 300, seed=3, out=tmp_path / "one.parquet", workers=1, progress=False)
    two = generate("maze_po", 300, seed=3, out=tmp_path / "two.parquet", workers=2, progress=False)
    assert one.read_bytes() == two.read_bytes()
    episodes = list(read_dataset(one, "maze_po"))
    assert len(episodes) == 300
    assert len({episode.seed for episode in episodes}) == 300
    few = generate("maze_po", 20, seed=3, out=tmp_path / "few.parquet", progress=False)
    assert episodes[:20] == list(read_dataset(few))
    assert episodes[0].info["start"]["goal"] == [8, 6]


def test_another_seed_gives_other_episodes_and_a_longer_one_begins_alike(tmp_path: Path) -> None:
    made = {}
    for size, seed in ((20, 0), (30, 0), (20, 1)):
        path = generate("maze_fo", size, seed, tmp_path / f"{size}_{seed}.jsonl", progress=False)
        made[size, seed] = list(read_dataset(path))
    assert made[20, 0] == made[30, 0][:20]
    assert made[20, 0] != made[20, 1]


def test_the_default_place_and_the_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMRL_DATA", str(tmp_path / "kept"))
    path = generate("maze_fo", 5, seed=2, progress=False)
    assert path == tmp_path / "kept" / "maze_fo-v1-n5-s2.parquet" == dataset_path("maze_fo", 5, 2)
    assert read_metadata(path) == {
        "task": "maze_fo",
        "generator_version": 1,
        "size": 5,
        "seed": 2,
        "behaviour": "behaviour",
        "env": {},
    }
    monkeypatch.delenv("LMRL_DATA")
    assert dataset_path("maze_fo", 5, 2) == Path("data/maze_fo-v1-n5-s2.parquet")


def test_another_environment_is_another_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMRL_DATA", str(tmp_path))
    env = {"max_steps": 3, "reward": "illegal_penalty"}
    path = generate("maze_fo", 5, seed=2, progress=False, env=env)
    assert path == dataset_path("maze_fo", 5, 2, dict(reversed(env.items()))) != dataset_path("maze_fo", 5, 2)
    assert read_metadata(path)["env"] == env
    assert max(len(episode) for episode in read_dataset(path)) <= 4
    assert verify(path).ok  # in the environment that the metadata describes
    assert not verify(path, env_arguments={"max_steps": 100}).ok
    with pytest.raises(UserError, match="unknown argument of task maze_fo 'colour'"):
        generate("maze_fo", 5, progress=False, env={"colour": 1})


def test_another_player_is_another_dataset_and_plays_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe cuts episodes off at random; that belongs to its own player."""
    monkeypatch.setenv("LMRL_DATA", str(tmp_path))
    own = generate("maze_fo", 40, progress=False)
    path = generate("maze_fo", 40, progress=False, behaviour="optimal")
    assert path == dataset_path("maze_fo", 40, 0, behaviour="optimal") != own
    assert read_metadata(path)["behaviour"] == "optimal"
    assert all(episode.success for episode in read_dataset(path))
    assert not all(episode.success for episode in read_dataset(own))
    with pytest.raises(UserError, match=r"behaviour must be lm:PATH .*one of .*optimal.*got 'lm:'.*lmrl evaluate "):
        generate("maze_fo", 40, progress=False, behaviour="lm:")


def test_the_progress_bar_goes_to_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # takes standard error for a terminal
    generate("maze_fo", 5, out=tmp_path / "e.jsonl")
    shown = capsys.readouterr()
    assert "recording maze_fo" in shown.err
    assert "5/5" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task_name": "maze"}, "unknown task 'maze'"),
        ({"size": 0}, "size must be a whole number from 1, got 0"),
        ({"workers": 0}, "workers must be a whole number from 1, got 0"),
        ({"seed": -1}, "seed must be a whole number from 0, got -1"),
        ({"out": "episodes.csv"}, "got the suffix '.csv'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        generate(**{"task_name": "maze_fo", "size": 3, "progress": False, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_run_leaves_no_file(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "e.parquet"
    with subprocess.Popen(
        [sys.executable, "-c", GENERATE, str(path), str(workers)], stderr=subprocess.PIPE, text=True
    ) as process:
        while not any(tmp_path.iterdir()):  # until the file that it writes to is there
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        # Ends only when the workers, who hold the same standard error, are gone too.
        process.communicate(timeout=20)
    assert not path.exists()
    assert not list(tmp_path.glob("*.parquet"))


@pytest.mark.slow
def test_a_worker_that_dies_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("lmrl.data.recording")
    whole = generate("maze_fo", 500, out=tmp_path / "whole.parquet", progress=False)
    taken = list[int]()
    finished = module._finished

    def kill_them(played: tuple[list[Episode], UserError | None]) -> Iterator[Episode]:
        taken.append(len(played[0]))
        if len(taken) == 1:
            workers = multiprocessing.active_children()
            assert workers
            for worker in workers:
                os.kill(worker.pid or 0, signal.SIGKILL)
        return finished(played)

    monkeypatch.setattr(module, "_finished", kill_them)
    path = generate("maze_fo", 500, out=tmp_path / "e.parquet", workers=2, progress=False)
    assert path.read_bytes() == whole.read_bytes()
    assert sum(taken) == 500  # each chunk once


def test_workers_that_die_again_and_again_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("lmrl.data.recording"), "_recorder", os.abort)
    with pytest.raises(UserError, match="a worker process died 3 times over the same episodes"):
        generate("maze_fo", 300, out=tmp_path / "e.parquet", workers=2, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_write_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("lmrl.data.recording")
    out = tmp_path / "e.parquet"
    one = generate("maze_fo", 5, out=tmp_path / "one.parquet", progress=False).read_bytes()

    def meanwhile(*arguments: Any) -> int:
        """Before the first takes its name, a second one is finished."""
        monkeypatch.setattr(module, "write_episodes", write_episodes)
        count = write_episodes(*arguments)
        assert generate("maze_fo", 5, out=out, progress=False).read_bytes() == one
        return count

    monkeypatch.setattr(module, "write_episodes", meanwhile)
    assert generate("maze_fo", 5, out=out, progress=False).read_bytes() == one
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.parquet", "one.parquet"]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_another_dataset_is_not_replaced_unless_that_is_meant(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"e{suffix}"
    before = generate("maze_fo", 5, 1, out=out, progress=False).read_bytes()
    words = ["data", "generate", "maze_fo", "--size", "5", "--out", str(out)]
    for changed, told in (
        (["--size", "3", "--seed", "1"], "size 5, not 3"),
        (["--seed", "0"], "seed 1, not 0"),
        (["--seed", "1", "--env", "max_steps=9"], "env {}, not {'max_steps': 9}"),
        (["--seed", "1", "--behaviour", "optimal"], "behaviour behaviour, not optimal"),
        (["--seed", "1", "--shard", "0/2"], "shard none, not [0, 2]"),
    ):
        assert main([*words, *changed]) == 2
        way_out = "name another file, or replace it (--overwrite)"
        assert capsys.readouterr().err == f"error: {out} holds another dataset ({told}): {way_out}\n"
        assert out.read_bytes() == before
    assert main([*words, "--seed", "1"]) == 0 and out.read_bytes() == before
    assert main([*words, "--seed", "0", "--overwrite"]) == 0 and read_metadata(out)["seed"] == 0


def test_a_file_that_is_no_dataset_is_not_replaced_either(tmp_path: Path) -> None:
    out = tmp_path / "notes.parquet"
    plain = tmp_path / "plain.jsonl"
    out.write_text("notes")
    with pytest.raises(UserError, match=r"notes\.parquet is there, and no dataset: name another file"):
        generate("maze_fo", 3, out=out, progress=False)
    write_episodes(plain, read_dataset(generate("maze_fo", 3, out=tmp_path / "e.jsonl", progress=False)))
    with pytest.raises(UserError, match=r"plain\.jsonl holds another dataset \(task none, not maze_fo; "):
        generate("maze_fo", 3, out=plain, progress=False)
    assert out.read_text() == "notes" and len(list(read_dataset(plain))) == 3


def test_read_dataset_refuses_other_tasks_and_nothing(tmp_path: Path) -> None:
    fo = generate("maze_fo", 2, out=tmp_path / "fo.jsonl", progress=False)
    with pytest.raises(UserError, match="episode 1 is of task 'maze_fo', expected 'maze_po'"):
        list(read_dataset(fo, "maze_po"))
    po = generate("maze_po", 2, out=tmp_path / "po.jsonl", progress=False)
    write_episodes(tmp_path / "both.jsonl", [*read_dataset(fo), *read_dataset(po)])
    with pytest.raises(UserError, match="episode 3 is of task 'maze_po', expected 'maze_fo'"):
        list(read_dataset(tmp_path / "both.jsonl"))
    write_episodes(tmp_path / "none.parquet", [])
    with pytest.raises(UserError, match=r"none\.parquet: holds no episodes"):
        list(read_dataset(tmp_path / "none.parquet"))


def test_a_partner_that_gives_up_loses_no_finished_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[PartnerRequest] = []
    answer = ScriptedOracle.reply

    def tired(self: ScriptedOracle, requests: Sequence[PartnerRequest]) -> list[str]:
        answered.extend(requests)
        if len(answered) > 1_000:
            raise UserError("the endpoint is gone")
        return answer(self, requests)

    monkeypatch.setattr(ScriptedOracle, "reply", tired)
    out = tmp_path / "talk.parquet"
    with pytest.raises(UserError, match=r"the endpoint is gone; the \d+ episodes that were finished are in") as told:
        generate("twenty_questions", 256, out=out, progress=False)
    kept = list(read_dataset(tmp_path / "talk.partial.parquet"))
    assert not out.exists()
    assert f"the {len(kept)} episodes" in str(told.value)
    assert 30 < len(kept) < 128  # of the chunk in which it gave up

    del answered[500:]  # the next try gives up after half as many answers
    with pytest.raises(UserError, match="the endpoint is gone"):
        generate("twenty_questions", 256, out=out, progress=False)
    assert list(read_dataset(tmp_path / "talk.partial.parquet")) == kept, "a shorter try replaces no longer one"


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_an_episode_that_no_file_can_hold_loses_none_before_it(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    turn = Maze.turn

    def telling(self: Maze, action: str) -> Any:
        turns.append(action)
        answer = turn(self, action)
        return answer._replace(info={**answer.info, "seen": {action}}) if len(turns) > 2_000 else answer

    monkeypatch.setattr(Maze, "turn", telling)
    out = tmp_path / f"maze.{suffix}"
    with pytest.raises(UserError, match=r"the episode with seed \d+ must hold what JSON knows: .*; the \d+ episodes"):
        generate("maze_fo", 200, out=out, progress=False)
    kept = list(read_dataset(tmp_path / f"maze.partial.{suffix}"))
    assert not out.exists() and len(kept) > 0


_ENDS = [KeyboardInterrupt(), SystemExit(143), RuntimeError("a defect")]


@pytest.mark.parametrize("error", _ENDS, ids=["Ctrl-C", "SIGTERM", "defect"])
def test_whatever_ends_a_recording_loses_no_finished_episode(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turns: list[str] = []
    turn = Maze.turn
    last = 20_000

    def broken(self: Maze, action: str) -> Any:
        turns.append(action)
        if len(turns) > last:
            raise error
        return turn(self, action)

    monkeypatch.setattr(Maze, "turn", broken)
    out = tmp_path / "maze.parquet"
    with pytest.raises(type(error)):
        generate("maze_fo", 1240, out=out, progress=False)
    kept = list(read_dataset(tmp_path / "maze.partial.parquet"))
    assert not out.exists() and len(kept) >= 128
    assert f"note: the {len(kept)} episodes that were finished are in" in capsys.readouterr().err

    with pytest.raises(UserError, match=r"maze\.partial\.parquet is of another dataset \(seed 0, not 1\)"):
        generate("maze_fo", 1240, seed=1, out=out, progress=False, resume=True)
    last = len(turns) + 5_000  # of other episodes
    with pytest.raises(type(error)):
        generate("maze_fo", 1240, out=out, progress=False, resume=True)
    more = list(read_dataset(tmp_path / "maze.partial.parquet"))
    assert len(more) > len(kept) // 128 * 128 + 100
    kept = more
    monkeypatch.setattr(Maze, "turn", turn)
    starts: list[Any] = []
    reset = Maze.reset

    def counted(self: Maze, **start: Any) -> Any:
        starts.append(start)
        return reset(self, **start)

    monkeypatch.setattr(Maze, "reset", counted)
    generate("maze_fo", 1240, out=out, progress=False, resume=True)
    assert len(starts) == 1240 - len(kept) // 128 * 128
    assert list(tmp_path.iterdir()) == [out]
    generate("maze_fo", 1240, out=out, progress=False, resume=True)  # is finished
    assert len(starts) == 1240 - len(kept) // 128 * 128
    monkeypatch.undo()
    generate("maze_fo", 1240, out=tmp_path / "at once.parquet", progress=False)
    assert out.read_bytes() == (tmp_path / "at once.parquet").read_bytes()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_loses_no_finished_episode(
    number: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    turn = Maze.turn

    def killed(self: Maze, action: str) -> Any:
        turns.append(action)
        if len(turns) == 2_000:
            signal.raise_signal(number)
        return turn(self, action)

    monkeypatch.setattr(Maze, "turn", killed)
    before = signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP
    try:
        assert main(["data", "generate", "maze_fo", "--out", str(tmp_path / "maze.parquet")]) == code
    finally:
        signal.signal(number, before)
    (kept,) = tmp_path.iterdir()
    assert kept.name == "maze.partial.parquet" and len(list(read_dataset(kept))) > 0


def test_a_signal_waits_while_an_episode_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[Episode] = []

    def interrupted(episode: Episode) -> dict[str, Any]:
        records.append(episode)
        if len(records) == 300:
            signal.raise_signal(signal.SIGINT)
        return record_from_episode(episode)

    monkeypatch.setattr("lmrl.data.storage.record_from_episode", interrupted)
    out = tmp_path / "maze.jsonl"
    with pytest.raises(KeyboardInterrupt):
        generate("maze_fo", 1240, out=out, progress=False)
    partial = tmp_path / "maze.partial.jsonl"
    assert len(list(read_dataset(partial))) == 300
    # While the kept episodes are copied, nothing is lost.
    del records[:]
    monkeypatch.setattr("lmrl.data.storage.record_from_episode", interrupted)
    records += list(read_dataset(partial))[:290]  # the tenth copy is interrupted
    with pytest.raises(KeyboardInterrupt):
        generate("maze_fo", 1240, out=out, progress=False, resume=True)
    assert len(list(read_dataset(partial))) == 300
    # A damaged file says what to do.
    partial.write_bytes(partial.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"is damaged .*: remove it, or leave out resume"):
        generate("maze_fo", 1240, out=out, progress=False, resume=True)


def test_a_log_file_shows_how_far_a_recording_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lmrl.data.recording.LogLines", partial(LogLines, seconds=0.0))
    main(["data", "generate", "maze_fo", "--size", "3", "--out", str(tmp_path / "three.jsonl")])
    assert "recording maze_fo: 2/3 episodes\n" in capsys.readouterr().err
