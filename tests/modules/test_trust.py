"""Reading a file that somebody made runs nothing that is in it, unless it was asked for."""

import os
from pathlib import Path

import pytest
import torch

from lmrl.cli import main
from lmrl.envs.registration import task
from lmrl.errors import UserError
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import BC, load_module, load_policy

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128}


class Payload:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str, int, bool]]:
        return os.makedirs, (str(self.folder), 0o777, True)


def checkpoint(path: Path, **more: object) -> Path:
    """What a run writes, and more."""
    module = BC(architecture=TINY)
    saved = {"state_dict": module.state_dict(), "global_step": 1, "pytorch-lightning_version": "2.6.0"}
    module.on_save_checkpoint(saved)
    torch.save({**saved, **more}, path)
    return path


def test_a_pickled_checkpoint_is_refused_unless_asked_for(tmp_path: Path) -> None:
    file = checkpoint(tmp_path / "pickled.ckpt", extra=Payload(tmp_path / "ran"))
    for load in (lambda: load_module(file), lambda: load_policy(file, task("maze_fo"))):
        with pytest.raises(UserError, match=r"holds pickled objects.*allow_pickle"):
            load()
    assert not (tmp_path / "ran").exists()
    assert isinstance(load_module(file, allow_pickle=True), BC)
    assert (tmp_path / "ran").exists()  # the payload does what it is there for


def test_commands_refuse_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = checkpoint(tmp_path / "pickled.ckpt", extra=Payload(tmp_path / "ran"))
    words = ["--config", "configs/maze_fo/bc.yaml", f"--model.init_args.architecture={TINY}"]
    out, root = tmp_path / "out", f"--trainer.default_root_dir={tmp_path / 'run'}"
    for command in (
        ["export", str(file), "--to", str(out)],
        ["evaluate", "maze_fo", "--policy", str(file), "--out", str(out)],
        ["fit", *words, root, f"--data.init_args.path={_data(tmp_path)}", f"--ckpt_path={file}"],
    ):
        assert main(command) == 2, command
        assert "holds pickled objects" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def _data(folder: Path) -> Path:
    assert main(["data", "generate", "maze_fo", "--size", "8", "--out", str(folder / "maze.parquet")]) == 0
    return folder / "maze.parquet"


def test_a_plain_checkpoint_needs_no_trust(tmp_path: Path) -> None:
    assert isinstance(load_module(checkpoint(tmp_path / "plain.ckpt")), BC)


@pytest.mark.parametrize("name", ["os.system", "collections.OrderedDict", "no_such_module.Thing", "nonsense"])
def test_only_modules_are_built_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    file = checkpoint(tmp_path / "other.ckpt")
    saved = torch.load(file, weights_only=True)
    saved["lmrl"]["class"] = name
    torch.save(saved, file)
    with pytest.raises(UserError, match=r"cannot be imported|no LightningModule with a policy"):
        load_module(file)


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A model folder as hubs have them, whose code writes a file when it is run."""
    folder = tmp_path / "remote"
    build_lm(None, TINY, len(load_tokenizer())).save_pretrained(folder)
    load_tokenizer().save_pretrained(folder)
    (folder / "mine.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
        "from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast\n"
        "class MyConfig(GPT2Config):\n    model_type = 'mine'\n"
        "class MyModel(GPT2LMHeadModel):\n    config_class = MyConfig\n"
    )
    config = (folder / "config.json").read_text()
    assert '"model_type": "gpt2"' in config
    auto = '"auto_map": {"AutoConfig": "mine.MyConfig", "AutoModelForCausalLM": "mine.MyModel"}, "model_type": "mine"'
    (folder / "config.json").write_text(config.replace('"model_type": "gpt2"', auto))
    return folder


def test_code_of_a_model_is_not_run_unless_trusted(
    remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match="trust_remote_code"):
        BC(pretrained=str(remote), tokenizer="lmrl")
    assert not (tmp_path / "ran").exists()
    module = BC(pretrained=str(remote), tokenizer="lmrl", trust_remote_code=True)
    assert type(module.model).__name__ == "MyModel"
    assert (tmp_path / "ran").exists()


def test_a_checkpoint_cannot_ask_for_trust(tmp_path: Path) -> None:
    file = checkpoint(tmp_path / "plain.ckpt")
    saved = torch.load(file, weights_only=True)
    saved["hyper_parameters"]["trust_remote_code"] = True
    torch.save(saved, file)
    assert load_module(file).hparams["trust_remote_code"] is False
