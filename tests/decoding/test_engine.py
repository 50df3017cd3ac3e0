import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel

from lmrl.decoding.engine import Engine, default_slots
from lmrl.errors import UserError
from lmrl.models.lm import build_lm

VOCABULARY = 48
ARCHITECTURES = {
    # Weights large enough that a wrong position or a visible neighbour moves the logits by far more than 1e-4.
    "gpt2": {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 96, "initializer_range": 0.3},
    "llama": {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 96,
        "initializer_range": 0.3,
    },
}


@pytest.fixture(params=[("gpt2", "sdpa"), ("gpt2", "eager"), ("llama", "sdpa"), ("llama", "eager")], ids="-".join)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    name, attention = request.param
    return tiny(name, attention)


def tiny(name: str = "gpt2", attention: str = "sdpa", seed: int = 0) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build_lm(None, ARCHITECTURES[name], VOCABULARY)
    model.set_attn_implementation(attention)
    return model.eval()


def words(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]


@torch.inference_mode()
def full(model: PreTrainedModel, context: list[int]) -> Tensor:
    """Return the logits of the bare model after the context: one row, no padding, no cache."""
    return model(input_ids=torch.tensor([context])).logits[0, -1]


def check(engine: Engine, slots: list[int], contexts: list[list[int]]) -> None:
    logits = engine.logits(engine.feed(slots, contexts))
    expected = torch.stack([full(engine.model, context) for context in contexts])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_turns_of_ragged_lengths_equal_full_forward_passes(model: PreTrainedModel) -> None:
    rng = random.Random(0)
    engine = Engine(model, slots=5)
    contexts = {slot: words(rng, rng.randint(1, 9)) for slot in range(5)}
    for _ in range(8):
        active = rng.sample(range(5), rng.randint(1, 5))
        for slot in active:
            contexts[slot] += words(rng, rng.randint(0, 7))
        check(engine, active, [contexts[slot] for slot in active])


def test_rows_that_leave_one_by_one_do_not_disturb_the_others(model: PreTrainedModel) -> None:
    rng = random.Random(1)
    engine = Engine(model, slots=6)
    contexts = [words(rng, 3 + slot) for slot in range(6)]
    check(engine, list(range(6)), contexts)
    for active in ([0, 1, 2, 3, 4, 5], [1, 2, 3, 5], [5, 2], [5]):
        new = words(rng, len(active))
        for slot, token in zip(active, new, strict=True):
            contexts[slot].append(token)
        logits = engine.logits(engine.append(active, new))
        expected = torch.stack([full(model, contexts[slot]) for slot in active])
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    check(engine, [3, 0, 4, 1, 5, 2], [contexts[slot] + [7] for slot in (3, 0, 4, 1, 5, 2)])


def test_a_sliding_window_and_a_new_episode_in_the_slot(model: PreTrainedModel) -> None:
    rng = random.Random(2)
    engine = Engine(model, slots=2)
    history = words(rng, 30)
    for end in range(10, 30, 4):
        check(engine, [0, 1], [history[max(0, end - 12) : end], history[:end]])
    check(engine, [0, 1], [words(rng, 4), [*history[:3], 9, 9]])
    check(engine, [1], [history[:2]])
    check(engine, [1], [history[:2]])


def test_a_long_prompt_among_short_ones_is_read_apart() -> None:
    rng = random.Random(3)
    engine = Engine(tiny(), slots=12)
    seen = shapes(engine.model)
    contexts = [words(rng, 80 if slot == 4 else 2) for slot in range(12)]
    check(engine, list(range(12)), contexts)
    assert seen == [(1, 80), (11, 2)]


def test_only_new_tokens_are_read() -> None:
    rng = random.Random(4)
    engine = Engine(tiny(), slots=2)
    seen = shapes(engine.model)
    first = words(rng, 20)
    second = words(rng, 20)
    engine.feed([0, 1], [first, second])
    engine.feed([0, 1], [[*first, 5, 6], [*second, 7, 8]])
    engine.feed([1], [[*second, 7, 8]])
    assert seen == [(2, 20), (2, 2), (1, 1)]


def test_prompts_read_in_pieces(monkeypatch: pytest.MonkeyPatch, model: PreTrainedModel) -> None:
    monkeypatch.setattr("lmrl.decoding.reader._MAX_SCORES", 200)
    rng = random.Random(5)
    engine = Engine(model, slots=3)
    seen = shapes(model)
    check(engine, [0, 1, 2], [words(rng, n) for n in (25, 3, 14)])
    assert seen == [(3, 2)] * 12 + [(3, 1)]  # 3 x 25 scores per new token leave room for two tokens a piece


def test_more_slots_than_promised_and_any_numbers() -> None:
    rng = random.Random(6)
    engine = Engine(tiny(), slots=1)
    slots = [100, 3, 77, 5, 0]
    contexts = [words(rng, 4) for _ in slots]
    for slot, context in zip(slots, contexts, strict=True):
        check(engine, [slot], [context])
    check(engine, slots, [[*context, 1] for context in contexts])


def test_longer_than_the_first_allocation_up_to_the_last_position(model: PreTrainedModel) -> None:
    rng = random.Random(7)
    engine = Engine(model, slots=2)
    long = words(rng, 60)
    short = words(rng, 2)
    check(engine, [0, 1], [long, short])
    long = long + words(rng, 35)
    short = short + words(rng, 20)
    check(engine, [0, 1], [long, short])
    # Eight columns of padding are behind the last position of the model.
    check(engine, [0, 1], [long + words(rng, 1), short + words(rng, 9)])
    with pytest.raises(UserError, match="must not exceed 96 tokens; slot 0"):
        engine.append([1, 0], [1, 1])


def test_branches_equal_separate_full_forward_passes(model: PreTrainedModel) -> None:
    rng = random.Random(8)
    engine = Engine(model, slots=3)
    contexts = [words(rng, n) for n in (4, 17, 9)]
    branches = [[1, 2, 3], [4], [1, 5, 6, 7], [8, 9]]
    engine.feed([2, 0, 1], contexts)  # rows in another order than the question below
    hidden = engine.branch([0, 1, 2], [contexts[1], contexts[2], contexts[0]], branches)
    assert hidden.shape == (3, 4, 4, 32)
    for row, context in enumerate((contexts[1], contexts[2], contexts[0])):
        for index, branch in enumerate(branches):
            for step in range(len(branch)):
                logits = engine.logits(hidden[row, index, step][None])[0]
                torch.testing.assert_close(logits, full(model, context + branch[:step]), atol=1e-4, rtol=0)
    check(engine, [0, 1, 2], [contexts[1] + [3], contexts[2], contexts[0] + [11, 12]])


def test_changed_weights_are_read_anew() -> None:
    model = tiny()
    engine = Engine(model, slots=1)
    before = engine.logits(engine.feed([0], [[1, 2, 3, 4]]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(input_ids=torch.tensor([[1, 2, 3, 4]])).logits.square().sum().backward()
    optimizer.step()
    check(engine, [0], [[1, 2, 3, 4]])
    assert (engine.logits(engine.feed([0], [[1, 2, 3, 4]])) - before).abs().max() > 0.1


def test_runs_in_eval_mode_and_leaves_the_mode_as_it_was() -> None:
    model = tiny()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    model.train()
    frozen = next(module for module in model.modules() if isinstance(module, nn.LayerNorm)).eval()
    engine = Engine(model, slots=1)
    hidden = engine.feed([0], [[1, 2, 3]])
    assert not hidden.requires_grad
    assert model.training and not frozen.training
    assert {module.training for module in model.modules() if module is not frozen} == {True}
    model.eval()
    torch.testing.assert_close(engine.logits(hidden)[0], full(model, [1, 2, 3]), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda engine: engine.feed([0], [[]]), "1 to 96 tokens; slot 0 came with 0"),
        (lambda engine: engine.feed([0, 1], [[1], [1] * 97]), "1 to 96 tokens; slot 1 came with 97"),
        (lambda engine: engine.feed([2, 2], [[1], [1]]), r"distinct, got \[2, 2\]"),
        (lambda engine: engine.branch([0], [[1] * 95], [[1, 2, 3]]), "must not exceed 96"),
        (lambda engine: Engine(engine.model, max_length=97), "between 1 and the model's 96 positions, got 97"),
    ],
)
def test_errors_name_the_rule(act: Callable[[Engine], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        act(Engine(tiny()))


def test_attention_that_cannot_be_driven_is_refused() -> None:
    other = tiny()
    other.config._attn_implementation = "flex_attention"
    with pytest.raises(UserError, match="'eager' or 'sdpa'"):
        Engine(other)


def shapes(model: PreTrainedModel) -> list[tuple[int, ...]]:
    """Return a list that collects the shape of the ids of every forward pass with a cache from now on."""
    seen: list[tuple[int, ...]] = []

    def note(_: nn.Module, __: object, kwargs: dict[str, Tensor]) -> None:
        # transformers has renamed the keyword in 5.24.
        cache = kwargs["cache"] if "cache" in kwargs else kwargs["past_key_values"]
        if cache is not None:
            seen.append(tuple(kwargs["input_ids"].shape))

    model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    return seen


@pytest.mark.parametrize(("memory", "slots"), [(80e9, 256), (26e9, 128), (10e9, 32), (1e8, 8)])
def test_slots_are_as_many_as_the_memory_has_room_for(
    memory: float, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot of a model of SmolLM2's size takes 47 MB for a context of 1,024 tokens."""
    config = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    positions = {"max_position_embeddings": 8192, "head_dim": 64, "model_type": "llama"}
    model = SimpleNamespace(
        device=torch.device("cuda"), dtype=torch.float32, config=LlamaConfig(**{**config, **positions})
    )
    monkeypatch.setattr("lmrl.decoding.engine.memory_of", lambda device: int(memory))
    assert default_slots(model) == slots  # type: ignore[arg-type]
    assert default_slots(model, 8) == 8  # type: ignore[arg-type]
    model.device = torch.device("cpu")
    assert default_slots(model) == 32  # type: ignore[arg-type]
