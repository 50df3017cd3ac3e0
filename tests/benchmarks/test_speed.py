"""Tests of the speed benchmarks: the FLOPs are those that torch counts, and both sides do the same work."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import __main__ as command
from benchmarks import decoding, results, training
from benchmarks.device import Peak, Stopwatch, peak
from benchmarks.row import Row
from benchmarks.size import CPU, GPU, GPU_LLAMA, TINY, TINY_LLAMA, Size
from benchmarks.training_step import batch
from lmrl.errors import UserError
from lmrl.losses import token_scores
from lmrl.models.lm import build_lm
from lmrl.modules import BC, ILQL
from lmrl.tokens.collate import TokenBatch
from lmrl.tokens.encoding import Window

# torch warns like this when it compiles a model's own loss.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")

SIZE = replace(TINY, layers=2, vocabulary=48)
SIDES = (
    "plain loop",
    "plain loop, compiled",
    "BC",
    "BC, a quarter action tokens",
    "ILQL, a quarter action tokens",
    "ILQL, action tokens only",
    "BC, compiled",
    "BC, a quarter action tokens, compiled",
    "ILQL, a quarter action tokens, compiled",
    "ILQL, action tokens only, compiled",
)


def data(environment: int, action: int, size: Size = SIZE) -> TokenBatch:
    return batch(environment, action, rows=size.rows, length=size.length, vocabulary=size.vocabulary)


@pytest.fixture(name="mix", params=[(0, 16), (12, 4)], ids=["all", "quarter"])
def mix_(request: pytest.FixtureRequest) -> TokenBatch:
    return data(*request.param)


def attends_by_products(module: BC | ILQL) -> None:
    """Compute attention in plain products, all of which are counted."""
    for part in module.modules():
        if hasattr(part, "config"):
            part.config._attn_implementation = "eager"


def count_of(module: BC | ILQL, its: TokenBatch) -> int:
    attends_by_products(module)
    with FlopCounterMode(display=False) as counter:
        module.losses(its).loss.backward()
    return counter.get_total_flops()


def test_the_flops_of_a_plain_step() -> None:
    module = BC(architecture=SIZE.architecture())
    its = data(0, 16)
    attends_by_products(module)
    with FlopCounterMode(display=False) as counter:
        module.model(input_ids=its.input_ids, labels=its.input_ids).loss.backward()
    assert counter.get_total_flops() == training.plain_flops(module.model, its)


def test_the_flops_of_a_llama() -> None:
    assert GPU_LLAMA.layers * GPU_LLAMA.block_weights + 576 * 49_152 == 134_479_872  # SmolLM2's, without its norms
    size = replace(TINY_LLAMA, layers=2, width=128, vocabulary=48)
    module = BC(architecture=size.architecture())
    its = data(0, 16, size)
    assert module.model.config.model_type == "llama"
    attends_by_products(module)
    with FlopCounterMode(display=False) as counter:
        module.model(input_ids=its.input_ids, labels=its.input_ids).loss.backward()
    # The tolerance covers the angles of rotations.
    assert counter.get_total_flops() == pytest.approx(training.plain_flops(module.model, its), rel=1e-3)


def test_the_flops_of_bc(mix: TokenBatch) -> None:
    module = BC(architecture=SIZE.architecture())
    assert count_of(module, mix) == module.step_cost().of_batch(mix)


def test_the_flops_of_ilql(mix: TokenBatch) -> None:
    """The target heads score a small vocabulary as a whole, but not a large one."""
    states = len(mix.row)
    width = SIZE.width
    whole_tables = 2 * 2 * width * (SIZE.vocabulary * states - mix.n_tokens)
    module = ILQL(architecture=SIZE.architecture())
    assert count_of(module, mix) == module.step_cost().of_batch(mix) + whole_tables


def test_a_large_vocabulary_is_gone_over_twice_and_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recomputation in the backward pass is work, but not required work."""
    monkeypatch.setattr(token_scores, "_MAX_TABLE_SCORES", 0)
    its = data(0, 16)
    again = 2 * SIZE.width * SIZE.vocabulary * len(its.row)
    module = BC(architecture=SIZE.architecture())
    assert count_of(module, its) == module.step_cost().of_batch(its) + again


def test_the_formula_in_numbers() -> None:
    """GPT-2 small: 6 x (85 M + 38.6 M) and 12 x 12 x 768 x 1,024 per token."""
    its = data(0, 1_024, replace(GPU, rows=1))
    with torch.device("meta"):
        model = build_lm(None, GPU.architecture(), GPU.vocabulary)
    assert training.plain_flops(model, its) == 1_024 * (6 * (12 * 12 * 768**2 + 768 * 50_257) + 12 * 12 * 768 * 1_024)


def test_the_peak_is_of_the_data_sheet_or_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.device.matmul_peak", lambda *_: 1.0)
    names = {"NVIDIA H200": 989e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA H100 80GB HBM3": 989e12}
    names |= {"NVIDIA A100-SXM4-80GB": 312e12, "NVIDIA H100 80GB HBM3 MIG 1g.10gb": 1.0, "Other": 1.0}
    for name, expected in names.items():
        monkeypatch.setattr("torch.cuda.get_device_name", lambda _, name=name: name)
        assert peak("cuda", half=True).flops == expected
    assert peak("cpu", half=False, side=8) == Peak(1.0, "the best of ten products of matrices of 8 x 8")


def test_a_stopwatch_counts_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Iterator[float] = iter([5.0, 7.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    watch = Stopwatch("cpu")
    watch.start()
    assert watch.stop() == (2.5, None)


@pytest.fixture(name="trained", scope="module")
def trained_() -> dict[str, Row]:
    return {row.name.removeprefix("tiny, float32, "): row for row in training.run(TINY)}


@pytest.mark.nightly
def test_training_is_measured_beside_a_plain_loop(trained: dict[str, Row]) -> None:
    for name in SIDES:
        speed = trained[f"training, {name}"]
        mfu = trained[f"training, {name}, MFU"]
        assert speed.value is not None and speed.value > 0 and speed.unit == "tokens/s"
        assert mfu.value is not None and 0 < mfu.value < 150
    for reference, sides in (("the plain loop", SIDES[1:]), ("the compiled plain loop", SIDES[2:])):
        names = [name for name in trained if name.endswith(f"by those of {reference}")]
        assert names == [f"training, {side}, tokens/s by those of {reference}" for side in sides]
        assert all(trained[name].is_ratio for name in names)


def test_rows_come_when_their_side_is_measured_in_one_round() -> None:
    assert GPU.rounds == 1
    rows = training.run(replace(TINY, compile=False), only=["bc_quarter"])
    names = [row.name.removeprefix("tiny, float32, training, ") for row in rows]
    assert names[1:] == [
        "plain loop",
        "plain loop, MFU",
        "BC, a quarter action tokens",
        "BC, a quarter action tokens, MFU",
        "BC, a quarter action tokens, tokens/s by those of the plain loop",
    ]
    with pytest.raises(UserError, match="no such side"):
        next(training.run(TINY, only=["no such side"]))


def test_a_row_is_there_before_the_next_side_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "ours", lambda *_: pytest.fail("BC must not have begun"))
    rows = training.run(TINY, only=["bc"])
    assert [next(rows).name.rpartition(", ")[2] for _ in range(3)][1:] == ["plain loop", "MFU"]


@pytest.mark.nightly
def test_mfu_is_required_work_by_time_and_peak(trained: dict[str, Row]) -> None:
    tokens = TINY.rows * TINY.length
    its = data(0, 16, TINY)
    best = next(row.value for name, row in trained.items() if name.startswith("peak"))
    module = BC(architecture=TINY.architecture())
    plain = training.plain_flops(module.model, its)
    bc = module.step_cost().of_batch(its)
    for name, work in (("plain loop", plain), ("BC", bc)):
        speed = trained[f"training, {name}"].value
        assert speed is not None and best is not None
        expected = 100 * work * speed / tokens / (best * 1e12)
        assert trained[f"training, {name}, MFU"].value == pytest.approx(expected)


def test_only_steps_after_the_warm_up_count(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(Stopwatch, "start", lambda self: seen.append("start"))
    monkeypatch.setattr(Stopwatch, "stop", lambda self: seen.append("stop"))
    module = BC(architecture=TINY.architecture())
    module.starts_from_bc = False
    losses = module.losses
    monkeypatch.setattr(module, "losses", lambda its: (seen.append("step"), losses(its))[1])
    with pytest.raises(AssertionError):  # the patched stopwatch measures nothing
        training.ours(module, data(0, 16, TINY), replace(TINY, warm_up=2, steps=3))
    assert seen == ["step", "step", "start", "step", "step", "step", "stop"]


@pytest.mark.nightly
def test_compiled_sides_are_measured_beside_the_others() -> None:
    size = replace(TINY, compile="eager", asked={"BC": ">= 45%"})
    measured = dict(training.sides(size))
    assert tuple(measured) == SIDES
    asked = [name for name, side in measured.items() if side.asked]
    assert asked == ["BC, compiled", "BC, a quarter action tokens, compiled"]
    torch._dynamo.reset()  # other tests have compiled the same code
    torch._dynamo.utils.counters.clear()
    measured["BC"].block()
    assert not torch._dynamo.utils.counters["frames"]
    measured["BC, compiled"].block()
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0


def test_batches_need_no_mask() -> None:
    """With a mask, attention would use another kernel than in the plain loop."""
    for turns in ((0, 64), (12, 4)):
        its = data(*turns, replace(SIZE, length=64))
        assert its.mask is None and its.positions is None


@pytest.mark.parametrize("width", [64, 768])
def test_the_model_never_ends_a_line(width: int) -> None:
    """It does not end one even after the end of a line, whose embedding is that of a word that is never said."""
    size = replace(TINY, width=width, vocabulary=4_096)
    model = decoding.endless_lm(size)
    tokenizer = decoding.TOKENIZER
    ids = torch.tensor([tokenizer.encode("You are here.\n", add_special_tokens=False)])
    logits = model(input_ids=ids).logits[0, -1]
    ends = [token for token in range(len(tokenizer)) if tokenizer.decode([token]).endswith("\n")]
    assert ends
    likely = logits.detach().softmax(-1)
    assert float(likely[ends].sum() + likely[len(tokenizer) :].sum()) < 1e-12


@pytest.mark.parametrize("greedy", [True, False])
def test_both_sides_read_and_say_the_same_number_of_tokens(greedy: bool) -> None:
    model = decoding.endless_lm(TINY)
    window = Window(None, TINY.prompt)
    requests = decoding.contexts(TINY, 0)
    said = {}
    for side in decoding.SIDES:
        player = decoding.player(side, model, window, 5, greedy, TINY)
        said[side] = [reply.ids for reply in player.act(requests)]
        assert [len(context) for context in player_contexts(player, requests)] == [TINY.prompt] * TINY.slots
        assert all(len(ids) == 5 for ids in said[side])
    assert (said["slots"] == said["generate"]) is greedy


def player_contexts(player: object, requests: list[object]) -> list[list[int]]:
    builder = getattr(player, "builder", None) or player._context_builder  # type: ignore[attr-defined]
    found: list[list[int]] = builder.contexts(requests)
    return found


def test_contexts_have_nothing_in_common_from_one_call_to_the_next() -> None:
    window = Window(None, CPU.prompt)
    size = replace(CPU, slots=2)
    builder = decoding.player("generate", decoding.endless_lm(TINY), window, 2, True, TINY).builder  # type: ignore[attr-defined]
    first, second = (builder.contexts(decoding.contexts(size, number)) for number in range(2))
    assert all(one[:3] != other[:3] for one, other in zip(first, second, strict=True))


def test_decoding_is_measured_beside_generate() -> None:
    rows = {row.name.removeprefix("tiny, float32, "): row for row in decoding.run(TINY)}
    for how in ("greedy", "sampled"):
        for what in ("prefill", "decode", "rollout in 2 slots"):
            for side in (*decoding.SIDES, "slots / generate"):
                row = rows[f"{how}, {what}, {side}"]
                assert (row.value is None) == (row.measured == decoding.LOST)
        turns = rows[f"{how}, rollout in 2 slots, slots"]
        tokens = rows[f"{how}, rollout in 2 slots, slots, tokens said"]
        assert turns.value is not None and tokens.value == turns.value * TINY.action


def test_parts_of_decoding_are_picked() -> None:
    names = [row.name for row in decoding.run(TINY, only=["sampled_turns"])]
    assert names and all("sampled, rollout" in name for name in names)
    with pytest.raises(UserError, match="no such part"):
        next(decoding.run(TINY, only=["no such part"]))


def test_games_at_full_size_fit_into_the_model() -> None:
    """A history that is cut would be read from its beginning every turn."""
    for size in (GPU, CPU):
        tokenizer = decoding.TOKENIZER
        turns = size.turns
        longest = len(tokenizer.encode("There are walls to your left, to your right, above you, below you.\n"))
        assert (turns + 1) * (longest + size.action) <= 1024


@pytest.mark.parametrize(("words", "size"), [(["--tiny"], TINY), ([], replace(GPU, device="cpu"))])
def test_the_gpu_command_measures_both_at_its_size(
    words: list[str], size: Size, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    for module in (training, decoding):
        monkeypatch.setattr(module, "run", lambda its, only: sizes.append(its) or iter([Row("speed", 1.0)]))
    assert command.main(["gpu", "--device", "cpu", *words, "--out", str(tmp_path)]) == 0
    assert sizes == [size, size]
    (path,) = tmp_path.glob("*.json")
    assert path.name.startswith("gpu-tiny-") is bool(words)


def test_rows_of_a_gpu_are_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(size: Size, only: list[str]) -> Iterator[Row]:
        yield Row("speed", 1.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "run", rows)
    words = ["gpu_training", "--device", "cpu", "--tiny", "--out", str(tmp_path), "--name", "stopped"]
    with pytest.raises(KeyboardInterrupt):
        command.main(words)
    (path,) = tmp_path.glob("stopped-*.json")
    assert [row["name"] for row in results.read(path)["rows"]] == ["speed"]
