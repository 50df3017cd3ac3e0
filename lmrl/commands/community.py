"""``lmrl community``: the table of results that others send, and how a row of it is made and checked."""

from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from lmrl.errors import UserError
from lmrl.evaluation.community import method_scores, read_community, row_of, write_community
from lmrl.evaluation.result_files import read_json

__all__ = ["community_add_command", "community_check_command"]

_FOLDER = Path("results/community")


def community_add_command(
    evaluation: Path,
    *,
    to: Path,
    method: str,
    model: str,
    code: str,
    by: str,
    minutes: float,
    device: str,
    training_seed: int = 0,
) -> None:
    """Add a row for an evaluation to a file of results; a row of the same run is replaced.

    Args:
        evaluation: folder that lmrl evaluate wrote, e.g. runs/maze_fo/ilql/evaluation.
        to: the file, e.g. results/community/NAME.csv; made if it is not there.
        method: what is compared, e.g. "ILQL with a larger critic".
        model: architecture and size, e.g. "llama 3 x 128".
        code: link to the code and the settings, https://...
        by: who reports it.
        minutes: of the training by the clock; 0 where nothing was trained.
        device: on which it was trained, e.g. "2 CPU cores" or "one A100".
        training_seed: seed of the training.
    """
    scores = read_json(evaluation / "scores.json")
    if not scores:
        raise UserError(
            f"there is no {evaluation / 'scores.json'}; lmrl evaluate --policy POLICY --out FOLDER writes one"
        )
    row = row_of(
        scores,
        evaluation / "scores.json",
        method=method,
        model=model,
        code=code,
        by=by,
        minutes=minutes,
        device=device,
        training_seed=training_seed,
        date=date.today(),
    )
    rows = read_community([to]) if to.exists() else []
    same = (row.task, row.method, row.model, row.by, row.training_seed)
    kept = [old for old in rows if (old.task, old.method, old.model, old.by, old.training_seed) != same]
    write_community([*kept, row], to)
    print(f"{to}: {_count(len(kept) + 1, 'row')}; check it with: lmrl community check {to}")


def community_check_command(files: list[str] | None = None) -> None:
    """Check files of results and print the table that they make.

    Args:
        files: e.g. results/community/NAME.csv (default: all in results/community).
    """
    paths = [Path(file) for file in files] if files else sorted(_FOLDER.glob("*.csv"))
    if not paths:
        raise UserError(f"there are no files of results in {_FOLDER}; lmrl community add makes one")
    table = Table(
        Column("task", no_wrap=True), Column("normalised", no_wrap=True), "wins", "illegal", Column("entry", ratio=1)
    )
    rows = read_community(paths)
    for one in method_scores(rows):
        told = [_count(one.seeds, "seed"), one.settings, f"{one.minutes:.0f} min"]
        table.add_row(
            *(one.task, f"{one.normalized:.1f} [{one.spread.low:.1f}, {one.spread.high:.1f}]"),
            *(f"{one.success_rate:.0%}", f"{one.illegal_rate:.1%}"),
            f"{one.method} ({one.model}), by {one.by}; {', '.join(filter(None, told))}",
        )
    Console().print(table)
    print(f"{_count(len(rows), 'row')} in {_count(len(paths), 'file')}: all keep the rules")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
