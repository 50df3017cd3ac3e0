"""Q-SFT as a module: what learns, what plays, what is kept, and its values in a corridor where all is known."""

import json
import math
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lmrl.callbacks import KeepLast
from lmrl.cli import main
from lmrl.data import generate
from lmrl.data.storage import read_episodes, write_episodes
from lmrl.datamodules import MazeDataModule, OfflineDataModule
from lmrl.envs.maze.layouts import walked
from lmrl.envs.maze.players import best_moves
from lmrl.envs.registry import make
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.evaluation.token_values import token_values
from lmrl.evaluation.tuning import TUNED
from lmrl.losses import probability_ratio
from lmrl.modules import BC, ILQL, QSFT, load_module
from lmrl.tokens.collate import collate
from lmrl.tokens.encoding import Window, encoder_for
from lmrl.tokens.segments import context, segments
from lmrl.types import Request
from lmrl.utils.configuration import configuration, value_at
from tests.helpers.corridor import corridor_task
from tests.helpers.doubles import corridor
from tests.helpers.online import ENV, rounds, trainer
from tests.losses.test_qsft_tables import dynamic_programming
from tests.modules.test_gradients import examples, fit

MOVES = ("move left\n", "move up\n")
REQUESTS = [Request(0, 5, ("The goal is at position 8, 6.\n",)), Request(1, 6, ("There are no walls.\n",))]
RANGE = [-8.0, 0.0]


def shaken(module: QSFT, size: float = 0.1) -> QSFT:
    """With p and its target copy away from pi_beta."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not name.startswith("model."):
                parameter += size * torch.randn_like(parameter)
    return module


@pytest.fixture
def module(bc_run: str) -> QSFT:
    module = shaken(QSFT(pretrained=bc_run, beta=3.0, support=0.005, return_range=RANGE).eval())
    module.window = Window(texts=1, tokens=100)
    return module


class FromScratch(QSFT):
    starts_from_bc = False


def small(**arguments: object) -> FromScratch:
    torch.manual_seed(0)
    architecture = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    return shaken(FromScratch(architecture=architecture, **{"return_range": RANGE, **arguments}))


def test_gradients_reach_p_alone() -> None:
    module = small()
    module.losses(collate(examples())).loss.backward()
    reached = {name.split(".")[0] for name, p in module.named_parameters() if p.grad is not None and p.grad.abs().any()}
    assert reached == {"q_model"}


def test_the_policy_learns_where_it_is_asked_to() -> None:
    """By BC alone: nothing of p or of its targets reaches it."""
    module = small(bc_weight=0.5)
    batch = collate(examples())
    module.losses(batch).loss.backward()
    found = {name: p.grad.clone() for name, p in module.model.named_parameters() if p.grad is not None}
    module.zero_grad()
    (0.5 * module.losses(batch).bc_loss).backward()
    assert found and all(torch.equal(found[name], p.grad) for name, p in module.model.named_parameters())
    assert all(p.grad is None for p in module.target_q_model.parameters())
    with pytest.raises(UserError, match="bc_weight must be 0 with lora"):
        small(bc_weight=0.5, lora={"r": 2})


def test_frozen_parts_do_not_learn_and_the_target_copy_follows(tmp_path: Path) -> None:
    module = small(lr=1e-2, polyak=0.25)
    before = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    fit(module, 32, tmp_path)
    for name, parameter in module.named_parameters():
        frozen = name.startswith(("model.", "target_"))
        assert parameter.requires_grad != frozen
        if name.startswith("target_"):
            now = module.get_parameter(name.removeprefix("target_"))
            torch.testing.assert_close(parameter, before[name].lerp(now, 0.25))
        else:
            assert torch.equal(parameter, before[name]) == frozen, name
    assert module.train().training
    assert not module.model.training and not module.target_q_model.training


def test_targets_come_from_the_copy_and_its_support_from_the_policy() -> None:
    module, batch = small(support=1.0), collate(examples())  # the most probable token alone
    before = module.losses(batch)
    with torch.no_grad():
        module.q_model.transformer.wte.weight.mul_(2.0)
    assert torch.equal(module.losses(batch).target, before.target)
    module.support = 0.0
    assert module.losses(batch).target > before.target
    module.support = 1.0
    with torch.no_grad():
        module.target_q_model.transformer.wte.weight.mul_(2.0)
    assert abs((module.losses(batch).target - before.target).item()) > 1e-3


def test_what_is_never_said_has_no_part_in_the_targets() -> None:
    module = small(tokenizer="lmrl-letters", support=0.0)
    encoder = encoder_for(module.tokenizer, None)
    invalid = module.invalid_token_ids()
    batch = collate([part for e in corridor() for part in segments(e, encoder, Window(texts=1))])
    before = module.losses(batch)
    with torch.no_grad():
        for model in (module.model, module.q_model, module.target_q_model):
            model.transformer.wte.weight[invalid] *= 1e3  # read nowhere in these data, so that logits alone change
    assert invalid.any()
    for name, found, expected in zip(before._fields, module.losses(batch), before, strict=True):
        torch.testing.assert_close(found, expected, msg=name)


def test_p_begins_as_the_policy(bc_run: str) -> None:
    module = QSFT(pretrained=bc_run, return_range=RANGE)
    module.window = Window(texts=1, tokens=100)
    batch = collate(examples())
    assert float(module.losses(batch).q_mean) == pytest.approx(0.0, abs=1e-4)  # a ratio of 1


def read(module: QSFT, request: Request) -> list[int]:
    encoder = encoder_for(module.tokenizer, module.context_window())
    return context(encoder, module.context_window(), request.observations, request.actions, request.action_ids)


@torch.no_grad()
def played(module: QSFT, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """``(len(ids), vocabulary)`` log-probabilities and ratios, by full forward passes."""
    tokens = torch.tensor([list(ids)])
    invalid = module.invalid_token_ids()
    p, base = (
        model(input_ids=tokens).logits[0].masked_fill(invalid, -math.inf) for model in (module.q_model, module.model)
    )
    likely = base.softmax(-1) >= base.softmax(-1).amax(-1, keepdim=True).clamp(max=module.support)
    ratio = torch.where(likely, (p.softmax(-1) / base.softmax(-1)).clamp(max=1.0), 0.0)
    return (base + 3.0 * ratio).log_softmax(-1), ratio


def test_what_is_sampled_is_weighed_by_the_ratios(module: QSFT) -> None:
    policy = module.policy(max_new_tokens=6)
    for request, reply in zip(REQUESTS, policy.act(REQUESTS), strict=True):
        before = read(module, request)
        logprobs, ratio = played(module, [*before, *reply.ids])
        states = range(len(before) - 1, len(before) - 1 + len(reply.ids))
        expected = [float(logprobs[state, token]) for state, token in zip(states, reply.ids, strict=True)]
        assert reply.logprobs == pytest.approx(expected, abs=1e-4)
        value = float((logprobs.exp() * ratio)[len(before) - 1].sum())
        assert policy.state_values([request]).tolist() == pytest.approx([-8.0 + 8.0 * value], abs=1e-3)
    weak = module.policy(max_new_tokens=6, beta=0.0).act(REQUESTS)
    assert [reply.logprobs for reply in weak] != [reply.logprobs for reply in policy.act(REQUESTS)]


def test_actions_are_ranked_by_the_policy_that_plays(module: QSFT) -> None:
    encoder = encoder_for(module.tokenizer, module.context_window())
    expected = []
    for request in REQUESTS:
        before = read(module, request)
        row = []
        for move in MOVES:
            ids = encoder.action(move)
            logprobs, _ = played(module, [*before, *ids])
            row.append(sum(float(logprobs[len(before) - 1 + i, token]) for i, token in enumerate(ids)))
        expected.append(row)
    torch.testing.assert_close(module.reranker(MOVES).scores(REQUESTS), torch.tensor(expected), atol=1e-3, rtol=1e-4)


def test_pages_show_what_is_played(module: QSFT) -> None:
    (episode,) = evaluate(module.policy(max_new_tokens=4), "maze_fo", 1, env=ENV).episodes
    shown = [token for action in next(token_values(module, [episode])) for token in action]
    said = [number for turn in episode.action_logprobs for number in turn]
    assert [math.log(token.probability) for token in shown] == pytest.approx(said, abs=1e-4)
    policy = module.policy(max_new_tokens=4)
    values = [float(policy.state_values([Request(0, 0, (text,))])[0]) for text in episode.observations[:-1]]
    first = [action[0].v for action in next(token_values(module, [episode]))]
    assert first == pytest.approx(values, abs=1e-3)
    assert all(-8.0 <= (token.q or 0.0) <= 0.0 for token in shown)


@pytest.mark.parametrize("lora", [None, {"r": 2, "lora_alpha": 8}], ids=["whole", "adapters"])
def test_an_exported_folder_plays_the_same(
    bc_run: str, data_path: Path, tmp_path: Path, lora: dict[str, int] | None
) -> None:
    module = QSFT(pretrained=bc_run, beta=3.0, lr=1e-2, warmup_steps=0, lora=lora)
    trainer(tmp_path, 3, [KeepLast()]).fit(module, MazeDataModule("maze_fo", path=str(data_path), env=ENV))
    low, high = module.return_range.tolist()
    assert (low, high) == make("maze_fo", **ENV).return_range
    module.eval().export(tmp_path / "exported")
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "**not** the one that was trained" in card and "lmrl.load_policy(folder)" in card
    ours = [(reply.text, reply.logprobs) for reply in module.policy(max_new_tokens=4).act(REQUESTS)]
    for path in (tmp_path / "exported", tmp_path):
        other = load_module(path)
        assert isinstance(other, QSFT) and other.return_range.tolist() == [low, high]
        assert [(reply.text, reply.logprobs) for reply in other.policy(max_new_tokens=4).act(REQUESTS)] == ours


def test_a_run_goes_on_from_values_of_its_own_kind_alone(module: QSFT, bc_run: str, tmp_path: Path) -> None:
    module.export(tmp_path / "qsft")
    again = QSFT(pretrained=str(tmp_path / "qsft"))
    assert again.return_range.tolist() == RANGE
    assert QSFT(pretrained=str(tmp_path / "qsft"), return_range=RANGE).return_range.tolist() == RANGE
    with pytest.raises(UserError, match="has learned with"):
        QSFT(pretrained=str(tmp_path / "qsft"), return_range=[-100.0, 100.0])
    for part in ("q_model", "target_q_model"):
        for name, tensor in getattr(again, part).state_dict().items():
            assert torch.equal(tensor, module.q_model.state_dict()[name]), name
    with pytest.raises(UserError, match="ILQL goes on from values of its own kind"):
        ILQL(pretrained=str(tmp_path / "qsft"))


def test_commands_tune_and_play_it(module: QSFT, data_path: Path, bc_run: str, tmp_path: Path) -> None:
    run = tmp_path / "qsft"
    fresh = QSFT(pretrained=bc_run)
    trainer(run, 2, [KeepLast()]).fit(fresh, MazeDataModule("maze_fo", path=str(data_path)))
    few = ["--episodes", "2", "--env", "max_steps=3"]
    assert main(["tune", str(run), "--temperatures", "1", "--betas", "2", "8", *few]) == 0
    assert {line["settings"]["beta"] for line in json.loads((run / TUNED).read_text())["tried"]} == {2.0, 8.0}
    for words in (["--beta", "4"], ["--tuned"], ["--rerank"]):
        assert main(["evaluate", "--policy", str(run), *few, "--out", str(tmp_path / "played"), *words]) == 0
        shutil.rmtree(tmp_path / "played")


@pytest.mark.parametrize("given", [[0.0], [1.0, 1.0], [2.0, 1.0], [0.0, math.inf], [0.0, math.nan]])
def test_a_range_of_returns_is_two_numbers(given: list[float]) -> None:
    with pytest.raises(UserError, match=r"^return_range"):
        small(return_range=given)


def test_the_range_must_be_known_and_the_data_be_recorded(bc_run: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="return_range must be given where no datamodule names a task"):
        fit(small(return_range=None), 32, tmp_path)
    with pytest.raises(UserError, match="use an offline datamodule"):
        trainer(tmp_path, 1).fit(QSFT(pretrained=bc_run), rounds())


@pytest.mark.slow
def test_a_short_fit_finds_the_way_through_a_corridor(tmp_path: Path) -> None:
    with corridor_task():
        path = tmp_path / "corridor.parquet"
        write_episodes(path, [replace(e, task="corridor") for e in corridor()], {"task": "corridor"})
        data = OfflineDataModule("corridor", path=str(path), batch_size=256, val_fraction=0.0)
        torch.manual_seed(0)
        trainer(tmp_path / "bc", 60, [KeepLast()]).fit(BC(tokenizer="lmrl-letters", lr=3e-3, warmup_steps=5), data)
        module = QSFT(pretrained=str(tmp_path / "bc"), gamma=0.9, polyak=0.2, lr=3e-3, warmup_steps=5)
        trainer(tmp_path / "qsft", 100).fit(module.train(), data)
        assert module.return_range.tolist() == [-3.0, 0.0]  # as the environment says
        policy = module.eval().policy(max_new_tokens=1, temperature=0.0, beta=32.0)
        assert [e.total_reward for e in evaluate(policy, "corridor", 3).episodes] == [-2.0, -1.0, 0.0]


def minimise(parameters: Iterable[Tensor], loss: Callable[[], Tensor], steps: int) -> None:
    optimizer = torch.optim.LBFGS(list(parameters), max_iter=steps, history_size=30, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)  # type: ignore[arg-type]


def test_ratios_of_a_small_model_are_what_dynamic_programming_finds() -> None:
    """The minimiser for a target copy that stands still, time and again; pi_beta says what the data say."""
    module = small(gamma=0.9, return_range=[-3.0, 0.0], tokenizer="lmrl-letters")
    encoder = encoder_for(module.tokenizer, None)
    window = Window(texts=1)
    batch = collate([part for e in corridor() for part in segments(e, encoder, window)])
    module.model.requires_grad_(True)
    minimise(module.model.parameters(), lambda: module.losses(batch).bc_loss, 200)
    module.model.requires_grad_(False)
    for _ in range(12):
        minimise(module.q_model.parameters(), lambda: module.losses(batch).loss, 60)
        module.target_q_model.load_state_dict(module.q_model.state_dict())
    words = int((~module.invalid_token_ids()).sum())
    expected = dynamic_programming(corridor(), -3.0, 0.0, words)
    assert {pair: ratio_of(module, *pair) for pair in expected} == pytest.approx(expected, abs=1e-2)


@torch.no_grad()
def ratio_of(module: QSFT, state: str, token: str) -> float:
    encoder = encoder_for(module.tokenizer, module.window)
    ids = torch.tensor([encoder.encode(state)])
    invalid = module.invalid_token_ids()
    p, base = (
        model(input_ids=ids).logits[:, -1].masked_fill(invalid, -math.inf) for model in (module.q_model, module.model)
    )
    return float(probability_ratio(p, base, module.support)[0, encoder.encode(token)[0]])


@pytest.mark.parametrize("task", ["maze_fo", "maze_po"])
def test_supports_of_the_mazes_let_every_right_move_count(task: str, tmp_path: Path) -> None:
    """With a support above the share of a right move in the data no value comes from beyond its cell."""
    layout = make(task).unwrapped.layout  # type: ignore[attr-defined]
    said: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for episode in read_episodes(generate(task, 400, out=tmp_path / "data.parquet", progress=False)):
        cells = walked(episode, layout)
        assert cells is not None
        for cell, action in zip(cells, episode.actions, strict=False):
            said[cell][action] += 1
    right = best_moves(layout, layout.goal)
    shares = {cell: said[cell][move] / said[cell].total() for cell, move in right.items()}
    assert len(shares) == 25 and min(shares.values()) < 0.12
    support = value_at(configuration(["fit", f"--config=configs/{task}/qsft.yaml"]), "model.init_args.support")
    assert support < 0.7 * min(shares.values())
