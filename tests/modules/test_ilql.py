"""ILQL that plays its target networks."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lmrl.checkpoints.export import load_values
from lmrl.evaluation import evaluate
from lmrl.evaluation.token_values import token_values
from lmrl.models.critic import OwnCritic
from lmrl.modules import ILQL, GuidedPPO, LanguageModule
from lmrl.policies import ValueGuidedLogitsProcessor
from lmrl.tokens.collate import collate
from lmrl.tokens.encoding import Window, encoder_for, invalid_ids
from lmrl.tokens.segments import context, segments
from lmrl.types import Request
from tests.helpers.online import ENV

MOVES = ("move left\n", "move up\n")
REQUESTS = [Request(0, 5, ("The goal is at position 8, 6.\n",)), Request(1, 6, ("There are no walls.\n",))]


@pytest.fixture
def module(bc_run: str) -> ILQL:
    """Every part has random weights of its own."""
    torch.manual_seed(0)
    module = ILQL(pretrained=bc_run, beta=3.0, polyak=0.25, play_target=True).eval()
    module.window = Window(texts=1, tokens=100)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not name.startswith("model."):
                parameter += 0.3 * torch.randn_like(parameter)
    return module


def read(module: LanguageModule, request: Request) -> list[int]:
    encoder = encoder_for(module.tokenizer, module.context_window())
    return context(encoder, module.context_window(), request.observations, request.actions, request.action_ids)


@torch.no_grad()
def played(module: ILQL, ids: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """``(len(ids), vocabulary)`` log-probabilities, lowest Q and V of the target networks, by full forward passes."""
    tokens = torch.tensor([list(ids)])
    hidden = module.target_trunk(input_ids=tokens).last_hidden_state[0]
    q = torch.minimum(*(head(hidden) for head in module.target_q_heads))
    weighed = module.model(input_ids=tokens).logits[0] + 3.0 * q
    invalid = invalid_ids(module.tokenizer, q.shape[-1], torch.device("cpu"), None)
    return weighed.masked_fill(invalid, -math.inf).log_softmax(-1), q, module.target_v_head(hidden)[:, 0]


def test_what_is_sampled_is_weighed_by_the_target_networks(module: ILQL) -> None:
    policy = module.policy(max_new_tokens=6)
    for request, reply in zip(REQUESTS, policy.act(REQUESTS), strict=True):
        before = read(module, request)
        logprobs, _, v = played(module, [*before, *reply.ids])
        states = range(len(before) - 1, len(before) - 1 + len(reply.ids))
        expected = [float(logprobs[state, token]) for state, token in zip(states, reply.ids, strict=True)]
        assert reply.logprobs == pytest.approx(expected, abs=1e-4)
        assert reply.values == pytest.approx([float(v[state]) for state in states], abs=1e-4)
    assert policy.state_values(REQUESTS).tolist() == pytest.approx(
        [float(played(module, read(module, request))[2][-1]) for request in REQUESTS], abs=1e-4
    )


def assert_ranked_by(module: LanguageModule, scores_after: Callable[[list[int]], Tensor]) -> None:
    """Compare a reranker with sums over the tokens of each action.

    Args:
        module: whose reranker is tested.
        scores_after: for the ids of a text, (ids, vocabulary) the score of each token after each of them.
    """
    encoder = encoder_for(module.tokenizer, module.context_window())
    expected = []
    for request in REQUESTS:
        before = read(module, request)
        row = []
        for move in MOVES:
            ids = encoder.action(move)
            scores = scores_after([*before, *ids])[len(before) - 1 :]
            row.append(sum(float(scores[place, token]) for place, token in enumerate(ids)))
        expected.append(row)
    torch.testing.assert_close(module.reranker(MOVES).scores(REQUESTS), torch.tensor(expected), atol=1e-3, rtol=1e-4)


def test_actions_are_ranked_by_the_target_networks(module: ILQL) -> None:
    def advantages(ids: list[int]) -> Tensor:
        _, q, v = played(module, ids)
        return q - v[:, None]

    assert_ranked_by(module, advantages)


def test_what_is_exported_is_what_is_played(module: ILQL, tmp_path: Path) -> None:
    module.export(tmp_path / "ilql")
    trunk, heads, _ = load_values(tmp_path / "ilql")
    for ours, theirs in ((module.target_trunk, trunk), *zip(module.target_q_heads, heads, strict=True)):
        for name, tensor in ours.state_dict().items():
            assert torch.equal(tensor, theirs.state_dict()[name]), name
    ids = read(module, REQUESTS[0])
    processor = ValueGuidedLogitsProcessor.from_pretrained(tmp_path / "ilql")
    weighed = processor(torch.tensor([ids]), module.model(input_ids=torch.tensor([ids])).logits[:, -1])
    torch.testing.assert_close(weighed.log_softmax(-1)[0], played(module, ids)[0][-1], atol=1e-4, rtol=0.0)


def test_a_sharded_module_exports_them_too(module: ILQL, tmp_path: Path) -> None:
    """There the whole weights come as a state dict."""
    module.export(tmp_path / "ilql", weights=module.state_dict())
    (head, _), expected = load_values(tmp_path / "ilql").q_heads, module.target_q_heads[0].state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in head.state_dict().items())


def test_ppo_ranks_actions_by_the_policy_that_it_plays(module: ILQL, tmp_path: Path) -> None:
    """The values of the run are parts of the logits now: their differences to V mean nothing any more."""
    module.export(tmp_path / "ilql")
    guided = GuidedPPO(pretrained=str(tmp_path / "ilql"), beta=3.0).eval()
    guided.window = module.window

    def logprobs(ids: list[int]) -> Tensor:
        text = torch.tensor([ids])
        hidden = guided.trunk(input_ids=text).last_hidden_state[0]
        lowest = torch.minimum(*(head(hidden) for head in guided.q_heads))
        logits = guided.model(input_ids=text).logits[0] + 3.0 * lowest
        return logits.masked_fill(guided.invalid_token_ids(), -torch.inf).log_softmax(-1).detach()

    assert_ranked_by(guided, logprobs)


def test_a_critic_of_its_own_begins_as_the_values_that_play(module: ILQL, tmp_path: Path) -> None:
    module.export(tmp_path / "ilql")
    guided = GuidedPPO(pretrained=str(tmp_path / "ilql"), critic="own")
    assert isinstance(guided.critic, OwnCritic)
    for name, tensor in guided.trunk.state_dict().items():
        assert torch.equal(tensor, guided.critic.trunk.state_dict()[name]), name


def test_ppo_goes_on_from_what_was_played(module: ILQL, tmp_path: Path) -> None:
    module.export(tmp_path / "ilql")
    guided = GuidedPPO(pretrained=str(tmp_path / "ilql"), beta=3.0).eval()
    guided.window = module.window
    ours, theirs = (
        [(e.actions, e.action_values) for e in evaluate(m.policy(max_new_tokens=4), "maze_fo", 3, env=ENV).episodes]
        for m in (module, guided)
    )
    assert ours == theirs


def test_pages_show_what_is_played(module: ILQL) -> None:
    (episode,) = evaluate(module.policy(max_new_tokens=4), "maze_fo", 1, env=ENV).episodes
    shown = [token for action in next(token_values(module, [episode])) for token in action]
    said = [number for turn in episode.action_logprobs for number in turn]
    assert [math.log(token.probability) for token in shown] == pytest.approx(said, abs=1e-4)
    values = [value for turn in episode.action_values for value in turn]
    assert [token.v for token in shown] == pytest.approx(values, abs=1e-4)


def test_the_target_v_is_updated_and_nothing_else_changes(module: ILQL) -> None:
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.update_target_networks()
    for name, tensor in module.state_dict().items():
        fast = before.get(name.removeprefix("target_"), tensor) if name.startswith("target_") else before[name]
        torch.testing.assert_close(tensor, before[name].lerp(fast, 0.25) if tensor.is_floating_point() else fast)
    assert not torch.equal(before["target_v_head.inner.weight"], module.target_v_head.inner.weight)
    module.train()
    assert not any(part.training for part in module.target_v_head.modules())


def test_what_is_learned_does_not_depend_on_what_is_played(module: ILQL, bc_run: str) -> None:
    other = ILQL(pretrained=bc_run, beta=3.0).eval()
    other.load_state_dict({n: t for n, t in module.state_dict().items() if not n.startswith("target_v_head.")})
    other.window = module.window
    (episode,) = evaluate(module.policy(max_new_tokens=4), "maze_fo", 1, env=ENV).episodes
    batch = collate(
        [*segments(episode, encoder_for(module.tokenizer, module.context_window()), module.context_window())],
        bootstrap=True,
    )
    assert torch.equal(module.losses(batch).loss, other.losses(batch).loss)
    ours, theirs = (m.policy(max_new_tokens=4).state_values(REQUESTS).tolist() for m in (module, other))
    assert ours != theirs
