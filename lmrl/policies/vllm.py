"""A language model at a vLLM server that plays: it reads the contexts of `LMPolicy`, and says ids with log-probs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from lmrl.checkpoints.export import MANIFEST, prompt_line_of, read_manifest, window_of
from lmrl.checkpoints.reading import resolve_pretrained
from lmrl.decoding.sampling import SamplingSettings
from lmrl.errors import UserError, unknown
from lmrl.models.lora import adapter_chain
from lmrl.models.tokenizer import BUNDLED, fingerprint, load_tokenizer, warn_of_other_template
from lmrl.policies.chat.tokens import Completion, TokenClient
from lmrl.policies.lm import ContextBuilder
from lmrl.rollout import episode_seed
from lmrl.tokens.encoding import Window, adds_bos, invalid_ids
from lmrl.types import Reply, Request

__all__ = ["VLLMPolicy", "load_vllm_policy", "vllm_player"]

_SETTINGS = ("tokenizer", "timeout", "retries", "max_parallel")
_LEAST_TEMPERATURE = 0.01
_NEVER = -100.0  # what vLLM adds to a logit at the most: a probability of 4e-44
_CERTAIN = 1e-4  # how far from 0 the log-probability of the only token may be


class VLLMPolicy:
    """Says what a model at a vLLM server samples after the episode so far, up to the end of a line.

    Contexts go to the server as token ids and actions come back as ids with their log-probabilities; no text of an
    action is ever tokenised. All requests of a turn are under way at once, and the server's prefix cache keeps what it
    has read of each episode. The seed of a request follows from the episode's seed and the turn. The server has to say
    the log-probabilities of the very distribution that it samples from (``--logprobs-mode processed_logprobs``).

    Args:
        client: client of the server.
        builder: builder of the contexts, with the model's tokenizer.
        settings: how to sample, and when to stop.
        invalid: ids that are never said.

    Raises:
        UserError: there is no such server or model, it does not answer in ids, or its log-probabilities are others.
    """

    def __init__(
        self, client: TokenClient, builder: ContextBuilder, settings: SamplingSettings, invalid: Sequence[int]
    ) -> None:
        if 0 < settings.temperature < _LEAST_TEMPERATURE:
            raise UserError(
                f"temperature must be 0 or at least {_LEAST_TEMPERATURE} at a vLLM server, got {settings.temperature}"
            )
        self.client = client
        self._context_builder = builder
        self._settings = settings
        self._body = _body(settings, invalid)
        self._known = len(builder.encoder.tokenizer)
        self._check_logprobs()

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """One action per request, in their order.

        Raises:
            UserError: the server refuses, or did not answer for minutes.
        """
        bodies = [
            {**self._body, "prompt": context, "seed": episode_seed(request.seed, request.turn)}
            for request, context in zip(requests, self._context_builder.contexts(requests), strict=True)
        ]
        return [self._reply(completion) for completion in self.client.complete(bodies)]

    def describe(self) -> dict[str, Any]:
        """Server, model, tokenizer and settings, and what was asked so far."""
        settings = self._settings
        builder = self._context_builder
        return {
            "model": self.client.model,
            "endpoint": self.client.url,
            "tokenizer": fingerprint(builder.encoder.tokenizer),
            "reads_texts": builder.window.texts,
            "reads_tokens": builder.window.tokens,
            "rendering": builder.window.rendering,
            "temperature": settings.temperature,
            "top_k": settings.top_k,
            "top_p": settings.top_p,
            "spent": self.client.spent(),
        }

    def _reply(self, completion: Completion) -> Reply:
        ids = completion.ids
        if not all(0 <= one < self._known for one in ids):
            raise UserError(
                f"the vLLM server at {self.client.url} said token {max(ids)}, which the tokenizer does not have "
                f"({self._known} tokens): the tokenizer is that of another model"
            )
        # The greedy choice has probability 1; the server tells what it would have had at a temperature of 1.
        logprobs = completion.logprobs if self._settings.temperature else (0.0,) * len(ids)
        return Reply(self._context_builder.encoder.decode_action(ids), ids, logprobs)

    def _check_logprobs(self) -> None:
        """A token that alone may be said is certain, unless the log-probabilities are those of all tokens."""
        only = min(self._settings.stop_ids)
        asked = {"prompt": [only], "allowed_token_ids": [only], "logit_bias": None, "max_tokens": 1, "seed": 0}
        (logprob,) = self.client.probe({**self._body, **asked, "temperature": 1.0}).logprobs
        if logprob < -_CERTAIN:
            raise UserError(
                f"the vLLM server at {self.client.url} tells log-probabilities of another distribution than it samples "
                "from: start it with --logprobs-mode processed_logprobs"
            )


def _body(settings: SamplingSettings, invalid: Sequence[int]) -> dict[str, Any]:
    """Return the body of all requests. It sets everything that a server would else read from generation_config.json."""
    return {
        "temperature": settings.temperature,
        "top_k": settings.top_k,
        "top_p": settings.top_p,
        "min_p": 0.0,
        "min_tokens": 0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": settings.max_new_tokens,
        "stop_token_ids": sorted(settings.stop_ids),
        "ignore_eos": True,  # it is among the ids that stop, or among those that are never said
        "logit_bias": {str(one): _NEVER for one in invalid} or None,
        "logprobs": 0,  # the log-probability of the sampled token alone
        "return_token_ids": True,
        "n": 1,
    }


def vllm_player(
    name: str, texts: int | None, max_new_tokens: int, settings: Mapping[str, Any], **sampling: Any
) -> VLLMPolicy:
    """The player ``vllm:URL#MODEL``, with settings as words of a command or a configuration.

    Args:
        name: with its ``vllm:``.
        texts: see `load_vllm_policy`, like all below.
        max_new_tokens: longest action.
        settings: ``tokenizer``, ``timeout``, ``retries``, ``max_parallel``.
        **sampling: ``temperature``, ``top_k``, ``top_p``.

    Raises:
        UserError: an unknown setting, and as `load_vllm_policy`.
    """
    for setting in settings:
        if setting not in _SETTINGS:
            raise unknown("setting of vllm players", setting, _SETTINGS)
    return load_vllm_policy(name.removeprefix("vllm:"), texts, max_new_tokens, **sampling, **settings)


def _server_and_model(address: str) -> tuple[str, str]:
    """URL and model of ``URL#MODEL``.

    Raises:
        UserError: one of them is missing.
    """
    url, _, model = address.partition("#")
    if not url or not model:
        raise UserError(f"a model at a vLLM server must be vllm:URL#MODEL, got {f'vllm:{address}'!r:.200}")
    return url, model


def load_vllm_policy(
    address: str,
    texts: int | None,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    tokenizer: str | None = None,
    timeout: float = 300.0,
    retries: int = 30,
    max_parallel: int = 256,
) -> VLLMPolicy:
    """A model at a vLLM server as a player.

    It reads what an exported folder of lmrl says, or else as much as fits.

    Args:
        address: ``URL#MODEL``, the model by the name under which it is served.
        texts: how many of the newest texts are read; None: all.
        max_new_tokens: longest action.
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: 1 is off.
        tokenizer: run folder, model folder or bundled tokenizer; None: MODEL, which then has to be a folder here.
        timeout: see `lmrl.policies.chat.tokens.TokenClient`, like all below.
        retries: how often a request is tried again.
        max_parallel: requests at the same time.

    Raises:
        UserError: there is no such server, model or tokenizer, or a setting is out of range.
    """
    url, model = _server_and_model(address)
    named = model if tokenizer is None else tokenizer
    if tokenizer is None and not Path(model).is_dir():
        raise UserError(
            f"vllm:{address} needs the tokenizer of its model: --vllm tokenizer=FOLDER (there is no folder {model!r})"
        )
    folder = named if named in BUNDLED or (Path(named) / "tokenizer.json").is_file() else resolve_pretrained(named)
    own = load_tokenizer(folder)
    client = TokenClient(url, model, timeout, retries, max_parallel)
    config = _config(folder)
    manifest = read_manifest(Path(folder)) if Path(folder).is_dir() else {}
    warn_of_other_template(own, manifest.get("chat_template"))
    trained = window_of(manifest, str(Path(folder) / MANIFEST))
    untrained = Window(texts, bos=adds_bos(own))
    window = _window(trained, untrained, _positions(client, config), max_new_tokens)
    line = prompt_line_of(manifest, folder)
    builder = ContextBuilder(own, window, window.tokens + max_new_tokens, max_new_tokens, line)
    mask = invalid_ids(own, int(config.get("vocab_size") or len(own)), torch.device("cpu"), builder.encoder.end)
    settings = SamplingSettings(temperature, top_k, top_p, max_new_tokens, builder.stop_ids())
    return VLLMPolicy(client, builder, settings, mask.nonzero()[:, 0].tolist())


def _config(folder: str) -> Mapping[str, Any]:
    """Return the configuration of the model in a folder, or under its adapters; empty for a tokenizer alone."""
    model = adapter_chain(folder)[-1]
    if folder in BUNDLED or (model == folder and not (Path(folder) / "config.json").is_file()):
        return {}
    text = AutoConfig.from_pretrained(model, trust_remote_code=False).get_text_config()
    return {name: getattr(text, name, None) for name in ("vocab_size", "max_position_embeddings")}


def _positions(client: TokenClient, config: Mapping[str, Any]) -> int:
    found = [one for one in (client.positions(), config.get("max_position_embeddings")) if one]
    if not found:
        raise UserError(
            f"the vLLM server at {client.url} does not tell max_model_len: name the model's folder as tokenizer"
        )
    return int(min(found))


def _window(trained: Window | None, untrained: Window, positions: int, room: int) -> Window:
    """Return the window with which a model was trained, or as much of another one as fits."""
    window = trained or replace(untrained, tokens=positions - room)
    if window.tokens + room > positions or window.tokens < 1:
        raise UserError(
            f"contexts of {window.tokens} tokens and actions of {room} do not fit into the {positions} positions that "
            "the vLLM server has: start it with a larger --max-model-len"
        )
    return window
