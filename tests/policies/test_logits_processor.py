"""``generate`` with learned values plays what the value-guided policy plays."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from lmrl.errors import UserError
from lmrl.modules import BC, ILQL
from lmrl.policies import ValueGuidedLogitsProcessor
from lmrl.tokens.encoding import Window
from lmrl.types import Request

TINY = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128, "initializer_range": 0.2}
TEXTS = ["There are no walls.\n", "You see walls above you. The goal is at position 8, 6.\n", "Guess: a\n"]
BETA = 3.0
LONGEST = 6


@pytest.fixture(scope="module")
def module() -> ILQL:
    torch.manual_seed(0)
    made = ILQL(architecture=TINY, beta=BETA, q_rank=8)
    made.window = Window(tokens=100)
    made.made_with = {"task": "maze_fo", "max_new_tokens": LONGEST}
    with torch.no_grad():
        for head in made.q_heads:
            head.outer.weight.normal_(0, 0.5)
        for parameter in made.trunk.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return made.eval()


@pytest.fixture(scope="module")
def folder(module: ILQL, tmp_path_factory: pytest.TempPathFactory) -> Path:
    module.export(path := tmp_path_factory.mktemp("run") / "best")
    return path


def policy_says(module: ILQL, beta: float) -> list[tuple[int, ...]]:
    requests = [Request(slot=i, seed=0, observations=(text,)) for i, text in enumerate(TEXTS)]
    policy = module.policy(temperature=0.0, beta=beta, max_new_tokens=LONGEST)
    return [tuple(reply.ids) for reply in policy.act(requests)]


def generate(folder: Path, texts: list[str], processor: ValueGuidedLogitsProcessor) -> list[tuple[int, ...]]:
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False, return_token_type_ids=False)
    said = model.generate(**inputs, logits_processor=[processor], do_sample=False)[:, inputs.input_ids.shape[1] :]
    return [tuple(token for token in row if token != tokenizer.pad_token_id) for row in said.tolist()]


@pytest.mark.parametrize("beta", [BETA, 0.0])
def test_greedy_generation_is_the_greedy_policy(module: ILQL, folder: Path, beta: float) -> None:
    expected = policy_says(module, beta)
    assert len(set(expected)) > 1
    processor = ValueGuidedLogitsProcessor.from_pretrained(folder, beta=beta)
    assert [generate(folder, [text], processor)[0] for text in TEXTS] == expected  # one after the other, one cache
    assert generate(folder, TEXTS, processor) == expected  # the exported tokenizer pads on the left


def test_the_beta_of_the_run_is_the_default(module: ILQL, folder: Path) -> None:
    assert policy_says(module, BETA) != policy_says(module, 0.0)
    assert generate(folder, TEXTS, ValueGuidedLogitsProcessor.from_pretrained(folder)) == policy_says(module, BETA)


def test_what_was_read_is_not_read_again(folder: Path) -> None:
    processor = ValueGuidedLogitsProcessor.from_pretrained(folder)
    lengths: list[int] = []
    processor.value_model.register_forward_pre_hook(
        lambda _m, _a, words: lengths.append(words["input_ids"].shape[1]), with_kwargs=True
    )
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    scores = torch.zeros(2, len(AutoTokenizer.from_pretrained(folder)))
    first = processor(ids, scores)
    longer = processor(torch.cat([ids, ids[:, :1]], 1), scores)
    changed_places = processor(torch.cat([ids, ids[:, :1]], 1).flip(0), scores)
    assert lengths == [3, 1, 4]
    torch.testing.assert_close(changed_places, longer.flip(0))
    torch.testing.assert_close(processor(ids, scores), first)


def test_special_ids_are_never_said(folder: Path) -> None:
    processor = ValueGuidedLogitsProcessor.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = processor(torch.tensor([[5]]), torch.zeros(1, len(tokenizer)))
    assert (found == -torch.inf).nonzero()[:, 1].tolist() == sorted(tokenizer.all_special_ids)
    assert GenerationConfig.from_pretrained(folder).suppress_tokens == sorted(tokenizer.all_special_ids)


def test_plain_generation_is_the_policy_below(module: ILQL, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (model.generation_config.top_k, model.generation_config.do_sample) == (0, True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    said = [
        tuple(model.generate(ids, do_sample=False)[0, ids.shape[1] :].tolist())
        for ids in (torch.tensor([tokenizer.encode(text)]) for text in TEXTS)
    ]
    assert said == policy_says(module, 0.0)


def test_what_is_missing_or_wrong_is_named(folder: Path, tmp_path: Path) -> None:
    plain = BC(architecture=TINY)
    plain.window = Window()
    plain.export(tmp_path / "bc")
    with pytest.raises(
        UserError, match=r"exported folder of MC or ILQL: there are no Q heads in its value_heads\.safetensors"
    ):
        ValueGuidedLogitsProcessor.from_pretrained(tmp_path / "bc")
    with pytest.raises(UserError, match="beta must be at least 0"):
        ValueGuidedLogitsProcessor.from_pretrained(folder, beta=-1.0)
    trunk = ValueGuidedLogitsProcessor.from_pretrained(folder).value_model
    with pytest.raises(UserError, match="q_heads must have at least one head"):
        ValueGuidedLogitsProcessor(trunk, [], 1.0)
