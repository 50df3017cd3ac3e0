"""Means over tokens, batches and ranks are those of `torchmetrics`, and continue after a checkpoint."""

import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import MeanMetric
from torchmetrics.text import Perplexity

from lmrl.callbacks import KeepLast
from lmrl.datamodules import MazeDataModule
from lmrl.evaluation.episode_table import EpisodeTable
from lmrl.evaluation.evaluate import Evaluation
from lmrl.evaluation.metrics import EpisodeScores, RolloutPace
from lmrl.modules import BC, PPO, LanguageModule
from lmrl.training.reporting import FarthestRatio, LossReporter, TokenMeans, TokenPerplexity
from lmrl.types import Episode
from tests.helpers.online import fit, rounds, trainer
from tests.helpers.ranks import on_ranks, strategy

pytestmark = pytest.mark.filterwarnings("ignore:round [0-9]+. ", "ignore:Experiment logs directory")

#: Terms of six batches, and how many tokens each has; the fourth has none.
BATCHES = [({"q": torch.tensor(float(n)), "v": torch.tensor(-0.1 * n**2)}, tokens) for n, tokens in enumerate(
    [3, 1, 10, 0, 7, 2]
)]  # fmt: skip


def means_of(batches: list[tuple[dict[str, Tensor], int]]) -> tuple[dict[str, float], int]:
    metric = TokenMeans(["q", "v"])
    for means, tokens in batches:
        metric.update(means, tokens)
    found = metric.compute()
    return {name: float(value) for name, value in found.means.items()}, int(found.tokens)


def test_each_term_is_a_weighted_mean_metric() -> None:
    found, tokens = means_of(BATCHES)
    assert tokens == 23
    for name in ("q", "v"):
        expected = MeanMetric()
        for means, weight in BATCHES:
            expected.update(means[name], weight)
        assert found[name] == pytest.approx(float(expected.compute()), rel=1e-6)
    assert found["q"] == pytest.approx((1 + 2 * 10 + 4 * 7 + 5 * 2) / 23)


def test_no_tokens_are_no_nan() -> None:
    assert means_of(BATCHES[3:4]) == ({"q": 0.0, "v": 0.0}, 0)


def share() -> list[Any]:
    """Return what this process computes of its share of the data. One of the batches has no tokens."""
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    ratio = FarthestRatio()
    pace = RolloutPace()
    scores = EpisodeScores()
    for value in [0.9, 1.05, 1.08, 0.93][rank::world]:
        ratio.update(torch.tensor(value))
    for turns, tokens in [(3, 9), (2, 8), (1, 1)][rank::world]:
        pace.update(turns, tokens)
    scores.update(EPISODES[rank::world])
    return [means_of(BATCHES[rank::world]), float(ratio.compute()), pace.compute(), scores.compute()]


def began(work: Callable[[], list[Any]]) -> list[Any]:
    torch.distributed.init_process_group("gloo")
    return work()


EPISODES = [
    Episode("maze_fo", ("o",) * (n + 2), ("a",) * (n + 1), (-1.0,) * n + (float(n % 2),), True, False,
            info={"success": n % 2 == 1, "illegal": n // 2})
    for n in range(5)
]  # fmt: skip


def test_two_processes_compute_what_one_does() -> None:
    alone = share()
    for found in on_ranks(began, share):
        (means, tokens), ratio, pace, scores = found
        assert means == pytest.approx(alone[0][0], abs=1e-6, rel=1e-6) and tokens == alone[0][1]
        assert ratio == pytest.approx(0.9) == alone[1]
        assert pace == alone[2]
        assert scores == pytest.approx(alone[3], abs=1e-12)


def test_the_perplexity_is_that_of_the_logits() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 9, 5)
    target = torch.randint(5, (1, 9))
    expected = Perplexity()
    found = TokenPerplexity()
    expected.update(logits, target)
    nll = -logits.log_softmax(-1)[0, torch.arange(9), target[0]]
    for part in (nll[:4], nll[4:]):
        found.update(part.mean(), len(part))
    torch.testing.assert_close(found.compute(), expected.compute())


def test_scores_of_episodes_are_those_of_an_evaluation() -> None:
    metric = EpisodeScores()
    for episode in EPISODES:
        metric.update([episode])
    found = metric.compute()
    expected = Evaluation("maze_fo", "somebody", tuple(EPISODES), 0).scores()
    for name in ("return_mean", "success_rate", "length_mean", "illegal_rate"):
        assert found[name] == expected[name]
    assert found["return_p50"] == -2.0 and found["length_p100"] == 5.0
    assert EpisodeTable.of(EPISODES).means()["illegal_rate"] == (0 + 0 + 1 + 1 + 2) / 15


def learn(kind: str, bc_run: str, data_path: str, root: Path, steps: int, world: int = 1) -> None:
    """Run `steps` steps, from the checkpoint in the folder if there is one."""
    last = root / "last.ckpt"
    go: dict[str, Any] = {"ckpt_path": last, "weights_only": True} if last.is_file() else {}
    settings = {"devices": world, "strategy": strategy("ddp" if world > 1 else "one")}
    shared = {"pretrained": bc_run, "lr": 1e-2, "lr_schedule": "constant", "warmup_steps": 0}
    torch.manual_seed(last.is_file())
    module: LanguageModule = BC(**shared) if kind == "bc" else PPO(bc_weight=0.5, **shared)
    callbacks = [KeepLast(every_n_steps=100)]
    if kind == "bc":
        run = trainer(root, steps, callbacks, **settings, limit_val_batches=2)
        run.fit(module, MazeDataModule("maze_fo", path=data_path, batch_size=200 // world, val_fraction=0.1), **go)
    else:
        data = rounds(batches=4, offline=True, path=data_path, batch_size=8 // world)
        fit(module, data, root, steps, callbacks, settings=settings, **go)


def logged(root: Path, kind: str) -> list[dict[str, str]]:
    """Return the logged rows that have means over an epoch."""
    with (root / "metrics.csv").open() as file:
        rows = [{k: v for k, v in row.items() if v and k.startswith(kind)} for row in csv.DictReader(file)]
    return [row for row in rows if f"{kind}/perplexity" in row or f"{kind}/ratio" in row]


@pytest.mark.parametrize(
    ("kind", "world"),
    [
        ("bc", 1),
        ("ppo", 1),
        pytest.param("bc", 2, marks=pytest.mark.nightly),
        pytest.param("ppo", 2, marks=pytest.mark.slow),
    ],
)
def test_means_over_an_epoch_go_on_in_the_middle_of_it(
    kind: str, world: int, bc_run: str, data_path: Path, tmp_path: Path
) -> None:
    """Epochs and rounds have four batches. A run that is cut within the second has the same means to the last digit."""
    steps = 12
    stop = 6
    for root, ends in ((tmp_path / "whole", [steps]), (tmp_path / "halves", [stop, steps])):
        for end in ends:
            arguments = (kind, bc_run, str(data_path), root, end)
            on_ranks(learn, *arguments, 2) if world == 2 else learn(*arguments)
    whole = logged(tmp_path / "whole", kind)
    halves = logged(tmp_path / "halves", kind)
    assert len(whole) >= 2
    assert halves[-1] == whole[-1]
    assert whole[-2] in halves


def test_means_of_other_terms_in_a_checkpoint_are_left_out() -> None:
    saved = TokenMeans(["loss"])
    saved.update({"loss": torch.tensor(2.0)}, 3)
    for names, tokens in ((["loss"], 4), (["loss", "kl"], 1)):
        reporter = LossReporter("bc")
        reporter._restored = {"key": saved.state_dict()}
        means = dict.fromkeys(names, torch.tensor(1.0))
        reporter.update("key", partial(TokenMeans, names), means, 1)
        assert int(reporter._metrics["key"].compute().tokens) == tokens
