"""Runs with adapters save these alone, and read the model under them again from where it came."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from lmrl.callbacks import KeepLast, save_run
from lmrl.checkpoints import export
from lmrl.cli import main
from lmrl.datamodules import MazeDataModule
from lmrl.errors import UserError
from lmrl.models.tokenizer import add_task_tokens, load_tokenizer
from lmrl.modules import BC, GRPO, ILQL, PPO, GuidedPPO, LanguageModule, load_module
from lmrl.partners.lm import LMPartner
from lmrl.policies.vllm import _config
from lmrl.tokens.encoding import Window
from tests.helpers.online import fit, rounds, trainer

LORA = {"r": 2, "lora_alpha": 8}
IDS = torch.tensor([[5, 6, 7, 8, 9]])
#: Settings with which the policy learns in the first round.
ALONE: dict[type, dict[str, Any]] = {PPO: {"critic_warmup_rounds": 0}, GRPO: {"advantage": "rebn"}}

pytestmark = [
    pytest.mark.filterwarnings("ignore:round [0-9]+. "),
    pytest.mark.filterwarnings("ignore:Experiment logs directory"),
]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is large compared with its adapters."""
    torch.manual_seed(0)
    module = BC(architecture={"n_embd": 256, "n_layer": 2, "n_head": 2, "n_positions": 128})
    module.window = Window()
    folder = tmp_path_factory.mktemp("start") / "model"
    module.export(folder)
    return folder


def learn(
    kind: Callable[..., LanguageModule], root: Path, data: Path, steps: int = 2, resume: bool = False, **more: Any
) -> LanguageModule:
    """Train a run that saves `last` and `best`."""
    torch.manual_seed(steps if resume else 0)  # a resumed run must not depend on the seed
    settings = {"lora": LORA, "lr": 0.05, "lr_schedule": "constant", "warmup_steps": 0, **more}
    precision = settings.pop("precision", "32-true")
    module = kind(**settings)
    resumed = {"ckpt_path": root / "last.ckpt", "weights_only": True} if resume else {}
    if isinstance(module, PPO | GRPO):
        run = fit(module, rounds(batches=2), root, steps, [KeepLast()], **resumed)
    else:
        run = trainer(root, steps, [KeepLast()], precision=precision)
        run.fit(module, MazeDataModule("maze_fo", path=str(data), batch_size=30), **resumed)
    save_run(run, module, "best")
    return module


def logits(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.eval()(input_ids=IDS).logits
    return found


def size(folder: Path) -> int:
    """Return the bytes of all files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def saved(root: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(root / "last.ckpt", weights_only=True)
    return content


@pytest.mark.parametrize("kind", [BC, PPO, pytest.param(GRPO, marks=pytest.mark.nightly)])
def test_a_run_is_smaller_than_the_model_that_it_adapts(
    kind: type[LanguageModule], start: Path, data_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(export, "merged")  # no copy of the model is made
    module = learn(kind, tmp_path, data_path, pretrained=str(start), **ALONE.get(kind, {}))
    assert size(tmp_path) < 0.5 * size(start)
    content = saved(tmp_path)
    adapters = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert len(content["optimizer_states"][0]["state"]) == len(adapters)
    of_models = {name for name in content["state_dict"] if name.startswith(("model.", "ref_model."))}
    assert of_models == adapters and all("lora_" in name for name in adapters)
    played = logits(module.model)
    assert (played - logits(AutoModelForCausalLM.from_pretrained(start))).abs().max() > 1e-3
    assert torch.equal(logits(load_module(tmp_path / "best.ckpt").model), played)
    torch.testing.assert_close(logits(load_module(tmp_path / "best").model), played, atol=1e-5, rtol=1e-4)
    for name in ("best", "last"):
        assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / name)), played)


def test_values_are_saved_beside_a_policy_without_adapters(start: Path, data_path: Path, tmp_path: Path) -> None:
    ilql = learn(ILQL, tmp_path / "ilql", data_path, pretrained=str(start), q_rank=4)
    names = {name for name in saved(tmp_path / "ilql")["state_dict"] if "head" not in name}
    assert all("lora_" in name and name.startswith(("trunk.", "target_trunk.")) for name in names)
    plain = logits(AutoModelForCausalLM.from_pretrained(start))
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "ilql" / "last")), plain)
    guided = learn(GuidedPPO, tmp_path / "ppo", data_path, pretrained=str(tmp_path / "ilql"), q_rank=4)
    assert size(tmp_path / "ppo" / "last.ckpt") < 0.25 * size(start)
    for run, module in (("ilql", ilql), ("ppo", guided)):
        for name in ("last", "last.ckpt"):
            loaded = load_module(tmp_path / run / name)
            assert torch.equal(logits(loaded.model), plain)
            for key, tensor in module.value_state_dict().items():
                assert torch.equal(loaded.value_state_dict()[key], tensor), key


@pytest.mark.parametrize("kind", [BC, PPO, ILQL])
def test_a_run_begins_with_the_adapters_of_another(
    kind: type[LanguageModule], start: Path, data_path: Path, tmp_path: Path
) -> None:
    """The model is the base with both adapters; a folder holds them as one adapter of the base."""
    first = tmp_path / "first"
    learn(BC, first, data_path, pretrained=str(start))
    settings = {"lora": {"r": 3, "target_modules": ["c_attn"], "use_rslora": True}, **ALONE.get(kind, {})}
    if kind is ILQL:
        settings["q_rank"] = 4  # heads of full rank would be larger than the model
    second = learn(kind, tmp_path / "second", data_path, pretrained=str(first), **settings)
    assert size(tmp_path / "second") < 0.5 * size(start)
    assert torch.equal(logits(load_module(tmp_path / "second" / "last.ckpt").model), logits(second.model))
    held = json.loads((tmp_path / "second" / "last" / "adapter_config.json").read_text())
    assert held["base_model_name_or_path"] == str(start) and held["r"] == (2 if kind is ILQL else 5)
    shutil.rmtree(first)
    played = AutoModelForCausalLM.from_pretrained(tmp_path / "second" / "last")
    torch.testing.assert_close(logits(played), logits(second.model), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        logits(load_module(tmp_path / "second" / "last").model), logits(second.model), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("kind", [BC, PPO, pytest.param(GRPO, marks=pytest.mark.nightly)])
def test_a_run_is_resumed_bit_by_bit(kind: type[LanguageModule], start: Path, data_path: Path, tmp_path: Path) -> None:
    settings = {"pretrained": str(start), **ALONE.get(kind, {})}
    learn(kind, tmp_path / "whole", data_path, 4, **settings)
    learn(kind, tmp_path / "halves", data_path, 2, **settings)
    learn(kind, tmp_path / "halves", data_path, 4, resume=True, **settings)
    whole = saved(tmp_path / "whole")
    halves = saved(tmp_path / "halves")
    assert whole["global_step"] == halves["global_step"] == 4
    assert whole["state_dict"].keys() == halves["state_dict"].keys()
    assert all(torch.equal(tensor, halves["state_dict"][name]) for name, tensor in whole["state_dict"].items())
    states = [content["optimizer_states"][0]["state"].values() for content in (whole, halves)]
    for left, right in zip(*states, strict=True):
        assert all(torch.equal(left[key], right[key]) for key in left)


def test_half_precision_rounds_the_model_as_in_the_run(start: Path, data_path: Path, tmp_path: Path) -> None:
    module = learn(BC, tmp_path, data_path, pretrained=str(start), precision="bf16-true")
    loaded = dict(load_module(tmp_path / "last.ckpt").named_parameters())
    for name, parameter in module.named_parameters():
        assert torch.equal(loaded[name], parameter.float()), name


def test_a_model_that_has_changed_or_is_gone_is_refused(
    start: Path, data_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base"
    run = tmp_path / "run"
    shutil.copytree(start, base)
    learn(BC, run, data_path, pretrained=str(base))
    other = BC(architecture={"n_embd": 256, "n_layer": 2, "n_head": 2, "n_positions": 128})
    other.window = Window()

    def refused(message: str) -> None:
        for name in ("best.ckpt", "best"):
            assert main(["evaluate", "maze_fo", "--policy", str(run / name), "--out", str(tmp_path / "scores")]) == 2
            error = capsys.readouterr().err.strip()
            assert f"{run / name} holds adapters of the model '{base}', {message}" in error and "\n" not in error
        with pytest.raises(UserError, match=message):
            BC(pretrained=str(run))

    other.export(base)
    refused("whose files have changed")
    with pytest.raises(UserError, match=r"holds adapters of the model .*/base without its weights, and the files of"):
        learn(BC, run, data_path, 4, resume=True, pretrained=str(base))
    shutil.rmtree(base)
    refused("which is gone")
    base.symlink_to(start)
    assert isinstance(load_module(run), BC)
    # A copy of the model is enough to resume a run.
    learn(BC, run, data_path, 4, resume=True, pretrained=str(start))


def test_a_configuration_that_has_changed_is_refused(start: Path, data_path: Path, tmp_path: Path) -> None:
    shutil.copytree(start, tmp_path / "base")
    learn(BC, tmp_path / "run", data_path, pretrained=str(tmp_path / "base"))
    config = tmp_path / "base" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "layer_norm_epsilon": 0.1}))
    with pytest.raises(UserError, match="whose files have changed"):
        load_module(tmp_path / "run" / "last.ckpt")


def test_tokens_that_adapters_cannot_learn_are_refused(start: Path) -> None:
    with pytest.raises(UserError, match="lora freezes the embeddings, so the tokens that task_tokens adds to"):
        BC(pretrained=str(start), task_tokens="wordle", lora=LORA)
    BC(pretrained=str(start), task_tokens="maze_fo", lora=LORA)  # has none of its own


def test_embeddings_of_new_tokens_are_kept(start: Path, data_path: Path, tmp_path: Path) -> None:
    shutil.copytree(start, tmp_path / "base")
    own = load_tokenizer(str(start))
    add_task_tokens(own, "wordle")  # more tokens than the model has rows
    own.save_pretrained(tmp_path / "base")
    settings = {"pretrained": str(tmp_path / "base")}
    module = learn(BC, tmp_path, data_path, **settings)
    played = logits(module.model)
    assert played.shape[-1] > logits(AutoModelForCausalLM.from_pretrained(start)).shape[-1]
    embeddings = {name for name in saved(tmp_path)["state_dict"] if "lora_" not in name}
    assert embeddings == {"model.transformer.wte.weight", "model.lm_head.weight"}
    assert torch.equal(logits(load_module(tmp_path / "last.ckpt").model), played)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "last")
    torch.testing.assert_close(logits(whole), played, atol=1e-5, rtol=1e-4)
    with pytest.raises(UserError, match=r"embeddings for tokens that .* does not know: merge"):
        module.export(tmp_path / "adapters", merge=False)
    learn(BC, tmp_path, data_path, 4, resume=True, **settings)


def test_a_run_keeps_its_chat_template(start: Path, data_path: Path, tmp_path: Path) -> None:
    shutil.copytree(start, tmp_path / "base")
    own = load_tokenizer(str(start))
    own.add_tokens(["a token that the bundled tokenizers do not have"])
    own.save_pretrained(tmp_path / "base")
    own.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    own.save_pretrained(tmp_path / "tokenizer")
    learn(BC, tmp_path / "run", data_path, pretrained=str(tmp_path / "base"), tokenizer=str(tmp_path / "tokenizer"))
    for name in ("last.ckpt", "last"):
        assert load_module(tmp_path / "run" / name).tokenizer.chat_template == own.chat_template


@pytest.mark.parametrize("kind", [BC, GRPO])
def test_checkpoints_of_all_weights_are_still_read(
    kind: type[LanguageModule], start: Path, data_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions wrote such checkpoints."""
    settings = {"pretrained": str(start), **ALONE.get(kind, {})}
    learn(kind, tmp_path / "whole", data_path, 4, **settings)
    with monkeypatch.context() as patched:
        patched.setattr(LanguageModule, "weights_of_base", lambda module: set())
        module = learn(kind, tmp_path / "old", data_path, 2, **settings)
    names = saved(tmp_path / "old")["state_dict"].keys()
    assert names == module.state_dict().keys() and "base" not in saved(tmp_path / "old")["lmrl"]
    assert torch.equal(logits(load_module(tmp_path / "old" / "last.ckpt").model), logits(module.model))
    learn(kind, tmp_path / "old", data_path, 4, resume=True, **settings)
    expected = saved(tmp_path / "whole")["state_dict"]
    found = saved(tmp_path / "old")["state_dict"]
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_folders_of_adapters_are_used_as_others_are(start: Path, data_path: Path, tmp_path: Path) -> None:
    module = learn(BC, tmp_path / "run", data_path, pretrained=str(start))
    folder = tmp_path / "run" / "last"
    assert _config(str(folder))["vocab_size"] == module.model.config.vocab_size  # as for a vLLM server
    partner = LMPartner(str(folder))
    torch.testing.assert_close(logits(partner.model), logits(module.model), atol=1e-5, rtol=1e-4)
    card = (folder / "README.md").read_text()
    assert "library_name: peft" in card and f"base_model: {start}" in card and "GenerationConfig" in card
    # The card says that generate ends with the action.
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.generation_config = GenerationConfig.from_pretrained(folder)
    ends = {*GenerationConfig.from_pretrained(folder).eos_token_id}
    ids = model.generate(IDS)[0, IDS.shape[1] :].tolist()
    assert len(ids) == module.made_with["max_new_tokens"] or ids[-1] in ends


#: Saves, exports and loads a run with adapters on a model of the hub, then removes the model and exports once more.
HUB = """
import shutil, sys
import torch
from lmrl.cli import main
from lmrl.modules import BC, load_module
from lmrl.tokens.encoding import Window
module = BC(pretrained="somebody/model", lora={"r": 2})
module.window = Window()
saved = {"state_dict": module.state_dict(), "global_step": 1, "pytorch-lightning_version": "2.6.0"}
module.on_save_checkpoint(saved)
checkpoint, folder, cache, whole = sys.argv[1:]
torch.save(saved, checkpoint)
assert all("lora_" in name for name in saved["state_dict"])
assert saved["lmrl"]["base"]["name"] == "somebody/model"
module.export(folder, merge=False)
for path in (checkpoint, folder):
    weights = load_module(path).model.state_dict()
    assert torch.equal(weights["transformer.wte.weight"], module.model.state_dict()["transformer.wte.weight"])
shutil.rmtree(cache)
sys.exit(main(["export", checkpoint, "--to", whole]))
"""


@pytest.mark.slow
def test_a_model_of_the_hub_is_found_by_its_name(start: Path, tmp_path: Path) -> None:
    """The model is found in a cache that holds it, without a network."""
    cache = tmp_path / "hub" / "models--somebody--model"
    shutil.copytree(start, cache / "snapshots" / "abc")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    places = [tmp_path / "last.ckpt", tmp_path / "last", cache, tmp_path / "whole"]
    command = [sys.executable, "-c", HUB, *map(str, places)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2 and not cache.exists(), done.stderr[-2000:]
    error = done.stderr.splitlines()[-1]
    assert error.startswith("error: ") and "somebody/model" in error and "Traceback" not in done.stderr
