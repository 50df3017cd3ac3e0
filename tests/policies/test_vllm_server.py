"""A real vLLM server says what our slot engine says. `make vllm` runs it."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lmrl.decoding.sampling import process_logits
from lmrl.envs.registry import task
from lmrl.evaluation import evaluate
from lmrl.models.tokenizer import load_tokenizer
from lmrl.policies import LMPolicy, VLLMPolicy, load_vllm_policy
from lmrl.policies.lm import ContextBuilder
from lmrl.tokens.encoding import Window, invalid_ids
from lmrl.types import Episode, Request
from tests.helpers.vllm import VLLMServer

pytestmark = pytest.mark.nightly

TASK = task("twenty_questions")
TOKENIZER = load_tokenizer("lmrl")
DIALOGUES = 64
POSITIONS = 1024
WINDOW = Window(TASK.last_texts, POSITIONS - TASK.max_action_tokens)
CUT = {"temperature": 0.7, "top_k": 50, "top_p": 0.9}
_TIE = 1e-4  # logits that differ by less may change places: sums are added up in another order


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"bos_token_id": TOKENIZER.bos_token_id, "eos_token_id": TOKENIZER.eos_token_id}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=len(TOKENIZER), max_position_embeddings=POSITIONS, initializer_range=0.2, **sizes, **ids)
    ).eval()


@pytest.fixture(scope="module")
def folder(model: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "llama"
    model.save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    with VLLMServer(folder, tmp_path_factory.mktemp("vllm") / "server.log") as started:
        yield started.wait()


def player(server: VLLMServer, folder: Path, **sampling: float) -> VLLMPolicy:
    return load_vllm_policy(
        f"{server.url}#tiny", TASK.last_texts, TASK.max_action_tokens, tokenizer=str(folder), **sampling
    )


def judged(policy: VLLMPolicy | LMPolicy, dialogues: int = DIALOGUES, seed: int = 0) -> tuple[Episode, ...]:
    return tuple(evaluate(policy, TASK.name, dialogues, seed=seed, slots=dialogues).episodes)


def test_greedy_ids_are_those_of_the_slot_engine(server: VLLMServer, folder: Path, model: LlamaForCausalLM) -> None:
    own = LMPolicy(model, TOKENIZER, WINDOW, temperature=0.0, max_new_tokens=TASK.max_action_tokens, slots=DIALOGUES)
    before = _read(server)
    theirs = judged(player(server, folder, temperature=0.0))
    ours = judged(own)
    hits, asked = (after - first for after, first in zip(_read(server), before, strict=True))
    equal = sum(one.action_ids == other.action_ids for one, other in zip(theirs, ours, strict=True))
    print(f"\n{equal} of {DIALOGUES} dialogues have the same ids; {hits / asked:.0%} of what was read was cached")
    for one, other in zip(theirs, ours, strict=True):
        assert one == other or _is_tie(model, one, other)
    assert equal >= DIALOGUES * 0.9, "ties are rare"
    assert hits > asked / 2, "most of each dialogue has been read in the turn before"


def _read(server: VLLMServer) -> tuple[float, float]:
    """Tokens of prompts that were in the cache, and all of them."""
    return server.metric("vllm:prefix_cache_hits_total"), server.metric("vllm:prefix_cache_queries_total")


def _is_tie(model: LlamaForCausalLM, one: Episode, other: Episode) -> bool:
    """Whether the first token that differs has a twin."""
    turn = next(t for t, pair in enumerate(zip(one.action_ids, other.action_ids, strict=False)) if pair[0] != pair[1])
    said = one.action_ids[turn]
    instead = other.action_ids[turn]
    place = next(i for i, pair in enumerate(zip(said, instead, strict=False)) if pair[0] != pair[1])
    logits = _logits(model, _context(one, turn), said)[place]
    return float((logits[said[place]] - logits[instead[place]]).abs()) < _TIE


def _context(episode: Episode, turn: int) -> list[int]:
    request = Request(
        0, episode.seed, episode.observations[: turn + 1], episode.actions[:turn], episode.action_ids[:turn]
    )
    return ContextBuilder(TOKENIZER, WINDOW, POSITIONS, TASK.max_action_tokens).contexts([request])[0]


def _logits(model: LlamaForCausalLM, context: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    """``(ids, vocabulary)``: of the states in which they were said."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([[*context, *ids]])).logits[0, len(context) - 1 : -1]


@pytest.mark.parametrize("decoding", [{}, CUT], ids=["plain", "cut"])
def test_logprobs_are_those_of_our_model(
    server: VLLMServer,
    folder: Path,
    model: LlamaForCausalLM,
    decoding: dict[str, float],
) -> None:
    never = invalid_ids(TOKENIZER, len(TOKENIZER), torch.device("cpu"))
    gaps = []
    for episode in judged(player(server, folder, **decoding), DIALOGUES if not decoding else 8):
        for turn, (ids, told) in enumerate(zip(episode.action_ids, episode.action_logprobs, strict=True)):
            own = process_logits(_logits(model, _context(episode, turn), ids), invalid=never, **decoding)  # type: ignore[arg-type]
            found = own.gather(1, torch.tensor(ids)[:, None])[:, 0]
            gaps += (found - torch.tensor(told)).abs().tolist()
    print(f"\nlargest gap of {len(gaps)} log-probabilities: {max(gaps):.2e}")
    assert max(gaps) <= 1e-3


def test_a_server_that_is_killed_and_started_again_loses_no_dialogue(folder: Path, tmp_path: Path) -> None:
    with VLLMServer(folder, tmp_path / "server.log") as server:
        undisturbed = judged(player(server.wait(), folder), seed=1)
        policy = player(server, folder)

        def disturb() -> None:
            while policy.client.spent()["requests"] < DIALOGUES * 3 + DIALOGUES // 2:
                time.sleep(0.005)
            server.kill()
            time.sleep(2.0)
            server.start()

        trouble = Thread(target=disturb)
        trouble.start()
        disturbed = judged(policy, seed=1)
        trouble.join()
    turns = sum(map(len, undisturbed))
    assert policy.client.spent()["requests"] > turns, "it was killed in mid-evaluation"
    assert len(disturbed) == DIALOGUES
    same = sum(one == other for one, other in zip(disturbed, undisturbed, strict=True))
    print(f"\n{same} of {DIALOGUES} dialogues as without the death")
    assert same >= DIALOGUES * 0.9, "the same seeds say the same, but for roundings in other batches"
