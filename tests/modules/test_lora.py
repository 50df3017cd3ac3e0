"""Adapters: one frozen model under all of an algorithm's copies, from training to export."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from lmrl.callbacks import KeepLast, RolloutCollection
from lmrl.cli import main
from lmrl.datamodules import MazeDataModule
from lmrl.envs.registry import task
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.evaluation.loading import load_policy
from lmrl.models import lora
from lmrl.models.lm import build_lm
from lmrl.models.lora import add_lora, has_lora, merged
from lmrl.modules import (
    BC,
    GRPO,
    ILQL,
    MC,
    PPO,
    GiGPO,
    GuidedPPO,
    LanguageModule,
    OnlineFilteredBC,
    load_module,
)
from lmrl.policies import ValueGuidedLogitsProcessor
from lmrl.tokens.encoding import Window
from tests.helpers.online import fit, rounds, trainer

LORA = {"r": 2, "lora_alpha": 8}
LLAMA = {
    "model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 32, "max_position_embeddings": 128,
}  # fmt: skip
IDS = torch.tensor([[5, 6, 7, 8, 9]])

pytestmark = [
    pytest.mark.filterwarnings("ignore:round [0-9]+. "),
    pytest.mark.filterwarnings("ignore:Experiment logs directory"),
]


def train(module: LanguageModule, data_path: Path, root: Path, steps: int = 3, **more: Any) -> LanguageModule:
    """Train for a few steps on recorded mazes."""
    data = MazeDataModule("maze_fo", path=str(data_path), batch_size=32)
    trainer(root, steps, [KeepLast()]).fit(module, data, **more)
    return module


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, bc_run: str, data_path: Path) -> Path:
    """A run of BC with adapters that starts from the BC run."""
    root = tmp_path_factory.mktemp("tuned") / "bc"
    torch.manual_seed(1)
    train(BC(pretrained=bc_run, lora=LORA, lr=0.05), data_path, root)
    return root


@pytest.fixture(scope="module")
def valued(tmp_path_factory: pytest.TempPathFactory, bc_run: str, data_path: Path) -> Path:
    root = tmp_path_factory.mktemp("valued") / "ilql"
    torch.manual_seed(1)
    train(ILQL(pretrained=bc_run, lora=LORA, lr=0.05, polyak=0.5), data_path, root)
    return root


def memory(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all distinct blocks of memory that hold the tensors."""
    blocks = [tensor.untyped_storage() for tensor in tensors]
    return sum({block.data_ptr(): block.nbytes() for block in blocks}.values())


def logits(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.eval()(input_ids=IDS).logits
    return found


@pytest.mark.parametrize("kind", [BC, MC, ILQL, PPO, GuidedPPO])
def test_the_model_is_held_once(kind: type[LanguageModule], bc_run: str, valued: Path) -> None:
    """The parameters need the memory of one base, and of what learns with its target networks and frozen copies."""
    module = kind(pretrained=str(valued) if kind is GuidedPPO else bc_run, lora=LORA)
    base = memory(build_lm(bc_run + "/last", {}, 1).parameters())
    own = ("lora_", "_head", "ref_model.1", "critic.")
    others = {id(p): p.nbytes for n, p in module.named_parameters() if any(part in n for part in own)}
    assert memory(module.parameters()) == base + sum(others.values())
    whole = kind(pretrained=bc_run) if kind is not GuidedPPO else None
    if kind in (ILQL, PPO) and whole is not None:  # without adapters, the copies are real ones
        assert memory(whole.parameters()) > (1.9 if kind is PPO else 2.5) * base


@pytest.mark.parametrize("kind", [PPO, GuidedPPO, GRPO, GiGPO])
def test_algorithms_that_compare_with_their_rounds_refuse_dropout(
    kind: type[LanguageModule], bc_run: str, valued: Path
) -> None:
    start = str(valued) if kind is GuidedPPO else bc_run
    with pytest.raises(UserError, match=f"{kind.__name__} needs lora.lora_dropout 0, got 0.3: rounds are played"):
        kind(pretrained=start, lora={**LORA, "lora_dropout": 0.3})
    kind(pretrained=start, lora={**LORA, "lora_dropout": 0.0})


@pytest.mark.parametrize("kind", [BC, MC, ILQL])
def test_adapters_and_heads_are_all_that_learns(
    kind: type[LanguageModule], bc_run: str, data_path: Path, tmp_path: Path
) -> None:
    module = kind(pretrained=bc_run, lora=LORA, lr=0.05)
    before = {name: p.detach().clone() for name, p in module.named_parameters(remove_duplicate=False)}
    train(module, data_path, tmp_path)
    moved = {n for n, p in module.named_parameters(remove_duplicate=False) if not torch.equal(p, before[n])}
    learned = {n for n in before if "lora_" in n or n.startswith(("q_heads", "v_head", "target_q_heads"))}
    assert moved == learned
    assert all(has_lora(part) for part in ([module.trunk, module.target_trunk] if isinstance(module, ILQL) else []))


@pytest.mark.parametrize("architecture", [{"n_embd": 16, "n_layer": 2}, LLAMA], ids=["gpt2", "llama"])
def test_merging_keeps_the_logits_and_the_original(architecture: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = build_lm(None, architecture, 50)
    plain = logits(model)
    add_lora(model, LORA)
    torch.testing.assert_close(logits(model), plain)  # adapters begin as no change
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    changed = logits(model)
    assert (changed - plain).abs().max() > 0.01
    whole = merged(model)
    assert not has_lora(whole) and has_lora(model)
    torch.testing.assert_close(logits(whole), changed, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(logits(model), changed, atol=0, rtol=0)


GPT2_LAYERS = {"head": "lm_head", "embedding": "wte", "layer": "c_attn"}
LLAMA_LAYERS = {"head": "lm_head", "embedding": "embed_tokens", "layer": "q_proj"}
PLACES = [("head",), ("embedding",), ("layer",), ("head", "embedding", "layer")]


@pytest.mark.parametrize("places", PLACES, ids="+".join)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    ("architecture", "layers"),
    [({"n_embd": 16, "n_layer": 2}, GPT2_LAYERS), (LLAMA, LLAMA_LAYERS)],
    ids=["gpt2", "llama"],
)
def test_adapters_anywhere_export_what_they_play_or_are_refused(
    architecture: dict[str, Any], layers: dict[str, str], tied: bool, places: tuple[str, ...], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    base = BC(architecture={**architecture, "tie_word_embeddings": tied})
    base.window = Window()
    base.export(tmp_path / "base")
    settings = {**LORA, "target_modules": [layers[place] for place in places]}
    if tied and places != ("layer",):
        with pytest.raises(UserError, match=r"target_modules must leave out (lm_head|wte|embed_tokens): .* share one"):
            BC(pretrained=str(tmp_path / "base"), lora=settings)
        return
    module = BC(pretrained=str(tmp_path / "base"), lora=settings)
    module.window = Window()
    module.made_with = {"starts_from": str(tmp_path / "base")}
    for name, parameter in module.model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.3)
    played = logits(module.model)
    assert (played - logits(base.model)).abs().max() > 0.01
    module.export(tmp_path / "adapter", merge=False)
    module.export(tmp_path / "whole")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to")
        adapted = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")
    torch.testing.assert_close(logits(adapted), played, atol=1e-4, rtol=0)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    torch.testing.assert_close(logits(whole), played, atol=1e-4, rtol=0)


def test_a_run_exports_adapters_for_peft_and_a_whole_model(tuned: Path, bc_run: str, tmp_path: Path) -> None:
    ours = logits(load_module(tuned).model)
    assert (ours - logits(AutoModelForCausalLM.from_pretrained(f"{bc_run}/last"))).abs().max() > 0.01
    for _ in range(2):  # an export may be replaced
        assert main(["export", str(tuned), "--to", str(tmp_path / "adapter"), "--adapters"]) == 0
    assert main(["export", str(tuned), "--to", str(tmp_path / "whole")]) == 0
    for folder in (tmp_path / "adapter", tuned / "last"):
        assert not list(folder.glob("model*.safetensors"))
        adapter = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(f"{bc_run}/last"), folder)
        assert torch.equal(logits(adapter), ours)
        found_by_itself = AutoModelForCausalLM.from_pretrained(folder)
        assert torch.equal(logits(found_by_itself), ours)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert not has_lora(whole)
    torch.testing.assert_close(logits(whole), ours, atol=1e-5, rtol=1e-4)
    start = BC(pretrained=str(tmp_path / "adapter"))
    torch.testing.assert_close(logits(start.model), ours, atol=1e-5, rtol=1e-4)
    assert all(p.requires_grad for p in start.parameters()) and not has_lora(start)


def test_values_on_adapters_play_and_go_on(valued: Path, tmp_path: Path) -> None:
    """An export of values holds adapters and heads, but no second model."""
    ilql = load_module(valued)
    assert main(["export", str(valued), "--to", str(tmp_path / "ilql")]) == 0
    for folder in (tmp_path / "ilql", valued / "last"):
        processor = ValueGuidedLogitsProcessor.from_pretrained(folder)
        with torch.no_grad():
            expected = ilql.trunk(input_ids=IDS).last_hidden_state[:, -1]  # type: ignore[operator, union-attr]
            torch.testing.assert_close(processor._hidden(IDS), expected, atol=1e-5, rtol=1e-4)
    online = ILQL(pretrained=str(valued), lora=LORA)
    for name, tensor in online.value_state_dict().items():
        assert torch.equal(tensor, ilql.value_state_dict()[name]), name
    with pytest.raises(UserError, match="values of its own kind, with the same lora"):
        ILQL(pretrained=str(valued), lora={"r": 4})
    with pytest.raises(UserError, match="values of its own kind"):
        ILQL(pretrained=str(valued))


@pytest.mark.parametrize("kind", [ILQL, pytest.param(OnlineFilteredBC, marks=pytest.mark.nightly)])
def test_a_run_with_adapters_goes_on_bit_by_bit(
    kind: type[LanguageModule], bc_run: str, data_path: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"pretrained": bc_run, "lora": LORA, "lr": 0.05, "lr_schedule": "constant"}
    settings |= {"polyak": 0.5} if kind is ILQL else {"top_fraction": 0.5}
    found = []
    for name, stops in (("whole", [4]), ("halves", [2, 4])):
        root = tmp_path / name
        more = dict[str, Any]()
        for stop in stops:
            torch.manual_seed(stop if more else 0)
            data = rounds(keep_replay=True, offline=True, path=str(data_path), batches=3)
            fit(kind(**settings), data, root, stop, [KeepLast()], **more)
            more = {"ckpt_path": root / "last.ckpt", "weights_only": True}
        found.append(torch.load(root / "last.ckpt", weights_only=True))
    whole, halves = found
    assert whole["global_step"] == halves["global_step"] == 4
    assert whole["state_dict"].keys() == halves["state_dict"].keys()
    assert all(torch.equal(tensor, halves["state_dict"][name]) for name, tensor in whole["state_dict"].items())


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("tuned", marks=pytest.mark.nightly), "valued"])
def test_a_checkpoint_with_adapters_plays(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    run = request.getfixturevalue(name)
    settings = {"max_new_tokens": 4}
    mine = evaluate(load_module(run).policy(**settings), "maze_fo", 2).episodes
    assert main(["evaluate", "maze_fo", "--policy", str(run), "--episodes", "2", "--out", str(tmp_path)]) == 0
    again = evaluate(load_policy(run, task("maze_fo"), **settings), "maze_fo", 2).episodes
    assert [e.actions for e in mine] == [e.actions for e in again]


@pytest.mark.parametrize("kind", [PPO, GuidedPPO])
def test_rounds_are_learned_from_by_adapters(kind: type[PPO], bc_run: str, valued: Path, tmp_path: Path) -> None:
    """The frozen start policy keeps the adapters that it began with."""
    torch.manual_seed(0)
    module = kind(pretrained=str(valued) if kind is GuidedPPO else bc_run, lora=LORA, lr=0.05)
    before = {name: p.detach().clone() for name, p in module.named_parameters(remove_duplicate=False)}
    fit(module, rounds(epochs=2), tmp_path, 4, playing=RolloutCollection(episodes=4, slots=4))
    after = dict(module.named_parameters(remove_duplicate=False))
    moved = {name for name, parameter in after.items() if not torch.equal(parameter, before[name])}
    part = "trunk." if kind is GuidedPPO else "model."
    assert {name for name in moved if "lora_" in name} == {n for n in after if n.startswith(part) and "lora_" in n}
    assert not [name for name in moved if "lora_" not in name and not name.startswith(("critic.", "q_heads"))]


def test_errors_name_the_rule(bc_run: str, data_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"lora has the settings r, .*got rank"):
        BC(pretrained=bc_run, lora={"rank": 3})
    with pytest.raises(UserError, match=r"lora.r must be at least 1"):
        BC(pretrained=bc_run, lora={"r": 0})
    for odd in ({"r": 1.5}, {"use_rslora": "yes"}, {"target_modules": ".*attn.*"}, {"target_modules": ["(a+)+$"]}):
        (name,) = odd
        with pytest.raises(UserError, match=rf"lora\.{name} cannot be "):
            BC(pretrained=bc_run, lora=odd)
    scratch = train(BC(architecture={"n_embd": 16}, lora=LORA), data_path, tmp_path, steps=1)
    with pytest.raises(UserError, match="began from scratch: merge them"):
        scratch.export(tmp_path / "adapter", merge=False)

    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(lora, "import_module", missing)
    with pytest.raises(UserError, match=r"lora needs the package peft .*pip install 'lmrl\[lora\]'"):
        BC(pretrained=bc_run, lora=LORA)
