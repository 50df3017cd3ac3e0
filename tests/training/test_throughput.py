"""FLOPs of a step by hand and as torch counts them; the keys of training's speed by a clock of the test.

And what makes the speed of a GPU: calls of operators, forward passes, shapes and waits of a step.
"""

import csv
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from lmrl.callbacks import RolloutCollection
from lmrl.models.lm import build_lm, few_shapes, hidden_states, trunk_of
from lmrl.models.lora import add_lora
from lmrl.modules import AWR, BC, GRPO, MC, PPO, QSFT, ArCHer, LanguageModule
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.encoding import Window
from lmrl.training import throughput
from lmrl.training.flops import StepCost, lm_cost, trunk_cost
from tests.helpers.doubles import cut, episode
from tests.helpers.online import TINY, fit, rounds, trainer

pytestmark = pytest.mark.filterwarnings("ignore:round [0-9]+. ")

LLAMA = {
    "model_type": "llama", "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 24,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
}  # fmt: skip


def test_the_cost_of_a_gpt2() -> None:
    model = build_lm(None, {"n_embd": 16, "n_layer": 2, "n_head": 2}, 50)
    # 12 H^2 weights of a layer.
    assert lm_cost(model) == StepCost(per_id=6 * 2 * 12 * 16**2, per_pair=12 * 2 * 16, per_state=6 * 16 * 50)
    model.requires_grad_(False)
    assert trunk_cost(trunk_of(model)) == StepCost(per_id=2 * 2 * 12 * 16**2, per_pair=4 * 2 * 16)


@pytest.mark.parametrize("tied", [True, False])
def test_the_cost_of_a_llama_whose_keys_have_fewer_heads(tied: bool) -> None:
    model = build_lm(None, {**LLAMA, "tie_word_embeddings": tied}, 50)
    # Queries and outputs are 4 * 8 wide, keys and values 2 * 8; gate, up and down.
    layer = 2 * 16 * 32 + 2 * 16 * 16 + 3 * 16 * 24
    assert lm_cost(model) == StepCost(per_id=6 * 3 * layer, per_pair=12 * 3 * 32, per_state=6 * 16 * 50)
    model.config._attn_implementation = "eager"
    ids = torch.zeros(2, 10, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    expected = 20 * 6 * (3 * layer + 16 * 50) + 2 * 10**2 * 12 * 3 * 32
    assert counter.get_total_flops() == pytest.approx(expected, rel=5e-3)  # and the angles of rotations


def test_below_adapters_a_frozen_matrix_costs_four() -> None:
    model = build_lm(None, {"n_embd": 16, "n_layer": 2, "n_head": 2}, 50)
    add_lora(model, {"r": 2, "target_modules": ["c_proj"]})
    # The projections of attention and of the feed-forward layer, 16 and 64 wide, have two matrices more.
    adapters = 2 * (2 * (16 + 16) + 2 * (64 + 16))
    assert lm_cost(model) == StepCost(4 * 2 * 12 * 16**2 + 6 * adapters, 12 * 2 * 16, 4 * 16 * 50)


def test_a_token_meets_its_own_experts_alone() -> None:
    shape = {
        "model_type": "mixtral", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64,
    }  # fmt: skip
    few = build_lm(None, {**shape, "num_local_experts": 4, "num_experts_per_tok": 2}, 50)
    many = build_lm(None, {**shape, "num_local_experts": 8, "num_experts_per_tok": 2}, 50)
    assert lm_cost(few).per_id == 6 * (4 * 16**2 + 4 * 16 + 2 * 3 * 16 * 24)
    assert lm_cost(many).per_id == lm_cost(few).per_id + 6 * 4 * 16  # rows of the router


VOCABULARY = 1280
HEAD = 16 * VOCABULARY


@pytest.mark.parametrize(
    ("kind", "passes", "per_state", "per_token"),
    [
        (BC, 3, 6 * HEAD, 0),
        (MC, 3, 6 * (16**2 + HEAD), 0),
        (QSFT, 3 + 1 + 1, (6 + 2 + 2) * HEAD, 0),
        (AWR, 3 + 3, 0, 6 * HEAD),
        (ArCHer, 3 + 3 + 1, 0, 6 * HEAD),
        (GRPO, 3, 6 * HEAD, 0),
        (partial(PPO, critic="shared"), 3, 6 * (HEAD + 16**2 + 16), 0),
        (PPO, 3, 6 * HEAD, 0),
    ],
)
def test_the_cost_of_an_algorithm(
    kind: Callable[..., LanguageModule], passes: int, per_state: int, per_token: int
) -> None:
    """Passes over trunks: three over one that learns, one over a target or frozen one that is run."""
    module = kind(architecture=TINY)
    assert module.model.config.vocab_size == VOCABULARY
    assert module.step_cost() == StepCost(passes * 2 * 12 * 16**2, passes * 4 * 16, per_state, per_token)


def batch() -> TokenBatch:
    """Rows of 3 and 21 ids: the end of the last action is not read."""
    short = episode("s", "aa", rewards=[0.0], terminated=True)
    long = episode("s", "b" * 20, rewards=[0.0], terminated=True)
    return collate(cut([short, long], Window()))


def test_padding_costs_nothing() -> None:
    padded = batch()
    assert padded.input_ids.shape == (2, 21) and padded.lengths == (21, 3)
    assert StepCost(1000, 10).of_batch(padded) == 1000 * 24 + 10 * (21**2 + 3**2)
    assert StepCost(0, 0, 100, 1).of_batch(padded) == 100 * len(padded.row) + 22


class Clock:
    """Time passes only where something is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(name="clock")
def clock_(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("lmrl.training.throughput", "lmrl.datamodules.online"):
        monkeypatch.setattr(f"{module}.perf_counter", clock)
    return clock


class Loader:
    """Batches, each of which takes seconds to make."""

    def __init__(self, clock: Clock, count: int, seconds: float) -> None:
        self.clock = clock
        self.count = count
        self.seconds = seconds

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[TokenBatch]:
        for _ in range(self.count):
            self.clock.passes(self.seconds)
            yield batch()


class Pauses(Callback):
    """What is no training: evaluation after each batch, and validation."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_batch_end(self, *args: Any) -> None:
        self.clock.passes(1000.0)

    def on_validation_end(self, *args: Any) -> None:
        self.clock.passes(1000.0)


def slow(module: LanguageModule, clock: Clock, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = module.losses

    def timed(batch: TokenBatch) -> Any:
        clock.passes(seconds)
        return losses(batch)

    monkeypatch.setattr(module, "losses", timed)


def rows(root: Path) -> list[dict[str, float]]:
    """The logged rows that have a key of training's speed."""
    with (root / "metrics.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    found = []
    for line in lines:
        if line["perf/data_wait"]:
            found.append({key: float(value) for key, value in line.items() if value})
    return found


def test_a_run_logs_its_speed(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes 3 s to make and 5 s to learn from; a step has two, a row three steps, the validation a pause."""
    monkeypatch.setattr("lmrl.training.throughput._peak", lambda *_: 1e6)
    module = BC(architecture=TINY)
    slow(module, clock, 5.0, monkeypatch)
    settings = {
        "limit_val_batches": 1,
        "accumulate_grad_batches": 2,
        "val_check_interval": 4,
        "num_sanity_val_steps": 0,
    }
    run = trainer(tmp_path, 6, [Pauses(clock)], **settings)
    run.log_every_n_steps = 3
    run.fit(module, Loader(clock, 12, 3.0), Loader(clock, 1, 1000.0))
    first, second = rows(tmp_path)
    assert (first["step"], second["step"]) == (2.0, 5.0)
    for row in (first, second):
        assert row["perf/data_wait"] == pytest.approx(3 / 8)
        assert row["perf/tokens_per_s"] == pytest.approx(24 / 8)
        assert row["perf/mfu"] == pytest.approx(module.step_cost().of_batch(batch()) / 8 / 1e6)


def test_the_playing_of_a_round_is_no_wait_for_data(
    bc_run: str, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    playing = RolloutCollection(episodes=6, slots=4)
    collect = playing.collect

    def timed(number: int) -> Any:
        clock.passes(1000.0)
        return collect(number)

    monkeypatch.setattr(playing, "collect", timed)
    module = GRPO(pretrained=bc_run, advantage="rebn")
    slow(module, clock, 5.0, monkeypatch)
    fit(module, rounds(batch_size=4), tmp_path, steps=4, playing=playing)
    found = rows(tmp_path)
    assert len(found) == 4
    for row in found:
        assert row["perf/data_wait"] == 0.0
        assert row["perf/train_tokens_per_s"] > 0.0
        assert "perf/mfu" not in row  # of a CPU no peak is known
        assert "perf/tokens_per_s" not in row  # the rows of rounds have it


def test_the_peak_is_that_of_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    device = torch.device("cuda")
    peaks = {}
    for precision in ("bf16-mixed", "bf16-true", "32-true"):
        peaks[precision] = throughput._peak(cast(Trainer, SimpleNamespace(precision=precision)), device)
    assert peaks == {"bf16-mixed": 989e12, "bf16-true": 989e12, "32-true": None}
    monkeypatch.setattr("torch.get_float32_matmul_precision", lambda: "high")
    float32 = cast(Trainer, SimpleNamespace(precision="32-true"))
    assert throughput._peak(float32, device) == 989e12 / 2
    assert throughput._peak(float32, torch.device("cpu")) is None


DEEP = {
    "model_type": "llama",
    "num_hidden_layers": 12,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
}


class Calls(TorchDispatchMode):
    """Counts calls of operators, and those among them for which the host waits for a GPU."""

    count = 0
    waits = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        self.waits += str(call) in ("aten._local_scalar_dense.default", "aten.nonzero.default")
        return call(*args, **(kwargs or {}))


def dialogues(count: int, turns: int = 3) -> list[Any]:
    """Segments of dialogues that differ in length and share nothing."""
    draw = random.Random(0)
    texts = ["".join(draw.choices("abcdefghij", k=draw.randint(1, 9))) for _ in range(count * turns)]
    games = []
    for first in range(0, len(texts), turns):
        spoken = [word for text in texts[first : first + turns] for word in ("s", text)]
        games.append(episode(*spoken, rewards=[0.0] * turns, terminated=True))
    return cut(games, Window())


def test_a_step_calls_no_more_operators_than_the_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it wait for the GPU, as the plain loop does in each pass."""
    torch.manual_seed(0)
    module = BC(architecture=DEEP).train()
    passes = []
    trunk_of(module.model).register_forward_hook(lambda *_: passes.append(1))
    monkeypatch.setattr(BC, "hidden_states", lambda _, trunk, batch: hidden_states(trunk, batch, groups=False))
    batch = collate(dialogues(64))
    with Calls() as ours:
        module.objective(module.losses(batch), batch).backward()
    assert len(passes) == 1
    with Calls() as plain:
        module.model(input_ids=batch.input_ids, labels=batch.input_ids, use_cache=False).loss.backward()
    assert ours.count <= 1.15 * plain.count
    assert ours.waits == 0


def test_batches_of_a_run_have_few_shapes() -> None:
    segments = dialogues(1000, turns=6)
    shapes = set()
    for first in range(0, 960, 48):
        ids, positions, mask = few_shapes(collate(segments[first : first + 48]), limit=512)
        assert positions is None and mask is None
        shapes.add(tuple(ids.shape))
    assert len(shapes) <= 3


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_rows_with_branches_are_read_as_in_groups(attention: str) -> None:
    """Padded rows and columns read something, or numbers that are none would reach the gradients."""
    torch.manual_seed(0)
    module = BC(architecture=DEEP).train()
    module.model.set_attn_implementation(attention)
    games = [episode("context", action, rewards=[0.0], terminated=True) for action in ("abc", "de", "fghi")]
    batch = collate(cut(games, Window()))
    assert batch.mask is not None
    gradients = []
    for groups in (True, False):
        module.zero_grad()
        hidden = hidden_states(trunk_of(module.model), batch, groups)
        hidden.square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]))
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("rows", "read"), [(1, 1), (3, 4), (16, 16), (17, 32)])
def test_few_rows_stay_few(rows: int, read: int) -> None:
    ids, _, _ = few_shapes(collate(dialogues(rows)), limit=512)
    assert len(ids) == read


def test_no_row_outgrows_the_model() -> None:
    ids, _, _ = few_shapes(collate(dialogues(2)), limit=60)
    assert ids.shape[1] <= 60
