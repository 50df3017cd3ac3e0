"""A real vLLM server samples the rounds of PPO and GRPO, with the weights of each round. `make vllm` runs it."""

import csv
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from lmrl.callbacks import RolloutCollection, VLLMSampler
from lmrl.checkpoints.export import export_for_reload
from lmrl.errors import UserError
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import GRPO, PPO, LanguageModule
from lmrl.policies import VLLMPolicy
from lmrl.policies.chat.reloading import WeightReloader
from tests.helpers.online import fit, rounds
from tests.helpers.vllm import VLLMServer

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore:(round [0-9]+. |all advantages)")]

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
    gaps = column(tmp_path, "rollout/logprob_gap")
    largest = column(tmp_path, "rollout/logprob_gap_max")
    print(f"\n{module.name}: mean gaps of {len(gaps)} rounds {gaps}, largest {largest}")
    assert len(gaps) >= 2
    assert 0.0 < max(gaps) <= max(largest) < 1e-3
    assert any(not torch.equal(before[name], weight) for name, weight in module.model.state_dict().items())
    assert column(tmp_path, f"{module.name}/first_ratio") == pytest.approx([1.0] * len(gaps), abs=1e-4)
    assert column(tmp_path, "rollout/importance_mean") == pytest.approx([1.0] * len(gaps), abs=1e-3)


def test_a_server_that_keeps_old_weights_is_refused(
    pretrained: Path, server: VLLMServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reload = WeightReloader.reload
    times = []

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


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vLLM has no adapters for GPT-2."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "llama"
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512}
    ids: dict[str, Any] = {"bos_token_id": TOKENIZER.bos_token_id, "eos_token_id": TOKENIZER.eos_token_id}
    config = LlamaConfig(vocab_size=len(TOKENIZER), **sizes, **heads, **ids, initializer_range=0.2)
    LlamaForCausalLM(config).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server_of_adapters(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with VLLMServer(llama, log, "--enable-lora", "--max-lora-rank", "8") as started:
        yield started.wait()


def learner(llama: Path) -> PPO:
    fast: dict[str, Any] = {"lr": 1e-2, "warmup_steps": 0, "lr_schedule": "constant", "entropy_weight": 1.0}
    return PPO(pretrained=str(llama), lora={"r": 8}, critic_warmup_rounds=0, **fast)


def test_of_adapters_only_their_weights_are_handed_over(
    llama: Path, server_of_adapters: VLLMServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    load = WeightReloader.load_adapters

    def noting(self: WeightReloader, name: str, folder: str) -> None:
        sizes.append(sum(file.stat().st_size for file in Path(folder).iterdir()))
        load(self, name, folder)

    monkeypatch.setattr(WeightReloader, "load_adapters", noting)
    module = learner(llama)
    in_bfloat16 = 2 * sum(parameter.numel() for parameter in module.model.parameters() if parameter.requires_grad)
    train(module, server_of_adapters, tmp_path)
    gaps = column(tmp_path, "rollout/logprob_gap")
    print(f"\n{len(sizes)} hand-overs of {sizes} bytes, adapters {in_bfloat16} in bfloat16; mean gaps {gaps}")
    assert len(sizes) >= 3 and len(gaps) == len(sizes)
    assert max(gaps) < 1e-3
    assert max(sizes) < 1.1 * in_bfloat16 + 20_000, "names and settings take the rest"


def test_a_server_that_plays_old_adapters_is_refused(
    llama: Path, server_of_adapters: VLLMServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = WeightReloader.load_adapters
    first: list[str] = []

    def always_the_first(self: WeightReloader, name: str, folder: str) -> None:
        if not first:
            first.append(f"{tmp_path}/first")
            copytree(folder, first[0])
        load(self, name, first[0])

    monkeypatch.setattr(WeightReloader, "load_adapters", always_the_first)
    with pytest.raises(UserError, match="not sampled with the weights that learn"):
        train(learner(llama), server_of_adapters, tmp_path, max_gap=1e-2)


def test_a_server_that_dies_in_a_round_gets_the_adapters_again(llama: Path, tmp_path: Path) -> None:
    with VLLMServer(llama, tmp_path / "server.log", "--enable-lora", "--max-lora-rank", "8") as server:
        server.wait()
        act = VLLMPolicy.act
        asked: list[int] = []

        def mortal(self: VLLMPolicy, requests: Any) -> Any:
            asked.append(len(requests))
            if len(asked) == 3:
                server.kill()
                server.start()
                server.wait()
            return act(self, requests)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(VLLMPolicy, "act", mortal)
            train(learner(llama), server, tmp_path / "run")
    assert max(column(tmp_path / "run", "rollout/logprob_gap")) < 1e-3
    assert max(column(tmp_path / "run", "rollout/failed")) == 0.0
