"""Players at a vLLM server, against one of the same protocol whose answers, faults and deaths are known."""

import json
import math
import signal
import socket
import time
from itertools import pairwise
from pathlib import Path
from threading import Thread, main_thread
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import lmrl
from lmrl.cli import main
from lmrl.decoding.sampling import process_logits
from lmrl.envs.registry import task
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.evaluation.loading import PolicySpec
from lmrl.models.tokenizer import load_tokenizer
from lmrl.policies import LMPolicy, VLLMPolicy, load_vllm_policy
from lmrl.policies.chat import endpoint
from lmrl.policies.chat.tokens import TokenClient
from lmrl.rollout import episode_seed
from lmrl.tokens.encoding import Encoder, Window
from lmrl.types import Request
from tests.helpers.cases import cases
from tests.helpers.endpoints import Unruly, hang
from tests.helpers.tokens import TokenServer, sampling, saying

TOKENIZER = load_tokenizer("lmrl")
ENCODER = Encoder(TOKENIZER)
ENV = {"max_steps": 3}
LEFT = ENCODER.encode("move left\n")
UP = ENCODER.encode("move up\n")
LONGEST = task("maze_fo").max_action_tokens


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"bos_token_id": TOKENIZER.bos_token_id, "eos_token_id": TOKENIZER.eos_token_id}
    vocabulary = len(TOKENIZER) + 3  # padded, as those of many models
    config = LlamaConfig(vocab_size=vocabulary, max_position_embeddings=512, initializer_range=0.3, **sizes, **ids)
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "llama"
    tiny_llama().save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_FIRST_WAIT", 0.02)
    monkeypatch.setattr(endpoint, "_LONGEST_WAIT", 0.1)


def player(server: TokenServer, tokenizer: Path | str = "lmrl", texts: int | None = 1, **settings: Any) -> VLLMPolicy:
    return load_vllm_policy(f"{server.url}#tiny", texts, LONGEST, tokenizer=str(tokenizer), **settings)


def test_greedy_episodes_are_those_of_the_slot_engine(folder: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    own = LMPolicy(model, TOKENIZER, Window(None, 512 - LONGEST), temperature=0.0, max_new_tokens=LONGEST)
    with TokenServer(sampling(model)) as server:
        theirs = evaluate(player(server, folder, None, temperature=0.0), "maze_fo", 3, env=ENV)
    assert theirs.episodes == evaluate(own, "maze_fo", 3, env=ENV).episodes
    assert all(len(ids) == LONGEST or ids[-1] in ENCODER.encode("\n") for e in theirs.episodes for ids in e.action_ids)


@pytest.mark.parametrize("decoding", [{}, {"temperature": 0.7, "top_k": 40, "top_p": 0.9}], ids=["plain", "cut"])
def test_logprobs_are_those_of_the_distribution_that_is_sampled(folder: Path, decoding: dict[str, Any]) -> None:
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    with TokenServer(sampling(model)) as server:
        policy = player(server, folder, **decoding)
        request = Request(0, 7, ("at 1, 1\n",))
        (reply,) = policy.act([request])
    context = ENCODER.encode("at 1, 1\n")
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*context, *reply.ids]])).logits[0, len(context) - 1 : -1]
    never = torch.arange(model.config.vocab_size) >= len(TOKENIZER)
    never[[one for one in TOKENIZER.all_special_ids]] = True
    told = process_logits(logits, invalid=never, **decoding)
    wanted = told.gather(1, torch.tensor(reply.ids)[:, None])[:, 0]
    assert max(abs(float(one) - said) for one, said in zip(wanted, reply.logprobs, strict=True)) < 1e-4
    assert -math.inf < min(reply.logprobs) < 0


def test_a_request_holds_ids_and_leaves_nothing_to_the_server(folder: Path) -> None:
    with TokenServer(saying(LEFT)) as server:
        policy = player(server, folder, temperature=0.5, top_k=3, top_p=0.9)
        policy.act([Request(0, 7, ("at 1, 1\n",)), Request(1, 8, ("at 1, 2\n", "at 2, 2\n"), ("move up\n",), (UP,))])
        first, second = sorted(server.played, key=lambda body: len(body["prompt"]))
        policy.act([Request(5, 7, ("at 1, 1\n",))])
        again = server.played[-1]
    specials = {str(one): -100.0 for one in (*TOKENIZER.all_special_ids, *range(len(TOKENIZER), len(TOKENIZER) + 3))}
    assert first == {
        "model": "tiny",
        "prompt": [*ENCODER.encode("at 1, 1\n")],
        "max_tokens": LONGEST,
        "seed": episode_seed(7, 0),
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.0,
        "min_tokens": 0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": sorted({i for i in range(len(TOKENIZER)) if ENCODER.decode((i,)).endswith("\n")}),
        "ignore_eos": True,
        "logit_bias": specials,
        "logprobs": 0,
        "return_token_ids": True,
        "n": 1,
    }
    assert (second["seed"], again) == (episode_seed(8, 1), first), "the slot decides nothing"


def test_what_was_sampled_is_read_as_it_was_sampled() -> None:
    letters = (*ENCODER.encode("m"), *ENCODER.encode("ove le"), *ENCODER.encode("ft\n"))
    assert letters != LEFT and ENCODER.decode(letters) == "move left\n"
    with TokenServer(saying(letters)) as server:
        played = evaluate(player(server, texts=None), "maze_fo", 1, env=ENV).episodes[0]
        prompts = [body["prompt"] for body in server.played]
    assert played.action_ids == (letters,) * 4 and played.actions[0] == "move left\n"
    assert played.action_logprobs == ((-0.5,) * len(letters),) * 4
    for before, after in pairwise(prompts):
        assert after[: len(before) + len(letters)] == [*before, *letters], "the server's prefix cache knows all of it"


def test_all_dialogues_are_under_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with TokenServer(saying(LEFT, UP), seconds=0.3) as server:
        policy = player(server)
        evaluate(policy, "maze_fo", 24, env={"max_steps": 1}, slots=24)
        assert server.most == 24
        assert set(server.keys) == {"Bearer secret"}
    with TokenServer(saying(LEFT, UP), seconds=0.1) as server:
        evaluate(player(server, max_parallel=4), "maze_fo", 12, env={"max_steps": 1}, slots=12)
        assert server.most == 4


def test_a_server_that_dies_and_comes_back_loses_no_episode() -> None:
    def judged(policy: VLLMPolicy) -> Any:
        return evaluate(policy, "maze_fo", 16, env=ENV, slots=8)

    with TokenServer(saying(LEFT, UP)) as server:
        undisturbed = judged(player(server))
    with TokenServer(saying(LEFT, UP), seconds=0.05) as server:
        policy = player(server)
        deaths = []

        def disturb() -> None:
            for answered in (5, 20):
                while len(server.played) < answered:
                    time.sleep(0.005)
                server.kill()
                deaths.append(server.now)
                time.sleep(0.3)
                server.start()

        trouble = Thread(target=disturb)
        trouble.start()
        disturbed = judged(policy)
        trouble.join()
        assert len(deaths) == 2
        assert policy.client.spent()["requests"] > 16 * 4, "some were asked again"
    assert disturbed.episodes == undisturbed.episodes


PASSING = [None, {"status": 503, "error": {"message": "loading"}}, {"finish_reason": "abort", "token_ids": [1]}]


@pytest.mark.parametrize("fault", PASSING, ids=["hung up", "busy", "shut down"])
def test_what_may_pass_is_asked_again(fault: dict[str, Any] | None) -> None:
    with TokenServer(saying(LEFT), fault) as server:
        (reply,) = player(server).act([Request(0, 7, ("at 1, 1\n",))])
        assert reply.text == "move left\n" and len(server.played) == 2


def refused(server: TokenServer, **settings: Any) -> str:
    with pytest.raises(UserError) as told:
        player(server, **settings).act([Request(0, 7, ("at 1, 1\n",))])
    assert "\n" not in str(told.value)
    return str(told.value)


@cases(
    ("fault", "message"),
    [
        ({"token_ids": None}, "it answers without token ids: it must be vLLM 0.10.2 or newer"),
        ({"prompt_token_ids": [1]}, "it did not read the token ids that it was sent"),
        ({"token_ids": [1, 2], "finish_reason": "stop"}, "start it with --generation-config vllm"),
        ({"token_ids": [True]}, "must answer in at most"),
        ({"token_ids": [1] * (LONGEST + 1)}, "must answer in at most"),
        ({"logprobs": None}, "without a log-probability for each token id"),
        ({"logprobs": {"token_logprobs": [None] * len(LEFT)}}, "without a log-probability for each token id"),
        ({"logprobs": {"token_logprobs": [0.5] * len(LEFT)}}, "without a log-probability for each token id"),
        ({"logprobs": {"token_logprobs": [-(10**400)] * len(LEFT)}}, "without a log-probability for each token id"),
        ({"logprobs": {"token_logprobs": [False] * len(LEFT)}}, "without a log-probability for each token id"),
        ({"status": 400, "error": {"message": "no such\nsetting"}}, "status 400"),
    ],
)
def test_an_answer_that_is_none_is_refused_in_one_line(fault: dict[str, Any], message: str) -> None:
    with TokenServer(saying(LEFT), fault) as server:
        said = refused(server)
        assert message in said and server.url in said
        assert len(server.played) == 1, "asking again helps nothing"


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to one thread")
def test_ctrl_c_does_not_wait_for_the_server() -> None:
    with Unruly(hang(20.0)) as server:

        def interrupt() -> None:
            while not server.bodies:
                time.sleep(0.05)
            signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)

        Thread(target=interrupt, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            TokenClient(server.url, "tiny", timeout=15.0, retries=0).complete([{"prompt": [1]}])
        assert time.monotonic() - began < 10


def test_a_server_that_stays_away_ends_the_play_in_one_line() -> None:
    with TokenServer(saying(LEFT)) as server:
        policy = player(server, retries=2)
        server.kill()
        with pytest.raises(UserError, match=r"vLLM server at http.*, model 'tiny': no connection: .*\(tries: 3\)"):
            policy.act([Request(0, seed, ("at 1, 1\n",)) for seed in range(8)])


def test_a_server_that_does_not_fit_is_refused_before_anything_is_played() -> None:
    raw = saying(LEFT)
    with TokenServer(lambda body: (raw(body)[0], [-7.0] * len(raw(body)[0]))) as server:
        assert "start it with --logprobs-mode processed_logprobs" in refused(server)
    with TokenServer(saying((len(TOKENIZER) + 1, *LEFT))) as server:
        assert f"said token {len(TOKENIZER) + 1}, which the tokenizer does not have" in refused(server)
    with TokenServer(saying(LEFT), positions=LONGEST) as server:
        assert "start it with a larger --max-model-len" in refused(server)
    for positions in (None, "512", True, -1):
        with TokenServer(saying(LEFT), positions=positions) as server:
            assert "does not tell max_model_len" in refused(server)
    with TokenServer(saying(LEFT)) as server:
        assert "temperature must be 0 or at least 0.01" in refused(server, temperature=0.001)
        with pytest.raises(UserError, match="it serves tiny, not huge"):
            load_vllm_policy(f"{server.url}#huge", 1, 8, tokenizer="lmrl")
        assert not server.played


def test_what_is_no_player_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    started = time.monotonic()
    for name, settings, message in (
        (f"vllm:{nobody}#tiny", {"tokenizer": "lmrl"}, "no connection"),
        (f"vllm:{nobody}#tiny", {}, "needs the tokenizer of its model: --vllm tokenizer=FOLDER"),
        (f"vllm:{nobody}", {}, "must be vllm:URL#MODEL, got"),
        ("vllm:#tiny", {}, "must be vllm:URL#MODEL, got"),
        ("vllm:ftp://host#tiny", {"tokenizer": "lmrl"}, "must be an address such as http://localhost:8000"),
        ("vllm:http://user:secret@host#tiny", {"tokenizer": "lmrl"}, r"set \$VLLM_API_KEY instead of a password"),
        (f"vllm:{nobody}#tiny", {"tokeniser": "lmrl"}, "unknown setting of vllm players 'tokeniser'; known: max_par"),
        (f"vllm:{nobody}#tiny", {"tokenizer": "lmrl", "timeout": 0}, "timeout must be"),
        ("random", {"tokenizer": "lmrl"}, r"vllm can be set for a model at a vLLM server only \(vllm:URL#MODEL\)"),
    ):
        with pytest.raises(UserError, match=message):
            PolicySpec.parse(name, "maze_fo").load(vllm=settings)
    with pytest.raises(UserError, match="beta can be set for a trained policy only"):
        PolicySpec.parse(f"vllm:{nobody}#tiny", "maze_fo").load(vllm={"tokenizer": "lmrl"}, beta=1.0)
    assert time.monotonic() - started < 10, "no address is tried for minutes at the beginning"
    assert not PolicySpec.parse(f"vllm:{nobody}#tiny", "maze_fo").is_trained
    for name in ("tiny", "models/tiny", "models/tiny/"):
        folder = PolicySpec.parse(f"vllm:{nobody}#{name}", "maze_fo").default_folder()
        assert folder == Path("runs/maze_fo/vllm-tiny/evaluation")


def test_an_exported_folder_says_what_is_read(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    window = {"texts": 3, "tokens": 99, "rendering": "text"}
    (tmp_path / "lmrl.json").write_text(json.dumps({"files": [], "window": window}))
    with TokenServer(saying(LEFT)) as server:
        told = player(server, tmp_path).describe()
        assert (told["reads_texts"], told["reads_tokens"]) == (3, 99)
        assert player(server, folder).describe()["reads_tokens"] == 512 - LONGEST
    with TokenServer(saying(LEFT), positions=100) as server:
        assert player(server, folder).describe()["reads_tokens"] == 100 - LONGEST
        assert "contexts of 99 tokens" in refused(server, tokenizer=tmp_path)
    for odd in ({**window, "colour": 1}, {**window, "rendering": 7}, 5):
        (tmp_path / "lmrl.json").write_text(json.dumps({"files": [], "window": odd}))
        with TokenServer(saying(LEFT)) as server:
            assert "lmrl.json's window is" in refused(server, tokenizer=tmp_path)
    (tmp_path / "lmrl.json").write_text(json.dumps({"files": [], "window": window, "chat_template": "0123"}))
    with (
        TokenServer(saying(LEFT)) as server,
        pytest.warns(UserWarning, match=r"another chat template \('0123'\) than that of its tokenizer now \(None\)"),
    ):
        player(server, tmp_path)


def test_the_commands_play_with_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with TokenServer(saying(LEFT, UP)) as server:
        name = f"vllm:{server.url}#tiny"
        words = ["--policy", name, "--vllm", f"tokenizer={folder}", "--episodes", "4", "--env", "max_steps=3"]
        assert main(["evaluate", "maze_fo", *words, "--temperature", "0.5"]) == 0
        scores = json.loads(
            Path("runs/maze_fo/vllm-tiny/evaluation_temperature=0.5_max_steps=3/scores.json").read_text()
        )
        told = scores["provenance"]["player"]
        assert (told["model"], told["endpoint"], told["temperature"]) == ("tiny", f"{server.url}/v1", 0.5)
        assert told["spent"]["requests"] == len(server.played) == 16
        generated = ["data", "generate", "maze_fo", "--size", "4", "--behaviour", name, "--env", "max_steps=3"]
        assert main([*generated, "--vllm", f"tokenizer={folder}", "--out", "maze.parquet"]) == 0
        assert {body["temperature"] for body in server.played[16:]} == {1.0}
        episodes = [*lmrl.read_episodes("maze.parquet")]
        assert {ids for episode in episodes for ids in episode.action_ids} == {LEFT, UP}
        assert main(["data", "verify", "maze.parquet", "--env", "max_steps=3"]) == 0
        capsys.readouterr()
        assert main([*generated[:-4], "--vllm", "tokenizer=lmrl", "--out", "maze.parquet"]) == 2
        assert "vllm:URL#MODEL is missing" in capsys.readouterr().err
        assert main([*generated, "--vllm", "nothing=1", "--out", "other.parquet"]) == 2
        assert "unknown setting of vllm players 'nothing'" in capsys.readouterr().err
