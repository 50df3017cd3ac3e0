import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lmrl.decoding.engine import Engine
from lmrl.decoding.sampling import (
    Decoder,
    Guidance,
    SampledAction,
    SamplingSettings,
    add_q_to_logits,
    min_q,
    process_logits,
)
from lmrl.errors import UserError
from lmrl.models.lm import build_lm

VOCABULARY = 40
ROWS = 8
# Ids that the samples below hold at different places, so that rows leave at different times.
STOPS = frozenset([8, 13, 27, 28, 30])
INVALID = torch.arange(VOCABULARY) >= 36
CONTEXTS = [[(row * 5 + i * 3) % 36 for i in range(2 + row)] for row in range(ROWS)]
SEEDS = [100 + row for row in range(ROWS)]
Head = Callable[[Tensor], Tensor]


def tiny(seed: int) -> PreTrainedModel:
    architecture = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 64, "initializer_range": 0.2}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build_lm(None, architecture, VOCABULARY).eval()


def head(seed: int) -> Head:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(32, VOCABULARY).requires_grad_(False)


MODEL = tiny(0)
VALUE_MODEL = tiny(1)
Q1 = head(2)
Q2 = head(3)


def decoder(
    beta: float | None = None, heads: tuple[Head, ...] = (Q1, Q2), slots: int = ROWS, **support: float
) -> Decoder:
    if beta is None:
        return Decoder(Engine(MODEL, slots), invalid=INVALID)
    return Decoder(Engine(MODEL, slots), Guidance(Engine(VALUE_MODEL, slots), heads, beta, **support), INVALID)


def say(
    speaker: Decoder,
    settings: SamplingSettings | None = None,
    rows: list[int] | None = None,
    slots: list[int] | None = None,
) -> list[SampledAction]:
    rows = list(range(ROWS)) if rows is None else rows
    return speaker.generate(
        rows if slots is None else slots,
        [CONTEXTS[row] for row in rows],
        [SEEDS[row] for row in rows],
        [row % 3 for row in rows],
        settings or SamplingSettings(max_new_tokens=12, stop_ids=STOPS),
    )


def full(model: PreTrainedModel, context: list[int]) -> Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([context]), output_hidden_states=True).hidden_states[-1][0, -1]


def expected_logits(context: list[int], beta: float) -> Tensor:
    """The weighed logits by full forward passes of both models."""
    with torch.inference_mode():
        base = MODEL.lm_head(full(MODEL, context))
        hidden = full(VALUE_MODEL, context)
        return (base + beta * torch.minimum(Q1(hidden), Q2(hidden))).masked_fill(INVALID, -math.inf)


@pytest.mark.parametrize("beta", [None, 0.0, 3.0])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.5, "top_k": 9, "top_p": 0.8}, {"temperature": 0.0}])
def test_every_sampled_token_has_the_log_probability_of_a_full_forward_pass(
    beta: float | None, settings: dict[str, float]
) -> None:
    for context, sample in zip(CONTEXTS, say(decoder(beta), _settings(**settings)), strict=True):
        for step, (token, logprob) in enumerate(zip(sample.ids, sample.logprobs, strict=True)):
            logits = expected_logits(context + list(sample.ids[:step]), beta or 0.0)
            expected = process_logits(logits[None], **settings)[0, token]
            assert logprob == pytest.approx(float(expected), abs=1e-4)


def _settings(**settings: float) -> SamplingSettings:
    return SamplingSettings(max_new_tokens=12, stop_ids=STOPS, **settings)  # type: ignore[arg-type]


def test_rows_end_with_the_stop_id_or_when_there_is_no_room() -> None:
    samples = say(decoder(), SamplingSettings(max_new_tokens=6, stop_ids=STOPS))
    assert {sample.finished for sample in samples} == {True, False}
    assert len({len(sample.ids) for sample in samples}) > 2
    for sample in samples:
        assert not STOPS & set(sample.ids[:-1])
        assert sample.finished == (sample.ids[-1] in STOPS)
        assert sample.finished or len(sample.ids) == 6
        assert len(sample.logprobs) == len(sample.ids)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("beta", [None, 3.0])
def test_neither_slot_nor_batch_matters(beta: float | None, temperature: float) -> None:
    settings = _settings(temperature=temperature)
    together = say(decoder(beta, slots=64), settings)
    single = decoder(beta, slots=1)
    alone = [say(single, settings, [row], slots=[0])[0] for row in range(ROWS)]
    order = [5, 2, 7, 0, 1, 6, 4, 3]
    shuffled = say(decoder(beta), settings, order, slots=[3, 0, 6, 5, 7, 1, 2, 4])
    halves = decoder(beta)
    split = [*say(halves, settings, [0, 1, 2]), *say(halves, settings, [3, 4, 5, 6, 7])]
    for other in (alone, [shuffled[order.index(row)] for row in range(ROWS)], split):
        assert [sample.ids for sample in other] == [sample.ids for sample in together]
        for one, two in zip(other, together, strict=True):
            assert one.logprobs == pytest.approx(two.logprobs, abs=1e-4)


def test_seed_and_turn_decide_the_sample() -> None:
    speaker = decoder()
    args = ([0, 1, 2], [CONTEXTS[4]] * 3)
    settings = SamplingSettings(max_new_tokens=10)
    first, turn, seed = speaker.generate(*args, [1, 1, 2], [0, 1, 0], settings)
    again = speaker.generate(*args, [1, 1, 2], [0, 1, 0], settings)
    assert [first.ids, turn.ids, seed.ids] == [sample.ids for sample in again]
    assert len({first.ids, turn.ids, seed.ids}) == 3


def test_beta_zero_is_the_language_model_bit_by_bit() -> None:
    # Even with values that are not numbers: they must not be looked at.
    def broken(hidden: Tensor) -> Tensor:
        return torch.full((len(hidden), VOCABULARY), math.inf)

    slots = list(range(ROWS))
    assert torch.equal(decoder(0.0, (broken,)).score(slots, CONTEXTS), decoder().score(slots, CONTEXTS))
    assert say(decoder(0.0, (broken,))) == say(decoder())


def test_a_masked_vocabulary_gives_no_nan() -> None:
    def hopeless(hidden: Tensor) -> Tensor:
        return Q1(hidden).masked_fill(INVALID, -math.inf)

    logits = decoder(2.0, (hopeless,)).score([0], [[1, 2]])
    assert not bool(logits.isnan().any())
    assert torch.equal(logits == -math.inf, INVALID[None])


def test_a_shift_of_each_state_changes_nothing() -> None:
    def shifted(hidden: Tensor) -> Tensor:
        return Q1(hidden) + 50 * hidden[:, :1]

    slots = list(range(ROWS))
    plain = decoder(3.0, (Q1,)).score(slots, CONTEXTS).log_softmax(-1)
    moved = decoder(3.0, (shifted,)).score(slots, CONTEXTS).log_softmax(-1)
    torch.testing.assert_close(plain, moved, atol=1e-3, rtol=1e-4)
    ids = [sample.ids for sample in say(decoder(3.0, (Q1,)))]
    assert ids == [sample.ids for sample in say(decoder(3.0, (shifted,)))]


def test_the_lowest_head_counts() -> None:
    def endless(hidden: Tensor) -> Tensor:
        return torch.full((len(hidden), VOCABULARY), math.inf)

    slots = list(range(ROWS))
    both = decoder(3.0, (Q1, Q2)).score(slots, CONTEXTS)
    assert torch.equal(both, decoder(3.0, (Q2, Q1)).score(slots, CONTEXTS))
    first = decoder(3.0, (Q1,)).score(slots, CONTEXTS)
    assert torch.equal(first, decoder(3.0, (Q1, endless)).score(slots, CONTEXTS))
    assert not torch.allclose(both, first)


def test_the_weighed_distribution_by_hand() -> None:
    # .8 * e^0 and .2 * e^(ln 4 * 1) are equal.
    logits = add_q_to_logits(torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.0, 1.0]]), math.log(4))
    torch.testing.assert_close(logits.softmax(-1), torch.tensor([[0.5, 0.5]]))
    pair = (lambda _: torch.tensor([[0.0, 9.0]]), lambda _: torch.tensor([[5.0, 1.0]]))
    assert min_q(pair, torch.zeros(1, 1)).tolist() == [[0.0, 1.0]]


def test_a_large_beta_takes_the_best_value_within_the_support() -> None:
    slots = list(range(ROWS))
    base = decoder().score(slots, CONTEXTS)
    best_four = base >= base.topk(4).values[:, -1:]
    with torch.inference_mode():
        q = torch.stack([torch.minimum(Q1(h), Q2(h)) for h in (full(VALUE_MODEL, context) for context in CONTEXTS)])
    expected = q.masked_fill(~best_four, -math.inf).argmax(-1)
    speaker = decoder(1e6, support_top_k=4)
    assert torch.equal(speaker.score(slots, CONTEXTS) > -math.inf, best_four)
    samples = say(speaker, SamplingSettings(max_new_tokens=1))
    assert [sample.ids[0] for sample in samples] == expected.tolist()
    assert expected.tolist() != q.masked_fill(INVALID, -math.inf).argmax(-1).tolist()


def test_the_support_by_mass_holds_without_values() -> None:
    slots = list(range(ROWS))
    base = decoder().score(slots, CONTEXTS)
    expected = process_logits(base, top_p=0.5) > -math.inf
    for beta in (0.0, 5.0):
        assert torch.equal(decoder(beta, support_top_p=0.5).score(slots, CONTEXTS) > -math.inf, expected)


def test_invalid_ids_are_never_sampled() -> None:
    def tempting(hidden: Tensor) -> Tensor:
        return torch.where(INVALID, 100.0, 0.0).expand(len(hidden), -1)

    settings = SamplingSettings(max_new_tokens=20)
    for speaker in (decoder(5.0, (tempting,)), decoder()):
        said = {token for sample in say(speaker, settings) for token in sample.ids}
        assert len(said) > 10
        assert max(said) < 36


def test_two_caches_are_never_mixed() -> None:
    guided = decoder(3.0)
    say(guided)
    contexts = [[*context, 3, 4] for context in CONTEXTS]
    slots = list(range(ROWS))
    good = guided.score(slots, contexts)
    expected = torch.stack([expected_logits(context, 3.0) for context in contexts])
    torch.testing.assert_close(good, expected, atol=1e-4, rtol=1e-4)
    # With the language model's keys and values behind the value model, the same question has another answer.
    swapped = decoder(3.0)
    say(swapped)
    assert swapped.guidance is not None
    swapped.guidance.engine._reader._cache._keys = swapped.engine._reader._cache._keys
    swapped.guidance.engine._reader._cache._values = swapped.engine._reader._cache._values
    assert (swapped.score(slots, contexts) - good).abs().nan_to_num(0).max() > 0.1


def test_one_engine_for_both_models_is_refused() -> None:
    engine = Engine(MODEL)
    with pytest.raises(UserError, match="must not share a cache"):
        Decoder(engine, Guidance(engine, (Q1,), 1.0))


@pytest.mark.parametrize(
    ("heads", "beta", "message"), [((), 1.0, "q_heads"), ((Q1,), -1.0, "beta"), ((Q1,), math.inf, "beta")]
)
def test_guidance_outside_its_range(heads: tuple[Head, ...], beta: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        decoder(beta, heads)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_with_broken_weights_says_so(temperature: float) -> None:
    broken = tiny(5)
    with torch.no_grad():
        broken.transformer.ln_f.weight[0] = math.nan
    with pytest.raises(UserError, match="must be finite"):
        say(Decoder(Engine(broken)), _settings(temperature=temperature))


def test_only_what_is_new_is_read_in_the_next_turn() -> None:
    speaker = decoder()
    seen: list[int] = []
    samples = say(speaker, SamplingSettings(max_new_tokens=3))
    handle = MODEL.base_model.register_forward_pre_hook(
        lambda _, __, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        longer = [[*context, *sample.ids, 5, 6] for context, sample in zip(CONTEXTS, samples, strict=True)]
        speaker.score(list(range(ROWS)), longer)
    finally:
        handle.remove()
    assert seen == [3]  # the last id that was sampled, and the two after it
