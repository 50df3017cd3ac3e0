"""SmolLM2-135M-Instruct in lmrl beside plain `transformers`: logits, greedy actions, and what bfloat16 costs.

`transformers` reads each context alone, without padding and without a cache of ours, from the folder that
`make smollm2` writes. The contexts are games of Twenty Questions in the chat template, after the rules.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.row import Row
from lmrl.data import generate
from lmrl.data.storage import read_episodes
from lmrl.datamodules import TwentyQuestionsDataModule
from lmrl.decoding.engine import Engine
from lmrl.envs.registry import chat_prompt
from lmrl.errors import UserError
from lmrl.models.lm import logit_table, trunk_of
from lmrl.modules import BC
from lmrl.policies import LMPolicy
from lmrl.policies.chat.policy import system_prompt
from lmrl.tokens.collate import TokenBatch
from lmrl.tokens.encoding import Window, invalid_ids
from lmrl.types import Episode, Request

__all__ = ["FOLDER", "GAMES", "bfloat16_errors", "compare_greedy", "float32_errors", "record_games", "run"]

FOLDER = Path(__file__).parent.parent / "models" / "smollm2-135m"
GAMES = 64
NEW_TOKENS = 16
TIE = 1e-4
"""A difference of two logits that rounding can turn around."""

_WINDOW_TOKENS = 1024
_ROWS = 8  # games in a batch, of training and of the engine; in training two of them share a row
_STEPS = 3  # contexts that the engine reads in each slot, each one token longer than the last
_BOUND = 1e-3


def record_games(count: int, folder: Path) -> Path:
    """Record games of the behaviour policy of Twenty Questions."""
    return generate("twenty_questions", count, 0, folder / "games.parquet", progress=False)


def messages_of(episode: Episode, turns: int) -> list[dict[str, str]]:
    """Return the first turns of a game as a chat that ends with an observation."""
    messages = [{"role": "system", "content": system_prompt(chat_prompt("twenty_questions"), {})}]
    for turn in range(turns):
        messages.append({"role": "user", "content": episode.observations[turn].strip()})
        messages.append({"role": "assistant", "content": episode.actions[turn].strip()})
    messages.append({"role": "user", "content": episode.observations[turns].strip()})
    return messages


def contexts_of(tokenizer: PreTrainedTokenizerBase, episodes: Sequence[Episode]) -> list[list[int]]:
    """Return the ids before action ``i`` of game ``i``, as the chat template renders them: of all lengths."""
    contexts = []
    for index, episode in enumerate(episodes):
        messages = messages_of(episode, index % len(episode))
        contexts.append(
            tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        )
    return contexts


@torch.no_grad()
def plain_logits(model: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    """(tokens, vocabulary) logits of one context, by the forward pass of `transformers`, as float32."""
    logits: Tensor = model.eval()(input_ids=torch.tensor([list(ids)])).logits[0]
    return logits.float()


def training_batch(module: BC, games: Path) -> TokenBatch:
    """Return a batch of the first games as training reads them: rows of different lengths, padded."""
    data = TwentyQuestionsDataModule(path=str(games), batch_size=_ROWS, val_fraction=0.0, rendering="chat")
    data.configure_batches(module.batch_spec())
    data.setup("fit")
    batch: TokenBatch = next(iter(data.train_dataloader()))
    return batch


@torch.no_grad()
def training_logits(module: BC, batch: TokenBatch) -> Tensor:
    """(S, vocabulary) logits at the states of a batch, as training computes them, as float32."""
    return logit_table(module.model, module.hidden_states(trunk_of(module.model), batch)).float()


def plain_training_logits(model: PreTrainedModel, batch: TokenBatch) -> Tensor:
    """(S, vocabulary) logits at the same states by `transformers`, which reads each text of a row alone."""
    logits: dict[tuple[int, int], Tensor] = {}  # by row and column
    states = list(zip(batch.row.tolist(), batch.col.tolist(), strict=True))
    for row, column in sorted(states, reverse=True):
        if (row, column) in logits:
            continue
        # A row may hold several texts with a common beginning. This state sees the tokens of its own.
        visible = list(range(column + 1))
        if batch.mask is not None:
            visible = batch.mask[row, 0, column].nonzero().flatten().tolist()
        text = plain_logits(model, batch.input_ids[row, visible].tolist())
        for place, seen in enumerate(visible):
            logits[row, seen] = text[place]
    return torch.stack([logits[state] for state in states])


def engine_logits(model: PreTrainedModel, contexts: Sequence[Sequence[int]]) -> Tensor:
    """(contexts * `_STEPS`, vocabulary) logits of the engine: all contexts at once, then token by token."""
    engine = Engine(model, slots=len(contexts))
    slots = range(len(contexts))
    last = _STEPS - 1
    steps = [engine.logits(engine.feed(slots, [context[:-last] for context in contexts]))]
    for unread in range(last, 0, -1):
        steps.append(engine.logits(engine.append(slots, [context[-unread] for context in contexts])))
    return torch.stack(steps, dim=1).flatten(0, 1).float()


def plain_engine_logits(model: PreTrainedModel, contexts: Sequence[Sequence[int]]) -> Tensor:
    """(contexts * `_STEPS`, vocabulary) logits after the same tokens by `transformers`."""
    return torch.cat([plain_logits(model, context)[-_STEPS:] for context in contexts])


def largest(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference of two logits."""
    return float((found - expected).abs().max())


def float32_errors(
    reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, games: Path, scratch: Path
) -> dict[str, float]:
    """Return the largest differences from `transformers` in float32, by what computes the logits.

    Args:
        reference: the model in float32, as `transformers` loads it.
        tokenizer: of the model.
        games: as `record_games` returns them.
        scratch: an empty folder for two exported models.
    """
    contexts = contexts_of(tokenizer, list(read_episodes(games))[:_ROWS])
    expected = plain_engine_logits(reference, contexts)
    module = BC(pretrained=str(FOLDER))
    batch = training_batch(module, games)
    errors = {
        "training": largest(training_logits(module, batch), plain_training_logits(reference, batch)),
        "engine": largest(engine_logits(module.model, contexts), expected),
    }
    # Weights that no other folder holds.
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in module.model.parameters():
            weight += 0.02 * weight.std() * torch.randn_like(weight)
    adapted = BC(pretrained=str(FOLDER), lora={"r": 8})
    with torch.no_grad():
        for name, weight in adapted.model.named_parameters():
            if "lora_B" in name:  # zeros at first
                weight.normal_(std=0.02)
    for name, changed in (("exported folder", module), ("merged LoRA", adapted)):
        changed.export(scratch / name)
        found = engine_logits(changed.model, contexts)
        exported = AutoModelForCausalLM.from_pretrained(scratch / name)
        errors[name] = largest(found, plain_engine_logits(exported, contexts))
        assert largest(found, expected) > 0.1, "the exported model is the one that it was made of"
    return errors


class Agreement(NamedTuple):
    """How many greedy actions were the same ids."""

    same: int
    ties: int
    """Differ first where the two best logits were closer than `TIE`."""
    different: int


def compare_greedy(
    reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, episodes: Sequence[Episode]
) -> Agreement:
    """Let the policy and ``generate`` continue all games greedily, and compare the ids.

    The policy reads all games at once; ``generate`` reads one after the other.
    """
    window = Window(tokens=_WINDOW_TOKENS, rendering="chat", system=system_prompt(chat_prompt("twenty_questions"), {}))
    policy = LMPolicy(reference, tokenizer, window, temperature=0.0, max_new_tokens=NEW_TOKENS, slots=len(episodes))
    requests = []
    for slot, episode in enumerate(episodes):
        turns = slot % len(episode)
        requests.append(Request(slot, episode.seed, episode.observations[: turns + 1], episode.actions[:turns]))
    replies = policy.act(requests)
    suppressed = invalid_ids(tokenizer, len(tokenizer), torch.device("cpu"), tokenizer.eos_token_id).nonzero().flatten()
    counts = {"same": 0, "ties": 0, "different": 0}
    for reply, context in zip(replies, contexts_of(tokenizer, episodes), strict=True):
        output = reference.generate(
            torch.tensor([context]),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            suppress_tokens=suppressed.tolist(),
            return_dict_in_generate=True,
            output_scores=True,
        )
        expected = output.sequences[0, len(context) :].tolist()
        found = list(reply.ids)
        if found == expected:
            counts["same"] += 1
            continue
        first = next(place for place in range(NEW_TOKENS) if found[place : place + 1] != expected[place : place + 1])
        best, second = output.scores[first][0].topk(2).values.tolist()
        counts["ties" if best - second < TIE else "different"] += 1
    return Agreement(**counts)


class Bfloat16(NamedTuple):
    """How far logits in bfloat16 are from those in float32."""

    kl: float
    """Mean over positions of KL(float32 || bfloat16), in nats."""
    error: float
    """Largest difference of two logits."""


def _distance(found: Tensor, float32: Tensor) -> Bfloat16:
    expected = float32.log_softmax(-1)
    kl = (expected.exp() * (expected - found.log_softmax(-1))).sum(-1)
    return Bfloat16(float(kl.mean()), largest(found, float32))


def bfloat16_errors(
    reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, games: Path
) -> dict[str, tuple[Bfloat16, Bfloat16]]:
    """Return the errors of bfloat16 in training and in the engine: those of lmrl, then those of `transformers`."""
    contexts = contexts_of(tokenizer, list(read_episodes(games))[:_ROWS])
    module = BC(pretrained=str(FOLDER))
    batch = training_batch(module, games)
    module.to(torch.bfloat16)
    plain = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.bfloat16)
    in_training = plain_training_logits(reference, batch)
    in_engine = plain_engine_logits(reference, contexts)
    return {
        "training": (
            _distance(training_logits(module, batch), in_training),
            _distance(plain_training_logits(plain, batch), in_training),
        ),
        "engine": (
            _distance(engine_logits(module.model, contexts), in_engine),
            _distance(plain_engine_logits(plain, contexts), in_engine),
        ),
    }


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks`.

    Raises:
        UserError: the model is not there.
    """
    if not FOLDER.is_dir():
        raise UserError(f"real_model reads {FOLDER}, which is not there: make smollm2")
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    reference = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    with TemporaryDirectory() as folder:
        games = record_games(GAMES, Path(folder))
        for name, error in float32_errors(reference, tokenizer, games, Path(folder)).items():
            shown = f"{error:.1e}"
            yield Row(f"float32, {name}, largest difference of a logit", error, "", "lower", f"<= {_BOUND:g}", 0, shown)
        agreement = compare_greedy(reference, tokenizer, list(read_episodes(games)))
        shown = f"{agreement.same} same, {agreement.ties} ties, {agreement.different} different"
        asked = "0 different"
        yield Row(f"float32, {GAMES} greedy actions beside generate", agreement.different, "", "lower", asked, 0, shown)
        for name, (ours, theirs) in bfloat16_errors(reference, tokenizer, games).items():
            more = ours.kl - theirs.kl
            shown = f"{ours.kl:.2e} and {theirs.kl:.2e}"
            asked = f"difference <= {_BOUND:g}"
            yield Row(f"bfloat16, {name}, KL in lmrl and transformers", more, "nats", "lower", asked, 0, shown)
            ratio = ours.error / theirs.error
            shown = f"{ours.error:.2f} and {theirs.error:.2f}"
            yield Row(f"bfloat16, {name}, largest error of a logit", ratio, "x", "lower", "ratio <= 2", 2, shown)
