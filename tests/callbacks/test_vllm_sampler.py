"""Rounds that a server samples: weights go there before each, and what it tells is not what is learned from."""

import csv
import json
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from lmrl.callbacks import RolloutCollection, VLLMSampler
from lmrl.callbacks import vllm_sampler as module_of_sampler
from lmrl.checkpoints.export import export_for_reload
from lmrl.errors import UserError
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import BC, GRPO, PPO, LanguageModule
from lmrl.modules.policy_gradient import RolloutCorrection
from lmrl.policies import VLLMPolicy
from lmrl.policies.chat import reloading
from lmrl.types import Reply
from tests.helpers.online import TINY, fit, rounds
from tests.helpers.ranks import on_ranks, strategy
from tests.helpers.tokens import TokenServer, saying

pytestmark = pytest.mark.filterwarnings("ignore:(round [0-9]+. |all advantages)")

TOKENIZER = load_tokenizer("lmrl")
NEVER = saying((5,))  # it has no weights yet
FAST: dict[str, Any] = {"lr": 1e-2, "warmup_steps": 0, "lr_schedule": "constant"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloading, "_PAUSE", 0.01)


class Noting(Callback):
    """Remembers the columns of each minibatch."""

    def __init__(self) -> None:
        self.columns: list[dict[str, torch.Tensor]] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *args: Any) -> None:
        self.columns.append(dict(batch.columns))


def train(
    module: LanguageModule,
    server: TokenServer,
    root: Path,
    steps: int = 2,
    group_size: int = 1,
    max_staleness: int = 0,
    **settings: Any,
) -> Noting:
    noting = Noting()
    sampler = VLLMSampler(server.url, "tiny", **{"wait": 0.0, "retries": 0, **settings})
    playing = RolloutCollection(episodes=4, slots=4, group_size=group_size, max_staleness=max_staleness)
    fit(module, rounds(batch_size=64), root, steps, playing=playing, callbacks=[sampler, noting])
    return noting


def column(root: Path, name: str) -> list[float]:
    with (root / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


@pytest.mark.parametrize(
    ("kind", "group_size"), [(PPO, 1), pytest.param(GRPO, 2, marks=pytest.mark.nightly)], ids=["ppo", "grpo"]
)
def test_each_round_is_sampled_with_the_weights_of_its_moment(
    kind: type[PPO] | type[GRPO], group_size: int, bc_run: str, tmp_path: Path
) -> None:
    critic = {"critic": "shared"} if kind is PPO else {}
    module = kind(pretrained=bc_run, entropy_weight=1.0, **critic, **FAST)
    with TokenServer(NEVER) as server:
        train(module, server, tmp_path, group_size=group_size)
        assert server.asked == ["/collective_rpc", "/reset_prefix_cache"] * 2
        assert {(body["temperature"], body["top_k"], body["top_p"]) for body in server.played} == {(1.0, 0, 1.0)}
    gaps = column(tmp_path, "rollout/logprob_gap")
    assert len(gaps) == 2 and max(gaps) <= max(column(tmp_path, "rollout/logprob_gap_max")) < 1e-4
    assert column(tmp_path, f"{module.name}/first_ratio") == pytest.approx([1.0, 1.0], abs=1e-4)
    assert not column(tmp_path, "rollout/importance_mean")
    served = AutoModelForCausalLM.from_pretrained(tmp_path / "sampler").state_dict()
    assert not torch.equal(served["transformer.wte.weight"], module.model.state_dict()["transformer.wte.weight"]), (
        "the weights of the last round have been learned from since"
    )


def test_a_server_plays_ahead_with_the_weights_of_the_round_before(bc_run: str, tmp_path: Path) -> None:
    module = PPO(pretrained=bc_run, critic_warmup_rounds=0, entropy_weight=1.0, **FAST)
    corrections: list[RolloutCorrection | None] = []

    def noted(correction: RolloutCorrection | None) -> None:
        corrections.append(correction)
        module.correction = correction

    module.set_correction = noted  # type: ignore[method-assign]
    with TokenServer(NEVER) as server:
        train(module, server, tmp_path, steps=4, max_staleness=1)
        # Each round has weights of its own; the last one may have been on its way when the run ended.
        assert server.asked[:8] == ["/collective_rpc", "/reset_prefix_cache"] * 4
    # The cap is that of the collection, since the sampler has none; at the end of the run there is no correction.
    assert corrections[-2:] == [RolloutCorrection(2.0, max_gap=None, is_stale=True), None]
    # A round is learned from once, so its ratios are to the policy that played it.
    moved = [abs(ratio - 1.0) for ratio in column(tmp_path, "ppo/first_ratio")]
    assert moved[0] < 1e-4 and min(moved[1:]) > 1e-3
    assert column(tmp_path, "overlap/stale_steps") == [0.0, 1.0, 1.0, 1.0]


def test_old_weights_are_refused(bc_run: str, tmp_path: Path) -> None:
    """The server says that it has read the second ones, and has not."""
    kept = {"/collective_rpc": [(200, {"results": [None]})]}
    with TokenServer(NEVER) as server:
        module = PPO(pretrained=bc_run, entropy_weight=1.0, **FAST)
        train(module, server, tmp_path / "first", steps=1)
        server.admin = kept
        with pytest.raises(UserError, match=r"differ by [0-9.]+ nats on average \(max_gap: 0.01\)"):
            train(module, server, tmp_path / "second", steps=1, max_gap=0.01)


def test_old_logprobs_and_values_are_the_trainers_and_weights_their_ratio(bc_run: str, tmp_path: Path) -> None:
    """The server tells every log-probability as 0.3 less than it is: ratios are e^0.3, above a cap of 1.2."""
    with TokenServer(NEVER) as server:
        said: list[Any] = []

        def lower(body: dict[str, Any]) -> Any:
            ids, logprobs = says(body)
            if "allowed_token_ids" not in body:
                logprobs = [one - 0.3 for one in logprobs]
                said.append((tuple(ids), logprobs))
            return ids, logprobs

        administer = server.administer

        def load(path: str, body: dict[str, Any]) -> Any:
            nonlocal says
            answer = administer(path, body)
            if path == "/collective_rpc":
                says = server.say
                server.say = lower
            return answer

        says, server.administer = server.say, load  # type: ignore[method-assign]
        noting = train(
            PPO(pretrained=bc_run, critic="shared", head_bias=-2.0),
            server,
            tmp_path,
            1,
            importance_cap=1.2,
            max_gap=None,
        )
    (columns,) = noting.columns
    told = np.concatenate([np.asarray(logprobs) for _, logprobs in said])
    assert sorted(columns["logprob"].tolist()) == pytest.approx(sorted(told + 0.3), abs=1e-4)
    # Ratios are e^0.3. The server is up to date, so no token has left the clip range.
    assert columns["importance"].tolist() == pytest.approx([1.2] * len(told))
    assert columns["value"].tolist() == pytest.approx([-2.0] * len(told), abs=1e-5), "the server has none"
    assert column(tmp_path, "rollout/logprob_gap") == pytest.approx([0.3], abs=1e-4)
    assert column(tmp_path, "rollout/importance_mean") == pytest.approx([1.2])
    assert column(tmp_path, "ppo/first_ratio") == pytest.approx([1.0], abs=1e-4)


@pytest.mark.parametrize("level", ["token", "turn"])
def test_read_anew_are_the_numbers_that_were_noted_in_play(level: str, bc_run: str, tmp_path: Path) -> None:
    """Rounds of the module's own policy, as noted and as read again before the first step."""
    found = []
    for correction in (None, RolloutCorrection(importance_cap=2.0)):
        torch.manual_seed(0)
        module = PPO(pretrained=bc_run, level=level, critic="shared")
        torch.nn.init.normal_(module.v_head.outer.weight)
        module.set_correction(correction)
        noting = Noting()
        playing = RolloutCollection(episodes=4, slots=4)
        fit(module, rounds(batch_size=64), tmp_path / str(correction), 1, playing=playing, callbacks=[noting])
        found += noting.columns
    noted, anew = found
    assert anew.pop("importance").tolist() == pytest.approx([1.0] * len(anew["value"]), abs=1e-4)
    assert noted["value"].std() > 0.1
    for name in ("logprob", "value", "advantage", "target"):
        torch.testing.assert_close(anew[name], noted[name], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("admin", "said"),
    [
        ({"/collective_rpc": [(404, {})]}, "has no /collective_rpc: start it with VLLM_SERVER_DEV_MODE=1"),
        ({"/collective_rpc": [(500, {"error": "no such\nfolder"})]}, "status 500 of /collective_rpc: .*no such"),
        ({"/collective_rpc": [(200, ["?"])]}, "an unknown answer to reload_weights"),
        ({"/collective_rpc": [(302, {})]}, "status 302"),
        ({"/reset_prefix_cache": [(200, {"success": False})] * 20}, "does not forget its prefix cache"),
    ],
    ids=["no development mode", "not read", "nonsense", "elsewhere", "busy"],
)
def test_a_server_that_does_not_take_weights(admin: dict[str, Any], said: str, bc_run: str, tmp_path: Path) -> None:
    with TokenServer(NEVER, admin=admin) as server, pytest.raises(UserError, match=said) as refused:
        train(PPO(pretrained=bc_run), server, tmp_path)
    assert "\n" not in str(refused.value)
    assert not server.played


def test_a_prefix_cache_that_is_in_use_is_asked_to_forget_again(bc_run: str, tmp_path: Path) -> None:
    with TokenServer(NEVER, admin={"/reset_prefix_cache": [(200, {"success": False})] * 2}) as server:
        train(PPO(pretrained=bc_run, critic="shared"), server, tmp_path, steps=1)
        assert server.asked == ["/collective_rpc", *["/reset_prefix_cache"] * 3]


def test_without_a_server_the_run_says_how_to_start_one(
    bc_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = TokenServer(NEVER)
    server.kill()
    command = f"VLLM_SERVER_DEV_MODE=1 vllm serve {tmp_path / 'sampler'} --served-model-name tiny"
    with pytest.warns(UserWarning, match=f"no vLLM server at {server.url}; waiting 0 s for: {command}"):
        with pytest.raises(UserError, match="within 0 s; start: VLLM_SERVER_DEV_MODE=1 vllm serve"):
            train(PPO(pretrained=bc_run), server, tmp_path)
    assert (tmp_path / "sampler" / "model.safetensors").is_file()

    def started(self: reloading.WeightReloader, seconds: float) -> bool:
        server.start()
        return True

    monkeypatch.setattr(module_of_sampler.WeightReloader, "wait", started)
    with pytest.warns(UserWarning, match="no vLLM server at"):
        train(PPO(pretrained=bc_run), server, tmp_path / "again", steps=1)
    server.kill()


def test_who_cannot_be_sampled_for(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    with TokenServer(NEVER) as server:
        sampler = VLLMSampler(server.url, "tiny")
        for playing, said in (
            (RolloutCollection(decoding={"compile": True}), "neither decoding nor ray nor workers"),
            (RolloutCollection(ray="local"), "neither decoding nor ray nor workers"),
        ):
            with pytest.raises(UserError, match=said):
                fit(PPO(pretrained=bc_run), rounds(), tmp_path, 1, playing=playing, callbacks=[sampler])
        with pytest.raises(UserError, match=r"samples for policy gradients, .* got BC"):
            fit(BC(architecture=TINY), rounds(), tmp_path, 1, callbacks=[sampler])
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.tex").touch()
        sampler = VLLMSampler(server.url, "tiny", folder=str(tmp_path / "mine"))
        with pytest.raises(UserError, match=r"holds thesis\.tex, which no export has made"):
            fit(PPO(pretrained=bc_run), rounds(), tmp_path / "run", 1, callbacks=[sampler])


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_of_adapters_only_their_weights_are_handed_over(max_staleness: int, bc_run: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    module = PPO(pretrained=bc_run, lora={"r": 2}, critic_warmup_rounds=0, entropy_weight=1.0, **FAST)
    with TokenServer(NEVER) as server:
        train(module, server, tmp_path, steps=3, max_staleness=max_staleness)
        played = [body["model"] for body in server.played]
        assert "/collective_rpc" not in server.asked
        load = "/v1/load_lora_adapter"
        unload = "/v1/unload_lora_adapter"
        asked = list(server.asked)
        # Of a round ahead the adapters may be on their way when the run ends.
        assert len(asked) >= 5 and asked == [load, *[load, unload] * 3][: len(asked)], "earlier ones are forgotten"
        assert len(set(played)) >= 3 and "tiny" not in played, "each round has adapters of its own"
    if max_staleness == 0:
        assert max(column(tmp_path, "rollout/logprob_gap")) < 1e-3, "adapters are rounded to bfloat16"
    else:
        # A round is learned from once, so its ratios are to the policy that played it.
        moved = [abs(ratio - 1.0) for ratio in column(tmp_path, "ppo/first_ratio")]
        assert moved[0] < 1e-3 < min(moved[1:])


def test_adapters_that_another_process_has_loaded_again_are_no_error() -> None:
    """All processes find that a server has lost them, and the server refuses all but the first."""
    asked = []

    class Policy:
        def act(self, requests: Any) -> list[Reply]:
            asked.append(requests)
            if len(asked) == 1:
                raise UserError("there is no such model")
            return [Reply("move left\n")]

    class Reloader:
        def serves(self, name: str) -> bool:
            return len(refused) == 1

        def load_adapters(self, name: str, path: Path) -> None:
            refused.append(name)
            raise UserError("the adapters have already been loaded")

    refused: list[str] = []
    served = module_of_sampler._Served("adapters", Path("adapters"), "adapters")
    policy = module_of_sampler._AdaptersPolicy(Policy(), Reloader(), served)  # type: ignore[arg-type]
    assert policy.act([]) == [Reply("move left\n")] and refused == ["adapters"]


def learn_on_a_rank(url: str, bc_run: str, root: Path) -> None:
    module = PPO(pretrained=bc_run, lora={"r": 2}, critic_warmup_rounds=0, **FAST)
    sampler = VLLMSampler(url, "tiny", wait=0.0, retries=0)
    trainer = L.Trainer(
        max_steps=2, accelerator="cpu", devices=2, strategy=strategy("ddp"), logger=False, limit_val_batches=0,
        callbacks=[RolloutCollection(episodes=4, slots=4), sampler], enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=root,
    )  # fmt: skip
    trainer.fit(module, rounds(batch_size=32))


@pytest.mark.slow
def test_all_processes_play_with_the_adapters(bc_run: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    with TokenServer(NEVER) as server:
        on_ranks(learn_on_a_rank, server.url, bc_run, tmp_path)
        assert "tiny" not in {body["model"] for body in server.played}, "which is the model without adapters"


def test_the_key_goes_only_to_what_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    admin = {"/v1/unload_lora_adapter": [(200, {})], "/collective_rpc": [(200, {"results": [None]})]}
    with TokenServer(NEVER, admin=admin) as server:
        reloader = reloading.WeightReloader(server.url)
        assert reloader.serves("tiny")
        reloader.unload_adapters("old")
        reloader.reload("policy")
        assert server.keys_of_paths == {
            "/v1/models": "Bearer secret",
            "/v1/unload_lora_adapter": "Bearer secret",
            "/collective_rpc": None,
            "/reset_prefix_cache": None,
        }


@pytest.mark.slow
def test_a_server_that_has_lost_the_adapters_gets_them_again(bc_run: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    with TokenServer(NEVER) as server:
        send = server.administer
        lost: list[str] = []

        def losing(path: str, body: dict[str, Any]) -> Any:
            answer = send(path, body)
            if path == "/v1/load_lora_adapter" and not lost:
                lost.append(body["lora_name"])
            return answer

        server.administer = losing  # type: ignore[method-assign]
        module = PPO(pretrained=bc_run, lora={"r": 2}, critic_warmup_rounds=0, **FAST)
        act = VLLMPolicy.act

        def forgetful(self: VLLMPolicy, requests: Any) -> Any:
            if len(lost) == 1:
                server.adapters.clear()
                lost.append("now")
            return act(self, requests)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(VLLMPolicy, "act", forgetful)
            train(module, server, tmp_path, steps=1)
        assert server.asked == ["/v1/load_lora_adapter"] * 2


@pytest.mark.parametrize("tied", [True, False])
def test_what_a_server_reads_has_a_head_of_its_own(tied: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build_lm(None, {**TINY, "tie_word_embeddings": tied}, len(TOKENIZER)).eval()
    for _ in range(2):  # it takes its own place
        export_for_reload(tmp_path / "policy", model, TOKENIZER)
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "policy").eval()
    ids = torch.arange(5)[None]
    torch.testing.assert_close(read(ids).logits, model(ids).logits)
    assert read.get_output_embeddings().weight is not read.get_input_embeddings().weight
    config = json.loads((tmp_path / "policy" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False and config["architectures"] == ["GPT2LMHeadModel"]
    assert model.config.tie_word_embeddings is tied, "the model that learns is as it was"


def test_experts_have_the_names_that_servers_know(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=len(TOKENIZER), hidden_size=16, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config).eval()
    export_for_reload(tmp_path / "policy", model, TOKENIZER)
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in load_file(tmp_path / "policy" / "model.safetensors")
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "policy").eval()
    ids = torch.arange(5)[None]
    torch.testing.assert_close(read(ids).logits, model(ids).logits)
