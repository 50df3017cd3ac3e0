"""Each benchmark measures what its rows say, at a small size."""

import time
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import lmrl
from benchmarks import (
    chat_templates,
    first_game,
    illegal_moves,
    intervals,
    ray_workers,
    slots,
    startup,
    task_tokens,
    value_base,
)
from benchmarks.anchors import SIZE, group_starts, play, shared
from benchmarks.engine import chatty_lm
from benchmarks.illegal_moves import first_tries, kind
from benchmarks.padding import padding
from lmrl.data.storage import write_episodes
from lmrl.decoding.engine import Engine
from lmrl.envs import registry
from lmrl.envs.chess.env import spaced_san
from lmrl.envs.registry import make_policy
from lmrl.errors import UserError
from lmrl.evaluation import Evaluation, evaluate
from lmrl.evaluation.loading import load_policy
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import BC, MC
from lmrl.tokens.encoding import Window
from lmrl.types import Episode
from tests.helpers.cases import cases
from tests.helpers.corridor import STARTS, corridor_task

ROOT = Path(__file__).parents[2]

# anchors: how often a state comes again within a group of episodes, counted by hand.


def said(*texts: str) -> Episode:
    """An observation first, then action and observation in turn."""
    actions = texts[1::2]
    return Episode("toy", texts[::2], actions, (0.0,) * len(actions), True, False)


def test_a_state_counts_where_another_episode_of_the_group_was_there() -> None:
    group = [said("a", "x", "b", "x", "b", "x", "."), said("a", "y", "b", "x", ".")]
    assert shared([group], whole=False) == 1.0
    assert shared([group], whole=True) == 2 / 5  # behind different actions the same observation is another state
    assert shared([[group[0]], [group[1]]], whole=False) == 0.0  # of another group


@pytest.mark.parametrize("task", ["maze_fo", "twenty_questions"])
def test_a_group_begins_alike_and_goes_its_own_ways(task: str) -> None:
    (one, other) = play(make_policy(task, "behaviour"), task, group_starts(task, groups=2))
    assert len(one) == len(other) == SIZE
    assert len({episode.observations[0] for episode in one}) == 1
    assert len({episode.actions for episode in one}) > 1


# first_game: the command is that of the Makefile, and the clock stops at a game.


def test_the_command_is_that_of_the_makefile() -> None:
    assert f"lmrl {' '.join(first_game.WORDS)} " in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_a_command_without_an_address_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_game, "WORDS", ("web", "nothing"))
    with pytest.raises(RuntimeError, match="printed no address"), first_game.demo(tmp_path):
        pass


@pytest.mark.nightly
def test_the_first_game_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_game, "WORDS", ("web", "maze_fo", "--policy", "optimal", "--seed", "3"))
    with first_game.demo(tmp_path) as address:
        state = first_game.first_state(address)
    assert (state["task"], state["seed"], len(state["seats"])) == ("maze_fo", "3", 1)
    seconds, cores = first_game.seconds_to_answer(tmp_path)
    assert 0 < cores and 0 < seconds


# illegal_moves: the kinds of illegal moves, and first tries apart from those that repeat them.

CHECK = "4k3/8/8/8/7b/8/3N4/4K3 w - - 0 1"
PIN = "4r2k/8/8/8/8/8/4R3/R3K3 w Q - 0 1"
KNIGHTS = "4k3/8/8/8/8/8/3N3N/K7 w - - 0 1"


@cases(
    ("fen", "said", "why"),
    [
        (chess.STARTING_FEN, "e4", None),
        (chess.STARTING_FEN, "e5", "where the piece cannot go"),
        (chess.STARTING_FEN, "Nd2", "to a square of an own piece"),
        (chess.STARTING_FEN, "O-O", "castles"),
        (chess.STARTING_FEN, "e9", "no move"),
        (chess.STARTING_FEN, "--", "no move"),
        (chess.STARTING_FEN, "", "no move"),
        (CHECK, "Kd1", None),
        (CHECK, "Ne4", "leaves a check"),
        (CHECK, "Kf2", "king into an attack"),
        (CHECK, "Qf2", "a piece that is not there"),
        (PIN, "Rd2", "opens a line to the king"),
        (PIN, "Re4", None),
        (PIN, "Red1", "where the piece cannot go"),
        (KNIGHTS, "Nf3", "two men could go there"),
        (KNIGHTS, "Nhf3", None),
        ("7k/P7/8/8/8/8/8/K7 w - - 0 1", "a8", "spelled wrongly"),
    ],
)
def test_why_a_move_is_illegal(fen: str, said: str, why: str | None) -> None:
    assert kind(chess.Board(fen), said) == why


def _game(*moves: str) -> Episode:
    env = registry.make("chess", opponent="random")
    actions = tuple(spaced_san(move) for move in moves)
    observations = [env.reset(seed=0)[0]]
    rewards = []
    for action in actions:
        text, reward, *_ = env.step(action)
        observations.append(text)
        rewards.append(float(reward))
    return Episode("chess", tuple(observations), actions, tuple(rewards), terminated=False, truncated=True)


def test_an_illegal_move_that_is_said_again_counts_once() -> None:
    found = first_tries([_game("e5", "e5", "e5", "e4", "Ke3"), _game("d4")])
    assert (found.turns, found.tries, found.illegal) == ((5, 1), (2, 1), (2, 0))
    assert found.kinds == {"where the piece cannot go": 2} and found.share == 2 / 3
    assert found.same == (3, 1, 0)
    low, high = found.interval()
    assert (low, high) == (0.0, 1.0)


def test_rows_of_the_runs_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(illegal_moves, "RUNS", tmp_path)
    with pytest.raises(UserError, match="lmrl reproduce chess endgames"):
        next(illegal_moves.run())
    games = {"chess": _game("e5", "e5", "e4"), "seed_1/chess": _game(*["e5"] * 10, "e4", "Ke3")}
    for folder, game in games.items():
        (tmp_path / folder / "bc" / "evaluation").mkdir(parents=True)
        write_episodes(tmp_path / folder / "bc" / "evaluation" / "episodes.parquet", [game])
    rows = [str(row) for row in illegal_moves.run()]
    assert rows[:8] == [
        "chess, bc: first tries illegal | 100.0% [100.0%, 100.0%] of 1 | ",
        "chess, bc: of all illegal tries, in positions with 10 or more | 0%, in 0.00% of the positions | ",
        "chess, bc: illegal: where the piece cannot go | 100% | ",
        "chess, bc: illegal: king into an attack | 0% | ",
        "chess, bc: illegal: to a square of an own piece | 0% | ",
        "chess, bc: illegal: leaves a check | 0% | ",
        "chess, bc: turns that repeat a position | 67% | ",
        "chess, bc: median return | -2.0 | ",
    ]
    stuck = "chess, seed 1, bc: of all illegal tries, in positions with 10 or more | 91%, in 50.00% of the positions | "
    assert len(rows) == 16 and rows[9] == stuck


# chat_templates: which ones are taken, and how they are followed.


def test_templates_are_taken_or_refused(tmp_path: Path) -> None:
    chatml = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    (tmp_path / "a.jinja").write_text(chatml)
    (tmp_path / "b.jinja").write_text(chatml.replace("assistant\n", "assistant\n<think>\n"))
    (tmp_path / "c.jinja").write_text(chatml.replace("{{ m.content }}", "{{ m.content }}{{ loop.revindex }}"))
    closed = "{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}"
    (tmp_path / "d.jinja").write_text(chatml.replace("{{ m.content }}", closed))
    rows = list(chat_templates.run(tmp_path))
    assert [row.name for row in rows] == ["a", "b", "c", "d", "accepted of 4"]
    assert [row.value for row in rows] == [1.0, 1.0, 0.0, 1.0, 3]
    assert rows[0].shown == "accepted"
    assert rows[1].shown.startswith("accepted; policies act after '<|im_end|>\\n<|im_start|>assistant\\n', and not")
    assert rows[2].shown.startswith("refused: the chat template of the tokenizer")
    assert rows[3].shown.endswith("; recorded thoughts are refused")
    with pytest.raises(UserError, match="chat_templates needs --folder"):
        next(chat_templates.run(None))


# intervals: every interval is simulated, and the truth is that of very many episodes.


@pytest.mark.nightly
def test_every_interval_is_simulated() -> None:
    rows = list(intervals.run(simulations=1))
    assert len(rows) == 24 and {row.value for row in rows} <= {0.0, 100.0}


@pytest.mark.parametrize("draw", [intervals.normal, intervals.in_steps])
def test_the_truth_is_that_of_endless_episodes(draw: intervals.Callable[..., intervals.Floats]) -> None:
    chance = np.random.default_rng(0)
    a = draw(0.4, 4_000, chance)[:, None]
    b = draw(-0.3, 4_000, chance)[None]
    assert intervals.wins(draw, 0.4, -0.3) == pytest.approx(((np.sign(a - b) + 1) / 2).mean(), abs=0.02)


# padding: little of what is read is padding, although episodes of all lengths meet in a batch.


@pytest.fixture(name="padding_folder", scope="module")
def padding_folder_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.mark.nightly
@pytest.mark.parametrize("task", lmrl.tasks())
def test_less_than_a_tenth_is_padding(task: str, padding_folder: Path) -> None:
    """With the settings of the shipped configuration, but for fewer episodes."""
    share = padding(task, padding_folder, episodes=40 if task == "chess" else 160)
    assert 0.0 <= share < 0.10


# ray_workers: a small part of the comparison.


@pytest.mark.nightly
def test_recording_is_compared_with_two_processes(ray_cluster: str, tmp_path: Path) -> None:
    *rates, overhead = ray_workers.recording(tmp_path, 130, 1, "maze_fo")
    assert [row.name.rpartition(", ")[2] for row in rates] == ["two processes", "two Ray workers"]
    processes, workers = (row.value or 0.0 for row in rates)
    assert overhead.value == pytest.approx(processes / workers - 1.0) and overhead.shown.endswith("% time")


def test_ways_alternate() -> None:
    called: list[str] = []
    ways = {name: lambda name=name: called.append(name) for name in ("a", "b")}
    assert ray_workers.alternating(ways, 2).keys() == ways.keys()
    assert called == ["a", "b", "a", "b"]


def test_the_policy_is_one_that_workers_can_load(tmp_path: Path) -> None:
    assert load_policy(ray_workers._policy(tmp_path), "maze_fo")


# slots: the operations that decoding requires are those that torch counts if every token is read once.


SLOTS_MODEL = chatty_lm(load_tokenizer(), layers=2, width=64).eval()


def test_required_operations_are_those_that_torch_counts() -> None:
    engine = Engine(SLOTS_MODEL, slots=1)
    read = 7
    said = 3
    ids = torch.arange(300, 300 + read).tolist()
    # The fused attention of a processor is not counted by torch.
    with FlopCounterMode(display=False) as counter, sdpa_kernel([SDPBackend.MATH]):
        hidden = engine.feed([0], [ids[:1]])
        for token in ids[1:]:
            hidden = engine.append([0], [token])
        for _ in range(said):
            engine.logits(hidden)
    assert counter.get_total_flops() == slots.required(SLOTS_MODEL, read, said)


@pytest.mark.nightly
def test_a_small_run_has_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "chatty_lm", lambda _: SLOTS_MODEL)
    rows = {row.name: row.value for row in slots.run(repeats=1, slots=(2, 4))}
    assert len(rows) == 1 + 2 * (2 * 2 + 1)
    best = max(rows[f"wordle, {number} slots, share of the peak"] or 0 for number in (2, 4))
    assert rows["wordle, share of the peak at best"] == best and 0 < best < 1


# startup: the CPU time is that of the command; a command that fails has none.


@pytest.mark.nightly
def test_the_time_is_that_of_the_command(tmp_path: Path) -> None:
    began = time.monotonic()
    seconds = startup.cpu_seconds(["--version"], tmp_path)
    assert 0.01 < seconds < time.monotonic() - began + 0.5
    with pytest.raises(RuntimeError, match=r"\['trian'\] ended with 2: error: unknown command 'trian'"):
        startup.cpu_seconds(["trian"], tmp_path)


# task_tokens: a side is a training run of the run file with its tokens.


@pytest.mark.nightly
def test_a_side_is_a_run_of_the_run_file_with_its_tokens(tmp_path: Path) -> None:
    data = tmp_path / "games.parquet"
    startup.cpu_seconds(["data", "generate", "wordle", "--size", "300", "--out", str(data)], tmp_path)
    seconds, excess = task_tokens.train("wordle", 2, data, tmp_path / "run")
    assert seconds > 1.0 and 0.5 < excess < 10.0  # a uniform choice among the words is .8 over the data's player
    config = (tmp_path / "run" / "config.yaml").read_text(encoding="utf-8")
    assert "task_tokens: wordle" in config and "max_steps: 2\n" in config


# value_base: values that say nothing change nothing, and right values raise the return.


TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}


def test_values_are_played_on_the_other_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    chooses: list[bool] = []

    def noting(*given: Any, selection: bool, **more: Any) -> Evaluation:
        chooses.append(selection)
        return evaluate(*given, selection=selection, **more)

    monkeypatch.setattr(value_base, "evaluate", noting)
    policy = BC(architecture=TINY, tokenizer="lmrl-letters")
    values = MC(architecture=TINY, tokenizer="lmrl-letters")
    values.window = Window(tokens=16)
    with corridor_task():
        without, with_values = value_base.played("corridor", values, policy, games=len(STARTS))
        assert all(map(torch.equal, values.model.parameters(), policy.model.parameters()))
        assert without.beta == 0.0 < with_values.beta
        assert with_values.returns == without.returns  # Q is the same of all tokens
        assert chooses == [True] * 3 + [False] + [True] * 15 + [False], "the games that choose are not those compared"

        with torch.no_grad():
            values.q_heads[0].outer.bias[values.tokenizer.convert_tokens_to_ids("R")] = 100.0
        without, with_values = value_base.played("corridor", values, policy, games=len(STARTS))
    assert without.mean < with_values.mean and sorted(with_values.returns) == [-2.0, -1.0, 0.0]


def test_it_says_which_runs_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_base, "RUNS", tmp_path)
    with pytest.raises(UserError, match="lmrl reproduce TASK --algorithms filtered_bc mc ilql"):
        next(value_base.run())
