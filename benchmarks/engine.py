"""Tokens per second of an interactive rollout: the slot engine against calling ``generate`` afresh every turn.

Both play the same 32 partially observed mazes for the same number of turns with the same model, reading the whole
history (no window of texts), and sample until the end of the line. The other side does what a player without slots
does: it pads all histories on the left and calls `transformers`' ``generate`` on them. The runs alternate, and the
medians are compared.
"""

from collections.abc import Iterator, Sequence
from math import log
from statistics import median
from time import perf_counter

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import lmrl
from benchmarks.row import Row
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer
from lmrl.policies.lm import ContextBuilder, LMPolicy
from lmrl.rollout import rollout
from lmrl.tokens.encoding import Window
from lmrl.types import Policy, Reply, Request, Start

__all__ = ["measure", "run"]

ENVS = 32
TURNS = 30
REPEATS = 3
MAX_NEW_TOKENS = 8
POSITIONS = 1024
ASKED = 3.0


class Afresh:
    """Plays by ``model.generate`` on left-padded whole histories, reading everything again every turn."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        window: Window,
        tokens: int = MAX_NEW_TOKENS,
        greedy: bool = False,
    ) -> None:
        self.model = model.eval()
        self.tokens = tokens
        self.how = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0}
        self.builder = ContextBuilder(tokenizer, window, POSITIONS, tokens)
        self.stop_ids = self.builder.stop_ids()
        self.pad = int(tokenizer.pad_token_id)

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        contexts = self.builder.contexts(requests)
        longest = max(map(len, contexts))
        ids = torch.tensor([[self.pad] * (longest - len(context)) + context for context in contexts])
        mask = torch.tensor([[0] * (longest - len(context)) + [1] * len(context) for context in contexts])
        with torch.inference_mode():
            output = self.model.generate(
                input_ids=ids.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                **self.how,
                max_new_tokens=self.tokens,
                eos_token_id=sorted(self.stop_ids),
                pad_token_id=self.pad,
            )
        return [self._reply(row) for row in output[:, longest:].tolist()]

    def _reply(self, row: list[int]) -> Reply:
        end = next((index + 1 for index, token in enumerate(row) if token in self.stop_ids), len(row))
        return Reply(self.builder.encoder.decode(row[:end]), tuple(row[:end]))


def chatty_lm(tokenizer: PreTrainedTokenizerBase, layers: int = 4, width: int = 128) -> PreTrainedModel:
    """Random weights, but every fourth token ends the line: about as many tokens a turn as a move has."""
    architecture = {"n_layer": layers, "n_head": 4, "n_embd": width, "n_positions": POSITIONS}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_lm(None, architecture, len(tokenizer))
    (newline,) = tokenizer.encode("\n", add_special_tokens=False)
    with torch.no_grad():
        direction = model.transformer.wte.weight[newline]
        model.transformer.ln_f.bias += direction / direction.square().sum() * log(len(tokenizer) / 3)
    return model


def tokens_per_second(policy: Policy) -> float:
    """Sampled tokens per second of wall clock, environments included."""
    begin = perf_counter()
    episodes = rollout(
        policy,
        lambda: lmrl.make("maze_po"),
        [Start(seed) for seed in range(ENVS)],
        task="maze_po",
        slots=ENVS,
        stop=lambda request: request.turn >= TURNS,
    )
    tokens = sum(len(ids) for _, episode in episodes for ids in episode.action_ids)
    return tokens / (perf_counter() - begin)


def measure() -> dict[str, float]:
    """Medians of alternating runs: tokens per second of both, and their ratio."""
    tokenizer = load_tokenizer()
    model = chatty_lm(tokenizer)
    window = Window(texts=None, tokens=POSITIONS - MAX_NEW_TOKENS)
    speeds: dict[str, list[float]] = {"engine": [], "generate": []}
    for _ in range(REPEATS):
        # A new policy each time: an old one would still hold the episodes that it is about to be asked for.
        speeds["engine"].append(tokens_per_second(LMPolicy(model, tokenizer, window, max_new_tokens=MAX_NEW_TOKENS)))
        speeds["generate"].append(tokens_per_second(Afresh(model, tokenizer, window)))
    figures = {name: median(values) for name, values in speeds.items()}
    return {**figures, "ratio": figures["engine"] / figures["generate"]}


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        figures = measure()
    finally:
        torch.set_num_threads(threads)
    yield Row(f"{ENVS} PO mazes, full history, generate afresh", figures["generate"], "tokens/s", "higher")
    yield Row(f"{ENVS} PO mazes, full history, slot engine", figures["engine"], "tokens/s", "higher")
    yield Row("slot engine / generate afresh", figures["ratio"], "x", "higher", f">= {ASKED:.0f}x", 1)
