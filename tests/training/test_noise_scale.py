"""The gradient noise scale from micro-batches, against the scale that was put in and a direct computation."""

from pathlib import Path

import pytest
import torch

from lmrl.callbacks import RolloutCollection
from lmrl.modules import GRPO
from lmrl.training.noise_scale import NoiseScale
from tests.helpers.online import fit, rounds

pytestmark = pytest.mark.filterwarnings("ignore:round [0-9]+. ")


def test_it_finds_the_scale_of_gradients_that_were_drawn() -> None:
    """Gradients of norm 1 with noise of trace 300 per segment."""
    chance = torch.Generator().manual_seed(0)
    signal = torch.zeros(300)
    signal[0] = 1.0
    scale = NoiseScale()
    for _ in range(400):
        segments = signal + torch.randn(64, 300, generator=chance)
        small, large = segments[:16].mean(0), segments.mean(0)
        scale.add(float(small.square().sum()), 16, float(large.square().sum()), 64)
    # The running mean covers some forty steps.
    assert scale.value == pytest.approx(300.0, rel=0.3)


@pytest.mark.filterwarnings("ignore:rounds of .* episodes are mostly noise")
def test_a_run_logs_it_where_steps_have_micro_batches(bc_run: str, tmp_path: Path) -> None:
    def run(parts: int) -> float | None:
        playing = RolloutCollection(episodes=16, slots=8)
        module = GRPO(pretrained=bc_run, advantage="rebn", lr=1e-3)
        settings = {"accumulate_grad_batches": parts}
        trainer = fit(module, rounds(), tmp_path / str(parts), steps=4, playing=playing, settings=settings)
        value = trainer.callback_metrics.get("train/noise_scale")
        return None if value is None else float(value)

    assert run(1) is None
    several = run(2)
    assert several is not None and several == several
