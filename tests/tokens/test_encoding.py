"""Tests of chat templates: training has the tokens that are read and said in play, and these are the template's own."""

import hashlib
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lmrl.callbacks import KeepLast
from lmrl.checkpoints.saving import generation_defaults
from lmrl.data import generate
from lmrl.datamodules import MazeDataModule
from lmrl.envs.registry import chat_prompt, task
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.evaluation.loading import load_policy
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import BC, ILQL, load_module
from lmrl.policies import LMPolicy
from lmrl.tokens import encoding
from lmrl.tokens.encoding import ChatEncoder, Window, encoder_for
from lmrl.tokens.segments import context, segments
from lmrl.types import Episode, Request
from tests.helpers.cases import cases
from tests.helpers.online import TINY, trainer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' }}"
    "{{ m['content'] | trim }}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] | trim + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\\n' + m['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
# The newest turn begins with an empty thought, which the prompt has opened. Earlier turns lose their thoughts.
DROPS = (
    "{% set ns = namespace(last=-1) %}{% for m in messages if m['role'] == 'user' %}"
    "{% set ns.last = messages.index(m) %}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m['role'] == 'assistant' and loop.index0 > ns.last %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{{ m['content'].split('</think>')[-1] | trim + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
)
# The empty thought of an earlier turn is a shorter one.
SHORTENS = DROPS.replace(
    "</think>\\n\\n' }}{% endif %}", "</think>\\n\\n' }}{% elif m['role'] == 'assistant' %}<think></think>{% endif %}"
)
# Every turn begins with an empty thought, and the prompt does not.
KEEPS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m['role'] == 'assistant' %}{{ '<think></think>' }}{% endif %}"
    "{{ m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# The prompt opens a thought, and no turn has one.
OPENS = CHATML.replace("assistant\\n' }}{% endif", "assistant\\n<think>\\n' }}{% endif")
# A turn has a channel, and the last message of all ends in another way than the others.
CHANNEL = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] }}{% if m['role'] == 'assistant' %}{{ '[FINAL]' }}{% endif %}"
    "{{ '\\n' + m['content'] }}"
    "{{ '<|eot_id|>' if loop.last and not add_generation_prompt else '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"
)
# The user's header ends a turn of the assistant.
HEADERS = (
    "{% for m in messages %}{{ '[INST]' if m['role'] == 'user' else '[/INST]' }}{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[/INST]' }}{% endif %}"
)
FORGETS = CHATML.replace(
    "m['content']", "(m['content'] if loop.last or m['role'] == 'user' else m['content'].split('</think>')[-1] | trim)"
)
# Templates that do not write every turn of the assistant as they prompt for it.
KINDS = {
    "drops": DROPS,
    "shortens": SHORTENS,
    "keeps": KEEPS,
    "opens": OPENS,
    "channel": CHANNEL,
    "headers": HEADERS,
    "forgets": FORGETS,
}
TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA}
ENDS = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>", "mistral": "</s>", "gemma": "<end_of_turn>"}
SPECIAL = [
    "<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "[FINAL]",
]  # fmt: skip

OBSERVATIONS = ("you are at 1, 1.\n", "wall!\n", "you are at 1, 2.\n", "you are at 2, 2.\n")
ACTIONS = ("move up\n", "move right\n", "move down\n")


def tokenizer(template: str | None) -> PreTrainedTokenizerBase:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    teacher = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[AddedToken(text, normalized=False, special=True) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([*OBSERVATIONS, *ACTIONS, "user assistant model"] * 3, teacher)
    made = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    made.chat_template = template
    return made


@pytest.fixture(params=TEMPLATES)
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def played(ids: Sequence[tuple[int, ...]] = (), **more: Any) -> Episode:
    given = {"terminated": False, "truncated": True, "action_ids": tuple(ids), **more}
    return Episode("maze_fo", OBSERVATIONS, ACTIONS, (-1.0, -2.0, -3.0), **given)


def messages(first: int, count: int) -> list[dict[str, str]]:
    texts = [text.strip() for pair in zip(OBSERVATIONS, (*ACTIONS, ""), strict=True) for text in pair][first:count]
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def rendered(tokens: PreTrainedTokenizerBase, first: int, count: int, system: str = "") -> list[int]:
    """Return the dialogue as the tokenizer itself renders it, as a whole."""
    told = messages(first, count)
    if system and tokens.chat_template in (CHATML, LLAMA3):
        told.insert(0, {"role": "system", "content": system})
    elif system:  # the other templates have no such role
        told[0]["content"] = f"{system}\n\n{told[0]['content']}"
    return list(tokens.apply_chat_template(told, add_generation_prompt=True, tokenize=True, return_dict=False))


@pytest.mark.parametrize("system", ["", "You walk.\n\nFour moves."], ids=["no system", "system"])
@pytest.mark.parametrize("texts", [None, 1, 3, 4], ids=lambda n: f"{n} texts")
def test_contexts_are_those_of_the_template(style: str, texts: int | None, system: str) -> None:
    """This holds in play and training. A window that would begin with an action begins with the next observation."""
    tokens = tokenizer(TEMPLATES[style])
    window = Window(texts, rendering="chat", system=system)
    encoder = encoder_for(tokens, window)
    parts = list(segments(played(), encoder, window))
    trained = [part.ids[: col + 1].tolist() for part in parts for col in part.col]
    for turn in range(4):
        count = 2 * turn + 1
        first = 0 if texts is None else max(0, count - texts + (count - texts) % 2)
        expected = rendered(tokens, first, count, system)
        assert context(encoder, window, OBSERVATIONS[: turn + 1], ACTIONS[:turn]) == expected
        following = [part.next_ids.tolist() for part in parts if part.next_ids is not None]
        assert expected in [*trained, *following]


def test_loss_is_on_the_agents_words_and_its_end_of_turn(style: str) -> None:
    tokens = tokenizer(TEMPLATES[style])
    window = Window(rendering="chat")
    (part,) = segments(played(), encoder_for(tokens, window), window)
    space = " " if style == "mistral" else ""
    end = ENDS[style]
    assert tokens.decode(part.token) == "".join(f"{space}{action.strip()}{end}" for action in ACTIONS)
    ends = tokens.convert_tokens_to_ids(end)
    assert part.reward[part.token == ends].tolist() == [-1.0, -2.0, -3.0] and part.reward.sum() == -6.0
    assert part.token.tolist() == part.ids[part.col + 1].tolist()


@pytest.mark.parametrize("texts", [None, 1, 4], ids=lambda n: f"{n} texts")
@pytest.mark.parametrize("kind", [*TEMPLATES, *KINDS])
def test_a_rollout_is_trained_on_as_it_was_read_and_said(kind: str, texts: int | None) -> None:
    """A model from random weights says anything: no end of turn, special ids, words that encode otherwise."""
    tokens = tokenizer({**TEMPLATES, **KINDS}[kind])
    window = Window(texts, 900, "chat")
    torch.manual_seed(0)
    module = BC(architecture={**TINY, "n_positions": 1024, "vocab_size": len(tokens)})
    read: list[tuple[list[int], tuple[int, ...]]] = []
    policy = LMPolicy(module.model, tokens, window, max_new_tokens=6)
    end = ChatEncoder(tokens).end
    with torch.no_grad():  # so that some turns end
        module.model.get_output_embeddings().weight[end] *= 4  # type: ignore[operator, union-attr]
    act = policy.act

    def noting(requests: Sequence[Request]) -> Any:
        replies = act(requests)
        read.extend(zip(policy._context_builder.contexts(requests), (reply.ids for reply in replies), strict=True))
        return replies

    policy.act = noting  # type: ignore[method-assign]
    episodes = evaluate(policy, "maze_fo", 6, slots=1, env={"max_steps": 8}).episodes
    assert {ids[-1] == end for episode in episodes for ids in episode.action_ids} == {True, False}
    special = set(tokens.all_special_ids) - {end}
    assert not special & {token for episode in episodes for ids in episode.action_ids for token in ids}
    parts = [part for episode in episodes for part in segments(episode, ChatEncoder(tokens), window)]
    trained = []
    for part in parts:
        starts = [c for i, c in enumerate(part.col) if i == 0 or c != part.col[i - 1] + 1 or part.reward[i - 1] != 0]
        trained += [part.ids[: col + 1].tolist() for col in starts]
    said = [token for part in parts for token in part.token.tolist()]
    assert trained == [ids for ids, _ in read]
    assert said == [token for _, ids in read for token in ids]


READ = {
    "drops": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n[up<|im_end|>]\n"
    "<|im_start|>user\nwall<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "keeps": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think></think>[up<|im_end|>]\n"
    "<|im_start|>user\nwall<|im_end|>\n<|im_start|>assistant\n<think></think>",
    "opens": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n[up<|im_end|>]\n"
    "<|im_start|>user\nwall<|im_end|>\n<|im_start|>assistant\n",
    "channel": "<|im_start|>user\nhi<|im_end|><|im_start|>assistant[FINAL]\n[up<|im_end|>]"
    "<|im_start|>user\nwall<|im_end|><|im_start|>assistant[FINAL]\n",
    "headers": "[INST]hi[/INST][up[INST]]wall[/INST]",
    "forgets": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n[up<|im_end|>]\n"
    "<|im_start|>user\nwall<|im_end|>\n<|im_start|>assistant\n",
}
READ["shortens"] = READ["drops"]
DEVIATIONS = {
    "drops": ["policies act after ", r"earlier turns keep '<think>\n\n</think>\n\n', where it writes ''"],
    "shortens": ["policies act after ", r"earlier turns keep '\n\n</think>\n\n', where it writes '</think>'"],
    "keeps": ["policies act after "],
    "opens": ["policies act after "],
    "channel": ["policies act after ", "the newest turn is "],
    "headers": ["the newest turn is "],
    "forgets": ["thoughts stay in earlier turns"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_template_puts_before_an_action_is_read_and_kept(kind: str) -> None:
    """An action (in brackets here) follows what the newest turn begins with, and no turn is rendered again."""
    tokens = tokenizer(KINDS[kind])
    encoder = ChatEncoder(tokens)
    window = Window(rendering="chat")
    opening = context(encoder, window, ["hi"], [])
    action = encoder.action("up\n")
    later = context(encoder, window, ["hi", "wall"], ["up\n"])
    said = len(opening) + len(action)
    assert later[:said] == [*opening, *action]
    assert f"{tokens.decode(opening)}[{tokens.decode(action)}]{tokens.decode(later[said:])}" == READ[kind]
    own = tokens.apply_chat_template(
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "up"}], return_dict=False
    )
    end = () if kind in ("channel", "headers") else (encoder.end,)
    assert [*opening, *action[:-1], *end] == own[: len(opening) + len(action) - 1 + len(end)]
    assert len(encoder.deviations) == len(DEVIATIONS[kind])
    for phrase, beginning in zip(encoder.deviations, DEVIATIONS[kind], strict=True):
        assert phrase.startswith(beginning)
    assert ChatEncoder(tokenizer(CHATML)).deviations == []


def test_thoughts_that_were_recorded_are_kept_or_refused() -> None:
    thought = "<think>\nfree\n</think>\n\nup"
    for template in (FORGETS, OPENS, CHATML):
        tokens = tokenizer(template)
        encoder = ChatEncoder(tokens)
        pieces = encoder.pieces(["hi", "wall"], [thought], [])
        assert tokens.decode(pieces[1]) == f"{thought}<|im_end|>"
        assert encoder.decode_action(pieces[1]) == f"{thought}\n"
    for template in (DROPS, KEEPS):
        with pytest.raises(UserError, match=r"has a thought, and with the chat template of .* after the end of one"):
            ChatEncoder(tokenizer(template)).action(thought)


def test_a_run_tells_where_it_leaves_the_template(data_path: Path, tmp_path: Path) -> None:
    tokenizer(DROPS).save_pretrained(tmp_path / "tokens")
    module = BC(architecture={**TINY, "n_positions": 256}, tokenizer=str(tmp_path / "tokens"))
    data = MazeDataModule("maze_fo", path=str(data_path), batch_size=64, rendering="chat", system="")
    with pytest.warns(UserWarning, match="the chat template is followed but for this: policies act after .*; earlier"):
        trainer(tmp_path / "run", 1).fit(module, data)
    module.export(tmp_path / "last")
    card = (tmp_path / "last" / "README.md").read_text(encoding="utf-8")
    assert "In front of every action, earlier ones included, stands" in card


def test_another_chat_template_than_in_training_is_told(data_path: Path, tmp_path: Path) -> None:
    """The hash of the template is in the checkpoint, in the manifest and in the card."""
    tokenizer(CHATML).save_pretrained(tmp_path / "tokens")
    module = BC(architecture={**TINY, "n_positions": 256}, tokenizer=str(tmp_path / "tokens"))
    data = MazeDataModule("maze_fo", path=str(data_path), batch_size=64, rendering="chat", system="")
    run = trainer(tmp_path / "run", 1)
    run.fit(module, data)
    run.save_checkpoint(tmp_path / "last.ckpt")
    module.export(tmp_path / "last")
    made = hashlib.sha256(CHATML.encode()).hexdigest()[:16]
    assert f'| chat_template | `"{made}"` |' in (tmp_path / "last" / "README.md").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "last" / "lmrl.json").read_text())["chat_template"] == made
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_policy(tmp_path / "last.ckpt", task("maze_fo"))
        load_policy(tmp_path / "last", task("maze_fo"))
    tokenizer(LLAMA3).save_pretrained(tmp_path / "last")
    now = hashlib.sha256(LLAMA3.encode()).hexdigest()[:16]
    for file in ("last.ckpt", "last"):
        with pytest.warns(UserWarning, match=rf"another chat template \('{made}'\) .* now \('{now}'\)"):
            load_policy(tmp_path / file, task("maze_fo"))


def test_of_a_plain_run_no_template_is_noted(data_path: Path, tmp_path: Path) -> None:
    tokenizer(CHATML).save_pretrained(tmp_path / "tokens")
    module = BC(architecture={**TINY, "n_positions": 256}, tokenizer=str(tmp_path / "tokens"))
    trainer(tmp_path / "run", 1).fit(module, MazeDataModule("maze_fo", path=str(data_path), batch_size=64))
    module.export(tmp_path / "last")
    assert json.loads((tmp_path / "last" / "lmrl.json").read_text())["chat_template"] is None
    assert "chat_template" not in (tmp_path / "last" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("texts", [None, 1, 4], ids=lambda n: f"{n} texts")
def test_a_system_message_is_no_observation_to_predict(texts: int | None) -> None:
    tokens = tokenizer(CHATML)
    window = Window(texts, rendering="chat", system="You walk. Four moves.")
    predicted = ""
    for part in segments(played(), encoder_for(tokens, window), window):
        predicted += tokens.decode(part.ids[part.observation_col() + 1])
    assert "walk." not in predicted and "Four moves" not in predicted
    assert [predicted.count(observation.strip()) for observation in OBSERVATIONS] == [1, 1, 1, 0]


def test_a_system_message_is_never_cut() -> None:
    window = Window(tokens=60, rendering="chat", system="walk " * 20)
    with pytest.raises(UserError, match=r"the system message and observation 0 of the episode have .* may have 60"):
        context(encoder_for(tokenizer(CHATML), window), window, OBSERVATIONS[:1], [])


def test_a_message_that_is_too_long_loses_its_first_words(style: str) -> None:
    tokens = tokenizer(TEMPLATES[style])
    window = Window(tokens=40, rendering="chat")
    encoder = encoder_for(tokens, window)
    long = " ".join(f"word {number}" for number in range(60))
    before, after = encoding.render_chat(tokens, [{"role": "user", "content": long}]).split(long)
    read = tokens.decode(context(encoder, window, [long], []))
    assert read.startswith(before) and read.endswith("word 59" + after)
    assert read.removeprefix(before).removesuffix(after) in long
    (part,) = segments(Episode("toy", (long, "end"), ("go\n",), (1.0,), True, False), encoder, window)
    assert tokens.decode(part.ids[: part.col[0] + 1]) == read and part.col[0] == 39


def test_only_what_a_context_begins_with_is_rendered_as_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tokenizer(CHATML)
    opened: list[str] = []
    opening = ChatEncoder.opening

    def noting(encoder: ChatEncoder, observation: str) -> tuple[int, ...]:
        opened.append(observation)
        return opening(encoder, observation)

    monkeypatch.setattr(ChatEncoder, "opening", noting)
    window = Window(rendering="chat", system="You walk.")
    encoder = encoder_for(tokens, window)
    list(segments(played(), encoder, window))
    assert set(opened) == {OBSERVATIONS[0]}


def test_an_encoder_keeps_the_ids_of_so_many_texts_of_each_kind() -> None:
    encoder = ChatEncoder(tokenizer(CHATML), remember=2)
    read = [encoder.pieces([f"at {n}"], [], [])[0] + encoder.opening(f"at {n}") for n in range(5)]
    for cache in (encoder._ids, encoder._followings, encoder._openings):
        assert len(cache) <= 2
    assert read == [encoder.pieces([f"at {n}"], [], [])[0] + encoder.opening(f"at {n}") for n in range(5)]


OWN = CHATML.replace(
    "{% for m in messages %}",
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are Bot.<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}",
)


def test_a_template_with_a_system_message_of_its_own_is_named(data_path: Path, tmp_path: Path) -> None:
    assert ChatEncoder(tokenizer(CHATML)).own_system == ""
    assert ChatEncoder(tokenizer(GEMMA)).own_system == ""
    assert ChatEncoder(tokenizer(OWN)).own_system == "You are Bot."
    tokenizer(OWN).save_pretrained(tmp_path / "tokens")

    def fit(system: str, folder: Path) -> None:
        module = BC(architecture={**TINY, "n_positions": 256}, tokenizer=str(tmp_path / "tokens"))
        data = MazeDataModule("maze_fo", path=str(data_path), batch_size=64, rendering="chat", system=system)
        trainer(folder, 1).fit(module, data)
        assert module.window is not None and module.window.system == system

    with pytest.warns(UserWarning, match=r"a system message of its own, 'You are Bot\.': data\.init_args\.system"):
        fit("", tmp_path / "none")
    fit("Walk.", tmp_path / "given")


def test_by_default_a_chat_reads_the_rules_that_prompted_models_read(data_path: Path) -> None:
    data = MazeDataModule("maze_fo", path=str(data_path), rendering="chat")
    prompt = chat_prompt("maze_fo")
    system = data.window().system
    assert prompt.rules in system and system.startswith(f"You are {prompt.role}. Reply with nothing but your action")
    data = MazeDataModule("maze_fo", path=str(data_path), rendering="chat", examples=2)
    data.setup("fit")
    window = data.window()
    assert window.system.startswith(system) and window.system.count("\nGame: ") > 2
    assert "Example 2:" in window.system
    assert MazeDataModule("maze_fo", path=str(data_path)).window().system == ""
    with pytest.raises(UserError, match="system and examples need rendering: chat"):
        MazeDataModule("maze_fo", path=str(data_path), system="Walk.")


def test_a_turn_that_was_cut_off_is_ended_by_what_follows(style: str) -> None:
    """The player reads the end of its turn, and is not trained to have said it."""
    tokens = tokenizer(TEMPLATES[style])
    window = Window(rendering="chat")
    encoder = ChatEncoder(tokens)
    said = [encoder.action(action)[:-1] for action in ACTIONS]
    assert context(encoder, window, OBSERVATIONS, ACTIONS, said) == rendered(tokens, 0, 7)
    (part,) = segments(played(said), encoder, window)
    assert part.token.tolist() == [token for ids in said for token in ids]


def test_what_is_said_is_what_is_heard(style: str) -> None:
    encoder = ChatEncoder(tokenizer(TEMPLATES[style]))
    for text in ACTIONS:
        ids = encoder.action(text)
        assert encoder.decode_action(ids) == text == encoder.decode_action(ids[:-1])
        assert ids[-1] == encoder.end


def test_a_template_that_writes_the_date_is_the_same_on_every_day() -> None:
    for written in ("{{ strftime_now('%d %B %Y, %A') }}", "\n{{ strftime_now('%-d %B %Y, %A') }}"):
        encoder = ChatEncoder(tokenizer(written + CHATML))
        begin = written.partition("{")[0] + "26 July 2024, Friday<|im_start|>user"
        assert encoder.decode(encoder.opening("hi")).startswith(begin)


def test_tokens_that_depend_on_what_stands_before_them_are_a_deviation() -> None:
    words = tokenizer(CHATML)
    assert ChatEncoder(words).deviations == []
    # As in tokenizers by SentencePiece: the first word of a text begins with a space.
    words.backend_tokenizer.normalizer = normalizers.Prepend(" ")
    assert any("one text after the other" in told for told in ChatEncoder(words).deviations)


def test_a_run_begins_contexts_as_its_tokenizer_begins_texts(tmp_path: Path) -> None:
    """Tokenizers of pretrained models, such as those of Llama and Gemma, write a BOS token; the others write none."""
    words = load_tokenizer("lmrl")
    assert not encoding.adds_bos(words)
    bos = words.bos_token_id
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=[words.bos_token, "$A"], special_tokens=[(words.bos_token, bos)]
    )
    words.save_pretrained(tmp_path / "words")
    module = BC(architecture=TINY, tokenizer=str(tmp_path / "words"))
    data = MazeDataModule(path=str(generate("maze_fo", 8, 0, tmp_path / "maze.parquet", progress=False)))
    trainer(tmp_path / "run", 1, [KeepLast()]).fit(module, data)
    batch = next(iter(data.train_dataloader()))
    assert set(batch.input_ids[:, 0].tolist()) == {bos}
    policy: Any = load_policy(tmp_path / "run" / "last.ckpt").policy
    (read,) = policy._context_builder.contexts([Request(0, 0, ("at 1, 1\n",))])
    assert read == words.encode("at 1, 1\n") and read[0] == bos
    card = (tmp_path / "run" / "last" / "README.md").read_text()
    assert 'tokenizer(text, return_tensors="pt")' in card


def test_no_special_token_is_sampled_whether_it_has_a_name_or_not() -> None:
    words = load_tokenizer("lmrl")
    words.add_tokens([AddedToken("<|eom_id|>", special=True), AddedToken("<tool>", special=False)])
    eom, tool = words.convert_tokens_to_ids(["<|eom_id|>", "<tool>"])
    assert eom not in words.all_special_ids
    never = encoding.invalid_ids(words, len(words), torch.device("cpu"))
    assert never[eom] and never[words.eos_token_id] and not never[tool]
    assert not encoding.invalid_ids(words, len(words), torch.device("cpu"), end=eom)[eom]


@cases(
    ("template", "message"),
    [
        (None, "has none: use rendering text"),
        (CHATML.replace("m['content']", "m['content'] + loop.revindex | string"), "prefix-stable"),
        (CHATML.replace("m['content']", "(m['content'] if loop.last else m['content'][:4])"), "prefix-stable"),
        # The newest three messages stay.
        (CHATML.replace("m['content']", "(m['content'] if loop.revindex < 4 else m['content'][:4])"), "prefix-stable"),
        (LLAMA3.replace("'<|eot_id|>'", "'\\n'"), "must end in a token of its own"),
        # Every second action has an empty thought.
        (KEEPS.replace("'assistant' %}", "'assistant' and loop.index0 % 4 == 1 %}"), "earlier turns change"),
        (CHATML.replace("m['content']", "m['content'][0]['text']"), "has no attribute 'text'"),
        (CHATML.replace("m['content']", "m['content'] | selectattr('text') | join"), "leaves out texts"),
    ],
)
def test_templates_that_cannot_be_cut_are_refused(template: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ChatEncoder(tokenizer(template))


def test_a_run_on_chat_plays_as_it_was_trained(data_path: Path, tmp_path: Path) -> None:
    """The test goes from the tokenizer's folder over BC and ILQL to the checkpoint that plays, and to `generate`."""
    tokenizer(GEMMA).save_pretrained(tmp_path / "tokens")
    data: dict[str, Any] = {"path": str(data_path), "batch_size": 64, "rendering": "chat", "system": ""}
    bc = BC(architecture={**TINY, "n_positions": 256}, tokenizer=str(tmp_path / "tokens"))
    run: L.Trainer = trainer(tmp_path / "bc", 2)
    run.fit(bc, MazeDataModule("maze_fo", **data))
    bc.export(tmp_path / "bc" / "last")
    ilql = ILQL(pretrained=str(tmp_path / "bc"))
    run = trainer(tmp_path / "ilql", 2)
    run.fit(ilql, MazeDataModule("maze_fo", **data))
    run.save_checkpoint(tmp_path / "last.ckpt")
    ilql.export(tmp_path / "last")  # as runs do: with the tokenizer
    assert load_module(tmp_path / "last.ckpt").context_window().rendering == "chat"
    policy = load_policy(tmp_path / "last.ckpt", task("maze_fo")).policy
    request = Request(0, 0, OBSERVATIONS[:1])
    (ids,) = policy._context_builder.contexts([request])  # type: ignore[attr-defined]
    assert bc.tokenizer.decode(ids).endswith("<end_of_turn>\n<start_of_turn>model\n")
    end = bc.tokenizer.convert_tokens_to_ids("<end_of_turn>")
    generation = bc.model.generation_config.from_pretrained(tmp_path / "bc" / "last")  # type: ignore[union-attr]
    assert generation.eos_token_id in (end, [end]) and end not in generation.suppress_tokens


@cases(
    "template",
    [
        "{{ 1 / 0 }}",
        "{{ unknown.name }}",
        "{% for %}",
        "{{ '' + 1 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}",
        "{{ ''.__class__.__mro__ }}{{ messages.append(1) }}",
    ],
)
def test_a_template_that_fails_is_said_in_one_line(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_SECONDS", 0.2)
    before = sys.gettrace()
    with pytest.raises(UserError, match="cannot be used for training") as error:
        ChatEncoder(tokenizer(template))
    assert "\n" not in str(error.value)
    assert sys.gettrace() is before


def test_generation_pads_with_the_end_of_texts_where_a_tokenizer_has_no_padding() -> None:
    """Left open, `generate` pads with the first id that ends an action, a line break."""
    module = BC(architecture=TINY)
    module.tokenizer.pad_token = None
    assert generation_defaults(module).pad_token_id == module.tokenizer.eos_token_id
