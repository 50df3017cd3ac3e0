"""The learners against values worked out by another method, and against the optimum."""

from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lmrl.cli import main
from lmrl.contrib.symbolic import (
    Grid,
    GridMaze,
    SymbolicCQL,
    SymbolicDQN,
    from_episodes,
    q_learning,
    q_learning_offline,
)
from lmrl.contrib.symbolic.grid import Transitions
from lmrl.contrib.symbolic.modules import Replay, symbolic_loss
from lmrl.data import generate
from lmrl.data.storage import read_dataset, write_episodes
from lmrl.envs.maze.layouts import LAYOUTS
from lmrl.envs.registry import make_policy, task
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.evaluation.loading import load_policy
from lmrl.evaluation.records import read_record_curves, read_records
from lmrl.evaluation.result_json import read_json
from lmrl.modules import load_module
from lmrl.utils.files import locked

GRID = Grid(LAYOUTS["double_t_maze"])
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def optimal_q(grid: Grid, gamma: float) -> NDArray[np.float64]:
    """Value iteration."""
    q = np.zeros(grid.next.shape)
    for _ in range(200):
        q = grid.reward + gamma * np.where(grid.terminated, 0.0, q.max(-1)[grid.next])
    return q


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate("maze_fo", 400, 0, tmp_path_factory.mktemp("data") / "maze.parquet", progress=False)


@pytest.mark.parametrize("seed", range(3))
def test_playing_reaches_the_optimum_and_its_values(seed: int) -> None:
    q = q_learning(GridMaze(), seed=seed)
    assert GRID.greedy_return(q) == pytest.approx(-6.84)
    best = optimal_q(GRID, 0.99)
    assert np.abs(q.max(-1) - best.max(-1))[GRID.starts].max() < 0.05


def test_the_call_by_which_time_runs_out_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmrl.contrib.symbolic.grid._MAX_STEPS", 0)  # that is every call
    assert not q_learning(GridMaze(), episodes=20).any()


@pytest.mark.parametrize("gamma", [0.9, 0.99])
def test_a_dataset_in_which_hardly_anybody_arrives_is_enough(data: Path, gamma: float) -> None:
    steps = from_episodes(read_dataset(data), GRID)
    q = q_learning_offline(steps, GRID, gamma=gamma)
    assert GRID.greedy_return(q) == pytest.approx(-6.84)
    seen = np.isfinite(q)
    assert seen[GRID.starts].mean() > 0.95
    assert np.abs(q - optimal_q(GRID, gamma))[seen & (np.arange(len(q)) != GRID.state[8, 6])[:, None]].max() < 1e-3


def test_what_was_not_seen_is_neither_chosen_nor_believed() -> None:
    corridor = [GRID.state[cell] for cell in ((5, 6), (6, 6), (7, 6), (8, 6))]
    down = 3
    steps = Transitions(
        *map(np.array, (corridor[:3], [down] * 3, [-1.0, -1.0, 0.0], corridor[1:], [False, False, True]))
    )
    q = q_learning_offline(steps, GRID, sweeps=60)
    assert q[corridor[:3]].argmax(-1).tolist() == [down] * 3
    assert q[corridor[:3], down] == pytest.approx([-1 - 0.99, -1, 0])
    assert np.isinf(q[corridor[0], :down]).all()
    assert (q[GRID.state[1, 1]] == 0).all()


def test_the_loss_by_hand() -> None:
    q = torch.tensor([[0.0, 1.0, 2.0, 0.0], [1.0, 0.0, 0.0, 0.0]], requires_grad=True)
    slow = torch.tensor([[5.0, 3.0, 0.0, 0.0], [9.0, 9.0, 9.0, 9.0]], requires_grad=True)
    action = torch.tensor([1, 0])
    reward = torch.tensor([-1.0, 0.5])
    terminated = torch.tensor([False, True])
    terms = symbolic_loss(q, slow, action, reward, terminated, gamma=0.5, cql_weight=0.1)
    # Targets: -1 + 0.5 * 5 = 1.5 for Q = 1; 0.5 for Q = 1, the end.
    assert terms.td_loss.item() == pytest.approx((0.5**2 + 0.5**2) / 2)
    lse = [np.log(2 + np.e + np.e**2), np.log(3 + np.e)]
    assert terms.cql_loss.item() == pytest.approx((lse[0] - 1 + lse[1] - 1) / 2)
    assert terms.loss.item() == pytest.approx(terms.td_loss.item() + 0.1 * terms.cql_loss.item())
    terms.td_loss.backward()
    assert slow.grad is None
    assert q.grad is not None and q.grad.tolist() == [[0, -0.5, 0, 0], [0.5, 0, 0, 0]]


def test_the_memory_holds_what_was_played() -> None:
    grid = GridMaze().grid
    batches = iter(Replay(GridMaze(), lambda: optimal_q(grid, 0.99), size=64, epsilon=0.5, room=100, seed=0))
    for _ in range(10):
        state, action, reward, following, terminated = (column.numpy() for column in next(batches))
        assert (following == grid.next[state, action]).all()
        assert (reward == grid.reward[state, action]).all()
        assert (terminated == grid.terminated[state, action]).all()


def test_networks_learn_a_small_maze_and_their_checkpoints_play_it(tmp_path: Path) -> None:
    grid = Grid(LAYOUTS["umaze"])
    random = np.random.default_rng(0).integers(4, size=(len(grid.cells), 4))
    best = grid.greedy_return(optimal_q(grid, 0.99))
    assert grid.greedy_return(random) < best
    L.seed_everything(0, verbose=False)
    module = SymbolicDQN(layout="umaze", lr=5e-3, hidden=32, batch_size=64)
    trainer = L.Trainer(max_steps=500, accelerator="cpu", log_every_n_steps=100, **QUIET)
    trainer.fit(module)
    assert grid.greedy_return(module.table()) == pytest.approx(best)
    assert trainer.callback_metrics["eval/maze_fo/return_mean"].item() == pytest.approx(best)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert (SymbolicDQN.load_from_checkpoint(tmp_path / "last.ckpt").table() == module.table()).all()
    with pytest.raises(UserError, match="SymbolicDQN, which is no language model"):
        load_module(tmp_path)
    with pytest.raises(UserError, match="temperature must be 0: policies of the grid are greedy"):
        load_policy(tmp_path, task("maze_fo"), temperature=1.0)


def test_the_slow_copy_follows_and_cql_holds_back_what_was_not_done(tmp_path: Path) -> None:
    done = evaluate(make_policy("maze_fo", "optimal"), "maze_fo", 25).episodes
    write_episodes(tmp_path / "best.parquet", done)

    def trained(weight: float) -> SymbolicCQL:
        L.seed_everything(1, verbose=False)
        module = SymbolicCQL(data=str(tmp_path / "best.parquet"), cql_weight=weight, polyak=1.0)
        L.Trainer(max_steps=150, accelerator="cpu", **QUIET).fit(module)
        return module

    plain = trained(0.0)
    conservative = trained(1.0)
    for slow, fast in zip(plain.target_q.parameters(), plain.q.parameters(), strict=True):
        assert torch.equal(slow, fast) and not slow.requires_grad
    steps = from_episodes(done, GRID)

    def chosen(module: SymbolicCQL) -> float:
        return float((module.table()[steps.state].argmax(1) == steps.action).mean())

    assert chosen(conservative) > 0.95 > chosen(plain) + 0.2


def test_the_slow_copy_goes_its_share_of_the_way_in_each_step(data: Path) -> None:
    module = SymbolicCQL(data=str(data), polyak=0.25, batch_size=8)
    before = [parameter.clone() for parameter in module.target_q.parameters()]
    L.Trainer(max_steps=1, accelerator="cpu", **QUIET).fit(module)
    for slow, fast, first in zip(module.target_q.parameters(), module.q.parameters(), before, strict=True):
        assert not torch.equal(fast, first)
        torch.testing.assert_close(slow, 0.75 * first + 0.25 * fast)


def test_a_folder_that_another_command_writes_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["symbolic", "--algorithms", "q_offline", "--data", str(data), "--episodes", "1"]
    with locked("runs/maze_fo/symbolic_q_offline"):
        assert main(words) == 2
    assert "run folder runs/maze_fo/symbolic_q_offline is in use by process" in capsys.readouterr().err


@pytest.mark.nightly
def test_the_command_puts_results_where_the_report_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["symbolic", "--data", str(data), "--episodes", "25", "--steps", "100"]) == 0
    assert "Q-learning on the grid" in capsys.readouterr().out
    results = {name: of[0] for name, of in read_records(Path("runs"), "maze_fo").items()}
    assert [*results] == ["symbolic_cql", "symbolic_dqn", "symbolic_q", "symbolic_q_offline"]
    for name in ("symbolic_q", "symbolic_q_offline"):
        assert results[name].scores["return_mean"] == pytest.approx(-6.84)
        probe = results[name].probe
        assert probe is not None and probe.right == 25
    assert "symbolic_cql/cql_loss" in read_record_curves(Path("runs"), "maze_fo")["symbolic_cql"][0]
    assert read_json(Path("runs/maze_fo/symbolic_dqn/timing.json"))["fit"]["command"].startswith("lmrl symbolic --alg")
    words = ["evaluate", "maze_fo", "--policy", "runs/maze_fo/symbolic_dqn", "--episodes", "25", "--out", "again"]
    assert main(words) == 0
    again = read_json(Path("again/scores.json"))["return_mean"]
    assert again == pytest.approx(results["symbolic_dqn"].scores["return_mean"])
    assert main(["report", "--algorithms", "symbolic_dqn"]) == 0
    assert "DQN on the grid" in Path("report/report.md").read_text()
    assert main(["symbolic", "--algorithms", "sarsa"]) == 2
    assert "unknown symbolic algorithm 'sarsa'; known: cql, dqn, q, q_offline" in capsys.readouterr().err
