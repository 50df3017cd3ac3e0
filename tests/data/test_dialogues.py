"""Dialogues of your own: files of messages and rewards, from reading to a policy that prefers what was rewarded."""

import json
from pathlib import Path
from re import escape
from typing import Any

import lightning as L
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lmrl.callbacks import InteractiveEvaluation
from lmrl.cli import main
from lmrl.data import read_dataset
from lmrl.data.dialogues import episode_from_messages
from lmrl.datamodules import OfflineDataModule
from lmrl.datamodules.spec import BatchSpec
from lmrl.envs import make
from lmrl.errors import UserError
from lmrl.evaluation.loading import load_policy
from lmrl.modules import BC, ILQL, PPO, LanguageModule, load_module
from lmrl.tokens.encoding import encoder_for
from lmrl.types import Request
from tests.helpers.cases import cases
from tests.helpers.online import trainer
from tests.tokens.test_encoding import CHATML, tokenizer

SMALL = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 512, "initializer_range": 0.1}


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def dialogue(*texts: str, system: str = "", **more: Any) -> dict[str, Any]:
    messages = [message("assistant" if number % 2 else "user", text) for number, text in enumerate(texts)]
    return {"messages": [*([message("system", system)] if system else []), *messages], **more}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_messages_become_an_episode() -> None:
    row = dialogue("Hi ", "Hello!", "Bye.", "Bye!\nSee you.", system="Be kind.", rewards=[0, 2])
    episode = episode_from_messages(row, "here")
    assert episode.observations == ("Hi\n", "Bye.\n", "\n") and episode.actions == ("Hello!\n", "Bye!\nSee you.\n")
    assert episode.rewards == (0.0, 2.0) and episode.terminated and episode.info == {"system": "Be kind."}
    assert episode_from_messages(dialogue("Hi", "Hello!", system=" ", reward=1), "here").info == {}
    cut = episode_from_messages(dialogue("Hi", "Hello!", "Bye", reward=1.5, terminated=False, logprobs=[-2]), "here")
    assert cut.action_logprobs == ((-2.0,),)
    assert cut.observations == ("Hi\n", "Bye\n") and cut.rewards == (1.5,) and cut.truncated


@cases(
    ("row", "error"),
    [
        (dialogue("Hi", "Hello"), "there are no rewards: give rewards, one for each of 1 message of the assistant"),
        (
            dialogue("Hi", "Hello", rewards=[1, 2]),
            "rewards must have one number for each of 1 message of the assistant, got 2",
        ),
        (dialogue("Hi", "Hello", reward=float("nan")), r"reward must be a finite number \(of float32\), got nan"),
        (dialogue("Hi", "Hello", reward="good"), r"reward must be a finite number \(of float32\), got 'good'"),
        (dialogue("Hi", "Hello", reward=10**400), r"reward must be a finite number \(of float32\), got 1000"),
        (dialogue("Hi", "Hello", "Bye", "Bye", rewards=[0, 1e39]), r"rewards\[1\] must be a finite number"),
        (dialogue("Hi", "Hello", reward=1, logprobs=[0.5]), "logarithms of probabilities, at most 0, got 0.5"),
        (dialogue("Hi", "Hello", reward=1, logprobs=[-1, -2]), "logprobs must have one number for each of 1 message"),
        (dialogue("Hi", reward=1), "there is no message of the assistant"),
        (dialogue("Hi", "", reward=1), "message 2: content must be a text, got ''"),
        (dialogue("Hi", "Hello", reward=1, terminated=False), "ends with a message of the user"),
        (
            {"messages": [message("assistant", "Hi")], "reward": 1},
            "message 1: expected a message of the user, got one of 'assistant'",
        ),
        (
            {"messages": [message("user", "a"), message("tool", "b")], "reward": 1},
            "of the assistant, got one of 'tool'",
        ),
        (dialogue("Hi", "Hello", reward=1, rewards=[1]), "give either rewards or reward, not both"),
        (dialogue("Hi", "Hello", reward=1, teminated=False), "unknown entry 'teminated', did you mean 'terminated'"),
        ({"mesages": [message("user", "Hi")], "reward": 1}, "unknown entry 'mesages', did you mean 'messages'"),
        ({"messages": "Hi", "reward": 1}, "messages must be a list of roles and contents, got 'Hi'"),
        ({"messages": ["Hi"], "reward": 1}, "message 1: must have a role and a content, got 'Hi'"),
    ],
)
def test_a_broken_row_is_named_in_one_line(row: dict[str, Any], error: str) -> None:
    with pytest.raises(UserError, match=f"^logs, line 7.*{error}"):
        episode_from_messages(row, "logs, line 7")


def test_entries_of_ones_own_are_left_out() -> None:
    row = dialogue("Hi", "Hello", reward=1)
    assert episode_from_messages({**row, "num_messages": 2, "reward_1": 3}, "a") == episode_from_messages(row, "a")
    several = dialogue("Hi", "Hello", rewards=[1])
    assert episode_from_messages({**several, "rewarded": True}, "a") == episode_from_messages(several, "a")


def test_files_are_described_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [dialogue("Hi", "Hello", reward=1), dialogue("Hi", "Go away", reward=-1)]
    file = write(tmp_path / "logs.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "logs.parquet")
    assert list(read_dataset(tmp_path / "logs.parquet")) == list(read_dataset(file))
    for row, ended in zip(rows, (True, None), strict=True):  # as a Parquet file has it where one row says so
        row["terminated"] = ended
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "ended.parquet")
    assert list(read_dataset(tmp_path / "ended.parquet")) == list(read_dataset(file))
    assert main(["data", "stats", str(file)]) == 0
    described = capsys.readouterr().out
    assert "dialogues: 2 episodes" in described
    assert "success" not in described and "illegal" not in described
    assert main(["data", "verify", str(file)]) == 0
    assert "in order: 2 dialogues with 2 replies of the assistant" in capsys.readouterr().out
    lists = write(tmp_path / "lists.jsonl", [rows[0], dialogue("Hi", "- one\n- two", reward=1)])
    assert main(["data", "verify", str(lists)]) == 0
    assert "replies of several lines in 1 dialogue: train with" in capsys.readouterr().out
    write(tmp_path / "bad.jsonl", [rows[0], dialogue("Hi", "Hello")])
    assert main(["data", "verify", str(tmp_path / "bad.jsonl")]) == 2
    assert f"{tmp_path / 'bad.jsonl'}, line 2: there are no rewards" in capsys.readouterr().err
    with pytest.raises(UserError, match="holds no episodes"):
        list(read_dataset(write(tmp_path / "empty.jsonl", [])))
    with pytest.raises(UserError, match="have no simulator"):
        make("dialogues")


def test_dialogues_that_are_longer_than_what_is_read_are_counted(tmp_path: Path) -> None:
    rows = [dialogue("Hi " * count, "Hello", reward=1) for count in (1, 400)]
    rows.append(dialogue("Hi " * 150, "Hello", "Hi " * 150, "Bye", reward=1))
    data = OfflineDataModule(None, path=str(write(tmp_path / "logs.jsonl", rows)), val_fraction=0.0)
    with pytest.warns(UserWarning, match=r"longer than the 256 tokens that the policy reads: 2 of 3; their beginnings"):
        fit(BC(architecture=SMALL), data, tmp_path / "run", 1)


def test_replies_may_be_as_long_as_those_of_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "logs.jsonl", [dialogue("Hi", "No " * count, reward=1) for count in (1, 400)] * 2)
    data = OfflineDataModule(None, path=str(file), val_fraction=0.0)
    module = BC(architecture={**SMALL, "n_positions": 1024})
    fit(module, data, tmp_path / "run", 1)
    longest = len(module.tokenizer.encode("No " * 399 + "No\n"))
    assert 256 < longest == data.max_action_tokens == module.made_with["max_new_tokens"]
    assert module.context_window().tokens == 1024 - longest
    module.export(tmp_path / "policy")
    policy: Any = load_policy(tmp_path / "policy").policy
    assert policy._settings.max_new_tokens == longest
    short = OfflineDataModule(None, path=str(file), val_fraction=0.0)
    fit(BC(architecture={**SMALL, "n_positions": 700}), short, tmp_path / "short", 1)
    assert short.max_action_tokens == 350, "half of what the model reads"
    small = OfflineDataModule(None, path=str(file), val_fraction=0.0)
    small.configure_batches(BC(architecture={**SMALL, "n_positions": 300}).batch_spec())
    small.setup("fit")
    assert (small.max_action_tokens, small.window().tokens) == (150, 150)


def test_contexts_leave_room_for_a_reply(tmp_path: Path) -> None:
    file = write(tmp_path / "logs.jsonl", [dialogue("Hi", "Hello", reward=1)])
    data = OfflineDataModule(None, path=str(file), max_tokens=257)
    message = r"data\.init_args\.max_tokens must leave room for a reply of 256 tokens: at most 256 of the 512"
    with pytest.raises(UserError, match=message):
        fit(BC(architecture=SMALL), data, tmp_path / "run", 1)
    largest = OfflineDataModule(None, path=str(file), max_tokens=256)
    largest.configure_batches(BatchSpec(positions=512))
    assert largest.window().tokens == 256


def test_the_end_of_a_turn_counts_for_the_longest_reply(tmp_path: Path) -> None:
    """Plain text has the last full stop and a line break as one token; a chat ends the turn after the stop."""
    reply = "Go " * 200 + "Go.\n"
    tokens = tokenizer(CHATML)
    tokens.add_tokens([".\n"])
    file = write(tmp_path / "logs.jsonl", [dialogue("Hi", reply, reward=1)])
    data = OfflineDataModule(None, path=str(file), rendering="chat")
    data.configure_batches(BatchSpec(tokenizer=tokens, positions=4096))
    data.setup("fit")
    assert data.max_action_tokens == len(encoder_for(tokens, data.window()).action(reply))


@pytest.mark.parametrize(
    ("rendering", "reply", "token"),
    [("text", "Hello<|endoftext|> you", "<|endoftext|>"), ("chat", "Sure!<|im_end|>", "<|im_end|>")],
)
def test_special_tokens_in_replies_are_named(tmp_path: Path, rendering: str, reply: str, token: str) -> None:
    file = write(tmp_path / "logs.jsonl", [dialogue("Hi", reply, reward=1)])
    data = OfflineDataModule(None, path=str(file), val_fraction=0.0, rendering=rendering)
    tokens = None
    if rendering == "chat":
        tokens = str(tmp_path / "tokens")
        tokenizer(CHATML).save_pretrained(tokens)
    message = rf"special tokens of the tokenizer, which policies never say before the end of a turn: '{escape(token)}'"
    with pytest.warns(UserWarning, match=message):
        fit(BC(architecture=SMALL, tokenizer=tokens), data, tmp_path / "run", 1)


@pytest.mark.parametrize("name", ["bc", "filtered_bc", "ilql"])
def test_the_file_of_the_configurations_must_be_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", f"configs/dialogues/{name}.yaml", "--model.init_args.pretrained=null"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "data.init_args.path must name their file" in error and "--data.init_args.path=logs.jsonl" in error


def two_styles(count: int = 120) -> list[dict[str, Any]]:
    """Each question is answered rudely or politely, as often; only politeness is rewarded."""
    rows = []
    for number in range(count):
        polite = number % 2 == 0
        question = f"How are you, {'abcdefgh'[number // 2 % 8]}?"
        answers = ("Well, thank you.", "You are kind.") if polite else ("None of yours.", "Go away.")
        rows.append(dialogue(question, answers[0], "I see.", answers[1], system="You talk.", rewards=[0, int(polite)]))
    return rows


def fit(module: LanguageModule, data: OfflineDataModule, root: Path, steps: int) -> L.Trainer:
    torch.manual_seed(0)
    run = trainer(root, steps, [InteractiveEvaluation(None, every_n_steps=10)])
    run.fit(module, data)
    return run


def learn(place: Path, bc_steps: int, ilql_steps: int) -> tuple[BC, LanguageModule]:
    """Train BC on dialogues of two styles, and ILQL from what it exports; return BC, and ILQL as it is loaded again."""
    file = write(place / "logs.jsonl", two_styles())
    tokenizer(CHATML).save_pretrained(place / "tokens")

    def data() -> OfflineDataModule:
        return OfflineDataModule(None, path=str(file), batch_size=32, rendering="chat", seed=0)

    shared = {"lr": 5e-3, "warmup_steps": 5}
    bc = BC(architecture=SMALL, tokenizer=str(place / "tokens"), **shared)
    fit(bc, data(), place / "bc", bc_steps)
    bc.export(place / "bc" / "last")
    ilql = ILQL(pretrained=str(place / "bc"), gamma=1.0, polyak=0.2, beta=16.0, **shared)
    fit(ilql, data(), place / "ilql", ilql_steps)
    ilql.export(place / "ilql" / "last")
    return bc, load_module(place / "ilql" / "last")


def answers(module: LanguageModule, count: int) -> list[str]:
    """Return the first replies of the policy of a module to questions of the dialogues."""
    requests = [Request(slot, slot, (f"How are you, {'abcdefgh'[slot % 8]}?\n",)) for slot in range(count)]
    return [reply.text for reply in module.policy(max_new_tokens=16, slots=count).act(requests)]


def test_a_run_on_dialogues_keeps_template_and_system_message(tmp_path: Path) -> None:
    bc, loaded = learn(tmp_path, 2, 2)
    assert bc.made_with["task"] == loaded.made_with["task"] == "dialogues"
    for module in (bc, loaded):
        assert module.window is not None
        assert (module.window.rendering, module.window.system) == ("chat", "You talk.")
        assert module.tokenizer.chat_template == CHATML
    assert isinstance(loaded, ILQL) and loaded.window == bc.window
    assert len(answers(loaded, 2)) == 2


@pytest.mark.nightly
def test_a_policy_learns_what_was_rewarded(tmp_path: Path) -> None:
    """BC answers in both styles; the values of ILQL find the polite one."""
    bc, loaded = learn(tmp_path, 250, 600)
    cloned = answers(bc, 40)
    valued = answers(loaded, 40)
    assert 10 <= cloned.count("Well, thank you.\n") <= 30
    assert valued.count("Well, thank you.\n") >= 36


def test_system_messages_that_differ_are_part_of_the_first_observation(tmp_path: Path) -> None:
    rows = [dialogue("Hi", "Hello", system=f"You are {name}.", reward=1) for name in ("Ann", "Bob")]
    spec = BatchSpec(tokenizer=tokenizer(CHATML))
    data = OfflineDataModule(None, path=str(write(tmp_path / "logs.jsonl", rows)), rendering="chat")
    data.configure_batches(spec)
    data.setup("fit")
    assert data.window().system == ""
    assert [episode.observations[0] for episode in data.episodes] == ["You are Ann.\n\nHi\n", "You are Bob.\n\nHi\n"]
    shared = OfflineDataModule(None, path=str(write(tmp_path / "shared.jsonl", rows[:1] * 2)), rendering="chat")
    shared.configure_batches(spec)
    shared.setup("fit")
    assert shared.window().system == "You are Ann." and shared.episodes[0].observations[0] == "Hi\n"
    given = OfflineDataModule(None, path=str(data.path), rendering="chat", system="You are nobody.")
    given.configure_batches(spec)
    given.setup("fit")
    assert given.window().system == "You are nobody." and given.episodes[0].observations[0] == "Hi\n"


def test_what_cannot_be_trained_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.init_args\.path must name their file"):
        OfflineDataModule(None)
    lines = write(tmp_path / "lines.jsonl", [dialogue("Hi", "One\nTwo", reward=1)])
    with pytest.raises(
        UserError, match=r"dialogue 1 has a reply of several lines: set data\.init_args\.rendering=chat"
    ):
        OfflineDataModule(None, path=str(lines)).setup("fit")
    # System messages that differ change the first observations, but not the number of a dialogue.
    rows = [dialogue("Hi", "word " * count, system=f"You are {count}.", reward=1) for count in (1, 2, 600)]
    long = write(tmp_path / "long.jsonl", rows)
    data = OfflineDataModule(None, path=str(long), batch_size=1, val_fraction=0.0)
    with pytest.raises(UserError, match=r"dialogue 3: needs .* tokens up to the end of an action, and the model reads"):
        fit(BC(architecture=SMALL), data, tmp_path / "run", 1)
    short = OfflineDataModule(None, path=str(write(tmp_path / "short.jsonl", rows[:2])))
    with pytest.raises(UserError, match="PPO learns from what it plays, and dialogues without a simulator"):
        fit(PPO(architecture=SMALL), short, tmp_path / "other", 1)
