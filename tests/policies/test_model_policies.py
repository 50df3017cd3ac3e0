import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import lmrl
from lmrl.decoding.engine import Engine
from lmrl.errors import UserError
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import BC
from lmrl.policies.conditioned import ConditionedPolicy
from lmrl.policies.lm import ActorCriticPolicy, LMPolicy, load_lm_policy
from lmrl.policies.rerank import RerankPolicy
from lmrl.policies.value_guided import ValueGuidedPolicy
from lmrl.rollout import in_order, rollout
from lmrl.tokens.encoding import Encoder, Window
from lmrl.tokens.segments import context
from lmrl.types import Policy, Request, Resettable, Start, Valued
from tests.tokens.test_encoding import CHATML, tokenizer

TOKENIZER = load_tokenizer()
ENCODER = Encoder(TOKENIZER)
VOCABULARY = len(TOKENIZER) + 3  # three ids that the tokenizer does not know
INVALID = torch.tensor([i in TOKENIZER.all_special_ids or i >= len(TOKENIZER) for i in range(VOCABULARY)])
WINDOW = Window(texts=None, tokens=200)
MOVES = ("move left\n", "move right\n", "move up\n", "move down\n")


def tiny(seed: int, **architecture: object) -> PreTrainedModel:
    settings = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 256, "initializer_range": 0.2}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build_lm(None, {**settings, **architecture}, VOCABULARY).eval()


def head(seed: int, out: int = VOCABULARY) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(32, out).requires_grad_(False)


MODEL = tiny(0)
VALUE_MODEL = tiny(1)
Q1 = head(2)
Q2 = head(3)
V = head(4, out=1)


def lm(**settings: float) -> LMPolicy:
    return LMPolicy(MODEL, TOKENIZER, WINDOW, **{"max_new_tokens": 10, **settings})  # type: ignore[arg-type]


def actor_critic() -> ActorCriticPolicy:
    return ActorCriticPolicy(MODEL, TOKENIZER, WINDOW, v_head=V, max_new_tokens=10)


def guided(beta: float = 2.0, v_head: nn.Module | None = None, **settings: float | str) -> ValueGuidedPolicy:
    return ValueGuidedPolicy(
        MODEL,
        TOKENIZER,
        WINDOW,
        value_model=VALUE_MODEL,
        q_heads=(Q1, Q2),
        v_head=v_head,
        beta=beta,
        **{"max_new_tokens": 10, **settings},  # type: ignore[arg-type]
    )


REQUESTS = [
    Request(slot=0, seed=5, observations=("There are no walls.\n",)),
    Request(slot=1, seed=6, observations=("You see walls above you.\n", "No walls.\n"), actions=("move up\n",)),
    Request(slot=2, seed=5, observations=("There are no walls.\n",)),
]


def read(request: Request) -> list[int]:
    return context(ENCODER, WINDOW, request.observations, request.actions, request.action_ids)


@torch.inference_mode()
def states(model: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    """(len(ids), width) hidden vectors by a full forward pass."""
    return model(input_ids=torch.tensor([list(ids)]), output_hidden_states=True).hidden_states[-1][0]


def ranking(**settings: Any) -> RerankPolicy:
    return RerankPolicy(MODEL, TOKENIZER, WINDOW, proposals=MOVES, **settings)


@pytest.mark.parametrize(
    ("policy", "models"),
    [
        (lm(), {MODEL}),
        (guided(), {MODEL, VALUE_MODEL}),
        (guided(beta=0.0), {MODEL, VALUE_MODEL}),
        (ranking(), {MODEL}),
        (ranking(score="value", value_model=VALUE_MODEL, q_heads=(Q1,), logit_weight=1.0), {MODEL, VALUE_MODEL}),
        (ConditionedPolicy(lm(), "return 1 of 2\n", always=True), {MODEL}),
    ],
    ids=["lm", "guided", "beta 0", "rerank", "rerank by values", "conditioned"],
)
def test_what_was_read_is_forgotten_by_all_models(
    policy: Policy, models: set[PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[PreTrainedModel] = []
    monkeypatch.setattr(Engine, "reset", lambda engine: forgotten.append(engine.model))
    assert isinstance(policy, Resettable)
    policy.reset()
    assert len(forgotten) == len(models) and set(forgotten) == models


def play(policy: Policy, slots: int, episodes: int = 4, turns: int = 3) -> list[lmrl.Episode]:
    return in_order(
        rollout(
            policy,
            lambda: lmrl.make("maze_po"),
            [Start(seed) for seed in range(episodes)],
            task="maze_po",
            slots=slots,
            stop=lambda request: request.turn >= turns,
        )
    )


def said(policy: Policy, *requests: Request) -> list[str]:
    return [reply.text for reply in policy.act(requests)]


@pytest.mark.parametrize("make", [lm, guided])
def test_episodes_do_not_depend_on_the_number_of_slots(make: type) -> None:
    # Batches of other sizes round otherwise, by about 1e-6: among few likely tokens no draw is that near to a border.
    for settings in ({"temperature": 0.0}, {"temperature": 1.0, "top_k": 16}):
        ids = [[e.action_ids for e in play(make(**settings), slots)] for slots in (1, 3, 64)]
        assert ids[0] == ids[1] == ids[2]


@pytest.mark.nightly
def test_compiled_steps_of_both_models_say_the_same() -> None:
    plain, compiled = (play(guided(v_head=V, compile=choice), slots=3) for choice in (False, "eager"))
    for ours, theirs in zip(compiled, plain, strict=True):
        assert ours.action_ids == theirs.action_ids
        assert sum(map(sum, ours.action_values)) == pytest.approx(sum(map(sum, theirs.action_values)), abs=1e-4)
    torch.compiler.reset()


def test_what_was_sampled_is_what_is_said() -> None:
    for episode in play(lm(), slots=3):
        for text, ids, logprobs in zip(episode.actions, episode.action_ids, episode.action_logprobs, strict=True):
            assert text == ENCODER.decode(ids)
            assert len(ids) == len(logprobs) <= 10
            assert text.endswith("\n") or len(ids) == 10
            assert all("\n" not in ENCODER.decode((token,)) for token in ids[:-1])
            assert max(ids) < len(TOKENIZER)
            assert not set(ids) & set(TOKENIZER.all_special_ids)


def test_log_probabilities_of_a_whole_episode_by_one_full_forward_pass() -> None:
    (episode,) = play(lm(), slots=1, episodes=1)
    ids = context(ENCODER, WINDOW, episode.observations, episode.actions, episode.action_ids)
    with torch.inference_mode():
        logits = MODEL.lm_head(states(MODEL, ids))
    logprobs = logits.masked_fill(INVALID, -math.inf).log_softmax(-1)
    position = 0
    for turn, sampled in enumerate(episode.action_ids):
        position += len(ENCODER.encode(episode.observations[turn]))
        for token, logprob in zip(sampled, episode.action_logprobs[turn], strict=True):
            assert ids[position] == token
            assert logprob == pytest.approx(float(logprobs[position - 1, token]), abs=1e-4)
            position += 1


def test_the_window_of_texts_is_what_is_read() -> None:
    first = Request(slot=0, seed=1, observations=("old\n", "No walls.\n"), actions=("move up\n",))
    second = Request(slot=0, seed=1, observations=("new\n", "No walls.\n"), actions=("move down\n",))
    short = LMPolicy(MODEL, TOKENIZER, Window(texts=1, tokens=200), max_new_tokens=10)
    assert said(short, first) == said(short, second)
    assert said(lm(), first) != said(lm(), second)


def test_beta_zero_says_what_the_language_model_says() -> None:
    assert guided(beta=0.0).act(REQUESTS) == lm().act(REQUESTS)
    assert guided(beta=2.0).act(REQUESTS) != lm().act(REQUESTS)


def test_state_values_with_a_v_head() -> None:
    values = guided(v_head=V).state_values(REQUESTS)
    expected = [float(V(states(VALUE_MODEL, read(request))[-1])) for request in REQUESTS]
    assert values.dtype == torch.float32
    assert not values.is_inference()
    assert values.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_state_values_without_one_are_the_expectation_under_the_policy(temperature: float) -> None:
    values = guided(temperature=temperature).state_values(REQUESTS)
    for value, request in zip(values.tolist(), REQUESTS, strict=True):
        hidden = states(VALUE_MODEL, read(request))[-1]
        q = torch.minimum(Q1(hidden), Q2(hidden))
        with torch.inference_mode():
            logits = MODEL.lm_head(states(MODEL, read(request))[-1]) + 2.0 * q
        logits = logits.masked_fill(INVALID, -math.inf)
        weights = logits.softmax(-1) if temperature else logits == logits.max()
        assert value == pytest.approx(float((weights * q).sum()), abs=1e-4)


def test_values_and_actions_share_the_cache() -> None:
    policy = guided(v_head=V)
    before = policy.state_values(REQUESTS)
    assert said(policy, *REQUESTS) == said(guided(v_head=V), *REQUESTS)
    torch.testing.assert_close(policy.state_values(REQUESTS), before, atol=1e-4, rtol=0)


def summed(request: Request, proposal: str, what: str) -> float:
    """A proposal's score by full forward passes, token by token."""
    prompt = read(request)
    ids = ENCODER.encode(proposal)
    total = 0.0
    model = MODEL if what == "likelihood" else VALUE_MODEL
    hidden = states(model, [*prompt, *ids])[len(prompt) - 1 : -1]
    for vector, token in zip(hidden, ids, strict=True):
        if what == "likelihood":
            with torch.inference_mode():
                logits = MODEL.lm_head(vector).masked_fill(INVALID, -math.inf)
            total += float(logits.log_softmax(-1)[token])
        else:
            total += float(torch.minimum(Q1(vector), Q2(vector))[token]) - (what == "advantage") * float(V(vector))
    return total


def rerank(score: str, **settings: object) -> RerankPolicy:
    models = {"value_model": VALUE_MODEL, "q_heads": (Q1, Q2)} if score == "value" else {}
    options = {"proposals": MOVES, "score": score, **models, **settings}
    return RerankPolicy(MODEL, TOKENIZER, WINDOW, **options)  # type: ignore[arg-type]


def check_scores(policy: RerankPolicy, *parts: tuple[str, float]) -> None:
    expected = [[sum(w * summed(r, move, what) for what, w in parts) for move in MOVES] for r in REQUESTS]
    torch.testing.assert_close(policy.scores(REQUESTS), torch.tensor(expected), atol=1e-3, rtol=1e-4)
    best = [MOVES[row.index(max(row))] for row in expected]
    replies = policy.act(REQUESTS)
    assert [reply.text for reply in replies] == best
    assert [reply.ids for reply in replies] == [ENCODER.encode(text) for text in best]


def test_scores_of_proposals_equal_full_forward_passes() -> None:
    check_scores(rerank("likelihood"), ("likelihood", 1.0))
    check_scores(rerank("value", v_head=V), ("advantage", 1.0))
    check_scores(rerank("value", v_head=V, logit_weight=0.5), ("advantage", 1.0), ("likelihood", 0.5))
    check_scores(rerank("value"), ("q", 1.0))


def test_a_value_score_needs_no_language_model() -> None:
    policy = RerankPolicy(
        None, TOKENIZER, WINDOW, proposals=MOVES, score="value", value_model=VALUE_MODEL, q_heads=(Q1, Q2), v_head=V
    )
    check_scores(policy, ("advantage", 1.0))


def test_sampled_proposals_follow_the_softmax_of_large_scores() -> None:
    def huge(hidden: Tensor) -> Tensor:
        return Q1(hidden) + 1e4  # exp(1e4) overflows; the softmax must not

    policy = rerank("value", q_heads=(huge,), temperature=2.0)
    weights = (policy.scores(REQUESTS[:1])[0] / 2.0).softmax(-1).tolist()
    prompts = [Request(slot=seed, seed=seed, observations=REQUESTS[0].observations) for seed in range(400)]
    replies = policy.act(prompts)
    for move, weight in zip(MOVES, weights, strict=True):
        chosen = [reply for reply in replies if reply.text == move]
        assert len(chosen) / 400 == pytest.approx(weight, abs=0.08)
        for reply in chosen:
            assert len(reply.ids) == len(reply.logprobs)
            assert sum(reply.logprobs) == pytest.approx(math.log(weight), abs=1e-2)
    assert replies[7].text == said(policy, prompts[7])[0]


def test_nothing_to_read_is_refused_by_name() -> None:
    silent = Request(slot=0, seed=5, observations=("No walls.\n", ""), actions=("move up\n",))
    with pytest.raises(UserError, match="observation 1 of the episode with seed 5 is an empty text"):
        LMPolicy(MODEL, TOKENIZER, Window(texts=1, tokens=200), max_new_tokens=10).act([silent])
    assert len(lm().act([silent])) == 1


def test_no_requests_no_replies() -> None:
    assert [policy.act([]) for policy in (lm(), guided(), rerank("likelihood"))] == [[], [], []]


def test_they_are_policies() -> None:
    assert all(isinstance(policy, Policy) for policy in (lm(), guided(), rerank("likelihood")))


class _NoLines:
    all_special_ids: tuple[int, ...] = ()
    added_tokens_decoder: Mapping[int, AddedToken] = {}
    is_fast = False

    def __len__(self) -> int:
        return 3

    def decode(self, ids: list[int], **_: object) -> str:
        return "a" * len(ids)


def test_errors_name_the_rule() -> None:
    with pytest.raises(UserError, match=r"window.tokens \(250\) and the longest action \(10 tokens\).* 256 positions"):
        LMPolicy(MODEL, TOKENIZER, Window(tokens=250), max_new_tokens=10)
    with pytest.raises(UserError, match="together must fit"):
        ValueGuidedPolicy(
            MODEL, TOKENIZER, WINDOW, value_model=tiny(0, n_positions=128), q_heads=(Q1,), beta=1.0, max_new_tokens=10
        )
    tokenizer: PreTrainedTokenizerBase = _NoLines()  # type: ignore[assignment]
    with pytest.raises(UserError, match="line break"):
        LMPolicy(MODEL, tokenizer, WINDOW, max_new_tokens=10)
    with pytest.raises(UserError, match="unknown score 'best'; known: guided, likelihood, value"):
        rerank("best")
    with pytest.raises(UserError, match="value_model must be given"):
        rerank("value", value_model=None)
    with pytest.raises(UserError, match="q_heads"):
        rerank("value", q_heads=())
    for proposals in ((), ("move up\n", "")):
        with pytest.raises(UserError, match="proposals"):
            rerank("likelihood", proposals=proposals)


@pytest.mark.parametrize("policy", [actor_critic(), guided(v_head=V), guided(beta=0.0, v_head=V)])
def test_values_are_those_of_the_states_in_which_the_ids_were_drawn(policy: Policy) -> None:
    model = MODEL if isinstance(policy, LMPolicy) else VALUE_MODEL
    for request, reply in zip(REQUESTS, policy.act(REQUESTS), strict=True):
        before = read(request)
        hidden = states(model, [*before, *reply.ids])
        expected = V(hidden)[len(before) - 1 : -1, 0]
        torch.testing.assert_close(torch.tensor(reply.values), expected, atol=1e-5, rtol=0.0)
    (episode, *_) = play(policy, slots=2)
    assert [len(values) for values in episode.action_values] == [len(ids) for ids in episode.action_ids]


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("policy", [actor_critic(), guided(v_head=V)])
def test_the_value_after_an_episode_that_is_cut_is_that_of_all_that_was_said(policy: Policy, slots: int) -> None:
    model = MODEL if isinstance(policy, LMPolicy) else VALUE_MODEL
    assert isinstance(policy, Valued)
    values = policy.state_values(REQUESTS)
    torch.testing.assert_close(values, torch.stack([V(states(model, read(r)))[-1, 0] for r in REQUESTS]))
    for episode in play(policy, slots):
        after = context(ENCODER, WINDOW, episode.observations, episode.actions, episode.action_ids)
        assert episode.final_value == pytest.approx(V(states(model, after))[-1, 0].item(), abs=1e-5)


def test_without_a_value_head_there_are_no_values() -> None:
    assert [reply.values for reply in lm().act(REQUESTS)] == [()] * 3
    episode = play(lm(), slots=2)[0]
    assert episode.action_values == () and episode.final_value is None
    assert not isinstance(lm(), Valued)


def test_a_run_that_is_named_as_a_model_reads_what_it_read_in_training(tmp_path: Path) -> None:
    tokenizer(CHATML).save_pretrained(tmp_path / "tokens")
    module = BC(
        architecture={"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 256}, tokenizer=str(tmp_path / "tokens")
    )
    module.window = Window(2, 200, "chat", "Play well.")
    module.export(tmp_path / "run")
    with pytest.raises(UserError, match="max_new_tokens must be less than the model's 256 positions, got 256"):
        load_lm_policy(str(tmp_path / "run"), None, 256, temperature=0.0, slots=1)
    policy = load_lm_policy(str(tmp_path / "run"), None, 8, temperature=0.0, slots=1)
    assert policy._context_builder.window == module.window
    requests = [Request(0, 0, ("Hi\n", "Bye\n", "Who?\n"), ("a\n", "b\n"))]
    own = module.policy(max_new_tokens=8)
    assert policy._context_builder.contexts(requests) == own._context_builder.contexts(requests)
