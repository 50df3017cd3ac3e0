"""The model card of a model folder: what made it, what it scores, and how it is played."""

import json
from collections.abc import Mapping
from typing import Any

from huggingface_hub import ModelCardData

from lmrl.envs import registry

__all__ = ["model_card"]

_WHOLE = """from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
"""

_ADAPTERS = """from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
model.generation_config = GenerationConfig.from_pretrained(folder)  # in place of the base model's
"""

_PLAIN = """```python
{loading}inputs = tokenizer(text, return_tensors="pt"{special})
print(tokenizer.decode(model.generate(**inputs)[0, inputs.input_ids.shape[1] :]))
```"""

_GUIDED = """```python
from lmrl.policies import ValueGuidedLogitsProcessor

processor = ValueGuidedLogitsProcessor.from_pretrained(folder)
print(tokenizer.decode(model.generate(**inputs, logits_processor=[processor])[0, inputs.input_ids.shape[1] :]))
```"""


def model_card(
    facts: Mapping[str, Any],
    scores: Mapping[str, Any] | None,
    guided: bool,
    ratios: bool = False,
    base: str | None = None,
) -> str:
    """The card as Markdown with its metadata.

    Args:
        facts: what it was made with, JSON-like: ``algorithm``, ``task``, ``data``, ``seed``, ``steps`` and settings.
        scores: content of ``scores.json``; None if it was not evaluated.
        guided: whether Q heads lie next to the model.
        ratios: whether a second language model does, whose probabilities are values.
        base: the model that adapters belong to, where the folder holds these alone.
    """
    head = ModelCardData(
        library_name="transformers" if base is None else "peft",
        base_model=base,
        pipeline_tag="text-generation",
        tags=["lmrl", *(str(facts[name]) for name in ("algorithm", "task") if name in facts)],
    )
    end = "with the end of its turn" if facts.get("rendering") == "chat" else "in a line break"
    title = f"{facts.get('algorithm', 'a language model')} on {facts.get('task', 'an unknown task')}"
    about = (
        "A policy for a text game, trained with `lmrl`. It reads the game's texts, one after the other, and says an "
        f"action that ends {end}."
    )
    if base is not None:
        about += (
            f" This folder holds adapters (LoRA) of the model `{base}`. Where `peft` is installed, `transformers` "
            "loads that model with them."
        )
    parts = [
        f"---\n{head.to_yaml()}\n---\n\n# {title}\n",
        f"{about}\n",
        f"## Made with\n\n{_table(facts)}\n",
        f"## Scores\n\n{_scores(scores)}\n",
        f"## How to play it\n\n{_how(facts, guided, ratios, _WHOLE if base is None else _ADAPTERS)}\n",
    ]
    return "\n".join(parts)


def _table(rows: Mapping[str, Any]) -> str:
    lines = ["| what | value |", "|---|---|"]
    for name, value in rows.items():
        if value is not None and name != "learned_from":  # hashes
            # A pipe would end the cell, also within a code span.
            shown = json.dumps(value).replace("|", r"\|")
            lines.append(f"| {name} | `{shown}` |")
    return "\n".join(lines)


def _scores(scores: Mapping[str, Any] | None) -> str:
    if scores is None:
        return "Not evaluated yet."
    provenance = scores.get("provenance", {})
    task = scores["task"]
    # Anchors of the normalised return belong to the task's own environment; an unknown task may have some.
    has_scale = task not in registry.tasks() or registry.task(task).scores.any_scale
    shown = [("return", "return_mean", "return_ci")]
    if has_scale and not provenance.get("env"):
        shown.append(("normalised return", "normalized", "normalized_ci"))
    shown.append(("success rate", "success_rate", "success_ci"))
    about = f"{scores['episodes']} episodes of `{task}`, seed {scores['seed']}; 95 % intervals over them."
    if provenance.get("selection"):
        about += " These games choose checkpoints, so the scores flatter the chosen one; `lmrl evaluate` plays others."
    lines = [
        about,
        "",
        "| score | mean | interval |",
        "|---|---|---|",
    ]
    for words, name, interval in shown:
        low, high = scores[interval]
        lines.append(f"| {words} | {scores[name]:.4g} | {low:.4g} to {high:.4g} |")
    lines.append("")
    length = f"Mean length {scores['length_mean']:.1f} actions, {scores['illegal_rate']:.1%} of them illegal."
    lines.append(f"{length} Played with `{json.dumps(provenance)}`.")
    return "\n".join(lines)


def _how(facts: Mapping[str, Any], guided: bool, ratios: bool, loading: str) -> str:
    reads = "all texts so far" if facts.get("reads_texts") is None else f"the last {facts['reads_texts']} texts"
    prompt = f"`text` holds {reads}, joined without anything between them."
    if facts.get("rendering") == "chat":
        prompt = f"`text` holds {reads} as `apply_chat_template` renders them, with a generation prompt."
        if facts.get("header") is not None:
            header = json.dumps(facts["header"])
            prompt += (
                f" In front of every action, earlier ones included, stands `{header}`, whatever the template writes."
            )
        if "system" in facts:
            prompt += " The conversation begins with the system message in the table above."
    if "told" in facts:
        which = "the first text" if facts.get("reads_texts") is None else "every text of the game"
        prompt += f" In front of {which} stands `{json.dumps(facts['told'])}`."
    # Where contexts begin with a BOS token, the tokenizer writes it itself.
    special = "" if facts.get("bos") else ", add_special_tokens=False"
    plain = _PLAIN.format(loading=loading, special=special)
    if not (guided or ratios):
        return f"{prompt} Generation ends with the action.\n\n{plain}"
    with_values = (
        "`lmrl.load_policy(folder)` plays with the learned values, `log pi + beta * p / pi`."
        if ratios
        else f"With the learned values, `log pi + beta * min Q`:\n\n{_GUIDED}"
    )
    return (
        f"{prompt} Plain `generate` plays the policy that the values were learned beside (behavioural cloning), "
        f"**not** the one that was trained:\n\n{plain}\n\n{with_values}"
    )
