"""BC that is conditioned on the return: what each bin teaches, what is read and recorded, what a checkpoint holds."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lmrl.callbacks import KeepLast
from lmrl.cli import main
from lmrl.data.storage import write_episodes
from lmrl.datamodules import MazeDataModule, OfflineDataModule
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.evaluation.token_values import token_values
from lmrl.modules import BC, ReturnConditionedBC, load_module
from lmrl.policies import ConditionedPolicy, load_lm_policy, load_vllm_policy
from lmrl.policies.conditioned import with_line
from lmrl.tokens.encoding import Window, encoder_for
from lmrl.tokens.segments import context
from lmrl.types import Episode, Reply, Request
from tests.helpers.corridor import corridor_task
from tests.helpers.doubles import episode
from tests.helpers.online import ENV, TINY, rounds, trainer
from tests.helpers.tokens import TokenServer, saying

#: A bandit: L pays 0 mostly, R pays 1 or 2.
PAYS = {("L", 0.0): 6, ("R", 0.0): 2, ("L", 1.0): 3, ("R", 1.0): 5, ("L", 2.0): 1, ("R", 2.0): 7}
BANDIT = [
    replace(episode("0", action, rewards=[pay], terminated=True), task="corridor")
    for (action, pay), count in PAYS.items()
    for _ in range(count)
]


def recorded(path: Path, episodes: Sequence[Episode]) -> str:
    write_episodes(path, episodes, {"task": "corridor"})
    return str(path)


def learned(root: Path, steps: int, kind: type[BC] = ReturnConditionedBC, **arguments: Any) -> BC:
    path = recorded(root / "bandit.parquet", BANDIT)
    data = OfflineDataModule("corridor", path=path, batch_size=64, val_fraction=0.0)
    torch.manual_seed(0)
    module = kind(architecture=TINY, tokenizer="lmrl-letters", lr=1e-2, warmup_steps=0, **arguments)
    trainer(root / "run", steps, [KeepLast()]).fit(module, data)
    return module.eval()


def says(module: Any, **settings: Any) -> dict[str, float]:
    """Return the probabilities of the two actions, from the log-probabilities of the policy's replies."""
    policy = module.policy(max_new_tokens=1, **settings)
    replies = policy.act([Request(slot, slot, ("0",)) for slot in range(64)])
    return {reply.text: math.exp(reply.logprobs[0]) for reply in replies if reply.text in "LR"}


def test_each_bin_learns_its_own_actions(tmp_path: Path) -> None:
    """Returns 0, 1 and 2 are bins of eight episodes each."""
    with corridor_task():
        module = learned(tmp_path, 150, bins=3)
        assert isinstance(module, ReturnConditionedBC)
        assert module.return_edges.tolist() == [1.0, 2.0] and module.bin_returns.tolist() == [0.0, 1.0, 2.0]
        for wish, pay in ((1, 0.0), (2, 1.0), (3, 2.0)):
            expected = {action: PAYS[action, pay] / 8 for action in "LR"}
            assert says(module, wish=wish) == pytest.approx(expected, abs=1e-2)
        assert says(module) == says(module, wish=3)
        chosen = module.reranker(["L", "R"], wish=1).act([Request(0, 0, ("0",))])
        assert [reply.text for reply in chosen] == ["L"]
        assert [r.text for r in module.reranker(["L", "R"]).act([Request(0, 0, ("0",))])] == ["R"]
        loaded = load_module(tmp_path / "run")
        assert says(loaded) == says(module) and says(loaded, wish=1) == says(module, wish=1)


def test_one_bin_is_bc(tmp_path: Path) -> None:
    with corridor_task():
        one = learned(tmp_path / "one", 5, bins=1)
        plain = learned(tmp_path / "bc", 5, BC)
        for name, tensor in plain.state_dict().items():
            assert torch.equal(one.state_dict()[name], tensor), name
        assert says(one) == says(plain)
        one.export(tmp_path / "exported")
        assert says(load_module(tmp_path / "exported")) == says(one)


@pytest.mark.parametrize(("texts", "lines"), [(None, [True, False, False]), (40, [True] * 3), (1, [True] * 3)])
def test_where_the_line_stands(texts: int | None, lines: list[bool]) -> None:
    module = ReturnConditionedBC(architecture=TINY, bins=2)
    module.window = Window(texts=texts)
    module.return_edges.fill_(0.0)
    module.bin_returns.copy_(torch.tensor([-1.0, 1.0]))
    bad = episode("a", "L", "b", "R", "c", rewards=[-1, -1], terminated=True)
    good = replace(bad, rewards=(2.0, -1.0))
    for number, found in enumerate(module.prepare([bad, good]), start=1):
        line = f"return {number} of 2\n"
        expected = [line + text if has else text for has, text in zip(lines, "abc", strict=True)]
        assert found.observations == tuple(expected)
        assert found.actions == bad.actions
    assert module.as_read(bad).observations == module.prepare([good])[0].observations


@pytest.mark.parametrize("texts", [None, 3])
def test_the_exported_folder_says_the_line_to_other_policies(texts: int | None, tmp_path: Path) -> None:
    """Its model is also played as ``lm:PATH`` and at a vLLM server."""
    module = ReturnConditionedBC(architecture=TINY, bins=2)
    module.window = Window(texts=texts, tokens=100)
    module.return_edges.fill_(0.0)
    module.bin_returns.copy_(torch.tensor([-1.0, 1.0]))
    module.export(tmp_path / "run")
    requests = [Request(0, 0, ("ab\n", "cd\n", "ef\n"), ("L\n", "R\n"))]
    conditioned = with_line(requests[0].observations, "return 2 of 2\n", always=texts is not None)
    window = module.context_window()
    expected = list(context(encoder_for(module.tokenizer, window), window, conditioned, requests[0].actions))
    policy = load_lm_policy(str(tmp_path / "run"), None, 8, temperature=0.0, slots=1)
    assert policy._context_builder.contexts(requests) == [expected]
    with TokenServer(saying((1,))) as server:
        load_vllm_policy(f"{server.url}#tiny", None, 1, tokenizer=str(tmp_path / "run")).act(requests)
        assert [body["prompt"] for body in server.played] == [expected]


def test_a_folder_from_before_the_line_was_noted_is_refused(tmp_path: Path) -> None:
    module = ReturnConditionedBC(architecture=TINY, bins=1)
    module.window = Window()
    module.bin_returns.fill_(1.0)
    module.export(tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "lmrl.json").read_text())
    del manifest["prompt_line"]
    (tmp_path / "run" / "lmrl.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="does not say which return its policy asks for; export it again"):
        load_lm_policy(str(tmp_path / "run"), None, 8, temperature=0.0, slots=1)


class Listener:
    """A policy that keeps its requests."""

    def __init__(self) -> None:
        self.heard: list[Request] = []

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        self.heard += requests
        return [Reply("L") for _ in requests]


def test_the_policy_hears_the_line_and_nothing_else_changes() -> None:
    listener = Listener()
    request = Request(3, 7, ["a", "b"], ["L"], [(1,)], {"x": 1})
    ConditionedPolicy(listener, "return 2 of 2\n", always=False).act([request])
    assert listener.heard == [replace(request, observations=("return 2 of 2\na", "b"))]
    assert request.observations == ["a", "b"]
    assert with_line(["a", "b"], "!", always=True) == ("!a", "!b")


@pytest.fixture(scope="module")
def run(bc_run: str, data_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "maze_fo" / "return_conditioned"
    module = ReturnConditionedBC(pretrained=bc_run, bins=3, lr=1e-2, warmup_steps=0)
    trainer(root, 4, [KeepLast()]).fit(module, MazeDataModule("maze_fo", path=str(data_path), val_fraction=0.2))
    return root


def test_bins_are_those_of_the_training_episodes(run: Path, data_path: Path) -> None:
    module = load_module(run)
    assert isinstance(module, ReturnConditionedBC)
    data = MazeDataModule("maze_fo", path=str(data_path), val_fraction=0.2)
    data.setup("fit")
    returns = sorted(e.total_reward for e in data.split()[0])
    edges = [returns[math.ceil((len(returns) - 1) * share)] for share in (1 / 3, 2 / 3)]
    assert module.return_edges.tolist() == pytest.approx(edges)
    best = [value for value in returns if value >= edges[-1]]
    assert module.bin_returns.tolist()[-1] == pytest.approx(sum(best) / len(best))


def test_validation_episodes_are_told_too(run: Path, data_path: Path) -> None:
    module = load_module(run)
    assert isinstance(module, ReturnConditionedBC)
    data = MazeDataModule("maze_fo", path=str(data_path), val_fraction=0.2)
    data.setup("fit")
    data.configure_batches(module.batch_spec())
    encoder = encoder_for(module.tokenizer, module.window)
    for batch in (next(iter(data.val_dataloader())), next(iter(data.train_dataloader()))):  # type: ignore[arg-type]
        assert all(encoder.decode(row.tolist()).startswith("return ") for row in batch.input_ids)


def test_a_run_that_goes_on_keeps_its_bins(run: Path, tmp_path: Path, data_path: Path) -> None:
    module = load_module(run)
    assert isinstance(module, ReturnConditionedBC)
    before = module.return_edges.clone()
    trainer(tmp_path, 1).fit(module, MazeDataModule("maze_fo", path=str(data_path), val_fraction=0.6))
    assert torch.equal(module.return_edges, before)


def test_episodes_that_were_played_do_not_hold_the_line(run: Path, tmp_path: Path) -> None:
    module = load_module(run)
    assert isinstance(module, ReturnConditionedBC)
    (ours,) = evaluate(module.policy(max_new_tokens=4), "maze_fo", 1, env=ENV).episodes
    assert not any("return" in text for text in ours.observations)
    shown = [token for action in next(token_values(module, [ours])) for token in action]
    said = [number for turn in ours.action_logprobs for number in turn]
    assert [math.log(token.probability) for token in shown] == pytest.approx(said, abs=1e-4)
    module.export(tmp_path / "exported")
    (theirs,) = evaluate(load_module(tmp_path / "exported").policy(max_new_tokens=4), "maze_fo", 1, env=ENV).episodes
    assert ours.action_ids == theirs.action_ids
    card = (tmp_path / "exported" / "README.md").read_text()
    assert 'In front of every text of the game stands `"return 3 of 3\\n"`.' in card


@pytest.mark.parametrize("words", [["--temperature", "0.5", "--top_k", "3"], ["--rerank"]])
def test_commands_play_it(run: Path, tmp_path: Path, words: list[str]) -> None:
    few = ["--episodes", "2", "--env", "max_steps=3", "--out", str(tmp_path / "played")]
    assert main(["evaluate", "--policy", str(run), *few, *words]) == 0
    assert json.loads((tmp_path / "played" / "scores.json").read_text())["episodes"] == 2


def test_what_cannot_be_wished_for_is_refused(bc_run: str, tmp_path: Path) -> None:
    module = ReturnConditionedBC(architecture=TINY, bins=3)
    module.window = Window(texts=1, tokens=64)
    with pytest.raises(UserError, match="does not know what returns there are"):
        module.policy()
    module.bin_returns.copy_(torch.tensor([0.0, math.nan, 2.0]))
    for wish in (0, 2, 4):
        with pytest.raises(UserError, match=rf"one of \[1, 3\], got {wish}"):
            module.policy(wish=wish)
    with pytest.raises(UserError, match="needs an offline datamodule"):
        trainer(tmp_path, 1).fit(ReturnConditionedBC(pretrained=bc_run), rounds())
