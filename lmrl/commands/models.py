"""Commands that load a trained model: ``lmrl export``, ``lmrl tune``, ``lmrl view``, ``lmrl partner-agreement``."""

import json as json_module
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.table import Table

from lmrl.checkpoints.export import check_replaceable
from lmrl.checkpoints.zoo import ZOO_PREFIX
from lmrl.commands.arguments import partner_argument
from lmrl.errors import UserError
from lmrl.evaluation.agreement import partner_agreement
from lmrl.evaluation.result_json import read_json
from lmrl.evaluation.tuning import CHOSEN, TEMPERATURES, TUNED, Tried, tune
from lmrl.modules import load_module
from lmrl.partners import make_partner
from lmrl.play.viewer import write_view
from lmrl.utils.configuration import env_arguments
from lmrl.utils.consoles import table_console
from lmrl.utils.files import locked

__all__ = ["agreement_command", "export_command", "tune_command", "view_command"]


def export_command(run: Path, *, to: Path, adapters: bool = False, allow_pickle: bool = False) -> None:
    """Write a folder that AutoModelForCausalLM loads, with tokenizer, learned values and a model card.

    Args:
        run: a run folder (its best checkpoint, else its last) or a checkpoint.
        to: the folder to write: a new one, or that of an earlier export, which is replaced.
        adapters: write the adapters of a run that trained some (lora) alone, for peft, instead of a whole model.
        allow_pickle: read a checkpoint with pickled objects; that can run any code in it.
    """
    check_replaceable(to, inputs=[run])
    with locked(to, "target"):
        module = load_module(run, allow_pickle=allow_pickle)
        scores, note = _scores(run, module.made_with.get("weights"))
        module.export(to, scores, merge=not adapters)
    print(f"written to {to}, {note}")


def _scores(run: Path, weights: str | None) -> tuple[dict[str, Any] | None, str]:
    """The scores of these weights, if the run was evaluated with them, and what to say about them."""
    if str(run).startswith(ZOO_PREFIX):
        return None, f"without scores: lmrl zoo info {run} shows them"
    file = (run if run.is_dir() else run.parent) / "evaluation" / "scores.json"
    scores = read_json(file)
    if not scores:
        return None, f"without scores: there is no {file}"
    if weights is None or scores.get("provenance", {}).get("weights") != weights:
        return None, f"without scores: those in {file} are not of these weights; evaluate {run} again"
    return scores, f"with the scores of {file}"


_PLAYED = Path("evaluation") / "episodes.parquet"


def view_command(
    source: Path,
    *,
    out: Path | None = None,
    run: Path | None = None,
    episodes: int | None = None,
    valued: int = 100,
    allow_other_task: bool = False,
    env: list[str] | None = None,
) -> None:
    """Write an HTML page of episodes: filter, sort, read, with boards, tiles and maps, and values over the words.

    Args:
        source: a .parquet or .jsonl file of episodes, a run folder that was evaluated, or the folder of an evaluation.
        out: the page (default: next to the file, with the suffix .html).
        run: a run folder or checkpoint whose V, Q, advantage and probability colour the words (default: the run folder
            that is shown).
        episodes: number of episodes, from the first on.
        valued: number of episodes, from the first on, that get values.
        allow_other_task: show what a run thinks of episodes of another task than the one that it was trained on.
        env: arguments of the environment that was played, e.g. max_steps=20 (default: as the file says; a
            path is never taken from it).
    """
    file = source
    trained = run
    if str(source).startswith(ZOO_PREFIX):
        raise UserError(f"{source} has no episodes; make some with: lmrl evaluate --policy {source}")
    if (source / _PLAYED.name).is_file():
        file = source / _PLAYED.name
    elif source.is_dir():
        file = source / _PLAYED
        trained = run or (source if any(source.glob("*.ckpt")) else None)
        if not file.is_file():
            raise UserError(f"{source} has no {_PLAYED}; make it with: lmrl evaluate --policy {source}")
    page = file.with_suffix(".html") if out is None else out
    count = write_view(file, page, trained, episodes, valued, env_arguments(env) if env else None, allow_other_task)
    print(f"{count} episodes written to {page}; open it in a browser")


def tune_command(
    run: Path,
    *,
    temperatures: list[float] | None = None,
    top_ps: list[float] | None = None,
    betas: list[float] | None = None,
    episodes: int = 256,
    seed: int = 0,
    env: list[str] | None = None,
    device: str | None = None,
    slots: int | None = None,
) -> None:
    """Choose how a run samples, and beta, by games that no score counts; lmrl evaluate --tuned then plays so.

    Args:
        run: a run folder; the choice is left there in tuned.json.
        temperatures: temperatures to try, 0 is greedy (default: 1, 0.5, 0.25).
        top_ps: nucleus sampling to try at temperature 1 (default: that of the task, mostly none); 1 for none.
        betas: weights of the learned values to try, of MC and ILQL (default: 0.25, 0.5, 1, 2, 4, 8, 16, and
            that of the configuration).
        episodes: games for each pair.
        seed: seed of the games, which differ from those of evaluations and of the choice of checkpoints.
        env: arguments of the environment.
        device: where the policy computes, e.g. cuda (default: the CPU).
        slots: games side by side; None: 32, on a GPU up to 256.
    """
    table = Table(*CHOSEN, "return", "95 % interval", title=str(run))

    def show(tried: Tried) -> None:
        low, high = tried.return_ci
        numbers = [str(tried.settings.get(name, "-")) for name in CHOSEN]
        table.add_row(*numbers, f"{tried.return_mean:.3f}", f"{low:.3f} to {high:.3f}")

    # A lock lies beside its folder, and would make the folders above of a name that is no run.
    with locked(run, "run folder") if run.is_dir() else nullcontext():
        tried = (temperatures or TEMPERATURES, top_ps or None, betas or None)
        best, *_ = tune(run, *tried, episodes, seed, env_arguments(env), on_tried=show, device=device, slots=slots)
    table_console().print(table)
    chosen = " ".join(f"--{name} {value:g}" for name, value in best.settings.items())
    print(f"chosen: {chosen} (in {run / TUNED}); next: lmrl evaluate --policy {shlex.quote(str(run))} --tuned")


def agreement_command(
    task: str, *, partner: str, size: int = 2_000, seed: int = 0, json: bool = False, chat: list[str] | None = None
) -> None:
    """Ask a partner questions whose answers the task knows, most of them in words that no data holds.

    Args:
        task: name of a task whose partner says yes or no.
        partner: who is tested: scripted, lm:PATH or chat:MODEL.
        size: questions in all.
        seed: seed of the questions.
        json: print JSON instead of a table.
        chat: settings of a chat partner, e.g. budget_tokens=1000000 timeout=30 base_url=URL.
    """
    tested = make_partner(partner_argument(partner, chat), task)
    found = [line.to_dict() for line in partner_agreement(tested, task, size, seed)]
    if json:
        described = {"name": "scripted"} if tested is None else tested.describe()
        print(json_module.dumps({"task": task, "partner": described, "agreement": found}, indent=2))
        return
    table = Table("questions", "asked", "right", "95 % interval", "on yes", "on no", title=f"{task}: {partner}")
    for line in found:
        low, high = line["agreement_ci"]
        shares = [f"{line[key]:.1%}" for key in ("agreement", "agreement_on_yes", "agreement_on_no")]
        table.add_row(line["group"], str(line["questions"]), shares[0], f"{low:.1%} to {high:.1%}", *shares[1:])
    table_console().print(table)
