"""Models of other kinds than GPT-2 and Llama: logits as their own forward pass gives them, or a refusal."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from lmrl.decoding.check import check_model
from lmrl.decoding.engine import Engine
from lmrl.errors import UserError
from lmrl.evaluation.token_values import _probability_v_q
from lmrl.losses import bc_loss
from lmrl.models.lm import (
    READ_WITHOUT_MASKS,
    build_lm,
    logits_of,
    positions_of,
    read_rows,
    trunk_of,
    without_masks,
)
from lmrl.modules import BC, GRPO, PPO, LanguageModule
from tests.helpers.doubles import episode, table_batch

VOCABULARY = 64
LENGTHS = (29, 17, 8)

#: Sizes by the names that configurations have for them.
SIZES = {
    32: "hidden_size d_model n_embd dim emb_dim embedding_size word_embed_proj_dim embed_dim lru_width",
    48: "intermediate_size ffn_dim n_inner ffn_hidden_size encoder_ffn_dim decoder_ffn_dim moe_intermediate_size "
    "shared_expert_intermediate_size shared_intermediate_size dff dim_ff intermediate_size_mlp block_ff_dim",
    4: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_attention_heads n_head n_heads "
    "num_heads encoder_attention_heads decoder_attention_heads num_experts num_local_experts n_routed_experts "
    "moe_num_experts index_n_heads",
    2: "num_key_value_heads num_experts_per_tok top_k_experts moe_topk moe_k",
    1: "n_group topk_group",
    8: "head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim attention_head_size kv_channels qk_head_dim",
    16: "q_lora_rank kv_lora_rank index_head_dim",
    VOCABULARY: "vocab_size vocab_size_per_layer_input",
    96: "max_position_embeddings n_positions n_ctx max_seq_len seq_length",
}
SIZE_BY_NAME = {name: size for size, names in SIZES.items() for name in names.split()}

#: Settings that some kinds also need, or that make them differ from Llama.
SETTINGS: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 4},
    "cohere": {"logit_scale": 0.3},
    "gemma2": {"final_logit_softcapping": 3.0},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 16},
    "gpt_oss": {"sliding_window": 16},
    "gptj": {"rotary_dim": 4},
    "granite": {"logits_scaling": 8.0},
    "hrm_text": {"initializer_range": 0.1},  # its many cycles amplify rounding
    "minicpm3": {"num_key_value_heads": 4},
    "mistral": {"sliding_window": 16},
    "reformer": {"is_decoder": True},
}

EXACT = (
    "codegen",
    "cohere",
    "gemma2",
    "gpt_neo",
    "gpt_oss",
    "granite",
    "mistral",
    "mixtral",
    "nanochat",
    "opt",
    "qwen3",
)
REFUSED = {
    "bart": "in training with branches|in decoding",
    "bert": "later tokens",
    "bloom": "max_position_embeddings",
    "mamba": "linear_attention",
    "minicpm3": "logits in training differ",
    "qwen3_next": "linear_attention",
    "rwkv": "differ from its own",
}


def sizes_of(config: PreTrainedConfig) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, size in SIZE_BY_NAME.items():
        known = isinstance(getattr(config, name, None), int) or name in ("num_key_value_heads", "head_dim")
        if known and hasattr(config, name) and name not in type(config).attribute_map:
            found[name] = size
    for name in getattr(type(config), "sub_configs", None) or {}:
        part = getattr(config, name, None)
        if isinstance(part, PreTrainedConfig):
            found[name] = {"model_type": part.model_type, **sizes_of(part)}
    return found


def architectures(kind: str) -> list[dict[str, Any]]:
    """Return settings of a tiny model; some kinds refuse what others need, so the later settings have fewer entries."""
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    # Weights large enough that a wrong position or a visible neighbour moves the logits by far more than 1e-3.
    full = {**sizes_of(AutoConfig.for_model(kind)), **ids, "initializer_range": 0.3, **SETTINGS.get(kind, {})}
    without = (set(), {"head_dim"}, {"num_key_value_heads"}, {"head_dim", "num_key_value_heads"})
    return [{"model_type": kind, **{k: v for k, v in full.items() if k not in left_out}} for left_out in without]


def tiny(kind: str, settings: dict[str, Any]) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_lm(None, settings, VOCABULARY)
    return model


class Differences(NamedTuple):
    """The largest differences from the model's own forward pass."""

    loss: float
    logits: float
    logprobs: float


def differences(model: PreTrainedModel) -> Differences:
    """Return the differences in training and in decoding, for three ragged rows and three turns.

    Raises:
        UserError: the model is refused.
    """
    check_model(model)
    random = torch.Generator().manual_seed(1)
    longest = positions_of(model.config)
    rows = [torch.randint(3, VOCABULARY, (min(n, longest),), generator=random).tolist() for n in LENGTHS]
    own = [own_logits(model, row) for row in rows]
    loss = abs(training_loss(model, rows) - own_loss(own, rows))
    if type(trunk_of(model)) in READ_WITHOUT_MASKS:  # as on a GPU
        with without_masks(model.config):
            loss = max(loss, abs(training_loss(model, rows) - own_loss(own, rows)))
    engine = Engine(model, slots=3)
    logits = logprobs = 0.0
    for left_out in (4, 1, 0):
        contexts = [row[: len(row) - left_out] for row in rows]
        found = engine.logits(engine.feed([0, 1, 2], contexts)).float()
        expected = torch.stack([own_logits(model, context)[-1] for context in contexts])
        logits = max(logits, float((found - expected).abs().max()))
        logprobs = max(logprobs, float((found.log_softmax(-1) - expected.log_softmax(-1)).abs().max()))
    return Differences(loss, logits, logprobs)


@torch.no_grad()
def own_logits(model: PreTrainedModel, ids: list[int]) -> Tensor:
    model.eval()
    logits: Tensor = model(input_ids=torch.tensor([ids])).logits[0].float()
    return logits


def own_loss(own: list[Tensor], rows: list[list[int]]) -> float:
    logits = torch.cat([table[:-1] for table in own])
    return float(cross_entropy(logits, torch.cat([torch.tensor(row[1:]) for row in rows])))


@torch.no_grad()
def training_loss(model: PreTrainedModel, rows: list[list[int]]) -> float:
    model.train()
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    hidden = read_rows(trunk_of(model), ids, None, None)
    model.eval()
    scores = logits_of(model, hidden.reshape(-1, hidden.shape[-1]))
    states = torch.cat([width * number + torch.arange(len(row) - 1) for number, row in enumerate(rows)])
    tokens = torch.cat([torch.tensor(row[1:]) for row in rows])
    return float(bc_loss(scores, states, tokens).loss)


@pytest.mark.parametrize("kind", EXACT)
def test_kinds_that_are_exact(kind: str) -> None:
    assert max(differences(tiny(kind, architectures(kind)[0]))) < 3e-5


@pytest.mark.parametrize("kind", REFUSED)
def test_kinds_that_are_refused_in_one_line(kind: str) -> None:
    settings = architectures(kind)[0]
    with pytest.raises(UserError, match=f"{kind}.*({REFUSED[kind]})") as refusal:
        differences(tiny(kind, settings))
    assert "\n" not in str(refusal.value)
    del settings["initializer_range"]  # as a user makes it: weights so small that differences are small too
    with pytest.raises(UserError, match=f"{kind}.*({REFUSED[kind]})"):
        BC(architecture=settings)


@pytest.mark.parametrize("algorithm", [GRPO, PPO])
@pytest.mark.parametrize("kind", ["granite", "gemma2"])
def test_policy_gradients_and_token_values_read_the_own_logits(kind: str, algorithm: type[LanguageModule]) -> None:
    settings = architectures(kind)[0]
    del settings["vocab_size"]  # the tokenizer decides it
    module: Any = algorithm(architecture=settings)
    batch = table_batch([episode("0", "R", "1", "L", "0", rewards=[-1.0, -1.0], terminated=True)])
    with torch.no_grad():
        own = module.model(input_ids=batch.input_ids).logits[batch.row, batch.col]
        torch.testing.assert_close(module.logits(batch), own, atol=3e-5, rtol=0.0)
        torch.testing.assert_close(module.ref_logits(batch), own, atol=3e-5, rtol=0.0)
        probability = own.masked_fill(module.invalid, -torch.inf).softmax(-1)[batch.state, batch.token]
        torch.testing.assert_close(_probability_v_q(module, batch, None)[0], probability, atol=1e-5, rtol=0.0)


def test_the_check_of_a_model_changes_nothing() -> None:
    model = tiny("granite", architectures("granite")[0]).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    check_model(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("kind", ["gpt_neo", "mistral"])
def test_contexts_end_where_a_layer_would_no_longer_see_all_of_them(kind: str) -> None:
    model = tiny(kind, architectures(kind)[0])
    engine = Engine(model)
    with pytest.raises(UserError, match="1 to 16 tokens; slot 0 came with 17"):
        engine.feed([0], [[5] * 17])


@pytest.mark.nightly
def test_every_kind_of_transformers_is_exact_or_refused() -> None:
    exact: list[str] = []
    refused: dict[str, str] = {}
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        model = built(kind)
        if model is None:
            continue
        try:
            found = differences(model)
        except UserError as error:
            refused[kind] = str(error)
            continue
        assert max(found) < 1e-3, (kind, found)
        exact.append(kind)
    assert len(exact) + len(refused) >= 140
    assert len(exact) >= 85
    assert not [text for text in refused.values() if "\n" in text]
    print(f"exact: {' '.join(exact)}")
    print(f"refused: {' '.join(refused)}")


def built(kind: str) -> PreTrainedModel | None:
    """Return a model of fewer than five million parameters, or None if none can be made from sizes alone."""
    try:
        candidates = architectures(kind)
    except Exception:
        return None
    for settings in candidates:
        try:
            with torch.device("meta"):
                sketch = build_lm(None, settings, VOCABULARY)
        except Exception:
            continue
        if sum(p.numel() for p in sketch.parameters()) > 5_000_000:
            continue
        model = tiny(kind, settings)
        try:
            own_logits(model, [3, 4, 5])
        except Exception:
            continue
        return model
    return None
