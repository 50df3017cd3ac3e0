"""A real vLLM server samples the rounds of PPO and GRPO, with the weights of each round. `make vllm` runs it."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from lmrl.callbacks import RolloutCollection, VLLMSampler
from lmrl.checkpoints.export import export_for_reload
from lmrl.errors import UserError
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import GRPO, PPO, LanguageModule
from lmrl.policies.chat.reloading import WeightReloader
from tests.helpers.online import fit, rounds
from tests.helpers.vllm import VLLMServer

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore:(round [0-9]+. |in no group)")]

TOKENIZER = load_tokenizer("lmrl")


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """Its embeddings are its vocabulary head, as of all our small models."""
    torch.manual_seed(0)
    ids: dict[str, Any] = {"bos_token_id": TOKENIZER.bos_token_id, "eos_token_id": TOKENIZER.eos_token_id}
    sizes: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 512, "initializer_range": 0.2}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(TOKENIZER), **sizes, **ids))


@pytest.fixture(scope="module")
def pretrained(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "gpt2"
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    folder = tmp_path_factory.mktemp("vllm")
    export_for_reload(folder / "sampler", model, TOKENIZER)
    with VLLMServer(folder / "sampler", folder / "server.log") as started:
        yield started.wait()


def train(module: LanguageModule, server: VLLMServer, root: Path, group_size: int = 1, **settings: Any) -> None:
    sampler = VLLMSampler(server.url, "tiny", wait=60.0, **settings)
    playing = RolloutCollection(episodes=8, slots=8, group_size=group_size)
    fit(module, rounds(batch_size=64), root, steps=3, playing=playing, callbacks=[sampler])


def column(root: Path, name: str) -> list[float]:
    with (root / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


@pytest.mark.parametrize(("kind", "group_size"), [(PPO, 1), (GRPO, 4)], ids=["ppo", "grpo"])
def test_rounds_are_sampled_with_the_weights_of_their_moment(
    kind: type[PPO] | type[GRPO], group_size: int, pretrained: Path, server: VLLMServer, tmp_path: Path
) -> None:
    # Groups of an untrained model may all earn the same; the entropy bonus moves the weights nevertheless.
    module = kind(pretrained=str(pretrained), lr=1e-2, warmup_steps=0, lr_schedule="constant", entropy_weight=1.0)
    before = {name: weight.clone() for name, weight in module.model.state_dict().items()}
    train(module, server, tmp_path, group_size, importance_cap=2.0)
    gaps, largest = column(tmp_path, "rollout/logprob_gap"), column(tmp_path, "rollout/logprob_gap_max")
    print(f"\n{module.name}: mean gaps of {len(gaps)} rounds {gaps}, largest {largest}")
    assert len(gaps) >= 2
    assert 0.0 < max(gaps) <= max(largest) < 1e-3
    assert any(not torch.equal(before[name], weight) for name, weight in module.model.state_dict().items())
    assert column(tmp_path, f"{module.name}/first_ratio") == pytest.approx([1.0] * len(gaps), abs=1e-4)
    assert column(tmp_path, "rollout/importance_mean") == pytest.approx([1.0] * len(gaps), abs=1e-3)


def test_a_server_that_keeps_old_weights_is_refused(
    pretrained: Path, server: VLLMServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reload, times = WeightReloader.reload, []

    def once(self: WeightReloader, folder: str) -> None:
        times.append(folder)
        if len(times) == 1:
            reload(self, folder)

    monkeypatch.setattr(WeightReloader, "reload", once)
    module = PPO(pretrained=str(pretrained), lr=1e-2, warmup_steps=0, lr_schedule="constant")
    with pytest.raises(UserError, match="not sampled with the weights that learn") as refused:
        train(module, server, tmp_path)
    print(f"\n{refused.value}")
    assert len(times) == 2
    (gap,) = column(tmp_path, "rollout/logprob_gap")
    assert gap < 1e-3, "that of the first round"
