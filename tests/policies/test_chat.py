"""Tests of chat models that play: what they read, how their answers are read, and whole games through an endpoint."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lmrl.cli import main
from lmrl.data.storage import read_episodes
from lmrl.envs.maze.layouts import LAYOUTS, MOVES
from lmrl.envs.registry import chat_prompt, make, task, tasks
from lmrl.errors import UserError
from lmrl.evaluation.loading import PolicySpec
from lmrl.evaluation.result_json import read_json
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer
from lmrl.policies.chat.client import Messages
from lmrl.policies.chat.policy import ChatPolicy, action_of, system_prompt
from lmrl.types import Episode, Reply, Request
from tests.helpers.cases import cases
from tests.helpers.endpoints import Unruly, completion, reply
from tests.helpers.serving import MISSING, transformers_serve

pytest.importorskip("openai", reason="needs openai: pip install 'lmrl[chat]'")


class Scripted:
    """A chat client that gives the scripted answers and records its requests."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked, self.seeds = list(answers), list[Messages](), list[int]()

    def complete(self, batch: Sequence[Messages], seeds: Sequence[int] | None = None) -> list[str]:
        self.asked += batch
        self.seeds += seeds or []
        return [self.answers.pop(0) if self.answers else "{}" for _ in batch]

    def describe(self) -> dict[str, Any]:
        return {"model": "scripted"}

    def spent(self) -> dict[str, int]:
        return {"requests": len(self.asked), "tokens": 0}


def first_request(name: str) -> Request:
    text, info = make(name).reset(seed=0)
    return Request(slot=0, seed=0, observations=[text], info=info)


def walked(*cells: str, success: bool = True, actions: Sequence[str] = ()) -> Episode:
    """Return an episode of the maze with shortened observations."""
    said = tuple(actions) or ("move up\n",) * (len(cells) - 1)
    rewards = (*[-1.0] * (len(said) - 1), 0.0 if success else -1.0)
    return Episode("maze_fo", tuple(f"{cell}\n" for cell in cells), said, rewards, success, not success,
                   info={"success": success})  # fmt: skip


def test_every_task_has_a_prompt_and_no_other_has() -> None:
    assert all(row.chat for row in tasks().values())
    with pytest.raises(UserError, match="unknown task with prompts 'go'; known: car_dealer"):
        ChatPolicy(Scripted(), "go")
    with pytest.raises(UserError, match="unknown reply 'xml'; known: json, plain"):
        ChatPolicy(Scripted(), "chess", reply="xml")


@cases("name", [*tasks()])
def test_rules_name_the_key_and_the_first_text_is_shown(name: str) -> None:
    speaker = Scripted()
    request = first_request(name)
    ChatPolicy(speaker, name).act([request])
    system, user = speaker.asked[0]
    key = "guess" if name == "wordle" else "action"
    for message in (system, user):
        assert f'"{key}": "..."}}' in message["content"]
        assert message["content"].isascii()
    shown = chat_prompt(name).spelling(request.observations[0])
    header = name in ("wordle", "twenty_questions", "guess_city", "car_dealer")
    assert (f": {shown}\n" in user["content"]) is not header
    assert ("\n(You begin.)\n" in user["content"]) is header
    for action in task(name).actions:
        assert f'"{action.strip()}"' in user["content"]


def test_the_published_settings() -> None:
    settings = {
        name: (task.temperature, task.last_texts, task.games) for name in tasks() for task in [chat_prompt(name)]
    }
    assert settings["maze_fo"][:2] == (1.0, 7)
    assert settings["maze_po"][:2] == (0.7, 20)
    assert settings["wordle"] == (0.0, None, 64)
    assert (settings["chess"], settings["endgames"]) == ((1.0, 1, 25), (1.0, 1, 100))
    assert settings["twenty_questions"] == (1.0, None, 100)


def test_a_conversation_word_for_word() -> None:
    speaker = Scripted('{"action": "move down"}')
    failure = walked("A", "B", "C", "D", "E", success=False)
    long = walked("1", "2", "3", "4", "5", "6")
    best = walked("x", "y", "z", "Success", actions=("move up\n", "move down\n", "move left\n"))
    policy = ChatPolicy(speaker, "maze_fo", [failure, walked("p", "Success"), long, best])
    observations = [f"at {number}\n" for number in range(5)]
    actions = ["move left\n", "jump\n", "\n", "move up\n"]
    assert policy.act([Request(3, 7, observations, actions)]) == [Reply("move down\n")]
    system, user = speaker.asked[0]
    assert system["content"].startswith("You are an expert maze solver. Reply with nothing but a JSON object: ")
    assert user["content"].split("\n\n", 3)[3] == (
        'An example:\nGame: x\nYou: {"action": "move up"}\nGame: y\nYou: {"action": "move down"}\nGame: z\n'
        'You: {"action": "move left"}\n\n'
        # Seven texts: four observations and the three actions between them.
        'Now you play:\n...\nGame: at 1\nYou: {"action": "jump"}\nGame: at 2\nYou: {"action": ""}\nGame: at 3\n'
        'You: {"action": "move up"}\nGame: at 4\n\n'
        'What is your action? Reply with nothing but a JSON object: {"action": "..."}'
    )


def test_plain_replies_chess_spelling_and_whole_examples() -> None:
    speaker = Scripted("Nf3")
    (fen,) = first_request("chess").observations
    game = Episode("chess", (fen,) * 4, ("e 4\n", "N f 3\n", "B c 4\n"), (0.0,) * 3, False, True)
    assert ChatPolicy(speaker, "chess", [game], reply="plain").act([Request(0, 0, [fen, fen], ["d 4\n"])]) == [
        Reply("Nf3\n")
    ]
    shown = speaker.asked[0][1]["content"]
    start = "Position: rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
    assert f"An example:\n{start}\nYou: e4\n{start}\nYou: Nf3\n{start}\nYou: Bc4\n\nNow you play:\n{start}\n\n" in shown
    assert shown.endswith("What is your action? Reply with nothing but your action, on one line.")
    game = Episode("wordle", ("Wordle:\n", "b b b b b\n", "b b b b b\n", "g g g g g\n"),
                   ("a b o u t\n", "c r e e k\n", "s h i n y\n"), (-1.0, -1.0, 0.0), True, False)  # fmt: skip
    speaker = Scripted()
    ChatPolicy(speaker, "wordle", [game], reply="plain").act([first_request("wordle")])
    assert (
        "An example:\nYou: a b o u t\nGame: b b b b b\nYou: c r e e k\nGame: b b b b b\nYou: s h i n y\nGame: g g"
        in (speaker.asked[0][1]["content"])
    )


def test_the_vocabulary_is_the_one_that_is_played(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("crane\nslate\n")
    speaker = Scripted()
    ChatPolicy(speaker, "wordle", env={"vocab": str(tmp_path / "words")}).act([first_request("wordle")])
    assert "The vocabulary: c r a n e, s l a t e\n" in speaker.asked[0][1]["content"]


@cases(
    ("answer", "action"),
    [
        ('{"action": "move up"}', "move up"),
        ('```json\n{"thought": "{wall}", "action": " move\\n up "}\n```', "move up"),
        ('[{"action": "move up"}, {"action": "move down"}]', "move up"),
        ('{"move": 1} then {"a": {"action": "move up"}}', "move up"),
        ('<think>{"action": "move left"}</think>{"action": "move up"}', "move up"),
        ('{"action": ""} {"action": 7} {"action": ["move up"]}', None),
        ('{"action": "move up"', None),
        ("{" * 30_000, None),
        ('{"a":' * 30_000, None),
        ('{"action": "up \\ud83d\\u0000!"}', "up \ufffd\ufffd!"),
        ('{"action": "' + "x" * 5_000 + '"}', None),
        ('{"action": ' + "9" * 5_000 + "}", None),
        (" " * 70_000 + '{"action": "move up"}', None),
        ("<think>" + "x" * 70_000 + '</think>{"action": "move up"}', "move up"),
        ('{"action": "move left"}? No.\n</think>\n\n{"action": "move up"}', "move up"),
        ("move up", None),
        ("", None),
    ],
)
def test_json_replies(answer: str, action: str | None) -> None:
    assert action_of(answer, "json", "action") == action


@cases(
    ("answer", "action"),
    [
        ("move up", "move up"),
        ("\n\n  Action: **move   up** \nBecause.", "move up"),
        ('"Is it a cat?"', "Is it a cat?"),
        ("<think>hm</think>\nSeller: Hello!", "Hello!"),
        ("You:\nmove up", "move up"),
        ("<think>I never stop", None),
        ("Let me see.\n</think>\n\nmove up", "move up"),
        ("left? <think>no</think> right?</think>move up", "move up"),
        ("move up\n<think>or", "move up"),
        ("``` \n'' ", None),
        ("up \ud83d", "up \ufffd"),
        ("x" * 5_000, None),
    ],
)
def test_plain_replies(answer: str, action: str | None) -> None:
    assert action_of(answer, "plain", "action") == action


def test_answers_without_an_action_are_empty_lines_and_counted() -> None:
    policy = ChatPolicy(Scripted("up!", '{"action": "move up"}', "x" * 999), "maze_fo", [walked(*"abcd")])
    replies = policy.act([first_request("maze_fo")] * 3)
    assert replies == [Reply("\n"), Reply("move up\n"), Reply("\n")]
    told = policy.describe()
    assert json.loads(json.dumps(told)) == told
    assert (told["replies"], told["unreadable"], told["unreadable_answers"]) == (3, 2, ["up!", "x" * 200])
    assert (told["model"], told["reply"], told["spent"]["requests"]) == ("scripted", "json", 3)
    assert told["examples"] == [{"seed": 0, "return": -2.0}]


def test_each_turn_of_each_episode_has_its_seed() -> None:
    speaker = Scripted()
    policy = ChatPolicy(speaker, "maze_fo")
    requests = [Request(0, seed, ["a\n"] * (turn + 1), ["b\n"] * turn) for seed in range(3) for turn in range(3)]
    policy.act(requests)
    assert len({*speaker.seeds}) == 9
    policy.act(requests[::-1])
    assert speaker.seeds[9:] == speaker.seeds[8::-1]


# -- through an endpoint ----------------------------------------------------------------------------------------------


def solver(handler: Any) -> None:
    """Read the position from the conversation and answer with the move that comes nearer to the goal."""
    positions = re.findall(
        r"Your current position is at position ([\d ]+), ([\d ]+)\.", handler.body["messages"][-1]["content"]
    )
    row, col = (int(digits.replace(" ", "")) for digits in positions[-1])
    layout = LAYOUTS["double_t_maze"]
    distance = layout.distances()
    best = min(MOVES, key=lambda move: distance[layout.after((row, col), move)])
    completion(json.dumps({"action": best.strip()}))(handler)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMRL_DATA", raising=False)
    yield tmp_path


def evaluated(server: Unruly, *words: str, task: str = "maze_fo") -> int:
    chat = ["--chat", f"base_url={server.url}", "retries=0", *words]
    return main(["evaluate", task, "--policy", "chat:tiny", "--out", "out", *chat])


def test_a_chat_model_that_knows_the_way_reaches_the_optimum(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Unruly(*[solver] * 300) as server:
        assert evaluated(server) == 0
        sent = server.bodies[0]
        asked = len(server.bodies)
        # Answers are paid for once: the cache answers the second evaluation.
        assert evaluated(server) == 0
        assert len(server.bodies) == asked
    scores = read_json(here / "out" / "scores.json")
    assert (scores["episodes"], scores["policy"]) == (25, "chat:tiny")
    assert scores["return_mean"] == pytest.approx(-6.84)
    assert (sent["temperature"], sent["max_tokens"], sent["model"]) == (1.0, 512, "tiny")
    player = scores["provenance"]["player"]
    assert (player["replies"], player["unreadable"], player["spent"]["requests"]) == (asked, 0, 0)
    shown = capsys.readouterr().out
    assert f"replies    {asked}, without an action 0; asked: {asked} requests, {10 * asked} tokens" in shown
    assert (here / "data" / "maze_fo-v1-n32-s0.parquet").is_file()


def test_what_cannot_be_read_is_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Unruly(*[completion("I would go up.")] * 11) as server:
        assert evaluated(server, "cache=false", "--episodes", "1", "--env", "max_steps=10") == 0
    scores = read_json(here / "out" / "scores.json")
    assert (scores["return_mean"], scores["illegal_rate"]) == (-41.0, 1.0)
    assert scores["provenance"]["player"]["unreadable_answers"] == ["I would go up."] * 3
    assert "replies    11, without an action 11" in capsys.readouterr().out


def test_a_budget_ends_an_evaluation_in_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Unruly(*[solver] * 300) as server:
        assert evaluated(server, "budget_requests=30") == 2
        assert len(server.bodies) == 30
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("error: chat model 'tiny' at http")
        assert "budget of 30 requests (budget_requests) is used up" in error
        assert not (here / "out" / "scores.json").exists()
        partial = Path("out") / "episodes.partial.parquet"
        kept = [*read_episodes(partial)]
        assert f"; {len(kept)} of 25 episodes are finished and kept in {partial}; the same command" in error
        assert 0 < len(kept) < 25 and all(episode.success for episode in kept)
        assert evaluated(server) == 0
        assert not partial.exists()


def test_half_a_character_is_no_obstacle_to_writing_what_was_played(here: Path) -> None:
    for action in ('{"action": "up \\ud83d"}', '{"action": "up \ud83d"}'):
        with Unruly(*[completion(action)] * 3) as server:
            assert evaluated(server, "--episodes", "1", "--env", "max_steps=2") == 0
        (episode,) = read_episodes(here / "out" / "episodes.parquet")
        assert episode.actions == ("up \ufffd\n",) * 3


@cases(
    ("words", "message"),
    [
        ("--policy chat:x --chat max_token=3", "unknown setting of chat players 'max_token'; known: api_key, base_url"),
        ("--policy chat:x --chat reply", "chat takes arguments as name=value, got 'reply'"),
        ("--policy chat:x --chat base_url=http://x reply=xml", "unknown reply 'xml'; known: json, plain"),
        ("--policy chat:x --beta 3", "beta can be set for a trained policy only, not for 'chat:x'"),
        ("--policy random --chat reply=json", "chat can be set for a chat model only (chat:MODEL or local:PATH), not"),
        ("--policy local:./nowhere", "there is no trained model in './nowhere'"),
        ("--policy chat:", "no policy 'chat:'"),
    ],
)
def test_wrong_words(words: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "maze_fo", "--out", "out", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_an_endpoint_that_refuses(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Unruly(reply(401, "no key")) as server:
        assert evaluated(server, "max_parallel=1") == 2
    assert "status 401: no key; 0 of 25 answers came" in capsys.readouterr().err


# -- models on this machine -------------------------------------------------------------------------------------------

_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}<assistant>"
)


def saved(folder: Path, template: str | None = _TEMPLATE) -> Path:
    tokenizer = load_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    build_lm(None, {"n_embd": 16, "n_positions": 2048, "initializer_range": 1.0}, len(tokenizer)).save_pretrained(
        folder
    )
    return folder


def chat_policy(name: str, task: str, **settings: Any) -> Any:
    """Return the policy that ``lmrl evaluate --policy NAME --chat SETTINGS`` would let play."""
    return PolicySpec.parse(name, task).load(chat=settings).policy


def test_a_local_model_plays_and_samples_by_seed(here: Path) -> None:
    saved(here / "model")
    name = f"local:{here / 'model'}"
    settings = {"reply": "plain", "max_tokens": 6, "slots": 2}
    requests = [Request(slot, slot, first_request("maze_fo").observations) for slot in range(5)]
    player = chat_policy(name, "maze_fo", **settings)
    said = player.act(requests)
    assert len({reply.text for reply in said}) > 1  # the published temperature is 1: it samples
    # A seed gives the same answer, whatever the other requests and their order.
    assert chat_policy(name, "maze_fo", **settings).act(requests[::-1]) == said[::-1]
    greedy = chat_policy(name, "maze_fo", temperature=0.0, **settings).act(requests)
    assert len({reply.text for reply in greedy}) == 1
    told = player.describe()
    assert (told["endpoint"], told["temperature"], told["spent"]["requests"]) == ("local", 1.0, 5)
    with pytest.raises(UserError, match="max_context leaves 122 tokens for a conversation, got one of"):
        chat_policy(name, "maze_fo", max_context=128, max_tokens=6).act(requests)


def test_a_thought_that_the_template_opens_and_the_model_never_ends_is_no_action(here: Path) -> None:
    request = Request(0, 0, first_request("maze_fo").observations)
    for name, end in (("plain", ""), ("thinks", "<think>\n"), ("ended", "<think>\n\n</think>\n\n")):
        saved(here / name, f"{_TEMPLATE}{end}")
        (reply,) = chat_policy(f"local:{name}", "maze_fo", reply="plain", max_tokens=6).act([request])
        assert (reply.text == "\n") is (name == "thinks")


def test_the_longest_answer_of_a_local_model_suits_the_task(here: Path) -> None:
    saved(here / "model")
    longest = {name: chat_policy("local:model", name).describe()["max_tokens"] for name in tasks()}
    assert longest.pop("wordle") == 128  # with a thought
    assert set(longest.values()) == {64}
    assert all(task(name).max_action_tokens + 16 <= 64 for name in longest)
    assert chat_policy("local:model", "wordle", reply="plain").describe()["max_tokens"] == 64
    policy = chat_policy("local:model", "maze_fo", max_tokens=9, slots=3)
    assert (policy.describe()["max_tokens"], policy.slots) == (9, 3)


def test_a_prompt_shows_as_many_examples_as_it_should(here: Path) -> None:
    saved(here / "model")
    for number in (0, 4):
        player = chat_policy("local:model", "twenty_questions", examples=number)
        assert len(player.describe()["examples"]) == number
    with pytest.raises(UserError, match="examples"):
        chat_policy("local:model", "twenty_questions", examples=-1)


@pytest.mark.parametrize(
    ("name", "env", "rule"),
    [
        ("wordle", {"counted": True}, "only as many are green or yellow as the word has"),
        ("maze_po", {"reward": "illegal_penalty_diff_scale"}, "a text that is no action -100"),
        ("text_nav_fo", {"max_steps": 30}, "30 commands instead of fifteen"),
        ("car_dealer", {"reward": "fancy"}, "the mean of the buyer's budget and the list price"),
    ],
)
def test_the_prompt_has_the_rules_of_the_environment_that_is_played(name: str, env: dict[str, Any], rule: str) -> None:
    prompt = chat_prompt(name)
    assert rule in system_prompt(prompt, env)
    assert rule not in system_prompt(prompt, {})


def test_other_settings_of_a_chat_model_have_a_folder_of_their_own(here: Path) -> None:
    saved(here / "model")
    words = ["evaluate", "maze_fo", "--policy", f"local:{here / 'model'}", "--episodes", "1", "--env", "max_steps=1"]
    assert main([*words, "--chat", "reply=plain", "max_tokens=4", "slots=1"]) == 0
    folders = [path.name for path in Path("runs/maze_fo/model").iterdir() if not path.name.startswith(".")]
    assert folders == ["evaluation_max_steps=1_reply=plain_max_tokens=4"]


def test_a_model_without_a_template_is_refused(here: Path) -> None:
    saved(here / "model", template=None)
    with pytest.raises(UserError, match="must be a model with a chat template, its tokenizer has none"):
        chat_policy("local:model", "maze_fo")


@pytest.mark.nightly
def test_a_real_server_is_asked(here: Path) -> None:
    if MISSING:
        pytest.skip(f"transformers serve needs {', '.join(MISSING)}: pip install 'transformers[serving]'")
    with transformers_serve(here / "model") as (url, model):
        for name in tasks():
            settings = {"base_url": url, "max_tokens": 4, "reply": "plain"}
            player = chat_policy(f"chat:{model}", name, examples=None, **settings)
            replies = player.act([first_request(name)] * 2)
            assert all(reply.text.endswith("\n") for reply in replies)
            assert player.describe()["spent"]["requests"] == 1  # the same conversation and seed: asked once


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ unknown.name }}", "{% for %}"])
def test_a_failing_template_is_said_in_one_line(here: Path, template: str) -> None:
    requests = [Request(0, 0, first_request("maze_fo").observations)]
    player = chat_policy(f"local:{saved(here / 'model', template)}", "maze_fo")
    with pytest.raises(UserError, match=r"the chat template of '.*model' fails: ") as error:
        player.act(requests)
    assert "\n" not in str(error.value)
