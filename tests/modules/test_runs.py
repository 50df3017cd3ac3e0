"""From fit to checkpoint to player: what a run keeps can be played, continued and read without this package."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmrl import __version__
from lmrl.callbacks import InteractiveEvaluation, KeepLast
from lmrl.cli import main
from lmrl.data import generate
from lmrl.datamodules import MazeDataModule
from lmrl.envs.registry import task
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.evaluation.loading import load_policy
from lmrl.models.tokenizer import BUNDLED, load_tokenizer
from lmrl.modules import BC, ILQL, MC, FilteredBC, LanguageModule, load_module

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128}


def fit(module: LanguageModule, data: MazeDataModule, root: Path, steps: int = 3, **more: Any) -> L.Trainer:
    playing = InteractiveEvaluation("maze_fo", every_n_steps=2, episodes=2, decoding={"max_new_tokens": 2})
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = L.Trainer(
        max_steps=steps,
        logger=False,
        accelerator="cpu",
        default_root_dir=root,
        callbacks=[playing, KeepLast()],
        **quiet,
    )
    trainer.fit(module, data, **more)
    return trainer


@pytest.fixture(scope="module")
def data_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate("maze_fo", 30, 0, tmp_path_factory.mktemp("data") / "maze.parquet", progress=False)


@pytest.fixture(scope="module")
def bc_run(tmp_path_factory: pytest.TempPathFactory, data_path: Path) -> Path:
    root = tmp_path_factory.mktemp("runs") / "maze_fo" / "bc"
    fit(BC(architecture=TINY), data(data_path), root)
    return root


def data(path: Path) -> MazeDataModule:
    return MazeDataModule("maze_fo", path=str(path), batch_size=32, val_fraction=0.1)


@pytest.mark.filterwarnings("ignore:FilteredBC keeps all episodes")
@pytest.mark.parametrize("kind", [BC, FilteredBC, MC, ILQL])
def test_a_checkpoint_plays_like_the_module_it_was_made_from(
    kind: type[LanguageModule], bc_run: Path, data_path: Path, tmp_path: Path
) -> None:
    module = kind(pretrained=str(bc_run))
    fit(module, data(data_path), tmp_path)
    for name in ("last", "best"):
        assert (tmp_path / f"{name}.ckpt").is_file()
        assert (tmp_path / name / "config.json").is_file()
    loaded = load_module(tmp_path / "last.ckpt")
    assert type(loaded) is kind
    for (name, ours), theirs in zip(module.state_dict().items(), loaded.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    settings = {"max_new_tokens": 4}
    mine = evaluate(module.eval().policy(**settings), "maze_fo", 2).episodes
    theirs_played = evaluate(load_policy(tmp_path / "last.ckpt", task("maze_fo"), **settings), "maze_fo", 2).episodes
    assert [e.actions for e in mine] == [e.actions for e in theirs_played]


def test_checkpoints_stand_alone(bc_run: Path, data_path: Path, tmp_path: Path) -> None:
    """They reload as plain values, and without the run that they started from."""
    start = tmp_path / "start"
    start.mkdir()
    for file in (bc_run / "last").iterdir():
        (start / file.name).write_bytes(file.read_bytes())
    fit(ILQL(pretrained=str(start)), data(data_path), tmp_path / "run")
    for file in start.iterdir():
        file.unlink()
    saved = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    assert saved["hyper_parameters"]["pretrained"] is None
    assert saved["hyper_parameters"]["tokenizer"] == BUNDLED[0]
    assert load_module(tmp_path / "run").context_window().texts == 1


def test_the_folder_beside_a_checkpoint_needs_nothing_of_ours(bc_run: Path, data_path: Path, tmp_path: Path) -> None:
    module = ILQL(pretrained=str(bc_run))
    fit(module, data(data_path), tmp_path)
    folder = tmp_path / "last"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("The goal is at position 8, 6.\n", return_tensors="pt").input_ids
    assert ids[0].tolist() == load_tokenizer().encode("The goal is at position 8, 6.\n")
    torch.testing.assert_close(model(ids).logits, module.model(ids).logits)
    values = load_file(folder / "value_heads.safetensors")
    assert {name.split(".")[0] for name in values} == {"trunk", "q_heads", "v_head"}
    torch.testing.assert_close(values["q_heads.1.outer.weight"], module.q_heads[1].outer.weight.detach())


def test_a_card_says_what_a_run_was_made_with(bc_run: Path, data_path: Path, tmp_path: Path) -> None:
    fit(ILQL(pretrained=str(bc_run), beta=2.5), data(data_path), tmp_path)
    card = (tmp_path / "best" / "README.md").read_text()
    told = {"algorithm": '"ilql"', "task": '"maze_fo"', "data": '"maze.parquet"', "data_episodes": "30", "beta": "2.5"}
    # Not the path: a card is published.
    told |= {"starts_from": f'"{bc_run.name}"', "data_seed": "0", "reads_texts": "1"}
    assert [name for name, value in told.items() if f"| {name} | `{value}` |" not in card] == []
    assert "2 episodes of `maze_fo`, seed 10000" in card and "flatter the chosen one" in card
    assert "Not evaluated yet." in (tmp_path / "last" / "README.md").read_text()
    again = load_module(tmp_path / "last.ckpt")
    assert again.made_with["starts_from"] == str(bc_run)
    assert again.made_with["steps"] == 3
    # BC and ILQL have learned from the same file.
    file = {name: again.made_with[name] for name in ("data_hash", "val_fraction", "data_seed")}
    assert again.made_with["learned_from"] == [file] and "learned_from" not in card
    assert again.made_with["lmrl"] == __version__


def test_callbacks_can_be_used_for_one_run_after_another(bc_run: Path, data_path: Path, tmp_path: Path) -> None:
    callbacks = [InteractiveEvaluation("maze_fo", every_n_steps=2, episodes=2), KeepLast()]
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    for root in (tmp_path / "first", tmp_path / "second"):
        trainer = L.Trainer(
            max_steps=2, logger=False, accelerator="cpu", default_root_dir=root, callbacks=[*callbacks], **quiet
        )
        trainer.fit(BC(pretrained=str(bc_run)), data(data_path))
        assert (root / "last.ckpt").is_file() and (root / "best.ckpt").is_file()


def test_a_folder_holds_no_path_of_the_machine_that_made_it(data_path: Path, tmp_path: Path) -> None:
    """People publish these folders."""
    fit(BC(architecture=TINY, task_tokens="wordle"), data(data_path), tmp_path / "start")
    with pytest.warns(UserWarning, match="FilteredBC keeps all episodes, as BC does: set success, min_return or"):
        fit(FilteredBC(pretrained=str(tmp_path / "start")), data(data_path), tmp_path / "run")
    assert str(tmp_path) not in (tmp_path / "run" / "last" / "lmrl.json").read_text()
    assert load_module(tmp_path / "run" / "last").made_with["starts_from"] == "start"


def test_export_writes_the_folder_of_a_run_anywhere(
    bc_run: Path, data_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    to = tmp_path / "models" / "ilql"
    module = ILQL(pretrained=str(bc_run))
    fit(module, data(data_path), run)
    assert main(["evaluate", "maze_fo", "--policy", str(run), "--episodes", "1", "--out", str(run / "evaluation")]) == 0
    for _ in range(2):  # an export may be replaced
        assert main(["export", str(run), "--to", str(to)]) == 0
    assert "1 episodes of `maze_fo`, seed 0" in (to / "README.md").read_text()
    assert "with the scores of" in capsys.readouterr().out
    ours = load_file(run / "best" / "value_heads.safetensors")
    theirs = load_file(to / "value_heads.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").touch()
    assert main(["export", str(run), "--to", str(tmp_path / "precious")]) == 2
    assert "precious holds thesis.tex, which no export has made" in capsys.readouterr().err
    assert (tmp_path / "precious" / "thesis.tex").exists()


def test_value_methods_start_where_bc_ended(bc_run: Path) -> None:
    bc = load_module(bc_run)
    ilql = ILQL(pretrained=str(bc_run))
    for name, tensor in bc.model.state_dict().items():
        assert torch.equal(tensor, ilql.model.state_dict()[name])
    torch.testing.assert_close(ilql.trunk.wte.weight, bc.model.transformer.wte.weight)  # type: ignore[union-attr]


def test_a_run_goes_on_where_it_stopped(data_path: Path, tmp_path: Path) -> None:
    fit(BC(architecture=TINY), data(data_path), tmp_path, steps=4)
    resumed = BC(architecture=TINY)
    trainer = fit(resumed, data(data_path), tmp_path, steps=6, ckpt_path=str(tmp_path / "last.ckpt"), weights_only=True)
    assert trainer.global_step == 6
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 6


def test_values_need_a_bc_run(data_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ILQL starts from a BC run.*lmrl fit --config configs/maze_fo/bc.yaml"):
        fit(ILQL(architecture=TINY), data(data_path), tmp_path)


def test_a_missing_run_names_the_command_that_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the checkout may hold runs
    with pytest.raises(UserError, match=r"lmrl fit --config configs/maze_po/bc.yaml"):
        ILQL(pretrained="runs/maze_po/bc")
    with pytest.raises(UserError, match=r"lmrl fit --config configs/maze_fo/ilql.yaml"):
        load_module("runs/maze_fo/ilql/best.ckpt")


def test_a_checkpoint_of_another_tokenizer_is_refused(bc_run: Path, tmp_path: Path) -> None:
    saved = torch.load(bc_run / "last.ckpt", weights_only=True)
    saved["lmrl"]["tokenizer"] = "0123456789abcdef"
    torch.save(saved, tmp_path / "other.ckpt")
    with pytest.raises(UserError, match="another tokenizer"):
        load_module(tmp_path / "other.ckpt")


def test_a_tokenizer_beside_that_of_the_run_is_refused(bc_run: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer()
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    with pytest.raises(UserError, match="another one than that of"):
        BC(pretrained=str(bc_run), tokenizer=str(tmp_path / "tokenizer"))


def test_a_file_that_is_no_checkpoint_says_so(tmp_path: Path) -> None:
    (tmp_path / "junk.ckpt").write_bytes(b"junk")
    with pytest.raises(UserError, match="not a checkpoint of lmrl"):
        load_module(tmp_path / "junk.ckpt")


@pytest.mark.parametrize("kind", [BC, MC, ILQL])
def test_reranking_says_listed_actions_only(
    kind: type[LanguageModule], bc_run: Path, data_path: Path, tmp_path: Path
) -> None:
    """An untrained model speaks nonsense; its best-scored action is a move all the same."""
    module = kind(pretrained=str(bc_run))
    fit(module, data(data_path), tmp_path, steps=1)
    played = evaluate(load_policy(tmp_path / "last.ckpt", task("maze_fo"), rerank=True), "maze_fo", 2).episodes
    assert all(e.illegal == 0 for e in played)
    assert {action for e in played for action in e.actions} <= set(task("maze_fo").actions)


def test_the_excess_is_the_loss_of_an_action_less_the_entropy_of_the_recorder(data_path: Path, tmp_path: Path) -> None:
    data = MazeDataModule("maze_fo", path=str(data_path), val_fraction=0.2)
    run = L.Trainer(logger=False, enable_progress_bar=False, accelerator="cpu", default_root_dir=tmp_path)
    run.validate(BC(architecture=TINY), data)
    held = data.split()[1]
    tokenizer = data.spec.tokenizer
    entropy = task("maze_fo").entropy
    assert tokenizer is not None and entropy is not None
    tokens = sum(len(tokenizer.encode(action)) for e in held for action in e.actions)
    loss = float(run.callback_metrics["val/loss"]) * tokens / sum(map(len, held))
    assert float(run.callback_metrics["val/bc/excess"]) == pytest.approx(loss - entropy, rel=1e-4)


def test_data_of_another_player_have_no_excess(data_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = MazeDataModule("maze_fo", path=str(data_path))
    assert data.entropy() == task("maze_fo").entropy
    recorded = {"generator_version": 1, "behaviour": "optimal", "env": {}}
    monkeypatch.setattr("lmrl.datamodules.offline.read_metadata", lambda path: recorded)
    assert data.entropy() is None
