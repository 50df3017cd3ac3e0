"""What a module was made with, for checkpoints and model cards, and how `transformers` is to play it."""

import os
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig

from lmrl.policies.prompts import invalid_ids, stop_ids
from lmrl.rendering import encoder_for

if TYPE_CHECKING:
    from lmrl.modules.base import LanguageModule

__all__ = ["facts", "generation_defaults", "training_facts"]

_NOT_SETTINGS = ("pretrained", "architecture", "tokenizer", "_class_path", "_instantiator")


def training_facts(module: "LanguageModule", data: object) -> dict[str, Any]:
    """What is known when training begins, JSON-like: task, data, seeds and where it starts from."""
    task, path = getattr(data, "task", None), getattr(data, "path", None)
    settings = dict(getattr(data, "hparams", None) or {})
    episodes = getattr(data, "episodes", None)
    seed = os.environ.get("PL_GLOBAL_SEED")  # where Lightning's seed_everything leaves it
    found = {
        "task": getattr(task, "name", None),
        "max_new_tokens": getattr(task, "max_action_tokens", None),
        "data": None if path is None else path.name,
        "data_episodes": len(episodes) if episodes else None,
        "data_seed": settings.get("data_seed"),
        "batch_size": settings.get("batch_size"),
        "env": settings.get("env"),
        "starts_from": module.hparams.get("pretrained"),
        "seed": None if seed is None else int(seed),
    }
    return {name: value for name, value in found.items() if value is not None}


def facts(module: "LanguageModule") -> dict[str, Any]:
    """What a model card says: training, what is read, and the settings of the algorithm."""
    settings = {name: value for name, value in module.hparams.items() if name not in _NOT_SETTINGS}
    window = module.window
    reads: dict[str, Any] = {}
    if window is not None:
        reads = {"reads_texts": window.texts, "reads_tokens": window.tokens, "rendering": window.rendering}
    return {"algorithm": module.name, **module.made_with, **reads, **settings}


def generation_defaults(module: "LanguageModule") -> GenerationConfig:
    """Sampling as our policies do it: to the end of a line or turn, from the whole distribution, no special ids."""
    tokenizer, encoder = module.tokenizer, encoder_for(module.tokenizer, module.window)
    invalid = invalid_ids(tokenizer, module.model.config.vocab_size, module.device, encoder.end)
    return GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True,
        top_k=0,
        max_new_tokens=module.made_with.get("max_new_tokens", 32),
        eos_token_id=sorted(stop_ids(encoder)),
        pad_token_id=tokenizer.pad_token_id,
        suppress_tokens=invalid.nonzero().flatten().tolist(),
    )
