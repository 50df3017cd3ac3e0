"""Every action token of the data has the same weight in what is learned, whatever it is batched with.

The tests cover the whole way: file, datamodule with its default batches by length, trainer, optimizer. Probes weigh the
gradients: their loss is linear, so that plain gradient descent adds up the weight of every token exactly.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor

import lmrl
from lmrl.data import generate
from lmrl.data.storage import write_episodes
from lmrl.datamodules import Filter, OfflineDataModule
from lmrl.datamodules.spec import BatchSpec
from lmrl.losses import BCLoss
from lmrl.modules import BC, ILQL, MC, LanguageModule
from lmrl.tokens.collate import TokenBatch
from lmrl.types import Episode
from tests.helpers.ranks import on_ranks, strategy

TINY = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 128, "initializer_range": 0.08}
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
    "limit_val_batches": 0,
}


class Probe(BC):
    """A module whose loss is linear in one number per token id, so that descending it adds up what each id weighs."""

    filter = Filter()

    def __init__(self, **settings: Any) -> None:
        super().__init__(architecture={**TINY, "n_positions": 1024}, **settings)
        self.requires_grad_(False)
        self.acted = torch.nn.Parameter(torch.zeros(len(self.tokenizer), dtype=torch.float64))
        self.read = torch.nn.Parameter(torch.zeros(len(self.tokenizer), dtype=torch.float64))

    def batch_spec(self) -> BatchSpec:
        return replace(super().batch_spec(), filter=self.filter)

    def losses(self, batch: TokenBatch) -> BCLoss:
        said = -(self.acted[batch.token].sum() + 0.0 * self.read.sum()) / max(1, batch.n_tokens)
        if batch.observation_token is None:
            return BCLoss(said)
        heard = -self.read[batch.observation_token].sum() / max(1, batch.observation_token.numel())
        return BCLoss(said + heard, said, heard)

    def configure_optimizers(self) -> torch.optim.Optimizer:  # type: ignore[override]
        return torch.optim.SGD([self.acted, self.read], lr=1.0)


def text_of(ids: Tensor, module: LanguageModule) -> dict[str, float]:
    return {module.tokenizer.decode([index]): float(ids[index]) for index in ids.nonzero()[:, 0].tolist()}


def said(*turns: str, reward: float) -> Episode:
    """Return an episode with one letter a turn; the first turn has the reward, and letters in capitals answer."""
    answers = tuple(letter.upper() for letter in turns)
    rewards = (reward, *[0.0] * (len(turns) - 1))
    return Episode("twenty_questions", ("?", *answers), turns, rewards, terminated=True, truncated=False)


SHORT = ["a"]
LONG = ["b", "c", "d", "e", "f", "g", "h", "i"]


def recorded(tmp_path: Path, *kinds: Episode, copies: int = 64) -> str:
    """Write a file with `copies` copies of each kind of episode, shuffled."""
    order = np.random.default_rng(0).permutation(len(kinds) * copies)
    path = tmp_path / "episodes.parquet"
    write_episodes(path, [kinds[index % len(kinds)] for index in order], {"task": "twenty_questions"})
    return str(path)


def weigh(
    path: str, root: Path, module: Probe, devices: int = 1, filter: Filter | None = None, **trainer: Any
) -> Probe:
    data = OfflineDataModule("twenty_questions", path=path, batch_size=8, val_fraction=0.0, max_tokens=100)
    module.filter = filter or Filter()
    settings = {**QUIET, "max_epochs": 2, "devices": devices, "default_root_dir": root, **trainer}
    if devices > 1:
        settings["strategy"] = strategy("ddp")
    L.Trainer(**settings).fit(module, data)
    return module


def _acted(path: str, root: Path, devices: int, accumulate: int) -> dict[str, float]:
    probe = weigh(path, root, Probe(), devices, accumulate_grad_batches=accumulate)
    return text_of(probe.acted.detach(), probe)


@pytest.mark.parametrize(
    ("devices", "accumulate"),
    [(1, 1), (1, 4), pytest.param(2, 1, marks=pytest.mark.nightly), pytest.param(2, 3, marks=pytest.mark.slow)],
)
def test_every_action_token_weighs_the_same(devices: int, accumulate: int, tmp_path: Path) -> None:
    path = recorded(tmp_path, said(*SHORT, reward=1), said(*LONG, reward=0))
    arguments = (path, tmp_path, devices, accumulate)
    found = on_ranks(_acted, *arguments)[0] if devices == 2 else _acted(*arguments)
    steps = 2 * 128 / 8 / devices / accumulate  # in two epochs; each adds up to one
    assert found == pytest.approx(dict.fromkeys("abcdefghi", steps / 9), rel=1e-6)


def test_every_kept_action_token_weighs_the_same(tmp_path: Path) -> None:
    kinds = [said(*SHORT, reward=1), said(*LONG, reward=1), said("z", "z", "z", reward=0)]
    probe = weigh(recorded(tmp_path, *kinds), tmp_path, Probe(), filter=Filter(min_return=0.5))
    found = text_of(probe.acted.detach(), probe)
    assert found == pytest.approx(dict.fromkeys("abcdefghi", 2 * 128 / 8 / 9), rel=1e-6)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_observation_tokens_weigh_as_often_as_the_data_have_them(accumulate: int, tmp_path: Path) -> None:
    """Three dialogues hear Y where one hears N, and all go on alike."""
    texts = {heard: ("?", heard, "Z", "") for heard in "YN"}
    yes, no = (Episode("twenty_questions", texts[heard], ("a", "b", "c"), (0.0,) * 3, True, False) for heard in "YN")
    path = recorded(tmp_path, yes, yes, yes, no, said(*LONG, reward=0))
    probe = weigh(path, tmp_path, Probe(observation_loss_weight=0.5), accumulate_grad_batches=accumulate)
    found = text_of(probe.read.detach(), probe)
    total = 0.5 * 2 * 320 / 8 / accumulate
    shares = Counter({"Y": 3, "N": 1, "Z": 4, **dict.fromkeys("BCDEFGH", 1)})
    assert found == pytest.approx({name: total * n / 15 for name, n in shares.items()}, rel=1e-6)


class Returns(Probe):
    """A probe that adds up the weight of the episodes and their returns, from rewards that only first actions have."""

    def losses(self, batch: TokenBatch) -> BCLoss:  # type: ignore[override]
        first = batch.reward != 0
        terms = self.acted[0] * first.double(), self.acted[1] * batch.reward.double()
        return BCLoss(-(terms[0] + terms[1]).sum() / max(1, batch.n_tokens))


@pytest.mark.parametrize(
    "task",
    [
        "maze_fo",
        *(pytest.param(task, marks=pytest.mark.nightly) for task in lmrl.tasks() if task != "maze_fo"),
    ],
)
def test_the_mean_return_as_gradients_weigh_it_is_that_of_the_data(task: str, tmp_path: Path) -> None:
    quick: dict[str, Any] = {"opponent": "random", "max_moves": 40} if task == "chess" else {}
    path = generate(task, 24 if task == "chess" else 160, 0, tmp_path / "data.parquet", progress=False, env=quick)
    data = OfflineDataModule(task, path=str(path), batch_size=4, val_fraction=0.0)
    data.setup("fit")
    totals = np.asarray([e.total_reward for e in data.episodes])
    shift = 1.0 - totals.min()  # so that no first reward is 0
    marked = [_with_rewards(e, (e.total_reward + shift, *[0.0] * (len(e) - 1))) for e in data.episodes]
    data.episodes = marked
    probe = Returns()
    L.Trainer(**QUIET, max_epochs=1, default_root_dir=tmp_path).fit(probe, data)
    weight, total = probe.acted.detach()[:2].tolist()
    assert total / weight - shift == pytest.approx(totals.mean(), abs=1e-3 * np.ptp(totals))


def _with_rewards(episode: Episode, rewards: Sequence[float]) -> Episode:
    return Episode(
        episode.task, episode.observations, episode.actions, tuple(rewards), episode.terminated, episode.truncated,
        info=episode.info,
    )  # fmt: skip


# -- what is learned --------------------------------------------------------------------------------------------------


def outcomes(tmp_path: Path, first: str) -> str:
    """Write episodes: half end with the first action and return 1, half go on for seven random turns and return 0."""
    chance = np.random.default_rng(0)
    tails = ["".join(chance.choice(list("bcdefghijklmnopq"), 7)) for _ in range(512)]
    short = [said("a", reward=1)] * 512
    long = [said(first, *tail, reward=0) for tail in tails]
    path = tmp_path / "episodes.parquet"
    write_episodes(path, [(short + long)[index] for index in chance.permutation(1024)], {"task": "twenty_questions"})
    return str(path)


def train(module: LanguageModule, path: str, root: Path, accumulate: int, devices: int) -> None:
    data = OfflineDataModule("twenty_questions", path=path, batch_size=32, val_fraction=0.0, max_tokens=100)
    settings = {**QUIET, "gradient_clip_val": 1.0, "accumulate_grad_batches": accumulate, "default_root_dir": root}
    settings |= {"devices": devices, "strategy": strategy("ddp" if devices > 1 else "auto")}
    L.Trainer(**settings, max_steps=320 if accumulate == devices == 1 else 160).fit(module, data)


@torch.no_grad()
def chosen_first(module: LanguageModule, trunk: torch.nn.Module) -> tuple[Tensor, list[int]]:
    """Return the hidden vector in which the first action is chosen, and the ids of "a" and "z"."""
    encode = module.tokenizer.backend_tokenizer.encode
    before, *actions = (encode(text, add_special_tokens=False).ids for text in ("?", "a", "z"))
    hidden: Tensor = trunk(torch.tensor([before])).last_hidden_state[0, -1]
    return hidden, [ids[0] for ids in actions]


def clone(path: str, root: Path, accumulate: int, devices: int) -> list[float]:
    """Train BC and return its probabilities of the two first actions."""
    torch.manual_seed(0)
    module = BC(architecture=TINY, lr=3e-3, warmup_steps=10)
    train(module, path, root, accumulate, devices)
    hidden, pair = chosen_first(module, module.model.transformer)
    return module.model.lm_head(hidden).softmax(0)[pair].tolist()  # type: ignore[no-any-return]


class OwnTerms(NamedTuple):
    loss: Tensor
    nll: Tensor


def test_an_algorithm_after_bc_may_have_terms_of_its_own() -> None:
    terms = OwnTerms(loss=torch.tensor(2.0), nll=torch.tensor(1.0))
    batch = SimpleNamespace(scale=torch.tensor(3.0))
    assert Probe().objective(terms, batch) == 6.0  # type: ignore[arg-type]


class MCFromScratch(MC):
    starts_from_bc = False


class ILQLFromScratch(ILQL):
    starts_from_bc = False


def value(kind: type[MC | ILQL], path: str, root: Path, accumulate: int, devices: int) -> list[float]:
    """Train without the conservative term and return the value of the first action in each Q head."""
    torch.manual_seed(0)
    more = {"expectile": 0.5, "polyak": 0.05} if issubclass(kind, ILQL) else {}
    module = kind(architecture=TINY, lr=3e-3, warmup_steps=10, cql_weight=0.0, **more)
    train(module, path, root, accumulate, devices)
    hidden, (action, _) = chosen_first(module, module.trunk)
    return [head(hidden)[action].item() for head in module.q_heads]


CUTS = pytest.mark.parametrize(
    ("accumulate", "devices"),
    [(1, 1), pytest.param(4, 1, marks=pytest.mark.nightly), pytest.param(1, 2, marks=pytest.mark.nightly)],
)


@pytest.mark.slow
@CUTS
def test_bc_says_what_the_data_says(accumulate: int, devices: int, tmp_path: Path) -> None:
    arguments = (outcomes(tmp_path, first="z"), tmp_path, accumulate, devices)
    found = on_ranks(clone, *arguments)[0] if devices == 2 else clone(*arguments)
    assert found == pytest.approx([0.5, 0.5], abs=0.02)


@pytest.mark.nightly
@CUTS
@pytest.mark.parametrize("kind", [MCFromScratch, ILQLFromScratch])
def test_values_are_the_mean_of_the_data(kind: type[MC | ILQL], accumulate: int, devices: int, tmp_path: Path) -> None:
    arguments = (kind, outcomes(tmp_path, first="a"), tmp_path, accumulate, devices)
    found = on_ranks(value, *arguments)[0] if devices == 2 else value(*arguments)
    assert found == pytest.approx([0.5] * len(found), abs=0.02)
