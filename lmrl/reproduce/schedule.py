"""Execution of a plan: several cells at once, each after the one that it starts from."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lmrl.checkpoints.export import read_manifest
from lmrl.checkpoints.run_files import set_aside
from lmrl.data.storage import read_dataset, read_episodes
from lmrl.errors import UserError
from lmrl.evaluation.evaluate import Evaluation
from lmrl.evaluation.records import DATA
from lmrl.evaluation.result_json import read_json, write_json
from lmrl.reproduce import protocol
from lmrl.reproduce.plan import Cell, Order, Standing, Step, dataset_of, is_done, is_finished, reached, standing
from lmrl.reproduce.processes import CommandFailed, Processes
from lmrl.reproduce.progress import Progress
from lmrl.utils.files import locked

_QUANTILES = 101


def finish(cell: Cell, order: Order) -> dict[str, Any]:
    """Write and return the record of a cell: commands, times, scores, steps, tokens and versions."""
    timing = read_json(cell.folder / "timing.json")
    commands = []
    seconds = {}
    cpu_seconds = {}
    for step in cell.steps:
        if step.name not in timing:
            continue
        timed = timing[step.name]
        commands.append(timed["command"])
        # A process that was killed may have finished the step without noting how long it took.
        if "seconds" in timed:
            seconds[step.name] = timed["seconds"]
        cpu_seconds[step.name] = timed.get("cpu_seconds")
    times = {"seconds": {**seconds, "total": round(sum(seconds.values()), 1)}}
    if None not in cpu_seconds.values():
        times["cpu_seconds"] = {**cpu_seconds, "total": round(sum(cpu_seconds.values()), 1)}
    record = {
        "task": cell.task,
        "algorithm": cell.algorithm,
        "seed": cell.seed,
        "recipe": cell.recipe,
        "commands": commands,
        **times,
        **(_results_of_data(cell, order) if cell.algorithm == DATA else _results_of_run(cell)),
    }
    write_json(record, cell.folder / "cell.json")
    return record


def _results_of_run(cell: Cell) -> dict[str, Any]:
    """Return scores, versions, steps and tokens of a scripted policy or a training."""
    best_folder = cell.folder / "evaluation"
    last_folder = cell.folder / "evaluation_last"
    tuned_folder = cell.folder / "evaluation_tuned"
    scores = read_json(best_folder / "scores.json")
    results: dict[str, Any] = {"scores": scores, "versions": scores.get("provenance", {}).get("versions", {})}
    tokens: dict[str, Any] = {"played": _sampled_tokens(best_folder)}
    if cell.fit is not None:
        best = reached(cell.folder / "best.ckpt")
        last = reached(cell.folder / "last.ckpt")
        results["trained_with"] = read_manifest(cell.folder / "best").get("made_with", {}).get("lmrl")
        last_scores = read_json(last_folder / "scores.json")
        if last is not None and last.weights is not None:
            if last_scores.get("provenance", {}).get("weights") != last.weights:
                last_scores = {}  # evaluated before the training was resumed
        # Without an evaluation of its own, the last checkpoint is the best one.
        results["last"] = last_scores or scores
        results["tuned"] = read_json(tuned_folder / "scores.json")
        results["steps"] = {}
        if best is not None:
            results["steps"]["best"] = best.step
        if last is not None:
            results["steps"]["last"] = last.step
        tokens["played_tuned"] = _sampled_tokens(tuned_folder)
        tokens["trained"] = None if last is None else last.tokens
        tokens["played_last"] = _sampled_tokens(last_folder)
        if last is not None and last.tflop is not None:
            results["tflop"] = last.tflop
        results["earlier"] = {}
        selection = {}
        for name in protocol.EARLIER:
            earlier = read_json(cell.folder / f"evaluation_{name}" / "scores.json")
            if earlier:
                results["earlier"][name] = earlier
        for name in (*protocol.EARLIER, protocol.END):
            chosen_by = read_json(cell.folder / f"selection_{name}" / "scores.json")
            if chosen_by:
                selection[name] = chosen_by["return_mean"]
        if selection:
            results["selection"] = selection
            results["chosen"] = protocol.chosen_policy(selection)
    return {**results, "tokens": tokens}


def _sampled_tokens(evaluation: Path) -> int:
    """Return the number of tokens that an evaluation sampled; 0 for policies that produce texts."""
    path = evaluation / "episodes.parquet"
    total = 0
    for episode in read_episodes(path) if path.is_file() else ():
        total += sum(map(len, episode.action_ids))
    return total


def _results_of_data(cell: Cell, order: Order) -> dict[str, Any]:
    """Return the scores of a dataset and the percentiles of its returns."""
    path = dataset_of(order, cell.task)
    episodes = tuple(read_dataset(path, cell.task))
    scores = Evaluation(cell.task, DATA, episodes, 0, provenance={"env": dict(order.env or {})}).scores()
    returns = np.array([episode.total_reward for episode in episodes], float)
    percentiles = np.quantile(returns, np.linspace(0, 1, _QUANTILES)).tolist()
    return {"file": path.name, "scores": scores, "returns": percentiles}


class Running(Protocol):
    """A cell that was started and may have ended."""

    def exception(self) -> BaseException | None:
        """Return why an ended cell failed; None if it did not."""

    def result(self) -> dict[str, Any]:
        """Return the record of an ended cell that did not fail."""


class Runner(Protocol):
    """Runs cells: in threads of this process, as SLURM jobs, or as tasks of Ray."""

    def free(self, running: int) -> int | None:
        """Return how many more cells can be started; None: any number."""

    def start(self, cells: Sequence[Cell]) -> list[Running]:
        """Start cells, which do not depend on each other."""

    def ended(self, running: Sequence[Running]) -> list[Running]:
        """Return the cells that have ended, as soon as there is one, or after about a second."""

    def close(self) -> None:
        """End what would not outlive this process."""


class Threads:
    """Runs a number of cells at once on this machine. Close it inside the ``with`` block of the processes.

    Its threads then end as soon as the processes are terminated.

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
        futures = [future for future in running if isinstance(future, Future)]
        return list(wait(futures, 1.0, FIRST_COMPLETED).done)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


def run_cells(cells: Sequence[Cell], runner: Runner, progress: Progress) -> dict[str, str]:
    """Run every cell that is not finished. If a cell fails, only the cells that come after it are not run.

    If another process is recording a dataset, this one waits: commands for several seeds of a task can start together.

    Args:
        cells: in an order in which each comes after the one it starts from.
        runner: starts them; it is closed at the end.
        progress: receives each event.

    Returns:
        Name of each failed cell to the reason; empty if none failed.

    Raises:
        UserError: another process works on one of the cells; none was started.
    """
    with ExitStack() as held:
        locks: dict[str, ExitStack] = {}
        # Datasets come last, so that no process waits for one and is refused afterwards. The locks are taken in sorted
        # order, so that no two processes wait for each other.
        unfinished = [cell for cell in cells if not is_finished(cell)]
        for cell in sorted(unfinished, key=lambda cell: (cell.algorithm == DATA, cell.name)):
            locks[cell.name] = held.enter_context(ExitStack())
            _lock(cell, locks[cell.name], progress)
        # Another process may have finished some cells in the meantime.
        waiting = []
        for cell in cells:
            if not is_finished(cell):
                waiting.append(cell)
            elif cell.name in locks:
                locks.pop(cell.name).close()
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
        """Return the cells to start now. Cells that can never be started are noted in `failed`."""
        # In the order of the plan, one pass also reaches the cells that come after a cell which fails here.
        for cell in list(self.waiting):
            if cell.after in self.failed:
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
    """Run the steps of a cell that are not done yet, and return its record.

    Args:
        cell: a cell of the plan.
        order: the specification of the table.
        processes: runs the steps.
        say: see `train`.

    Raises:
        CommandFailed: with the last lines of its output.
    """
    for step in cell.steps:
        if step.name == "fit":
            train(cell, processes, say)
        elif not (is_done(cell, step) or _is_needless(cell, step, order)):
            more = ("--resume",) if cell.algorithm == DATA else ()
            processes.run(step, cell.folder, *more)
    return finish(cell, order)


def train(cell: Cell, processes: Processes, say: Callable[[str], None] = print) -> None:
    """Start or resume the training of a cell. Other runs in its folder are moved out of the way.

    Args:
        cell: a cell with a training.
        processes: runs the training.
        say: receives the names of folders that were moved, and their new places.

    Raises:
        CommandFailed: with the last lines of its output.
    """
    assert cell.fit is not None
    to_do = standing(cell, cell.fit)
    if to_do is Standing.RESUME:
        processes.run(cell.fit, cell.folder, "--ckpt_path", (cell.folder / "last.ckpt").as_posix())
    elif to_do is Standing.FRESH:
        with locked(cell.folder, "run folder"):  # `lmrl fit` may be training there
            recipe = read_json(cell.folder / "timing.json").get("fit", {}).get("recipe")
            moved = set_aside(cell.folder)  # as `lmrl fit --overwrite` does
            if moved:
                same = recipe == cell.fit.recipe
                why = "was broken off before its first checkpoint" if same else "was made with other settings"
                say(f"{cell.folder.as_posix()} {why}: moved to {moved.as_posix()}")
        processes.run(cell.fit, cell.folder)


def _is_needless(cell: Cell, step: Step, order: Order) -> bool:
    """Whether a step has nothing to do: the dataset exists, or the best checkpoint is also the last one."""
    if step.name == "generate":
        return dataset_of(order, cell.task).is_file()
    if step.name != "evaluate_last":
        return False
    best = reached(cell.folder / "best.ckpt")
    last = reached(cell.folder / "last.ckpt")
    return best is None or last is None or best.step == last.step
