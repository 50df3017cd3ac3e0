"""A pretrained model on the way that users take: it is loaded, trained, adapted, played and exported.

The expected numbers come from transformers, which reads the same folder without our code. `benchmarks/real_model.py`
shows the figures of two of these tests.
"""

import csv
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from benchmarks import real_model
from lmrl.cli import main
from lmrl.data import generate
from lmrl.data.storage import read_episodes
from lmrl.datamodules import TwentyQuestionsDataModule
from lmrl.decoding.engine import Engine
from lmrl.envs import make
from lmrl.envs.registry import chat_prompt
from lmrl.losses.token_scores import gather_token_scores
from lmrl.models.lm import build_lm, logits_of, trunk_of
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import BC, load_module
from lmrl.policies import LMPolicy
from lmrl.policies.chat.policy import system_prompt
from lmrl.policies.lm import ContextBuilder
from lmrl.rollout import rollout
from lmrl.tokens.encoding import Window, invalid_ids
from lmrl.types import Episode, Request, Start

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "models" / "smollm2-135m"
GGUF = FOLDER / "SmolLM2-135M-Instruct.Q4_1.gguf"
CONFIGS = ("twenty_questions/bc.yaml", "models/smollm2.yaml", "scale/cpu.yaml")
CHAT = Window(tokens=512, rendering="chat")

pytestmark = [pytest.mark.real_model, pytest.mark.slow]
if not FOLDER.is_dir():
    pytest.skip("needs SmolLM2-135M-Instruct: make smollm2", allow_module_level=True)


@pytest.fixture(scope="module")
def reference() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(FOLDER).eval()


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def dialogues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short games of Twenty Questions, of 8 and 7 questions."""
    return generate("twenty_questions", 2, 0, tmp_path_factory.mktemp("data") / "dialogues.parquet", progress=False)


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed after the test: a run is 2 GB, and pytest keeps folders for three sessions."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@torch.no_grad()
def logits(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """(tokens, vocabulary) logits of one context, by the forward pass of transformers."""
    return model.eval()(input_ids=torch.tensor([ids])).logits[0]


def fit(dialogues: Path, run: Path, *words: str, callbacks: Sequence[dict[str, Any]] = ()) -> list[float]:
    """Train for two steps on all dialogues, as docs/guide/models.md shows; return the loss of each step on actions."""
    small = {
        "data": {"init_args": {"path": str(dialogues), "batch_size": 2, "val_fraction": 0.0}},
        "trainer": {
            "max_steps": 2,
            "log_every_n_steps": 1,
            "limit_val_batches": 0,
            "default_root_dir": str(run),
            "enable_progress_bar": False,
            "callbacks": [*callbacks, {"class_path": "lmrl.callbacks.KeepLast"}],
        },
    }
    overlay = run.with_suffix(".yaml")
    overlay.write_text(yaml.safe_dump(small), encoding="utf-8")
    configs = [*(ROOT / "configs" / name for name in CONFIGS), overlay]
    files = [word for config in configs for word in ("--config", str(config))]
    start = f"--model.init_args.pretrained={FOLDER}"
    assert main(["fit", *files, start, "--model.init_args.lr=1e-4", "--model.init_args.warmup_steps=0", *words]) == 0
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        return [float(row["bc/nll"]) for row in csv.DictReader(file) if row["bc/nll"]]


def loss_of_actions(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, episodes: list[Episode]) -> float:
    """Mean loss of the assistant's words and ends of turn, by the chat template and the loss of transformers.

    The system message is the rules of the game, not the template's own.
    """
    rules = system_prompt(chat_prompt("twenty_questions"), {})
    start_of_turn = tokenizer.encode("<|im_start|>assistant\n")
    total = 0.0
    count = 0
    for episode in episodes:
        messages = [{"role": "system", "content": rules}]
        for observation, action in zip(episode.observations, episode.actions, strict=False):
            messages.append({"role": "user", "content": observation.strip()})
            messages.append({"role": "assistant", "content": action.strip()})
        ids = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
        labels = [-100] * len(ids)
        in_action = False
        for place, token in enumerate(ids):
            if in_action:
                labels[place] = token
            if token == tokenizer.eos_token_id:
                in_action = False
            if ids[: place + 1][-len(start_of_turn) :] == start_of_turn:
                in_action = True
        with torch.no_grad():
            loss = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss
        num_actions = sum(label != -100 for label in labels)
        total += float(loss) * num_actions
        count += num_actions
    return total / count


def test_the_folder_is_what_was_published(reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    ) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.tokenize("so.\n\n12 cats") == ["so", ".", "ĊĊ", "1", "2", "Ġcats"]
    assert tokenizer.padding_side == "left"
    special = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert special == (1, 2, 2)
    for settings in (reference.config, reference.generation_config):
        assert (settings.bos_token_id, settings.eos_token_id, settings.pad_token_id) == special
    assert reference.config.rope_parameters["rope_theta"] == 100_000
    assert reference.config.rms_norm_eps == pytest.approx(1e-5)
    assert reference.lm_head.weight is reference.model.embed_tokens.weight
    assert reference.num_parameters() == 134_515_008


@pytest.mark.nightly
@pytest.mark.skipif(not GGUF.is_file(), reason="the folder is of an earlier version: remove it, make smollm2")
def test_the_gguf_file_gives_the_same_model_and_tokenizer(
    reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    model = build_lm(str(GGUF), {}, 0)
    ids = tokenizer.encode("Is it an animal? No, 123.")
    torch.testing.assert_close(logits(model, ids), logits(reference, ids), atol=0, rtol=0)
    found = load_tokenizer(str(GGUF))
    assert found.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert found.chat_template == tokenizer.chat_template
    assert found.special_tokens_map == tokenizer.special_tokens_map


def test_the_trainer_and_the_engine_compute_the_models_logits(
    reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, dialogues: Path
) -> None:
    module = BC(pretrained=str(FOLDER))
    data = TwentyQuestionsDataModule(path=str(dialogues), batch_size=2, val_fraction=0.0, rendering="chat")
    data.configure_batches(module.batch_spec())
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    with torch.no_grad():
        hidden = module.hidden_states(trunk_of(module.model), batch)
        scores = gather_token_scores(logits_of(module.model, hidden), batch.state, batch.token)
    rows = [logits(reference, ids) for ids in batch.input_ids.tolist()]
    expected = torch.stack([rows[row][col] for row, col in zip(batch.row, batch.col, strict=True)])[batch.state]
    places = torch.arange(batch.n_tokens)
    torch.testing.assert_close(scores.score, expected[places, batch.token], atol=1e-3, rtol=0)
    torch.testing.assert_close(scores.nll, -expected.log_softmax(-1)[places, batch.token], atol=1e-3, rtol=0)

    texts = [tokenizer.encode(text) for text in ("Is it an animal?\nNo.\nIs it made of", "Do you plug it in?")]
    engine = Engine(module.model, slots=2)
    for unread in (2, 1, 0):  # two prompts of different lengths, then one more token of each, and another
        contexts = [text[: len(text) - unread] for text in texts]
        found = engine.logits(engine.feed([0, 1], contexts))
        last = torch.stack([logits(reference, context)[-1] for context in contexts])
        torch.testing.assert_close(found, last, atol=1e-3, rtol=0)


def test_a_greedy_answer_is_english(reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    # At each of its tokens the best logit is at least .96 above the second.
    policy = LMPolicy(reference, tokenizer, CHAT, temperature=0.0)
    (reply,) = policy.act([Request(slot=0, seed=0, observations=("What is the capital of Japan?",))])
    assert reply.text == "The capital of Japan is Tokyo.\n"
    assert reply.ids[-1] == tokenizer.eos_token_id


def test_games_are_played_as_transformers_generates(
    reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    policy = LMPolicy(reference, tokenizer, CHAT, temperature=0.0, max_new_tokens=5)
    games = rollout(policy, lambda: make("maze_fo", max_steps=2), [Start(0), Start(1)], task="maze_fo", slots=2)
    contexts = ContextBuilder(tokenizer, CHAT, positions=1024, room=5)
    suppressed = invalid_ids(tokenizer, len(tokenizer), torch.device("cpu"), tokenizer.eos_token_id).nonzero()
    episodes = [episode for _, episode in games]
    assert [len(episode) for episode in episodes] == [3, 3]  # the third action finds that the time is up
    for episode in episodes:
        for turn, sampled in enumerate(episode.action_ids):
            before = episode.observations[: turn + 1], episode.actions[:turn], episode.action_ids[:turn]
            (context,) = contexts.contexts([Request(0, episode.seed, *before)])
            whole = reference.generate(
                torch.tensor([context]),
                max_new_tokens=5,
                do_sample=False,
                suppress_tokens=suppressed.flatten().tolist(),
            )
            assert whole[0, len(context) :].tolist() == list(sampled)


def test_dialogues_are_continued_as_transformers_generates(
    reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, dialogues: Path
) -> None:
    # Two games, the first after 0 and 1 of its turns, the second after 2 and 3.
    episodes = [episode for episode in read_episodes(dialogues) for _ in range(2)]
    agreement = real_model.compare_greedy(reference, tokenizer, episodes)
    assert agreement.different == 0
    assert agreement.same >= 3


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_the_figures_of_the_benchmark_are_within_their_bounds(
    reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, scratch: Path
) -> None:
    games = real_model.record_games(real_model.GAMES, scratch)
    assert real_model.compare_greedy(reference, tokenizer, list(read_episodes(games))).different == 0
    errors = real_model.float32_errors(reference, tokenizer, games, scratch)
    assert list(errors) == ["training", "engine", "exported folder", "merged LoRA"]
    assert max(errors.values()) <= 1e-3
    for ours, theirs in real_model.bfloat16_errors(reference, tokenizer, games).values():
        assert 0 < theirs.kl and ours.kl <= theirs.kl + 1e-3
        assert ours.error <= 2 * theirs.error


@pytest.mark.nightly  # in CI, adapters are trained and exported
def test_a_run_learns_and_its_folder_holds_what_it_learned(
    reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, dialogues: Path, scratch: Path
) -> None:
    run = scratch / "bc"
    first, second = fit(dialogues, run)
    assert second < first - 0.1
    ids = tokenizer.encode("Is it an animal?\nNo.\nIs it a")
    learned = logits(load_module(run).model, ids)
    assert (learned - logits(reference, ids)).abs().max() > 0.1
    exported = AutoModelForCausalLM.from_pretrained(run / "last")
    torch.testing.assert_close(logits(exported, ids), learned, atol=1e-5, rtol=0)


#: Saves the step that it evaluates as `best`.
EVALUATION = {
    "class_path": "lmrl.callbacks.InteractiveEvaluation",
    "init_args": {
        "task": "maze_fo",
        "every_n_steps": 2,
        "episodes": 1,
        "decoding": {"max_new_tokens": 2},
        "env": {"max_steps": 2},
    },
}


@pytest.mark.nightly
def test_adapters_are_trained_saved_and_merged(
    reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, dialogues: Path, scratch: Path
) -> None:
    peft = pytest.importorskip("peft", reason="adapters need peft: pip install 'lmrl[lora]'")
    run = scratch / "lora"
    lora = "--model.init_args.lora={r: 16, lora_alpha: 128}"
    first, second = fit(dialogues, run, lora, "--model.init_args.lr=0.003", callbacks=[EVALUATION])
    # Adapters begin as no change, so the first loss is that of the model without them.
    assert first == pytest.approx(loss_of_actions(reference, tokenizer, list(read_episodes(dialogues))), abs=1e-4)
    assert second < first - 0.1
    megabytes, _, _ = subprocess.check_output(["du", "-sm", str(run)], text=True).partition("\t")
    assert int(megabytes) <= 160
    assert {"best", "best.ckpt", "last", "last.ckpt"} <= {path.name for path in run.iterdir()}
    for words in (["--to", str(scratch / "adapter"), "--adapters"], ["--to", str(scratch / "whole")]):
        assert main(["export", str(run), *words]) == 0
    ids = tokenizer.encode("Is it an animal?\nNo.\nIs it a")
    plain = logits(reference, ids)
    learned = logits(load_module(run).model, ids)
    assert (learned - plain).abs().max() > 0.1
    for name in ("best", "last"):
        assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(run / name), ids), learned)
    whole = AutoModelForCausalLM.from_pretrained(scratch / "whole")
    torch.testing.assert_close(logits(whole, ids), learned, atol=1e-3, rtol=0)
    adapted = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(FOLDER), scratch / "adapter")
    torch.testing.assert_close(logits(adapted, ids), learned, atol=1e-3, rtol=0)
