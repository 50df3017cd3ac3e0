"""Reading a file that somebody made runs nothing that is in it, unless it was asked for."""

import os
import re
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from lmrl.checkpoints.reading import check_checkpoint
from lmrl.cli import main
from lmrl.contrib.symbolic import SymbolicDQN
from lmrl.envs.registry import task
from lmrl.errors import UserError
from lmrl.evaluation.loading import PolicySpec, load_policy
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import BC, load_module
from tests.helpers.cases import cases

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128}


class Payload:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str, int, bool]]:
        return os.makedirs, (str(self.folder), 0o777, True)


def checkpoint(path: Path, **more: object) -> Path:
    """Write a checkpoint as a run does, with more entries."""
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
    assert (tmp_path / "ran").exists()  # the payload works


def test_commands_refuse_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = checkpoint(tmp_path / "pickled.ckpt", extra=Payload(tmp_path / "ran"))
    words = ["--config", "configs/maze_fo/bc.yaml", f"--model.init_args.architecture={TINY}"]
    out = tmp_path / "out"
    root = f"--trainer.default_root_dir={tmp_path / 'run'}"
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


def changed(file: Path, **entries: dict[str, object]) -> Path:
    """Put other values into the entries of a checkpoint."""
    saved = torch.load(file, weights_only=True)
    for name, values in entries.items():
        saved[name] = {**saved[name], **values}
    torch.save(saved, file)
    return file


@cases("name", ["os.system", "collections.OrderedDict", "no_such_module.Thing", "nonsense", "", 3])
def test_only_modules_are_built_from_a_checkpoint(name: object, tmp_path: Path) -> None:
    file = changed(checkpoint(tmp_path / "other.ckpt"), lmrl={"class": name})
    for load in (load_module, lambda file: load_policy(file, task("maze_fo"))):
        with pytest.raises(
            UserError, match=r"which is none of lmrl|no LightningModule with a policy|must be a text"
        ) as error:
            load(file)
        assert str(file) in str(error.value)


def test_a_checkpoint_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_somebody.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom lmrl.modules import BC\nclass Mine(BC):\n    name = 'mine'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    file = changed(checkpoint(tmp_path / "other.ckpt"), lmrl={"class": "of_somebody.Mine"})
    with pytest.raises(UserError, match=r"of_somebody\.Mine.*if you trust that class, import its module"):
        load_module(file)
    assert not (tmp_path / "ran").exists() and "of_somebody" not in sys.modules
    monkeypatch.setenv("LMRL_MODULES", "no_such_module")
    with pytest.raises(UserError, match="LMRL_MODULES lists 'no_such_module', which cannot be imported"):
        load_module(file)
    monkeypatch.setenv("LMRL_MODULES", "of_somebody")  # the user named it
    assert type(load_module(file)).__name__ == "Mine"
    monkeypatch.delitem(sys.modules, "of_somebody")


def test_a_checkpoint_chooses_neither_maker_nor_path(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    makers = {"_instantiator": "os.makedirs", "_class_path": "subprocess.Popen"}
    assert isinstance(load_module(changed(checkpoint(tmp_path / "a.ckpt"), hyper_parameters=makers)), BC)
    folder = tmp_path / "model"
    build_lm(None, TINY, len(load_tokenizer())).save_pretrained(folder)
    load_tokenizer().save_pretrained(folder)
    for hyper_parameters, message in (
        ({"pretrained": str(folder)}, "names a model to start from"),
        ({"pretrained": "somebody/model"}, "names a model to start from"),
        ({"tokenizer": str(folder)}, r"was trained with the tokenizer '.*model', which a checkpoint alone cannot load"),
        ({"tokenizer": "gpt2"}, "keep the folder b next to it"),
    ):
        with pytest.raises(UserError, match=message):
            load_module(changed(checkpoint(tmp_path / "b.ckpt"), hyper_parameters=hyper_parameters))
    # The folder that a run keeps next to its checkpoint is part of what the user named.
    load_tokenizer().save_pretrained(tmp_path / "b")
    assert isinstance(load_module(tmp_path / "b.ckpt"), BC)
    assert not ran.exists()


def test_a_checkpoint_chooses_no_code_for_its_model(tmp_path: Path) -> None:
    file = checkpoint(tmp_path / "a.ckpt")
    shape = torch.load(file, weights_only=True)["hyper_parameters"]["architecture"]
    code = {
        "attn_implementation": "somebody/kernel",
        "_attn_implementation": "somebody/kernel",
        "auto_map": {"x": "y.Z"},
    }
    made = load_module(changed(file, hyper_parameters={"architecture": {**shape, **code}}))
    assert not {*code} & {*made.hparams["architecture"]}
    assert made.model.config._attn_implementation != "somebody/kernel"


def test_a_checkpoint_of_the_grid_names_no_layout_file(tmp_path: Path) -> None:
    (tmp_path / "maze.txt").write_text("#####\n# G##\n#####\n")
    module = SymbolicDQN(layout="umaze", hidden=4)
    saved = {"state_dict": module.state_dict(), "hyper_parameters": {"layout": "umaze", "hidden": 4}}
    module.on_save_checkpoint(saved)
    torch.save(saved, tmp_path / "last.ckpt")
    assert load_policy(tmp_path, task("maze_fo")) is not None
    torch.save({**saved, "hyper_parameters": {"layout": str(tmp_path / "maze.txt")}}, tmp_path / "last.ckpt")
    with pytest.raises(UserError, match=r"names the layout '.*maze\.txt'; a checkpoint may name double_t_maze, umaze"):
        load_policy(tmp_path, task("maze_fo"))


def test_damage_that_torch_overlooks_shows(tmp_path: Path) -> None:
    file = checkpoint(tmp_path / "a.ckpt")
    with zipfile.ZipFile(file) as archive:
        part = max(archive.infolist(), key=lambda info: info.file_size)
    data = bytearray(file.read_bytes())
    data[part.header_offset + part.file_size // 2] ^= 4
    file.write_bytes(data)
    torch.load(file, weights_only=True)
    with pytest.raises(UserError, match=rf"a\.ckpt is damaged: its part '{part.filename}' is not what was written"):
        load_module(file)
    with pytest.raises(UserError, match="is damaged"):
        check_checkpoint(file, allow_pickle=False)


def test_an_encrypted_archive_is_refused_in_one_line(tmp_path: Path) -> None:
    file = checkpoint(tmp_path / "a.ckpt")
    # The first bit of the flags of each entry in the table of contents.
    data = bytearray(file.read_bytes())
    for entry in re.finditer(b"PK\x01\x02", bytes(data)):
        data[entry.start() + 8] |= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"a\.ckpt is not a checkpoint of lmrl, or is damaged \(.*encrypted"):
        check_checkpoint(file, allow_pickle=False)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"lmrl": 7}, "its entry 'lmrl' must be a dict"),
        ({"hyper_parameters": []}, "is damaged, or not of BC"),
        ({"hyper_parameters": {"colour": 1}}, "is damaged, or not of BC: TypeError: .*colour"),
        ({"hyper_parameters": {"architecture": {"n_embd": "x"}}}, "is damaged, or not of BC"),
        ({"state_dict": {}}, "is damaged, or not of BC: RuntimeError: Error.s. in loading state_dict"),
    ],
)
def test_a_checkpoint_with_odd_entries_is_refused_in_one_line(
    tmp_path: Path, entry: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        load_module(checkpoint(tmp_path / "a.ckpt", **entry))
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


@pytest.mark.parametrize("odd", [{"texts": {}}, {"tokens": None}, {"system": 1}, {"a": 1}], ids=str)
def test_an_odd_window_is_refused_when_it_is_read(tmp_path: Path, odd: dict[str, object]) -> None:
    file = checkpoint(tmp_path / "a.ckpt")
    saved = torch.load(file)
    saved["lmrl"]["window"] = {"tokens": 64, **odd}
    torch.save(saved, file)
    with pytest.raises(UserError, match="the checkpoint's window is"):
        load_module(file)


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A model folder like those of hubs, whose code writes a file when it is run."""
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


def test_the_tokens_of_a_task_name_no_file(tmp_path: Path) -> None:
    """The message used to show the content of the file."""
    secret = tmp_path / "secret"
    secret.write_text("TOKEN=hunter2\n")
    file = checkpoint(tmp_path / "best.ckpt")
    content = torch.load(file, weights_only=True)
    content["hyper_parameters"]["task_tokens"] = {"name": "wordle", "vocab": str(secret)}
    torch.save(content, file)
    with pytest.raises(UserError, match=r"sets vocab of task wordle to .*a file cannot choose paths") as error:
        load_module(file)
    assert "hunter2" not in str(error.value)


def test_the_task_that_a_file_names_leads_to_no_other_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = checkpoint(tmp_path / "best.ckpt")
    content = torch.load(file, weights_only=True)
    content["lmrl"]["made_with"] = {"task": "x/../../../../victim/sub"}
    torch.save(content, file)
    folder = PolicySpec.parse(str(file), "maze_fo").default_folder()
    assert folder.parent.parent == Path("runs/maze_fo")
    (tmp_path / "run").mkdir()
    file.rename(tmp_path / "run" / "best.ckpt")
    assert main(["zoo", "add", "run", "--to", "zoo/policies"]) == 2
    assert not (tmp_path / "zoo").exists()
