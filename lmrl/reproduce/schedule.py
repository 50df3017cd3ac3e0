"""Running the cells of a plan: several processes side by side, each cell after the one it starts from."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lmrl.data.storage import read_dataset, read_episodes
from lmrl.errors import UserError
from lmrl.evaluation.evaluate import Evaluation
from lmrl.evaluation.records import DATA
from lmrl.evaluation.result_json import read_json, write_json
from lmrl.models.checkpoints import set_aside
from lmrl.reproduce.plan import Cell, Order, Standing, Step, dataset_of, is_done, is_finished, reached, standing
from lmrl.reproduce.processes import CommandFailed, Processes
from lmrl.reproduce.progress import Progress
from lmrl.utils.files import locked

__all__ = [
    "Runner",
    "Running",
    "Threads",
    "finish",
    "run_cell",
    "run_cells",
    "train",
]

_QUANTILES = 101


def finish(cell: Cell, order: Order) -> dict[str, Any]:
    """Write and return the record: scores, checkpoints, seconds and tokens of each part, commands, versions."""
    timing = read_json(cell.folder / "timing.json")
    steps: Mapping[str, Any] = {step.name: timing[step.name] for step in cell.steps if step.name in timing}
    # A dataset may have been finished by a process that was killed before it noted how long that took.
    seconds, of_cpu = (
        {name: record[kind] for name, record in steps.items() if kind in record} for kind in ("seconds", "cpu_seconds")
    )
    record = {
        "task": cell.task,
        "algorithm": cell.algorithm,
        "seed": cell.seed,
        "recipe": cell.recipe,
        "commands": [record["command"] for record in steps.values()],
        "seconds": {**seconds, "total": round(sum(seconds.values()), 1)},
        "cpu_seconds": {**of_cpu, "total": round(sum(of_cpu.values()), 1)},
        **(_of_data(cell, order) if cell.algorithm == DATA else _of_play(cell)),
    }
    write_json(record, cell.folder / "cell.json")
    return record


def _of_play(cell: Cell) -> dict[str, Any]:
    best = cell.folder / "evaluation"
    last = cell.folder / "evaluation_last"
    scores = read_json(best / "scores.json")
    found: dict[str, Any] = {"scores": scores, "versions": scores.get("provenance", {}).get("versions", {})}
    tokens: dict[str, Any] = {"played": _said(best)}
    if cell.fit is not None:
        ends = {name: reached(cell.folder / f"{name}.ckpt") for name in ("best", "last")}
        of_last = read_json(last / "scores.json")
        weights = None if ends["last"] is None else ends["last"].weights
        if weights is not None and of_last.get("provenance", {}).get("weights") != weights:
            of_last = {}  # played before the training went on
        found["last"] = of_last or scores
        found["tuned"] = read_json(cell.folder / "evaluation_tuned" / "scores.json")
        tokens["played_tuned"] = _said(cell.folder / "evaluation_tuned")
        found["steps"] = {name: end.step for name, end in ends.items() if end is not None}
        tokens |= {"trained": ends["last"].tokens if ends["last"] else None, "played_last": _said(last)}
    return {**found, "tokens": tokens}


def _said(evaluation: Path) -> int:
    """Tokens that were sampled while playing; 0 for players that say texts."""
    path = evaluation / "episodes.parquet"
    if not path.is_file():
        return 0
    return sum(len(ids) for episode in read_episodes(path) for ids in episode.action_ids)


def _of_data(cell: Cell, order: Order) -> dict[str, Any]:
    path = dataset_of(order, cell.task)
    episodes = tuple(read_dataset(path, cell.task))
    scores = Evaluation(cell.task, DATA, episodes, 0).scores()
    return {"file": path.name, "scores": scores, "returns": _quantiles(episode.total_reward for episode in episodes)}


def _quantiles(values: Iterable[float]) -> list[float]:
    """From the lowest to the highest, each per cent."""
    found: list[float] = np.quantile(np.fromiter(values, float), np.linspace(0, 1, _QUANTILES)).tolist()
    return found


class Running(Protocol):
    """A cell that was started and may have ended."""

    def exception(self) -> BaseException | None:
        """Why it failed; None if it did not. Asked when it has ended."""
        ...

    def result(self) -> dict[str, Any]:
        """The record of a cell that ended well."""
        ...


class Runner(Protocol):
    """Where cells are run."""

    def free(self, running: int) -> int | None:
        """How many more can be started; None: any number."""
        ...

    def start(self, cells: Sequence[Cell]) -> list[Running]:
        """Start cells, which do not depend on each other."""
        ...

    def ended(self, running: Sequence[Running]) -> list[Running]:
        """Those that have ended, once there is one, or after about a second."""
        ...

    def close(self) -> None:
        """Nothing more is started."""
        ...


class Threads:
    """Cells on this machine, a number of them at once. Close it inside the ``with`` block of the processes.

    Its threads then end as soon as those are ended.

    Args:
        order: what the table is to hold.
        processes: run the steps of cells.
        jobs: how many cells at once.
        say: receives the names of folders that are moved out of the way.
    """

    def __init__(self, order: Order, processes: Processes, jobs: int, say: Callable[[str], None] = print) -> None:
        self._order = order
        self._processes = processes
        self._jobs = jobs
        self._say = say
        self._executor = ThreadPoolExecutor(max_workers=jobs)

    def free(self, running: int) -> int | None:
        return self._jobs - running

    def start(self, cells: Sequence[Cell]) -> list[Running]:
        return [self._executor.submit(run_cell, cell, self._order, self._processes, self._say) for cell in cells]

    def ended(self, running: Sequence[Running]) -> list[Running]:
        return [*wait([one for one in running if isinstance(one, Future)], 1.0, FIRST_COMPLETED).done]

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


def run_cells(cells: Sequence[Cell], runner: Runner, progress: Progress) -> dict[str, str]:
    """Run every cell that is not finished; a failed one stops nothing but those that come after it.

    A dataset that another process records is waited for: commands for several seeds of a task can begin together.

    Args:
        cells: in an order in which each comes after the one it starts from.
        runner: starts them; it is closed at the end.
        progress: receives each event.

    Returns:
        Why cells failed, by their name; empty if none did.

    Raises:
        UserError: another process trains, or plays for, one of the cells; nothing was begun.
    """
    with ExitStack() as held:
        locks: dict[str, ExitStack] = {}
        # Datasets last, so that nobody waits only to be refused, and sorted, so that no two wait for each other.
        unfinished = [cell for cell in cells if not is_finished(cell)]
        for cell in sorted(unfinished, key=lambda cell: (cell.algorithm == DATA, cell.name)):
            locks[cell.name] = held.enter_context(ExitStack())
            _lock(cell, locks[cell.name], progress)
        waiting = [cell for cell in cells if not is_finished(cell)]  # another process may just have ended
        for name in locks.keys() - {cell.name for cell in waiting}:
            locks.pop(name).close()
        progress.begin(cells, waiting)
        return _Run(runner, progress, waiting, locks).run()


def _lock(cell: Cell, lock: ExitStack, progress: Progress) -> None:
    try:
        lock.enter_context(locked(cell.folder, "cell", "cell"))
    except UserError as busy:
        if cell.algorithm != DATA:
            raise
        progress.say(f"{cell.name}: waiting: {busy}")
        lock.enter_context(locked(cell.folder, "cell", "cell", wait=-1.0))


@dataclass(slots=True)
class _Run:
    runner: Runner
    progress: Progress
    waiting: list[Cell]
    locks: Mapping[str, ExitStack]
    running: dict[Running, Cell] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def run(self) -> dict[str, str]:
        try:
            while self.waiting or self.running:
                ready = self._ready()
                if ready:
                    for cell in ready:
                        self.waiting.remove(cell)
                        self.progress.start(cell, standing(cell, cell.fit) if cell.fit else None)
                    self.running |= dict(zip(self.runner.start(ready), ready, strict=True))
                for ended in self.runner.ended([*self.running]) if self.running else ():
                    self._end(self.running.pop(ended), ended)
                self.progress.tick(self.running.values())
        finally:
            self.runner.close()
        return self.failed

    def _ready(self) -> list[Cell]:
        """Cells to start now; those that never can are noted in `failed`."""
        for cell in [cell for cell in self.waiting if cell.after in self.failed]:
            self.waiting.remove(cell)
            self._fail(cell, f"not started, because it comes after {cell.after}")
        unfinished = {cell.name for cell in (*self.waiting, *self.running.values())}
        free = self.runner.free(len(self.running))
        return [cell for cell in self.waiting if cell.after not in unfinished][:free]

    def _end(self, cell: Cell, ended: Running) -> None:
        error = ended.exception()
        self.locks[cell.name].close()
        if error is None:
            self.progress.end(cell, ended.result())
        elif isinstance(error, (CommandFailed, OSError, UserError)):
            self._fail(cell, str(error))
        else:
            raise error

    def _fail(self, cell: Cell, why: str) -> None:
        self.failed[cell.name] = why
        self.progress.fail(cell, why)


def run_cell(cell: Cell, order: Order, processes: Processes, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Do what is not done yet of a cell, and return its record.

    Args:
        cell: a cell of the plan.
        order: what the table is to hold.
        processes: run its steps.
        say: as of `train`.

    Raises:
        CommandFailed: with the last lines of its output.
    """
    for step in cell.steps:
        if step.name == "fit":
            train(cell, processes, say)
        elif not (is_done(cell, step) or _is_needless(cell, step, order)):
            processes.run(step, cell.folder)
    return finish(cell, order)


def train(cell: Cell, processes: Processes, say: Callable[[str], None] = print) -> None:
    """Run the training of a cell from where it stands; other runs in its folder are moved out of the way.

    Args:
        cell: a cell with a training.
        processes: run it.
        say: receives the names of folders that were moved, and their new places.

    Raises:
        CommandFailed: with the last lines of its output.
    """
    assert cell.fit is not None
    found = standing(cell, cell.fit)
    if found is Standing.RESUME:
        processes.run(cell.fit, cell.folder, "--ckpt_path", (cell.folder / "last.ckpt").as_posix())
    elif found is Standing.FRESH:
        with locked(cell.folder, "run folder"):  # in which somebody may be training
            begun = _recipe(cell.folder) == cell.fit.recipe
            moved = set_aside(cell.folder)
            if moved:  # as `lmrl fit --overwrite` does
                why = "was broken off before its first checkpoint" if begun else "was made with other settings"
                say(f"{cell.folder.as_posix()} {why}: moved to {moved.as_posix()}")
        processes.run(cell.fit, cell.folder)


def _recipe(folder: Path) -> Any:
    return read_json(folder / "timing.json").get("fit", {}).get("recipe")


def _is_needless(cell: Cell, step: Step, order: Order) -> bool:
    """Whether the dataset is there already, or best and last checkpoint are one."""
    if step.name == "generate":
        return dataset_of(order, cell.task).is_file()
    if step.name != "evaluate_last":
        return False
    best, last = (reached(cell.folder / f"{name}.ckpt") for name in ("best", "last"))
    return best is None or last is None or best.step == last.step
