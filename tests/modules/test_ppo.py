"""PPO as a module: what it prepares, what it trains and what it leaves alone."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lmrl.callbacks import KeepLast, RolloutCollection
from lmrl.datamodules import MazeDataModule, OnlineDataModule
from lmrl.datamodules.spec import Collector
from lmrl.envs.registry import task
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.losses import PPOColumns, bc_loss, gae
from lmrl.models.critic import OwnCritic
from lmrl.modules import PPO, load_module
from lmrl.modules.load import _move_to_device
from lmrl.modules.policy_gradient import RolloutEpisode
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.encoding import Encoder, Window
from lmrl.tokens.segments import Segment, segments
from lmrl.types import Episode
from tests.helpers.online import ENV, fit, rounds, trainer

# Six short games of an untrained model are sometimes equal.
pytestmark = pytest.mark.filterwarnings("ignore:round [0-9]+. ")


def ppo(bc_run: str, **arguments: Any) -> PPO:
    """Return PPO as published; `tests/modules/test_critic.py` tests its own critic."""
    published = {"critic": "shared", "lambda_level": "token", "head_bias": -1.0}
    return PPO(**{"pretrained": bc_run, "lr": 1e-2, **published, **arguments})


class Recording(OnlineDataModule):
    """A datamodule that records its rounds and its minibatches."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(task="maze_fo", **{"batch_size": 8, "env": ENV, **arguments})
        self.rounds: list[list[Episode]] = []
        self.batches: list[TokenBatch] = []

    def _batch(self, runs: Any, *expected: Any) -> TokenBatch:
        self.batches.append(super()._batch(runs, *expected))
        return self.batches[-1]

    def register_collector(self, collector: Collector) -> None:
        super().register_collector(Noting(collector, self.rounds))


class Noting:
    """A collector that keeps the rounds that another collector plays."""

    def __init__(self, collector: Collector, rounds: list[list[Episode]]) -> None:
        self.collector = collector
        self.rounds = rounds

    def collect(self, number: int) -> list[Episode]:
        self.rounds.append(self.collector.collect(number))
        return self.rounds[-1]


def logged(root: Path, key: str) -> list[float]:
    with (root / "metrics.csv").open() as file:
        return [float(row[key]) for row in csv.DictReader(file) if row.get(key)]


def test_the_first_ratios_are_one(bc_run: str, tmp_path: Path) -> None:
    fit(ppo(bc_run), rounds(epochs=2), tmp_path, steps=20)
    first = logged(tmp_path, "ppo/first_ratio")
    assert len(first) >= 3
    assert first == pytest.approx([1.0] * len(first), abs=1e-5)
    assert max(logged(tmp_path, "ppo/approx_kl")) > 1e-4  # it does learn between the rounds
    for name in ("policy_loss", "value_loss", "clipfrac", "entropy", "explained_variance", "kl", "kl_weight"):
        assert logged(tmp_path, f"ppo/{name}"), name


def test_what_was_sampled_is_what_is_trained(bc_run: str, tmp_path: Path) -> None:
    data = Recording(epochs=1)
    fit(ppo(bc_run), data, tmp_path, steps=3)
    sampled = sorted(token for e in data.rounds[0] for ids in e.action_ids for token in ids)
    first = data.batches[: len(data._planned().minibatches)]
    assert sorted(torch.cat([batch.token for batch in first]).tolist()) == sampled
    total = sum(e.total_reward for e in data.rounds[0])
    assert sum(float(batch.reward.sum()) for batch in first) == pytest.approx(total)
    logprobs = sorted(p for e in data.rounds[0] for turn in e.action_logprobs for p in turn)
    columns = [batch.columns for batch in first if batch.columns is not None]
    logprob, advantage = (torch.cat([found[name] for found in columns]) for name in ("logprob", "advantage"))
    np.testing.assert_allclose(np.sort(logprob.numpy()), np.float32(logprobs))
    assert advantage.mean().item() == pytest.approx(0.0, abs=1e-5)  # advantages are white over the round
    assert advantage.std(unbiased=False).item() == pytest.approx(1.0, abs=1e-4)


@torch.no_grad()
def values_along(module: PPO, ids: np.ndarray[Any, Any]) -> Tensor:
    """Return V after each token, by a plain forward pass."""
    hidden = module.model(input_ids=torch.from_numpy(ids)[None].long(), output_hidden_states=True).hidden_states[-1]
    value: Tensor = module.v_head(hidden)[0, :, 0]
    return value


@pytest.mark.parametrize("name", ["maze_fo", "maze_po"])
def test_advantages_are_computed_with_the_values_of_their_states(bc_run: str, name: str, tmp_path: Path) -> None:
    module = ppo(bc_run, gamma=0.9, gae_lambda=0.8)
    data = Recording(epochs=1)
    with torch.no_grad():
        module.v_head.outer.weight.normal_()
        module.ref_model.get_input_embeddings().weight.mul_(1.1)  # as if the policy had moved from where it began
    module.kl_weight.fill_(0.5)
    run = trainer(tmp_path, 1, [RolloutCollection(episodes=6, slots=4)])
    run.fit(module, data)
    module.load_state_dict(PPO.load_from_checkpoint(_saved(run, tmp_path), weights_only=True).state_dict())
    played = _play(module, name)
    assert None not in [one.final_value for one in played]
    played[0] = replace(played[0], terminated=True, truncated=False)
    played[1] = replace(played[1], final_value=None)  # as for a policy that does not note it: it is read again
    parts = [list(segments(e, Encoder(module.tokenizer), Window(task(name).last_texts, 90))) for e in played]
    found = module.prepare_rollout(played, parts)
    advantages = []
    expected = []
    log_ratios = []
    for e, its in zip(played, found, strict=True):
        value = np.concatenate([values_along(module, part.ids)[part.col].numpy() for part in its])
        start = np.concatenate([_start_logprobs(module, part) for part in its])
        now = np.concatenate([p for p in e.action_logprobs])
        reward = np.concatenate([part.reward for part in its]) - 0.5 * (now - start)
        log_ratios.append(start - now)
        last = its[-1].next_ids
        assert (last is None) == e.terminated
        end = 0.0 if last is None else float(values_along(module, last)[-1])
        expected.append(gae(reward, value, end, 0.9, 0.8))
        columns = {name: np.concatenate([part.columns[name] for part in its]) for name in PPOColumns._fields[:4]}
        np.testing.assert_array_equal(columns["logprob"], np.float32(now))
        np.testing.assert_allclose(columns["value"], value, atol=1e-4)
        np.testing.assert_allclose(columns["target"], expected[-1] + value, atol=1e-3)
        advantages.append(columns["advantage"])
    pool = np.concatenate(expected)
    np.testing.assert_allclose(np.concatenate(advantages), (pool - pool.mean()) / pool.std(), atol=1e-3)
    # The logged KL is k3, the mean of pi_ref / pi - 1 - log(pi_ref / pi) over the action tokens of the round.
    log_ratio = np.concatenate(log_ratios)
    kl = (np.exp(log_ratio) - 1.0 - log_ratio).mean()
    assert kl > 1e-4 and run.callback_metrics["ppo/kl"].item() == pytest.approx(kl, rel=1e-2)


def _saved(run: Any, folder: Path) -> Path:
    run.save_checkpoint(folder / "now.ckpt")
    return folder / "now.ckpt"


def _play(module: PPO, name: str) -> list[Episode]:
    window = module.window
    module.window = Window(task(name).last_texts, 90)
    played = evaluate(module.policy(max_new_tokens=8), name, 6, env={"max_steps": 3}).episodes
    module.window = window
    return [*played]


@torch.no_grad()
def _start_logprobs(module: PPO, part: Segment) -> np.ndarray[Any, Any]:
    logits = module.ref_model(input_ids=torch.from_numpy(part.ids)[None].long()).logits[0, part.col]
    logits[:, module.invalid] = -torch.inf
    chosen: np.ndarray[Any, Any] = logits.log_softmax(-1)[torch.arange(len(part.col)), part.token.astype(int)].numpy()
    return chosen


def test_rounds_note_the_value_beyond_their_last_observation(
    bc_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Episode] = []
    read = PPO._end_values

    def noting(module: PPO, rollout: Sequence[RolloutEpisode]) -> list[float]:
        seen.extend(episode.episode for episode in rollout)
        return read(module, rollout)

    monkeypatch.setattr(PPO, "_end_values", noting)
    fit(ppo(bc_run), rounds(epochs=1), tmp_path, steps=1)
    assert any(one.truncated for one in seen)
    assert all((one.final_value is not None) == one.truncated for one in seen)


def test_only_the_policy_and_its_values_learn(bc_run: str, tmp_path: Path) -> None:
    module = ppo(bc_run)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    fit(module, rounds(), tmp_path, steps=4)
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, before[name]) == name.startswith("ref_model."), name
        assert parameter.requires_grad != name.startswith("ref_model.")
    assert not module.train().ref_model.training
    for name, theirs in module.ref_model.state_dict().items():
        assert torch.equal(theirs, load_module(bc_run).model.state_dict()[name])


def prepared(module: PPO, data: Recording, tmp_path: Path) -> list[TokenBatch]:
    fit(module, data, tmp_path, steps=1)
    return data.batches


def gradients(module: PPO, batches: Sequence[TokenBatch]) -> list[Tensor]:
    module.zero_grad()
    for batch in batches:
        (module.losses(batch).loss * batch.n_tokens).backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


def test_a_minibatch_weighs_as_its_parts(bc_run: str, tmp_path: Path) -> None:
    module = ppo(bc_run)
    data = Recording(batch_size=16)
    fit(module, data, tmp_path, steps=1)
    parts = [data.played[index] for index in range(16)]
    whole = gradients(module, [collate(parts)])
    halves = gradients(module, [collate(parts[:3]), collate(parts[3:])])
    for one, two in zip(whole, halves, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)


def test_played_and_recorded_tokens_have_divisors_of_their_own(
    bc_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ppo(bc_run)
    data = Recording(batch_size=16)
    played = prepared(module, data, tmp_path)[0]
    recorded = collate([data.played[index] for index in range(3)], expected=(1000.0, 1.0))
    module.bc_weight = 2.0
    monkeypatch.setattr(module.reporter, "train_recorded", lambda *_: None)
    monkeypatch.setattr(module.reporter, "train", lambda *_: 0)
    found = module.training_step({"round": played, "bc": recorded}, 0)
    imitation = bc_loss(module.logits(recorded), recorded.state, recorded.token).loss * recorded.n_tokens
    expected = module.losses(played).loss * played.n_tokens / played.expected_tokens + 2.0 * imitation / 1000.0
    assert found.item() == pytest.approx(expected.item())


@pytest.mark.slow
def test_recorded_episodes_can_hold_it_back(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    """With a large weight on BC and nothing else to learn, the second loader alone decides."""
    settings = {"value_weight": 0.0, "kl_weight": 0.0, "clip": 0.0}
    module = ppo(bc_run, bc_weight=10.0, **settings)
    fit(module, rounds(path=str(data_path), offline=True, batch_size=32), tmp_path / "ppo", steps=40)
    losses = logged(tmp_path / "ppo", "ppo/bc_loss")
    assert losses[-1] < 0.7 * losses[0]


def test_the_kl_penalty_coefficient_moves_and_is_saved(bc_run: str, tmp_path: Path) -> None:
    module = ppo(bc_run, kl_weight=0.1, kl_target=1e-4, kl_horizon=100)
    fit(module, rounds(), tmp_path, steps=12, callbacks=[KeepLast()])
    coefficients = logged(tmp_path, "ppo/kl_weight")
    # The policy has not moved in the first round, so the coefficient falls by 20 % of 6 / 100. Then the KL is ten times
    # its target, so the coefficient rises as much.
    assert coefficients[:3] == pytest.approx([0.1, 0.1 * 0.988, 0.1 * 0.988 * 1.012])
    loaded = load_module(tmp_path / "last.ckpt")
    assert isinstance(loaded, PPO)
    assert torch.equal(loaded.kl_weight, module.kl_weight) and module.kl_weight != 0.1


def test_the_kl_penalty_coefficient_waits_for_the_critic(bc_run: str, tmp_path: Path) -> None:
    adaptive: dict[str, Any] = {"kl_weight": 0.1, "kl_target": 1e-4, "kl_horizon": 100}
    module = ppo(bc_run, critic="detached", critic_warmup_rounds=2, **adaptive)
    fit(module, rounds(), tmp_path, steps=9)
    # The policy learns from the third round, whose KL moves the coefficient of the fourth.
    assert logged(tmp_path, "ppo/kl_weight")[:4] == pytest.approx([0.1, 0.1, 0.1, 0.1 * 0.988])


def test_a_trunk_of_the_critics_own_saves_memory_where_the_policy_does(bc_run: str, tmp_path: Path) -> None:
    module = PPO(pretrained=bc_run, critic="own", activation_checkpointing=True)
    fit(module, rounds(), tmp_path, 1)
    assert isinstance(module.critic, OwnCritic) and module.critic.trunk.is_gradient_checkpointing


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks at inputs
def test_a_shared_critic_learns_in_compiled_layers(bc_run: str, tmp_path: Path) -> None:
    """Its share of the gradient is a second gradient of the same pass."""
    torch._dynamo.reset()  # other tests have compiled with other settings
    module = PPO(pretrained=bc_run, critic="shared", compile="aot_eager")
    assert fit(module, rounds(), tmp_path, 2).global_step == 2


def test_the_reference_model_is_not_moved_to_where_the_policy_plays(bc_run: str) -> None:
    """On a GPU it would take as much memory again."""
    module = ppo(bc_run)
    _move_to_device(module, torch.device("meta"))
    assert all(weight.is_meta for weight in module.model.parameters()) and module.device.type == "meta"
    assert not any(weight.is_meta for weight in module.ref_model.parameters())


def test_rounds_and_their_callback_can_be_used_for_one_run_after_another(bc_run: str, tmp_path: Path) -> None:
    data = rounds()
    playing = RolloutCollection(episodes=6, slots=4)
    finals = []
    for name in ("first", "second"):
        torch.manual_seed(0)
        module = ppo(bc_run)
        fit(module, data, tmp_path / name, steps=3, playing=playing)
        finals.append(module.state_dict())
    assert all(torch.equal(finals[0][key], finals[1][key]) for key in finals[0])


def test_mixed_precision_plays_and_learns(bc_run: str, tmp_path: Path) -> None:
    run = trainer(tmp_path, 3, [RolloutCollection(episodes=6, slots=4)], precision="bf16-mixed")
    run.fit(ppo(bc_run), rounds())
    first = logged(tmp_path, "ppo/first_ratio")
    assert first == pytest.approx([1.0] * len(first), abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "data", "message"),
    [
        ({}, {"keep_replay": True}, r"keep_replay must be False"),
        ({}, {"offline": True}, r"offline must be False"),
        ({"bc_weight": 1.0}, {}, r"offline must be True"),
        ({"kl_target": 1.0}, {}, "kl_target and kl_horizon"),
        ({"kl_target": 1.0, "kl_horizon": 9.0, "kl_weight": 0.0}, {}, "kl_weight, which must not be 0"),
    ],
)
def test_settings_that_do_not_fit(
    arguments: dict[str, Any], data: dict[str, Any], message: str, bc_run: str, data_path: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        fit(ppo(bc_run, **arguments), rounds(path=str(data_path), **data), tmp_path, steps=1)


def test_recorded_batches_alone_are_no_rounds(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"use lmrl\.datamodules.OnlineDataModule"):
        trainer(tmp_path, 1).fit(ppo(bc_run), MazeDataModule("maze_fo", path=str(data_path)))
    with pytest.raises(UserError, match=r"add the callback lmrl\.callbacks.RolloutCollection"):
        trainer(tmp_path, 1).fit(ppo(bc_run), rounds())


@pytest.mark.parametrize(("asynchronous", "steps"), [(False, 5), (True, 5), (True, 3)])
def test_a_loss_that_is_no_number_stops_with_its_batch_saved(
    asynchronous: bool, steps: int, bc_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the run notices it one step later, or when it ends."""
    monkeypatch.setattr("lmrl.training.reporting._is_asynchronous", lambda device: asynchronous)

    class Broken(PPO):
        def losses(self, batch: TokenBatch) -> Any:
            terms = super().losses(batch)
            return terms._replace(loss=terms.loss * float("nan")) if self.global_step == 2 else terms

    with pytest.raises(UserError, match=r"step 2 is not finite \(.*policy_loss .*bad_batch.pt"):
        fit(Broken(pretrained=bc_run), rounds(), tmp_path, steps=steps)
    saved = torch.load(tmp_path / "bad_batch.pt", weights_only=True)
    assert saved["step"] == 2
    batch = TokenBatch(**saved["batch"])
    assert batch.columns is not None
    assert {name: len(column) for name, column in batch.columns.items()} == dict.fromkeys(
        PPOColumns._fields[:4], batch.n_tokens
    )
