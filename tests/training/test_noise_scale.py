"""The gradient noise scale, against the scale that was put in and a direct computation."""

from pathlib import Path

import pytest
import torch

from lmrl.callbacks import RolloutCollection
from lmrl.modules import GRPO
from lmrl.training import noise_scale
from lmrl.training.noise_scale import NoiseScale, sketch
from tests.helpers.online import fit, rounds

pytestmark = pytest.mark.filterwarnings("ignore:round [0-9]+. ")


def test_it_finds_the_scale_of_gradients_that_were_drawn() -> None:
    """Gradients of norm 1 with noise of trace 300 per segment, in steps of 64 segments."""
    chance = torch.Generator().manual_seed(0)
    signal = torch.zeros(300)
    signal[0] = 1.0
    scale = NoiseScale()
    for _ in range(400):
        gradient = signal + torch.randn(64, 300, generator=chance).mean(0)
        scale.add(sketch([gradient]), gradient.double().square().sum(), 64)
    # The running means cover some forty steps.
    assert scale.value.item() == pytest.approx(300.0, rel=0.15)


def test_without_a_signal_it_is_far_above_every_batch() -> None:
    chance = torch.Generator().manual_seed(1)
    scale = NoiseScale()
    assert scale.value.isnan()
    for _ in range(200):
        gradient = torch.randn(64, 300, generator=chance).mean(0)
        scale.add(sketch([gradient]), gradient.double().square().sum(), 64)
    assert scale.value.item() > 64 * 100


@pytest.mark.parametrize("chunk", [2**24, 5_000])
def test_products_of_sketches_are_those_of_the_gradients(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """This also holds over several chunks, and where the signs start again."""
    monkeypatch.setattr(noise_scale, "_CHUNK", chunk)
    monkeypatch.setattr(noise_scale, "_SIGNS", 2**14 + 7)
    monkeypatch.setattr(noise_scale, "_longest_signs", {})
    chance = torch.Generator().manual_seed(2)
    sizes = (10, 4_000, 40_000, 6_000)
    one = [torch.randn(size, generator=chance) + 1.0 for size in sizes]
    other = [torch.randn(size, generator=chance) + 1.0 for size in sizes]
    whole = torch.cat(one)
    second = torch.cat(other)
    exact = float(whole @ second)
    spread = float(whole.norm() * second.norm()) / 128.0
    assert abs(float(sketch(one) @ sketch(other)) - exact) < 4.0 * spread
    assert float(sketch(one) @ sketch(one)) == pytest.approx(float(whole @ whole), rel=4.0 / 128.0)


def test_the_sketch_of_a_whole_is_the_sum_of_those_of_its_shards() -> None:
    chance = torch.Generator().manual_seed(3)
    one = [torch.randn(2, 30_000, generator=chance) + 0.3 for _ in range(2)]
    other = [torch.randn(2, 30_000, generator=chance) + 0.3 for _ in range(2)]
    exact = sum(float(torch.sum(a * b)) for a, b in zip(one, other, strict=True))

    def of_shards(gradients: list[torch.Tensor]) -> torch.Tensor:
        parts = [sketch([gradient[rank] for gradient in gradients], part=rank) for rank in range(2)]
        return parts[0] + parts[1]

    spread = float(torch.cat(one).norm() * torch.cat(other).norm()) / 128.0
    assert abs(float(of_shards(one) @ of_shards(other)) - exact) < 4.0 * spread


def test_a_resumed_run_may_compute_elsewhere() -> None:
    """Checkpoints are read onto the CPU."""
    scale = NoiseScale()
    for _ in range(3):
        scale.add(torch.ones(2**14), torch.tensor(3.0, dtype=torch.float64), 8)
    resumed = NoiseScale()
    resumed.load_state_dict(scale.state_dict())
    elsewhere = torch.device("meta")
    resumed.add(torch.ones(2**14, device=elsewhere), torch.ones((), dtype=torch.float64, device=elsewhere), 8)
    assert resumed.value.device == elsewhere


def test_a_step_has_the_segments_of_its_minibatches(bc_run: str, tmp_path: Path) -> None:
    """A round of few segments is cut into minibatches that are smaller than asked for."""
    sizes = []

    class Noting(NoiseScale):
        def add(self, gradient: torch.Tensor, squared_norm: torch.Tensor, segments: float) -> None:
            sizes.append(segments)

    data = rounds(batch_size=20, consecutive=1)
    playing = RolloutCollection(episodes=6, slots=4)
    fit(GRPO(pretrained=bc_run, advantage="rebn"), data, tmp_path, steps=2, playing=playing, callbacks=[Noting()])
    assert sizes[0] < 20
    assert sizes[-1] == len(data.played) / data._planned().per_pass


def test_recorded_episodes_that_are_learned_from_too_are_not_in_the_estimate(
    bc_run: str, data_path: Path, tmp_path: Path
) -> None:
    module = GRPO(pretrained=bc_run, advantage="rebn", bc_weight=1.0)
    data = rounds(path=str(data_path), offline=True, batch_size=32)
    assert "train/noise_scale" not in fit(module, data, tmp_path, steps=3).callback_metrics


@pytest.mark.filterwarnings("ignore:rounds of .* episodes are mostly noise")
def test_a_run_logs_it_and_leaves_repetitions_out(bc_run: str, tmp_path: Path) -> None:
    """Rounds of 16 episodes are learned from twice, in minibatches of 8, so two of the four steps of a round count."""

    def run(parts: int, steps: int) -> NoiseScale:
        module = GRPO(pretrained=bc_run, advantage="rebn", lr=1e-3)
        playing = RolloutCollection(episodes=16, slots=8)
        data = rounds(epochs=2, consecutive=4)
        settings = {"accumulate_grad_batches": parts}
        trainer = fit(module, data, tmp_path / f"{parts}", steps=steps, playing=playing, settings=settings)
        value = float(trainer.callback_metrics["train/noise_scale"])
        assert value == value
        (callback,) = (one for one in trainer.callbacks if isinstance(one, NoiseScale))  # type: ignore[attr-defined]
        # The first step has none before it. The last round may be learned from in part.
        per_pass = data._planned().per_pass / parts
        assert data.round > 1
        assert abs(callback.steps + 1 - steps / 2) <= per_pass
        return callback

    one = run(1, steps=40)
    assert one.state_dict()["steps"] == one.steps
    again = NoiseScale()
    again.load_state_dict(one.state_dict())
    assert again.value.item() == one.value.item()
    run(2, steps=20)
