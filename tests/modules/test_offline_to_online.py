"""Online learning that begins where an offline ILQL run ended."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from lmrl.callbacks import KeepLast
from lmrl.data import generate
from lmrl.datamodules import MazeDataModule
from lmrl.envs.registry import task
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.evaluation.loading import load_policy
from lmrl.losses import token_scores
from lmrl.modules import BC, ILQL, MC, GuidedPPO, LanguageModule, load_module
from tests.helpers.online import ENV, TINY, fit, rounds, trainer

pytestmark = pytest.mark.filterwarnings("ignore:round [0-9]+. ")


@pytest.fixture(scope="module")
def data_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate("maze_fo", 30, 0, tmp_path_factory.mktemp("data") / "maze.parquet", progress=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, data_path: Path) -> Path:
    root = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    trainer(root / "bc", 5, [KeepLast()]).fit(BC(architecture=TINY), MazeDataModule(path=str(data_path)))
    for kind in (MC, ILQL):
        module = kind(pretrained=str(root / "bc"), lr=1e-2, beta=2.0)
        trainer(root / module.name, 10, [KeepLast()]).fit(module, MazeDataModule(path=str(data_path)))
    return root


def played(module: LanguageModule) -> list[Any]:
    return [
        (e.actions, e.action_values) for e in evaluate(module.policy(max_new_tokens=4), "maze_fo", 4, env=ENV).episodes
    ]


@pytest.mark.parametrize("kind", [ILQL, GuidedPPO])
def test_it_begins_as_the_run_ended(kind: type[ILQL | GuidedPPO], runs: Path) -> None:
    ended = load_module(runs / "ilql")
    module = kind(pretrained=str(runs / "ilql"), beta=2.0).eval()
    module.window = ended.window
    assert played(module) == played(ended)
    if isinstance(module, ILQL):
        for target, online in zip(module.target_q_heads.parameters(), module.q_heads.parameters(), strict=True):
            assert torch.equal(target, online)


def test_the_guided_policy_learns(runs: Path, tmp_path: Path) -> None:
    module = GuidedPPO(pretrained=str(runs / "ilql"), beta=2.0, lr=1e-3)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    fit(module, rounds(epochs=2), tmp_path, steps=12, callbacks=[KeepLast()])
    for name, parameter in module.named_parameters():
        fixed = ("model.", "ref_model.", "v_head.")
        assert torch.equal(parameter, before[name]) == name.startswith(fixed), name
    with (tmp_path / "metrics.csv").open() as file:
        rows = [*csv.DictReader(file)]
    ratios = [float(row["ppo/first_ratio"]) for row in rows if row["ppo/first_ratio"]]
    assert ratios == pytest.approx([1.0] * len(ratios), abs=1e-4)
    kl = [float(row["ppo/kl"]) for row in rows if row["ppo/kl"]]
    assert kl[0] == pytest.approx(0.0, abs=1e-6)
    assert kl[-1] > 1e-6
    again = load_policy(tmp_path / "last.ckpt", task("maze_fo"), max_new_tokens=4)
    said = [e.actions for e in evaluate(again, "maze_fo", 4, env=ENV).episodes]
    assert said == [actions for actions, _ in played(module.eval())]


def test_scores_of_a_few_states_at_a_time_teach_the_guided_policy_the_same(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a large vocabulary, whose table of scores would not fit into memory."""

    def learned(root: Path) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        module = GuidedPPO(pretrained=str(runs / "ilql"), beta=2.0, lr=1e-3, entropy_weight=0.1)
        fit(module, rounds(epochs=2), root, steps=4)
        return module.state_dict()

    expected = learned(tmp_path / "table")
    monkeypatch.setattr(token_scores, "_MAX_TABLE_SCORES", 0)
    monkeypatch.setattr(token_scores, "_ROW_PIECE_SCORES", 1000)
    found = learned(tmp_path / "rows")
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-4, msg=name)


def test_values_of_another_kind_are_refused(runs: Path) -> None:
    with pytest.raises(
        UserError, match=r"ILQL goes on from values of its own kind; .*mc' has others \(q_heads, trunk\)"
    ):
        ILQL(pretrained=str(runs / "mc"))
    with pytest.raises(UserError, match=r"GuidedPPO goes on from values of its own kind; .*bc' has none"):
        GuidedPPO(pretrained=str(runs / "bc"))


def test_mc_goes_on_from_mc(runs: Path) -> None:
    module = MC(pretrained=str(runs / "mc"))
    ended = load_module(runs / "mc")
    for name, tensor in ended.state_dict().items():
        assert torch.equal(tensor, module.state_dict()[name]), name
