"""A study of how people rate dialogues: one HTML page for them, one key for whoever evaluates it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmrl.atomic import replacing
from lmrl.errors import UserError
from lmrl.evaluation.rendering import render_page, script
from lmrl.evaluation.results import read_json, write_json
from lmrl.evaluation.study_samples import Sample, draw_samples, fingerprint

__all__ = ["QUESTION", "write_study"]

QUESTION = "How natural is this dialogue?"
_SCALE = ("not at all", "a little", "fairly", "very", "completely")


def write_study(
    conditions: Mapping[str, Path],
    out: Path,
    samples: int = 9,
    seed: int = 0,
    turns: int | None = None,
    question: str = QUESTION,
) -> Path:
    """Write ``page.html``, on which people rate dialogues from 1 to 5, and ``page.key.json``, which tells them apart.

    The page holds texts and ids, nothing that names or depends on a condition; it loads nothing and runs no script but
    its own, whatever the texts are. The key holds the condition, episode and turns of each id.

    Args:
        conditions: a file of episodes for each name, see `lmrl.storage.read_episodes`.
        out: the page, ``NAME.html``.
        samples: dialogues of each condition.
        seed: the same files and seed give the same page.
        turns: show windows of this many turns; None: whole dialogues.
        question: what people are asked about each dialogue.

    Returns:
        The path of the key.

    Raises:
        UserError: another suffix, an empty question, the key of another study in the way, or see `draw_samples`.
    """
    if out.suffix != ".html":
        raise UserError(f"out must be an .html file, got {str(out)!r}")
    if not question.strip():
        raise UserError("question must not be empty")
    drawn = draw_samples(conditions, samples, seed, turns)
    study, key = _study_id(question, drawn), out.with_suffix(".key.json")
    if (other := read_json(key).get("study", study)) != study:
        raise UserError(f"{key} is the key of another study ({other}), whose ratings need it; choose another out")
    about = {name: {"file": str(path), "sha256": fingerprint(path)} for name, path in conditions.items()}
    settings = {"seed": seed, "turns": turns, "question": question}
    write_json({"study": study, **settings, "conditions": about, "samples": _whereabouts(drawn)}, key)
    with replacing(out) as file:
        file.write(_page(study, question, drawn).encode())
    return key


def _page(study: str, question: str, samples: Sequence[Sample]) -> str:
    words = {
        "study": study,
        "question": question,
        "samples": samples,
        "scale": _SCALE,
        **script("study.js"),
    }
    return render_page("study.html.j2", words)


def _study_id(question: str, samples: Sequence[Sample]) -> str:
    """Of what people see, so that ratings of one page are not taken for those of another."""
    shown = [question, [(sample.id, sample.first > 0, sample.lines) for sample in samples]]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]


def _whereabouts(samples: Sequence[Sample]) -> dict[str, Any]:
    """By id, in the order of the page."""
    names = ("condition", "episode", "first", "turns")
    return {sample.id: {name: getattr(sample, name) for name in names} for sample in samples}
