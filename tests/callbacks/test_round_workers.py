"""Rounds that processes of a Ray cluster play are those of one process, bit by bit, and so is what is learned."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lmrl.callbacks import RolloutCollection
from lmrl.errors import UserError
from lmrl.modules import ILQL
from lmrl.types import Episode
from tests.helpers.mortal import MortalPPO
from tests.helpers.online import fit, rounds

pytest.importorskip("ray", reason="clusters need Ray: pip install 'lmrl[ray]'")
pytestmark = pytest.mark.filterwarnings("ignore:round [0-9]+. .*(differ|actions|entropy|pieces)")


class Noting(RolloutCollection):
    """A collection that records its rounds, whichever process plays them."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(episodes=7, slots=2, **arguments)
        self.rounds: list[list[Episode]] = []

    def collect(self, number: int) -> list[Episode]:
        self.rounds.append(super().collect(number))
        return self.rounds[-1]


def learned(kind: Any, root: Path, playing: Noting, **data: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    module = kind()
    fit(module, rounds(epochs=1, **data), root, 6, playing=playing)
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def assert_same(ours: tuple[Noting, dict[str, Any]], theirs: tuple[Noting, dict[str, Any]]) -> None:
    assert len(ours[0].rounds) > 1 and ours[0].rounds == theirs[0].rounds
    assert any(episode.action_logprobs for episode in ours[0].rounds[0])
    assert ours[1].keys() == theirs[1].keys()
    for name, tensor in ours[1].items():
        assert torch.equal(tensor, theirs[1][name]), name


@pytest.mark.nightly
def test_rounds_and_weights_are_those_of_one_process_though_a_worker_dies_in_the_middle_of_one(
    ray_cluster: str, bc_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMRL_DATA", str(tmp_path))
    kind = partial(MortalPPO, pretrained=bc_run, lr=1e-2)
    one = Noting(piece=2)
    two = Noting(ray=ray_cluster, workers=2)
    alone = learned(kind, tmp_path / "one", one)
    (tmp_path / "die-1").touch()
    assert_same((one, alone), (two, learned(kind, tmp_path / "two", two)))
    assert not (tmp_path / "die-1").exists()


@pytest.mark.nightly
def test_values_that_guide_play_as_in_one_process(
    ray_cluster: str, bc_run: str, data_path: Path, tmp_path: Path
) -> None:
    kind = partial(ILQL, pretrained=bc_run, polyak=0.5)
    data: dict[str, Any] = {"path": str(data_path), "offline": True, "keep_replay": True, "batches": 2}
    one = Noting(piece=2)
    four = Noting(ray=ray_cluster, workers=4)
    alone = learned(kind, tmp_path / "one", one, **data)
    assert_same((one, alone), (four, learned(kind, tmp_path / "four", four, **data)))


def test_wrong_arguments() -> None:
    with pytest.raises(UserError, match="piece must be at least 1, got 0"):
        RolloutCollection(piece=0)
