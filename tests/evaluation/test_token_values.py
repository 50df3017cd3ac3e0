"""What is written over the words is what the policy itself goes by."""

from math import exp
from typing import Any

import pytest
import torch

from lmrl.evaluation import evaluate
from lmrl.evaluation.token_values import action_scores, token_values
from lmrl.modules import BC, ILQL, MC, LanguageModule
from lmrl.tokens.encoding import Encoder, Window
from lmrl.tokens.segments import context
from lmrl.types import Episode, Request

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 512, "initializer_range": 0.5}


def made(kind: type[LanguageModule], window: Window, **settings: Any) -> LanguageModule:
    torch.manual_seed(3)
    module = kind(architecture=TINY, **settings).eval()
    for parameter in getattr(module, "q_heads", torch.nn.Module()).parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    module.window = window
    return module


@pytest.mark.parametrize("kind", [BC, MC, ILQL])
@pytest.mark.parametrize("window", [Window(texts=1, tokens=200), Window(tokens=400)], ids=["last text", "all texts"])
def test_probabilities_and_values_are_those_of_the_policy(kind: type[LanguageModule], window: Window) -> None:
    module = made(kind, window, **({} if kind is BC else {"beta": 2.0}))
    policy: Any = module.policy(max_new_tokens=4)
    episodes = evaluate(policy, "maze_fo", 3, env={"max_steps": 4}).episodes
    found = list(token_values(module, episodes))
    for episode, turns in zip(episodes, found, strict=True):
        decode = module.tokenizer.decode
        assert [[token.text for token in turn] for turn in turns] == [
            [decode([token]) for token in ids] for ids in episode.action_ids
        ]
        sampled = [[exp(logprob) for logprob in turn] for turn in episode.action_logprobs]
        assert [[token.probability for token in turn] for turn in turns] == [
            pytest.approx(turn, rel=1e-4) for turn in sampled
        ]
        if kind is BC:
            assert {(token.v, token.q) for turn in turns for token in turn} == {(None, None)}
            continue
        for turn, tokens in enumerate(turns):
            request = Request(turn, episode.seed, episode.observations[: turn + 1], episode.actions[:turn],
                              episode.action_ids[:turn])  # fmt: skip
            assert tokens[0].v == pytest.approx(policy.state_values([request]).item(), abs=1e-4)
            assert tokens[0].q == pytest.approx(first_q(module, request, episode.action_ids[turn][0]), abs=1e-4)


def test_dropout_is_off_also_where_training_has_just_ended(bc_run: str) -> None:
    """As after `Trainer.fit`, which leaves a module in training mode."""
    module = BC(pretrained=bc_run, lora={"r": 2, "lora_dropout": 0.5})
    module.window = Window(tokens=100)
    for name, parameter in module.named_parameters():
        if "lora_B" in name:  # which begins at 0
            torch.nn.init.normal_(parameter)
    (episode,) = evaluate("random", "maze_fo", 1, env={"max_steps": 3}).episodes
    (expected,) = token_values(module.eval(), [episode])
    nll = next(action_scores(module, [episode])).nll
    module.train()
    assert [*token_values(module, [episode])] == [expected]
    assert next(action_scores(module, [episode])).nll.tolist() == nll.tolist()
    assert all(part.training for part in module.modules())


def first_q(module: Any, request: Request, token: int) -> float:
    """The min_q Q of a turn's first token, from a forward pass over its context alone."""
    ids = context(
        Encoder(module.tokenizer), module.context_window(), request.observations, request.actions, request.action_ids
    )
    with torch.inference_mode():
        hidden = module.trunk(torch.tensor([ids])).last_hidden_state[0, -1:]
        return min(float(head(hidden)[0, token]) for head in module.q_heads)


def test_texts_that_were_never_sampled_have_values_too() -> None:
    module = made(ILQL, Window(texts=1, tokens=200))
    walk = Episode("maze_fo", ("here\n",) * 3, ("move up\n",) * 2, (-1.0, -1.0), False, True)
    (turns,) = token_values(module, [walk])
    assert ["".join(token.text for token in turn) for turn in turns] == ["move up\n"] * 2
