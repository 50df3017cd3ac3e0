"""``lmrl zoo evaluate`` and ``lmrl zoo add``: whether a policy plays as published, and how one is added."""

import json
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lmrl.checkpoints.export import read_manifest
from lmrl.checkpoints.zoo import ZOO_FILE, ZOO_NAME, file_hashes, zoo_policy
from lmrl.envs import registry
from lmrl.errors import UserError
from lmrl.evaluation.evaluate import default_episodes, evaluate
from lmrl.evaluation.loading import load_policy
from lmrl.evaluation.result_json import read_json, write_json
from lmrl.evaluation.scores import describe_settings
from lmrl.evaluation.tuning import TUNED, tuned_settings
from lmrl.modules import find_trained, load_module
from lmrl.utils.consoles import table_console
from lmrl.utils.files import check_may_replace, locked, replacing_folder

__all__ = ["zoo_add_command", "zoo_evaluate_command"]

#: Fields of an evaluation that the zoo keeps.
_KEPT = (
    "episodes", "seed", "return_mean", "return_ci", "normalized", "normalized_ci", "own", "own_ci", "success_rate",
    "success_ci", "length_mean", "illegal_rate",
)  # fmt: skip
_FORMAT = {"format": "pt"}


def zoo_evaluate_command(policy: str, *, episodes: int | None = None, seed: int = 1, slots: int | None = None) -> int:
    """Play with a policy of the zoo and compare with its published score; 1 if the two intervals are apart.

    Args:
        policy: its name, e.g. zoo:maze_fo/ilql.
        episodes: how many (default: as many as were published).
        seed: seed of the evaluation; the published one is 0.
        slots: how many episodes are played side by side; None: 32.
    """
    found = zoo_policy(policy)
    settings = describe_settings(found.settings) or "as it was trained"
    count = found.scores["episodes"] if episodes is None else episodes
    scores = evaluate(policy, found.task, count, seed, slots).scores()
    table = Table("", "episodes", "seed", "return", "95 % interval", title=f"{policy}, {settings}")
    for name, row in (("published", found.scores), ("now", {**scores, "seed": seed})):
        low, high = row["return_ci"]
        table.add_row(
            name, str(row["episodes"]), str(row["seed"]), f"{row['return_mean']:.3f}", f"{low:.3f} to {high:.3f}"
        )
    table_console().print(table)
    low, high = scores["return_ci"]
    published_low, published_high = found.scores["return_ci"]
    apart = high < published_low or low > published_high
    print("the intervals are apart" if apart else "as published: the intervals overlap")
    return int(apart)


def zoo_add_command(
    run: Path, *, to: Path = Path("zoo/lmrl_zoo/policies"), episodes: int | None = None, seed: int = 0
) -> None:
    """Put a run into the zoo: weights in float16, scored as they then are, with the settings that lmrl tune chose.

    Args:
        run: a run folder; its name and that of its task become the name of the policy.
        to: the folder of all policies.
        episodes: episodes of the evaluation (default: 256 or more, so that each start comes equally often).
        seed: seed of the evaluation.
    """
    task = find_trained(run).task
    if task is None or not run.is_dir():
        raise UserError(f"the zoo takes runs that say which task they learned; {run} does not")
    name = f"{registry.task(task).name}/{run.resolve().name}"
    if ZOO_NAME.fullmatch(name) is None:
        raise UserError(f"names in the zoo have small letters, digits and _ alone, got {name!r}: rename the folder")
    folder = to / name
    is_policy = (folder / ZOO_FILE).is_file()
    own = [ZOO_FILE, *read_manifest(folder).get("files", ())] if is_policy else ()
    check_may_replace(folder, own, "policy of the zoo", inputs=[run])
    settings = tuned_settings(run) if (run / TUNED).is_file() else {}
    count = default_episodes(task) if episodes is None else episodes
    with locked(folder, "policy of the zoo"), replacing_folder(folder) as new:
        _write_half(run, new)
        loaded = load_policy(new, task, **dict[str, Any](settings))
        scores = evaluate(loaded, task, count, seed).scores()
        kept = {key: value for key, value in {**scores, "seed": seed}.items() if key in _KEPT}
        _add_to_card(new / "README.md", f"zoo:{name}", kept, settings)
        record: dict[str, Any] = {"settings": settings, "scores": kept, "files": file_hashes(new)}
        write_json(record, new / ZOO_FILE)
    low, high = kept["normalized_ci"]
    print(f"zoo:{name}: normalised {kept['normalized']:.1f} [{low:.1f}, {high:.1f}], in {folder}")


def _write_half(run: Path, folder: Path) -> None:
    """Export a run with its numbers rounded to float16, so that the hash of the weights is of what the files hold."""
    module = load_module(run)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.half())
    module.export(folder)
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or _FORMAT
        save_file({name: tensor.half() for name, tensor in load_file(file).items()}, file, metadata=metadata)
    config = read_json(folder / "config.json")
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float16"}, indent=2) + "\n", encoding="utf-8")


def _add_to_card(card: Path, name: str, scores: dict[str, Any], settings: dict[str, float]) -> None:
    low, high = scores["normalized_ci"]
    least, most = scores["return_ci"]
    chosen = describe_settings(settings) or "as it was trained"
    text = (
        f"\n## In the zoo\n\n`{name}`, {chosen}; weights rounded to float16. Over {scores['episodes']} episodes (seed "
        f"{scores['seed']}): return {scores['return_mean']:.2f} [{least:.2f}, {most:.2f}], normalised "
        f"{scores['normalized']:.1f} [{low:.1f}, {high:.1f}], wins {scores['success_rate']:.1%}, illegal actions "
        f"{scores['illegal_rate']:.1%}.\n"
    )
    # The export knows of no scores; these are of the rounded weights.
    before = card.read_text(encoding="utf-8").replace("\n## Scores\n\nNot evaluated yet.\n", "").rstrip("\n")
    card.write_text(f"{before}\n{text}", encoding="utf-8")
