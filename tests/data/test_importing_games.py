"""Imports of official files of Text-Nav, Wordle, chess and endgames: our games in the format of the recorders."""

import json
from pathlib import Path
from typing import Any

import pytest

import lmrl
from lmrl.data import import_official, read_dataset, verify
from lmrl.envs.chess.env import plain_fen, plain_san, spaced_fen
from lmrl.envs.registry import make_policy
from lmrl.errors import UserError
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Start
from tests.helpers.cases import cases


def played(task: str, policy: str = "behaviour", count: int = 12, **env: Any) -> list[Episode]:
    starts = map(Start, range(count))
    return in_order(rollout(make_policy(task, policy, env), lambda: lmrl.make(task, **env), starts, task=task))


def house(episode: Episode, by_text: bool) -> dict[str, Any]:
    texts = [episode.observations[0].strip()]
    rewards = [0.0]
    for action, text, reward in zip(episode.actions, episode.observations[1:], episode.rewards, strict=True):
        texts += [action.strip(), text.strip()]
        rewards += [reward, 0.0]
    if not by_text:
        rewards = rewards[1::2]
    dones = [False] * (len(rewards) - 1) + [True]  # also for games that the clock cut
    return {"text_history": texts, "rewards": rewards, "dones": dones}


def word(episode: Episode, mark: str = "") -> dict[str, Any]:
    sequence: list[list[Any]] = [[mark + episode.observations[0], 0.0]]
    rewards: list[float] = []
    for action, text, reward in zip(episode.actions, episode.observations[1:], episode.rewards, strict=True):
        sequence += [[action, 1.0], [text, 0.0]]
        rewards += [reward, 0.0]
    sequence[-1][0] += mark
    return {"sequence": sequence, "reward": rewards, "done": True}


def board(episode: Episode) -> list[dict[str, Any]]:
    parts = zip(episode.observations, episode.actions, episode.rewards, strict=False)
    moves = [{"state": s.strip("\n"), "action": a, "reward": r, "done": False} for s, a, r in parts]
    moves[-1]["done"] = True
    return moves


def imported(folder: Path, task: str, records: list[Any], as_list: bool = False, **env: Any) -> list[Episode]:
    path = folder / "official.jsonl"
    out = folder / "out.parquet"
    path.write_text(json.dumps(records) if as_list else "".join(json.dumps(record) + "\n" for record in records))
    assert import_official(task, path, out, env) <= len(records)
    return list(read_dataset(out, task))


def same(found: list[Episode], expected: list[Episode]) -> None:
    names = ("observations", "actions", "rewards", "terminated", "truncated", "success", "illegal")
    for ours, theirs in zip(found, expected, strict=True):
        assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]


@pytest.mark.parametrize("by_text", [False, True])
@pytest.mark.parametrize("as_list", [False, True])
def test_text_nav(tmp_path: Path, by_text: bool, as_list: bool) -> None:
    episodes = [*played("text_nav_fo", "optimal", 3), *played("text_nav_fo", count=10)]
    found = imported(tmp_path, "text_nav_fo", [house(episode, by_text) for episode in episodes], as_list)
    same(found, episodes)
    assert {(episode.terminated, episode.success) for episode in found} >= {(True, True), (False, False)}


@pytest.mark.parametrize("mark", ["", "<|endoftext|>"])
def test_wordle(tmp_path: Path, mark: str) -> None:
    episodes = played("wordle", count=30)
    found = imported(tmp_path, "wordle", [word(episode, mark) for episode in episodes])
    same(found, episodes)
    assert verify(tmp_path / "out.parquet").ok
    solved = [e for e, theirs in zip(found, episodes, strict=True) if e.info["start"] == theirs.info["start"]]
    assert len(solved) >= sum(episode.success for episode in episodes) > 10


def test_wordle_with_the_vocabulary_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("zzzzz\nyyyyy\nxxxxx\n")
    episodes = played("wordle", "random", 5, vocab=str(path))
    imported(tmp_path, "wordle", [word(episode) for episode in episodes], vocab=str(path))
    assert verify(tmp_path / "out.parquet", env_arguments={"vocab": str(path)}).ok


@pytest.mark.parametrize("task", ["chess", "endgames"])
def test_chess(tmp_path: Path, task: str) -> None:
    env = {"opponent": "random"}
    episodes = [episode for episode in played(task, "random", 6, **env) if episode.terminated]
    found = imported(tmp_path, task, [board(episode) for episode in episodes], as_list=True)
    for ours, theirs in zip(found, episodes, strict=True):
        # Black's last move, if any, is not in the file: the import may have found another that ends the game alike.
        assert (ours.observations[:-1], ours.actions) == (theirs.observations[:-1], theirs.actions)
        assert (ours.rewards, ours.terminated, ours.success) == (theirs.rewards, True, theirs.success)
    assert verify(tmp_path / "out.parquet").ok


def test_a_mate_by_black_and_a_game_cut_short(tmp_path: Path) -> None:
    env = lmrl.make("chess", opponent="random")
    mated = ["f3", "g4"]
    states = []
    text = env.reset(options={"replies": ["e7e5", "d8h4"]})[0]
    for move in mated:
        states.append(text.strip("\n"))
        text = env.step(move)[0]
    lost = [
        {"state": states[0], "action": "f 3\n", "reward": 0.0, "done": False},
        {"state": states[1], "action": "g 4\n", "reward": -1.0, "done": True},
    ]
    cut = [{**move, "done": False, "reward": 0.0} for move in lost]
    found = imported(tmp_path, "chess", [lost, cut])
    assert [(len(e), e.terminated, e.truncated, e.total_reward) for e in found] == [
        (2, True, False, -1.0),
        (1, False, True, 0.0),
    ]
    assert found[0].observations[-1] == text and verify(tmp_path / "out.parquet").ok


def test_a_stream_of_moves_is_cut_into_games(tmp_path: Path) -> None:
    games = [episode for episode in played("endgames", "random", 4, opponent="random") if episode.terminated]
    moves = [move for game in games for move in board(game)]
    stream = [
        {**move, "from_state": plain_fen(move.pop("state")), "action": plain_san(move["action"])} for move in moves
    ]
    found = imported(tmp_path, "endgames", stream)
    assert [episode.actions for episode in found] == [game.actions for game in games]


@cases(
    ("task", "record", "words"),
    [
        ("text_nav_fo", {"sequence": []}, "line 1: the record lacks 'text_history'"),
        ("text_nav_fo", {"text_history": ["a", "b", "c"], "rewards": [0, 0], "dones": [True]}, "as many"),
        ("wordle", {"text_history": []}, "line 1: the record lacks 'sequence'"),
        (
            "wordle",
            {"sequence": [["Wordle:\n", 0], ["a", 0]], "reward": [0], "done": True},
            "must be an action, got 'a'",
        ),
        ("wordle", {"sequence": [["Chess:\n", 0], ["a", 1]], "reward": [0], "done": True}, "must begin with"),
        (
            "wordle",
            {"sequence": [["Wordle:\n", 0], ["c r a n e\n", 1], ["b b r\n", 0]], "reward": [-1, 0], "done": True},
            "five of g, y and b",
        ),
        (
            "chess",
            [{"state": "x", "action": "e 4", "reward": 0, "done": True}],
            "state 0 must be a position in FEN, got 'x'",
        ),
        ("chess", {"from_state": "x", "action": "e4"}, "line 1: a move must have .*, but lacks reward and done"),
        ("chess", {"from_state": "x", "reward": 0, "done": True}, "line 1: a move must have .*, but lacks action"),
        ("endgames", {"text_history": []}, "a record must be a list of transitions"),
    ],
)
def test_broken_records_are_named(tmp_path: Path, task: str, record: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        imported(tmp_path, task, [record])
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize(
    ("task", "other", "words"),
    [
        ("chess", "endgames", "line 1: state 0 of a game of chess must have more black pieces than the king"),
        ("endgames", "chess", "line 1: state 0 of a game of endgames must have Black's king alone"),
    ],
)
def test_a_file_of_the_other_task_is_refused(tmp_path: Path, task: str, other: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        imported(tmp_path, task, [board(episode) for episode in played(other, "random", 1, opponent="random")])


def test_castling_and_en_passant_by_black_are_found(tmp_path: Path) -> None:
    env = lmrl.make("chess", opponent="random")
    states = []
    replies = ["e7e5", "g8f6", "f8c5", "e8g8", "b7b5", "d7d5", "a7a6"]
    moves = ["e4", "Nf3", "Bc4", "d3", "Bb3", "Nc3", "h3"]
    text, _ = env.reset(options={"replies": replies})
    for move in moves:
        states.append({"state": text.strip("\n"), "action": move, "reward": 0.0, "done": False})
        text = env.step(move)[0]
    taking = {"fen": "4k3/8/8/8/3p4/8/4P3/4K3 w - - 0 1", "replies": ["d4e3"]}
    more = [{"state": spaced_fen(taking["fen"]), "action": "e4", "reward": 0.0, "done": False}]
    env.reset(options=taking)
    more.append({"state": env.step("e4")[0], "action": "Kd1", "reward": 0.0, "done": False})
    found = imported(tmp_path, "chess", [states, more])
    assert [episode.info["start"]["replies"] for episode in found] == [replies[:-1], ["d4e3"]]


def test_states_in_which_black_moves(tmp_path: Path) -> None:
    state = "4k2r/8/8/8/8/8/8/4K3 b - - 0 1"
    with pytest.raises(UserError, match="line 1: state 0 must be a legal position with White to move"):
        imported(tmp_path, "chess", [[{"state": state, "action": "e5", "reward": 0.0, "done": False}]])


def test_states_that_cannot_follow(tmp_path: Path) -> None:
    moves = board(next(episode for episode in played("chess", "random", 6, opponent="random")))
    moves[3]["state"] = moves[0]["state"]
    with pytest.raises(UserError, match="line 1: state 3 cannot follow"):
        imported(tmp_path, "chess", [moves])


def test_a_list_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    episodes = played("wordle", count=2)
    path = tmp_path / "official.json"
    path.write_text(json.dumps([word(episode) for episode in episodes]), encoding="utf-8-sig")
    assert import_official("wordle", path, tmp_path / "out.parquet", {}) == 2
